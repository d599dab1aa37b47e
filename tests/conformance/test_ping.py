"""Section 8: PINGREQ and PINGRESP."""

from __future__ import annotations

import pytest

from tests.support.mqtt_server import GatedStore, on_loop, running
from tests.support.raw import PINGREQ, PINGRESP, RawClient, connect, packet, publish

VERSIONS = pytest.mark.parametrize("version", [3, 4, 5])


@pytest.mark.statement("5:3.12.4-1", "3:3.12.4-1", "5:4.9.0-3")
@VERSIONS
@on_loop
async def test_every_ping_is_answered_also_without_send_quota(version: int) -> None:
    async with running(max_inflight=1) as node:
        client = await RawClient.connected(node.port, connect(version))
        client.send(PINGREQ * 3)
        await client.expect(PINGRESP, PINGRESP, PINGRESP)
        await client.subscribed(version, ("t", 1))
        publisher = await RawClient.connected(node.port, connect(4, "p"))
        publisher.send(publish(4, "t", qos=1), publish(4, "t", qos=1, packet_id=2))
        await client.expect(publish(version, "t", qos=1))
        client.send(PINGREQ)
        await client.expect(PINGRESP)


@pytest.mark.statement("5:3.12.4-1", "3:3.12.4-1")
@VERSIONS
@on_loop
async def test_a_ping_does_not_wait_for_the_store(version: int) -> None:
    store = GatedStore()
    async with running(store) as node:
        expiry = (b"\x11\0\0\0\x64",) if version == 5 else ()
        client = await RawClient.connected(node.port, connect(version, "c", *expiry, clean=False))
        await client.subscribed(version, ("t", 1))
        store.allow.clear()
        client.send(publish(version, "t", qos=1), PINGREQ)
        await client.expect(PINGRESP)
        store.allow.set()


@pytest.mark.statement("5:2.1.3-1", "3:2.2.2-2")
@pytest.mark.parametrize(
    ("version", "data"),
    [
        *((version, data) for version in (4, 5) for data in (b"\xc1\0", b"\xc8\0")),
        *(
            (version, data)
            for version in (3, 4, 5)
            for data in (packet(0xC0, b"\0"), packet(0xC0, b"\0\1"))
        ),
    ],
)
@on_loop
async def test_a_ping_with_flags_or_a_body_closes(version: int, data: bytes) -> None:
    async with running() as node:
        client = await RawClient.connected(node.port, connect(version))
        client.send(data)
        await client.ended(version, 0x81)
