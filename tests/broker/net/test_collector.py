"""What is set aside from the garbage collector is never looked at again: so connections must end without it."""

from __future__ import annotations

import asyncio
import gc
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import uvloop

from broker.codec.packets import ConnAck, Connect, Disconnect, Publish, SubscriptionRequest
from broker.connection.connection import Connection
from broker.net.listener import Listener
from broker.net.server import Collector
from broker.net.settings import NamedListener, SslListenerSettings, TlsSettings
from broker.session.session import Session
from tests.support.certificates import Authority
from tests.support.connections import dial
from tests.support.mqtt_server import on_loop, running
from tests.support.wire import WireClient


@contextmanager
def collector_off() -> Iterator[None]:
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.unfreeze()


def alive(*kinds: type) -> int:
    return sum(type(found) in kinds for found in gc.get_objects())


async def live(client: WireClient, end: str) -> None:
    """Connect, subscribe, hear oneself, and end in some way."""
    client.send(Connect("c", client.version))
    await client.expect(ConnAck)
    await client.subscribe(SubscriptionRequest("a/+", 1))
    client.send(Publish("a/b", b"x", 1, packet_id=7))
    await client.expect(Publish)
    if end == "DISCONNECT":
        client.send(Disconnect(0))
    elif end == "protocol error":
        client.send_bytes(b"\xf3\x01\x01")
        await client.closed()
    await client.close()


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("end", ["DISCONNECT", "protocol error", "cut"])
@on_loop
async def test_an_ended_connection_goes_by_itself(end: str, version: int) -> None:
    async with running() as node:
        with collector_off():
            await live(await WireClient.open(node.port, version), end)
            await node.until(lambda: not alive(Connection, Session))


@on_loop
async def test_an_ended_connection_of_tls_goes_by_itself(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    files = authority.sign("server", {"CN": "localhost"}, ["localhost"])
    options = TlsSettings.model_validate({"certfile": str(files.cert), "keyfile": str(files.key)})
    settings = SslListenerSettings(bind="127.0.0.1:0", ssl_options=options)
    async with running() as node:
        listener = Listener(NamedListener(settings, "s"), node.server.hub, node.metrics)
        _, port = await listener.open()
        trusting = ssl.create_default_context(cafile=authority.file)
        with collector_off():
            ends = await dial(port, ssl=trusting, server_hostname="localhost")
            await live(WireClient(*ends, 5), "DISCONNECT")
            await node.until(lambda: not alive(Connection, Session))
        listener.close()


@pytest.mark.parametrize(
    ("new_loop", "is_left"), [(uvloop.new_event_loop, False), (asyncio.new_event_loop, True)]
)
def test_what_has_come_is_set_aside_where_it_goes_by_itself(new_loop: type, is_left: bool) -> None:
    loop = new_loop()
    collector, one = Collector(loop), [object()]
    with collector_off():
        collector.tick(999)
        assert any(found is one for found in gc.get_objects())
        collector.tick(1000)
        assert any(found is one for found in gc.get_objects()) is is_left
    loop.close()


def test_nothing_is_collected_while_sessions_are_restored() -> None:
    loop = uvloop.new_event_loop()
    with collector_off():
        gc.enable()
        with Collector(loop).restoring():
            assert not gc.isenabled()
            restored = [object()]
        assert gc.isenabled()
        assert not any(found is restored for found in gc.get_objects())
    loop.close()


def test_what_came_after_the_start_is_set_aside_once() -> None:
    loop = uvloop.new_event_loop()
    with collector_off():
        libraries = [object()]
        Collector(loop).set_aside()
        assert not any(found is libraries for found in gc.get_objects())
    loop.close()
