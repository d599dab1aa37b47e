"""Clients that outlive their connections: they remember what they sent, what they were told and what they received.

They are what ``kill -9`` of a broker is judged by. A ``Publisher`` sends again what was not acknowledged, as the
standard asks; a ``Subscriber`` holds every packet against all that came before and raises ``BrokenPromise`` for one
that should not be. Messages are ``Sent``; their payload names publisher, topic, QoS and number.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from random import Random
from typing import Final, NamedTuple

from broker.codec.packets import (
    ConnAck,
    Connect,
    Disconnect,
    Packet,
    PingReq,
    PingResp,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    SubAck,
    Subscribe,
    SubscriptionRequest,
    UnsubAck,
    Unsubscribe,
    Will,
)
from tests.support.waiting import within
from tests.support.wire import WireClient

HOUR_S: Final = 3600
# Reason code of a DISCONNECT where a packet could not be dealt with [MQTT 5.0, 3.14.2.1].
_COULD_NOT: Final = 0x80
_MAX_PACKET_ID: Final = 65_535


class BrokenPromise(AssertionError):
    """The broker did what it had promised never to do."""


class Refused(BrokenPromise):
    """A CONNECT was answered with a reason code of an error."""

    def __init__(self, client_id: str, connack: ConnAck) -> None:
        super().__init__(f"{client_id} was refused: {connack}")
        self.code = connack.reason_code


class Sent(NamedTuple):
    """One message of a publisher; ``number`` counts the messages of that publisher."""

    publisher: str
    topic: str
    qos: int
    number: int

    @property
    def payload(self) -> bytes:
        """What travels."""
        return f"{self.publisher} {self.topic} {self.qos} {self.number}".encode()

    @classmethod
    def of(cls, payload: bytes) -> Sent:
        """The message that a payload is of."""
        publisher, topic, qos, number = payload.decode().split(" ")
        return cls(publisher, topic, int(qos), int(number))


class Lasting:
    """A client identifier with a session that outlives its connections.

    ``noticed`` is called with each packet that comes: the test counts them to choose an instant.
    """

    is_clean = False
    """True if each connection begins a session of its own."""
    receive_maximum = 0
    """Receive Maximum that an MQTT 5 client asks for, 0 for none."""

    def __init__(self, client_id: str, version: int, noticed: Callable[[], None]) -> None:
        self.client_id, self.version = client_id, version
        self._noticed = noticed
        self.connections = 0
        self.port = 0
        """Where it connected last."""
        self._had_session = False
        self._wire: WireClient | None = None
        self._listening: asyncio.Task[None] | None = None
        self._pinged = asyncio.Event()
        self.broken: BaseException | None = None

    async def connect(self, port: int) -> None:
        """Connect, resume the session, and go on listening in a task of its own.

        Raises:
            BrokenPromise: a session that the client was told of is gone.
            ConnectionError: the broker went away meanwhile.
        """
        keeps = self.version == 5 and not self.is_clean
        properties = {"Session-Expiry-Interval": HOUR_S} if keeps else {}
        if self.receive_maximum:
            properties["Receive-Maximum"] = self.receive_maximum
        connect = Connect(
            self.client_id, self.version, self.is_clean, will=self.will(), properties=properties
        )
        self.port = port
        wire = await WireClient.open(port, self.version)
        wire.send(connect)
        connack = await wire.expect(ConnAck)
        if connack.reason_code:
            await wire.close()
            raise Refused(self.client_id, connack)
        if self._had_session and not connack.session_present:
            raise BrokenPromise(f"the session of {self.client_id} is gone")
        self._had_session = not self.is_clean
        self.connections += 1
        self._wire = wire
        self._listening = asyncio.create_task(
            self._listen(wire), name=f"listening {self.client_id}"
        )
        self.resume()

    @property
    def is_connected(self) -> bool:
        """Whether there is a connection as far as the client knows."""
        return self._wire is not None

    def will(self) -> Will | None:
        """The will of its next connection."""
        return None

    def resume(self) -> None:
        """What the client does first on a new connection."""

    def take(self, packet: Packet) -> None:
        """A packet came."""
        raise BrokenPromise(f"{self.client_id} was sent {packet}")

    def send(self, *packets: Packet) -> None:
        """Send, where there is a connection."""
        if self._wire is not None and not self._wire.is_closing:
            self._wire.send(*packets)

    async def ended(self) -> None:
        """Wait until the connection is over, whoever ended it, and tell what went wrong while it was listened to."""
        if self._listening is not None:
            await self._listening
        self.check()

    async def answered(self) -> None:
        """Wait until the broker has answered a PINGREQ, or the connection is over."""
        if self._wire is None:
            return
        self._pinged = asyncio.Event()
        self.send(PingReq())
        await self._pinged.wait()
        self.check()

    def check(self) -> None:
        """Raise what went wrong while the connection was listened to."""
        if self.broken is not None:
            raise self.broken

    async def leave(self) -> None:
        """Close the connection without a word."""
        if self._wire is not None:
            await self._wire.close()
        await self.ended()

    async def _listen(self, wire: WireClient) -> None:
        try:
            with suppress(ConnectionError, OSError):
                while True:
                    packet = await wire.receive(deadline_s=None)
                    self._noticed()
                    if isinstance(packet, PingResp):
                        self._pinged.set()
                    elif isinstance(packet, Disconnect) and packet.reason_code == _COULD_NOT:
                        return  # what it has sent may not be stored: it connects and sends that again
                    else:
                        self.take(packet)
        except Exception as error:  # noqa: BLE001  told by ``check``, on the test's own task
            self.broken = error
        finally:
            self._wire = None
            self._pinged.set()
            await wire.close()


class Publisher(Lasting):
    """Publishes with up to ``window`` messages unacknowledged, and sends those again after a reconnect."""

    def __init__(
        self,
        client_id: str,
        version: int,
        noticed: Callable[[], None],
        make: Callable[[int], Publish],
        window: int = 10,
    ) -> None:
        super().__init__(client_id, version, noticed)
        self._make, self._window = make, window
        self.count = 0
        self.open: dict[int, Publish] = {}
        """Not acknowledged yet, by packet identifier, in the order sent."""
        self._released: dict[int, Publish] = {}
        """QoS 2: PUBREC has come, PUBCOMP has not."""
        self._next_id = 1
        self.acknowledged: list[Publish] = []
        self.is_publishing = False

    @property
    def is_settled(self) -> bool:
        """Whether everything it published is acknowledged for good."""
        return not self.open and not self._released

    def go_on(self) -> None:
        """Publish until the window is full, and again with each acknowledgement."""
        self.is_publishing = True
        self._fill()

    def resume(self) -> None:
        for publish in self.open.values():
            publish.dup = True
        self.send(*self.open.values(), *map(PubRel, self._released))
        if self.is_publishing:
            self._fill()

    def take(self, packet: Packet) -> None:
        if isinstance(packet, PubAck | PubRec):
            publish = self.open.pop(packet.packet_id, None)
            if publish is None or (publish.qos == 1) is not isinstance(packet, PubAck):
                raise BrokenPromise(f"{self.client_id} was sent {packet} for {publish}")
            if packet.reason_code >= 0x80:
                raise BrokenPromise(f"{self.client_id} was refused: {packet}")
            self.acknowledged.append(publish)
            if publish.qos == 2:
                self._released[packet.packet_id] = publish
                self.send(PubRel(packet.packet_id))
        elif isinstance(packet, PubComp):
            if self._released.pop(packet.packet_id, None) is None:
                raise BrokenPromise(f"{self.client_id} was sent {packet} for nothing")
        else:
            super().take(packet)
        if self.is_publishing:
            self._fill()

    def _fill(self) -> None:
        new = []
        while len(self.open) + len(self._released) < self._window:
            publish = self._make(self.count)
            publish.packet_id = self._free_id()
            self.open[publish.packet_id] = publish
            self.count += 1
            new.append(publish)
        if new:
            self.send(*new)

    def _free_id(self) -> int:
        while self._next_id in self.open or self._next_id in self._released:
            self._next_id = self._next_id % _MAX_PACKET_ID + 1
        found, self._next_id = self._next_id, self._next_id % _MAX_PACKET_ID + 1
        return found


class Subscriber(Lasting):
    """Receives and acknowledges, now and then late, always in order.

    ``may_move`` is set for members of a share group, whose unacknowledged QoS 1 messages may go to another member.
    """

    def __init__(
        self,
        client_id: str,
        version: int,
        noticed: Callable[[], None],
        chance: Random,
        *,
        may_move: bool = False,
    ) -> None:
        super().__init__(client_id, version, noticed)
        self._chance, self._may_move = chance, may_move
        self.received: dict[bytes, int] = {}
        """Payloads in the order of their first coming, with the packet identifier of that."""
        self._open: dict[bytes, int] = {}
        """QoS 1: what the broker may not know to be acknowledged, with the number of the connection it last came on."""
        self._unacked: dict[int, bytes] = {}
        """QoS 1: the acknowledgement has not been sent on any connection, so the identifier is in use."""
        self._unanswered: deque[Packet] = deque()
        self._unreleased: dict[int, bytes] = {}
        """QoS 2: PUBREC may have been sent, PUBREL has not come."""
        self.is_prompt = False
        self.resent = 0
        self.last: dict[tuple[str, str, int], int] = {}
        self._subscribing: asyncio.Future[SubAck] | None = None

    async def subscribe(self, *requests: SubscriptionRequest) -> None:
        """Subscribe and wait for the SUBACK, which grants what was asked for."""
        self._subscribing = asyncio.get_running_loop().create_future()
        self.send(Subscribe(1, list(requests)))
        suback = await within(self._subscribing, 60)
        assert suback.reason_codes == [request.qos for request in requests], suback

    def resume(self) -> None:
        self._unanswered.clear()  # answers to packets of the connection before mean nothing on this one

    def settle(self) -> None:
        """Everything that was to come again has come: what did not is settled, and must not come any more."""
        self._open = {payload: at for payload, at in self._open.items() if at == self.connections}

    def answer(self) -> None:
        """Send the acknowledgements that wait."""
        self.send(*self._unanswered)
        for answer in self._unanswered:
            if isinstance(answer, PubAck):
                self._unacked.pop(answer.packet_id, None)
        self._unanswered.clear()

    def take(self, packet: Packet) -> None:
        if isinstance(packet, Publish):
            self._take_publish(packet)
        elif isinstance(packet, PubRel):
            self._unreleased.pop(packet.packet_id, None)
            self._unanswered.append(PubComp(packet.packet_id))
        elif isinstance(packet, SubAck) and self._subscribing is not None:
            self._subscribing.set_result(packet)
        else:
            super().take(packet)
        most = self.receive_maximum // 2 or 8
        if self.is_prompt or len(self._unanswered) > most or self._chance.random() < 0.3:
            self.answer()

    def _take_publish(self, packet: Publish) -> None:
        if packet.qos == 2:
            self._take_once(packet)
            self._unanswered.append(PubRec(packet.packet_id))
        elif packet.qos == 1:
            self._take_at_least_once(packet)
            self._unanswered.append(PubAck(packet.packet_id))
        else:
            raise BrokenPromise(f"{self.client_id} got with QoS 0: {packet}")

    def _take_once(self, packet: Publish) -> None:
        before = self._unreleased.get(packet.packet_id)
        if before is not None:
            self._check_resent(packet, before)
        elif packet.payload in self.received:
            raise BrokenPromise(f"{self.client_id} got with QoS 2 a second time: {packet}")
        else:
            self._check_fresh(packet)
            self._unreleased[packet.packet_id] = packet.payload
            self._receive(packet)

    def _take_at_least_once(self, packet: Publish) -> None:
        payload = packet.payload
        if payload not in self.received:
            self._check_fresh(packet)
            self._receive(packet)
        elif not self._may_move:
            if payload not in self._open:
                raise BrokenPromise(f"{self.client_id} got again what was settled: {packet}")
            if self.received[payload] != packet.packet_id:
                raise BrokenPromise(
                    f"{self.client_id} had {self.received[payload]} as the identifier of {packet}"
                )
            self._check_resent(packet, payload)
        self._open[payload] = self.connections
        self._unacked[packet.packet_id] = payload

    def _check_resent(self, packet: Publish, before: bytes) -> None:
        if packet.payload != before or not packet.dup:
            raise BrokenPromise(
                f"{self.client_id} had {before!r} under the identifier of {packet}, and DUP is to be set"
            )
        self.resent += 1

    def _check_fresh(self, packet: Publish) -> None:
        """A message that never came before takes no identifier whose message the client has not answered."""
        if packet.packet_id in self._unreleased or packet.packet_id in self._unacked:
            raise BrokenPromise(f"{self.client_id}: the identifier is in use of {packet}")

    def _receive(self, packet: Publish) -> None:
        self.received[packet.payload] = packet.packet_id
        if self._may_move:
            return
        sent = Sent.of(packet.payload)
        key = (sent.publisher, sent.topic, sent.qos)
        if self.last.get(key, -1) >= sent.number:
            raise BrokenPromise(f"{self.client_id} got {sent} after number {self.last[key]}")
        self.last[key] = sent.number


class Churner(Lasting):
    """Subscribes and unsubscribes, one SUBSCRIBE or UNSUBSCRIBE after the other, and knows what it was told."""

    def __init__(
        self, client_id: str, noticed: Callable[[], None], chance: Random, filters: list[str]
    ) -> None:
        super().__init__(client_id, 5, noticed)
        self._chance, self._filters = chance, filters
        self.told: dict[str, int | None] = dict.fromkeys(filters)
        """The QoS granted by filter, None where it is not subscribed."""
        self.asked: tuple[str, int | None] | None = None
        """What was asked and is not answered."""
        self._request_id = 0
        self.is_waiting = False
        """True if the answer is to come on the present connection."""
        self.got: dict[str, int] = {}
        """The QoS of the present probe as it came, by topic."""
        self.probe = 0
        self.is_churning = False

    def change(self) -> None:
        """Ask for the next change."""
        name, qos = self._chance.choice(self._filters), self._chance.choice((None, 1, 2))
        self.ask(name, qos)

    def ask(self, name: str, qos: int | None) -> None:
        """Ask for this one."""
        self.asked = name, qos
        self.is_waiting = True
        self._request_id = self._request_id % _MAX_PACKET_ID + 1
        self.send(
            Unsubscribe(self._request_id, [name])
            if qos is None
            else Subscribe(self._request_id, [SubscriptionRequest(name, qos)])
        )

    def resume(self) -> None:
        self.is_waiting = False

    def take(self, packet: Packet) -> None:
        if isinstance(packet, Publish):
            if packet.payload == b"%d" % self.probe:  # an older one may be sent again
                self.got[packet.topic] = packet.qos
            self.send(PubAck(packet.packet_id) if packet.qos == 1 else PubRec(packet.packet_id))
        elif isinstance(packet, PubRel):
            self.send(PubComp(packet.packet_id))
        elif isinstance(packet, SubAck | UnsubAck) and self.asked is not None:
            name, qos = self.asked
            if (
                isinstance(packet, UnsubAck) is not (qos is None)
                or packet.packet_id != self._request_id
            ):
                raise BrokenPromise(f"{self.client_id} was sent {packet} for {self.asked}")
            self.told[name], self.asked, self.is_waiting = qos, None, False
            if self.is_churning:
                self.change()
        else:
            super().take(packet)

    def next_probe(self) -> bytes:
        """What is published next to see which subscriptions there are."""
        self.got.clear()
        self.probe += 1
        return b"%d" % self.probe

    def possible(self) -> Iterator[dict[str, int]]:
        """The subscriptions that may be: as told, and as asked last."""
        yield {name: qos for name, qos in self.told.items() if qos is not None}
        if self.asked is not None:
            yield {
                name: qos
                for name, qos in (self.told | {self.asked[0]: self.asked[1]}).items()
                if qos is not None
            }
