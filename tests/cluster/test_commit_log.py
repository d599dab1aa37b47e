"""The commit log of a cell in real NATS: acknowledged groups are there once and in order, whoever else writes, and a
store that has it loses nothing."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path

import pytest

from broker.cluster.copies import Copy
from broker.cluster.copying import CopyState, fetch, server_of_copies
from broker.cluster.nats.check import problems_of, problems_of_name, problems_of_sync
from broker.cluster.nats.line import Servers
from broker.cluster.nats.log import NatsLog, StreamSettings, _message, _Part
from broker.core.errors import ConfigError, Unavailable, Undecided
from broker.core.stream import StreamRecord
from broker.storage.commit_log import LogBehind, LogLost, Mark
from broker.storage.rocksdb.database import Database
from broker.storage.rocksdb.options import USUAL_MEMORY
from broker.storage.rocksdb.store import DATABASE_FOLDER, RocksStore
from broker.storage.store import Batch, LogShard
from tests.support.nats import Nats, nats
from tests.support.node import eventually
from tests.support.processes import free_port
from tests.support.small_disk import small_disk

SHARD = LogShard(16)
_CELLS = count()


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nats]:
    with nats(tmp_path_factory.mktemp("nats"), 1) as servers:
        yield servers


@pytest.fixture
def cell(servers: Nats) -> int:
    """A cell that has no log yet."""
    return next(_CELLS)


_MADE: list[NatsLog] = []


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    yield
    while _MADE:
        _MADE.pop().close()


def log_of(
    servers: Nats,
    cell: int,
    who: str = "a",
    give_up_s: float = 15.0,
    max_bytes: int = 64 * 1024 * 1024,
    on_over: Callable[[str], None] = lambda _reason: None,
) -> NatsLog:
    log = NatsLog(servers.places, "plant", cell, who, give_up_s, on_over)
    log.make(StreamSettings(1, max_bytes))
    _MADE.append(log)
    return log


def record(number: int, size: int = 100) -> StreamRecord:
    return StreamRecord(number + 1, "t", b"%d" % number + bytes(size), 1, False, "c")


def commit(store: RocksStore, number: int, size: int = 100) -> None:
    store.commit(Batch({SHARD: [record(number, size)]}, {b"last": b"%d" % number}))


def content(store: RocksStore) -> list[tuple[bytes, bytes]]:
    """All keys and values, without how far the log is applied."""
    return [(key, value) for key, value in store.copy() if not key.startswith(b"m")]


def offsets(store: RocksStore) -> list[int]:
    return [offset for offset, _ in store.read(SHARD, 0, 100_000)]


def test_a_store_made_of_its_log_is_the_one_that_wrote_it(
    servers: Nats, cell: int, tmp_path: Path
) -> None:
    store = RocksStore(tmp_path / "a", log=log_of(servers, cell))
    for number in range(50):
        commit(store, number)
    store.commit(Batch(puts={b"gone": b"x"}))
    store.commit(Batch(puts={b"gone": None}))
    store.commit(Batch(puts={b"set": b"1"}))
    commit(store, 50, 3 * 1024 * 1024)  # in several messages
    store.trim(SHARD, 20)
    store.commit(Batch({LogShard(17): [record(0)]}))
    store.drop(17)
    written = content(store)
    store.close()
    other = RocksStore(tmp_path / "b", log=log_of(servers, cell, "b"))
    assert content(other) == written
    assert offsets(other) == list(range(20, 51))
    other.close()


def test_a_cell_that_moves_back_and_forth_keeps_each_record_that_was_not_trimmed(
    servers: Nats, cell: int, tmp_path: Path
) -> None:
    """Frames that one owner merged are trimmed by another one."""
    for turn, (who, trimmed) in enumerate((("a", 5), ("b", 15), ("a", 30), ("b", 45))):
        store = RocksStore(tmp_path / who, log=log_of(servers, cell, f"{who}{turn}"))
        first = turn * 20
        for number in range(first, first + 20):
            commit(store, number)
        store.merge(SHARD, first, first + 10)
        store.trim(SHARD, trimmed)
        edge = store.range_of(SHARD).first_offset
        assert edge <= trimmed
        assert offsets(store) == list(range(edge, first + 20))
        assert store.offset_at(SHARD, trimmed + 1) == trimmed
        assert store.size_of(SHARD) == sum(one.size_bytes for one in store.directory(SHARD))
        written = content(store)
        store.close()
        copy = RocksStore(tmp_path / "copy", log=log_of(servers, cell, f"copy{turn}"))
        assert content(copy) == written
        copy.close()


def test_a_trim_that_was_confirmed_too_late_is_known(
    servers: Nats, cell: int, tmp_path: Path
) -> None:
    store = RocksStore(tmp_path, log=log_of(servers, cell, give_up_s=1.0))
    for number in range(10):
        commit(store, number)
    [server] = servers.servers
    server.freeze()
    try:
        with pytest.raises(Unavailable):
            store.trim(SHARD, 5)
    finally:
        server.thaw()
    eventually(lambda: _commits(store, 10))
    assert offsets(store) == list(range(5, 11))
    assert store.range_of(SHARD).first_offset == 5
    store.close()


def test_a_store_that_lacks_entries_is_let_go(servers: Nats, cell: int, tmp_path: Path) -> None:
    """It can be replaced and opened again at once."""
    store = RocksStore(tmp_path / "a", log=log_of(servers, cell))
    commit(store, 0)
    store.close()
    other = RocksStore(tmp_path / "b", log=log_of(servers, cell, "b"))
    commit(other, 1)
    other.trim_log(other.trim_log(0).position)
    try:
        RocksStore(tmp_path / "a", log=log_of(servers, cell, "c"))
    except LogLost:
        _copy(other, tmp_path / "a")
        other.close()
        replaced = RocksStore(tmp_path / "a", log=log_of(servers, cell, "d"))
    assert offsets(replaced) == [0, 1]
    replaced.close()


def test_who_claims_a_cell_is_its_only_owner(servers: Nats, cell: int, tmp_path: Path) -> None:
    told: list[str] = []
    log = log_of(servers, cell, on_over=told.append)
    store = RocksStore(tmp_path / "a", log=log)
    commit(store, 0)
    other = RocksStore(tmp_path / "b", log=log_of(servers, cell, "b"))
    commit(other, 1)
    with pytest.raises(Undecided, match="another process has claimed"):
        commit(store, 2)
    assert told == [f"another process has claimed cell {cell}"]
    commit(other, 3)
    assert offsets(other) == [0, 1, 2]
    assert other.get(b"last") == b"3"
    other.close()


def test_an_owner_whose_disk_is_full_gives_up_what_others_have(
    servers: Nats, cell: int, tmp_path: Path
) -> None:
    """Its clients would be told that it failed, and send it again to the owner after it."""
    told: list[str] = []
    with small_disk(tmp_path / "small", 32) as disk:
        store = RocksStore(disk.path / "a", log=log_of(servers, cell, on_over=told.append))
        commit(store, 0)
        disk.fill()
        number = 1
        with suppress(Unavailable):
            for number in range(1, 100):
                commit(store, number, 512 * 1024)
        assert len(told) == 1
        disk.free()
        store.close()
    other = RocksStore(tmp_path / "b", log=log_of(servers, cell, "b"))
    assert offsets(other) == list(range(number + 1))
    assert other.get(b"last") == b"%d" % number
    other.close()


def test_a_claim_behind_the_end_of_the_log_is_refused(servers: Nats, cell: int) -> None:
    log = log_of(servers, cell)
    claimed = log.claim(Mark())
    assert claimed == Mark(1, 1, 0)
    log.append([(b"k", b"1", False)])
    other = log_of(servers, cell, "b")
    assert other.claim(Mark()) is None
    assert other.claim(claimed) is None
    assert other.claim(Mark(2, 1, 1)) == Mark(3, 2, 0)


def _add(log: NatsLog, message: bytes) -> None:
    """Add any message behind the first group."""
    log._waiting = [_Part(message, "any", 2)]
    log._sent()


def test_a_group_that_its_owner_did_not_finish_is_none(
    servers: Nats, cell: int, tmp_path: Path
) -> None:
    log = log_of(servers, cell)
    log.claim(Mark())
    log.append([(b"kept", b"1", False)])
    _add(log, _message(1, 1, 2, b"half", flag=True))  # killed before the second part
    store = RocksStore(tmp_path, log=log_of(servers, cell, "b"))
    assert [key for key, _ in store.copy() if not key.startswith(b"m")] == [b"kept"]
    commit(store, 0)
    marks = [mark for mark, _ in log_of(servers, cell, "c").follow(Mark())]
    assert marks == [Mark(1, 1, 0), Mark(2, 1, 1), Mark(4, 2, 0), Mark(5, 2, 1)]
    store.close()


def test_a_log_that_a_newer_release_writes_is_awaited(
    servers: Nats, cell: int, tmp_path: Path
) -> None:
    """A copy keeps what it has, and is no owner, until its machine is upgraded."""
    log = log_of(servers, cell)
    log.claim(Mark())
    log.append([(b"known", b"1", False)])
    _add(log, _message(3, 1, 2, b"what a newer one means", flag=False))
    copy = Copy(cell, tmp_path, log_of(servers, cell, "b"), _brings_none)
    copy.start()
    eventually(
        lambda: (
            copy.state()[0].problem
            == f"cell {cell}: message 3 of the log in NATS was written by a newer "
            "release; upgrade this machine"
        )
    )
    copy.stop()
    copied = Database(tmp_path / DATABASE_FOLDER, USUAL_MEMORY)
    assert (copied.get(b"known"), copied.applied) == (b"1", Mark(2, 1, 1))
    copied.close()
    with pytest.raises(Unavailable, match="upgrade this machine"):
        RocksStore(tmp_path, log=log_of(servers, cell, "c"))


def _brings_none(_cell: int, _directory: Path, _least: int) -> None:
    raise AssertionError("the copy is to be kept")


def test_what_was_confirmed_too_late_is_taken_back(
    servers: Nats, cell: int, tmp_path: Path
) -> None:
    """Its publisher got an error, so that a reader must not see it."""
    log = log_of(servers, cell, give_up_s=1.0)
    store = RocksStore(tmp_path / "a", log=log)
    commit(store, 0)
    [server] = servers.servers
    server.freeze()
    try:
        with pytest.raises(Unavailable, match="confirmed nothing"):
            commit(store, 1)
        with pytest.raises(Unavailable):
            commit(store, 2)
    finally:
        server.thaw()
    eventually(lambda: _commits(store, 3))
    assert [one.payload.rstrip(b"\0") for _, one in store.read(SHARD, 0, 10)] == [b"0", b"3"]
    assert offsets(store) == [0, 1]
    written = content(store)
    store.close()
    other = RocksStore(tmp_path / "b", log=log_of(servers, cell, "b"))
    assert content(other) == written
    other.close()


def _commits(store: RocksStore, number: int) -> bool:
    try:
        commit(store, number)
    except Unavailable:
        return False
    return True


def test_a_copy_of_a_store_continues_with_the_log(servers: Nats, cell: int, tmp_path: Path) -> None:
    before = RocksStore(tmp_path / "a")  # a broker on one machine, without a log
    commit(before, 0)
    before.close()
    store = RocksStore(tmp_path / "a", log=log_of(servers, cell))
    commit(store, 1)
    with pytest.raises(LogLost, match="began after its store"):
        RocksStore(tmp_path / "b", log=log_of(servers, cell, "b"))
    _copy(store, tmp_path / "b")
    commit(store, 2)
    store.trim_log(store.trim_log(0).position)
    copy = Database(tmp_path / "b" / DATABASE_FOLDER, USUAL_MEMORY)
    for mark, steps in log_of(servers, cell, "reader").follow(copy.applied):
        copy.apply(mark, steps)
    assert dict(copy.entries()) == dict(store.copy())
    copy.close()
    with pytest.raises(LogLost):  # an empty one can no longer be made of the log
        RocksStore(tmp_path / "c", log=log_of(servers, cell, "c"))
    store.close()


def _copy(store: RocksStore, directory: Path) -> None:
    import asyncio

    async def serve(run: Path) -> None:
        server = server_of_copies(run, "copy.sock", lambda _: (CopyState(), store))
        await server.start()
        await asyncio.to_thread(fetch, run, "copy.sock", 0, directory)
        await server.stop()

    run = directory.parent / "run"
    run.mkdir(exist_ok=True)
    asyncio.run(serve(run))


def test_a_log_that_ends_before_its_store_is_refused(
    servers: Nats, cell: int, tmp_path: Path
) -> None:
    store = RocksStore(tmp_path / "a", log=log_of(servers, cell))
    commit(store, 0)
    store.close()
    log = log_of(servers, cell, "b", give_up_s=1.0)
    log._api(f"STREAM.DELETE.{log._stream}", {}, 2.0)
    log.make(StreamSettings(1, 64 * 1024 * 1024))
    with pytest.raises(LogBehind, match="NATS has lost what it had confirmed"):
        RocksStore(tmp_path / "a", log=log)


def test_a_full_log_refuses_and_continues_when_it_was_trimmed(
    servers: Nats, cell: int, tmp_path: Path
) -> None:
    log = log_of(servers, cell, max_bytes=1024 * 1024)
    store = RocksStore(tmp_path / "a", log=log)
    for number in range(9):
        commit(store, number, 100_000)
    with pytest.raises(Unavailable, match="is full"):
        _commit_all(store, range(9, 20))
    last = offsets(store)[-1]
    log_of(servers, cell, "looks", max_bytes=1024 * 1024).trim(5)
    commit(store, 30)
    assert offsets(store) == list(range(last + 2))
    store.close()


def _commit_all(store: RocksStore, numbers: range) -> None:
    for number in numbers:
        commit(store, number, 100_000)


def test_servers_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    assert problems_of(Servers([("127.0.0.1", 1)]), 1) == [
        "cluster.nats.servers: none answers: 127.0.0.1:1: NATS: connection refused"
    ]
    with nats(tmp_path, 1) as servers:
        assert problems_of(servers.places, 1) == []
        log = log_of(servers, 0)
        with pytest.raises((ConfigError, Unavailable), match="replicas"):
            log.make(StreamSettings(3, 1024 * 1024))
    with nats(tmp_path / "small", 1, settings="max_payload: 4096") as servers:
        [(host, port)] = servers.places.addresses
        assert problems_of(servers.places, 1) == [
            f"cluster.nats.servers: expected max_payload of 65536 bytes or more at {host}:{port}, got 4096"
        ]


def test_a_log_of_another_cluster_of_this_name_is_refused(servers: Nats, cell: int) -> None:
    cluster = f"plant-{cell}"
    log = NatsLog(servers.places, cluster, 0, "a")
    _MADE.append(log)
    assert problems_of_name(servers.places, cluster, "ours") == []
    for _ in range(2):
        log.make(StreamSettings(1, 1024 * 1024, "ours"))
    assert problems_of_name(servers.places, cluster, "ours") == []
    [problem] = problems_of_name(servers.places, cluster, "theirs")
    assert problem == (
        f"cluster.name: the stream sluice_{cluster}_0 in NATS belongs to another cluster of this name, with other "
        "machines or cells. Try: another name, or an account of its own in NATS"
    )
    with pytest.raises(ConfigError, match="belongs to another cluster of this name"):
        log.make(StreamSettings(1, 1024 * 1024, "theirs"))


@pytest.mark.parametrize("sync", ["always", "10s"])
def test_a_server_that_confirms_before_it_has_written_is_refused(tmp_path: Path, sync: str) -> None:
    port = free_port()
    with nats(tmp_path, 1, settings=f'http: "127.0.0.1:{port}"', sync=sync):
        problems = problems_of_sync([f"127.0.0.1:{port}"])
    if sync == "always":
        assert problems == []
    else:
        [problem] = problems
        place = f"cluster.nats.monitors: the server of NATS at 127.0.0.1:{port} confirms before it"
        assert problem.startswith(place)
        assert "add 'sync_interval: always'" in problem
    assert problems_of_sync([f"127.0.0.1:{port}"]) == []  # it does not run


def test_two_that_claim_at_once_are_ordered(servers: Nats, cell: int, tmp_path: Path) -> None:
    log_of(servers, cell).close()
    stores: dict[str, RocksStore] = {}

    def claim(who: str) -> None:
        stores[who] = RocksStore(tmp_path / who, log=log_of(servers, cell, who))

    threads = [threading.Thread(target=claim, args=(who,)) for who in ("a", "b", "c", "d")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    could = []
    for who, store in stores.items():
        try:
            commit(store, 0)
        except Undecided:
            continue
        could.append(who)
    assert len(could) == 1
