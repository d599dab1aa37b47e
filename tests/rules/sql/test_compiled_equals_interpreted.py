"""What is compiled gives the rows of the reference interpreter, or fails where that fails."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from broker.core.client import Client
from broker.core.errors import Invalid
from broker.core.jsontext import JsonError
from broker.core.message import Message
from rules.functions.library import standard
from rules.sql.compiler.columns import Event, all_columns
from rules.sql.compiler.compile import compile_for_events, compile_for_messages
from rules.sql.compiler.program import RuleContext
from rules.sql.syntax.parser import parse
from rules.sql.values import EvaluationError, identical
from tests.rules.sql.generated_trees import KEYS, STATEMENTS
from tests.rules.sql.reference_interpreter import Interpreter
from tests.rules.sql.statements import text_of_statement
from tests.support.examples import examples

FUNCTIONS = standard()
CONTEXT = RuleContext("n1", {"rule_id": "r"}, lambda: 7)
CLIENT = Client("c1", None, "10.0.0.1", 1883)
FAILED = object()

SCALARS = (
    st.integers(-3, 9)
    | st.sampled_from((0.5, 2.0, 1e308, 10**30))
    | st.booleans()
    | st.none()
    | st.sampled_from(("a", "", "8", "x", '{"x":{"y":2},"l":[1,{"x":3}]}', "[1,2]"))
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=4)
    ),
    max_leaves=8,
)
OBJECTS = st.fixed_dictionaries(
    {"x": VALUES, "l": st.lists(VALUES, max_size=4)},
    optional={key: VALUES for key in KEYS if key not in ("x", "l")},
)
PAYLOADS = (OBJECTS | OBJECTS | VALUES).map(json.dumps) | st.sampled_from(
    ("", "no json", "{", "\xff")
)


def outcome(run: Any, *arguments: Any) -> Any:
    try:
        result = run(*arguments)
        return [*result] if isinstance(result, list) else result
    except (EvaluationError, JsonError):
        return FAILED


def check(sql: str, payload: bytes) -> None:
    tree = parse(sql)
    try:
        on_message = compile_for_messages(tree, FUNCTIONS, CONTEXT)
    except Invalid:  # a literal that cannot be: told when the rule is saved
        assume(False)
    on_event = compile_for_events(tree, FUNCTIONS, CONTEXT)
    explained = compile_for_events(tree, FUNCTIONS, CONTEXT, lambda *_: None)
    message = Message("t/a", payload, 1, False, CLIENT, 5_000_000)
    columns = all_columns(message, "n1", {"rule_id": "r"}, lambda: 7)
    wanted = outcome(Interpreter(FUNCTIONS, columns).run, tree)
    for got in (
        outcome(on_message.run, message),
        outcome(on_event.run, Event(columns)),
        outcome(explained.run, Event(columns)),
    ):
        assert got is wanted or identical(got, wanted), (sql, payload, got, wanted)


@pytest.mark.parametrize(
    "text", ["{} AND payload", "{} OR payload", "NOT ({} AND payload)", "NOT ({} OR payload)"]
)
@pytest.mark.parametrize("left", ["clientid.x", "qos = 1", "qos = 2", "NOT clientid.x"])
@pytest.mark.parametrize("payload", [b"true", b"1", b"no json"])
def test_an_operand_behind_one_that_decides_is_not_evaluated(
    text: str, left: str, payload: bytes
) -> None:
    check(f'SELECT {text.format(left)} AS v FROM "t"', payload)


@settings(max_examples=examples(250), deadline=None, report_multiple_bugs=False)
@given(STATEMENTS, PAYLOADS)
def test_compiled_gives_what_is_interpreted(tree: Any, payload: str) -> None:
    check(text_of_statement(tree), payload.encode("latin-1"))
