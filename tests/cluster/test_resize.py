"""Another number of cells: sessions move with all that waits for them, wherever the change is cut off."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from broker.cluster.directories import cell_directory, kept_count, make_directories
from broker.cluster.resize import Resize
from broker.codec.packets import (
    PingReq,
    PingResp,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    SubscriptionRequest,
    Will,
)
from broker.connection.sharing.group import _Position, _Record, filter_of, is_idle
from broker.core.cells import Place, cell_of
from broker.core.errors import ConfigError
from broker.core.stream import StreamRecord
from broker.storage.rocksdb.store import RocksStore
from broker.storage.store import Batch, LogShard
from broker.streams.settings import StreamSpec
from tests.cluster.test_links import publish
from tests.support.catalogues import catalogue_of
from tests.support.linked_cells import Cell, linked
from tests.support.mqtt_server import MovedClock, on_loop
from tests.support.node import Node
from tests.support.waiting import until
from tests.support.wire import WireClient

_KEEPS: dict[str, Any] = {
    "clean_start": False,
    "properties": {"Session-Expiry-Interval": 3600},
}
_CLIENTS = [f"client/{number}" for number in range(16)]


class Broker:
    """Running cells of a data directory."""

    def __init__(self, cells: list[Cell]) -> None:
        self.cells = cells

    def of(self, client_id: str) -> Cell:
        """The cell of a client."""
        return self.cells[self.cells[0].place.cell_of(client_id)]

    async def client(self, client_id: str, **connect: Any) -> WireClient:
        """A client, connected to its cell."""
        return await self.of(client_id).node.client(client_id, 5, **{**_KEEPS, **connect})

    async def quiet(self) -> None:
        """Wait until everything is on disk."""
        for cell in self.cells:
            await cell.node.written()


@asynccontextmanager
async def running(data_dir: Path, clock: MovedClock, **settings: Any) -> AsyncIterator[Broker]:
    """The cells of a data directory; leaving it is like a kill."""
    count = kept_count(data_dir) or 1
    run = data_dir / "run"
    run.mkdir(exist_ok=True)
    stores = [RocksStore(cell_directory(data_dir, number)) for number in range(count)]
    cells: list[Cell] = []
    try:
        for number, store in enumerate(stores):
            cells.append(Cell(Place(number, count, run), store, clock, settings))  # type: ignore[arg-type]  # is not killed
            await cells[-1].start()
        await linked(cells)
        yield Broker(cells)
    finally:
        for cell in cells:
            await cell.stop()
        for store in stores:
            store.close()
        shutil.rmtree(run)


async def take(client: WireClient, count: int) -> list[Publish]:
    """So many messages, acknowledged to the end."""
    received: list[Publish] = []
    released = 0
    while len(received) < count or released < sum(packet.qos == 2 for packet in received):
        packet = await client.receive()
        if isinstance(packet, Publish):
            received.append(packet)
            client.send((PubAck if packet.qos == 1 else PubRec)(packet.packet_id))
        elif isinstance(packet, PubRel):
            client.send(PubComp(packet.packet_id))
            released += 1
    client.send(PingReq())
    await client.expect(PingResp)
    return received


def resize(data_dir: Path, count: int) -> None:
    """Change the number of cells."""
    with Resize(data_dir, count) as change:
        plan = change.plan()
        assert plan.after == count
        change.run()
    assert kept_count(data_dir) == count


class Expected:
    """What each client has to get."""

    def __init__(self) -> None:
        self.of: dict[str, list[bytes]] = defaultdict(list)
        self._next = 0

    async def publish(self, broker: Broker, topic: str, names: list[str], qos: int) -> None:
        """Publish a message that these clients wait for."""
        self._next += 1
        payload = b"%d" % self._next
        name = f"publisher-{self._next % 3}"
        publisher = await broker.client(name, clean_start=True, properties={})
        assert await publish(publisher, topic, payload, qos, 1) == 0
        await publisher.close()
        for name in names:
            self.of[name].append(payload)


@pytest.mark.parametrize("counts", [(1, 2), (1, 5, 3, 2, 1), (2, 3, 7, 4), (4, 1, 4)])
@on_loop
async def test_every_session_gets_what_waited_for_it_once_and_in_order(
    tmp_path: Path, counts: tuple[int, ...]
) -> None:
    data_dir = tmp_path / "data"
    data_dir.mkdir()
    make_directories(data_dir, counts[0])
    for number in range(counts[0]):
        RocksStore(cell_directory(data_dir, number)).close()
    clock = MovedClock()
    expected = Expected()
    for turn, count in enumerate(counts):
        if turn:
            resize(data_dir, count)
        async with running(data_dir, clock) as broker:
            if not turn:
                for number, name in enumerate(_CLIENTS):
                    client = await broker.client(name)
                    filters = ["all/#", f"to/{name}"] if number % 2 else [f"to/{name}"]
                    await client.subscribe(*(SubscriptionRequest(text, 2) for text in filters))
                    await client.close()
            for qos in (1, 2):
                await expected.publish(broker, "all/x", _CLIENTS[1::2], qos)
                for name in _CLIENTS:
                    await expected.publish(broker, f"to/{name}", [name], qos)
            # some read on between two changes
            for name in _CLIENTS[turn::5]:
                client = await broker.client(name)
                payloads = [packet.payload for packet in await take(client, len(expected.of[name]))]
                assert payloads == expected.of.pop(name)
                await client.close()
            for session in [s for cell in broker.cells for s in cell.node.server.hub.sessions]:
                if session.client_id in _CLIENTS:
                    await until(partial(getattr, session, "is_away"))
            await broker.quiet()
    async with running(data_dir, clock) as broker:
        for cell in broker.cells:
            assert {s.client_id for s in cell.node.server.hub.sessions} == {
                name for name in _CLIENTS if cell.place.has(name)
            }
        for name in _CLIENTS:
            session = broker.of(name).node.server.hub.sessions.by_client_id[name]
            assert session.waiting_messages == len(expected.of[name])
            client = await broker.client(name)
            packets = await take(client, len(expected.of[name]))
            assert [packet.payload for packet in packets] == expected.of[name], name
            await client.close()


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data directory that a killed broker of one process left."""
    data_dir = tmp_path_factory.mktemp("filled") / "data"
    data_dir.mkdir()
    RocksStore(data_dir).close()
    on_loop(partial(fill, data_dir, MovedClock()))()
    return data_dir


@pytest.mark.parametrize(("before", "after"), [(1, 3), (3, 2), (2, 1)])
def test_a_change_that_is_killed_at_any_step_is_made_by_the_next(
    filled: Path, tmp_path: Path, before: int, after: int
) -> None:
    data_dir = tmp_path / "data"
    shutil.copytree(filled, data_dir)
    if before > 1:
        resize(data_dir, before)
    command = [
        sys.executable,
        "-m",
        "tests.cluster.cut_off_resize",
        str(data_dir),
        str(tmp_path),
        str(after),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 10


async def fill(data_dir: Path, clock: MovedClock) -> None:
    """The data of a broker of one process that was killed: something of all that moves."""
    async with running(data_dir, clock) as broker:
        [cell] = broker.cells
        hub = cell.node.server.hub
        for number, name in enumerate(_CLIENTS):
            client = await broker.client(name)
            await client.subscribe(SubscriptionRequest("all", 1 + number // 4 % 2))
            await client.subscribe(SubscriptionRequest("wills/#", 1))
            if number % 4 == 0:
                await client.close()
            elif number % 4 == 1:
                await client.subscribe(SubscriptionRequest("$share/group/jobs", 2))
        await until(lambda: sum(session.is_away for session in hub.sessions) == 4)
        # of each client one message is acknowledged in part, and three wait
        publisher = await broker.client("publisher", will=Will("wills/publisher", b"gone", 1))
        for number in range(4):
            assert await publish(publisher, "all", b"%d" % number, 2, 10 + number) == 0
            assert await publish(publisher, "jobs", b"job %d" % number, 2, 20 + number) == 0
        for number in range(6):
            name = f"short-{number}"
            short = await broker.client(
                name, clean_start=True, properties={}, will=Will(f"wills/{name}", b"gone", 1)
            )
            delayed = f"$delayed/{600 + number}/all"
            short.send(Publish(delayed, b"late %d" % number, 1, packet_id=3))
            short.send(Publish(f"kept/{number}", b"kept", 1, True, packet_id=4))
            for _ in range(2):
                await short.receive()
        publisher.send(Publish("all", b"open", 2, packet_id=5))
        await publisher.expect(PubRec)
        hub.access.bans.create({"as": "clientid", "who": "bad"})
        await broker.quiet()


@pytest.mark.parametrize("counts", [(3,), (2, 5, 1)])
@on_loop
async def test_all_that_moved_works_as_before(
    filled: Path, tmp_path: Path, counts: tuple[int, ...]
) -> None:
    data_dir = tmp_path / "data"
    shutil.copytree(filled, data_dir)
    for count in counts:
        resize(data_dir, count)
    clock = MovedClock()
    async with running(data_dir, clock) as broker:
        publisher = await broker.client("publisher")
        assert publisher.connack.session_present
        publisher.send(Publish("all", b"open", 2, dup=True, packet_id=5))
        await publisher.expect(PubRec)
        publisher.send(PubRel(5))
        await publisher.expect(PubComp)
        for cell in broker.cells:
            assert [ban["who"] for ban in cell.node.server.hub.access.bans.list()] == ["bad"]
        for number in range(6):
            topic = f"kept/{number}"
            [kept] = [
                cell.place.number
                for cell in broker.cells
                if cell.node.server.hub.retained.get(topic) is not None
            ]
            assert kept == broker.of(topic).place.number
        assert sum(cell.node.server.hub.retained.count for cell in broker.cells) == 6
        clock.move(700)
        for cell in broker.cells:
            cell.node.server.hub.tick()
        wills = {f"wills/short-{number}".encode() for number in range(6)} | {b"wills/publisher"}
        jobs: list[bytes] = []
        for number, name in enumerate(_CLIENTS):
            client = await broker.client(name)
            assert client.connack.session_present
            of_all: list[bytes] = []
            heard: set[bytes] = set()
            duplicates = 0
            while len(of_all) < 11 or heard != wills:
                packet = await client.receive()
                assert isinstance(packet, Publish), packet
                duplicates += packet.dup
                if packet.topic == "all":
                    of_all.append(packet.payload)
                elif packet.topic == "jobs":
                    jobs.append(packet.payload)
                else:
                    heard.add(packet.topic.encode())
                client.send((PubAck if packet.qos == 1 else PubRec)(packet.packet_id))
                if packet.qos == 2:
                    client.send(PubComp(packet.packet_id))
            assert of_all[:5] == [b"0", b"1", b"2", b"3", b"open"]
            assert sorted(of_all[5:]) == [b"late %d" % at for at in range(6)]
            assert (duplicates > 0) is (number % 4 != 0), name
            await client.close()
        if len(broker.cells) > 1:  # those that members had in flight; others wait for a member
            assert len(jobs) == len(set(jobs)) > 0


def shown(data_dir: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """``sluice cells resize``."""
    command = [sys.executable, "-m", "broker.cli.main", "cells", "resize", *words]
    return subprocess.run(
        [*command, "--data-dir", str(data_dir)],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip


def files_of(data_dir: Path) -> list[str]:
    return sorted(str(path) for path in data_dir.rglob("*"))


def test_the_command_shows_what_moves_and_moves_it(filled: Path, tmp_path: Path) -> None:
    data_dir = tmp_path / "data"
    shutil.copytree(filled, data_dir)
    planned = shown(data_dir, "2", "--dry-run", "-o", "json")
    assert planned.returncode == 0, planned.stderr
    plan = json.loads(planned.stdout)
    moving = sum(cell_of(name, 2) for name in [*_CLIENTS, "publisher"])
    assert (plan["before"], plan["after"], plan["sessions"]) == (1, 2, moving)
    assert plan["messages"] > 0 < plan["bytes"]
    assert not (data_dir / "cells").exists()
    done = shown(data_dir, "2")
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith(f"{data_dir}: now 2\n")
    assert "cell 0 to 1: " in done.stderr
    assert kept_count(data_dir) == 2
    assert json.loads(shown(data_dir, "2", "-o", "json").stdout)["moves"] == []


@pytest.mark.parametrize("number", ["0", "65", "-1", "two", ""])
def test_an_absurd_number_is_refused(tmp_path: Path, number: str) -> None:
    refused = shown(tmp_path / "none", "--output=table", "--", number)
    assert refused.returncode == 2
    assert not (tmp_path / "none").exists()


def test_a_change_that_cannot_be_made_is_refused_before_anything_is_changed(
    filled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data_dir = tmp_path / "data"
    with pytest.raises(ConfigError, match="expected the data of a broker, got none"):
        resize(data_dir, 2)
    shutil.copytree(filled, data_dir)
    with monkeypatch.context() as full:
        full.setattr("broker.cluster.directories._ROOM_BYTES", 1 << 60)
        with pytest.raises(ConfigError, match="MiB free for the stores of 1 new cells"):
            resize(data_dir, 2)
    with Resize(data_dir, 2) as change, pytest.raises(ConfigError, match="max_session_log_bytes"):
        change.plan(max_log_bytes=100)
    store = RocksStore(data_dir)
    with pytest.raises(ConfigError, match="in use by another sluice"):
        resize(data_dir, 2)
    store.close()
    assert not (data_dir / "cells").exists()
    resize(data_dir, 2)
    cell_directory(data_dir, 1).rename(tmp_path / "away")
    before = files_of(data_dir)
    with pytest.raises(ConfigError, match="cells/1: expected the data of a cell, got no directory"):
        resize(data_dir, 1)
    assert files_of(data_dir) == before


def test_a_cell_with_records_and_rows_of_its_own_is_not_removed(
    filled: Path, tmp_path: Path
) -> None:
    data_dir = tmp_path / "data"
    shutil.copytree(filled, data_dir)
    resize(data_dir, 2)
    record = StreamRecord(1, "t", b"x", 0, False, "c")
    store = RocksStore(cell_directory(data_dir, 1))
    stream = catalogue_of(store, StreamSpec(name="all", topics=["#"])).get("all")
    store.commit(Batch({stream.shards[0]: [record]}, {b"queues/by-name/actions/http:a": b"99"}))
    store.commit(Batch({LogShard(99): [record]}))
    store.close()
    with Resize(data_dir, 1) as change, pytest.raises(ConfigError) as refused:
        change.plan()
    streams, rows = refused.value.problems
    assert streams.startswith("cell 1: expected a cell without records in streams, got 'all'. Try:")
    assert rows.startswith(
        "cell 1: expected a cell without rows in buffers of actions, got 'actions/http:a'."
    )
    resize(data_dir, 3)  # its own stay with it
    store = RocksStore(cell_directory(data_dir, 1))
    assert store.range_of(stream.shards[0]).next_offset == 1
    store.drop(99)
    store.drop(stream.log)
    store.close()
    resize(data_dir, 1)
    assert not (data_dir / "cells").exists()


def test_a_subscription_that_reads_a_stream_keeps_its_session_where_it_is() -> None:
    group = _Record(
        1, "a/#", "round_robin", "s", False, True, 0, 1, 1, 0, [_Position(20, 0, 5, [])]
    )
    value = msgspec.msgpack.encode(group)
    assert not is_idle(value, lambda _shard: 6)
    assert is_idle(value, lambda _shard: 5)
    assert filter_of(value) == "a/#"


def test_a_start_with_workers_shares_out_the_data_of_one_process(
    filled: Path, tmp_path: Path
) -> None:
    node = Node(tmp_path / "node" / "data", workers=2)
    shutil.copytree(filled, node.data_dir)
    node.start()
    try:
        assert kept_count(node.data_dir) == 2
        sessions = node.call("GET", "/sessions?limit=100")["items"]
        cells = {row["clientid"]: row["cell"] for row in sessions}
        # the others, which were away, have expired by the real clock
        connected = [name for number, name in enumerate(_CLIENTS) if number % 4]
        assert {name: cell_of(name, 2) for name in connected}.items() <= cells.items()
    finally:
        assert node.stop() == 0
