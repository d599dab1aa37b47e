"""Messages that one client identifier published with QoS 1 and 2 and may send again.

QoS 2: an identifier stays open from PUBLISH to PUBREL; the same one again is a duplicate [MQTT-4.3.3-10].

QoS 1: MQTT-4.3.2-5 says that a reused identifier is a new message whatever DUP says, but only after the PUBACK was
sent. A broker that is killed between its commit and its PUBACK sees the message again, with DUP set and the same
identifier, and without memory of it would store a second row. So the identifiers taken last are kept with a digest of
topic and payload: a PUBLISH with DUP whose identifier and digest are both known was taken before and is acknowledged
again, not processed again. Without DUP it always is a new message. The entries are kept for clients that start clean
too, since those also resend over a new connection; they go when the client says goodbye after its last answer, so that
a device that connects for each message, always with the same identifier, is not taken to repeat itself. A message that
was refused and left something behind, as a row in quarantine, is remembered with the reason code it was refused with,
and is refused again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from hashlib import blake2b
from itertools import islice
from struct import Struct
from sys import getsizeof
from typing import Final

from broker.core.memory import MemoryUse

RECENT_MIN: Final = 64
RECENT_MAX: Final = 65_535
# Factor on a client's maximum of unacknowledged messages for which identifiers are remembered: acknowledgements of
# earlier bursts may be lost in the socket with the process that sent them.
_BURSTS: Final = 4
RECENT_LIFE_NS: Final = 3600 * 1_000_000_000
DIGEST_BYTES: Final = 8
_MEMORY_BYTES: Final = 600
_RECENT_MEMORY_BYTES: Final = 120
_OPEN_MEMORY_BYTES: Final = 70

_HEAD = Struct("!BQH")
_OPEN = Struct("!H")
_RECENT = Struct("!H8sB")
_RECENT_V1 = Struct("!H8s")
ENTRY_BYTES: Final = _RECENT.size
# Version 1 knew no refused messages.
_VERSION: Final = 2


def digest(topic: bytes, payload: bytes) -> bytes:
    """Eight bytes that distinguish messages under one packet identifier."""
    return blake2b(b"%d:%b%b" % (len(topic), topic, payload), digest_size=DIGEST_BYTES).digest()


class Inbound:
    """The state above. ``is_changed`` means that it differs from the last serialised state; ``tally`` counts the memory
    of its entries while its client is connected, and is None else. ``logged`` and ``saved`` are the commit groups that
    last logged a message of it and stored it whole (``broker.connection.sessions.inbounds``)."""

    __slots__ = (
        "_counted", "_kept", "given", "is_changed", "logged", "name", "open_qos2", "recent", "saved", "tally",
        "touched_ns",
    )  # fmt: skip

    def __init__(self) -> None:
        self.open_qos2: set[int] = set()
        self.recent: dict[int, bytes] = {}
        """Entries as they are stored, so that a commit group only joins them: 80 take 1 µs, packed again 16."""
        self.given: dict[int, bytes] = {}
        """Digests of QoS 2 messages whose commit failed, by identifier: who gets messages before it has them."""
        self.touched_ns = 0
        self.is_changed = False
        self._kept = RECENT_MIN
        self._counted = 0
        self.tally: MemoryUse | None = None
        self.logged = self.saved = -1
        self.name = b""
        """Prefix of its entries; see ``broker.session.inbound_log``."""

    def count(self, tally: MemoryUse | None) -> None:
        """Count its memory there from now on, and no more where it was counted."""
        if self.tally is not None:
            self.tally.bytes -= self._counted
        self.tally = tally
        self._counted = 0
        self._count()

    def _count(self) -> None:
        if self.tally is not None:
            counted = self._counted
            self._counted = self._entry_bytes
            self.tally.bytes += self._counted - counted

    @property
    def _entry_bytes(self) -> int:
        entries = len(self.recent) + len(self.given)
        return _RECENT_MEMORY_BYTES * entries + _OPEN_MEMORY_BYTES * len(self.open_qos2)

    def remember(
        self,
        packet_id: int,
        message_digest: bytes,
        now_ns: int,
        unacknowledged: int = 0,
        reason_code: int = 0,
        *,
        is_tight: bool = False,
    ) -> bytes:
        """Note a message that left something durable behind; ``reason_code`` is what it was refused with, else 0.
        Returns the entry as it is stored.

        ``unacknowledged`` is how many publishes of the client wait for their acknowledgement now. A client that sends
        in bursts is remembered as far back as its bursts are long; the bound falls again as it sends less. While memory
        ``is_tight``, only what is unacknowledged is remembered.
        """
        recent = self.recent
        before = len(recent)
        recent.pop(packet_id, None)
        entry = recent[packet_id] = _RECENT.pack(packet_id, message_digest, reason_code)
        kept = self._kept - 1
        wanted = _BURSTS * unacknowledged
        if kept < RECENT_MIN:
            kept = RECENT_MIN
        if is_tight:
            kept = min(unacknowledged + 1, RECENT_MAX)
        elif wanted > kept:
            kept = min(wanted, RECENT_MAX)
        self._kept = kept
        while len(recent) > kept:
            del recent[next(iter(recent))]
        self.touched_ns = now_ns
        if len(recent) != before:
            self._count()
        return entry

    def restore(self, entry: bytes, touched_ns: int) -> None:
        """Note what ``remember`` returned, as it was read back."""
        packet_id = entry[0] << 8 | entry[1]
        self.recent.pop(packet_id, None)
        self.recent[packet_id] = entry
        self.touched_ns = max(self.touched_ns, touched_ns)
        self._kept = max(RECENT_MIN, len(self.recent))

    def taken_with(self, packet_id: int, message_digest: bytes, now_ns: int) -> int | None:
        """The reason code that a PUBLISH with DUP got when it was taken before; None when it was not."""
        entry = self.recent.get(packet_id)
        if entry is None or entry[2:-1] != message_digest or self.is_stale(now_ns):
            return None
        return entry[-1]

    def was_given(self, packet_id: int, message_digest: bytes) -> bool:
        """True if a PUBLISH with DUP was taken before, and could not be committed."""
        return self.given.get(packet_id) == message_digest

    def size_bytes(self, client_id: str) -> int:
        """About how much memory it takes, with the client identifier."""
        return _MEMORY_BYTES + getsizeof(client_id) + self._entry_bytes

    def is_stale(self, now_ns: int) -> bool:
        """True if the recent publishes are too old to be resent."""
        return now_ns - self.touched_ns > RECENT_LIFE_NS

    def open(self, packet_id: int) -> None:
        """A QoS 2 PUBLISH was taken."""
        self.open_qos2.add(packet_id)
        self.given.pop(packet_id, None)
        self.is_changed = True
        self._count()

    def release(self, packet_id: int, *, forget: bool) -> bool:
        """PUBREL came; returns whether the identifier was open.

        A client that keeps its session sends PUBREL again when it missed the PUBCOMP, so the message can be forgotten
        (``forget``). One that starts clean sends the PUBLISH again with DUP.
        """
        if packet_id not in self.open_qos2:
            return False
        self.open_qos2.discard(packet_id)
        if forget:
            self.recent.pop(packet_id, None)
        self.is_changed = True
        self._count()
        return True

    def forget(self, packet_ids: Iterable[int]) -> None:
        """Messages that were taken and then refused: resending must process them."""
        self.take_back((packet_id, b"") for packet_id in packet_ids)

    def take_back(self, messages: Iterable[tuple[int, bytes]]) -> None:
        """Messages that could not be committed, with the digests of those of QoS 2 that some have got: resending must
        process them for the others."""
        for packet_id, message_digest in messages:
            self.recent.pop(packet_id, None)
            self.open_qos2.discard(packet_id)
            if message_digest:
                self.given[packet_id] = message_digest
        self.is_changed = True
        self._count()

    def settle(self) -> bool:
        """Nothing will be sent again, unless QoS 2 is open; returns whether there was something to forget."""
        if self.open_qos2 or not (self.recent or self.given):
            return False
        self.recent.clear()
        self.given.clear()
        self._kept = RECENT_MIN
        self.is_changed = True
        self._count()
        return True

    def restart(self) -> None:
        """A new session begins under the client identifier."""
        if self.open_qos2:
            self.open_qos2.clear()
            self.is_changed = True
            self._count()

    def encode(self) -> bytes | None:
        """The state as one value, None when there is nothing to keep."""
        self.is_changed = False
        if not self.open_qos2 and not self.recent:
            return None
        head = _HEAD.pack(_VERSION, self.touched_ns, len(self.open_qos2))
        return b"".join([head, *map(_OPEN.pack, sorted(self.open_qos2)), *self.recent.values()])

    @classmethod
    def decode(cls, value: bytes) -> Inbound:
        """Inverse of ``encode``."""
        inbound = cls()
        version, inbound.touched_ns, open_count = _HEAD.unpack_from(value)
        recent_at = _HEAD.size + open_count * _OPEN.size
        inbound.open_qos2 = {
            packet_id for (packet_id,) in _OPEN.iter_unpack(value[_HEAD.size : recent_at])
        }
        entries = (
            _RECENT.iter_unpack(value[recent_at:])
            if version == _VERSION
            else _entries_v1(value[recent_at:])
        )
        for packet_id, message_digest, reason_code in entries:
            inbound.recent[packet_id] = _RECENT.pack(packet_id, message_digest, reason_code)
        inbound._kept = max(RECENT_MIN, len(inbound.recent))
        return inbound


def _entries_v1(value: bytes) -> Iterator[tuple[int, bytes, int]]:
    return (
        (packet_id, message_digest, 0)
        for packet_id, message_digest in _RECENT_V1.iter_unpack(value)
    )


# Forgotten in one turn of the loop: some milliseconds.
_AT_ONCE: Final = 1000


class Inbounds(dict[str, Inbound]):
    """Messages that each client published and may send again, by client identifier.

    ``forget`` removes one from here and from the store, ``defer`` runs a callable in a later turn of the loop.
    ``gone_bytes`` is the memory of entries that disconnected clients left behind, ``connected`` counts that of
    connected ones.
    """

    __slots__ = (
        "_defer",
        "_forget",
        "_gone",
        "connected",
        "gone_bytes",
        "max_bytes",
        "max_connected_bytes",
    )

    def __init__(
        self,
        max_bytes: int,
        max_connected_bytes: int,
        forget: Callable[[str], None],
        defer: Callable[[Callable[[], None]], object],
    ) -> None:
        super().__init__()
        self.max_bytes = max_bytes
        self.max_connected_bytes = max_connected_bytes
        self._forget = forget
        self._defer = defer
        self.connected = MemoryUse()
        self.gone_bytes = 0
        self._gone: dict[str, int] = {}
        """Bytes by identifier, in the order in which their clients went."""

    def __delitem__(self, client_id: str) -> None:
        self[client_id].count(None)
        super().__delitem__(client_id)
        self.gone_bytes -= self._gone.pop(client_id, 0)

    def client_came(self, client_id: str) -> None:
        """A client is connected; nothing of it is forgotten now."""
        self.gone_bytes -= self._gone.pop(client_id, 0)
        inbound = self.get(client_id)
        if inbound is not None:
            inbound.count(self.connected)

    def of_connected(self, client_id: str) -> Inbound:
        """The state of a connected client, created when first needed."""
        inbound = self.setdefault(client_id, Inbound())
        inbound.count(self.connected)
        return inbound

    @property
    def is_tight(self) -> bool:
        """True if the entries of connected clients take more memory than they may."""
        return self.connected.bytes > self.max_connected_bytes

    def may_open(self, inbound: Inbound | None) -> bool:
        """True if one more QoS 2 identifier of a client may be open; a few always may."""
        return inbound is None or len(inbound.open_qos2) < RECENT_MIN or not self.is_tight

    def client_went(self, client_id: str) -> None:
        """A client is gone and left behind what it left."""
        self.gone_bytes -= self._gone.pop(client_id, 0)
        inbound = self.get(client_id)
        if inbound is not None:
            inbound.count(None)
            self._gone[client_id] = size = inbound.size_bytes(client_id)
            self.gone_bytes += size
            self.forget_oldest()

    def recount(self, client_id: str) -> None:
        """Update the size of a disconnected client's entry, which has become smaller."""
        if client_id in self._gone:
            size = self[client_id].size_bytes(client_id)
            self.gone_bytes += size - self._gone[client_id]
            self._gone[client_id] = size

    def loaded(self) -> None:
        """All that is here came from the store, of clients that are not connected."""
        for client_id in sorted(self, key=lambda client_id: self[client_id].touched_ns):
            self.client_went(client_id)

    def forget_oldest(self) -> None:
        """Forget what is above the bound, in parts."""
        for client_id in list(islice(self._gone, _AT_ONCE)):
            if self.gone_bytes <= self.max_bytes:
                return
            self._forget(client_id)
        if self.gone_bytes > self.max_bytes:
            self._defer(self.forget_oldest)
