"""Another number of cells: sessions move with all that waits for them, wherever the change is cut off."""

from __future__ import annotations

import itertools
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
from broker.core.topic import TopicFilter
from broker.core.topic_keys import topic_of
from broker.routing.retained_store import EXPIRY_PREFIX
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
        on_loop(partial(grant, data_dir, MovedClock()))()
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


async def grant(data_dir: Path, clock: MovedClock) -> None:
    """A message of the first cell's part of a share group that a client of the last cell has in flight."""
    async with running(data_dir, clock) as broker:
        cells = len(broker.cells)
        client = await subscribed(broker, named((cells, cells - 1), prefix="far"))
        await offer(broker, 0, b"granted")
        assert (await client.expect(Publish)).payload == b"granted"
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


GROUP = "$share/group/jobs"


def stored_cells(data_dir: Path, count: int) -> Path:
    """A data directory of so many cells, without data."""
    data_dir.mkdir()
    make_directories(data_dir, count)
    for number in range(count):
        RocksStore(cell_directory(data_dir, number)).close()
    return data_dir


def named(*cells: tuple[int, int], prefix: str = "m") -> str:
    """A client, or a topic, that has each of these cells, by the number of cells."""
    names = (f"{prefix}/{number}" for number in itertools.count())
    return next(
        name for name in names if all(cell_of(name, among) == cell for among, cell in cells)
    )


async def subscribed(broker: Broker, name: str, qos: int = 2, **connect: Any) -> WireClient:
    """A member of the share group."""
    client = await broker.client(name, **connect)
    assert await client.subscribe(SubscriptionRequest(GROUP, qos)) == [qos]
    return client


async def away(broker: Broker, client: WireClient, name: str) -> None:
    """Disconnect a client, and wait until every cell knows."""
    await client.close()
    await until(
        lambda: all(
            not group.members[name].is_here
            for cell in broker.cells
            if (group := cell.node.server.hub.share_groups.groups.get(GROUP)) is not None
        )
    )


async def offer(broker: Broker, cell: int, *payloads: bytes, qos: int = 2) -> None:
    """Publish for the share group in a cell."""
    publisher = await broker.cells[cell].node.client(
        named((len(broker.cells), cell), prefix="publisher"), 5
    )
    for packet_id, payload in enumerate(payloads, 1):
        assert await publish(publisher, "jobs", payload, qos, packet_id) == 0
    await publisher.close()


async def nothing_is_left(broker: Broker) -> None:
    """Wait until no part of the group has anything that is not settled."""
    groups = [cell.node.server.hub.share_groups.groups[GROUP] for cell in broker.cells]
    await until(lambda: not any(group.waiting + group.in_flight for group in groups))
    assert not any(cursor.pending for group in groups for cursor in group.cursors)


@pytest.mark.parametrize(
    ("before", "after", "cells"),
    [
        (1, 2, (0, 1)),  # all members leave the cell that has the backlog
        (3, 2, (2, 1)),  # the member's cell is removed
        (3, 1, (2, 0)),
        (2, 3, (0, 1)),  # to a cell that knew the member in another one
        (2, 3, (1, 1)),
    ],
)
@on_loop
async def test_members_of_a_share_group_are_known_in_every_cell_wherever_they_are_from_now_on(
    tmp_path: Path, before: int, after: int, cells: tuple[int, int]
) -> None:
    data_dir = stored_cells(tmp_path / "data", before)
    clock = MovedClock()
    name = named((before, cells[0]), (after, cells[1]))
    waiting = []
    async with running(data_dir, clock) as broker:
        await away(broker, await subscribed(broker, name), name)
        for part in range(min(before, after)):
            waiting += [b"%d of %d" % (number, part) for number in range(3)]
            await offer(broker, part, *waiting[-3:])
        await broker.quiet()
    resize(data_dir, after)
    async with running(data_dir, clock) as broker:
        for cell in broker.cells:
            group = cell.node.server.hub.share_groups.groups[GROUP]
            home = broker.of(name).place.number
            assert list(group.members) == [name]
            assert group.members[name].cell == (None if cell.place.number == home else home)
        for number in range(after):
            waiting.append(b"new in %d" % number)
            await offer(broker, number, waiting[-1])
        client = await broker.client(name)
        packets = await take(client, len(waiting))
        assert sorted(packet.payload for packet in packets) == sorted(waiting)
        await client.silence()
        await nothing_is_left(broker)


@pytest.mark.parametrize("is_released", [False, True])
@pytest.mark.parametrize(
    ("before", "after", "cells", "part"),
    [
        (1, 2, (0, 1), 0),
        (2, 3, (0, 1), 0),
        (2, 3, (0, 1), 1),  # the session comes to the cell that granted it the message
        (2, 3, (1, 1), 0),
        (2, 3, (1, 2), 0),  # it goes from one cell to another, and a third one granted it
        (3, 2, (2, 1), 0),
        (3, 2, (2, 1), 1),
        (2, 1, (1, 0), 0),
    ],
)
@on_loop
async def test_a_message_of_a_share_group_that_is_in_flight_comes_once(
    tmp_path: Path,
    before: int,
    after: int,
    cells: tuple[int, int],
    part: int,
    is_released: bool,
) -> None:
    data_dir = stored_cells(tmp_path / "data", before)
    clock = MovedClock()
    name = named((before, cells[0]), (after, cells[1]))
    other = named((before, 0), (after, 0), prefix="other")
    async with running(data_dir, clock) as broker:
        client = await subscribed(broker, name)
        await offer(broker, part, b"in flight")
        packet_id = (await client.expect(Publish)).packet_id
        if is_released:
            client.send(PubRec(packet_id))
            await client.expect(PubRel)
        await broker.quiet()
        await client.silence()
    resize(data_dir, after)
    async with running(data_dir, clock) as broker:
        another = await subscribed(broker, other)
        client = await broker.client(name)
        assert client.connack.session_present
        if not is_released:
            again = await client.expect(Publish)
            assert (again.payload, again.packet_id, again.dup) == (b"in flight", packet_id, True)
            client.send(PubRec(packet_id))
        assert (await client.expect(PubRel)).packet_id == packet_id
        client.send(PubComp(packet_id))
        for silent in (client, another):
            await silent.silence()
        await nothing_is_left(broker)
        await broker.quiet()


@pytest.mark.parametrize(
    ("before", "after", "cells", "part"),
    [(2, 3, (0, 1), 1), (2, 3, (1, 1), 0), (2, 3, (1, 2), 0), (2, 1, (1, 0), 0)],
)
@on_loop
async def test_a_message_that_was_settled_while_its_part_was_away_does_not_come_again(
    tmp_path: Path, before: int, after: int, cells: tuple[int, int], part: int
) -> None:
    data_dir = stored_cells(tmp_path / "data", before)
    clock = MovedClock()
    name = named((before, cells[0]), (after, cells[1]))
    async with running(data_dir, clock) as broker:
        client = await subscribed(broker, name)
        await offer(broker, part, b"done")
        packet_id = (await client.expect(Publish)).packet_id
        await broker.quiet()
        await broker.cells[part].stop()
        client.send(PubRec(packet_id))
        await client.expect(PubRel)
        client.send(PubComp(packet_id))
        await client.silence()
        await broker.of(name).node.written()
    resize(data_dir, after)
    async with running(data_dir, clock) as broker:
        client = await broker.client(name)
        await client.silence()
        await nothing_is_left(broker)


@on_loop
async def test_a_new_cell_keeps_messages_for_a_share_group_that_outlives_its_members(
    tmp_path: Path,
) -> None:
    data_dir = stored_cells(tmp_path / "data", 1)
    clock = MovedClock()
    async with running(data_dir, clock) as broker:
        groups = broker.cells[0].node.server.hub.share_groups
        groups.make(TopicFilter.parse(GROUP), None, "sticky")
        await broker.quiet()
    resize(data_dir, 2)
    async with running(data_dir, clock) as broker:
        for cell in broker.cells:
            group = cell.node.server.hub.share_groups.groups[GROUP]
            assert (group.is_kept, group.strategy_name) == (True, "sticky")
        await offer(broker, 1, b"first")
        client = await subscribed(broker, named((2, 0)))
        assert [packet.payload for packet in await take(client, 1)] == [b"first"]


@on_loop
async def test_retained_messages_on_their_way_to_another_cell_arrive(tmp_path: Path) -> None:
    data_dir = stored_cells(tmp_path / "data", 2)
    clock = MovedClock()
    name = named((2, 0), (3, 0))
    topics = [named((2, 1), (3, at % 2 + 1), prefix=f"topic/{at}") for at in range(4)]
    replaced, deleted, new, newer = topics
    expires = {"Message-Expiry-Interval": 600}

    async def retain(client: WireClient, topic: str, payload: bytes, packet_id: int) -> None:
        client.send(Publish(topic, payload, 1, True, packet_id=packet_id, properties=expires))
        assert (await client.expect(PubAck)).reason_code == 0

    async with running(data_dir, clock) as broker:
        one, two = broker.cells
        client = await broker.client(name)
        for number, topic in enumerate((replaced, deleted), 1):
            await retain(client, topic, b"old", number)
        await broker.quiet()
        await two.stop()
        clock.move(1)
        client.send(Publish(replaced, b"new", 1, True, packet_id=3))
        client.send(Publish(deleted, b"", 1, True, packet_id=4))
        client.send(Publish(new, b"new", 0, True, properties=expires))
        client.send(Publish(newer, b"old", 1, True, packet_id=5))
        await client.silence()  # the cell of the topics is away
        await one.node.written()
        await one.stop()
        clock.move(1)
        await two.start()
        await retain(await broker.client(named((2, 1))), newer, b"newer", 1)
        await two.node.written()
    resize(data_dir, 3)
    async with running(data_dir, clock) as broker:
        client = await broker.client(name)
        client.send(Publish(replaced, b"new", 1, True, dup=True, packet_id=3))
        assert (await client.expect(PubAck)).reason_code == 0
        values = {}
        for topic in topics:
            message = broker.of(topic).node.server.hub.retained.get(topic)
            values[topic] = None if message is None else message.payload
        assert values == {replaced: b"new", deleted: None, new: b"new", newer: b"newer"}
        assert sum(cell.node.server.hub.retained.count for cell in broker.cells) == 3
        expiring = [key for cell in broker.cells for key, _ in cell.store.scan(EXPIRY_PREFIX)]
        assert sorted(topic_of(key[len(EXPIRY_PREFIX) + 8 :]) for key in expiring) == [new, newer]
