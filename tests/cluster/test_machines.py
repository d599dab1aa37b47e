"""Two machines, each with cells and a data directory of its own, over mutual TLS."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import Future
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from threading import Thread

import pytest
from msgspec.structs import replace

from broker.cluster.certificates import context_of
from broker.cluster.directories import make_directories
from broker.cluster.switchboard import Switchboard
from broker.cluster.tunnel import Told, Tunnel
from broker.codec.packets import ConnAck, Connect, Disconnect
from broker.core import reason
from broker.core.cells import Machine, Place
from tests.end_to_end.clients import Client
from tests.support.cells import Heard
from tests.support.certificates import Authority
from tests.support.local_node import Node
from tests.support.mqtt_server import on_loop
from tests.support.node import eventually
from tests.support.processes import free_port
from tests.support.waiting import until
from tests.support.wire import WireClient

_DEADLINE_S = 30.0


@contextmanager
def _beside(run: Path, cells: range, told: Told) -> Iterator[None]:
    """What a supervisor has of its own: the lines to its cells, and the tunnel."""
    ready: Future[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = Future()

    async def serve() -> None:
        switchboard = Switchboard(run, Heard())
        for number in cells:
            switchboard.prepare(number)
        tunnel = Tunnel(told)
        await tunnel.start()
        stopped = asyncio.Event()
        ready.set_result((asyncio.get_running_loop(), stopped))
        await stopped.wait()
        await tunnel.stop()
        switchboard.close()

    thread = Thread(target=lambda: asyncio.run(serve()), name="supervisor under test")
    thread.start()
    loop, stopped = ready.result(_DEADLINE_S)
    try:
        yield
    finally:
        loop.call_soon_threadsafe(stopped.set)
        thread.join(_DEADLINE_S)


class Machines:
    """A cluster: the nodes of each machine."""

    def __init__(self, directory: Path, sizes: dict[str, int], *, redirects: bool = False) -> None:
        authority = self.authority = Authority(directory, "cluster")
        self.total = sum(sizes.values())
        self.machines = []
        first = 0
        for name, size in sorted(sizes.items()):
            mqtt = f"{name}.example:1883"
            self.machines.append(Machine(name, "127.0.0.1", free_port(), first, size, mqtt))
            first += size
        self.nodes: list[Node] = []
        self.told: list[Told] = []
        self._directory = directory
        for machine in self.machines:
            files = authority.sign(machine.name, {"CN": machine.name}, [machine.name])
            data_dir = directory / machine.name
            run = data_dir / "run"
            self.told.append(
                Told(
                    str(run),
                    "digest",
                    machine.name,
                    self.machines,
                    str(files.cert),
                    str(files.key),
                    str(authority.file),
                )
            )
            self.nodes += [
                Node(data_dir, place=Place(number, self.total, run, self.machines, redirects))
                for number in machine.cells
            ]

    @contextmanager
    def running(self) -> Iterator[Machines]:
        with ExitStack() as stack:
            for machine, told in zip(self.machines, self.told, strict=True):
                run = Path(told.run)
                run.mkdir(parents=True, mode=0o700)
                make_directories(run.parent, machine.size)
                stack.enter_context(_beside(run, machine.cells, told))
            for node in self.nodes:
                node.start()
                stack.callback(node.stop)
            yield self

    def client_of(self, cell: int, prefix: str = "device") -> str:
        place = self.nodes[0].place
        assert place is not None
        return next(
            name
            for name in (f"{prefix}-{at}" for at in range(10_000))
            if place.cell_of(name) == cell
        )


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machines]:
    with Machines(tmp_path_factory.mktemp("cluster"), {"a": 1, "b": 2}).running() as machines:
        yield machines


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_client_gets_what_one_of_another_machine_publishes(cluster: Machines, qos: int) -> None:
    with (
        Client(cluster.nodes[0], cluster.client_of(0)) as first,
        Client(cluster.nodes[2], cluster.client_of(2)) as third,
    ):
        first.subscribe("to/first", qos)
        third.subscribe("to/third", qos)
        first.publish("to/third", b"over", qos)
        assert third.take().payload == b"over"
        third.publish("to/first", b"back", qos)
        assert first.take().payload == b"back"


def test_a_client_of_another_machine_is_relayed(cluster: Machines) -> None:
    name = cluster.client_of(2, "relayed")
    with Client(cluster.nodes[0], name) as client:
        client.subscribe("relayed", 1)
        client.publish("relayed", b"x" * 1_000_000, 1)
        assert len(client.take().payload) == 1_000_000
        for node in cluster.nodes[:2]:
            assert node.call("GET", f"/clients/{name}")["address"].startswith("127.0.0.1:")


def test_what_is_saved_reaches_the_cells_of_all_machines(cluster: Machines) -> None:
    front = cluster.nodes[0]
    front.call("POST", "/rules", {"name": "far", "sql": 'SELECT * FROM "far"'})
    with Client(cluster.nodes[1], cluster.client_of(1)) as client:
        client.publish("far", b"{}", 1)
        eventually(lambda: front.call("GET", "/rules/far")["metrics"]["matched"] == 1)
    front.call("DELETE", "/rules/far")


def test_a_client_of_mqtt_5_is_referred_to_its_machine_and_older_ones_are_relayed(
    tmp_path: Path,
) -> None:
    async def refer(machines: Machines) -> None:
        port = machines.nodes[0].mqtt[1]
        name = machines.client_of(1)
        client = await WireClient.open(port, 5)
        client.send(Connect(name, 5))
        connack = await client.expect(ConnAck)
        assert connack.reason_code == reason.USE_ANOTHER_SERVER
        assert connack.properties["Server-Reference"] == "b.example:1883"
        await client.closed()
        for client_id, version in ((name, 4), (machines.client_of(0), 5)):
            connected = await WireClient.connected(port, Connect(client_id, version))
            await connected.close()

    with Machines(tmp_path, {"a": 1, "b": 1}, redirects=True).running() as machines:
        asyncio.run(refer(machines))


def test_clients_of_a_machine_that_stops_are_referred_to_the_others(tmp_path: Path) -> None:
    async def refer(machines: Machines) -> None:
        node = machines.nodes[-1]
        referred = await WireClient.connected(node.mqtt[1], Connect(machines.client_of(2), 5))
        small = await WireClient.connected(
            node.mqtt[1],
            Connect(machines.client_of(2, "small"), 5, properties={"Maximum-Packet-Size": 32}),
        )
        older = await WireClient.connected(node.mqtt[1], Connect(machines.client_of(2, "older"), 4))
        await asyncio.to_thread(node.stop)
        disconnect = await referred.expect(Disconnect)
        assert disconnect.reason_code == reason.USE_ANOTHER_SERVER
        assert disconnect.properties == {"Server-Reference": "a.example:1883 b.example:1883"}
        disconnect = await small.expect(Disconnect)
        assert (disconnect.reason_code, disconnect.properties) == (reason.USE_ANOTHER_SERVER, {})
        for client in (referred, small, older):
            await client.closed()

    with Machines(tmp_path, {"a": 1, "b": 1, "c": 1}, redirects=True).running() as machines:
        asyncio.run(refer(machines))


@asynccontextmanager
async def _tunnel(told: Told) -> AsyncIterator[Tunnel]:
    tunnel = Tunnel(told)
    await tunnel.start()
    try:
        yield tunnel
    finally:
        await tunnel.stop()


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ("authority", "certificate"),
        ("name", "its certificate is for c, and not for 'b'"),
        ("cluster", "it has another name of the cluster, or other machines or cells in it"),
        ("socket", "'../secret' is no socket of a cell here"),
    ],
)
@on_loop
async def test_who_is_no_machine_of_the_cluster_is_refused(
    change: str, why: str, tmp_path: Path
) -> None:
    machines = Machines(tmp_path, {"a": 1, "b": 1})
    good, bad = machines.told
    for told in (good, bad):
        Path(told.run).mkdir(parents=True)  # noqa: ASYNC240
    if change in ("authority", "name"):
        directory = tmp_path / "other"
        directory.mkdir()
        authority = Authority(directory, "other") if change == "authority" else machines.authority
        files = authority.sign("c", {"CN": "c"}, ["c" if change == "name" else "b"])
        bad = replace(bad, certfile=str(files.cert), keyfile=str(files.key))
    if change == "cluster":
        bad = replace(bad, cluster="another")
    async with _tunnel(good) as tunnel, _tunnel(bad) as other:
        if change == "socket":
            with pytest.raises(Exception, match="no socket of a cell"):
                await other._reach(other._others["a"], "../secret")
            return
        await until(lambda: why in f"{other._said} {tunnel._said}")
        assert not other._others["a"].is_reached
        assert not tunnel._others["b"].is_reached


@on_loop
async def test_a_renewed_certificate_is_used_and_a_broken_one_is_not(tmp_path: Path) -> None:
    machines = Machines(tmp_path, {"a": 1, "b": 1})
    told = machines.told[0]
    Path(told.run).mkdir(parents=True)  # noqa: ASYNC240

    async def serial() -> int:
        other = machines.told[1]
        context = context_of(other.certfile, other.keyfile, other.cacertfile, is_server=False)
        address = machines.machines[0]
        _, writer = await asyncio.open_connection(
            address.host, address.port, ssl=context, server_hostname="a"
        )
        shown = writer.get_extra_info("ssl_object").getpeercert()
        writer.transport.abort()
        return int(shown["serialNumber"], 16)

    async with _tunnel(told):
        first = await serial()
        machines.authority.sign("a", {"CN": "a"}, ["a"])
        second = await serial()
        assert second != first
        Path(told.certfile).write_text("no certificate")  # noqa: ASYNC240
        assert await serial() == second
