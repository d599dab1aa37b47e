"""Section 7: UNSUBSCRIBE and UNSUBACK."""

from __future__ import annotations

import pytest

from tests.support.mqtt_server import on_loop, running
from tests.support.raw import (
    PUBACK,
    PUBCOMP,
    PUBREC,
    PUBREL,
    UNSUBACK,
    UNSUBSCRIBE,
    RawClient,
    ack,
    connect,
    packet,
    props,
    publish,
    text,
    unsubscribe,
)

VERSIONS = pytest.mark.parametrize("version", [3, 4, 5])
LASTING = b"\x11\0\0\0\x64"


def unsuback(version: int, packet_id: int, *codes: int) -> bytes:
    """An UNSUBACK; below version 5 it has no codes."""
    return packet(
        UNSUBACK, packet_id.to_bytes(2), props(version), bytes(codes) if version == 5 else b""
    )


@pytest.mark.statement(
    "5:3.10.1-1", "3:3.10.1-1", "5:3.10.3-1", "3:3.10.3-1", "5:3.10.3-2", "3:3.10.3-2"
)
@VERSIONS
@pytest.mark.parametrize(
    ("case", "code"),
    [("flags", 0x81), ("not-utf-8", 0x81), ("no-filter", 0x82), ("cut-short", 0x81), ("nul", 0x81)],
)
@on_loop
async def test_an_unsubscribe_that_breaks_the_rules_closes(
    version: int, case: str, code: int
) -> None:
    data = {
        "flags": packet(0xA0, b"\0\1", props(version), text("a")),
        "not-utf-8": packet(UNSUBSCRIBE, b"\0\1", props(version), text("a"), text(b"\xff")),
        "no-filter": packet(UNSUBSCRIBE, b"\0\1", props(version)),
        "cut-short": packet(UNSUBSCRIBE, b"\0\1", props(version), b"\0\5a"),
        "nul": packet(UNSUBSCRIBE, b"\0\1", props(version), text(b"a\0")),
    }[case]
    async with running() as node:
        client = await RawClient.connected(node.port, connect(version))
        client.send(data)
        await client.ended(version, code)


@pytest.mark.statement(
    "5:3.10.4-1", "3:3.10.4-1", "5:3.10.4-4", "5:3.10.4-5", "3:3.10.4-4", "3:3.10.4-5", "5:3.10.4-6", "3:3.10.4-6",
    "5:3.11.3-1", "5:3.11.3-2",
)  # fmt: skip
@VERSIONS
@on_loop
async def test_filters_are_compared_as_text_and_each_has_its_code(version: int) -> None:
    async with running() as node:
        client = await RawClient.connected(node.port, connect(version))
        await client.subscribed(version, ("a/b", 0), ("a/+", 0), ("A/b", 0), ("#", 0))
        empty, code = ([""], [0x8F]) if version == 5 else ([], [])  # below version 5 it closes
        client.send(unsubscribe(version, 7, "a/#", "a/+", "a/b/", "a+", "A/b", *empty, "A/b"))
        await client.expect(unsuback(version, 7, 0x11, 0, 0x11, 0x8F, 0, *code, 0x11))
        client.send(publish(version, "a/b"))
        await client.expect(publish(version, "a/b"))
        client.send(unsubscribe(version, 8, "#"), publish(version, "a/x"), publish(version, "a/b"))
        await client.expect(unsuback(version, 8, 0), publish(version, "a/b"))
        await client.silence()


@pytest.mark.statement("5:3.10.4-2", "3:3.10.4-2", "5:3.10.4-3", "3:3.10.4-3")
@VERSIONS
@pytest.mark.parametrize("is_cut", [False, True])
@on_loop
async def test_deliveries_begun_are_finished_and_no_new_ones_made(
    version: int, is_cut: bool
) -> None:
    data = connect(version, "c", *((LASTING,) if version == 5 else ()), clean=False)
    async with running() as node:
        client = await RawClient.connected(node.port, data)
        await client.subscribed(version, ("t", 2))
        publisher = await RawClient.connected(node.port, connect(4, "p"))
        publisher.send(publish(4, "t", b"1", qos=1), publish(4, "t", b"2", qos=2, packet_id=2))
        await client.expect(
            publish(version, "t", b"1", qos=1), publish(version, "t", b"2", qos=2, packet_id=2)
        )
        client.send(unsubscribe(version, 9, "t"))
        await client.expect(unsuback(version, 9, 0))
        publisher.send(publish(4, "t", b"3", qos=1, packet_id=3))
        await publisher.expect(ack(PUBACK, 1), ack(PUBREC, 2), ack(PUBACK, 3))
        if is_cut:
            client.abort()
            client = await RawClient.connected(node.port, data)
            await client.expect(
                publish(version, "t", b"1", qos=1, dup=True),
                publish(version, "t", b"2", qos=2, packet_id=2, dup=True),
            )
        client.send(ack(PUBREC, 2), ack(PUBACK, 1))
        await client.expect(ack(PUBREL, 2))
        client.send(ack(PUBCOMP, 2))
        await client.silence()
        session = node.server.hub.sessions.get("c")
        assert session is not None
        assert not session.window.inflight


@pytest.mark.statement("5:3.11.2-1", "5:3.11.2-2", "5:3.1.2-24")
@on_loop
async def test_an_unsuback_fits_the_clients_maximum() -> None:
    async with running() as node:
        client = await RawClient.connected(node.port, connect(5, "c", b"\x27\0\0\0\x14"))
        client.send(unsubscribe(5, 7, *(f"{n}" for n in range(15))))
        # 20 bytes: no reason string, no user property
        await client.expect(unsuback(5, 7, *[0x11] * 15))
        client.send(unsubscribe(5, 8, *(f"{n}" for n in range(16))))
        await client.ended(5, 0x95)


@pytest.mark.statement("5:3.10.4-4", "3:3.10.4-4")
@VERSIONS
@on_loop
async def test_a_user_property_of_an_unsubscribe_is_taken(version: int) -> None:
    async with running() as node:
        client = await RawClient.connected(node.port, connect(version))
        properties = props(version, b"\x26" + text("k") + text("v"))
        client.send(packet(UNSUBSCRIBE, b"\0\3", properties, text("a")))
        await client.expect(unsuback(version, 3, 0x11))
