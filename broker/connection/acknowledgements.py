"""The answers of one connection, in order: while one waits for the commit that holds what it acknowledges, later ones
queue behind it. All that one commit releases leave in one write.

An acknowledgement of a publish may then have to wait for slow subscribers, and later acknowledgements for it
[MQTT-4.6.0-2, -3]; other answers do not (``broker.connection.withholding``).
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final, Protocol

import msgspec

from broker.codec.encode import encode_fitting
from broker.codec.packets import PubAck, PubRec
from broker.connection.context import Context
from broker.core import reason
from broker.core.errors import Undecided
from broker.core.memory import NOTHING, filled
from broker.core.stage import Refusal
from broker.session.session import Session

# An answer that waits for a commit, or the call that follows it.
Answer = bytes | Callable[[], None]
_PUBACK: Final = 0x40
_PUBREC: Final = 0x50
# Size of a PUBACK or PUBREC without properties; only refusals have some.
_SHORT: Final = 5


class Answering(Protocol):
    """A connection as its answers see it."""

    is_connected: bool
    is_closed: bool
    is_v5: bool
    session: Session
    max_sent_bytes: float

    @property
    def wants_reasons(self) -> bool:
        """True if the client wants reason strings."""

    @property
    def answers(self) -> Answers:
        """These."""

    def reply(self, packet: bytes) -> None:
        """Send a whole packet in this turn of the loop."""

    def on_internal_error(self) -> None:
        """A fault of the broker's own, or of its store."""


class StoredPublish(msgspec.Struct, gc=False):
    """A publish that left something in the commit group, and what is lost with it when that cannot be written."""

    packet_id: int
    is_wanted: bool
    """The message had a subscriber."""
    is_refused: bool = False
    """Its answer says so, also when the group is not stored."""
    digest: bytes = b""
    """Tells a message of QoS 2 from others under its identifier."""


class Held:
    """An acknowledgement of a publish that waits for subscribers; it is called once its commit has released it."""

    __slots__ = ("c", "on_left", "packet", "size_bytes", "waits")

    def __init__(
        self, c: Answering, packet: bytes, size_bytes: int, on_left: Callable[[Any], None]
    ) -> None:
        self.c: Answering | None = c
        self.packet = packet
        self.size_bytes = size_bytes
        self.on_left = on_left
        self.waits = 0
        """The number of subscribers and commits that it waits for; while there is one, it cannot leave."""

    def let_go(self) -> None:
        """Wait for one of them fewer."""
        self.waits -= 1
        if not self.waits and self.c is not None:
            self.c.answers.let_go(self.c)
            self.on_left(self.c)

    __call__ = let_go

    def refuse(self, refusal: Refusal) -> None:
        """See ``broker.core.stage.Refusable``: sent again, the message is taken as a new one. Below MQTT 5 it is
        acknowledged, as every refused message."""
        c = self.c
        if c is not None and c.is_v5:
            packet_id = int.from_bytes(self.packet[2:4])
            if c.session.inbound is not None:
                c.session.inbound.forget((packet_id,))
            self.packet = refusal_packet(
                c, 1 if self.packet[0] == _PUBACK else 2, packet_id, refusal
            )


def refusal_packet(c: Answering, qos: int, packet_id: int, refusal: Refusal) -> bytes:
    """The PUBACK or PUBREC of MQTT 5 for a refused message."""
    properties = {"Reason-String": refusal.text} if c.wants_reasons and refusal.text else {}
    packet = (PubAck if qos == 1 else PubRec)(packet_id, refusal.reason_code, properties)
    return encode_fitting(packet, 5, c.max_sent_bytes)


_NONE_HELD: Final[Mapping[int, Held]] = {}


class Answers:
    """``waiting`` are gathered in the present read, with the publishes that they acknowledge in ``stored``; ``batches``
    are those of earlier reads, each tied to a commit. ``held`` are acknowledgements that wait for subscribers or behind
    one that does, by packet identifier, or by a negative number for a SUBACK. ``unacknowledged`` counts the PUBACKs
    among all.

    The connection comes with each call: with a reference to it here, one that ended would wait for the collector.
    """

    __slots__ = ("_context", "batches", "held", "held_bytes", "stored", "unacknowledged", "waiting")

    def __init__(self, context: Context) -> None:
        self._context = context
        self.waiting: list[Answer] = []
        self.stored: list[StoredPublish] = []
        self.batches: deque[tuple[list[Answer], list[StoredPublish]]] = NOTHING
        self.held = _NONE_HELD
        self.held_bytes = self.unacknowledged = 0

    def hold(
        self,
        c: Answering,
        packet: bytes,
        packet_id: int,
        size_bytes: int,
        waits: int,
        on_left: Callable[[Any], None],
    ) -> Held:
        """An acknowledgement that waits for this number of subscribers and commits, behind those that wait already.

        A client that sends a publish again before it was acknowledged gets one acknowledgement for both.
        """
        if not isinstance(self.held, OrderedDict):
            self.held = OrderedDict()
        acknowledgement = self.held.get(packet_id)
        if acknowledgement is None:
            acknowledgement = self.held[packet_id] = Held(c, packet, size_bytes, on_left)
            self.held_bytes += size_bytes
            self.unacknowledged += packet[0] == _PUBACK
        acknowledgement.waits += waits
        return acknowledgement

    def let_go(self, c: Answering) -> None:
        """Send those that wait for nothing, up to the first that does."""
        acknowledgements = self.held
        while acknowledgements and not c.is_closed:
            first = next(iter(acknowledgements.values()))
            if first.waits:
                return
            assert isinstance(acknowledgements, OrderedDict)
            acknowledgements.popitem(last=False)
            self.held_bytes -= first.size_bytes
            self.unacknowledged -= first.packet[0] == _PUBACK
            c.reply(first.packet)

    def abandon(self) -> None:
        """The connection has ended."""
        for acknowledgement in self.held.values():
            acknowledgement.c = None
        self.held = _NONE_HELD
        self.held_bytes = 0

    def add(self, c: Answering, data: Answer, *, waits: bool) -> None:
        """Send ``data``, or do it when it is a callable: in order, and after the present commit group if it
        ``waits``."""
        if waits or self.waiting or self.batches:
            self.waiting.append(data)
            self.unacknowledged += _is_puback(data)
        else:
            _release(c, data)

    def seal(self, c: Answering) -> None:
        """Tie the answers gathered in this read to the commit group that holds what they acknowledge."""
        self.gather()
        self._context.writer.when_committed(partial(self.committed, c))

    def gather(self) -> None:
        """Put the answers of this read together; ``committed`` follows once what they acknowledge is."""
        self.batches = filled(self.batches)
        self.batches.append((self.waiting, self.stored))
        self.waiting = []
        self.stored = []

    def committed(self, c: Answering, error: BaseException | None) -> None:
        """Send the oldest answers that were gathered."""
        waiting, stored = self.batches.popleft()
        if error is not None:
            self._not_stored(c, waiting, stored, error)
            return
        for data in waiting:
            if c.is_closed:  # before, or by one of these
                return
            if isinstance(data, bytes):
                self.unacknowledged -= data[0] == _PUBACK
                c.reply(data)
            else:
                data()

    def _not_stored(
        self,
        c: Answering,
        waiting: list[Answer],
        stored: list[StoredPublish],
        error: BaseException,
    ) -> None:
        """Answer the publishes of a group that was not stored with an error; close the connection where the protocol
        has no code for it, or it is not known: a refusal would free an identifier that the next owner of the cell may
        have as open, and a new message would be taken for the one before.

        Other answers only queued behind them. Refusals stay as they are; a resend of a message that an earlier group
        holds is acknowledged as before.
        """
        self._context.figures.not_stored.value += sum(publish.is_wanted for publish in stored)
        if stored and c.is_connected and c.session.inbound is not None:
            c.session.inbound.take_back((publish.packet_id, publish.digest) for publish in stored)
        if c.is_closed:
            return
        lost = {publish.packet_id for publish in stored if not publish.is_refused}
        if not all(_packet_of(data)[0] in (_PUBACK, _PUBREC) for data in waiting) or (
            stored and (not c.is_v5 or isinstance(error, Undecided))
        ):
            c.on_internal_error()
            return
        for data in waiting:
            self.unacknowledged -= _is_puback(data)
            packet = _packet_of(data)
            if len(packet) <= _SHORT and int.from_bytes(packet[2:4]) in lost:
                packet = bytes((packet[0], 3)) + packet[2:4] + bytes((reason.QUOTA_EXCEEDED,))
            if isinstance(data, Held):
                data.packet = packet
                data()
            else:
                c.reply(packet)


def _packet_of(data: Answer) -> bytes:
    """The packet of an answer; for a call, a byte that acknowledges nothing."""
    if isinstance(data, Held):
        return data.packet
    return data if isinstance(data, bytes) else b"\0"


def _is_puback(data: Answer) -> bool:
    return isinstance(data, bytes) and data[0] == _PUBACK


def _release(c: Answering, data: Answer) -> None:
    if isinstance(data, bytes):
        c.reply(data)
    else:
        data()
