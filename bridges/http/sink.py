"""Rows as requests: one for each, or one for a batch of those that go to the same place."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Final, NamedTuple

from bridges.http.answers import Judge, Statuses, answers_of_rows, retry_after_s, summary
from bridges.http.client import HttpClient
from bridges.http.request import Headers, header_templates, of_message, target_template
from bridges.http.settings import HttpActionSettings
from bridges.resource.contract import ALL_DONE, Answers, Context, Sink
from bridges.resource.errors import BridgeError, NeverAgain, TargetMissing, TargetUnusable, TryAgain
from bridges.resource.settings.secret import SecretTemplate
from bridges.resource.templates import bytes_template
from broker.config.secret_text import MadeOfSecrets
from broker.core import jsontext
from broker.core.action import Row
from broker.core.message import Message
from rules.sql.values import string

# Share of ``request_timeout`` after which a request is abandoned here, before the framework drops the connection.
_PART_OF_TIMEOUT: Final = 0.9
_TYPES: Final = {
    "none": "application/json",
    "json_array": "application/json",
    "ndjson": "application/x-ndjson",
}
_JOINED_TYPE: Final = "application/octet-stream"
_LINE_BREAKS: Final = bytes.maketrans(b"\n\r", b"  ")
_WITH_BODY: Final = ("post", "put", "patch")
# So long the last failure counts, unless something has gone well since.
_TROUBLE_S: Final = 60.0
_NOT_THERE: Final = (404, 410)
# Bytes of a body in a message.
_SHOWN: Final = 60


class Record(NamedTuple):
    """The request of one row, or its part of one."""

    target: str
    headers: Headers
    body: bytes
    identity: bytes
    """Tells the row from all others; the same when it is sent again."""

    @property
    def place(self) -> tuple[str, Headers]:
        """Rows with the same may share a request."""
        return self.target, self.headers


class HttpSink(Sink):
    """The requests of one action."""

    def __init__(
        self, connector: HttpClient, settings: HttpActionSettings, context: Context
    ) -> None:
        self._connector = connector
        self._settings = settings
        self._clock = context.services.node.clock
        self._timeout_s = context.request_timeout_s * _PART_OF_TIMEOUT
        self._method = settings.method.upper()
        self._target_of = MadeOfSecrets(
            lambda: target_template(
                connector.base, settings.path.reveal(), _revealed(settings.query)
            )
        )
        self._headers_of = MadeOfSecrets(lambda: header_templates(_revealed(settings.headers)))
        self._body_of = _body_template(settings)
        names = {name.lower() for name in settings.headers}
        has_type = settings.method not in _WITH_BODY or "content-type" in names
        self._type = (
            [] if has_type else [("Content-Type", _TYPES.get(settings.batch, _JOINED_TYPE))]
        )
        is_one_place = "${" not in settings.path.reveal()
        self._is_asked = settings.check_method is not None
        self._judge = Judge(Statuses(settings.retry_statuses), is_one_place=is_one_place)
        self._key_name = settings.idempotency_header or ""
        self._holds: dict[str, tuple[HttpActionSettings, float]] = (
            connector.context.memory.setdefault("holds", {})
        )
        """By action: up to when the service has asked to wait, whichever connection it said so on; until the action is
        changed."""
        self._name = context.name
        self._trouble: BridgeError | None = None
        self._trouble_s = 0.0

    async def permission(self) -> str:
        """Check with a request that changes nothing, as far as that can tell."""
        if self._is_asked:
            return "the path exists for this login"
        return "not checked; set check_method to request the path before the first row"

    def record(self, row: Row, message: Message) -> Record:
        """The address, headers and body of a row."""
        headers = self._headers_of()(row)
        if self._settings.mqtt_headers:
            headers += of_message(message)
        body = self._body_of(row)
        return Record(
            self._target_of()(row), headers, body, message.id.encode() if self._key_name else b""
        )

    async def send(self, records: Sequence[Record]) -> Answers:
        """Send records in order; rows after one that must be retried are retried too."""
        self._check_hold()
        until_s = self._clock.monotonic_s() + self._timeout_s
        answers: list[BridgeError | None] = []
        for request in self._requests(records):
            answers += await self._answers(request, until_s)
            if (error := _to_be_sent_again(answers)) is not None:
                return [*answers, *[error] * (len(records) - len(answers))]
        return answers if any(answers) else ALL_DONE

    async def check(self) -> None:
        """Check that the path exists, if ``check_method`` is set; else raise the last requests' error."""
        settings = self._settings
        if settings.check_method is not None:
            target = self._target_of()({})
            method = settings.check_method.upper()
            try:
                answer = await self._connector.ask(
                    method, target, self._timeout_s, redirects=settings.max_redirects
                )
            except NeverAgain as error:
                raise TargetUnusable(str(error)) from None
            if answer.status in _NOT_THERE:
                raise TargetMissing(summary(self._what(target), answer))
            self._trouble = None
            return
        if self._trouble is not None and self._clock.monotonic_s() - self._trouble_s < _TROUBLE_S:
            raise self._trouble

    # Requests

    def _requests(self, records: Sequence[Record]) -> Iterator[list[Record]]:
        if self._settings.batch == "none":
            return ([record] for record in records)
        return (list(group) for _, group in groupby(records, key=lambda record: record.place))

    async def _answers(self, rows: list[Record], until_s: float) -> Sequence[BridgeError | None]:
        """The outcome of each row of one request."""
        try:
            return await self._sent(rows, until_s)
        except BridgeError as error:
            self._note(error)
            return [error] * len(rows)

    async def _sent(self, rows: list[Record], until_s: float) -> Sequence[BridgeError | None]:
        """The same; raises what befell all of them."""
        timeout_s = until_s - self._clock.monotonic_s()
        if timeout_s <= 0:
            raise TryAgain(
                f"{self._connector.origin}: no time is left for the rest of the batch; make batch_size smaller"
            )
        target, headers = rows[0].place
        settings = self._settings
        answer = await self._connector.ask(
            self._method,
            target,
            timeout_s,
            (*self._type, *headers, *self._idempotency(rows)),
            self._body(rows),
            most_bytes=settings.max_answer_size,
            redirects=settings.max_redirects,
        )
        request = self._what(target)
        # at once: after the pause of any retry
        wait_s = retry_after_s(answer, self._clock.now_ns() / 1e9) or None
        error = self._judge.error(answer.status, summary(request, answer), wait_s)
        if error is None:
            self._trouble = None
            if settings.row_answers is None:
                return [None] * len(rows)
            answers = answers_of_rows(answer, settings.row_answers, len(rows), self._judge, request)
            if (again := _to_be_sent_again(answers)) is not None:
                self._note(again)
            return answers
        if isinstance(error, TryAgain) and wait_s is not None:
            self._holds[self._name] = settings, self._clock.monotonic_s() + wait_s
        if isinstance(error, NeverAgain) and len(rows) > 1 and settings.split_refused:
            return await self._in_halves(rows, until_s)
        raise error

    async def _in_halves(self, rows: list[Record], until_s: float) -> Sequence[BridgeError | None]:
        """Send rows whose batch was refused, so that the one at fault does not take the others along."""
        half = len(rows) // 2
        first = await self._answers(rows[:half], until_s)
        if (error := _to_be_sent_again(first)) is not None:
            return [*first, *[error] * (len(rows) - half)]
        return [*first, *await self._answers(rows[half:], until_s)]

    def _body(self, rows: list[Record]) -> bytes:
        settings = self._settings
        bodies = [row.body for row in rows]
        if settings.batch == "none":
            return bodies[0]
        if settings.batch == "json_array":
            return b"[" + b",".join(bodies) + b"]"
        if settings.batch == "ndjson":
            return b"".join([line.translate(_LINE_BREAKS) + b"\n" for line in bodies])
        joined = settings.batch_separator.encode().join(bodies)
        return settings.batch_prefix.encode() + joined + settings.batch_suffix.encode()

    def _idempotency(self, rows: list[Record]) -> Headers:
        """A key that is the same for the same rows; other rows of the same message differ in their bodies."""
        if not self._key_name:
            return ()
        digest = hashlib.sha256()
        for row in rows:
            for part in (row.identity, row.target.encode(), row.body):
                digest.update(b"%d:" % len(part) + part)
        return ((self._key_name, digest.hexdigest()[:32]),)

    def _what(self, target: str) -> str:
        return f"{self._method} {self._connector.origin}{target.partition('?')[0]}"

    # The last error

    def _check_hold(self) -> None:
        """No row is sent before the time that the service has asked to wait for, on whichever lane."""
        settings, until_s = self._holds.get(self._name, (self._settings, 0.0))
        left_s = until_s - self._clock.monotonic_s()
        if left_s > 0 and settings is self._settings:
            said = f"; {self._trouble}" if self._trouble is not None else ""
            raise TryAgain(
                f"{self._connector.origin} asks to wait for {left_s:.0f} s{said}", left_s
            )

    def _note(self, error: BridgeError) -> None:
        if not isinstance(error, NeverAgain):
            self._trouble, self._trouble_s = error, self._clock.monotonic_s()


class HttpConnector(HttpClient):
    """A service that actions send requests to."""

    def sink(self, settings: HttpActionSettings, context: Context) -> Sink:
        """Requests of an action."""
        return HttpSink(self, settings, context)


def _to_be_sent_again(answers: Sequence[BridgeError | None]) -> BridgeError | None:
    """The first error of rows that are retried: nothing behind them may be sent before them."""
    return next(
        (error for error in answers if error is not None and not isinstance(error, NeverAgain)),
        None,
    )


def _body_template(settings: HttpActionSettings) -> Callable[[Row], bytes]:
    if settings.body is None and settings.method not in _WITH_BODY:
        return lambda row: b""
    if settings.body == "":
        return lambda row: b""
    render = bytes_template("${.}" if settings.body is None else settings.body)
    if settings.batch not in ("json_array", "ndjson") or settings.body in (None, "${.}", "${}"):
        return lambda row: render(row) or b""

    def element(row: Row) -> bytes:
        body = render(row) or b""
        text = string(body)
        if isinstance(text, bytes) or not jsontext.is_json(text):
            raise NeverAgain(
                f"body: expected JSON in a batch of {settings.batch}, got {body[:_SHOWN]!r}"
            )
        return body

    return element


def _revealed(templates: Mapping[str, SecretTemplate]) -> Mapping[str, str]:
    return {name: template.reveal() for name, template in templates.items()}
