"""Evaluating SQL in tests: on a message and on an event, which must agree."""

from __future__ import annotations

import json
from typing import Any

from broker.core.client import Client
from broker.core.jsontext import JsonError
from broker.core.message import Message
from rules.functions.library import standard
from rules.sql.compiler.columns import Event, all_columns
from rules.sql.compiler.compile import compile_for_events, compile_for_messages
from rules.sql.compiler.program import RuleContext
from rules.sql.syntax.parser import parse
from rules.sql.values import UNDEFINED, EvaluationError

FUNCTIONS = standard()
CONTEXT = RuleContext("n1", {"rule_id": "r"}, lambda: 1_700_000_000_123)
CLIENT = Client("c1", None, "10.0.0.1", 1883)
FAILED = "fails"

PAYLOAD: dict[str, Any] = {
    "i": 5, "f": 2.5, "s": "b", "n": None, "t": True, "no": False, "l": [1, 2, 3], "o": {"k": "v", "1": "one"},
    "j": '{"k":7,"l":[{"m":1}]}', "m": [{"a": 1}, {"a": 2}], "e": "", "idx": 2, "num": "8", "float": 8.0,
    "big": 12345678901234567890123,
}  # fmt: skip


def result(sql: str, payload: Any = PAYLOAD, topic: str = "t/a/b") -> Any:
    """What a statement gives: a row, rows, None, or ``FAILED``. Text payloads are taken as they are."""
    data = payload if isinstance(payload, (str, bytes)) else json.dumps(payload)
    message = Message(
        topic, data.encode() if isinstance(data, str) else data, 1, False, CLIENT, 5_000_000
    )
    tree = parse(sql)
    columns = all_columns(message, "n1", {"rule_id": "r"}, lambda: 1_700_000_000_123)
    got = _outcome(compile_for_messages(tree, FUNCTIONS, CONTEXT).run, message)
    assert got == _outcome(compile_for_events(tree, FUNCTIONS, CONTEXT).run, Event(columns))
    return got


def value(expression: str, payload: Any = PAYLOAD) -> Any:
    """What an expression gives."""
    row = result(f'SELECT {expression} AS r FROM "t/#"', payload)
    return row if row == FAILED else row["r"]


def row(fields: str, payload: Any = PAYLOAD) -> Any:
    """The row of a SELECT list, undefined members left out."""
    got = result(f'SELECT {fields} FROM "t/#"', payload)
    return (
        got if got == FAILED else {key: item for key, item in got.items() if item is not UNDEFINED}
    )


def holds(condition: str, payload: Any = PAYLOAD, fields: str = "1") -> Any:
    """Whether WHERE holds; ``FAILED`` when it fails."""
    got = result(f'SELECT {fields} FROM "t/#" WHERE {condition}', payload)
    return got if got == FAILED else got is not None


def _outcome(run: Any, argument: Any) -> Any:
    try:
        return run(argument)
    except (EvaluationError, JsonError):
        return FAILED
