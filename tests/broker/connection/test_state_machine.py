"""The legal order of packets: every type of packet of every version, in every phase of a connection."""

from __future__ import annotations

from typing import Final

import pytest

from broker.codec import properties as p
from broker.codec.encode import encode_packet
from broker.codec.framing import Decoder
from broker.codec.packets import (
    Auth,
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
)
from broker.connection.connection import Connection
from broker.connection.state_machine import ORDER, Effect, Phase
from broker.core import reason
from tests.support.access import BUILTIN, access
from tests.support.memory_link import MemoryLink
from tests.support.mqtt_server import Node, on_loop, running
from tests.support.scram import ScramClient

METHOD: Final = "Authentication-Method"
DATA: Final = "Authentication-Data"
RESERVED: Final = 0
TYPES: Final = range(16)
PACKETS: Final[dict[int, Packet]] = {
    p.CONNACK: ConnAck(),
    p.PUBLISH: Publish("t", b"", 1, packet_id=1),
    p.PUBACK: PubAck(1),
    p.PUBREC: PubRec(1),
    p.PUBREL: PubRel(1),
    p.PUBCOMP: PubComp(1),
    p.SUBSCRIBE: Subscribe(1, [SubscriptionRequest("t")]),
    p.SUBACK: SubAck(1, [0]),
    p.UNSUBSCRIBE: Unsubscribe(1, ["t"]),
    p.UNSUBACK: UnsubAck(1, [0]),
    p.PINGREQ: PingReq(),
    p.PINGRESP: PingResp(),
    p.DISCONNECT: Disconnect(),
}
ANSWERS: Final[dict[int, type[Packet]]] = {
    p.CONNECT: ConnAck,
    p.PUBLISH: PubAck,
    p.PUBREC: PubRel,
    p.PUBREL: PubComp,
    p.SUBSCRIBE: SubAck,
    p.UNSUBSCRIBE: UnsubAck,
    p.PINGREQ: PingResp,
}
"""Those of packets that are taken, where there is one."""
SINCE_5: Final = (Phase.AUTHENTICATING, Phase.CONNECTED_BY_METHOD)
PAIRS: Final = [
    (phase, version)
    for phase in Phase
    for version in (3, 4, 5)
    if version == 5 or phase not in SINCE_5
]


class Client:
    """A connection over memory, brought to a phase."""

    def __init__(self, node: Node, version: int) -> None:
        self._node, self.version = node, version
        self.link, self._scram = MemoryLink(), ScramClient("ann", "pencil")
        self.connection: Connection = node.server.hub.connect(self.link)
        self._decoder = Decoder(version)
        self._challenge = b""
        self.connection.opened()

    def feed(self, data: bytes) -> list[Packet]:
        """Send bytes; what was answered at once."""
        self.connection.data_received(data)
        self._node.server.hub.arrivals.take()
        return self.said()

    def said(self) -> list[Packet]:
        """What the client was sent."""
        self._node.server.hub.context.pending_writes.flush()
        data = bytes(self.link.said)
        self.link.said.clear()
        return list(self._decoder.feed(data))

    def reach(self, phase: Phase) -> None:
        """Go on until there."""
        by_method = phase in SINCE_5
        if phase is Phase.OPENED:
            return
        answered = self.feed(self.packet(p.CONNECT, by_method=by_method))
        if by_method:
            [challenge] = answered
            assert isinstance(challenge, Auth)
            self._challenge = challenge.properties[DATA]
        if phase is Phase.CONNECTED_BY_METHOD:
            answered = self.feed(self.packet(p.AUTH))
        if phase is not Phase.AUTHENTICATING:
            [connack] = answered
            assert isinstance(connack, ConnAck)
            assert connack.reason_code == reason.SUCCESS
        if phase is Phase.WAITING:
            self._node.server.hub.context.scheduler.give_way(self.connection)
        elif phase is Phase.CLOSED:
            assert self.feed(encode_packet(Disconnect(), self.version)) == []

    def packet(self, packet_type: int, *, by_method: bool = False) -> bytes:
        """One of this type that nothing but the order of packets could forbid."""
        if packet_type == RESERVED:
            return b"\0\0"
        if packet_type == p.CONNECT:
            said = {METHOD: self._scram.method, DATA: self._scram.first()} if by_method else {}
            connect = Connect("", self.version, username="ann", password=b"pencil", properties=said)
            if self.version == 3:
                connect.client_id = "c"
            return encode_packet(connect, self.version)
        if packet_type == p.AUTH:
            if self.connection.phase is Phase.AUTHENTICATING:
                answer = self._scram.answer(self._challenge)
                return encode_packet(
                    Auth(
                        reason.CONTINUE_AUTHENTICATION, {METHOD: self._scram.method, DATA: answer}
                    ),
                    5,
                )
            return encode_packet(
                Auth(
                    reason.REAUTHENTICATE, {METHOD: self._scram.method, DATA: self._scram.first()}
                ),
                5,
            )
        return encode_packet(PACKETS[packet_type], self.version)


def check_taken(client: Client, packet_type: int, before: Phase, said: list[Packet]) -> None:
    """It had its effect."""
    assert client.link.is_closed == (packet_type == p.DISCONNECT)
    expected = ANSWERS.get(packet_type)
    if packet_type == p.AUTH:
        expected = ConnAck if before is Phase.AUTHENTICATING else Auth
    assert [type(one) for one in said] == ([] if expected is None else [expected])


def check_refused(client: Client, effect: Effect, code: int, said: list[Packet]) -> None:
    """The connection has ended, and the client was told why as far as there are words for it."""
    assert client.link.is_closed
    if effect is Effect.CLOSE or (effect is Effect.DISCONNECT and client.version < 5):
        assert said == []
        return
    [packet] = said
    assert isinstance(packet, ConnAck if effect is Effect.REFUSE else Disconnect)
    assert packet.reason_code == code


def check(client: Client, phase: Phase, packet_type: int, said: list[Packet]) -> None:
    """What followed is what the table says; a type that the version does not have is malformed."""
    is_known = packet_type != RESERVED and (packet_type != p.AUTH or client.version == 5)
    effect = (
        ORDER[phase][packet_type]
        if is_known
        else next(one for one in ORDER[phase].values() if one != Effect.TAKE)
    )
    if effect is Effect.TAKE:
        check_taken(client, packet_type, phase, said)
    elif effect is Effect.KEEP:
        assert not client.link.is_closed
        assert said == []
    elif effect is Effect.IGNORE:
        assert said == []
    else:
        check_refused(
            client, effect, reason.PROTOCOL_ERROR if is_known else reason.MALFORMED_PACKET, said
        )


async def check_pair(node: Node, phase: Phase, version: int, packet_type: int) -> None:
    client = Client(node, version)
    client.reach(phase)
    assert client.connection.phase is phase
    check(client, phase, packet_type, client.feed(client.packet(packet_type)))
    if phase is Phase.WAITING:
        await node.until(lambda: client.connection.phase is not Phase.WAITING)
        check(client, Phase.CONNECTED, packet_type, client.said())
    if not client.link.is_closed:
        client.connection.connection_lost()


@pytest.mark.parametrize(("phase", "version"), PAIRS)
@on_loop
async def test_every_packet_in_every_phase(phase: Phase, version: int) -> None:
    async with running(access=access(BUILTIN)) as node:
        for packet_type in TYPES:
            await check_pair(node, phase, version, packet_type)


def test_the_table_has_an_effect_for_every_pair() -> None:
    assert ORDER.keys() == set(Phase)
    for row in ORDER.values():
        assert row.keys() == set(TYPES) - {RESERVED}


def test_what_only_a_server_sends_is_never_taken() -> None:
    sent_by_servers = (p.CONNACK, p.SUBACK, p.UNSUBACK, p.PINGRESP)
    assert not [
        row for row in ORDER.values() if any(row[one] is Effect.TAKE for one in sent_by_servers)
    ]
