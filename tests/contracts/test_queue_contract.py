"""The contract of durable queues, on both stores: once, in order, bounded, together with what was made of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import pytest
from pyarrow import RecordBatch

from broker.core.clock import SystemClock
from broker.core.errors import Unavailable
from broker.core.queue import QueueFull
from broker.core.stream import StreamRecord
from broker.observe.metrics import Metrics
from broker.storage.memory import MemoryStore
from broker.storage.rocksdb.store import RocksStore
from broker.storage.store import Batch, Committed, LogShard, Store
from broker.storage.writer import Writer
from broker.streams.catalogue import LogKeys
from broker.streams.queues import StoredQueue, StoredQueues
from tests.support.held_log import HeldLog

ROWS = LogShard(9)


class Keeper:
    """A store that can be opened again, as after a crash: what was not committed is gone."""

    def __init__(self, make: Callable[[], Store]) -> None:
        self._make = make
        self.store: Store | None = None
        self.metrics = Metrics()

    def queues(self) -> tuple[StoredQueues, Writer]:
        if self.store is None:
            self.store = self._make()
        writer = Writer(self.store, asyncio.get_running_loop())
        return StoredQueues(LogKeys(writer), SystemClock(), self.metrics), writer

    async def reopened(self, writer: Writer) -> tuple[StoredQueues, Writer]:
        await writer.close()
        return self.queues()


@pytest.fixture(params=["memory", "rocksdb"])
def keeper(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Keeper]:
    made = Keeper(MemoryStore if request.param == "memory" else lambda: RocksStore(tmp_path, "os"))
    yield made
    if made.store is not None:
        made.store.close()


def opened(queues: StoredQueues, records: int = 1000, size: int = 1 << 20) -> StoredQueue:
    return queues.open("rules/a", max_records=records, max_bytes=size)


def numbers(read: object) -> list[int]:
    return [int(payload) for _, payload in read]  # type: ignore[attr-defined]


def test_records_are_read_once_and_in_order(keeper: Keeper) -> None:
    async def check() -> None:
        queues, writer = keeper.queues()
        queue = opened(queues)
        for number in range(10):
            queue.append(b"%d" % number)
        seen = numbers(await queue.read(4, 1 << 20))
        while len(seen) < 10:
            seen += numbers(await queue.read(4, 1 << 20))
        assert seen == list(range(10))
        assert queue.records == 10
        queue.advance(10)
        await queue.committed()
        assert queue.records == 0
        await writer.close()

    asyncio.run(check())


def test_a_reader_waits_for_a_record(keeper: Keeper) -> None:
    async def check() -> None:
        queues, writer = keeper.queues()
        queue = opened(queues)
        reading = asyncio.ensure_future(queue.read(10, 1 << 20))
        await asyncio.sleep(0)
        assert not reading.done()
        queue.append(b"1")
        assert numbers(await reading) == [1]
        await writer.close()

    asyncio.run(check())


def test_what_is_not_advanced_comes_again_after_a_restart(keeper: Keeper) -> None:
    async def check() -> None:
        queues, writer = keeper.queues()
        queue = opened(queues)
        for number in range(5):
            queue.append(b"%d" % number)
        await queue.committed()
        await queue.read(5, 1 << 20)
        writer.append(ROWS, StreamRecord(1, "", b"row", 0, False, ""))
        queue.advance(2)
        queues, writer = await keeper.reopened(writer)
        assert queues.names("rules/") == ["rules/a"]
        again = opened(queues)
        assert again.records == 3
        assert numbers(await again.read(10, 1 << 20)) == [2, 3, 4]
        assert len(writer.store.read(ROWS, 0, 10)) == 1
        await writer.close()

    asyncio.run(check())


def test_a_full_queue_refuses_and_counts(keeper: Keeper) -> None:
    async def check() -> None:
        queues, writer = keeper.queues()
        queue = opened(queues, records=2)
        queue.append(b"1")
        queue.append(b"2")
        with pytest.raises(QueueFull, match="'rules/a' is full with 2 records"):
            queue.append(b"3")
        assert keeper.metrics.value("queue_dropped", queue="rules/a", reason="queue_full") == 1
        await queue.read(2, 100)
        queue.advance(1)
        queue.append(b"3")
        await writer.close()

    asyncio.run(check())


def test_bytes_are_bounded_but_one_record_always_fits(keeper: Keeper) -> None:
    async def check() -> None:
        queues, writer = keeper.queues()
        queue = opened(queues, size=100)
        queue.append(b"x" * 500)
        with pytest.raises(QueueFull):
            queue.append(b"y")
        await writer.close()

    asyncio.run(check())


def test_a_removed_queue_is_empty_when_it_is_made_again(keeper: Keeper) -> None:
    async def check() -> None:
        queues, writer = keeper.queues()
        queue = opened(queues)
        queue.append(b"1")
        await queue.committed()
        assert queues.remove("rules/a") == 1
        assert queues.names("rules/") == []
        with pytest.raises(Unavailable, match="was removed"):
            queue.append(b"2")
        again = opened(queues)
        assert again.records == 0
        again.append(b"3")
        assert numbers(await again.read(10, 100)) == [3]
        await writer.close()

    asyncio.run(check())


def test_a_failed_commit_loses_the_group_and_the_reader_goes_back() -> None:
    class Failing(MemoryStore):
        fails = False

        def commit(self, batch):  # type: ignore[no-untyped-def]
            if self.fails:
                raise Unavailable("disk full")
            return super().commit(batch)

    async def check() -> None:
        store = Failing()
        writer = Writer(store, asyncio.get_running_loop())
        queue = opened(StoredQueues(LogKeys(writer), SystemClock(), Metrics()))
        queue.append(b"1")
        await queue.committed()
        [(offset, _)] = await queue.read(10, 100)
        store.fails = True
        queue.append(b"lost")
        queue.advance(offset + 1)
        with pytest.raises(Unavailable):
            await queue.committed()
        store.fails = False
        queue.rewind()
        assert queue.records == 1
        assert numbers(await queue.read(10, 100)) == [1]
        queue.append(b"2")
        assert numbers(await queue.read(10, 100)) == [2]
        queue.append(b"3", -3)
        assert [value for _, value in await queue.read(10, 100)] == [-3]
        store.fails = True
        queue.append(b"lost", "lost")
        with pytest.raises(Unavailable):
            await queue.committed()
        store.fails = False
        queue.append(b"4", -4)
        assert [value for _, value in await queue.read(10, 100)] == [-4], (
            "what was not committed is not given"
        )
        await writer.close()

    asyncio.run(check())


def test_the_oldest_can_be_given_up_and_are_not_read(keeper: Keeper) -> None:
    async def check() -> None:
        queues, writer = keeper.queues()
        queue = opened(queues)
        for number in range(10):
            queue.append(b"%d" % number)
        assert queue.drop_oldest(3) == 0, "what waits for its commit stays"
        await queue.committed()
        assert queue.drop_oldest(3) == 3
        assert (queue.records, numbers(await queue.read(100, 1 << 20))) == (7, list(range(3, 10)))
        await queue.committed()
        queues, writer = await keeper.reopened(writer)
        queue = opened(queues)
        assert numbers(await queue.read(100, 1 << 20)) == list(range(3, 10))
        assert queue.drop_oldest(100) == 7
        await writer.close()

    asyncio.run(check())


def test_looking_takes_nothing(keeper: Keeper) -> None:
    async def check() -> None:
        queues, writer = keeper.queues()
        queue = opened(queues)
        assert list(await queue.peek(5)) == []
        for number in range(10):
            queue.append(b"%d" % number)
        await queue.committed()
        assert numbers(await queue.peek(3)) == numbers(await queue.peek(3)) == [0, 1, 2]
        assert numbers(await queue.read(4, 1 << 20))[0] == 0
        assert numbers(await queue.peek(1)) == [0], "until it is done"
        queue.advance(2)
        assert numbers(await queue.peek(1)) == [2]
        await writer.close()

    asyncio.run(check())


def test_pieces_of_a_commit_group_are_read_with_their_offsets_also_where_records_are_empty(
    keeper: Keeper,
) -> None:
    async def check() -> None:
        queues, writer = keeper.queues()
        queue = opened(queues)
        sent = [b"", b"one", b"", b"three", b"\xff" * 300, b""]
        for payload in sent:
            queue.append(payload)
        assert list(await queue.read(2, 1 << 20)) == [(0, b""), (1, b"one")]
        assert list(await queue.read(100, 1 << 20)) == list(enumerate(sent))[2:]
        queue.append(b"")
        assert list(await queue.read(100, 1 << 20)) == [(6, b"")]
        assert list(await queue.peek(2, 3)) == [(3, b"three"), (4, b"\xff" * 300)]
        await writer.close()

    asyncio.run(check())


def test_a_reader_who_keeps_up_is_given_values_and_one_who_fell_behind_payloads(
    keeper: Keeper,
) -> None:
    async def check() -> None:
        queues, writer = keeper.queues()
        queue = opened(queues, records=100_000, size=1 << 30)
        for number in range(10):
            queue.append(b"%d" % number, -number)
        assert list(await queue.read(4, 1 << 20)) == [(number, -number) for number in range(4)]
        assert list(await queue.read(100, 1 << 20)) == [
            (number, -number) for number in range(4, 10)
        ]
        for number in range(10, 40_000):
            queue.append(b"%d" % number, -number)
        seen: list[object] = []
        while len(seen) < 39_990:
            read = await queue.read(3000, 1 << 20)
            assert [offset for offset, _ in read] == list(
                range(10 + len(seen), 10 + len(seen) + len(read))
            )
            seen += [value for _, value in read]
        numbers = [int(value) if isinstance(value, bytes) else -value for value in seen]  # type: ignore[operator]
        assert numbers == list(range(10, 40_000))
        assert seen[0] == b"10", "there are bounds to what is kept in memory"
        assert seen[-1] == -39_999
        await writer.close()

    asyncio.run(check())


@pytest.mark.parametrize("seed", range(10))
def test_pieces_of_any_size_are_in_order_wherever_the_reader_goes_back_to(
    keeper: Keeper, seed: int
) -> None:
    chance = Random(seed)

    async def check() -> None:
        queues, writer = keeper.queues()
        queue = opened(queues, records=100_000, size=1 << 30)
        for number in range(3000):
            queue.append(b"%d" % number * chance.choice((1, 1, 400)))
            if chance.random() < 0.003:
                await queue.committed()
        await queue.committed()
        done = next_offset = 0
        while next_offset < 3000:
            most_bytes = chance.choice((100, 5000, 1 << 20))
            read = list(await queue.read(chance.randint(1, 500), most_bytes))
            assert [offset for offset, _ in read] == list(
                range(next_offset, next_offset + len(read))
            )
            assert all(payload.startswith(b"%d" % offset) for offset, payload in read)
            assert len(read) == 1 or sum(len(payload) for _, payload in read) <= most_bytes
            next_offset += len(read)
            match chance.randint(0, 9):
                case 0:
                    done = next_offset
                    queue.advance(done)
                    await queue.committed()
                case 1:
                    queue.rewind()
                    next_offset = done
                case 2:
                    await queue.committed()
                    done += queue.drop_oldest(chance.randint(0, 20))
                    await queue.committed()
                    next_offset = max(next_offset, done)
        await writer.close()

    asyncio.run(check())


def test_a_queue_is_made_and_removed_while_a_commit_waits(tmp_path: Path) -> None:
    async def check() -> None:
        log = HeldLog()
        keeper = Keeper(lambda: RocksStore(tmp_path, log=log))
        queues, writer = keeper.queues()
        first = opened(queues)
        first.append(b"1")
        await first.committed()
        async with log.held():
            writer.touch()
            await log.asked()
            assert queues.remove("rules/a") == 1
            second = opened(queues)
            second.append(b"2")
            assert (second.log, second.records) == (first.log + 1, 1)
            assert list(queues.names("")) == ["rules/a"]
        await second.committed()
        queues, writer = await keeper.reopened(writer)
        assert numbers(await opened(queues).read(9, 1 << 20)) == [2]
        await writer.close()
        assert keeper.store is not None
        keeper.store.close()

    asyncio.run(check())


def test_a_queue_is_there_after_its_first_group_failed(
    keeper: Keeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def check() -> None:
        queues, writer = keeper.queues()
        commit, failures = writer.store.commit, iter([True])

        def failing(batch: Batch) -> Committed:
            if next(failures, False):
                raise Unavailable("disk full")
            return commit(batch)

        monkeypatch.setattr(writer.store, "commit", failing)
        queue = opened(queues)
        queue.append(b"1")
        with pytest.raises(Unavailable):
            await queue.committed()
        queue.append(b"2")
        await queue.committed()
        queues, writer = await keeper.reopened(writer)
        assert opened(queues).log == queue.log
        assert numbers(await opened(queues).read(9, 1 << 20)) == [2]
        await writer.close()

    asyncio.run(check())


def test_a_frame_is_read_from_the_store_once_however_small_the_pieces(
    keeper: Keeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def check() -> None:
        queues, writer = keeper.queues()
        queue = opened(queues)
        for number in range(1000):
            queue.append(b"%d" % number)
        await queue.committed()
        reads, read_arrow = [], writer.store.read_arrow

        def noted(shard: LogShard, start: int, end: int) -> Iterator[RecordBatch]:
            reads.append(start)
            return read_arrow(shard, start, end)

        monkeypatch.setattr(writer.store, "read_arrow", noted)
        seen: list[int] = []
        while len(seen) < 1000:
            seen += numbers(await queue.read(7, 1 << 20))
        assert seen == list(range(1000))
        assert len(reads) == 1
        await writer.close()

    asyncio.run(check())


def test_after_going_back_and_after_a_restart_payloads_are_read(keeper: Keeper) -> None:
    async def check() -> None:
        queues, writer = keeper.queues()
        queue = opened(queues)
        for number in range(5):
            queue.append(b"%d" % number, -number)
        await queue.committed()
        assert [value for _, value in await queue.read(3, 1 << 20)] == [0, -1, -2]
        queue.rewind()
        assert numbers(await queue.read(3, 1 << 20)) == [0, 1, 2], "they were given once"
        assert [value for _, value in await queue.read(3, 1 << 20)] == [-3, -4]
        queues, writer = await keeper.reopened(writer)
        queue = opened(queues)
        queue.append(b"5", -5)
        await queue.committed()
        assert numbers(await queue.read(5, 1 << 20)) == [0, 1, 2, 3, 4]
        assert list(await queue.read(5, 1 << 20)) == [(5, -5)]
        await writer.close()

    asyncio.run(check())
