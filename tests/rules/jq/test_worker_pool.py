"""The pool: answers in order, the guilty alone pays, nobody waits for endless programs, nothing is left over."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import psutil

from broker.observe.metrics import Metrics
from rules.jq.evaluation import Request
from rules.jq.pool import WorkerPool
from rules.jq.program import JqError
from tests.support.waiting import until

GOOD = Request('test("a")', '"abc"', 10.0)
TRUE = "[true]"
ENDLESS = Request("last(range(infinite))", "1", 0.3)
GREEDY = Request('[limit(1e9; repeat("0123456789"))]', "1", 30.0)
DEEP = Request("def f: 1 + f; f", "1", 30.0)


def in_a_pool(check: Callable[[WorkerPool, Metrics], Awaitable[Any]], workers: int = 1) -> Any:
    async def run() -> Any:
        metrics = Metrics()
        pool = WorkerPool(workers, 128 * 1024 * 1024, metrics)
        try:
            return await check(pool, metrics)
        finally:
            await pool.close()
            assert not _workers()

    return asyncio.run(run())


async def answers_of(pool: WorkerPool, requests: Sequence[Request]) -> list[str]:
    """The outputs of each, or the sentence of its error."""
    found = await asyncio.gather(*map(pool.run, requests), return_exceptions=True)
    assert all(isinstance(one, (str, JqError)) for one in found)
    return list(map(str, found))


def _workers() -> list[psutil.Process]:
    return [process for process in psutil.Process().children(recursive=True) if _is_worker(process)]


def _is_worker(process: psutil.Process) -> bool:
    try:
        return "rules.jq.worker" in " ".join(process.cmdline())
    except psutil.Error:  # it has just ended
        return False


def test_answers_come_in_the_order_of_the_requests() -> None:
    requests = [Request('.[0] | tostring | test("1")', f"[{number}]", 5.0) for number in range(300)]

    async def check(pool: WorkerPool, metrics: Metrics) -> None:
        answers = await answers_of(pool, requests)
        assert answers == [f"[{str('1' in str(n)).lower()}]" for n in range(300)]
        assert metrics.value("jq_worker_evaluations") == 300
        assert metrics.value("jq_queue_length") == 0

    in_a_pool(check)


def test_a_program_that_must_be_ended_costs_its_own_request() -> None:
    async def check(pool: WorkerPool, metrics: Metrics) -> None:
        answers = await answers_of(pool, [GOOD, ENDLESS, GOOD, GREEDY, GOOD, DEEP, GOOD])
        assert answers[::2] == [TRUE] * 4
        assert answers[1] == "the program ran longer than 0.3 s and was ended"
        assert answers[3] == answers[5] == "the program needed more memory than a worker may have"
        assert metrics.value("jq_timeouts") == 1
        assert metrics.value("jq_memory_kills") == 2
        assert metrics.value("jq_worker_restarts") == 3
        assert len(_workers()) == 1

    in_a_pool(check)


def test_a_worker_that_is_killed_from_outside_costs_one_request() -> None:
    async def check(pool: WorkerPool, metrics: Metrics) -> None:
        running = asyncio.ensure_future(
            answers_of(pool, [GOOD, Request("last(range(infinite))", "1", 60.0), GOOD])
        )
        [worker] = await until(lambda: [one for one in _workers() if one.cpu_times().user >= 0.3])
        worker.terminate()
        answers = await running
        assert answers[0] == answers[2] == TRUE
        assert answers[1] == "the program crashed its worker (SIGTERM)"
        assert metrics.value("jq_crashes") == 1

    in_a_pool(check)


def test_many_endless_programs_let_others_have_their_turn() -> None:
    async def check(pool: WorkerPool, metrics: Metrics) -> None:
        bad = asyncio.ensure_future(answers_of(pool, [ENDLESS] * 50))
        assert await answers_of(pool, [GOOD]) == [TRUE]
        assert not bad.done()
        bad.cancel()

    in_a_pool(check)


def test_requests_of_a_caller_that_gave_up_are_not_begun() -> None:
    async def check(pool: WorkerPool, metrics: Metrics) -> None:
        first = asyncio.ensure_future(
            answers_of(pool, [Request("last(range(infinite))", "1", 1.0)])
        )
        second = asyncio.ensure_future(answers_of(pool, [GOOD] * 10))
        await asyncio.sleep(0)
        second.cancel()
        await first
        assert metrics.value("jq_worker_evaluations") == 0

    in_a_pool(check)


def test_closing_does_not_wait_for_programs() -> None:
    async def check(pool: WorkerPool, metrics: Metrics) -> None:
        running = asyncio.ensure_future(
            answers_of(pool, [Request("last(range(infinite))", "1", 600.0)])
        )
        await until(_workers)
        running.cancel()

    in_a_pool(check)


def test_inputs_and_outputs_of_megabytes_pass() -> None:
    text = "[" + ",".join(["1"] * 1_000_000) + "]"

    async def check(pool: WorkerPool, metrics: Metrics) -> None:
        [answer] = await answers_of(pool, [Request("., [limit(1; repeat(1))]", text, 30.0)])
        assert answer == f"[{text},[1]]"

    async def with_room() -> None:
        pool = WorkerPool(1, 512 * 1024 * 1024)
        await check(pool, Metrics())
        await pool.close()

    asyncio.run(with_room())
