"""How many and how fast clients may come to one listener."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from broker.auth.decision import Decision
from broker.codec.packets import ConnAck, Connect, PingReq, PingResp
from broker.core.errors import ConfigError
from broker.net.limits import MOST_ADDRESSES, MOST_ANSWERED, AddressRates
from broker.net.listener import Listener, check_addresses, check_zones
from broker.net.settings import (
    ListenerSettings,
    NamedListener,
    SslListenerSettings,
    TlsSettings,
    named_listeners,
)
from broker.net.settings import TcpListeners as Tcp
from tests.support.certificates import Authority
from tests.support.connections import dial
from tests.support.mqtt_server import Node, on_loop, running
from tests.support.wire import WireClient


@asynccontextmanager
async def listening(node: Node, **options: Any) -> AsyncIterator[tuple[Listener, int]]:
    named = NamedListener(ListenerSettings(bind="127.0.0.1:0", **options), "n")
    listener = Listener(named, node.server.hub, node.metrics)
    _, port = await listener.open()
    try:
        yield listener, port
    finally:
        listener.close()


async def _answer(port: int, client_id: str, version: int) -> int:
    client = await WireClient.open(port, version)
    client.send(Connect(client_id, version))
    return (await client.expect(ConnAck)).reason_code


@on_loop
async def test_a_full_listener_says_so_and_takes_the_next_one_when_there_is_room() -> None:
    async with running() as node, listening(node, max_connections=2) as (listener, port):
        first = await WireClient.connected(port, Connect("1", 5))
        second = await WireClient.connected(port, Connect("2", 5))
        assert await _answer(port, "3", 5) == 0x97
        assert await _answer(port, "4", 4) == 3
        assert listener.connections == 2
        assert node.metrics.value("listener_connections", listener="tcp:n") == 2
        assert node.metrics.value("listener_connections_accepted", listener="tcp:n") == 2
        assert (
            node.metrics.value(
                "listener_connections_refused", listener="tcp:n", reason="max_connections"
            )
            == 2
        )
        await second.close()
        await node.until(lambda: listener.connections == 1)
        assert await _answer(port, "5", 5) == 0
        await node.client("elsewhere")
        await first.close()


@on_loop
async def test_those_above_the_limit_who_say_nothing_are_few_and_cut_off_soon() -> None:
    async with running() as node, listening(node, max_connections=1) as (listener, port):
        first = await WireClient.connected(port, Connect("1", 5))
        waiting = [await WireClient.open(port) for _ in range(MOST_ANSWERED)]
        await node.until(lambda: listener.links == 1 + MOST_ANSWERED)
        assert await _answer(port, "2", 5) == 0x97
        assert await waiting[0].closed() == []
        node.pass_time(3)
        for client in waiting:
            assert await client.closed() == []
        await node.until(lambda: listener.links == 1)
        await first.close()


async def _silent(port: int, count: int) -> list[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """Connections from several addresses on which nothing is sent."""
    return [
        await dial(port, local_addr=(f"127.0.0.{2 + number % 3}", 0)) for number in range(count)
    ]


@on_loop
async def test_connections_that_say_nothing_hold_no_place_of_a_client() -> None:
    async with running() as node, listening(node, max_connections=2) as (listener, port):
        silent = await _silent(port, 9)
        silent[0][1].write(b"\x10")
        first = await WireClient.connected(port, Connect("1", 5))
        await _silent(port, 9)
        second = await WireClient.connected(port, Connect("2", 5))
        assert (listener.connections, node.server.hub.context.admission.admitted) == (2, 2)
        assert await _answer(port, "3", 5) == 0x97
        await first.close()
        await node.until(lambda: listener.connections == 1)
        await _silent(port, 9)
        assert await _answer(port, "4", 5) == 0
        await second.close()


@on_loop
async def test_clients_whose_authenticator_takes_its_time_hold_no_place() -> None:
    never = asyncio.Event()

    async def decide() -> Decision:
        await never.wait()
        return Decision("deny", 0x87)

    async with running() as node, listening(node, max_connections=1) as (_, port):
        chain = node.server.hub.logins._access.authenticators
        now = chain.authenticate

        def authenticate(attempt: Any) -> Any:
            return decide() if attempt.client_id == "slow" else now(attempt)

        chain.authenticate = authenticate  # type: ignore[method-assign]
        slow = await WireClient.open(port, 5)
        slow.send(Connect("slow", 5))
        await node.until(lambda: node.metrics.value("logins_waiting") == 1)
        assert await _answer(port, "fast", 5) == 0
        never.set()


@pytest.mark.parametrize("kind", ["tcp", "tls", "proxy"])
@on_loop
async def test_where_descriptors_end_the_oldest_that_said_nothing_make_room(
    kind: str, tmp_path: Path
) -> None:
    authority = Authority(tmp_path)
    files = authority.sign("server", {"CN": "localhost"}, ["localhost", "127.0.0.1"])
    settings = ListenerSettings(
        bind="127.0.0.1:0", proxy_protocol="v1" if kind == "proxy" else "off"
    )
    if kind == "tls":
        tls = TlsSettings.model_validate(files.settings)
        settings = SslListenerSettings(bind="127.0.0.1:0", ssl_options=tls)
    async with running() as node:
        admission = node.server.hub.context.admission
        admission.descriptors = 8
        listener = Listener(NamedListener(settings, "n"), node.server.hub, node.metrics)
        _, port = await listener.open()
        silent = await _silent(port, 30)
        await node.until(
            lambda: node.metrics.value("connections_refused", reason="unauthenticated") >= 22
        )
        assert len(admission.lobby) == 8
        assert await silent[0][0].read() == b""
        if kind == "tls":
            context = ssl.create_default_context(cafile=authority.file)
            client = WireClient(*await dial(port, ssl=context, server_hostname="localhost"), 5)
        else:
            client = await WireClient.open(port, 5)
            if kind == "proxy":
                client.send_bytes(b"PROXY TCP4 127.0.0.9 127.0.0.1 1 2\r\n")
        client.send(Connect("known", 5))
        assert (await client.expect(ConnAck)).reason_code == 0
        assert (admission.admitted, len(admission.lobby)) == (1, 7)
        await _silent(port, 30)
        client.send(PingReq())
        await client.expect(PingResp)
        listener.close()


@on_loop
async def test_more_connections_in_a_second_than_allowed_are_told_so() -> None:
    async with running() as node, listening(node, max_conn_rate=2) as (_, port):
        codes = [await _answer(port, str(number), 5) for number in range(4)]
        assert codes == [0, 0, 0x9F, 0x9F]
        node.pass_time(0.5)
        assert [await _answer(port, "a", 5), await _answer(port, "b", 4)] == [0, 3]
        node.pass_time(60)
        assert [await _answer(port, f"c{number}", 5) for number in range(3)] == [0, 0, 0x9F]
        assert (
            node.metrics.value(
                "listener_connections_refused", listener="tcp:n", reason="connection_rate"
            )
            == 4
        )


def test_two_listeners_at_one_address_are_refused() -> None:
    one, other = ListenerSettings(), SslListenerSettings(bind="127.0.0.1:1883")
    with pytest.raises(
        ConfigError, match=r"'ssl:s' and listener 'tcp:default' are both at 127\.0\.0\.1:1883"
    ):
        check_addresses([NamedListener(one), NamedListener(other, "s")])
    check_addresses([NamedListener(ListenerSettings(bind="127.0.0.1:0"), name) for name in "ab"])


def test_only_enabled_listeners_are_opened() -> None:
    more = Tcp.model_validate(
        {"x": {"bind": "127.0.0.1:1884", "name": "inside"}, "off": {"enable": False}}
    )
    assert [str(one) for one in named_listeners(ListenerSettings(), more)] == [
        "tcp:default",
        "tcp:inside",
    ]
    assert [str(one) for one in named_listeners(ListenerSettings(enable=False), more)] == [
        "tcp:inside"
    ]


@on_loop
async def test_one_address_may_not_come_faster_than_its_share() -> None:
    async with running() as node, listening(node, max_conn_rate_per_ip=2) as (_, port):
        assert [await _answer(port, str(number), 5) for number in range(3)] == [0, 0, 0x9F]
        node.pass_time(1)
        assert await _answer(port, "a", 4) == 0
        assert node.metrics.value("connections_refused", reason="connection_rate_per_ip") == 1


@on_loop
async def test_all_listeners_together_take_no_more_than_the_node_may() -> None:
    async with running(max_connections=2) as node, listening(node) as (_, port):
        first, second = await node.client("1"), await WireClient.connected(port, Connect("2", 5))
        assert await _answer(port, "3", 5) == 0x97
        assert await _answer(node.port, "4", 4) == 3
        assert node.metrics.value("connections_refused", reason="max_connections_total") == 2
        await second.close()
        await node.until(lambda: node.server.hub.context.admission.admitted == 1)
        assert await _answer(port, "5", 5) == 0
        await first.close()


def test_addresses_remembered_for_their_rate_are_bounded() -> None:
    rates = AddressRates(1.0)
    for number in range(MOST_ADDRESSES + 10):
        assert rates.take(f"10.0.{number >> 8}.{number & 255}", 0.0)
    assert len(rates) == MOST_ADDRESSES
    assert rates.take(None, 0.0)


def test_a_listener_in_a_zone_that_is_not_there_is_refused() -> None:
    named = [
        NamedListener(ListenerSettings(zone=zone), zone) for zone in ("default", "lab", "telemtry")
    ]
    with pytest.raises(ConfigError) as refused:
        check_zones(named, {"default", "telemetry"})
    assert list(refused.value.problems) == [
        "listener 'tcp:lab' is in zone 'lab', which is not there; add zones.lab { ... }",
        "listener 'tcp:telemtry' is in zone 'telemtry', which is not there; did you mean 'telemetry'?",
    ]
