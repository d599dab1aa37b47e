"""A session without a socket and without a store: what it asks for, what it holds back, what it writes."""

from __future__ import annotations

from typing import Any

from broker.codec.framing import Decoder
from broker.codec.outgoing import Outgoing
from broker.codec.packets import Publish, PubRel
from broker.connection.settings import MqttSettings
from broker.core.client import Client
from broker.core.events import Events
from broker.core.message import Message, Properties
from broker.observe.metrics import Metrics
from broker.session.outbox import Outbox, PendingWrites
from broker.session.prediction import IdPrediction
from broker.session.session import Session
from broker.session.state import SessionLimits, SessionServices
from tests.support.mqtt_server import MovedClock


class SessionBench:
    """A session's surroundings. ``asked`` lists the records it asked for: at once (changed), or soon (moved)."""

    def __init__(
        self, *, is_durable: bool = False, window: int = 3, max_queue: int = 4, **limits: Any
    ) -> None:
        metrics = Metrics()
        sent = tuple(metrics.counter("sent", qos=str(qos)) for qos in range(3))
        self.metrics, self.refills, self.records = metrics, 0, 0
        self.asked: list[str] = []
        self.turn = PendingWrites(lambda flush: None, lambda is_left: None)
        self.clock = MovedClock()
        self._written = b""
        settings = MqttSettings(
            max_inflight=window,
            max_queued_messages=max_queue,
            max_queued_bytes=1_000_000,
            max_unsent_bytes=1024,
            **limits,
        )
        self.services = SessionServices(
            clock=self.clock,
            changed=lambda _session: self.asked.append("changed"),
            moved=lambda _session: self.asked.append("moved"),
            refill=self._refill,
            defer=lambda work: work(),
            crowded=lambda _session: None,
            relieved=lambda _session: None,
            queue_in_full=lambda _session, _size_bytes, _receipt: False,
            drained=lambda _session: None,
            on_event=lambda _name, _session, _message, _why, _properties: None,
            events=Events(),
            sent=(sent[0], sent[1], sent[2]),
            dropped=lambda why: metrics.counter("dropped", why=why),
            limits=SessionLimits.of(settings),
        )
        self.session = Session("s", self.services, is_durable=is_durable)

    def _refill(self, _session: Session) -> None:
        self.refills += 1

    def connect(self, max_packet_bytes: int = 0) -> None:
        """A connection takes the session, and its CONNACK has left."""
        box = Outbox(self.turn, self._write)
        self.session.attach(self, Client("s", protocol_version=4), box, 65_535, max_packet_bytes)
        self.session.resume()

    is_unread = False

    def fail(self, error: BaseException) -> None:
        raise error

    def overrun(self) -> None:
        raise AssertionError("nothing here is to disconnect")

    def _write(self, data: bytes) -> None:
        self._written += data

    def log(self, offset: int, qos: int = 1, message: Outgoing | None = None) -> None:
        """A message with this number was committed to the log at this offset."""
        self.session.accept_logged(offset, message or outgoing(offset), qos, False, ())
        self.session.pump()

    def left(self) -> list[Publish | PubRel]:
        """Packets that have left since the last call, without what is held back for a record."""
        self.turn.flush()
        written, self._written = self._written, b""
        return [
            packet for packet in Decoder(4).feed(written) if isinstance(packet, Publish | PubRel)
        ]

    @property
    def _foretelling(self) -> IdPrediction:
        assert self.session.prediction is not None, "the session is durable"
        return self.session.prediction

    def make_record(self) -> tuple[int, list[bytes]]:
        """Make the record: its number, and what leaves when it is committed."""
        self.records += 1
        return self.records, self._foretelling.take_held(self.records)

    def commit(self, record: tuple[int, list[bytes]], *, is_written: bool = True) -> None:
        """The record was committed, or could not be written."""
        number, held = record
        self._foretelling.recorded(number, is_written=is_written)
        for data in held if is_written else ():
            assert self.session.box is not None
            self.session.box.add(data)

    def take(self) -> list[Publish | PubRel]:
        """Packets that leave at once, and those that do with the next record."""
        if self.session.is_durable:
            self.commit(self.make_record())
        return self.left()


def outgoing(
    number: int, properties: Properties | None = None, payload: bytes | None = None
) -> Outgoing:
    """A message with its number for its payload."""
    content = b"%d" % number if payload is None else payload
    return Outgoing(Message("t", content, 2, False, Client("p"), 1, properties=properties))
