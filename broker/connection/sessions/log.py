"""The session log: QoS 1 and 2 messages for durable sessions and share groups, each stored once however many wait.

A record with ``rule`` set is addressed to the one client identifier it names: retained messages sent on subscribing.
Records that came with sessions of another cell are addressed to the slots of these (``broker.core.cells.Slots``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final, cast

from broker.codec.outgoing import Outgoing
from broker.connection.context import Context
from broker.connection.withholding import Subscriber, Withholding
from broker.core.cells import Slots
from broker.core.message import Message
from broker.core.stored import logged, message_of
from broker.core.stream import StreamRecord
from broker.routing.router import Target
from broker.routing.shared import RoutedGroup
from broker.session.delivery import Delivery
from broker.session.log_queue import LostRecords
from broker.session.session import Session
from broker.session.state import SessionState
from broker.storage.store import LogShard

# The log in the store; streams have numbers from 16 on.
SESSION_LOG: Final = LogShard(1)
# Records read at a time for a session that is behind: some 100 µs of the loop's time.
REFILL_RECORDS: Final = 256

# Cost to hand a committed message to a session: counted when the message is appended, since the end
# of a commit is one piece of work, however many sessions its messages are for.
ACCEPT_S: Final = 2e-6

# Offsets and their messages; None for a message addressed to one session.
Found = Sequence[tuple[int, Message | None]]
_Token = tuple[Outgoing, tuple[Target[Session | RoutedGroup], ...]]
_WIDE: Final = 32


class SessionLog:
    """Appends to the session log and hands out what was committed, live or from the log."""

    def __init__(self, context: Context, shard: LogShard, withholding: Withholding) -> None:
        self._context = context
        self.shard = shard
        self._scheduler = context.scheduler
        self._writer = writer = context.writer
        self._withholding = withholding
        self._open = self._flying = 0
        self.log_next = writer.store.range_of(shard).next_offset
        """The offset after the last record whose commit the loop has heard of."""
        self._on_lost: list[Callable[[LostRecords], None]] = []
        self.on_keep: Callable[[Outgoing, Sequence[Target[Session | RoutedGroup]]], None] | None = (
            None
        )
        """Called with each message that is appended and its targets, where other cells may be among these."""
        self.came: Message | None = None
        """The message of another cell that is handed on now: it is kept for ``own_slots``, so that no other cell and
        no share group finds it here."""
        self.own_slots: str | None = None
        self.needed_from: list[Callable[[int], int]] = []
        """Functions that give the lowest offset that another cell needs, but for those below a bound."""
        self._owed_s = 0.0
        self._reads = context.metrics.counter(
            "session_log_reads",
            "reads of the session log, for sessions that were away or whose queue was full",
        )
        help = "records in the session log: messages that wait for sessions and share groups, each stored once"
        context.metrics.gauge("session_log_records", lambda: self.records, help)
        context.metrics.gauge(
            "session_log_bytes", lambda: self.size_bytes, "bytes of the session log in the store"
        )
        writer.listen(shard.log, self._committed)
        writer.before_commit(self._sealed)

    def when_lost(self, take_back: Callable[[LostRecords], None]) -> None:
        """Call this when records that were appended could not be stored."""
        self._on_lost.append(take_back)

    @property
    def since_offset(self) -> int:
        """The offset that the next record appended will have; a subscription made now holds from there on."""
        return self.log_next + self._open + self._flying

    def keep(
        self,
        outgoing: Outgoing,
        targets: Sequence[Target[Session | RoutedGroup]],
        is_addressed: bool,
    ) -> None:
        """Append a message for these sessions; ``is_addressed`` when other sessions must not find it in the log."""
        message = outgoing.message
        if self._withholding.full:
            self._withhold(outgoing, targets)
        if self.on_keep is not None:
            self.on_keep(outgoing, targets)
        addressee = self.own_slots if message is self.came else None
        if is_addressed:
            addressee = targets[0].subscriber.client_id
        self._open += 1
        self._writer.append(self.shard, logged(message, addressee), (outgoing, tuple(targets)))
        if len(targets) > _WIDE:
            owed_s = len(targets) * ACCEPT_S
            self._owed_s += owed_s
            self._scheduler.owe(owed_s)

    def _withhold(
        self, outgoing: Outgoing, targets: Sequence[Target[Session | RoutedGroup]]
    ) -> None:
        """A message is appended for subscribers, of which some have too much waiting."""
        receipt = outgoing.message.receipt
        size_bytes = outgoing.size_bytes
        for target in targets:
            if target.subscriber in self._withholding.full:
                self._withholding.queue_in_full(
                    cast(Subscriber, target.subscriber), size_bytes, receipt
                )

    def refill(self, session: Session) -> None:
        """Read on for a session that is behind; in a later turn, since one session may have much to read."""
        self._context.defer(self._refill, session)

    def load_inflight(self, session: Session) -> None:
        """Fetch the messages of deliveries that a restart left with their offsets only."""
        for packet_id, delivery in list(session.window.inflight.items()):
            if delivery.outgoing is not None or delivery.is_released or delivery.offset < 0:
                continue
            self._reads.value += 1
            records = self._writer.store.read(self.shard, delivery.offset, 1)
            if records and records[0][0] == delivery.offset:
                delivery.outgoing = Outgoing(message_of(records[0][1]))
            else:  # forgotten, since all sessions together had too much waiting
                del session.window.inflight[packet_id]
                session.count_dropped("queue_full", 1)

    def trim(self, before: int) -> None:
        """Forget what is below an offset, once the records that say so of their sessions are written."""
        store = self._writer.store
        shard = self.shard
        writer = self._writer

        def trim(error: BaseException | None) -> None:
            if error is None:
                writer.call(lambda: store.trim(shard, before), _ignore)

        if store.range_of(shard).first_offset < before:
            writer.touch()
            writer.when_committed(trim)

    def messages_for(
        self, session: SessionState, begin: int, skipped: int, count: int
    ) -> Iterator[Message]:
        """``count`` messages of a session in the log, behind ``skipped`` of them from ``begin`` on."""
        while count > 0 and begin < self.log_next:
            records = self._read(begin)
            for offset, record in records:
                begin = offset + 1
                delivery = _match(session, offset, record)
                if delivery is None or delivery.outgoing is None:
                    continue
                if skipped:
                    skipped -= 1
                elif count:
                    count -= 1
                    yield delivery.outgoing.message
            if len(records) < REFILL_RECORDS:
                return

    def waiting(self, session: SessionState, begin: int) -> tuple[list[Message], int]:
        """Messages of a session among the next records from an offset on, and the offset behind those."""
        records = self._read(begin) if begin < self.log_next else ()
        deliveries = [
            _match(session, offset, record) for offset, record in records if offset < self.log_next
        ]
        messages = [
            item.outgoing.message
            for item in deliveries
            if item is not None and item.outgoing is not None
        ]
        is_end = len(records) < REFILL_RECORDS
        return messages, self.log_next if is_end else records[-1][0] + 1

    @property
    def records(self) -> int:
        """Number of records in the log."""
        offsets = self._writer.store.range_of(self.shard)
        return offsets.next_offset - offsets.first_offset

    @property
    def size_bytes(self) -> int:
        """Bytes of the log in the store."""
        return self._writer.store.size_of(self.shard)

    @property
    def is_over_bound(self) -> bool:
        """True if the log holds more than it may."""
        return self.size_bytes > self._context.settings.max_session_log_bytes

    def offset_within_bound(self) -> int:
        """The offset from which on the log is within its bound with some room, where it is not; else 0."""
        store = self._writer.store
        shard = self.shard
        max_bytes = self._context.settings.max_session_log_bytes
        over = store.size_of(shard) - max_bytes
        if over <= 0:
            return 0
        over += max_bytes // 10
        for frame in store.directory(shard):
            over -= frame.size_bytes
            if over <= 0:
                return min(frame.next_offset, self.log_next)
        return self.log_next

    def _read(self, start: int) -> Sequence[tuple[int, StreamRecord]]:
        self._reads.value += 1
        return self._writer.store.read(self.shard, start, REFILL_RECORDS)

    def read(self, shard: LogShard, from_offset: int, limit: int) -> Found:
        """Records of this log or of a stream as messages; of this one only what the loop has heard of."""
        is_own = shard == self.shard
        end = self.log_next if is_own else 1 << 62
        if from_offset >= end:
            return []
        return [
            (offset, None if is_own and record.rule is not None else message_of(record))
            for offset, record in self._writer.store.read(shard, from_offset, limit)
            if offset < end
        ]

    def part(
        self, start: int, limit: int = REFILL_RECORDS
    ) -> list[tuple[int, Message, str | None]]:
        """Some of the committed records from an offset on, with whom each is addressed to: what there is to see."""
        records = self._writer.store.read(self.shard, start, limit)
        return [
            (offset, message_of(record), record.rule)
            for offset, record in records
            if offset < self.log_next
        ]

    def _sealed(self) -> None:
        if not self._open:
            return
        count = self._open
        self._open = 0
        owed_s = self._owed_s
        self._owed_s = 0.0
        self._flying += count

        def settle(error: BaseException | None) -> None:
            self._flying -= count
            if owed_s:
                self._scheduler.settle(owed_s)
            if error is not None:
                for take_back in self._on_lost:
                    take_back(LostRecords(self.log_next, count))

        self._writer.when_committed(settle)

    def _committed(
        self, first_offset: int, records: list[StreamRecord], tokens: list[object]
    ) -> None:
        self.log_next = first_offset + len(records)
        touched: dict[Session | RoutedGroup, None] = {}
        for offset, token in enumerate(tokens, first_offset):
            outgoing, targets = cast(_Token, token)
            for session, qos, retain, identifiers in targets:
                session.accept_logged(offset, outgoing, qos, retain, identifiers)
                touched[session] = None
        for session in touched:
            session.pump()

    def _refill(self, session: Session) -> None:
        if session.is_away or session.is_ended or session.queue or not session.is_behind:
            return
        start = session.next_offset
        try:
            records = self._read(start) if start < self.log_next else ()
        except Exception as error:  # noqa: BLE001  one session's part of the log must not become the others' trouble
            if session.owner is not None:
                session.owner.fail(error)
            return
        deliveries = []
        following = self.log_next
        for offset, record in records:
            if offset >= self.log_next:  # committed, but its listeners have not been called yet
                break
            following = offset + 1
            if (delivery := _match(session, offset, record)) is not None:
                deliveries.append(delivery)
        if len(records) < REFILL_RECORDS:
            following = self.log_next
        session.take_backlog(deliveries, following, is_end=following >= self.log_next)


def _match(session: SessionState, offset: int, record: StreamRecord) -> Delivery | None:
    addressee = record.rule
    name = session.client_id
    if addressee is not None and addressee != name:
        slots = Slots.of_addressee(addressee)
        if slots is None or not slots.have(name):
            return None
        addressee = None
    message = message_of(record)
    return session.subscriptions.match_logged(offset, message, name, addressee, session.may_have)


def _ignore(_error: BaseException | None) -> None:
    """A trim that failed is tried again with the next one; the writer has counted the failure."""
