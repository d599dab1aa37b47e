"""Confluent-compatible registries elsewhere: schemas by the number that travels with the data.

What a number stands for never changes, so it is fetched once and kept. Fetching waits for the network and never holds
up the event loop: rules are evaluated where they can wait. Where no one can wait, the first message with an unknown
number fails with a reason, and the schema is fetched for those that follow. Redirects are not followed, answers and
times are bounded.
"""

from __future__ import annotations

import asyncio
import time
from base64 import b64encode
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from threading import Lock
from typing import Annotated, Any, ClassVar, Literal, TypeVar
from urllib.parse import quote, urlsplit

from pydantic import Field, field_validator

from broker.config.model import Settings
from broker.config.outgoing import CallFailed, call
from broker.config.secret_text import SecretText
from broker.config.ssrf import AddressDenied, AddressGuard, SsrfSettings
from broker.core import jsontext
from broker.core.errors import Invalid
from broker.core.schema import SchemaError, Serde
from broker.core.waiting import MAX_QUESTIONS, answer_to, is_waited_for
from schema_validation.references import Reference, Referred, standing_alone
from schema_validation.schemas import SOURCE_TYPES, compile_source

T = TypeVar("T")

# Schemas of one registry that are kept; the oldest makes room.
MAX_KEPT = 1000
MAX_ANSWER_BYTES = 4 * 1024 * 1024
# Deepest chain of references.
MAX_DEPTH = 16
# Time before a number that could not be fetched is requested again.
FAILED_S = 10.0
_MOST_UNDER_WAY = 64
_KINDS = {"AVRO": "avro", "JSON": "json", "PROTOBUF": "protobuf"}


class BasicAuth(Settings):
    mechanism: Literal["basic"]
    username: str
    password: SecretText


class BearerAuth(Settings):
    mechanism: Literal["bearer"]
    token: SecretText


Auth = Annotated[BasicAuth | BearerAuth, Field(discriminator="mechanism")]


class ConfluentSpec(Settings):
    """An external registry, as written by users."""

    name: str
    type: Literal["confluent"] = "confluent"
    url: str = Field(description="Where it is, `http://...` or `https://...`.")
    auth: Literal["none"] | Auth = "none"
    request_timeout_s: float = Field(
        default=5.0, gt=0, le=60, description="A request that takes longer has failed; seconds."
    )
    description: str = ""

    @field_validator("url")
    @classmethod
    def _url(cls, value: str) -> str:
        parts = urlsplit(value)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError("it must begin with http:// or https:// and name a host")
        if parts.username or parts.password or parts.fragment or parts.query:
            raise ValueError("user, query and fragment do not belong into it; use auth")
        return value.rstrip("/")


class ConfluentRegistry:
    """A ``broker.core.schema.ExternalRegistry``. Used on the event loop and on threads."""

    def __init__(self, spec: ConfluentSpec, guard: AddressGuard | None = None) -> None:
        self.spec, self._guard = spec, guard or AddressGuard(SsrfSettings())
        self.last_error: str | None = None
        self._serdes: OrderedDict[int, Serde] = OrderedDict()
        self._failed: dict[int, tuple[float, str]] = {}
        self._coming: dict[int, Future[Serde]] = {}
        self._lock = Lock()
        self._pool = ThreadPoolExecutor(2, thread_name_prefix=f"registry {spec.name}")

    def serde(self, schema_id: int) -> Serde:
        """The serde of a schema by its number. Waits; on the event loop it raises, and fetches it for the next call."""
        cached = self._serdes.get(schema_id)
        if cached is not None:
            return cached
        failed = self._failed.get(schema_id)
        if failed is not None and time.monotonic() < failed[0]:
            raise SchemaError(failed[1])
        if is_waited_for():
            serde: Serde = answer_to(
                _Asked(("schema", id(self), schema_id), lambda: self._fetching(schema_id))
            )
            return serde
        if not _is_on_loop():
            return self._fetched(schema_id)
        if len(self._coming) < _MOST_UNDER_WAY:
            self._fetching(schema_id)
        raise SchemaError(
            f"schema {schema_id} of registry '{self.spec.name}' is being fetched, and is known in a moment"
        )

    def register(self, subject: str, source: str) -> int:
        """The number of an Avro schema under a subject, registered when it is not yet."""
        if is_waited_for():
            about = ("subject", id(self), subject)
            registered: int = answer_to(
                _Asked(about, lambda: self._on_thread(self._registered, subject, source))
            )
            return registered
        if _is_on_loop():
            raise SchemaError(
                f"registering at '{self.spec.name}' waits for the network, which is not done here"
            )
        return self._registered(subject, source)

    def _registered(self, subject: str, source: str) -> int:
        body = {"schema": source, "schemaType": "AVRO"}
        answer = self._call("POST", f"/subjects/{quote(subject, safe='')}/versions", body)
        number = answer.get("id") if isinstance(answer, dict) else None
        if not isinstance(number, int):
            raise self._refused("its answer has no id")
        return number

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def known(self) -> int:
        """Number of schemas that are kept."""
        return len(self._serdes)

    def close(self) -> None:
        """Send no further requests; running ones complete."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _fetching(self, schema_id: int) -> Future[Serde]:
        """The serde of a schema, fetched once for all that wait for it."""
        with self._lock:
            coming = self._coming.get(schema_id)
            if coming is None:
                coming = self._coming[schema_id] = self._on_thread(self._fetched, schema_id)
        coming.add_done_callback(lambda _: self._coming.pop(schema_id, None))
        return coming

    def _on_thread(self, call: Callable[..., T], *arguments: Any) -> Future[T]:
        try:
            return self._pool.submit(call, *arguments)
        except RuntimeError:  # as after close: it was changed or deleted
            raise self._refused("it was closed") from None

    def _fetched(self, schema_id: int) -> Serde:
        try:
            serde = self._compiled(schema_id)
        except SchemaError as error:
            with self._lock:
                while len(self._failed) >= MAX_KEPT:
                    del self._failed[next(iter(self._failed))]
                self._failed[schema_id] = (time.monotonic() + FAILED_S, str(error))
            self.last_error = str(error)
            raise
        with self._lock:
            self._failed.pop(schema_id, None)
            self._serdes[schema_id] = serde
            while len(self._serdes) > MAX_KEPT:
                self._serdes.popitem(last=False)
        return serde

    def _compiled(self, schema_id: int) -> Serde:
        answer = self._call("GET", f"/schemas/ids/{schema_id}")
        kind, source = self._content(answer)
        try:
            flat = standing_alone(kind, source, self._referred(answer, 0))
            return compile_source(kind, flat, f"schema {schema_id} of registry '{self.spec.name}'")
        except (Invalid, ValueError) as error:
            raise self._refused(f"schema {schema_id} cannot be used: {error}") from None

    def _referred(self, subject_version: Mapping[str, Any], depth: int) -> tuple[Referred, ...]:
        if depth > MAX_DEPTH:
            raise self._refused(f"references are deeper than {MAX_DEPTH}")
        references = []
        for item in subject_version.get("references") or ():
            subject = str(item.get("subject"))
            version = item.get("version")
            inner = self._call("GET", f"/subjects/{quote(subject, safe='')}/versions/{version}")
            kind, source = self._content(inner)
            below = self._referred(inner, depth + 1)
            reference = Reference(
                str(item.get("name")), subject, version if isinstance(version, int) else 0
            )
            references.append(
                Referred(reference, kind, source, standing_alone(kind, source, below), below)
            )
        return tuple(references)

    def _content(self, content: Any) -> tuple[str, str]:
        if not isinstance(content, dict) or not isinstance(content.get("schema"), str):
            raise self._refused("its answer holds no schema")
        kind = _KINDS.get(str(content.get("schemaType") or "AVRO"))
        if kind not in SOURCE_TYPES:
            raise self._refused(f"schemas of type {content.get('schemaType')} are not known here")
        return str(kind), content["schema"]

    def _call(self, method: str, path: str, body: Any = None) -> Any:
        headers = [
            ("Accept", "application/vnd.schemaregistry.v1+json, application/json"),
            *_login(self.spec.auth),
        ]
        if body is not None:
            headers.append(("Content-Type", "application/json"))
        try:
            status, data = asyncio.run(
                call(
                    method,
                    self.spec.url + path,
                    self._guard,
                    None,
                    timeout_s=self.spec.request_timeout_s,
                    most_bytes=MAX_ANSWER_BYTES,
                    headers=headers,
                    content=None if body is None else jsontext.encode(body),
                )
            )
        except (AddressDenied, CallFailed) as error:
            raise self._refused(str(error)) from None
        try:
            answer = jsontext.decode(data)
        except jsontext.JsonError:
            answer = None
        if status == 200 and answer is not None:
            return answer
        said = answer.get("message") if isinstance(answer, dict) else None
        raise self._refused(f"it answered {status}" + (f": {str(said)[:200]}" if said else ""))

    def _refused(self, why: str) -> SchemaError:
        return SchemaError(f"schema registry '{self.spec.name}': {why}")


@dataclass(frozen=True, slots=True)
class _Asked:
    """A ``broker.core.waiting.Question`` to a registry, answered on a thread of its pool."""

    about: Hashable
    start: Callable[[], Future[Any]]
    most: ClassVar[int] = MAX_QUESTIONS

    async def ask(self) -> Any:
        answer = self.start()
        try:
            return await asyncio.shield(asyncio.wrap_future(answer))
        except asyncio.CancelledError:
            if answer.cancelled():
                # not this caller, but the call: the registry was closed before its turn
                raise SchemaError("the schema registry was closed") from None
            raise


def _is_on_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _login(auth: Any) -> list[tuple[str, str]]:
    if isinstance(auth, BasicAuth):
        return [
            (
                "Authorization",
                "Basic " + b64encode(f"{auth.username}:{auth.password.reveal()}".encode()).decode(),
            )
        ]
    return (
        [("Authorization", f"Bearer {auth.token.reveal()}")] if isinstance(auth, BearerAuth) else []
    )
