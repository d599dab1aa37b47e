"""What MQTT 3.1 says otherwise than its successors: DUP of what is sent again, bits without a meaning, CONNACK."""

from __future__ import annotations

import pytest

from tests.support.mqtt_server import on_loop, running
from tests.support.raw import (
    PINGREQ,
    PINGRESP,
    PUBACK,
    PUBCOMP,
    PUBREC,
    PUBREL,
    SUBACK,
    SUBSCRIBE,
    UNSUBACK,
    RawClient,
    ack,
    connect,
    packet,
    publish,
    subscribe,
    text,
    unsubscribe,
)

DUP, RETAIN = 8, 1
FLAGS = pytest.mark.parametrize("flags", [DUP, RETAIN, DUP | RETAIN])


def flagged(data: bytes, flags: int) -> bytes:
    """The packet with these header flags besides its own."""
    return bytes((data[0] | flags,)) + data[1:]


@pytest.mark.statement("own:3.1-dup", "own:3.1-unused-bits")
@FLAGS
@pytest.mark.parametrize("count", [1, 1000])
@on_loop
async def test_a_subscribe_and_an_unsubscribe_may_be_sent_again_with_dup(
    flags: int, count: int
) -> None:
    filters = [f"a/{number}" for number in range(count)]
    async with running() as node:
        client = await RawClient.connected(node.port, connect(3))
        requests = subscribe(3, 1, *((name, 1) for name in filters))
        client.send(requests, flagged(requests, flags))
        await client.expect(*[packet(SUBACK, b"\0\1", b"\1" * count)] * 2)
        assert node.server.hub.router.subscription_count == count
        client.send(flagged(unsubscribe(3, 2, *filters), flags))
        await client.expect(packet(UNSUBACK, b"\0\2"))
        assert node.server.hub.router.subscription_count == 0


@pytest.mark.statement("own:3.1-dup", "own:3.1-unused-bits")
@FLAGS
@on_loop
async def test_a_pubrel_may_be_sent_again_with_dup(flags: int) -> None:
    async with running() as node:
        client = await RawClient.connected(node.port, connect(3))
        client.send(publish(3, "t", b"x", qos=2), ack(PUBREL, 1), flagged(ack(PUBREL, 1), flags))
        await client.expect(ack(PUBREC, 1), ack(PUBCOMP, 1), ack(PUBCOMP, 1))
        await client.silence()


@pytest.mark.statement("own:3.1-unused-bits")
@pytest.mark.parametrize("flags", [1, 6, 8, 15])
@on_loop
async def test_header_flags_without_a_meaning_are_not_read(flags: int) -> None:
    async with running() as node:
        client = await RawClient.connected(node.port, flagged(connect(3), flags))
        await client.subscribed(3, ("t", 2))
        client.send(publish(3, "t", b"1", qos=1))
        await client.expect(publish(3, "t", b"1", qos=1), ack(PUBACK, 1))
        client.send(flagged(ack(PUBACK, 1), flags), publish(3, "t", b"2", qos=2, packet_id=2))
        await client.expect(publish(3, "t", b"2", qos=2, packet_id=2), ack(PUBREC, 2))
        client.send(flagged(ack(PUBREC, 2), flags))
        await client.expect(ack(PUBREL, 2))
        client.send(flagged(ack(PUBCOMP, 2), flags), flagged(PINGREQ, flags))
        await client.expect(PINGRESP)
        session = node.server.hub.sessions.get("c")
        assert session is not None
        assert not session.window.inflight
        client.send(flagged(b"\xe0\0", flags))
        assert await client.closed() == []
        await node.until(lambda: node.metrics.value("connections_by_version", version="3.1") == 0)


@pytest.mark.statement("own:3.1-unused-bits")
@pytest.mark.parametrize("flags", [0x01, 0x08, 0x10, 0x18, 0x20, 0x39])
@on_loop
async def test_connect_flags_without_a_meaning_are_not_read(flags: int) -> None:
    """Bit 0, and what describes a will where there is none."""
    async with running() as node:
        client = await RawClient.connected(node.port, connect(3, flags=flags))
        await client.silence()


@pytest.mark.statement("own:3.1-unused-bits")
@pytest.mark.parametrize("bits", [0x04, 0x08, 0x20, 0x30, 0x80, 0xFC])
@on_loop
async def test_option_bits_without_a_meaning_are_not_read(bits: int) -> None:
    async with running() as node:
        publisher = await RawClient.connected(node.port, connect(3, "p"))
        publisher.send(publish(3, "t", b"kept", retain=True))
        await publisher.silence()
        client = await RawClient.connected(node.port, connect(3))
        client.send(subscribe(3, 1, ("t", bits | 1)))
        await client.expect(packet(SUBACK, b"\0\1", b"\1"), publish(3, "t", b"kept", retain=True))
        client.send(publish(3, "t", b"own"))
        await client.expect(publish(3, "t", b"own"))


@pytest.mark.statement("own:3.1-unused-bits", "3:3.1.2-14")
@pytest.mark.parametrize(
    "data",
    [
        packet(SUBSCRIBE & 0xF0, b"\0\1", text("a"), b"\0"),
        packet(SUBSCRIBE | 6, b"\0\1", text("a"), b"\0"),
        packet(SUBSCRIBE, b"\0\1", text("a"), b"\3"),
        flagged(ack(PUBREL, 1), 6),
    ],
    ids=["SUBSCRIBE with QoS 0", "SUBSCRIBE with QoS 3", "QoS 3 requested", "PUBREL with QoS 3"],
)
@on_loop
async def test_a_qos_that_the_packet_may_not_have_closes(data: bytes) -> None:
    async with running() as node:
        client = await RawClient.connected(node.port, connect(3))
        client.send(data)
        assert await client.closed() == []


@pytest.mark.statement("own:3.1-connack")
@on_loop
async def test_the_first_byte_of_connack_is_0_also_where_the_session_goes_on() -> None:
    async with running() as node:
        for version, present in ((3, 0), (3, 0), (4, 1)):
            client = await RawClient.connected(node.port, connect(version, "c", clean=False))
            assert client.connack == bytes((0x20, 2, present, 0))
            if not present:
                await client.subscribed(version, ("t", 1))
            client.send(b"\xe0\0")
            await client.closed()
        assert node.server.hub.router.subscription_count == 1
