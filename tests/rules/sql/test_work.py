"""No statement on no message takes long, or much memory: what would fails in time, with its sentence."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Callable
from itertools import islice
from typing import Any

import pytest

from rules.rule import Statement, compile_statement
from rules.sql.compiler.columns import Event
from rules.sql.compiler.program import RowMemory
from rules.sql.limits import MAX_EVALUATION_MS
from rules.sql.values import EvaluationError
from tests.rules.sql.evaluation import CONTEXT, FUNCTIONS
from tests.support.processor import takes_less_than

TOO_MUCH = "too much text or there are too many items"
TOO_LONG = f"takes longer than {MAX_EVALUATION_MS} ms"

ARRAYS = "[" + "[]," * 90_000
OBJECTS = "[" + '{"a":1},' * 60_000
EXTREMES = "[" + "1e299," * 60_000
# As many digits as an integer may have.
LONG = 10**4_200


def _columns(count: int, column: Callable[[int], str]) -> str:
    return ", ".join(f"{column(number)} AS c{number}" for number in range(count))


def _statement(sql: str) -> Statement:
    return compile_statement(f'{sql} FROM "t/#"', FUNCTIONS, CONTEXT)


def _event(payload: Any) -> Event:
    event = Event({"topic": "t/1", "payload": json.dumps(payload)})
    event.json()
    return event


def _failure(call: Callable[[], Any]) -> str:
    """What it fails with; empty where it does not."""
    try:
        call()
    except EvaluationError as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    ("columns", "payload"),
    [
        (_columns(20, lambda n: f"json_decode(concat(payload.x, '{n}]'))"), {"x": ARRAYS}),
        (_columns(20, lambda n: f"json_or_text(concat(payload.x, '{n}]'))"), {"x": OBJECTS}),
        (_columns(20, lambda n: f"json_decode(concat(payload.x, '{n}]'))"), {"x": EXTREMES}),
        (_columns(1_000, lambda n: f"payload.x.c{n}"), {"x": "[" + "[]," * 1_300 + "1]"}),
        (_columns(100, lambda n: f"payload.a = payload.b{n}"),
         {"a": [[1] * 4_000] * 25, **dict.fromkeys((f"b{n}" for n in range(100)), [[1] * 4_000] * 25)}),
        (_columns(50, lambda n: f"payload.a in (payload.b, {n})"), {"a": [[1]] * 45_000, "b": [[1]] * 45_000}),
        (_columns(50, lambda n: f"concat(payload.m, '{n}')"), {"m": {f"{n:x}": n for n in range(60_000)}}),
        (_columns(10, lambda n: f"join_to_string('{n}', payload.l)"), {"l": [LONG] * 200}),
        (_columns(10, lambda n: f"concat(sublist({n + 1}, 90000, payload.l))"), {"l": [{"a": 1}] * 90_000}),
        (_columns(10, lambda n: f"term_encode(sublist({n + 1}, 90000, payload.l))"), {"l": [{"a": 1}] * 90_000}),
        (_columns(20, lambda n: f"regex_replace(payload.x, '{'ab'[n % 2]}', '{n}')"), {"x": "ab" * 2_500}),
        (_columns(10, lambda n: f"regex_replace('a', 'a', concat(payload.x, '{n}'))"), {"x": "\\" * 500_000}),
        (_columns(19, lambda n: f"contains_topic_match(payload.l, 'a/{n}')"), {"l": [{"topic": "b/+/c"}] * 40_000}),
        (_columns(15, lambda n: f"topic_match(payload.x, '{n}/#')"), {"x": "/" * 900_000}),
        (_columns(1_000, lambda n: f"strlen(concat(payload.x, '{n}'))"), {"x": "\u00e9" * 4_000}),
        (_columns(15, lambda n: f"lower(concat(payload.x, '{n}'))"), {"x": "\u0130" * 450_000}),
        (_columns(1_000, lambda n: f"lower(substr(payload.x, {n}))"), {"x": "\u0130" * 4_000}),
    ],
    ids=lambda value: value[:44] if type(value) is str else "",
)  # fmt: skip
def test_a_statement_that_would_take_long_fails_in_time(columns: str, payload: Any) -> None:
    run = _statement(f"SELECT {columns}").on_event.run
    event = _event(payload)
    with takes_less_than(0.1):
        failure = _failure(lambda: run(event))
    # which limit it meets first is a matter of the processor, where there are many calls; a fast one may be in time
    assert not failure or TOO_MUCH in failure or TOO_LONG in failure


@pytest.mark.parametrize(
    ("do", "payload"),
    [
        ("json_decode(v) AS a", {"v": ['{"a":[1],"b":[2]}'] * 30_000}),
        ("v.a AS a", {"v": ['{"a":[1],"b":[2]}'] * 30_000}),
        ("payload.x.a AS a", {"v": [1] * 5_000, "x": '{"a":"' + "b" * 1_000 + '"}'}),
        ("v = payload.x AS a", {"v": [[1, [2]]] * 20_000, "x": [1, [2]]}),
        ("regex_replace(v, 'a', 'b') AS a", {"v": ["a" * 50] * 10_000}),
    ],
)
def test_a_long_list_of_little_work_takes_its_turns(do: str, payload: Any) -> None:
    rows = _statement(f"FOREACH payload.v AS v DO {do}").on_event.run(_event(payload))
    assert isinstance(rows, list)
    assert len(rows) == len(payload["v"])


@pytest.mark.parametrize("columns", [5, 100])
@pytest.mark.parametrize(
    ("column", "text"),
    [
        ("json_decode(concat(payload.x, '{}]'))", "[" + "[]," * 1_300),
        ("json_decode(concat(payload.x, '{}]'))", "[" + "[]," * 13_000),
        ("split(concat(payload.x, '{}'), ',')", "ab," * 1_350),
    ],
)
def test_the_rows_of_a_turn_take_little_memory(columns: int, column: str, text: str) -> None:
    statement = _statement(f"FOREACH payload.v AS v DO {_columns(columns, column.format)}")
    event = _event({"v": [1] * 300, "x": text})
    memory = RowMemory()
    held_bytes = list[int]()

    def walk() -> None:
        for rows in islice(statement.on_event.parts(event), 8):
            memory.forget()
            memory.add(rows)
            held_bytes.append(memory.size_bytes)

    tracemalloc.start()
    try:
        failure = _failure(walk)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert not failure or TOO_MUCH in failure or TOO_LONG in failure
    assert max(held_bytes, default=0) < 24 * 1024 * 1024
    assert peak < 48 * 1024 * 1024


@pytest.mark.parametrize(
    ("columns", "column", "items"),
    [
        (1, "upper(concat('a', str(v)))", 10_000),
        (3, "v + {}", 10_000),
        (100, "v + {}", 950),
        (10, "upper(str(v + {}))", 1_700),
        (100, "upper(concat('a', str(v), '{}'))", 125),
        (100, "[v, {}]", 300),
        (100, "case when v > {} then 1 else 2 end", 550),
    ],
)
def test_a_message_that_waits_for_a_list_waits_for_few_items_of_much_work(
    columns: int, column: str, items: int
) -> None:
    done = _columns(columns, lambda n: column.replace("{}", str(n)))
    program = _statement(f"FOREACH payload.v AS v DO {done}").on_event
    assert items <= program.most_items < 1.3 * items
    event = _event({"v": [7] * items})
    with takes_less_than(0.2):
        rows = program.run_short(event)
    assert isinstance(rows, list)
    assert len(rows) == items
    failure = _failure(lambda: program.run_short(_event({"v": [7] * (items * 2)})))
    assert f"walks at most {program.most_items} items" in failure
    assert ("as many expressions" in failure) == (items < 10_000)
