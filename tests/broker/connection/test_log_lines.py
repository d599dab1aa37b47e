"""What the log says of a client that is refused or cut off: who, from where, and why. Of others it says nothing."""

from __future__ import annotations

import logging
import re

import pytest

from broker.codec.packets import Connect, Disconnect, Will
from tests.support.mqtt_server import on_loop, running
from tests.support.raw import RawClient
from tests.support.wire import WireClient


def _lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What was logged of connections, ports left out."""
    texts = [record.getMessage() for record in caplog.records if record.name.startswith("broker.connection")]
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
    assert line.startswith("connection.refused client_id= peer=ADDRESS listener=tcp:default reason=protocol_error ")
    assert line.endswith("detail=what came first is no CONNECT")


@on_loop
async def test_who_is_refused_is_named(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with running(maximum_qos=0) as node:
        client = await WireClient.open(node.port, 5)
        client.send(Connect("meter", 5, will=Will("w", b"", 1)))
        await client.receive()
    assert _lines(caplog) == [
        "connection.refused client_id=meter peer=ADDRESS listener=tcp:default reason=qos_not_supported detail="
    ]


@on_loop
async def test_who_is_cut_off_is_named_and_who_says_goodbye_is_not(caplog: pytest.LogCaptureFixture) -> None:
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
