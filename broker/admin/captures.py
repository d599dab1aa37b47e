"""Captures: messages of a topic filter or a client through every stage, with values before and after, in files.

A capture of a client has the messages that it publishes, and those that it is sent, as it gets them.

A capture ends after a number of messages, a time, or a size. It continues over reconnects of its client, and takes a
limited number of messages per second; others are skipped. Nothing is stored in the message's own way: lines
are gathered on the loop and written by a thread.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, NotRequired

from typing_extensions import TypedDict

from broker.admin.client_events import event_rows
from broker.admin.sent_messages import SentMessages
from broker.codec.packets import Publish
from broker.connection.timelines import ClientEvent, Timelines
from broker.core import json_values, jsontext
from broker.core.bucket import TokenBucket
from broker.core.client import Client
from broker.core.clock import Clock
from broker.core.errors import AlreadyExists, Invalid, NotFound, PeerError, Problem, Unavailable
from broker.core.kinds import counted
from broker.core.marks import marked
from broker.core.message import Message
from broker.core.objects import Spec
from broker.core.times import rfc3339
from broker.core.topic import TopicFilter
from broker.observe.log import get_logger
from broker.pipeline.recording import RecordedStep, Recorders, Recording
from broker.session.registry import SessionRegistry

_log = get_logger(__name__)

# Captures that run at a time, and that are kept.
MAX_RUNNING: Final = 16
MAX_KEPT: Final = 100
MAX_SECONDS: Final = 7 * 24 * 3600
MAX_BYTES: Final = 1024 * 1024 * 1024
# Bytes of a payload in a record; the rest is cut off.
MAX_PAYLOAD_BYTES: Final = 64 * 1024
# Bytes of the rows of a rule in a record; those behind are left out.
MAX_ROWS_BYTES: Final = 256 * 1024
# Bytes of records that wait for the thread; those beyond are skipped.
_MAX_PENDING_BYTES: Final = 8 * 1024 * 1024
# Seconds for which records are gathered.
_FLUSH_S: Final = 0.2
_READ_BYTES: Final = 256 * 1024
# Bytes of records in a page, but for the last one.
_PAGE_BYTES: Final = 2 * 1024 * 1024
_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")

Reason = Literal["", "messages", "seconds", "bytes", "stopped", "broker stopped", "not written"]


class CaptureView(TypedDict):
    """A capture: its filter and client, its bounds, its number of records and of messages that it skipped since there
    were too many, its size, and why it ended (`ended`: `messages`, `seconds`, `bytes`, `stopped`, `broker stopped`,
    `not written`; empty while it runs)."""

    name: str
    filter: str
    clientid: str
    records: int
    skipped: int
    bytes: int
    started_at: str
    ends_at: str
    ended: str
    max_records: int
    max_bytes: int
    max_records_per_s: int
    cell: NotRequired[int]


class CapturedStep(TypedDict):
    """One stage of a message: microseconds from its arrival, and for how long it took. `after` is the message behind a
    stage that changed it, `rows` are those of a rule, `state` is the result of a delivery."""

    stage: str
    name: str
    at_us: float
    took_us: float
    after: NotRequired[json_values.WireMessage]
    rows: NotRequired[list[Any]]
    refusal: NotRequired[str]
    error: NotRequired[str]
    state: NotRequired[str]


class CaptureRecord(TypedDict):
    """A message of a capture: its publisher, the message at its arrival, the outcome (`passed` or `refused`), and every
    stage that it met. `is_cut` is true if a payload is not shown whole. In a capture of a client also what it was sent:
    `outcome` is `sent`, `clientid` is the client itself, and `text` says how. And what happened to it, as in its time
    line: `outcome` is the event, such as `connected`, `text` says it in words, and there is no message. Messages are
    numbered, events have the number of the message before."""

    number: int
    at: str
    clientid: str
    username: str | None
    address: str | None
    message: json_values.WireMessage | None
    outcome: str
    text: str
    error: str
    is_cut: bool
    steps: list[CapturedStep]
    cell: NotRequired[int]


@dataclass(slots=True)
class _Bounds:
    filter: str
    client_id: str
    started_ns: int
    ends_ns: int
    max_records: int
    max_bytes: int
    max_records_per_s: int


@dataclass(slots=True)
class Capture:
    """One capture; while it runs, a ``broker.pipeline.recording.Recorder``."""

    name: str
    bounds: _Bounds
    clock: Clock
    records: int = 0
    skipped: int = 0
    size_bytes: int = 0
    ended: Reason = ""
    pending: list[tuple[int, bytes]] = field(default_factory=list)
    """Lines of messages that wait for the thread, with the times of their arrival."""
    events: list[tuple[int, bytes]] = field(default_factory=list)
    """Lines about the client, with their times: messages that arrived before them end behind them."""
    pending_bytes: int = 0
    _filter: TopicFilter | None = None
    _bucket: TokenBucket | None = None

    def __post_init__(self) -> None:
        self._filter = TopicFilter.parse(self.bounds.filter)
        rate = self.bounds.max_records_per_s
        self._bucket = TokenBucket(rate, rate, self.clock.monotonic_s())

    __hash__ = object.__hash__

    def __eq__(self, other: object) -> bool:
        return self is other

    def reads(self, topic: str) -> bool:
        """See ``Recorder``."""
        return self._filter is not None and self._filter.matches(topic)

    def may_choose(self, client: Client) -> bool:
        """See ``Recorder``."""
        return not self.bounds.client_id or client.client_id == self.bounds.client_id

    def follows(self, message: Message) -> None:
        """See ``Recorder``: the cell of the publisher has the file."""

    def draws(self, topic: str) -> bool:
        """See ``Recorder``."""
        return True

    def has_room(self) -> bool:
        """See ``Recorder``: which messages it had no room for is counted when they are offered."""
        return True

    def leaves_out(self, count: int) -> None:
        """See ``Recorder``."""

    def skip(self) -> int:
        """See ``Recorder``."""
        return 0

    def chooses(self, message: Message, *, is_drawn: bool) -> bool:
        """See ``Recorder``."""
        return not self.ended and self.may_choose(message.client) and self._takes_one_more()

    def _takes_one_more(self) -> bool:
        """True if a message is within the bounds; one beyond the rate is counted."""
        bounds = self.bounds
        if bounds.max_records and self.records >= bounds.max_records:
            return False
        assert self._bucket is not None
        if self._bucket.try_take(self.clock.monotonic_s()):
            return True
        self.skipped += 1
        return False

    def chooses_sent(self, topic: str) -> bool:
        """True if it takes a message on a topic that its client is sent."""
        return not self.ended and self.reads(topic) and self._takes_one_more()

    def begins(self, recording: Recording) -> None:
        """See ``Recorder``."""

    def ends(self, recording: Recording) -> None:
        """See ``Recorder``."""
        bounds = self.bounds
        if self.ended or (bounds.max_records and self.records >= bounds.max_records):
            return
        self._add(recording.start_ns, _record(self.records + 1, recording))

    def sent(self, packet: Publish) -> None:
        """The client that is captured is sent a message, which this capture has chosen."""
        now_ns = self.clock.now_ns()
        message = Message(
            packet.topic,
            packet.payload,
            packet.qos,
            packet.retain,
            Client(self.bounds.client_id),
            now_ns,
            packet.properties or None,
        )
        again = " again" if packet.dup else ""
        how = f"QoS {packet.qos}" + (f", packet {packet.packet_id}" if packet.qos else "")
        record = self._of_client(self.records + 1, rfc3339(now_ns), "sent", f"Sent{again}: {how}")
        record["message"] = _wire(message)
        record["is_cut"] = len(packet.payload) > MAX_PAYLOAD_BYTES
        self._add(now_ns, record)

    def _add(self, at_ns: int, record: CaptureRecord) -> None:
        line = self._line(record)
        if line:
            self.pending.append((at_ns, line))
            self.records += 1
            if self.records == self.bounds.max_records:
                self.ended = "messages"

    def _of_client(self, number: int, at: str, outcome: str, text: str) -> CaptureRecord:
        """A record about the client that is captured."""
        return {
            "number": number,
            "at": at,
            "clientid": self.bounds.client_id,
            "username": None,
            "address": None,
            "message": None,
            "outcome": outcome,
            "text": text,
            "error": "",
            "is_cut": False,
            "steps": [],
        }

    def note(self, event: ClientEvent) -> None:
        """Something happened to the client that is captured."""
        assert self._bucket is not None
        if self.ended:
            return
        if not self._bucket.try_take(self.clock.monotonic_s()):
            self.skipped += 1
            return
        [row] = event_rows([event])
        record = self._of_client(self.records, row["at"], row["event"], row["text"])
        if line := self._line(record):
            self.events.append((event.last_ns, line))

    def _line(self, record: CaptureRecord) -> bytes:
        """The line of a record; empty where there is no room for it."""
        line = jsontext.encode(record) + b"\n"
        if self.pending_bytes + len(line) > _MAX_PENDING_BYTES:
            self.skipped += 1
            return b""
        if self.size_bytes + len(line) > self.bounds.max_bytes:
            self.ended = "bytes"
            return b""
        self.pending_bytes += len(line)
        self.size_bytes += len(line)
        return line

    def take(self) -> bytes:
        """Take out what waits: events between the messages that arrived before and after them."""
        events = self.events
        lines = []
        for arrived_ns, line in self.pending:
            while events and events[0][0] < arrived_ns:
                lines.append(events.pop(0)[1])
            lines.append(line)
        lines += [line for _, line in events]
        self.pending = []
        self.events = []
        self.pending_bytes = 0
        return b"".join(lines)

    def view(self) -> CaptureView:
        """View for the API."""
        bounds = self.bounds
        return {
            "name": self.name,
            "filter": bounds.filter,
            "clientid": bounds.client_id,
            "records": self.records,
            "skipped": self.skipped,
            "bytes": self.size_bytes,
            "started_at": rfc3339(bounds.started_ns),
            "ends_at": rfc3339(bounds.ends_ns),
            "ended": self.ended,
            "max_records": bounds.max_records,
            "max_bytes": bounds.max_bytes,
            "max_records_per_s": bounds.max_records_per_s,
        }


class Captures:
    """The captures of a node. Used on the event loop."""

    def __init__(
        self,
        folder: Path,
        recorders: Recorders,
        timelines: Timelines,
        sessions: SessionRegistry,
        clock: Clock,
    ) -> None:
        timelines.on_event.connect(self._note)
        self._sessions = sessions
        self._of_clients: dict[str, list[Capture]] = {}
        self._reading: dict[str, SentMessages[Capture]] = {}
        """Readers of the present connections of clients that are captured."""
        self._folder = folder
        self._recorders = recorders
        self._clock = clock
        self._captures: dict[str, Capture] = {}
        self._writing: asyncio.Task[None] | None = None
        # Held while a file is written or deleted, so that no writing brings a deleted one back.
        self._files = asyncio.Lock()

    def start(self) -> None:
        """Find the captures of earlier runs."""
        for path in sorted(self._folder.glob("*.json")):
            with suppress(OSError, ValueError, TypeError, KeyError, PeerError):
                kept = json.loads(path.read_text())
                capture = Capture(path.stem, _Bounds(**kept["bounds"]), self._clock)
                capture.records = kept["records"]
                capture.skipped = kept["skipped"]
                capture.ended = kept["ended"] or "broker stopped"
                with suppress(FileNotFoundError):
                    capture.size_bytes = self._file(path.stem).stat().st_size
                self._captures[capture.name] = capture

    async def stop(self) -> None:
        """End all that run, and write what is left."""
        for capture in self._captures.values():
            if not capture.ended:
                capture.ended = "broker stopped"
        if self._writing is not None:
            await self._writing

    # -- the API's --

    def all(self) -> list[CaptureView]:
        """All captures, by name."""
        return [self._captures[name].view() for name in sorted(self._captures)]

    def get(self, name: str) -> CaptureView:
        """One capture. Raises ``NotFound``."""
        return self._capture(name).view()

    async def begin(
        self,
        name: str,
        filter: str = "#",
        client_id: str = "",
        max_records: int = 0,
        seconds: float = 600,
        max_bytes: int = 16 * 1024 * 1024,
        max_records_per_s: int = 200,
    ) -> CaptureView:
        """Begin a capture.

        Raises:
            Invalid: a member cannot be used.
            AlreadyExists: there is one of that name.
            Unavailable: too many run, or are kept.
        """
        if not _NAME.fullmatch(name):
            text = f"expected letters, digits, '_', '-' and '.', at most 64, got {name[:80]!r}"
            raise Invalid("the capture cannot begin", [Problem(text, "/name")])
        try:
            TopicFilter.parse(filter)
        except PeerError as error:
            raise Invalid("the capture cannot begin", [Problem(str(error), "/filter")]) from None
        if name in self._captures:
            raise AlreadyExists("capture", name)
        running = sum(not capture.ended for capture in self._captures.values())
        if running >= MAX_RUNNING:
            text = f"expected at most {MAX_RUNNING} captures that run, got one more. Try: stop one"
            raise Unavailable(text, retry_after_s=10)
        if len(self._captures) >= MAX_KEPT:
            text = f"expected at most {counted(MAX_KEPT, 'capture')}, got one more. Try: delete one"
            raise Unavailable(text, retry_after_s=10)
        now_ns = self._clock.now_ns()
        bounds = _Bounds(
            filter,
            client_id,
            now_ns,
            now_ns + int(seconds * 1e9),
            max_records,
            max_bytes,
            max_records_per_s,
        )
        capture = self._captures[name] = Capture(name, bounds, self._clock)
        try:
            await asyncio.to_thread(self._write, capture, b"")
        except OSError as error:
            del self._captures[name]
            raise Unavailable(
                f"{self._folder}: {(error.strerror or str(error)).lower()}", retry_after_s=10
            ) from None
        self._recorders.add(capture)
        if client_id:
            self._of_clients.setdefault(client_id, []).append(capture)
            self._read_sent(client_id)
        if self._writing is None or self._writing.done():
            self._writing = asyncio.create_task(self._write_all(), name="captures")
        return capture.view()

    async def end(self, name: str) -> CaptureView:
        """End a capture; its file stays. Raises ``NotFound``."""
        capture = self._capture(name)
        if not capture.ended:
            capture.ended = "stopped"
            await self._flush(capture)
        return capture.view()

    async def delete(self, name: str) -> None:
        """End a capture and delete its file. Raises ``NotFound``."""
        await self.end(name)
        async with self._files:
            del self._captures[name]
            await asyncio.to_thread(self._unlink, name)

    async def page(self, name: str, limit: int, cursor: tuple[int] | None) -> Spec:
        """A page of the records of a capture, oldest first; a cursor is a place in its file.

        Raises:
            NotFound: there is no such capture.
            Invalid: no record begins at the cursor.
        """
        capture = self._capture(name)
        await self._flush(capture)
        start = 0 if cursor is None else cursor[0]
        try:
            if not 0 <= start <= MAX_BYTES:
                raise ValueError(start)
            records, end = await asyncio.to_thread(self._records, name, start, limit)
        except ValueError:
            problem = Problem("expected the cursor of a page before, got another", "/query/cursor")
            raise Invalid("the list cannot be continued", [problem]) from None
        following = (end,) if records and end < capture.size_bytes else None
        return {"items": records, "next": following, "total": capture.records}

    async def lines(self, name: str) -> AsyncIterator[bytes]:
        """The file of a capture, piece by piece. Raises ``NotFound``."""
        await self._flush(self._capture(name))
        at = 0
        while piece := await asyncio.to_thread(self._piece, name, at):
            at += len(piece)
            yield piece

    def check(self, name: str) -> None:
        """Raise ``NotFound`` where there is no capture of that name."""
        self._capture(name)

    def _capture(self, name: str) -> Capture:
        capture = self._captures.get(name)
        if capture is None:
            raise NotFound("capture", name)
        return capture

    # -- files --

    def _file(self, name: str) -> Path:
        return self._folder / f"{name}.jsonl"

    async def _write_all(self) -> None:
        """Write what the captures have gathered until all have ended."""
        while running := [
            capture
            for capture in self._captures.values()
            if not capture.ended or capture.pending_bytes
        ]:
            now_ns = self._clock.now_ns()
            for capture in running:
                if not capture.ended and now_ns >= capture.bounds.ends_ns:
                    capture.ended = "seconds"
                await self._flush(capture)
            await asyncio.sleep(_FLUSH_S)

    async def _flush(self, capture: Capture) -> None:
        async with self._files:
            data = capture.take()
            if capture.ended:
                self._remove(capture)
            if not (data or capture.ended) or capture.name not in self._captures:
                return
            try:
                await asyncio.to_thread(self._write, capture, data)
            except OSError as error:
                _log.warning("capture.not_written", capture=capture.name, reason=str(error))
                capture.ended = "not written"
                self._remove(capture)

    def _note(self, client_id: str, event: ClientEvent) -> None:
        captures = self._of_clients.get(client_id, ())
        for capture in captures:
            capture.note(event)
        if captures and event.kind == "connected":
            self._read_sent(client_id)

    def _read_sent(self, client_id: str) -> None:
        """Read what a client is sent over its present connection, for the captures that there are of it then."""
        if (reading := self._reading.pop(client_id, None)) is not None:
            reading.end()
        captures = self._of_clients.get(client_id)
        session = self._sessions.get(client_id)
        if captures is None or session is None or session.box is None:
            return

        def choose(topic: str) -> Sequence[Capture]:
            return [capture for capture in captures if capture.chooses_sent(topic)]

        def take(packet: Publish, chosen: Sequence[Capture]) -> None:
            for capture in chosen:
                capture.sent(packet)

        def skip(count: int) -> None:
            for capture in captures:
                capture.skipped += count

        self._reading[client_id] = SentMessages(
            session.box, choose, take, skip, is_v5=session.is_v5
        )

    def _remove(self, capture: Capture) -> None:
        self._recorders.remove(capture)
        client_id = capture.bounds.client_id
        captures = self._of_clients.get(client_id, [])
        if capture in captures:
            captures.remove(capture)
            if not captures:
                del self._of_clients[client_id]
                self._read_sent(client_id)

    def _write(self, capture: Capture, data: bytes) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        with self._file(capture.name).open("ab") as file:
            file.write(data)
        bounds = {name: getattr(capture.bounds, name) for name in _Bounds.__slots__}
        kept = {
            "bounds": bounds,
            "records": capture.records,
            "skipped": capture.skipped,
            "ended": capture.ended,
        }
        temporary = self._folder / f"{capture.name}.new"
        temporary.write_text(json.dumps(kept))
        temporary.replace(self._folder / f"{capture.name}.json")

    def _unlink(self, name: str) -> None:
        for suffix in ("json", "jsonl"):
            with suppress(FileNotFoundError):
                os.unlink(self._folder / f"{name}.{suffix}")

    def _records(self, name: str, start: int, limit: int) -> tuple[list[CaptureRecord], int]:
        """Records from a place in the file on, and where the following ones begin.

        Raises:
            ValueError: no record begins there.
        """
        records: list[CaptureRecord] = []
        end = start
        with suppress(FileNotFoundError), self._file(name).open("rb") as file:
            file.seek(start)
            while len(records) < limit and end - start < _PAGE_BYTES:
                line = file.readline()
                if not line.endswith(b"\n"):
                    break
                record: Any = {"text": "", **json.loads(line)}  # releases before had no text
                records.append(record)
                end += len(line)
        return records, end

    def _piece(self, name: str, at: int) -> bytes:
        with suppress(FileNotFoundError), self._file(name).open("rb") as file:
            file.seek(at)
            return file.read(_READ_BYTES)
        return b""


def _record(number: int, recording: Recording) -> CaptureRecord:
    message = recording.message
    client = message.client
    refusal = None if recording.outcome is None else recording.outcome.refusal
    entered = recording.entered
    messages: Sequence[Message | None] = [message, *(step.after for step in recording.steps)]
    return {
        "number": number,
        "at": rfc3339(recording.start_ns),
        "clientid": client.client_id,
        "username": client.username,
        "address": client.peer_name,
        "message": _wire(message),
        "outcome": "passed" if refusal is None else "refused",
        "text": "",
        "error": recording.error,
        "is_cut": any(
            shown is not None and len(shown.payload) > MAX_PAYLOAD_BYTES for shown in messages
        ),
        "steps": [_step(step, recording.start_ns, entered) for step in recording.steps],
    }


def _step(step: RecordedStep, start_ns: int, entered: Message) -> CapturedStep:
    shown: CapturedStep = {
        "stage": step.stage,
        "name": step.name,
        "at_us": (step.start_ns - start_ns) / 1000,
        "took_us": (step.end_ns - step.start_ns) / 1000,
    }
    if step.after is not None and step.after != (step.before or entered):
        shown["after"] = _wire(step.after)
    if step.stage == "rules":
        shown["rows"] = _rows(step.rows)
    if step.refusal is not None:
        shown["refusal"] = step.refusal.text or step.refusal.reason
    if step.error:
        shown["error"] = step.error
    if step.state:
        shown["state"] = step.state
    return shown


def _rows(rows: Sequence[Any]) -> list[Any]:
    """Rows as JSON has them, as many as fit."""
    left = _Left(MAX_ROWS_BYTES)
    shown = []
    for row in rows:
        shown.append(marked(_plain(row, left)))
        if left.size_bytes < 0:
            break
    return shown


@dataclass(slots=True)
class _Left:
    size_bytes: int


def _plain(value: Any, left: _Left) -> Any:
    """A value as JSON has it, within the bytes that are left; text in place of values that JSON cannot hold."""
    if isinstance(value, dict):
        return {
            str(name): _plain(item, left) for name, item in value.items() if left.size_bytes >= 0
        }
    if isinstance(value, (list, tuple)):
        return [_plain(item, left) for item in value if left.size_bytes >= 0]
    left.size_bytes -= len(value) if isinstance(value, (str, bytes)) else 8
    if isinstance(value, (str, bytes)):
        return value[:MAX_PAYLOAD_BYTES]
    return value if value is None or isinstance(value, (bool, int, float)) else str(value)


def _wire(message: Message) -> json_values.WireMessage:
    payload = message.payload[:MAX_PAYLOAD_BYTES]
    if len(payload) < len(message.payload):
        message = message.changed(
            message.topic, payload, message.qos, message.retain, message.properties
        )
    return json_values.message_to_wire(message)
