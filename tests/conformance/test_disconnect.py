"""Section 9: DISCONNECT, from either side."""

from __future__ import annotations

import pytest

from broker.core import reason
from tests.support.mqtt_server import on_loop, running
from tests.support.raw import (
    DISCONNECT,
    PINGREQ,
    RawClient,
    connect,
    packet,
    props,
    publish,
    text,
)

VERSIONS = pytest.mark.parametrize("version", [3, 4, 5])
WILL = 0x04
LASTING = b"\x11\0\0\0\x64"
CLIENT_CODES = (0x00, 0x04, 0x80, 0x81, 0x82, 0x83, 0x90, *range(0x93, 0x9A))


def willed(version: int, *properties: bytes) -> bytes:
    """A CONNECT with a will on the topic will."""
    return connect(
        version, "c", *properties, flags=WILL, rest=props(version) + text("will") + text("gone")
    )


async def ends_with(
    data: bytes, version: int, *, is_will_due: bool, codes: tuple[int, ...] | None = None
) -> None:
    """Sending this ends the connection; ``codes`` are what it is told, None for nothing."""
    async with running() as node:
        watcher = await RawClient.connected(node.port, connect(4, "w"))
        await watcher.subscribed(4, ("#", 0))
        client = await RawClient.connected(node.port, willed(version))
        client.send(data)
        if codes is None:
            assert await client.closed() == []
        else:
            await client.ended(version, *codes)
        if is_will_due:
            await watcher.expect(publish(4, "will", b"gone"))
        node.pass_time(1000)
        await watcher.silence()


@pytest.mark.statement("5:3.14.1-1", "3:3.14.1-1")
@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("first", [0xE1, 0xE2, 0xE4, 0xE8])
@on_loop
async def test_a_disconnect_with_flags_is_none_and_the_will_is_due(
    version: int, first: int
) -> None:
    await ends_with(bytes((first, 0)), version, is_will_due=True, codes=(0x81,))


@pytest.mark.statement(
    "5:3.14.4-3", "5:3.1.2-10", "3:3.14.4-3", "3:3.1.2-10", "5:3.1.2-8", "3:3.1.2-8", "5:3.14.2-1"
)
@pytest.mark.parametrize("code", [None, *CLIENT_CODES])
@on_loop
async def test_only_a_normal_goodbye_deletes_the_will(code: int | None) -> None:
    data = packet(DISCONNECT) if code is None else packet(DISCONNECT, bytes((code,)))
    await ends_with(data, 5, is_will_due=bool(code))


@pytest.mark.statement("3:3.14.4-3", "3:3.1.2-10")
@pytest.mark.parametrize("version", [3, 4])
@on_loop
async def test_a_goodbye_of_older_versions_deletes_the_will(version: int) -> None:
    await ends_with(b"\xe0\0", version, is_will_due=False)


@pytest.mark.statement("5:3.14.2-1")
@on_loop
async def test_codes_that_a_client_may_not_send_are_errors() -> None:
    async with running() as node:
        for code in [
            code for code in (*range(0x20), *range(0x80, 0xA4), 0xFF) if code not in CLIENT_CODES
        ]:
            client = await RawClient.connected(node.port, connect(5))
            client.send(packet(DISCONNECT, bytes((code,))))
            await client.ended(5, 0x81, 0x82)


@pytest.mark.statement("5:3.14.2-1")
@pytest.mark.parametrize(
    ("properties", "code"),
    [
        ((b"\x1f" + text("why"), b"\x26" + text("k") + text("v")), None),
        ((b"\x1f" + text("why"), b"\x1f" + text("why")), 0x82),
        ((b"\x21\0\1",), 0x82),
        ((b"\x7f\1",), 0x81),
    ],
    ids=["fine", "twice", "of-connect", "unknown"],
)
@on_loop
async def test_properties_of_a_goodbye_are_checked(
    properties: tuple[bytes, ...], code: int | None
) -> None:
    data = packet(DISCONNECT, b"\0", props(5, *properties))
    await ends_with(data, 5, is_will_due=code is not None, codes=None if code is None else (code,))


@pytest.mark.statement("5:3.14.2.2.2")
@pytest.mark.parametrize(("asked", "is_there"), [(None, True), (0, False), (200, True)])
@on_loop
async def test_a_goodbye_may_change_how_long_the_session_lives(
    asked: int | None, is_there: bool
) -> None:
    async with running() as node:
        client = await RawClient.connected(node.port, connect(5, "c", LASTING))
        properties = () if asked is None else (b"\x11" + asked.to_bytes(4),)
        client.send(packet(DISCONNECT, b"\0", props(5, *properties)))
        assert await client.closed() == []
        node.pass_time(90)
        assert (node.server.hub.sessions.get("c") is not None) is is_there
        node.pass_time(60)
        assert (node.server.hub.sessions.get("c") is not None) is (asked == 200)


@pytest.mark.statement("5:3.14.2.2.2")
@pytest.mark.parametrize("connect_expiry", [(), (b"\x11\0\0\0\0",)])
@on_loop
async def test_raising_the_expiry_from_0_is_an_error_and_no_goodbye(
    connect_expiry: tuple[bytes, ...],
) -> None:
    async with running() as node:
        watcher = await RawClient.connected(node.port, connect(4, "w"))
        await watcher.subscribed(4, ("will", 0))
        client = await RawClient.connected(node.port, willed(5, *connect_expiry))
        client.send(packet(DISCONNECT, b"\0", props(5, b"\x11\0\0\0\1")))
        await client.ended(5, 0x82)
        await watcher.expect(publish(4, "will", b"gone"))
        assert node.server.hub.sessions.get("c") is None


@pytest.mark.statement("5:3.14.4-1", "5:3.14.4-2", "3:3.14.4-1", "3:3.14.4-2")
@VERSIONS
@on_loop
async def test_nothing_behind_a_goodbye_is_heard_and_nothing_is_sent(version: int) -> None:
    async with running() as node:
        watcher = await RawClient.connected(node.port, connect(4, "w"))
        await watcher.subscribed(4, ("#", 0))
        client = await RawClient.connected(node.port, connect(version))
        client.send(
            publish(version, "t", b"before"),
            b"\xe0\0",
            publish(version, "t", b"behind", qos=1),
            PINGREQ,
            b"\0\0",
        )
        assert await client.closed() == []
        await watcher.expect(publish(4, "t", b"before"))
        await watcher.silence()


@pytest.mark.statement("5:3.14.4-1", "5:3.14.2-2", "5:3.14.0-1")
@on_loop
async def test_after_its_own_goodbye_the_broker_sends_and_hears_nothing() -> None:
    async with running() as node:
        watcher = await RawClient.connected(node.port, connect(4, "w"))
        await watcher.subscribed(4, ("#", 0))
        client = await RawClient.connected(node.port, connect(5, "c", LASTING))
        client.send(publish(5, "#"), publish(5, "t", b"behind"), PINGREQ)
        [goodbye] = await client.closed()
        assert goodbye[2] == 0x90
        length = goodbye[3]
        assert len(goodbye) == 4 + length
        assert goodbye[4] == 0x1F  # a reason string, and never a session expiry
        assert 7 + int.from_bytes(goodbye[5:7]) == len(goodbye)
        await watcher.silence()


@pytest.mark.statement("5:3.14.2-3", "5:3.14.2-4", "5:3.1.2-24")
@on_loop
async def test_a_goodbye_leaves_its_reason_string_out_for_who_takes_no_more() -> None:
    async with running() as node:
        client = await RawClient.connected(node.port, connect(5, "c", b"\x27\0\0\0\x14"))
        client.send(publish(5, "#"))
        assert await client.closed() == [b"\xe0\1\x90"]


@pytest.mark.statement("5:3.14.2-1", "5:3.14.0-1")
@VERSIONS
@pytest.mark.parametrize(
    "code",
    [
        reason.SERVER_SHUTTING_DOWN,
        reason.KEEP_ALIVE_TIMEOUT,
        reason.SESSION_TAKEN_OVER,
        reason.ADMINISTRATIVE_ACTION,
    ],
)
@on_loop
async def test_a_goodbye_of_the_broker_has_its_code(version: int, code: int) -> None:
    async with running() as node:
        client = await RawClient.connected(node.port, connect(version))
        [connection] = node.server.hub.connections
        connection.disconnect(code, "test")
        assert await client.closed() == (
            [packet(DISCONNECT, bytes((code,)))] if version == 5 else []
        )


@pytest.mark.statement("5:3.14.2-3", "5:3.14.2-1")
@pytest.mark.parametrize("qos", [0, 1])
@on_loop
async def test_what_is_told_of_a_long_topic_is_short(qos: int) -> None:
    async with running() as node:
        client = await RawClient.connected(node.port, connect(5))
        client.send(publish(5, "\u20ac" * 21_800 + "#", qos=qos))
        [goodbye] = await client.closed()
        assert (goodbye[0], len(goodbye) < 5000) == (DISCONNECT, True)
