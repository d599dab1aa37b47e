"""Rules that take long: deferred, kept in the store, evaluated in order off the publish path.

They wait for the worker of a jq program, the server that codes a schema's payloads, a registry elsewhere; or they
make many rows, a part of which is made in each turn of the loop. What a rule is to run on goes into a durable queue
of its own in the commit group of the publish, so that PUBACK waits for it. A task per such rule reads the queue,
awaits what is asked, and does the rule's actions together with noting how far it has come: rows that go into streams
are there exactly once, whatever ends the broker. The rows of a long list are written over several commit groups; when
the broker ends between them, or the rule is changed, they are written again. Those that take much memory are also made
in pieces: the actions are done for one before the next is made.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from time import perf_counter
from typing import Any, Final, Protocol, TypeVar

from broker.core import stored
from broker.core.action import Row
from broker.core.errors import Unavailable
from broker.core.message import Message
from broker.core.queue import DurableQueue, Queues
from broker.core.stored import StoredMessage
from broker.core.waiting import Answers, Question, Waits, stopping_at_questions
from broker.observe.log import get_logger
from broker.observe.metrics import Metrics
from rules.jq.evaluation import at_hand, workers_at_hand
from rules.jq.pool import WorkerPool
from rules.sql.compiler.columns import Event, all_columns
from rules.sql.compiler.program import DeferralNeeded, Program, Result, RowMemory
from rules.sql.limits import HELD_ROWS_MEMORY
from rules.sql.values import defined

_log = get_logger(__name__)

G = TypeVar("G")

PREFIX: Final = "rules/"
# Records whose actions are done in one turn of the loop, and so in one commit group: about a millisecond.
_BATCH_RECORDS: Final = 64
# Payloads that are read together; decoded, they may take some sixty times as much memory.
_BATCH_BYTES: Final = 256 * 1024
# Rows that are evaluated before their actions are done: a row takes 250 bytes and more.
_BATCH_ROWS: Final = 1000
# Time that evaluations and actions continue before others have their turn.
_TURN_S: Final = 0.005
# Maximum work that waits for its commit before the rows of a long list wait for it, too.
_TURN_BYTES: Final = 2 * 1024 * 1024
_RETRY_S: Final = 1.0


class _Stored(StoredMessage):
    """Input of a rule, as it is in the queue. ``columns`` are None for a published message."""

    columns: dict[str, Any] | None
    now_ms: int


def _of_0_2_0(
    columns: dict[str, Any] | None,
    now_ms: int,
    topic: str,
    payload: bytes,
    qos: int,
    retain: bool,
    dup: bool,
    received_ns: int,
    id: str,
    via: list[str],
    properties: dict[str, Any] | None,
    client: list[Any],
) -> tuple[Any, ...]:
    return client, topic, received_ns, payload, qos, retain, dup, properties, via, id, columns, now_ms  # fmt: skip


_decode: Final = stored.decoder(_Stored, "an event of a rule", _of_0_2_0)


class DeferredRule(Protocol):
    """The part of ``rules.rule.Rule`` that is used here."""

    name: str

    @property
    def event_program(self) -> Program:
        """The function that evaluates columns."""
        ...

    def complete(self, outcome: Outcome, message: Message) -> Iterator[object]:
        """Count an evaluation and do the actions for its rows; stops between rows, for others to have their turn."""
        ...


# The result of an evaluation, or what it failed with. The rows of a list that has some are an iterator, which raises
# what a later part of the list failed with; after a row it is continued once there is another, or no further one.
Outcome = Result | Exception | Iterator[Row]


@dataclass(frozen=True, slots=True)
class Bounds:
    """Limits of the queue of one rule."""

    records: int
    size_bytes: int


class Deferrals:
    """The rules of a node that are deferred. Used on the event loop; ``begin`` and ``end`` frame its tasks.

    ``busy`` names the rules that have something in their queue: they put off everything until it is processed, so that
    order is kept.
    """

    def __init__(
        self, node: str, queues: Queues, pool: WorkerPool, bounds: Bounds, metrics: Metrics
    ) -> None:
        self._node = node
        self._queues = queues
        self._pool = pool
        self._bounds = bounds
        self.busy: set[str] = set()
        self._rules: dict[str, DeferredRule] = {}
        self._known: frozenset[str] = frozenset()
        self._open: dict[str, DurableQueue] = {}
        self._tasks: dict[str, tuple[DeferredRule, asyncio.Task[None]]] = {}
        self._ending: set[asyncio.Task[None]] = set()
        self._is_running = False
        self._put_off = metrics.counter("rule_deferred", "messages and events that rules put off")
        self._completed = metrics.counter(
            "rule_deferred_done", "messages and events that were deferred and are done"
        )
        self._deleted = metrics.counter(
            "rule_deferred_dropped",
            "messages and events put off and never done, by reason",
            reason="rule_deleted",
        )

    def begin(self) -> None:
        """Resume work deferred before a restart. Queues of rules that no longer exist are dropped."""
        self._is_running = True
        for queue in self._queues.names(PREFIX):
            name = queue.removeprefix(PREFIX)
            if name in self._known:
                self._queue(name)
                self.busy.add(name)
            else:
                self._drop(name)
        self._arrange()

    async def end(self) -> None:
        """Stop at once; what is not done is done after the next start."""
        self._is_running = False
        tasks = [task for _, task in self._tasks.values()]
        self._tasks = {}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, *self._ending, return_exceptions=True)
        await self._pool.close()

    def use(self, rules: Iterable[DeferredRule], known: Iterable[str]) -> None:
        """The rules that run now, and the names of all, disabled ones among them.

        What a disabled rule had put off waits; what a deleted one had is dropped and counted; a changed rule processes
        what was deferred before as it is now.
        """
        self._rules, self._known = {rule.name: rule for rule in rules}, frozenset(known)
        if self._is_running:
            for name in [name for name in self._open if name not in self._known]:
                self._drop(name)
            self._arrange()

    def defer(self, name: str, item: Message | Event, message: Message, now_ms: int) -> None:
        """Keep what a rule is to run on, in the commit group that is gathering.

        Raises:
            Unavailable: the rule's queue is full, or there is no store.
        """
        if not self._is_running:
            raise Unavailable("what must wait for another process is evaluated in a broker only")
        try:
            kept = _stored(item, message, now_ms)
        except (TypeError, OverflowError, ValueError, RecursionError) as error:
            raise Unavailable(f"the event cannot be put off: {error}") from None
        self._queue(name).append(kept)
        self._put_off.value += 1
        self.busy.add(name)
        if name not in self._tasks:
            self._arrange()

    @property
    def uncommitted_bytes(self) -> int:
        """Work of all rules that waits for its commit."""
        return self._queues.uncommitted_bytes

    def backlog(self, name: str) -> int:
        """Amount of deferred work of a rule that is not done."""
        queue = self._open.get(name)
        return 0 if queue is None else queue.records

    def _queue(self, name: str) -> DurableQueue:
        queue = self._open.get(name)
        if queue is None:
            bounds = self._bounds
            queue = self._open[name] = self._queues.open(
                PREFIX + name, max_records=bounds.records, max_bytes=bounds.size_bytes
            )
        return queue

    def _arrange(self) -> None:
        """A task for each rule that has a queue and runs, none for others."""
        for name in [
            name for name, (rule, _) in self._tasks.items() if self._rules.get(name) is not rule
        ]:
            self._end_task(name)
        for name, queue in self._open.items():
            current = self._rules.get(name)
            if current is not None and name not in self._tasks:
                task = asyncio.create_task(self._work(current, queue), name=f"deferred rule {name}")
                self._tasks[name] = (current, task)

    def _drop(self, name: str) -> None:
        self._open.pop(name, None)
        self.busy.discard(name)
        if name in self._tasks:
            self._end_task(name)
        lost = self._queues.remove(PREFIX + name)
        self._deleted.value += lost
        if lost:
            _log.warning("rule.deferred_dropped", rule=name, records=lost, reason="rule_deleted")

    def _end_task(self, name: str) -> None:
        _, task = self._tasks.pop(name)
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)
        task.cancel()

    async def _work(self, rule: DeferredRule, queue: DurableQueue) -> None:
        await self._go_back(queue)
        while True:
            if not queue.records:
                self.busy.discard(rule.name)
            try:
                records = await queue.read(_BATCH_RECORDS, _BATCH_BYTES)
                waiting = deque(
                    _Deferred(offset, payload, self._node, rule.name) for offset, payload in records
                )
                while waiting:
                    await self._evaluate(rule, waiting)
                    await self._complete(rule, queue, waiting)
            except Unavailable as error:
                # the store; what was done is not there, so it is done again
                _log.warning("rule.deferred_waits", rule=rule.name, reason=str(error))
                await asyncio.sleep(_RETRY_S)
                await self._go_back(queue)

    async def _go_back(self, queue: DurableQueue) -> None:
        """Advance to the work that is durably done, once that is certain."""
        with suppress(Unavailable):
            await queue.committed()
        queue.rewind()

    async def _evaluate(self, rule: DeferredRule, waiting: Iterable[_Deferred]) -> None:
        """Run them until there are enough rows, and have workers and other processes answer those that ask."""
        turn = _Turn()
        rows = held_bytes = 0
        questions: list[tuple[_Deferred, Question]] = []
        for entry in waiting:
            if not entry.is_done:
                for _ in entry.parts(rule.event_program):
                    await turn.end()
            if entry.question is not None:
                questions.append((entry, entry.question))
            rows += len(entry.rows)
            held_bytes += entry.memory.size_bytes
            if rows > _BATCH_ROWS or held_bytes > HELD_ROWS_MEMORY:
                break
        with workers_at_hand(self._pool.run):  # all are asked before any is waited for
            asked = [asyncio.ensure_future(question.ask()) for _, question in questions]
        try:
            for (entry, question), answer in zip(questions, asked, strict=True):
                await entry.answers.fetch(question, answer)
        finally:
            for answer in asked:
                answer.cancel()

    async def _complete(
        self, rule: DeferredRule, queue: DurableQueue, waiting: deque[_Deferred]
    ) -> None:
        """Do the actions of the first ones that have an outcome, and note how far it came in the turn of the loop that
        ends each, for both to be in one commit group. Returns at the end of a piece of rows, for the next to be made.
        """
        turn = _Turn()
        while waiting and (waiting[0].is_done or waiting[0].is_full):
            entry = waiting[0]
            rows = entry.rows
            for _ in entry.completion(rule):
                if turn.is_over or self.uncommitted_bytes > _TURN_BYTES:
                    # what was made takes its time to be written, and so does this; entries before it are done
                    queue.advance(entry.offset)
                    await queue.committed()
                    turn = _Turn()
                if not rows and not entry.is_done:
                    entry.end_piece()
                    await queue.committed()
                    return
            waiting.popleft()
            self._completed.value += 1
            if turn.is_over or not (waiting and waiting[0].is_done):
                queue.advance(entry.offset + 1)
                await queue.committed()
                turn = _Turn()


class _Turn:
    """A few milliseconds of the loop."""

    def __init__(self) -> None:
        self._ends = perf_counter() + _TURN_S

    @property
    def is_over(self) -> bool:
        return perf_counter() >= self._ends

    async def end(self) -> None:
        """Let others have their turn, when it is time."""
        if self.is_over:
            await asyncio.sleep(0)
            self._ends = perf_counter() + _TURN_S


class _Deferred:
    """One evaluation on the way to its outcome; ``question`` is what it stopped at, None at the end."""

    __slots__ = (
        "_columns",
        "_completion",
        "_done_rows",
        "_held_rows",
        "_parts",
        "_place",
        "_result",
        "_rows_again",
        "answers",
        "is_done",
        "memory",
        "message",
        "offset",
        "question",
        "rows",
    )

    def __init__(self, offset: int, payload: bytes, node: str, rule: str) -> None:
        kept = _decode(payload)
        self.offset, self.message = offset, kept.message()
        if kept.columns is None:
            self._columns = all_columns(self.message, node, {"rule_id": rule}, lambda: kept.now_ms)
        else:
            self._columns = kept.columns
        self.answers = Answers()
        self.question: Question | None = None
        self.is_done = False
        self.rows = deque[Row]()
        """The rows of a list that were made and wait for their actions."""
        self.memory = RowMemory()
        self._result: Result | Exception = None
        self._parts: Generator[list[Row], None, Result] | None = None
        self._completion: Iterator[object] | None = None
        self._place = self._held_rows = self._done_rows = self._rows_again = 0

    @property
    def is_full(self) -> bool:
        """True if its rows take so much memory that their actions are done before others are made."""
        return self.memory.size_bytes > HELD_ROWS_MEMORY

    def parts(self, program: Program) -> Iterator[None]:
        """Evaluate until it is done, asks or is full; stops after each part of a long array, and at the end.

        Resumes where it was full. After a question it begins again, with the answers that are there, and leaves out the
        rows whose actions are done.
        """
        if self._parts is None:
            self._parts = program.parts(Event(dict(self._columns)))
            self._place, self._rows_again = 0, self._done_rows
        self.question = None
        while not self.is_full:
            try:
                with at_hand(lambda: self._columns), self.answers.at_hand(self._place):
                    rows = next(self._parts)
            except StopIteration as end:
                self._end(end.value)
                break
            except Waits as waits:
                self.question = waits.question
                self._parts = None
                self._drop_rows()
                break
            except Exception as error:  # noqa: BLE001 - whatever the rule does to this event is its outcome
                self._drop_rows()
                self._end(error)
                break
            self._place = self.answers.place
            self._hold(rows)
            yield
        yield

    def completion(self, rule: DeferredRule) -> Iterator[object]:
        """The actions of the rule, begun once; to be continued while there are rows, and when it is done."""
        if self._completion is None:
            outcome = self._taken_rows() if self.rows else self._result
            self._completion = rule.complete(outcome, self.message)
        return self._completion

    def end_piece(self) -> None:
        """The actions for all rows that are there are done."""
        self._done_rows += self._held_rows
        self._drop_rows()

    def _taken_rows(self) -> Iterator[Row]:
        rows = self.rows
        while rows or not self.is_done:
            yield rows.popleft()
        if isinstance(self._result, Exception):
            raise self._result

    def _end(self, result: Result | Exception) -> None:
        self.is_done, self._parts = True, None
        if type(result) is list and result:
            self._hold(result)
        else:
            self._result = result

    def _hold(self, rows: list[Row]) -> None:
        if self._rows_again:
            again = min(self._rows_again, len(rows))
            self._rows_again -= again
            rows = rows[again:]
        self.rows += rows
        self._held_rows += len(rows)
        self.memory.add(rows)

    def _drop_rows(self) -> None:
        self.rows.clear()
        self._held_rows = 0
        self.memory.forget()


def _stored(item: Message | Event, message: Message, now_ms: int) -> bytes:
    _ = message.id  # to be the same when the rule runs
    columns = None if isinstance(item, Message) else _plain(item.columns)
    return stored.encode(message, columns, now_ms)


def _plain(columns: Mapping[str, Any]) -> dict[str, Any]:
    plain = defined(dict(columns))
    assert isinstance(plain, dict)
    return plain


def in_order(
    run: Callable[[G], Result], is_busy: Callable[[], bool], most_rows: int
) -> Callable[[G], Result]:
    """A compiled rule that makes lists of rows: raises ``DeferralNeeded`` where there are more, or as below."""

    def run_in_order(source: G) -> Result:
        if is_busy():
            raise _behind()
        result = run(source)
        if type(result) is list and len(result) > most_rows:
            raise DeferralNeeded("its rows are too many to be acted on at once")
        return result

    return run_in_order


def with_questions(
    run: Callable[[G], Result], is_busy: Callable[[], bool]
) -> Callable[[G], Result]:
    """A compiled rule that may have to ask another process: it raises ``Waits`` there.

    While the rule has something put off it raises ``DeferralNeeded`` at once, so that nothing overtakes that.
    """
    stopping = stopping_at_questions(run)

    def run_with_questions(source: G) -> Result:
        if is_busy():
            raise _behind()
        return stopping(source)

    return run_with_questions


def _behind() -> DeferralNeeded:
    """Raised in place of evaluating while earlier messages wait."""
    return DeferralNeeded("earlier messages of the rule wait for another process")
