"""The session log on its way to another cell, which is one more durable session with a position.

Records that were committed are sent at once while the other cell keeps up. When it is away, or has much that it has
not committed, it is *behind*, and is sent from the log later, as ``broker.connection.sessions.log`` does it for
sessions.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from broker.cluster.frames import LoggedRecord, LogRecords, encoded
from broker.cluster.peer import Peer
from broker.cluster.transits import Transit
from broker.codec.outgoing import Outgoing
from broker.connection.sessions.log import REFILL_RECORDS
from broker.core.message import Message
from broker.core.stored import logged
from broker.core.subscription import Subscription
from broker.core.topic_trie import FilterTrie
from broker.observe.log import get_logger
from broker.session.log_queue import LostRecords

_log = get_logger(__name__)

# Records and bytes that the other cell has not committed: with more it is behind.
MAX_UNKEPT: Final = 8192
MAX_UNKEPT_BYTES: Final = 4 * 1024 * 1024
# Bytes of records in one frame, unless one alone is larger.
_FRAME_BYTES: Final = 256 * 1024
_RECORD_BYTES: Final = 64
# Seconds until a log that could not be read is read again.
_AGAIN_S: Final = 1.0
# Addressee of a record for the retained store of a cell: the number of the cell, and the message's stamp.
_RETAINED: Final = "\0retained:"


def retained_addressee(cell: int, stamp: int) -> str:
    """Addressee of a record for the retained store of a cell."""
    return f"{_RETAINED}{cell}:{stamp}"


def retained_stamp(addressee: str, cell: int) -> int:
    """Stamp of a record for the retained store of a cell; 0 if it is addressed otherwise."""
    prefix = f"{_RETAINED}{cell}:"
    return int(addressee.removeprefix(prefix)) if addressee.startswith(prefix) else 0


class LogSender:
    """Sends the session log's records for one other cell, from ``next_offset`` on; all below ``kept`` are committed
    there. ``send_in_order`` sends a frame behind the packets that wait, and ``uncork`` those
    that wait for the log."""

    def __init__(
        self,
        peer: Peer,
        kept: int | None,
        send_in_order: Callable[[bytes], None],
        uncork: Callable[[], None],
    ) -> None:
        self._peer = peer
        self._send_in_order = send_in_order
        self._uncork = uncork
        self._log = peer.hub.session_log
        self.kept = self._log.log_next if kept is None else kept
        self.next_offset = self.kept
        self.is_behind = kept is not None
        self._batch: list[LoggedRecord] = []
        self._batch_bytes = 0
        self._unkept: deque[tuple[int, int]] = deque()
        self._unkept_bytes = 0
        self._reads = False
        self._limit = REFILL_RECORDS
        """Records to read at a time: fewer where those before were large."""
        self._expected: dict[int, Transit] = {}
        """Messages whose records are not committed, by identity of what is sent."""
        self._transits: deque[tuple[int, Transit]] = deque()
        """Committed ones that have not arrived, with their offsets."""
        self._held: dict[int, Transit] = {}
        """Those that slow subscribers hold there, by offset."""
        self._retained_before = 0 if kept is None else self._log.log_next
        """Offset behind the last record for the other cell's retained store."""
        self._live_before = 0
        """Offset behind the last record for its subscribers, until those without a session are forgotten."""
        self._earlier: FilterTrie[tuple[int, int, int]] = FilterTrie()
        """Filters that durable sessions had: QoS, and the first offset and the one behind the last that they held for.
        Kept while there are records of then to send."""
        self._earlier_before = 0
        """The highest of these offsets."""
        self.on_kept: Callable[[int, bool], None] = _nothing
        """Called with an offset below which the other cell has everything, and whether it lost some."""

    def expect(self, outgoing: Outgoing) -> None:
        """A message is appended for the cell: while the link is up, its publisher waits until subscribers have it."""
        if not self._peer.is_up or outgoing.message.receipt is None:
            return
        transit = Transit(self._peer.hub.withholding, b"")
        if self._peer.hub.withholding.wait_for(
            transit, outgoing.size_bytes, outgoing.message.receipt
        ):
            self._expected[id(outgoing)] = transit
            transit.outgoing = outgoing

    def taken(self, before: int, held: Sequence[int], released: Sequence[int]) -> None:
        """Subscribers of the other cell have the records before an offset, but those held, now or earlier."""
        keeps = set(held)
        transits = self._transits
        while transits and transits[0][0] < before:
            offset, transit = transits.popleft()
            if offset in keeps:
                self._held[offset] = transit
            else:
                transit.end()
        for offset in released:
            if (transit_held := self._held.pop(offset, None)) is not None:
                transit_held.end()

    def end_transits(self) -> None:
        """No publisher waits for the other cell any longer: what it has to get is in the log."""
        ended = [
            *self._expected.values(),
            *(transit for _, transit in self._transits),
            *self._held.values(),
        ]
        self._expected.clear()
        self._transits.clear()
        self._held.clear()
        for transit in ended:
            transit.end()

    def accept(
        self, offset: int, outgoing: Outgoing, qos: int, retain: bool, stamp: int = 0
    ) -> None:
        """A record for the cell was committed; one with a stamp is for its retained store."""
        if stamp:
            self._retained_before = offset + 1
        else:
            self._live_before = offset + 1
        if self._expected and (transit := self._expected.pop(id(outgoing), None)) is not None:
            transit.outgoing = None
            self._transits.append((offset, transit))
        if offset < self.next_offset or self.is_behind:
            return
        if not self._peer.is_up or self._is_full:
            self.is_behind = True
            self.next_offset = offset
            return
        self._add(offset, outgoing.message, qos, retain=retain, stamp=stamp)
        self.next_offset = offset + 1

    @property
    def _is_full(self) -> bool:
        return len(self._unkept) >= MAX_UNKEPT or self._unkept_bytes >= MAX_UNKEPT_BYTES

    def _add(self, offset: int, message: Message, qos: int, *, retain: bool, stamp: int) -> None:
        if self._batch_bytes >= _FRAME_BYTES:
            self._send()
        record = logged(message, None)
        self._batch.append(
            LoggedRecord(
                offset, record.ts_us, record.topic, record.payload, qos, retain, record.client_id, record.username,
                record.properties, stamp,
            )
        )  # fmt: skip
        size = len(record.payload) + len(record.topic) + len(record.client_id) + _RECORD_BYTES
        size += len(record.username or "") + len(record.properties or "")
        self._batch_bytes += size
        self._unkept.append((offset, size))
        self._unkept_bytes += size

    def flush(self) -> None:
        """Send what was accepted."""
        if self._batch:
            self._send()
        if self.is_behind:
            self.refill()

    def _send(self) -> None:
        batch = self._batch
        self._batch = []
        self._batch_bytes = 0
        self._peer.sent_logged.value += len(batch)
        self._send_in_order(encoded(LogRecords(batch, batch[-1].offset + 1)))

    def take_kept(self, offset: int) -> bool:
        """The other cell committed all below an offset; False if not so much was sent."""
        if offset > self.next_offset:
            return False
        self.kept = max(self.kept, offset)
        unkept = self._unkept
        while unkept and unkept[0][0] < offset:
            self._unkept_bytes -= unkept.popleft()[1]
        if self.is_behind:
            self.refill()
        if self._earlier_before and self.is_past(self._earlier_before):
            self._earlier = FilterTrie()
            self._earlier_before = 0
        self.on_kept(self.kept, False)
        return True

    def was_durable(self, subscription: Subscription) -> None:
        """No durable session of the other cell has a filter any longer. Its live subscribers still get the records of
        before: these messages were not sent to them live."""
        before = self._log.since_offset
        since = subscription.since_offset
        if since == before or self.is_past(before):
            return
        levels = subscription.filter.levels
        known = self._earlier.get(levels, "")
        if known is not None:
            since = known[1]
        self._earlier.put(levels, "", (subscription.qos, since, before))
        self._earlier_before = before

    def take_back_offsets(self, lost: LostRecords) -> None:
        """Records could not be stored: no publisher waits for them, and those behind get their offsets."""
        self.end_transits()
        self._earlier_before = lost.moved(self._earlier_before)

    def is_past(self, offset: int) -> bool:
        """True if the other cell has committed all that it has to get below an offset."""
        if self.kept >= offset:
            return True
        return not self._unkept and not self.is_behind and self._log.log_next >= offset

    def begin(self, kept: int, came: int) -> None:
        """The link is up. The other cell has committed all below ``kept``, and got all below ``came``."""
        self.kept = min(max(self.kept, kept), self._log.log_next)
        self.next_offset = min(max(self.kept, came), self._log.log_next)
        unkept = self._unkept
        while unkept and unkept[-1][0] >= self.next_offset:
            self._unkept_bytes -= unkept.pop()[1]
        self.take_kept(self.kept)
        self.is_behind = True
        self.refill()

    def end(self) -> None:
        """The link is down: what did not arrive there is read again."""
        self._batch = []
        self._batch_bytes = 0
        self.end_transits()
        self.is_behind = True

    def forget_live(self) -> None:
        """The other cell is away for long: its subscribers without a session are gone."""
        self._live_before = 0

    def refill(self) -> None:
        """Read on, in a later turn of the loop."""
        if not self._reads and self._peer.is_up and not self._is_full:
            self._reads = True
            self._peer.hub.context.defer(self._refill)

    def _refill(self) -> None:
        self._reads = False
        if not self._peer.is_up or not self.is_behind or self._is_full:
            return
        log_next = self._log.log_next
        limit = self._limit
        try:
            records = self._log.part(self.next_offset, limit) if self.next_offset < log_next else []
        except Exception as error:  # noqa: BLE001  the store is opened again, or a record does not read
            _log.warning("link.store_not_read", peer=self._peer.number, reason=str(error))
            self._peer.hub.context.later(_AGAIN_S, self.refill)
            return
        following = log_next if len(records) < limit else records[-1][0] + 1
        for offset, message, addressee in records:
            if self._is_full:
                following = offset
                break
            form = self._form(offset, message, addressee)
            if form is not None:
                self._add(offset, message, form[0], retain=form[1], stamp=form[2])
        largest = max((len(message.payload) for _, message, _ in records), default=0)
        self._limit = min(REFILL_RECORDS, 1 + MAX_UNKEPT_BYTES // (largest + 1))
        self.next_offset = following
        self.is_behind = following < log_next
        self.flush()
        self._uncork()
        self.on_kept(self.kept, False)

    def _form(
        self, offset: int, message: Message, addressee: str | None
    ) -> tuple[int, bool, int] | None:
        """QoS, RETAIN and stamp with which the cell gets a record; None if it does not."""
        peer = self._peer
        if addressee == peer.client_id:
            return message.qos, message.retain, 0
        if addressee is not None:
            stamp = retained_stamp(addressee, peer.number)
            return (message.qos, message.retain, stamp) if stamp else None
        is_durable = False
        qos = 0
        for cell, subscription in peer.hub.router.remote(message.topic):
            if cell.client_id == peer.client_id and subscription.since_offset <= offset:
                is_durable |= cell.is_durable
                qos = max(qos, subscription.qos)
        for _, (earlier_qos, since, before) in self._earlier.match(message.topic):
            if since <= offset < min(before, self._earlier_before):
                is_durable = True
                qos = max(qos, earlier_qos)
        return (min(message.qos, qos), message.retain, 0) if is_durable else None

    def needed_from(self, bound: int) -> int:
        """The lowest offset that the cell still needs. What is below ``bound`` it loses, counted: all sessions together
        have too much waiting."""
        peer = self._peer
        if not self._unkept and not self.is_behind:
            self.kept = self.next_offset = max(self.kept, self._log.log_next)
        elif (
            not self._unkept
            and not peer.is_up
            and not peer.durable_filters
            and self.kept >= max(self._retained_before, self._live_before)
        ):
            self.kept = self.next_offset = self._log.log_next
        elif self.kept < bound:
            peer.count_dropped("cell_behind", bound - self.kept)
            self.kept = bound
            self.next_offset = max(self.next_offset, bound)
            self.on_kept(bound, True)
        return self.kept


def _nothing(_offset: int, _is_lost: bool) -> None:
    """Nothing waits for the other cell."""
