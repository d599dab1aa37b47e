"""Targets of a replay: topics of this broker, another stream, or an action of a bridge."""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, Protocol

from broker.admin.replays.request import MQTT, STREAM_PREFIX, TOPIC_AS_IT_WAS, StreamReplayRequest
from broker.core.action import DISABLED, MISSING, Row, Settlement, SinkDisabled, Sinks
from broker.core.errors import Invalid, NotFound, Problem, SluiceError, Unavailable
from broker.core.events import message_columns
from broker.core.message import Message, Properties
from broker.core.stage import Outcome, Publisher
from broker.core.stored import message_of
from broker.core.stream import StreamRecord, replayed_from, stream_record
from broker.core.template import Template
from broker.core.times import rfc3339
from broker.storage.writer import Writer
from broker.streams.catalogue import Catalogue, Stream

REPLAY: Final = "sluice-replay"
RECORD: Final = "sluice-replay-record"
# User properties of a message that a replay publishes: the replay, the record as ``STREAM/SHARD/OFFSET``, and when it
# was published first. The same replay and record again is the same message again.
TIME: Final = "sluice-replay-time"

_USER: Final = "User-Property"


class Ledger(Settlement, Protocol):
    """Counts the outcomes of the rows of one record. ``expected`` are all that were on their way so far."""

    expected: int

    def refused(self, reason: str) -> None:
        """A stage stopped the message."""

    def expect(self, rows: int) -> None:
        """Add to the number of rows on their way; each is settled once."""


class Full(Exception):
    """The target takes nothing at the moment; the text says why. Send the rest again later."""


class Sending:
    """One record on its way: what was made of it and is not sent yet."""

    __slots__ = ("ledger", "message", "offset", "record", "rows", "shard")

    def __init__(self, shard: int, offset: int, record: StreamRecord, ledger: Ledger) -> None:
        self.shard = shard
        self.offset = offset
        self.record = record
        self.ledger = ledger
        self.message: Message | None = None
        self.rows: deque[tuple[Row, bytes]] | None = None
        """The rows of a rule; None where the record itself is sent."""


class Target(Protocol):
    """Takes records on the event loop."""

    def send(self, sending: Sending) -> Sequence[Awaitable[object]]:
        """Send what is left of a record; what must be waited for before the record counts as sent.

        Raises:
            Full: send the rest again later.
            SluiceError: it will never take anything again.
        """

    def topic_of(self, message: Message, row: Row | None) -> str | None:
        """The topic that a message or row is published on; None where it is not published."""


class Topics:
    """Publishes on topics of this broker, through all stages. Streams that a message came from do not take it again."""

    def __init__(
        self,
        id: str,
        stream: str,
        request: StreamReplayRequest,
        publisher: Publisher,
        now_ns: Callable[[], int],
    ):
        self._id = id
        self._stream = stream
        self._publisher = publisher
        self._now_ns = now_ns
        self._keeps_retain = request.retain
        self._via = (replayed_from(stream), *([request.rule] if request.rule else ()))
        self._template = (
            None if request.topic == TOPIC_AS_IT_WAS else Template(request.topic, _text)
        )

    def topic_of(self, message: Message, row: Row | None) -> str:
        """See ``Target``."""
        if self._template is None:
            return message.topic
        return self._template.render({**message_columns(message), **(row or {})})

    def send(self, sending: Sending) -> Sequence[Awaitable[object]]:
        """See ``Target``."""
        message = sending.message or message_of(sending.record)
        payloads = [(None, message.payload)] if sending.rows is None else list(sending.rows)
        sending.ledger.expect(len(payloads))
        properties = self._marked(message, sending.shard, sending.offset)
        waiting = []
        for row, payload in payloads:
            copy = Message(
                self.topic_of(message, row), payload, message.qos, message.retain and self._keeps_retain,
                message.client, self._now_ns(), properties, via=self._via,
            )  # fmt: skip
            outcome = self._publisher.publish(copy)
            if outcome.is_waiting:
                waiting.append(self._decided(copy.topic, sending.ledger))
            else:
                _note(outcome, sending.ledger)
        return waiting

    async def _decided(self, topic: str, ledger: Ledger) -> None:
        _note(await self._publisher.decided(topic), ledger)

    def _marked(self, message: Message, shard: int, offset: int) -> Properties:
        marked: dict[str, Any] = dict(message.properties or ())
        marks = (
            (REPLAY, self._id),
            (RECORD, f"{self._stream}/{shard}/{offset}"),
            (TIME, rfc3339(message.received_ns)),
        )
        kept = [pair for pair in marked.get(_USER, ()) if pair[0] not in (REPLAY, RECORD, TIME)]
        marked[_USER] = [*kept, *marks]
        return marked


class IntoStream:
    """Appends to another stream: records as they are, or rows as a rule's own."""

    def __init__(self, target: Stream, writer: Writer, rule: str | None) -> None:
        self._target = target
        self._writer = writer
        self._rule = rule

    def topic_of(self, message: Message, row: Row | None) -> None:
        """See ``Target``."""

    def send(self, sending: Sending) -> Sequence[Awaitable[object]]:
        """See ``Target``."""
        if self._target.is_gone:
            raise Unavailable(f"stream {self._target.name!r} was deleted")
        record = sending.record
        shard = self._target.shard_of(sending.record.client_id)
        if sending.rows is None:
            sending.ledger.expect(1)
            self._writer.append(shard, record)
            sending.ledger.succeeded(1)
            return ()
        sending.ledger.expect(len(sending.rows))
        for _, payload in sending.rows:
            self._writer.append(shard, stream_record((
                record.ts_us, record.topic, payload, record.qos, record.retain, record.client_id, record.username,
                None, self._rule,
            )))  # fmt: skip
        sending.ledger.succeeded(len(sending.rows))
        return ()


class IntoAction:
    """Writes rows to an action, which gets a column ``replay`` with each."""

    def __init__(self, id: str, stream: str, name: str, sinks: Sinks) -> None:
        self._id = id
        self._stream = stream
        self._name = name
        self._sinks = sinks

    def topic_of(self, message: Message, row: Row | None) -> None:
        """See ``Target``."""

    def send(self, sending: Sending) -> Sequence[Awaitable[object]]:
        """See ``Target``."""
        sink = self._sinks.find(self._name)
        if sink is None:
            raise NotFound("action", self._name, "list all: sluice actions ls")
        assert sending.message is not None
        assert sending.rows is not None
        mark = {
            "id": self._id,
            "stream": self._stream,
            "shard": sending.shard,
            "offset": sending.offset,
        }
        while sending.rows:
            if not sink.has_room:
                raise Full(f"the action {self._name!r} has rows enough to send ({sink.state})")
            row, _ = sending.rows[0]
            sending.ledger.expect(1)
            try:
                sink.write({**row, "replay": mark}, sending.message, sending.ledger)
            except SinkDisabled as error:
                sending.ledger.expect(-1)
                raise Unavailable(f"{error}. Try: enable it, then resume the replay") from None
            except Unavailable as error:
                sending.ledger.expect(-1)
                raise Full(str(error)) from None
            except SluiceError as error:
                sending.ledger.failed(row, sending.message, error)
            sending.rows.popleft()
        return ()


def _note(outcome: Outcome, ledger: Ledger) -> None:
    if outcome.refusal is None:
        ledger.succeeded(1)
    else:
        ledger.refused(f"{outcome.refusal.stage} {outcome.refusal.name!r}: {outcome.refusal.text}")


def _text(value: Any) -> str | bytes:
    return value if isinstance(value, str | bytes) else str(value)


def check_target(
    source: Stream, request: StreamReplayRequest, catalogue: Catalogue, sinks: Sinks
) -> None:
    """Check that records of a stream can go to the target of a request.

    Raises:
        Invalid: they cannot, with the reason.
    """
    to = request.to
    pointer = "/to"
    problem = "the replay cannot be started"
    if request.rule is not None and source.spec.kind != "topics":
        raise Invalid(
            problem, [Problem(f"stream {source.name!r} has rows; rules run on messages", "/rule")]
        )
    if to == MQTT:
        return
    if not to.startswith(STREAM_PREFIX):
        state = sinks.state_of(to)
        if state in (MISSING, DISABLED):
            reason = (
                f"there is no action {to!r}"
                if state == MISSING
                else f"the action {to!r} is disabled"
            )
            raise Invalid(problem, [Problem(reason, pointer, suggestion="sluice actions ls")])
        return
    name = to.removeprefix(STREAM_PREFIX)
    if name not in catalogue:
        hint = "sluice streams apply -f FILE"
        raise Invalid(problem, [Problem(f"there is no stream {name!r}", pointer, suggestion=hint)])
    if name == source.name:
        raise Invalid(problem, [Problem("a stream cannot be replayed into itself", pointer)])
    target = catalogue.get(name)
    wanted = "rows" if request.rule is not None else source.spec.kind
    if target.spec.kind != wanted:
        has = f"stream {name!r} holds {_HELD[target.spec.kind]}, the replay sends {_HELD[wanted]}"
        raise Invalid(problem, [Problem(has, pointer)])


_HELD: Final = {"topics": "messages", "rows": "rows"}
