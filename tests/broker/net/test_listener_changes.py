"""Listeners that are added, changed and removed while others run."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Iterable
from typing import Any

import psutil
import pytest

from broker.codec.packets import Connect, Disconnect, Publish, SubscriptionRequest, Will
from broker.core.errors import ConfigError, NotFound, Unavailable
from broker.net.listeners import ListenerChanges
from broker.net.settings import ListenerSettings, NamedListener
from tests.support.mqtt_server import SESSION_LOG, Node, on_loop, running
from tests.support.waiting import until
from tests.support.wire import WireClient


def _named(key: str = "default", **settings: Any) -> NamedListener:
    return NamedListener(ListenerSettings(**{"bind": "127.0.0.1:0", **settings}), key, key)


async def _change(node: Node, *named: NamedListener, **options: Any) -> ListenerChanges:
    return await node.server.change_listeners(named, **options)


def _port(node: Node, id: str) -> int:
    [status] = [status for status in node.server.listeners.statuses() if status.id == id]
    assert status.address is not None
    return status.address[1]


def _options(
    address: tuple[str, int], names: Iterable[tuple[int, int]]
) -> dict[tuple[int, int], int]:
    """Options of the socket of this process whose peer is at an address."""
    for found in psutil.Process().net_connections("tcp4"):
        if found.raddr == address:
            with socket.socket(fileno=os.dup(found.fd)) as copy:
                return {key: copy.getsockopt(*key) for key in names}
    return {}


async def _is_refused(port: int) -> bool:
    try:
        (await asyncio.open_connection("127.0.0.1", port))[1].close()
    except ConnectionError:
        return True
    return False


@on_loop
async def test_one_is_added_and_removed_and_its_clients_are_told() -> None:
    async with running() as node:
        stays = await node.client("stays", 5)
        assert await _change(node, _named(), _named("b")) == ListenerChanges(added=("tcp:b",))
        client = await WireClient.connected(_port(node, "tcp:b"), Connect("c", 5))
        port = _port(node, "tcp:b")
        assert await _change(node, _named()) == ListenerChanges(removed=("tcp:b",))
        [goodbye] = await client.closed()
        assert isinstance(goodbye, Disconnect)
        assert goodbye.reason_code == 0x98
        assert await _is_refused(port)
        await stays.silence()


@on_loop
async def test_clients_of_a_removed_one_may_drain() -> None:
    async with running() as node:
        await _change(node, _named(), _named("b"))
        client = await WireClient.connected(_port(node, "tcp:b"), Connect("c", 5))
        await _change(node, _named(), drain=True)
        await client.silence()
        assert node.server.listeners.links == 1
        client.abort()
        await node.until(lambda: node.server.listeners.links == 0)


@on_loop
async def test_other_limits_hold_from_the_next_connection_on() -> None:
    async with running() as node:
        first = await node.client("first", 5)
        port = _port(node, "tcp:default")
        assert await _change(node, _named(max_connections=1)) == ListenerChanges(
            changed=("tcp:default",)
        )
        assert _port(node, "tcp:default") == port
        async with await WireClient.open(port, 5) as second:
            second.send(Connect("second", 5))
            assert getattr(await second.receive(), "reason_code", None) == 0x97
        await first.silence()
        await _change(node, _named())
        await node.client("third", 5)


@on_loop
async def test_one_moves_to_another_address_and_its_clients_stay() -> None:
    async with running() as node:
        client, old = await node.client("c", 5), node.port
        await _change(node, _named(backlog=5))
        assert _port(node, "tcp:default") != old
        assert await _is_refused(old)
        await client.silence()
        [status] = node.server.listeners.statuses()
        assert status.connections == 1


@on_loop
async def test_a_setting_behind_the_address_changes_at_the_same_address() -> None:
    async with running() as node:
        bind = f"127.0.0.1:{node.port}"
        await _change(node, _named(bind=bind))
        client = await node.client("c", 5)
        await _change(node, _named(bind=bind, backlog=7))
        assert _port(node, "tcp:default") == node.port
        await client.silence()
        await node.client("d", 5)


@on_loop
async def test_two_may_swap_their_addresses() -> None:
    async with running() as node:
        await _change(node, _named(), _named("b"))
        first, second = (f"127.0.0.1:{_port(node, id)}" for id in ("tcp:default", "tcp:b"))
        await _change(node, _named(bind=second), _named("b", bind=first))
        assert [status.state for status in node.server.listeners.statuses()] == [
            "running",
            "running",
        ]


@on_loop
async def test_what_cannot_be_opened_leaves_all_as_it_was() -> None:
    async with running() as node:
        client = await node.client("c", 5)
        before = node.server.listeners.statuses()
        server = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
        taken = server.sockets[0].getsockname()[1]
        with pytest.raises(Unavailable, match="another program listens there"):
            await _change(node, _named(), _named("new"), _named("b", bind=f"127.0.0.1:{taken}"))
        with pytest.raises(ConfigError, match="are both at"):
            await _change(node, _named("x", bind="127.0.0.1:1"), _named("y", bind="127.0.0.1:1"))
        with pytest.raises(ConfigError, match="nothing checks who connects"):
            await _change(node, _named(bind="0.0.0.0:0"))
        assert node.server.listeners.statuses() == before
        shown = {metric.labels.get("listener") for metric in node.metrics}
        assert shown == {None, "tcp:default"}
        await client.silence()
        await node.client("d", 5)
        server.close()


@on_loop
async def test_one_is_stopped_and_started() -> None:
    async with running() as node:
        listeners = node.server.listeners
        client = await node.client("c", 5)
        await listeners.stop("tcp:default")
        assert getattr((await client.closed())[-1], "reason_code", None) == 0x98
        assert [status.state for status in listeners.statuses()] == ["stopped"]
        await _change(node, _named(max_connections=9))
        assert [status.state for status in listeners.statuses()] == ["stopped"]
        await listeners.start("tcp:default")
        await WireClient.connected(_port(node, "tcp:default"), Connect("again", 5))
        with pytest.raises(NotFound):
            await listeners.stop("tcp:none")


@pytest.mark.parametrize("publishes_wills", [False, True])
@on_loop
async def test_wills_at_a_stop_are_published_if_so_asked(publishes_wills: bool) -> None:
    async with running() as node:
        watcher = await node.client(
            "w", 5, clean_start=True, properties={"Session-Expiry-Interval": 60}
        )
        await watcher.subscribe(SubscriptionRequest("wills", 1))
        await node.client("c", 5, will=Will("wills", b"gone", 1))
        await node.server.stop(3, publishes_wills=publishes_wills)
        told = await watcher.closed()
        assert getattr(told[-1], "reason_code", None) == 0x8B
        log = node.writer.store.range_of(SESSION_LOG)
        assert (
            any(isinstance(packet, Publish) for packet in told)
            or log.next_offset == publishes_wills
        )


@pytest.mark.parametrize("publishes_wills", [False, True])
@on_loop
async def test_wills_of_clients_that_other_machines_take_are_published_if_so_asked(
    publishes_wills: bool,
) -> None:
    async with running() as node:
        watcher = await node.client("w", 5, properties={"Session-Expiry-Interval": 60})
        await watcher.subscribe(SubscriptionRequest("wills", 1))
        await watcher.close()
        clients = [
            await node.client(f"c{at}", 5, will=Will("wills", b"gone", 1)) for at in range(4)
        ]
        clients.pop().abort()  # with a will in any case
        await node.until(lambda: node.writer.store.range_of(SESSION_LOG).next_offset == 1)
        await node.server.part(20, publishes_wills=publishes_wills)
        assert len(node.server.hub.connections) == 1
        await node.server.stop(3, publishes_wills=publishes_wills)
        for client in clients:
            assert getattr((await client.closed())[-1], "reason_code", None) == 0x8B
        await node.writer.committed()
        wills = node.writer.store.range_of(SESSION_LOG).next_offset
        assert wills == 1 + publishes_wills * len(clients)


@pytest.mark.parametrize("proxy_protocol", ["off", "auto"])
@on_loop
async def test_options_hold_for_accepted_sockets(proxy_protocol: str) -> None:
    options = {
        "nodelay": False,
        "keepalive_idle": "77s",
        "keepalive_interval": "7s",
        "keepalive_probes": 3,
        "send_timeout": "9s",
        "send_buffer": "32KB",
        "receive_buffer": "48KB",
        "reuse_port": True,
    }
    expected = {
        (socket.IPPROTO_TCP, socket.TCP_NODELAY): 0,
        (socket.SOL_SOCKET, socket.SO_KEEPALIVE): 1,
        (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE): 77,
        (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL): 7,
        (socket.IPPROTO_TCP, socket.TCP_KEEPCNT): 3,
        (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT): 9000,
        (socket.SOL_SOCKET, socket.SO_SNDBUF): 2
        * 32
        * 1024,  # the system doubles it for its own use
        (socket.SOL_SOCKET, socket.SO_RCVBUF): 2 * 48 * 1024,
        (socket.SOL_SOCKET, socket.SO_REUSEPORT): 1,
    }
    async with running() as node:
        plain = _named("plain")
        tuned = _named("tuned", tcp_options=options, proxy_protocol=proxy_protocol)
        await _change(node, plain, tuned)
        header = b"" if proxy_protocol == "off" else b"PROXY TCP4 192.0.2.1 127.0.0.1 1 2\r\n"
        _, writer = await asyncio.open_connection("127.0.0.1", _port(node, "tcp:tuned"))
        writer.write(header)
        try:
            ours = writer.get_extra_info("sockname")
            await until(lambda: _options(ours, expected) == expected, "the options are set")
        finally:
            writer.close()
            await writer.wait_closed()
        await until(lambda: not _options(ours, expected), "the connection is gone")
        assert await _change(node, plain, _named("tuned")) == ListenerChanges(
            changed=("tcp:tuned",)
        )
