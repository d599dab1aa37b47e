"""What rules put off: in order, once, bounded, and again when the store failed."""

from __future__ import annotations

import asyncio
import json
import tracemalloc
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest

from broker.core.action import Row
from broker.core.client import Client
from broker.core.clock import SystemClock
from broker.core.errors import Unavailable
from broker.core.message import Message
from broker.core.stream import StreamRecord
from broker.observe.metrics import Metrics
from broker.storage.memory import MemoryStore
from broker.storage.store import Batch, Committed, LogShard
from broker.storage.writer import Writer
from broker.streams.catalogue import LogKeys
from broker.streams.queues import StoredQueues
from rules.deferred import Bounds, Deferrals, Outcome
from rules.functions.library import standard
from rules.jq.pool import WorkerPool
from rules.rule import Statement, compile_statement
from rules.sql.compiler.columns import Event
from rules.sql.compiler.program import Program, RuleContext
from rules.sql.limits import HELD_ROWS_MEMORY
from rules.sql.values import defined, json_bytes
from tests.support.waiting import until

ROWS = LogShard(20)
SQL = """SELECT jq('if .n < 0 then last(range(infinite)) else .n, ([splits(",")?] | length) end', payload, 300)[1] AS n,
topic, timestamp, clientid FROM "t/#" """


class Store(MemoryStore):
    """Refuses the commits that hold rows as long as it is told to."""

    refuses = 0

    def commit(self, batch: Batch) -> Committed:
        if self.refuses and ROWS in batch.appends:
            self.refuses -= 1
            raise Unavailable("disk full")
        return super().commit(batch)


class Rule:
    """As much of a rule as is asked for here: rows go to a log of the store, failures to a list."""

    def __init__(self, writer: Writer, sql: str = SQL) -> None:
        self.name, self._writer = "r", writer
        context = RuleContext("n", {"rule_id": "r"}, lambda: 0)
        self.statement: Statement = compile_statement(sql, standard(), context)
        self.errors: list[str] = []
        self.acted: list[Any] = []
        """The member ``n`` of the rows of lists."""

    @property
    def event_program(self) -> Program:
        return self.statement.on_event

    def complete(self, outcome: Outcome, message: Message) -> Iterator[None]:
        if isinstance(outcome, Exception):
            self.errors.append(str(outcome))
        elif isinstance(outcome, Iterator):
            try:
                for row in outcome:
                    self.acted.append(row["n"])
                    self._write({"n": row["n"]}, message)
                    yield
            except Exception as error:  # noqa: BLE001 - what a later part of the list failed with
                self.errors.append(str(error))
        else:
            assert isinstance(outcome, dict)
            self._write(outcome, message)

    def _write(self, row: Row, message: Message) -> None:
        self._writer.append(
            ROWS, StreamRecord(1, message.topic, json_bytes(defined(row)), 0, False, "")
        )


class World:
    def __init__(self, store: Store | None = None, most: int = 1000, sql: str = SQL) -> None:
        self.store, self.metrics = store or Store(), Metrics()
        self.writer = Writer(self.store, asyncio.get_running_loop())
        self.rule = Rule(self.writer, sql)
        queues = StoredQueues(LogKeys(self.writer), SystemClock(), self.metrics)
        self.deferrals = Deferrals("n", queues, WorkerPool(1), Bounds(most, 1 << 20), self.metrics)
        self.deferrals.use([self.rule], ["r"])
        self.deferrals.begin()

    def put_off(self, *numbers: int) -> None:
        for number in numbers:
            self.put_off_payload(b'{"n":%d}' % number)

    def put_off_payload(self, payload: bytes) -> None:
        message = Message(
            "t/1", payload, 1, False, Client("c", "u"), 5, {"User-Property": [("a", "b")]}
        )
        self.deferrals.defer("r", message, message, 77)

    def rows(self) -> list[dict[str, Any]]:
        return [json.loads(record.payload) for _, record in self.store.read(ROWS, 0, 10_000)]

    def numbers(self) -> list[int]:
        return [row["n"] for row in self.rows()]

    async def writer_committed(self) -> None:
        done = asyncio.get_running_loop().create_future()
        self.writer.when_committed(done.set_result)
        await done

    async def until(self, condition: Callable[[], bool]) -> None:
        await until(condition)

    async def end(self) -> None:
        await self.deferrals.end()
        await self.writer.close()


def in_a_world(check: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(check())


def test_rows_come_once_and_in_order_with_the_columns_of_the_publish() -> None:
    async def check() -> None:
        world = World()
        world.put_off(*range(300))
        assert "r" in world.deferrals.busy
        await world.until(lambda: not world.deferrals.busy)
        assert world.numbers() == list(range(300))
        assert world.rows()[0] == {"n": 0, "topic": "t/1", "timestamp": 77, "clientid": "c"}
        assert world.deferrals.backlog("r") == 0
        await world.end()

    in_a_world(check)


def test_a_failed_commit_is_made_up_for_without_doubling() -> None:
    async def check() -> None:
        world = World()
        world.store.refuses = 2
        world.put_off(*range(50))
        await world.until(lambda: not world.deferrals.busy)
        assert world.numbers() == list(range(50))
        assert world.store.refuses == 0
        await world.end()

    in_a_world(check)


def test_what_was_not_done_is_done_after_the_next_start() -> None:
    async def check() -> None:
        world = World()
        world.put_off(1, -1, -1, -1, -1, 2)
        await world.writer_committed()
        await world.end()
        again = World(world.store)
        assert "r" in again.deferrals.busy
        again.put_off(3)
        await again.until(lambda: not again.deferrals.busy)
        assert again.numbers() == [1, 2, 3]
        assert [error[-33:] for error in again.rule.errors] == [
            "ran longer than 0.3 s and was ended"[-33:]
        ] * 4
        await again.end()

    in_a_world(check)


def test_a_full_queue_refuses() -> None:
    async def check() -> None:
        world = World(most=2)
        world.put_off(-1, -1)
        with pytest.raises(Unavailable, match="the queue 'rules/r' is full"):
            world.put_off(1)
        assert world.metrics.value("queue_dropped", queue="rules/r", reason="queue_full") == 1
        await world.end()

    in_a_world(check)


def test_an_event_is_put_off_with_its_columns() -> None:
    async def check() -> None:
        world = World()
        message = Message("$events/x", b"", 0, False, Client("c"), 5)
        world.deferrals.defer(
            "r", Event({"payload": '{"n":4}', "topic": "seen", "timestamp": 3}), message, 77
        )
        await world.until(lambda: not world.deferrals.busy)
        assert world.rows()[0]["n"] == 4
        assert (world.rows()[0]["topic"], world.rows()[0]["timestamp"]) == ("seen", 3)
        await world.end()

    in_a_world(check)


def test_a_deleted_rule_takes_its_queue_with_it() -> None:
    async def check() -> None:
        world = World()
        world.put_off(-1, 1)
        await world.writer_committed()
        world.deferrals.use([], [])
        assert world.metrics.value("rule_deferred_dropped", reason="rule_deleted") == 2
        assert not world.deferrals.busy
        await world.end()

    in_a_world(check)


def test_a_disabled_rule_keeps_its_queue() -> None:
    async def check() -> None:
        world = World()
        world.put_off(-1, 1)
        await world.writer_committed()
        world.deferrals.use([], ["r"])
        assert world.deferrals.backlog("r") == 2
        world.deferrals.use([world.rule], ["r"])
        await world.until(lambda: not world.deferrals.busy)
        assert world.numbers() == [1]
        await world.end()

    in_a_world(check)


# Rows of 4 KB: more than 4,000 of them are held in pieces.
LIST = (
    "FOREACH payload AS n DO n, n + 0 AS sum, {columns} concat('"
    + "x" * 4000
    + """', str(n)) AS text FROM "t/#" """
)
ASKS = "CASE WHEN n mod 6000 = 5999 THEN jq('if . < 0 then last(range(infinite)) else . end', n) ELSE 0 END AS asked, "


def acts_on(items: list[Any], columns: str = "") -> Rule:
    """The rule after it was given a list."""

    async def check() -> Rule:
        world = World(sql=LIST.format(columns=columns))
        world.put_off_payload(json.dumps(items).encode())
        await world.until(lambda: not world.deferrals.busy)
        assert world.metrics.value("rule_deferred_done") == 1
        await world.end()
        return world.rule

    return asyncio.run(check())


def test_rows_that_take_much_memory_are_held_in_pieces() -> None:
    tracemalloc.start()
    try:
        rule = acts_on(list(range(15_000)))
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert rule.acted == list(range(15_000))
    assert not rule.errors
    assert peak_bytes < 1.5 * HELD_ROWS_MEMORY


def test_a_list_that_fails_later_keeps_the_pieces_before() -> None:
    rule = acts_on([*range(9_000), {}, 1])
    assert rule.acted == list(range(len(rule.acted)))
    assert 4_000 < len(rule.acted) < 9_000
    assert rule.errors == ["'+' cannot take a map and an integer"]


def test_a_list_that_fails_in_its_first_piece_gives_no_rows() -> None:
    rule = acts_on([*range(2_000), {}, 1])
    assert not rule.acted
    assert len(rule.errors) == 1


def test_a_list_that_asks_a_worker_after_its_first_piece_gives_each_row_once() -> None:
    rule = acts_on(list(range(13_000)), ASKS)
    assert not rule.errors
    assert rule.acted == list(range(13_000))


class SecondRefused(Store):
    """Refuses the second commit that holds rows."""

    is_first = True

    def commit(self, batch: Batch) -> Committed:
        committed = super().commit(batch)
        if self.is_first and ROWS in batch.appends:
            self.is_first, self.refuses = False, 1
        return committed


def test_a_failure_inside_a_long_list_does_not_repeat_what_was_done_before_it() -> None:
    items = list(range(5_000))

    async def check() -> None:
        store = SecondRefused()
        world = World(store, sql='FOREACH payload AS n DO n FROM "t/#"')
        world.put_off_payload(b"[-1]")
        world.put_off_payload(json.dumps(items).encode())
        await world.until(lambda: not world.deferrals.busy)
        assert (store.is_first, store.refuses) == (False, 0)
        numbers = world.numbers()
        assert len(numbers) > 1 + len(items)  # some rows of the list were written twice
        assert numbers[-len(items) :] == items
        assert numbers.count(-1) == 1
        await world.end()

    in_a_world(check)
