"""What the log says of a client that is refused or cut off: who, from where, and why. Of others it says nothing."""

from __future__ import annotations

import logging
import re

import pytest

from broker.auth.bans import Ban
from broker.codec.packets import ConnAck, Connect, Disconnect, Will
from tests.support.mqtt_server import on_loop, running
from tests.support.raw import RawClient
from tests.support.wire import WireClient


def _lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What was logged of connections, ports left out."""
    texts = [
        record.getMessage()
        for record in caplog.records
        if record.name.startswith("broker.connection")
    ]
    return [re.sub(r"127\.0\.0\.1:\d+", "ADDRESS", text) for text in texts]


@on_loop
async def test_what_is_no_mqtt_is_refused_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with running() as node:
        client = await RawClient.open(node.port)
        client.send(b"GET / HTTP/1.1\r\n\r\n")
        assert await client.closed() == []
        assert node.metrics.value("connections_refused", reason="protocol_error") == 1
    [line] = _lines(caplog)
    assert line.startswith(
        "connection.refused client_id= peer=ADDRESS listener=tcp:default reason=protocol_error "
    )
    assert line.endswith("detail=the first packet is not a CONNECT")


@on_loop
async def test_who_is_refused_is_named(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with running(maximum_qos=0) as node:
        client = await WireClient.open(node.port, 5)
        client.send(Connect("meter", 5, will=Will("w", b"", 1)))
        await client.receive()
    [line] = _lines(caplog)
    assert line.startswith(
        "connection.refused client_id=meter peer=ADDRESS listener=tcp:default reason=qos_not_supported"
    )
    assert line.endswith(" detail=the will has QoS 1; the maximum is 0")


@pytest.mark.parametrize(
    ("limit", "connect", "code", "text"),
    [
        (
            "max_client_id_bytes=23",
            Connect("x" * 24, 5),
            0x85,
            "the client identifier has 24 bytes; it may have 23",
        ),
        (
            "max_will_payload=3",
            Connect("meter", 5, will=Will("w", b"long")),
            0x97,
            "the payload of the will has 4 bytes; it may have 3",
        ),
        (
            "max_user_properties=1",
            Connect("meter", 5, properties={"User-Property": [("a", "1"), ("a", "2")]}),
            0x97,
            "a packet may have 1 user properties, this one has 2",
        ),
    ],
)
@on_loop
async def test_a_limit_that_refuses_a_client_is_named_to_it_and_in_the_log(
    limit: str, connect: Connect, code: int, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    name, value = limit.split("=")
    async with running(**{name: int(value)}) as node:  # type: ignore[arg-type]  # settings of mqtt
        client = await WireClient.open(node.port, 5)
        client.send(connect)
        connack = await client.expect(ConnAck)
    assert (connack.reason_code, connack.properties) == (code, {"Reason-String": text})
    assert _lines(caplog)[-1].endswith(f"detail={text}")


@on_loop
async def test_a_keep_alive_above_the_maximum_is_named_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    async with running(max_keep_alive=60) as node:
        client = await WireClient.open(node.port, 4)
        client.send(Connect("meter", 4, keep_alive_s=61))
        assert (await client.expect(ConnAck)).reason_code == 2
    assert _lines(caplog)[-1].endswith("detail=keep alive is 61 seconds; it may be at most 60")


@on_loop
async def test_who_is_banned_finds_out_no_more_than_that_and_the_log_says_by_which_ban(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    async with running() as node:
        node.server.hub.access.bans.add(Ban("clientid", "meter", reason="stolen"))
        client = await WireClient.open(node.port, 5)
        client.send(Connect("meter", 5))
        connack = await client.expect(ConnAck)
    assert (connack.reason_code, connack.properties) == (0x8A, {})
    assert _lines(caplog)[-1].endswith("detail=banned as clientid 'meter' until infinity (stolen)")


@on_loop
async def test_who_is_cut_off_is_named_and_who_says_goodbye_is_not(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    async with running() as node:
        async with await node.client("polite", 5) as polite:
            polite.send(Disconnect())
            await polite.closed()
        client = await node.client("silent", 5, keep_alive_s=10)
        node.pass_time(17)
        node.pass_time(1)
        await client.closed()
    assert _lines(caplog) == [
        "connection.cut_off client_id=silent peer=ADDRESS listener=tcp:default reason=keepalive_timeout detail="
    ]
