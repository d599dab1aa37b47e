"""Group commit: order, batching, failures, bounds."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from broker.core.errors import Unavailable
from broker.core.stream import StreamRecord
from broker.observe.metrics import Metrics
from broker.storage import writer as writer_module
from broker.storage.memory import MemoryStore
from broker.storage.settings import StoreSettings
from broker.storage.store import Batch, Committed, LogShard
from broker.storage.writer import Writer
from tests.support.waiting import within

LOG = LogShard(16)


class GatedStore(MemoryStore):
    """A store whose commits wait for the test, and fail when it says so."""

    def __init__(self) -> None:
        super().__init__()
        self.may_commit = threading.Event()
        self.may_commit.set()
        self.error: Exception | None = None
        self.batches: list[Batch] = []

    def commit(self, batch: Batch) -> Committed:
        assert self.may_commit.wait(60)
        if self.error is not None:
            raise self.error
        self.batches.append(batch)
        return super().commit(batch)


def record(number: int, size: int = 8) -> StreamRecord:
    return StreamRecord(number, "t", b"x" * size, 1, False, "c")


def run(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(within(test(), 120))


async def committed(writer: Writer) -> BaseException | None:
    done: asyncio.Future[BaseException | None] = asyncio.get_running_loop().create_future()
    writer.when_committed(done.set_result)
    return await done


async def opened(store: MemoryStore, **settings: int) -> Writer:
    return Writer(store, asyncio.get_running_loop(), StoreSettings.model_validate(settings))


def test_what_is_appended_in_one_turn_is_one_group() -> None:
    async def test() -> None:
        store = GatedStore()
        writer = await opened(store)
        for number in range(5):
            writer.append(LOG, record(number))
        writer.put(b"k", b"v")
        assert writer.appended == 6
        assert await committed(writer) is None
        assert len(store.batches) == 1
        assert [r for _, r in store.read(LOG, 0, 10)] == [record(n) for n in range(5)]
        assert store.get(b"k") == b"v"
        await writer.close()

    run(test)


def test_the_next_group_gathers_while_one_is_written() -> None:
    async def test() -> None:
        store = GatedStore()
        store.may_commit.clear()
        writer = await opened(store)
        order: list[int] = []
        writer.append(LOG, record(0))
        writer.when_committed(lambda _: order.append(0))
        await asyncio.sleep(0)
        for number in range(1, 4):
            writer.append(LOG, record(number))
            writer.when_committed(lambda _, number=number: order.append(number))  # type: ignore[misc]
            await asyncio.sleep(0)
        assert order == []
        store.may_commit.set()
        await committed(writer)
        assert order == [0, 1, 2, 3]
        assert [len(batch.appends[LOG]) for batch in store.batches] == [1, 3]
        await writer.close()

    run(test)


@pytest.mark.parametrize(("average_s", "most_s"), [(10_000, 3600), (1000, 1250)])
def test_commits_begin_at_the_pace_that_the_store_can_take(
    average_s: float, most_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first one at once; what comes meanwhile is one group. A store that is quick is asked sooner."""

    async def test() -> None:
        store = GatedStore()
        loop = asyncio.get_running_loop()
        later: list[tuple[float, Callable[[], None]]] = []
        monkeypatch.setattr(loop, "call_later", lambda *asked: later.append(asked))
        writer = Writer(store, loop, pace_s=3600)
        writer._figures.average_s = average_s
        writer.append(LOG, record(0))
        assert await committed(writer) is None
        for number in range(1, 4):
            writer.append(LOG, record(number))
            await asyncio.sleep(0)
        assert len(store.batches) == 1
        [(delay_s, seal)] = later
        assert most_s - 60 < delay_s <= most_s
        seal()
        await writer.close()
        assert [len(batch.appends[LOG]) for batch in store.batches] == [1, 3]

    run(test)


def test_listeners_get_offsets_records_and_tokens_in_order() -> None:
    async def test() -> None:
        writer = await opened(MemoryStore())
        heard: list[tuple[int, int, object]] = []

        def listen(first: int, records: list[StreamRecord], tokens: list[object]) -> None:
            heard.extend(
                (first + i, r.ts_us, t)
                for i, (r, t) in enumerate(zip(records, tokens, strict=True))
            )

        writer.listen(LOG.log, listen)
        for number in range(6):
            writer.append(LOG, record(number), f"token {number}")
            writer.append(LogShard(17), record(99))
            if number % 2:
                await committed(writer)
        assert heard == [(n, n, f"token {n}") for n in range(6)]
        await writer.close()

    run(test)


def test_hooks_put_their_state_into_the_group_that_is_sealed() -> None:
    async def test() -> None:
        store = GatedStore()
        writer = await opened(store)
        dirty = {b"session": b"7"}

        def write_dirty() -> None:
            while dirty:
                writer.put(*dirty.popitem())

        writer.before_commit(write_dirty)
        writer.touch()
        await committed(writer)
        assert store.get(b"session") == b"7"
        assert len(store.batches) == 1
        await writer.close()

    run(test)


def test_a_store_that_cannot_write_is_logged_once_and_once_when_it_can(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def test() -> None:
        store = GatedStore()
        writer = await opened(store)
        for error in (None, Unavailable("disk full"), Unavailable("disk full"), None, None):
            store.error = error
            writer.append(LOG, record(0))
            assert await committed(writer) is error
        await writer.close()

    with caplog.at_level(logging.INFO, "broker.storage.writer"):
        run(test)
    assert [record.message for record in caplog.records] == [
        "store.cannot_write",
        "store.writing_again",
    ]


def test_a_failed_store_is_tried_again_although_nobody_publishes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(writer_module, "_RETRY_S", 0.01)

    async def test() -> None:
        store = GatedStore()
        writer = await opened(store)
        store.error = Unavailable("disk full")
        writer.append(LOG, record(0))
        assert await committed(writer) is store.error
        store.error = None
        while writer.failure is not None:
            await committed(writer)
        assert [list(batch.appends) for batch in store.batches] == [[]]
        await writer.close()

    run(test)


def test_a_failed_group_tells_its_waiters_and_leaves_no_gap() -> None:
    async def test() -> None:
        store = GatedStore()
        metrics = Metrics()
        writer = Writer(store, asyncio.get_running_loop(), None, metrics)
        writer.append(LOG, record(0))
        assert await committed(writer) is None
        store.error = Unavailable("disk full")
        writer.append(LOG, record(1))
        assert await committed(writer) is store.error
        assert writer.failure is store.error
        store.error = ValueError("a bug")
        writer.append(LOG, record(2))
        assert isinstance(await committed(writer), Unavailable)
        store.error = None
        writer.append(LOG, record(3))
        assert await committed(writer) is None
        assert writer.failure is None
        assert [(o, r.ts_us) for o, r in store.read(LOG, 0, 10)] == [(0, 0), (1, 3)]
        assert metrics.value("store_groups") == 2
        assert metrics.value("store_groups_failed") == 2
        assert metrics.value("store_records_failed") == 2
        await writer.close()

    run(test)


def test_a_callback_that_raises_stops_nobody_else() -> None:
    async def test() -> None:
        loop = asyncio.get_running_loop()
        reported: list[Any] = []
        loop.set_exception_handler(lambda _, context: reported.append(context["exception"]))
        writer = await opened(MemoryStore())

        def broken(_: BaseException | None) -> None:
            raise LookupError("mine")

        writer.append(LOG, record(0))
        writer.when_committed(broken)
        assert await committed(writer) is None
        assert [type(error) for error in reported] == [LookupError]
        await writer.close()

    run(test)


@pytest.mark.parametrize(
    "settings", [{"max_backlog_records": 1000}, {"max_backlog_bytes": 1024 * 1024}]
)
def test_a_backlog_over_its_bound_is_congestion_until_half_of_it(settings: dict[str, int]) -> None:
    async def test() -> None:
        store = GatedStore()
        store.may_commit.clear()
        writer = await opened(store, **settings)
        relieved: list[bool] = []
        writer.on_relief(lambda: relieved.append(writer.is_congested))
        for number in range(600):
            writer.append(LOG, record(number, 1000))
        await asyncio.sleep(0)
        assert not writer.is_congested
        for number in range(600):
            writer.append(LOG, record(number, 1000))
        assert writer.is_congested
        store.may_commit.set()
        await committed(writer)
        assert relieved == [False]
        await writer.close()

    run(test)


def test_calls_run_between_groups_and_hand_back_errors() -> None:
    async def test() -> None:
        writer = await opened(MemoryStore())
        threads: list[str] = []
        done: asyncio.Future[BaseException | None] = asyncio.get_running_loop().create_future()
        writer.call(lambda: threads.append(threading.current_thread().name), lambda _: None)
        writer.call(lambda: 1 // 0, done.set_result)
        assert isinstance(await done, ZeroDivisionError)
        assert threads == ["store writer"]
        await writer.close()

    run(test)


def test_closing_commits_what_is_left() -> None:
    async def test() -> None:
        store = MemoryStore()
        writer = await opened(store)
        called: list[int] = []
        writer.append(LOG, record(0))
        writer.call(lambda: called.append(1), lambda _: None)
        await asyncio.sleep(0)
        writer.append(LOG, record(1))
        await writer.close()
        assert store.range_of(LOG).next_offset == 2
        assert called == [1]

    run(test)


def test_nothing_to_wait_for_answers_on_the_next_turn() -> None:
    async def test() -> None:
        writer = await opened(MemoryStore())
        assert await committed(writer) is None
        await writer.close()

    run(test)
