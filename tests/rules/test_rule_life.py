"""The life of a rule in the service: versions, switching, patches, test cases, counters."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from time import thread_time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.core.errors import Invalid, NotFound
from broker.observe.counter_rates import STEP_S, Ticks
from broker.observe.prometheus import exposition
from broker.observe.timing import Timing
from rules.metrics import Counts, RuleRate
from tests.rules.conftest import Node
from tests.support.examples import examples
from tests.support.processor import is_within

HOT = {"type": "stream", "stream": "hot"}
COLD = {"type": "stream", "stream": "cold"}
WARM = {
    "name": "warm",
    "event": {"topic": "m/1", "payload": '{"t": 21}'},
    "expect": {"rows": [{"t": 21}]},
}
COOL = {
    "name": "cool",
    "event": {"topic": "m/1", "payload": '{"t": 3}'},
    "expect": {"no_result": True},
}
BROKEN = {
    "name": "broken",
    "event": {"topic": "m/1", "payload": "x"},
    "expect": {"error": "not JSON"},
}
SQL = "SELECT payload.t AS t FROM 'm/#' WHERE payload.t > 20"


# Versions


def test_a_rule_is_restored_as_a_new_version_and_stays_switched_off(node: Node) -> None:
    node.rule(SQL, HOT)
    node.service.replace("r1", {"sql": "SELECT 1 AS a FROM 'm/#'"})
    node.service.enable("r1", False)
    restored = node.service.restore("r1", 1)
    assert (restored["sql"], restored["actions"], restored["enable"]) == (SQL, [HOT], False)
    assert [(one["version"], one["change"]) for one in node.service.versions("r1")] == [
        (3, "restored version 1"), (2, "changed sql, actions"), (1, "created"),
    ]  # fmt: skip
    assert node.service.version("r1", 2)["rule"] == {
        "name": "r1",
        "sql": "SELECT 1 AS a FROM 'm/#'",
    }


def test_a_version_whose_stream_is_gone_is_not_restored(node: Node) -> None:
    node.rule(SQL, HOT)
    node.service.replace("r1", {"sql": SQL})
    del node.streams.records["hot"]
    with pytest.raises(Invalid, match="no stream 'hot'"):
        node.service.restore("r1", 1)
    assert node.service.get("r1")["version"] == 2


def test_versions_of_rules_that_are_not_there_are_not_found(node: Node) -> None:
    node.rule(SQL)
    for call in (
        lambda: node.service.versions("r2"), lambda: node.service.version("r1", 9),
        lambda: node.service.difference("r1", 1, 9), lambda: node.service.restore("r1", 2),
    ):  # fmt: skip
        with pytest.raises(NotFound):
            call()


# Switching and patching


def test_a_patch_changes_what_it_names_and_null_takes_away(node: Node) -> None:
    node.service.create(
        {"name": "r1", "sql": SQL, "actions": [HOT], "description": "d", "tests": [WARM]}
    )
    patched = node.service.replace(
        "r1", node.service.patched("r1", {"description": None, "actions": [COLD]})
    )
    assert (patched["description"], patched["actions"], patched["tests"]) == ("", [COLD], [WARM])


def test_counters_begin_anew_with_sql_or_actions_only(node: Node) -> None:
    node.rule(SQL, HOT)
    node.send("m/1", b'{"t":30}')
    for change in ({"description": "d"}, {"enable": False}, {"enable": True}, {"tests": [WARM]}):
        node.service.replace("r1", node.service.patched("r1", change))
        assert node.count("matched") == node.count("actions.success") == 1
    node.send("m/1", b'{"t":30}')
    assert node.count("matched") == 2
    node.service.replace("r1", node.service.patched("r1", {"actions": [COLD]}))
    assert node.count("matched") == node.count("actions.total") == 0


def test_a_rule_that_is_switched_off_counts_nothing(node: Node) -> None:
    node.rule(SQL, HOT)
    node.service.enable("r1", False)
    node.send("m/1", b'{"t":30}')
    assert (node.count("matched"), node.service.get("r1")["state"]) == (0, "disabled")


# Test cases


def test_cases_that_pass_let_a_rule_be_saved_and_run_again(node: Node) -> None:
    node.service.create({"name": "r1", "sql": SQL, "tests": [WARM, COOL, BROKEN]})
    found = node.service.run_cases("r1")
    assert (found["passed"], found["failed"]) == (3, 0)
    assert [case["outcome"] and case["outcome"]["outcome"] for case in found["cases"]] == [
        "rows",
        "no_result",
        "error",
    ]


def test_a_case_that_fails_keeps_a_rule_from_being_saved_unless_forced(node: Node) -> None:
    spec = {"name": "r1", "sql": SQL.replace("20", "25"), "tests": [WARM, COOL]}
    with pytest.raises(Invalid) as refused:
        node.service.create(spec)
    assert refused.value.code == "test_case_failed"
    assert [(one.pointer, one.message) for one in refused.value.problems] == [
        ("/tests/0", "test case 'warm': expected 1 row, got no result")
    ]
    assert node.service.create(spec, force=True)["version"] == 1
    assert node.service.run_cases("r1")["failed"] == 1
    node.service.enable("r1", False)  # a failing case does not keep a rule from being switched off


@pytest.mark.parametrize(
    ("expect", "difference"),
    [
        ({"rows": [{"t": 21.0}]}, None),
        ({"rows": [{"t": 22}]}, "rows[0].t is 21, expected 22"),
        ({"rows": [{"t": True}]}, "rows[0].t is 21, expected true"),
        ({"rows": [{"t": 21, "u": 1}]}, "rows[0].u is missing, expected 1"),
        ({"rows": [{}]}, "rows[0].t is 21, which was not expected"),
        ({"rows": []}, 'rows has 1 instead of 0: [{"t":21}]'),
        ({"no_result": True}, 'expected no result, got rows [{"t":21}]'),
        ({"error": True}, 'expected an error, got rows [{"t":21}]'),
    ],
)
def test_a_difference_says_where_and_what(
    node: Node, expect: dict[str, Any], difference: str | None
) -> None:
    node.service.create(
        {"name": "r1", "sql": SQL, "tests": [{**WARM, "expect": expect}]}, force=True
    )
    [case] = node.service.run_cases("r1")["cases"]
    assert (case["passed"], case.get("difference")) == (difference is None, difference)


@pytest.mark.parametrize(
    ("tests", "pointer"),
    [
        ([{**WARM, "expect": {}}], "/tests/0/expect"),
        ([{**WARM, "expect": {"rows": [], "error": True}}], "/tests/0/expect"),
        ([WARM, WARM], "/tests"),
        ([{"name": "x"}], "/tests/0/event"),
    ],
)
def test_cases_that_are_none_are_told_with_their_place(
    node: Node, tests: list[Any], pointer: str
) -> None:
    with pytest.raises(Invalid) as refused:
        node.service.create({"name": "r1", "sql": SQL, "tests": tests})
    assert pointer in [problem.pointer for problem in refused.value.problems]


def test_an_event_that_cannot_be_read_fails_its_case(node: Node) -> None:
    event = {"topic": "m/1", "payload": {"encoding": "base64", "data": "?"}}
    node.service.create({"name": "r1", "sql": SQL, "tests": [{**WARM, "event": event}]}, force=True)
    [case] = node.service.run_cases("r1")["cases"]
    assert case["difference"].startswith("the event cannot be used")


# Counters


PAYLOADS = st.sampled_from([b'{"t":30}', b'{"t":1}', b"no json", b'{"t":"x"}', b'{"t":40,"q":7}'])
STEPS = st.lists(
    st.one_of(PAYLOADS, st.sampled_from(["reset", "off", "on", "break", "mend", "rewrite"])),
    max_size=60,
)


@settings(max_examples=examples(60), deadline=None)
@given(STEPS)
def test_the_counters_add_up_whatever_happens(steps: list[Any]) -> None:
    node = Node()
    republish = {"type": "republish", "topic": "out", "qos": "${q}"}
    node.rule(
        "SELECT payload.t AS t, payload.q AS q FROM 'm/#' WHERE payload.t > 20", HOT, republish
    )
    totals = [0.0, 0.0]
    for step in steps:
        _do(node, step)
        found = node.service.metrics("r1")
        assert found["matched"] == found["passed"] + found["failed"]
        assert found["failed"] == found["failed.exception"] + found["failed.no_result"]
        assert (
            found["actions.failed"]
            == found["actions.failed.out_of_service"] + found["actions.failed.unknown"]
        )
        ended = found["actions.success"] + found["actions.failed"] + found["actions.discarded"]
        assert found["actions.total"] == ended == 2 * found["passed"]
        assert [one["metrics"]["total"] for one in found["actions"]] == [found["passed"]] * 2
        now = [node.metrics.value("rules_matched"), node.metrics.value("actions_messages")]
        assert now[0] >= totals[0]
        assert now[1] >= totals[1]
        totals = now


def _do(node: Node, step: Any) -> None:
    match step:
        case bytes():
            node.send("m/1", step)
        case "reset":
            node.service.reset_metrics("r1")
        case "off" | "on":
            node.service.enable("r1", step == "on")
        case "break":
            node.streams.records["hot"] = _Full()
        case "mend":
            node.streams.records["hot"] = []
        case "rewrite":
            node.service.replace("r1", node.service.patched("r1", {"description": "d"}))


class _Full(list):  # type: ignore[type-arg]  # a stream that takes nothing
    def append(self, _record: Any) -> None:
        raise RuntimeError("full")


def test_global_counters_outlive_rules(node: Node) -> None:
    node.rule(SQL, HOT)
    for _ in range(3):
        node.send("m/1", b'{"t":30}')
    node.service.reset_metrics("r1")
    node.service.delete("r1")
    text = exposition(node.metrics)
    assert "sluice_rules_matched_total 3" in text
    assert "sluice_actions_messages_total 3" in text
    assert 'rule="r1"' not in text


def test_one_run_of_64_is_timed(node: Node) -> None:
    node.rule(SQL)
    assert node.service.metrics("r1")["evaluation_s"] == {"p50": None, "p99": None, "timed": 0}
    for _ in range(130):
        node.send("m/1", b'{"t":30}')
    times = node.service.metrics("r1")["evaluation_s"]
    assert times["timed"] == 2
    assert 0 < times["p50"] <= times["p99"] < 1


@given(st.lists(st.integers(1, 10**12), min_size=1), st.floats(0.01, 1))
def test_a_quantile_is_at_most_a_quarter_too_large(durations: list[int], share: float) -> None:
    timing = Timing()
    for duration in durations:
        timing.note(duration)
    exact = sorted(durations)[max(0, -(-int(share * len(durations) * 1e9) // 10**9) - 1)]
    found = timing.quantile_s(share)
    assert found is not None
    assert exact / 1e9 <= found * 1.0001
    assert found <= max(max(durations) * 1.25, 8) / 1e9


def test_rates_are_of_the_last_step_the_highest_and_five_minutes() -> None:
    rate, counts, now_s = RuleRate(), Counts("r"), 1000.0
    rate.note_all(counts, now_s)
    for step in range(200):
        counts.matched.value += 500 if step == 10 else 50
        counts.passed.value += 30
        counts.failed_exception.value += 20
        now_s += STEP_S
        rate.note_all(counts, now_s)
    assert rate.as_dict() == {
        "matched.rate": 10.0,
        "matched.rate.max": 100.0,
        "matched.rate.last5m": 10.0,
        "passed.rate": 6.0,
        "failed.exception.rate": 4.0,
    }


def test_rates_begin_anew_when_counters_do() -> None:
    counts = Counts("r")
    for at_s, matched in ((0.0, 1000), (5.0, 2000), (10.0, 10)):
        counts.matched.value = counts.passed.value = matched
        counts.rate.note_all(counts, at_s)
        assert (counts.rate.last, counts.rate.passed) == (
            (200.0, 200.0) if matched == 2000 else (0.0, 0.0)
        )
    assert set(counts.rate.as_dict().values()) == {0.0}
    counts.matched.value = 500
    counts.rate.note_all(counts, 15.0)
    assert counts.rate.last == 98.0
    counts.reset()
    assert set(counts.rate.as_dict().values()) == {0.0}


def test_many_rates_are_sampled_a_few_milliseconds_at_a_time() -> None:
    """A tick over 100,000 rules lets others have their turn."""
    counts, longest_s, sampled = [Counts("r")] * 100_000, 0.0, 0

    def tick() -> Iterator[None]:
        nonlocal sampled
        for one in counts:
            one.rate.note_all(one, 1.0)
            sampled += 1
            yield

    async def check() -> None:
        nonlocal longest_s
        ticks = Ticks(tick)
        ticks.start()
        while sampled < len(counts):
            began_s = thread_time()
            await asyncio.sleep(0)
            longest_s = max(longest_s, thread_time() - began_s)
        ticks.stop()

    asyncio.run(check())
    assert is_within(longest_s, 0.05)


def test_long_sql_is_compiled_before_it_is_saved(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = {"name": "long", "sql": 'SELECT payload.a AS a FROM "t/#"'}
    node.service.prepare(spec)
    monkeypatch.setattr(
        "rules.builder.compile_statement", lambda *_: pytest.fail("it is compiled already")
    )
    node.service.create(spec)
    assert node.service.get("long")["sql"] == spec["sql"]
