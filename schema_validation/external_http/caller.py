"""Calls to the server of one schema: a few connections, a time for each call, bounded answers, no redirects.

Connections are kept while calls come and closed when none has come for ``max_inactive``. Each name is resolved when a
connection is made, and the address that is called is the one that was checked.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, Literal
from urllib.parse import urlencode, urlsplit

from broker.config import outgoing
from broker.config.outgoing import GuardedNetwork, body_of
from broker.config.secret_text import named_value
from broker.config.ssrf import AddressDenied, AddressGuard, SsrfSettings
from broker.core import jsontext
from broker.core.lazy_module import LazyModule
from broker.core.schema import SchemaError
from broker.observe.metrics import Metrics
from schema_validation.external_http.spec import Parameters

if TYPE_CHECKING:
    import httpcore
else:
    httpcore = LazyModule("httpcore")

Verb = Literal["encode", "decode"]

# Longest answer, as base64.
MAX_ANSWER_BYTES: Final = 4 * 1024 * 1024
# Minimum concurrent calls to one server: one batch of a rule.
LEAST_WAITING: Final = 128
_PAUSE_S: Final = 0.05


class ExternalCalls:
    """Limits on the calls of this process."""

    guard = AddressGuard(SsrfSettings())
    metrics = Metrics()

    @classmethod
    def count(cls, outcome: str) -> None:
        """Count a call by its outcome."""
        cls.metrics.counter(
            "external_schema_calls",
            "calls to servers that code payloads, by outcome",
            outcome=outcome,
        ).value += 1


class CallFailed(SchemaError):
    """A call that gave no result; ``outcome`` is the word under which it is counted."""

    def __init__(self, outcome: str, why: str) -> None:
        self.outcome = outcome
        super().__init__(why)


class Caller:
    """The calls of one schema. ``state`` is ``connecting`` before the first, then ``connected`` or ``disconnected``."""

    def __init__(self, schema: str, parameters: Parameters) -> None:
        self._schema = schema
        self._parameters = parameters
        parts = urlsplit(parameters.url.reveal())
        self.server = parts.netloc
        self._most_waiting = max(parameters.pool_size * parameters.enable_pipelining, LEAST_WAITING)
        self._pool: httpcore.AsyncConnectionPool | None = None
        self._last_s = 0.0
        self._idle: asyncio.Task[None] | None = None
        self.waiting = self.calls = self.failed = 0
        self.state = "connecting"
        self.last_error: str | None = None

    @property
    def is_open(self) -> bool:
        """True if there are connections."""
        return self._pool is not None

    async def call(self, verb: Verb, data: bytes) -> bytes:
        """The server's result for data.

        Raises:
            SchemaError: it gives no result within ``request_timeout``, attempts and waiting for a connection included.
        """
        self.calls += 1
        self.waiting += 1
        try:
            result = await self._within_time(verb, data)
        except CallFailed as error:
            self.failed += 1
            self.last_error = str(error)
            ExternalCalls.count(error.outcome)
            raise
        else:
            ExternalCalls.count("ok")
            return result
        finally:
            self.waiting -= 1

    async def _within_time(self, verb: Verb, data: bytes) -> bytes:
        if self.waiting > self._most_waiting:
            raise CallFailed(
                "busy", f"{self._most_waiting} calls to {self.server} are under way already"
            )
        limit_s = self._parameters.request_timeout
        try:
            async with asyncio.timeout(limit_s):
                return await self._attempts(verb, data)
        except TimeoutError:
            raise CallFailed(
                "timeout", f"{self.server} did not answer within {limit_s:g} s"
            ) from None

    async def _attempts(self, verb: Verb, data: bytes) -> bytes:
        for left in range(self._parameters.max_retries, -1, -1):
            try:
                status, body = await self._exchange(*self._request(verb, data))
            except AddressDenied as error:
                raise CallFailed("denied", str(error)) from None
            except outgoing.CallFailed as error:
                raise CallFailed("bad_answer", f"{self.server}: {error}") from None
            except (httpcore.NetworkError, httpcore.TimeoutException, OSError) as error:
                self.state = "disconnected"
                failed = CallFailed(
                    "unreachable", f"{self.server} cannot be reached ({_text_of(error)})"
                )
            except httpcore.ProtocolError as error:
                failed = CallFailed(
                    "bad_answer",
                    f"{self.server} broke off, or does not speak HTTP ({_text_of(error)})",
                )
            else:
                self.state = "connected"
                return self._result(status, body)
            if left:
                await asyncio.sleep(_PAUSE_S)
        raise failed

    def _request(self, verb: Verb, data: bytes) -> tuple[str, str, list[tuple[str, str]], bytes]:
        parameters = self._parameters
        headers = {name.lower(): named_value(text) for name, text in parameters.headers.items()}
        members = {"type": verb, "schema_name": self._schema, "opts": parameters.external_params}
        address = parameters.url.reveal()
        if parameters.method == "get":
            payload = base64.urlsafe_b64encode(data).decode().rstrip("=")
            mark = "&" if urlsplit(address).query else "?"
            url = address.rstrip("?&") + mark + urlencode({"payload": payload, **members})
            return "GET", url, list(headers.items()), b""
        body = jsontext.encode({"payload": base64.b64encode(data).decode(), **members})
        headers = {"content-type": "application/json", **headers, "content-length": str(len(body))}
        return "POST", address, list(headers.items()), body

    async def _exchange(
        self, method: str, url: str, headers: list[tuple[str, str]], content: bytes
    ) -> tuple[int, bytes]:
        extensions: dict[str, Any] = {"timeout": {"connect": self._parameters.connect_timeout}}
        if self._parameters.ssl.server_name_indication:
            extensions["sni_hostname"] = self._parameters.ssl.server_name_indication
        pool = self._opened()
        sent = [("host", self.server), *headers]
        async with pool.stream(
            method, url, headers=sent, content=content, extensions=extensions
        ) as response:
            return response.status, await body_of(response, MAX_ANSWER_BYTES)

    def _result(self, status: int, body: bytes) -> bytes:
        if status != 200:
            text = body[:200].decode("utf-8", "replace").strip()
            reason = f": {text}" if text.isprintable() and text else ""
            raise CallFailed("refused", f"{self.server} answered {status}{reason}")
        try:
            return base64.b64decode(body.strip(), validate=True)
        except (binascii.Error, ValueError):
            raise CallFailed("bad_answer", f"the answer of {self.server} is not base64") from None

    def _opened(self) -> httpcore.AsyncConnectionPool:
        self._last_s = monotonic()
        if self._pool is None:
            parameters = self._parameters
            self._pool = httpcore.AsyncConnectionPool(
                ssl_context=parameters.ssl.context()
                if parameters.url.address.startswith("https:")
                else None,
                max_connections=parameters.pool_size,
                keepalive_expiry=parameters.max_inactive,
                network_backend=GuardedNetwork(ExternalCalls.guard),
            )
            self._idle = asyncio.create_task(
                self._close_when_idle(), name=f"connections to {self.server}"
            )
        return self._pool

    async def _close_when_idle(self) -> None:
        """Also when the loop ends, which cancels this."""
        limit_s = self._parameters.max_inactive
        try:
            while self.waiting or monotonic() - self._last_s < limit_s:  # noqa: ASYNC110  time is what is waited for
                await asyncio.sleep(
                    limit_s if self.waiting else max(0.01, limit_s - (monotonic() - self._last_s))
                )
        finally:
            pool = self._pool
            self._pool = None
            if pool is not None:
                await pool.aclose()


def _text_of(error: Exception) -> str:
    return str(error) or type(error).__name__
