"""The memory that rows are reckoned to take is near what they take."""

from __future__ import annotations

import json
import tracemalloc
from typing import Any

import pytest

from rules.rule import Statement, compile_statement
from rules.sql.compiler.columns import Event
from rules.sql.compiler.program import RowMemory
from rules.sql.limits import MAX_ROWS_MEMORY_INLINE
from rules.sql.values import EvaluationError
from tests.rules.sql.evaluation import CONTEXT, FUNCTIONS

ROWS = 1_500


def _statement(do: str) -> Statement:
    return compile_statement(f'FOREACH payload.v AS v DO {do} FROM "t/#"', FUNCTIONS, CONTEXT)


def _event(**members: Any) -> Event:
    event = Event({"topic": "t/1", "payload": json.dumps({"v": [1] * ROWS, **members})})
    event.json()  # what the payload takes is not of the rows
    return event


@pytest.mark.parametrize(
    "do",
    [
        "v",
        "str(v + 1000) AS a, v + 100000 AS b, topic AS c",
        ", ".join(f"concat(upper('a'), str(v + {n})) AS v{n}" for n in range(20)),
        "concat(payload.x, str(v)) AS a",
        "concat('\U0001f600', payload.x, str(v)) AS a",
        "split(payload.list, ',') AS a",
        "json_decode(payload.nested) AS a",
        "{a: {b: concat(payload.x, str(v))}} AS a",
        "payload.large + v AS a",
        "subbits(payload.x, 1, 1999, 'bits') AS a",
    ],
)
def test_the_memory_of_rows_is_estimated(do: str) -> None:
    event = _event(
        x="x" * 2_000,
        list="ab," * 600,
        nested="[" + "[]," * 300 + '{"a": ["text"]}]',
        large=10**600,
    )
    run = _statement(do).on_event.run
    memory = RowMemory()
    tracemalloc.start()
    try:
        rows = run(event)
        taken = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert isinstance(rows, list)
    memory.add(rows[: ROWS // 2])
    memory.add(rows[ROWS // 2 :])
    assert 0.8 * taken < memory.size_bytes < 1.6 * taken
    memory.forget()
    assert memory.size_bytes == 0


def test_values_that_rows_share_count_once() -> None:
    rows = _statement("payload.x AS a, payload.array AS b, payload AS c").on_event.run(
        _event(x="x" * 100_000, array=["x" * 100] * 1_000)
    )
    assert isinstance(rows, list)
    memory = RowMemory()
    memory.add(rows)
    assert memory.size_bytes < 2_000_000


@pytest.mark.parametrize(
    "do",
    [
        ", ".join(f"concat(payload.x, str(v)) AS v{n}" for n in range(10)),
        "split(payload.x, ',') AS a",
    ],
)
def test_a_rule_that_decides_at_once_fails_where_its_rows_take_too_much_memory(do: str) -> None:
    statement = _statement(do)
    assert len(statement.on_event.run_short(_event(x="x," * 25))) == ROWS  # type: ignore[arg-type]
    with pytest.raises(EvaluationError, match=f"at most {MAX_ROWS_MEMORY_INLINE} bytes of memory"):
        statement.on_event.run_short(_event(x="x," * 2_000))
