"""Calls of connectors go to the address that the guard has checked: no name is looked up a second time."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import pytest

from bridges.http.client import HttpClient
from bridges.http.settings import HttpSettings
from bridges.kafka.clients import Connection, GuardedId
from bridges.kafka.cluster import KafkaCluster
from bridges.kafka.settings import KafkaSettings
from bridges.mqtt.connection import MqttConnection
from bridges.mqtt.settings import MqttSettings
from bridges.postgresql.connector import PostgresConnector
from bridges.postgresql.settings import PostgresSettings
from bridges.resource.contract import Connector, Context
from bridges.resource.errors import BadSettings, ReconnectFirst
from bridges.resource.probe import connect_step, run_probe, tls_step
from bridges.resource.settings.tls import TlsOptions
from broker.config.outgoing import CallFailed, call
from broker.config.ssrf import AddressDenied, AddressGuard, GuardedLoop, SsrfSettings
from tests.support.certificates import Authority
from tests.support.features import make_services
from tests.support.mqtt_server import on_loop

NAME = "rebound.invalid"
"""No resolver knows it (RFC 6761): who connects by this name gets nowhere."""


class OnceHere(AddressGuard):
    """Answers a name once with this machine, as a name server does whose next answer is another."""

    def __init__(self) -> None:
        super().__init__(SsrfSettings())
        self.asked: list[tuple[str, int]] = []

    async def addresses(self, host: str, port: int) -> list[str]:
        self.asked.append((host, port))
        return ["127.0.0.1"]


DENYING = AddressGuard(SsrfSettings(enable=True))


class Listening:
    """A server that takes connections, reads a little and ends them."""

    def __init__(self) -> None:
        self.connections = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        await reader.read(1)
        writer.close()


def mqtt(port: int, guard: AddressGuard, host: str) -> Connector:
    settings = MqttSettings.model_validate({"server": f"{host}:{port}"})
    return MqttConnection(settings, Context("mqtt:other", make_services(), guard, 5.0))


def websocket(port: int, guard: AddressGuard, host: str) -> Connector:
    settings = MqttSettings.model_validate({"server": f"ws://{host}:{port}/mqtt"})
    return MqttConnection(settings, Context("mqtt:other", make_services(), guard, 5.0))


def postgresql(port: int, guard: AddressGuard, host: str) -> Connector:
    settings = PostgresSettings.model_validate(
        {"server": f"{host}:{port}", "database": "d", "username": "u"}
    )
    return PostgresConnector(settings, Context("postgresql:db", make_services(), guard, 5.0))


def kafka(port: int, guard: AddressGuard, host: str) -> Connector:
    settings = KafkaSettings.model_validate({"bootstrap_hosts": f"{host}:{port}"})
    return KafkaCluster(settings, Context("kafka:k", make_services(), guard, 2.0))


def http(port: int, guard: AddressGuard, host: str) -> Connector:
    settings = HttpSettings.model_validate({"url": f"http://{host}:{port}"})
    return HttpClient(settings, Context("http:service", make_services(), guard, 5.0))


Make = Callable[[int, AddressGuard, str], Connector]
MAKERS = [mqtt, websocket, postgresql, kafka]
"""Connectors that connect through ``GuardedLoop``."""


@pytest.mark.parametrize("make", MAKERS)
@on_loop
async def test_a_connector_connects_to_the_address_that_was_checked(make: Make) -> None:
    listening = Listening()
    server = await asyncio.start_server(listening.serve, "127.0.0.1", 0)
    port, guard = server.sockets[0].getsockname()[1], OnceHere()
    connector = make(port, guard, NAME)
    try:
        with suppress(Exception):  # what listens there speaks nothing
            async with asyncio.timeout(5):
                await connector.open()
    finally:
        await connector.close()
        server.close()
    assert listening.connections
    assert set(guard.asked) == {(NAME, port)}


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "0.0.0.0"])
@on_loop
async def test_a_connector_to_a_forbidden_address_connects_to_nothing(
    make: Make, host: str
) -> None:
    listening = Listening()
    server = await asyncio.start_server(listening.serve, "127.0.0.1", 0)
    connector = make(server.sockets[0].getsockname()[1], DENYING, host)
    try:
        with pytest.raises(BadSettings, match="must not be called"):
            await connector.open()
    finally:
        await connector.close()
        server.close()
    assert listening.connections == 0


@pytest.mark.parametrize("make", [*MAKERS, http])
@pytest.mark.parametrize("host", ["a..b", f"{'x' * 64}.invalid"])
@on_loop
async def test_a_connector_says_that_a_host_is_not_a_valid_name(make: Make, host: str) -> None:
    connector = make(1883, AddressGuard(SsrfSettings()), host)
    try:
        with pytest.raises(ReconnectFirst, match="is not a valid host name"):
            await connector.open()
        probe = await run_probe(connector, (), lambda text: text)
    finally:
        await connector.close()
    assert "is not a valid host name" in probe["steps"][0]["message"]


@pytest.mark.parametrize("host", ["127.1", "2130706433"])
@pytest.mark.parametrize("guard", [AddressGuard(SsrfSettings()), DENYING])
@on_loop
async def test_a_short_form_of_an_address_is_no_host_of_an_http_service(
    host: str, guard: AddressGuard
) -> None:
    connector = http(1883, guard, host)
    try:
        with pytest.raises(BadSettings, match="is not a valid host"):
            await connector.open()
    finally:
        await connector.close()


@on_loop
async def test_a_call_says_that_a_host_is_not_a_valid_name() -> None:
    guard = AddressGuard(SsrfSettings())
    with pytest.raises(CallFailed, match="is not a valid host name"):
        await call("GET", "http://a..b/", guard, None, timeout_s=5, most_bytes=10)


@on_loop
async def test_a_broker_that_a_kafka_cluster_names_is_checked_as_well() -> None:
    listening = Listening()
    server = await asyncio.start_server(listening.serve, "127.0.0.1", 0)
    port, guard = server.sockets[0].getsockname()[1], OnceHere()
    denied = Connection(
        "localhost", port, client_id=GuardedId("c", DENYING), request_timeout_ms=2000
    )
    with pytest.raises(PermissionError, match="must not be called"):
        await denied.connect()
    assert listening.connections == 0
    allowed = Connection(NAME, port, client_id=GuardedId("c", guard), request_timeout_ms=2000)
    with suppress(Exception):
        await allowed.connect()
    allowed.close()
    server.close()
    assert (listening.connections, guard.asked) == (1, [(NAME, port)])


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@on_loop
async def test_the_steps_of_a_probe_connect_to_what_they_checked() -> None:
    listening = Listening()
    server = await asyncio.start_server(listening.serve, "127.0.0.1", 0)
    port, guard = server.sockets[0].getsockname()[1], OnceHere()
    assert "accepts connections" in await connect_step(NAME, port, guard).run()
    denied: list[Callable[[], Awaitable[str]]] = [
        connect_step("localhost", port, DENYING).run,
        tls_step("localhost", port, DENYING, TlsOptions()).run,
    ]
    for run in denied:
        with pytest.raises(BadSettings, match="must not be called"):
            await run()
    server.close()


def test_tls_checks_the_name_and_not_the_address(authority: Authority) -> None:
    files = authority.sign("server", {"CN": "x"}, [NAME])
    other = authority.sign("other", {"CN": "x"}, ["other.invalid"])

    @on_loop
    async def check() -> None:
        for served, is_good in ((files, True), (other, False)):
            context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
            context.load_cert_chain(served.cert, served.key)
            server = await asyncio.start_server(Listening().serve, "127.0.0.1", 0, ssl=context)
            port = server.sockets[0].getsockname()[1]
            options = TlsOptions.model_validate({"enable": True, "cacertfile": str(authority.file)})
            step = tls_step(NAME, port, OnceHere(), options)
            if is_good:
                assert "TLS" in await step.run()
            else:
                with pytest.raises((BadSettings, ReconnectFirst), match="certificate"):
                    await step.run()
            server.close()

    check()


@on_loop
async def test_the_next_address_is_tried_where_the_first_does_not_answer() -> None:
    class Two(AddressGuard):
        async def addresses(self, host: str, port: int) -> list[str]:
            return ["::1", "127.0.0.1"]

    server = await asyncio.start_server(Listening().serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    loop = GuardedLoop(asyncio.get_running_loop(), Two(SsrfSettings()))
    transport, _ = await loop.create_connection(asyncio.Protocol, NAME, port)
    transport.close()
    denying = GuardedLoop(asyncio.get_running_loop(), DENYING)
    with pytest.raises(AddressDenied):
        await denying.create_connection(asyncio.Protocol, "localhost", port)
    server.close()
