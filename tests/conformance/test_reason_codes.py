"""Section 16: every reason code in the packets that may carry it, and nowhere else."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from broker.codec.encode import encode_packet
from broker.codec.packets import (
    Auth,
    ConnAck,
    Disconnect,
    Packet,
    PubAck,
    PubComp,
    PubRec,
    PubRel,
    SubAck,
    UnsubAck,
)
from broker.connection.connection import RETURN_CODES
from broker.core import reason
from broker.core.message import Message
from broker.core.stage import Gate, GateCall, Refusal
from tests.support.mqtt_server import on_loop, running
from tests.support.raw import PUBACK, PUBREC, RawClient, ack, connect, publish

TABLE = {
    0x00: "CONNACK PUBACK PUBREC PUBREL PUBCOMP SUBACK UNSUBACK DISCONNECT AUTH",
    0x01: "SUBACK",
    0x02: "SUBACK",
    0x04: "DISCONNECT",
    0x10: "PUBACK PUBREC",
    0x11: "UNSUBACK",
    0x18: "AUTH",
    0x19: "AUTH",
    0x80: "CONNACK PUBACK PUBREC SUBACK UNSUBACK DISCONNECT",
    0x81: "CONNACK DISCONNECT",
    0x82: "CONNACK DISCONNECT",
    0x83: "CONNACK PUBACK PUBREC SUBACK UNSUBACK DISCONNECT",
    0x84: "CONNACK",
    0x85: "CONNACK",
    0x86: "CONNACK",
    0x87: "CONNACK PUBACK PUBREC SUBACK UNSUBACK DISCONNECT",
    0x88: "CONNACK",
    0x89: "CONNACK DISCONNECT",
    0x8A: "CONNACK",
    0x8B: "DISCONNECT",
    0x8C: "CONNACK DISCONNECT",
    0x8D: "DISCONNECT",
    0x8E: "DISCONNECT",
    0x8F: "SUBACK UNSUBACK DISCONNECT",
    0x90: "CONNACK PUBACK PUBREC DISCONNECT",
    0x91: "PUBACK PUBREC SUBACK UNSUBACK",
    0x92: "PUBREL PUBCOMP",
    0x93: "DISCONNECT",
    0x94: "DISCONNECT",
    0x95: "CONNACK DISCONNECT",
    0x96: "DISCONNECT",
    0x97: "CONNACK PUBACK PUBREC SUBACK DISCONNECT",
    0x98: "DISCONNECT",
    0x99: "CONNACK PUBACK PUBREC DISCONNECT",
    0x9A: "CONNACK DISCONNECT",
    0x9B: "CONNACK DISCONNECT",
    0x9C: "CONNACK DISCONNECT",
    0x9D: "CONNACK DISCONNECT",
    0x9E: "SUBACK DISCONNECT",
    0x9F: "CONNACK DISCONNECT",
    0xA0: "DISCONNECT",
    0xA1: "SUBACK DISCONNECT",
    0xA2: "SUBACK DISCONNECT",
}
KINDS: dict[str, Callable[[int], Packet]] = {
    "CONNACK": lambda code: ConnAck(False, code),
    "PUBACK": lambda code: PubAck(1, code),
    "PUBREC": lambda code: PubRec(1, code),
    "PUBREL": lambda code: PubRel(1, code),
    "PUBCOMP": lambda code: PubComp(1, code),
    "SUBACK": lambda code: SubAck(1, [code]),
    "UNSUBACK": lambda code: UnsubAck(1, [code]),
    "DISCONNECT": lambda code: Disconnect(code),
    "AUTH": lambda code: Auth(code),
}
AT = {"CONNACK": 3, "SUBACK": -1, "UNSUBACK": -1, "DISCONNECT": 2, "AUTH": 2}


def sent(kind: str, packet: Packet) -> int:
    """The reason code in an encoded packet; 0 where it is left out."""
    encoded = encode_packet(packet, 5)
    at = AT.get(kind, 4)
    return encoded[at] if at < len(encoded) else 0


@pytest.mark.statement(
    "own:reason-codes", "5:3.2.2-8", "5:3.14.2-1", "5:3.9.3-2", "5:3.11.3-2", "5:3.15.2-1"
)
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in ("PUBREL", "PUBCOMP")])
def test_a_code_that_a_packet_may_not_carry_leaves_as_unspecified(kind: str) -> None:
    for code in range(256):
        allowed = kind in TABLE.get(code, "").split()
        assert sent(kind, KINDS[kind](code)) == (code if allowed else 0x80), hex(code)


@pytest.mark.statement("own:reason-codes", "5:3.6.2-1", "5:3.7.2-1")
@pytest.mark.parametrize("kind", ["PUBREL", "PUBCOMP"])
def test_pubrel_and_pubcomp_carry_their_two_codes(kind: str) -> None:
    assert {code for code, kinds in TABLE.items() if kind in kinds.split()} == {0x00, 0x92}
    assert [sent(kind, KINDS[kind](code)) for code in (0x00, 0x92)] == [0x00, 0x92]


@pytest.mark.statement("own:reason-codes")
def test_every_code_of_the_standard_has_a_name() -> None:
    assert not [hex(code) for code in TABLE if reason.name_of(code).startswith("reason_")]


@pytest.mark.statement("own:return-codes", "3:3.2.2-6")
def test_connack_of_3_1_1_has_return_codes_1_to_5() -> None:
    assert set(RETURN_CODES.values()) == {1, 2, 3, 4, 5}
    assert {RETURN_CODES[code] for code in (0x84, 0x85, 0x88, 0x86, 0x87)} == {1, 2, 3, 4, 5}


class Refuses(Gate):
    """A gate that stops every message with a code."""

    name = "refuses"

    def __init__(self, code: int) -> None:
        self._code = code

    def plan(self, topic: str) -> GateCall:
        def refuse(message: Message) -> Refusal:
            return Refusal("test", "test", "test", self._code, "no")

        return refuse


@pytest.mark.statement("own:reason-codes", "5:3.4.2-1", "5:3.5.2-1", "own:R3")
@pytest.mark.parametrize(
    ("code", "expected"), [(0x83, 0x83), (0x99, 0x99), (0x97, 0x97), (0x8F, 0x80), (0xA2, 0x80)]
)
@pytest.mark.parametrize("qos", [1, 2])
@on_loop
async def test_a_refused_message_is_answered_with_a_code_of_its_packet(
    code: int, expected: int, qos: int
) -> None:
    async with running(gates=[Refuses(code)]) as node:
        for version in (4, 5):
            client = await RawClient.connected(
                node.port, connect(version, f"c{version}", *((b"\x17\0",) if version == 5 else ()))
            )
            client.send(publish(version, "t", b"x", qos=qos))
            await client.expect(
                ack(
                    PUBACK if qos == 1 else PUBREC,
                    1,
                    *((bytes((expected,)),) if version == 5 else ()),
                )
            )
