"""Back-tests: what is compared, how it is counted, what ends one."""

from __future__ import annotations

import asyncio
import functools
import json
import sys
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from typing import Any

import psutil
import pyarrow as pa
import pytest

from broker.core.clock import SystemClock
from broker.core.errors import Invalid, NotFound, Unavailable
from broker.core.stream import StreamRecord
from broker.storage import records
from rules.functions.library import standard
from rules.rule import Statement, compile_statement
from rules.settings import RulesSettings
from rules.sql.compiler.program import RuleContext
from rules.trials.backtest import MAX_KEPT, Backtests, requested
from rules.trials.backtest_run import Backtest, Ended, Job, Range, undefined_columns
from tests.support.features import make_services
from tests.support.waiting import until

FUNCTIONS = standard()


def statement(sql: str) -> Statement:
    return compile_statement(sql, FUNCTIONS, RuleContext("n1", {}, lambda: 0))


def record(payload: bytes, topic: str = "m/1", **members: Any) -> StreamRecord:
    return StreamRecord(1_700_000_000_000_000, topic, payload, 1, False, "c1", **members)


def compared(
    before: str | None, after: str, held: Sequence[StreamRecord], **options: Any
) -> dict[str, Any]:
    """The result of a back-test over records in two frames."""
    middle = len(held) // 2

    def read(piece: Range) -> Iterator[pa.RecordBatch]:
        for first, part in ((0, held[:middle]), (middle, held[middle:])):
            if part:
                yield records.encode(first, part)

    old = None if before is None else statement(before)
    settings = {"samples": 10, "ends_s": time.monotonic() + 60} | options
    job = Job("raw", "n1", "r1", old, statement(after), [Range(0, 0, len(held))], read, **settings)
    backtest = Backtest(job)
    backtest.run(lambda done, total: None)
    return backtest.result()


def test_rows_are_added_lost_changed_or_the_same() -> None:
    held = [record(b'{"t":%d}' % t) for t in (10, 20, 30, 40)]
    found = compared(
        "SELECT payload.t AS t FROM 'm/#' WHERE payload.t <= 30",
        "SELECT CASE payload.t WHEN 20 THEN 'twenty' ELSE payload.t END AS t FROM 'm/#' WHERE payload.t >= 20",
        held,
    )
    assert found["rows"] == {
        "before": 3,
        "after": 3,
        "unchanged": 1,
        "added": 1,
        "lost": 1,
        "changed": 1,
    }
    assert (found["messages"], found["no_result"]) == (4, {"before": 1, "after": 1})
    place = {"stream": "raw", "shard": 0, "ts_ms": 1_700_000_000_000, "topic": "m/1"}
    assert found["samples"] == {
        "added": [{**place, "offset": "3", "after": {"t": 40}}],
        "lost": [{**place, "offset": "0", "before": {"t": 10}}],
        "changed": [{**place, "offset": "1", "before": {"t": 20}, "after": {"t": "twenty"}}],
    }


def test_rows_of_foreach_are_compared_as_a_bag_and_then_in_order() -> None:
    found = compared(
        "FOREACH payload.a DO item.v AS v FROM '#'",
        "FOREACH payload.b DO item.v AS v FROM '#'",
        [record(b'{"a":[{"v":1},{"v":2},{"v":3}],"b":[{"v":3},{"v":9}]}')],
    )
    assert found["rows"] == {
        "before": 3,
        "after": 2,
        "unchanged": 1,
        "added": 0,
        "lost": 1,
        "changed": 1,
    }


def test_numbers_differ_by_kind_and_the_order_of_columns_does_not_matter() -> None:
    found = compared(
        "SELECT payload.t AS t, 1 AS one FROM '#'",
        "SELECT 1 AS one, payload.t AS t FROM '#'",
        [record(b'{"t":1}')],
    )
    assert found["rows"]["unchanged"] == 1
    found = compared("SELECT 1 AS one FROM '#'", "SELECT 1.0 AS one FROM '#'", [record(b"{}")])
    assert found["rows"]["changed"] == 1


def test_errors_are_counted_by_what_they_say_with_the_first_place() -> None:
    held = [record(b'{"t":1}'), record(b"no json"), record(b'{"t":"x"}'), record(b'{"t":"x"}')]
    found = compared("SELECT 1 AS a FROM '#'", "SELECT payload.t - 1 AS a FROM '#'", held)
    assert found["errors"]["before"] == []
    assert [(kind["count"], kind["first"]["offset"]) for kind in found["errors"]["after"]] == [
        (2, "2"),
        (1, "1"),
    ]
    assert "line 1, column 8" in found["errors"]["after"][0]["message"]
    assert found["rows"] == {
        "before": 4,
        "after": 1,
        "unchanged": 0,
        "added": 0,
        "lost": 3,
        "changed": 1,
    }


def test_kinds_of_errors_are_bounded() -> None:
    held = [record(b'{"t":"%d"}' % number) for number in range(80)]
    found = compared(
        None, "SELECT payload.t - 1 AS a, jq('error(.)', payload.t) AS b FROM '#'", held
    )
    assert sum(kind["count"] for kind in found["errors"]["after"]) == 80
    assert len(found["errors"]["after"]) <= 51


def test_from_decides_for_each_side_alone() -> None:
    held = [record(b"{}", "m/1"), record(b"{}", "n/1"), record(b"{}", "o/1")]
    found = compared("SELECT 1 AS a FROM 'm/#'", "SELECT 1 AS a FROM 'm/#', 'n/#'", held)
    assert found["matched"] == {"before": 1, "after": 2}
    assert found["rows"]["added"] == 1


def test_what_a_stream_keeps_is_there_and_the_rest_is_undefined() -> None:
    held = [
        record(
            b"x", username="u1", properties='{"Content-Type": "a/b", "User-Property": [["k", "v"]]}'
        )
    ]
    sql = (
        "SELECT clientid, username, topic, qos, flags.retain AS retain, payload, timestamp, "
        "pub_props.'User-Property'.k AS k, pub_props.'Content-Type' AS type, peerhost, id FROM '#'"
    )
    [sample] = compared(None, sql, held)["samples"]["added"]
    assert sample["after"] == {
        "clientid": "c1", "username": "u1", "topic": "m/1", "qos": 1, "retain": False, "payload": "x",
        "timestamp": 1_700_000_000_000, "k": "v", "type": "a/b",
    }  # fmt: skip
    assert undefined_columns(statement(sql), FUNCTIONS) == ["id", "peerhost"]
    assert undefined_columns(statement("SELECT clientip() AS ip FROM '#'"), FUNCTIONS) == [
        "peerhost"
    ]
    assert undefined_columns(statement("SELECT payload.id AS id FROM '#'"), FUNCTIONS) == []


def test_jq_that_needs_a_worker_gets_one() -> None:
    found = compared(
        None, "SELECT jq('def f: .; [limit(3; repeat(f))]', payload) AS l FROM '#'", [record(b"1")]
    )
    assert found["samples"]["added"][0]["after"] == {"l": [[1, 1, 1]]}


def test_samples_are_as_many_as_asked_for() -> None:
    found = compared(None, "SELECT 1 AS a FROM '#'", [record(b"{}")] * 50, samples=3)
    assert (found["rows"]["added"], len(found["samples"]["added"])) == (50, 3)


def test_time_that_is_over_ends_it() -> None:
    with pytest.raises(Ended, match="time is over"):
        compared(None, "SELECT 1 AS a FROM '#'", [record(b"{}")] * 50, ends_s=time.monotonic())


# The request


def spec_of(name: str) -> dict[str, Any]:
    raise NotFound("rule", name)


def check(spec: dict[str, Any]) -> None:
    statement(spec["sql"])


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        ({}, "/sql"),
        ({"sql": "SELECT 1 FROM 't'"}, "/stream"),
        ({"sql": 7, "stream": "raw"}, "/sql"),
        ({"sql": "SELECT", "stream": "raw"}, "/sql"),
        ({"sql": "x", "stream": "raw", "from": "yesterday"}, "/from"),
        ({"sql": "x", "stream": "raw", "to": -1}, "/to"),
        ({"sql": "x", "stream": "raw", "from": "2026-01-31T12:00:00"}, "/from"),
        ({"sql": "x", "stream": "raw", "limit": 0}, "/limit"),
        ({"sql": "x", "stream": "raw", "samples": 1000}, "/samples"),
        ({"sql": "x", "stream": "raw", "timeout_s": True}, "/timeout_s"),
    ],
)
def test_a_wrong_request_is_refused_with_its_place(body: dict[str, Any], pointer: str) -> None:
    with pytest.raises(Invalid) as refused:
        requested(body, spec_of, check, RulesSettings())
    assert refused.value.problems[0].pointer == pointer


# Jobs


def on_a_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Runs a test on an event loop of its own."""

    @functools.wraps(test)
    def run(**arguments: Any) -> None:
        asyncio.run(test(**arguments))

    return run


def where(stream: str, at_us: int | None, kind: str = "topics") -> dict[str, Any]:
    """A stream of two shards; the second half of each is newer than any time."""
    if stream != "raw":
        raise NotFound("stream", stream)
    shards = [
        {"shard": n, "first_offset": "100", "next_offset": str(200 + 100 * n)} for n in (0, 1)
    ]
    if at_us is not None:
        shards = [{**one, "at_offset": "150"} for one in shards]
    return {
        "kind": kind,
        "shards": shards,
        "ranges_url": "http://127.0.0.1:9",
        "log": 16,
        "ticket": "t",
    }


def jobs(command: Sequence[str], kind: str = "topics") -> Backtests:
    services = make_services(clock=SystemClock())
    services.node.backtest = command
    services.storage.positions = lambda s, at: where(s, at, kind)
    return Backtests(services, RulesSettings(), list)


def wanted(**members: Any) -> Any:
    return requested(
        {"sql": "SELECT 1 AS a FROM 't'", "stream": "raw", **members},
        spec_of,
        check,
        RulesSettings(),
    )


@pytest.mark.parametrize(
    ("members", "ranges"),
    [
        ({}, [(0, 100, 200), (1, 100, 300)]),
        ({"from": 150, "to": "160"}, [(0, 150, 160), (1, 150, 160)]),
        ({"from": "2026-01-01T00:00:00Z"}, [(0, 150, 200), (1, 150, 300)]),
        ({"from": 0, "to": 10_000}, [(0, 100, 200), (1, 100, 300)]),
        ({"from": 250}, [(1, 250, 300)]),
        ({"limit": 30}, [(0, 190, 200), (1, 280, 300)]),
    ],
)
@on_a_loop
async def test_ranges_are_what_is_there(
    members: dict[str, Any], ranges: list[tuple[int, int, int]]
) -> None:
    backtests = jobs([sys.executable, "-c", ""])
    job = backtests.start(wanted(**members))
    assert [(one["shard"], int(one["from"]), int(one["to"])) for one in job["ranges"]] == ranges
    assert (await backtests.over(job["id"]))["state"] == "failed"


@on_a_loop
async def test_what_cannot_be_read_is_refused() -> None:
    with pytest.raises(NotFound):
        jobs([]).start(wanted(stream="nothing"))
    with pytest.raises(Invalid, match="keeps rows"):
        jobs([], kind="rows").start(wanted())
    with pytest.raises(Invalid, match="holds nothing"):
        jobs([]).start(wanted(**{"from": 5000}))


@on_a_loop
async def test_enough_run_at_once_and_a_cancelled_one_makes_place() -> None:
    backtests = jobs([sys.executable, "-c", "import time; time.sleep(60)"])
    first, _ = backtests.start(wanted()), backtests.start(wanted())
    with pytest.raises(Unavailable, match="2 back-tests run already"):
        backtests.start(wanted())
    assert backtests.cancel(first["id"])["state"] == "cancelled"
    backtests.start(wanted())
    assert [job["state"] for job in backtests.known()] == ["running", "running", "cancelled"]
    await backtests.stop()
    with pytest.raises(NotFound):
        backtests.get("none")


@on_a_loop
async def test_no_process_is_left_when_the_broker_has_stopped() -> None:
    def children() -> set[int]:
        return {child.pid for child in psutil.Process().children()}

    before = children()
    backtests = jobs([sys.executable, "-c", "import time; time.sleep(60)"])
    backtests.start(wanted())
    await until(lambda: children() - before)
    backtests.start(wanted())  # its process is not there yet
    await backtests.stop()
    assert children() <= before


@pytest.mark.parametrize(
    ("program", "state", "error"),
    [
        ("import json; print(json.dumps({'result': {'messages': 7}}))", "done", None),
        ("import json; print(json.dumps({'failed': 'no memory'}))", "failed", "no memory"),
        ("raise SystemExit(3)", "failed", "its process ended with status 3"),
        ("print('no json', flush=True)", "failed", "its process cannot be read"),
    ],
)
@on_a_loop
async def test_a_job_ends_however_its_process_does(
    program: str, state: str, error: str | None
) -> None:
    backtests = jobs([sys.executable, "-c", f"import sys; sys.stdin.readline(); {program}"])
    job = await backtests.over(backtests.start(wanted())["id"])
    assert job["state"] == state, json.dumps(job)
    assert job["ended_at"] is not None
    assert (job["error"] or "").startswith(error or "")


@on_a_loop
async def test_the_oldest_jobs_are_forgotten() -> None:
    backtests = jobs(["/nonexistent"])
    ids = []
    for _ in range(MAX_KEPT + 2):
        ids.append(backtests.start(wanted())["id"])
        await backtests.over(ids[-1])
    assert [job["id"] for job in backtests.known()] == ids[:1:-1]


@on_a_loop
async def test_one_that_is_cancelled_while_its_process_starts_leaves_none() -> None:
    backtests = jobs(
        [sys.executable, "-c", "import time; print('{\"done\": 1}', flush=True); time.sleep(600)"]
    )
    job = backtests.start(wanted(timeout_s=300))
    await asyncio.sleep(0)  # its process is being started
    assert backtests.cancel(job["id"])["state"] == "cancelled"
    async with asyncio.timeout(60):
        over = await backtests.over(job["id"])
    assert (over["state"], over["progress"]["done"]) == ("cancelled", 0)
