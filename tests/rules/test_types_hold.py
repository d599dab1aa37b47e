"""The type inferred for a column holds for every value that the compiled rule gives.

Random schemas, random payloads that they accept, random SQL over them: whatever the rule makes of the message
is of the type that was promised before any message came.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st
from sqlglot import exp

from broker.core.client import Client
from broker.core.errors import SluiceError
from broker.core.message import Message
from broker.core.schema import FieldType
from rules.functions.library import standard
from rules.functions.registry import Function
from rules.sql.compiler.compile import compile_for_messages
from rules.sql.compiler.program import RuleContext
from rules.sql.syntax.parser import parse
from rules.sql.type_checker.inference import infer
from rules.sql.type_checker.inputs import message_input
from rules.sql.type_checker.operands import Operand, result_type
from rules.sql.type_checker.types import unified_all
from rules.sql.values import UNDEFINED, Bits
from schema_validation.serdes.base import DataRefused
from schema_validation.serdes.json_schema import JsonSchemaSerde
from tests.support.examples import examples

FUNCTIONS = standard()
NAMES = st.sampled_from(["a", "b", "c"])


def holds(kind: FieldType, value: Any) -> bool:
    """Whether a value is of a type."""
    if kind.name == "unknown":
        return True
    if value is UNDEFINED or value is None:
        return kind.nullable
    if kind.name in ("long", "double"):
        return type(value) in (int, float) and (kind.name == "double" or value == int(value))
    if kind.name in ("string", "binary"):
        return isinstance(value, (str, bytes)) and (not kind.values or value in kind.values)
    if kind.name == "array":
        return isinstance(value, list) and all(
            holds(kind.item or FieldType("unknown"), item) for item in value
        )
    if kind.name == "map":
        item = kind.item or FieldType("unknown")
        return isinstance(value, dict) and all(holds(item, member) for member in value.values())
    if kind.name == "struct":
        fits = isinstance(value, dict) and all(
            holds(inner, value.get(k, UNDEFINED)) for k, inner in kind.fields.items()
        )
        return fits and (kind.open or value.keys() <= kind.fields.keys())
    return kind.name == "boolean" and isinstance(value, bool)


# Schemas, each with the values that it may accept

Schema = dict[str, Any]
Typed = tuple[Schema, st.SearchStrategy[Any]]

_TEXTS = st.sampled_from(["", "on", "off", "12", "1.5", '{"a":1}', "x/y"])
_WHOLE = st.integers(-3, 10**6) | st.sampled_from([1.0, 2.0, 2**70])
_SCALARS: list[Typed] = [
    ({"type": "integer"}, _WHOLE),
    ({"type": "number"}, _WHOLE | st.floats(-1e6, 1e6)),
    ({"type": "string"}, _TEXTS),
    ({"type": "string", "enum": ["on", "off"]}, st.sampled_from(["on", "off"])),
    ({"enum": ["on", None]}, st.sampled_from(["on", None])),
    ({"const": 5}, st.just(5)),
    ({"type": "boolean"}, st.booleans()),
    ({"type": ["integer", "null"]}, st.none() | _WHOLE),
    ({"type": ["string", "integer"]}, _TEXTS | _WHOLE),
    ({}, _TEXTS | _WHOLE | st.none()),
]


def _nullable(typed: Typed) -> Typed:
    schema, values = typed
    return {"anyOf": [schema, {"type": "null"}]}, values | st.none()


def _array(typed: Typed) -> Typed:
    return {"type": "array", "items": typed[0]}, st.lists(typed[1], max_size=3)


def _map(typed: Typed) -> Typed:
    return {"type": "object", "additionalProperties": typed[0]}, st.dictionaries(
        NAMES, typed[1], max_size=3
    )


@st.composite
def _objects(draw: st.DrawFn, inner: st.SearchStrategy[Typed]) -> Typed:
    members = draw(st.dictionaries(NAMES, inner, min_size=1, max_size=3))
    required = [name for name in members if draw(st.booleans())]
    is_closed = draw(st.booleans())
    schema: Schema = {
        "type": "object",
        "properties": {k: v[0] for k, v in members.items()},
        "required": required,
    }
    if is_closed:
        schema["additionalProperties"] = False
    optional = {name: typed[1] for name, typed in members.items() if name not in required}
    values = st.fixed_dictionaries({name: members[name][1] for name in required}, optional=optional)
    if not is_closed:
        more = st.dictionaries(st.sampled_from(["a", "b", "c", "d"]), _TEXTS | _WHOLE, max_size=2)
        values = st.builds(lambda extra, own: {**extra, **own}, more, values)
    return schema, values


@st.composite
def _combined(draw: st.DrawFn, inner: st.SearchStrategy[Typed]) -> Typed:
    (one, of_one), (other, of_other) = draw(inner), draw(inner)
    word = draw(st.sampled_from(["anyOf", "oneOf", "allOf"]))
    return {word: [one, other]}, of_one | of_other


def _typed() -> st.SearchStrategy[Typed]:
    return st.recursive(
        st.sampled_from(_SCALARS),
        lambda inner: (
            _objects(inner)
            | _combined(inner)
            | inner.map(_array)
            | inner.map(_map)
            | inner.map(_nullable)
        ),
        max_leaves=6,
    )


# SQL

_STEPS = st.lists(
    NAMES.map(".{}".format) | st.sampled_from(["[1]", "[-1]", "[x]"]), max_size=3
).map("".join)
_ROOTS = st.sampled_from(
    ["payload", "payload", "payload", "x", "y", "topic", "qos", "flags", "username", "p"]
)
_PATHS = st.builds("{}{}".format, _ROOTS, _STEPS) | st.sampled_from(
    ["payload.a[1..2]", "payload.b[-2..-1]"]
)
_LITERALS = st.sampled_from(
    ["1", "2.5", "'on'", "'12'", "'a'", "true", "NULL", "[]", "{}", "[1..3]"]
)
_CALLS = [
    "abs({})", "upper({})", "length({})", "nth(1, {})", "first({})", "last({})", "sublist(1, {})", "str({})", "int({})",
    "float({})", "bool({})", "map({})", "map_get('a.b', {})", "mget('a', {}, 1)", "map_keys({})", "map_values({})",
    "map_to_entries({})", "split({}, '/')", "is_null({})", "json_encode({})", "payload('a.b')", "json_decode(payload)",
    "topic(1)", "flags()", "flag('retain')", "coalesce({})", "round({})", "floor({})", "map_size({})",
    "({} is null)", "({} like 'o%')",
]  # fmt: skip
_PAIRS = [
    "({} + {})", "({} - {})", "({} * {})", "({} / {})", "({} div {})", "({} = {})", "({} != {})", "({} < {})",
    "({} || {})", "({} in ({}))", "coalesce({}, {})", "coalesce_ne({}, {})", "map_put('a.c', {}, {})",
    "mput('b', {}, {})", "[{}, {}]", "{{a: {}, b: {}}}", "contains({}, {})",
    "case when payload.a = 1 then {} else {} end", "case {} when 1 then {} end", "div({}, {})", "({} between {} and 5)",
]  # fmt: skip


def _expressions() -> st.SearchStrategy[str]:
    return st.recursive(
        _PATHS | _LITERALS,
        lambda inner: (
            st.builds(lambda form, one: form.format(one), st.sampled_from(_CALLS), inner)
            | st.builds(
                lambda form, one, other: form.format(one, other),
                st.sampled_from(_PAIRS),
                inner,
                inner,
            )
            | inner.map("-{}".format)
        ),
        max_leaves=4,
    )


_TARGETS = st.sampled_from(
    [
        "x",
        "y",
        "p",
        "topic",
        "payload",
        "x.a",
        "x.a.b",
        "x[1]",
        "x[-0]",
        "x[1].a",
        "y[qos]",
        "payload.a",
        "payload.d.e",
    ]
)
_FIELDS = (
    st.builds("{} AS {}".format, _expressions(), _TARGETS)
    | st.builds("{} AS {}".format, _expressions(), _TARGETS)
    | _PATHS
    | st.sampled_from(["*", "payload", "payload AS p"])
)
_LISTS = st.lists(_FIELDS, min_size=1, max_size=4).map(", ".join)
_STATEMENTS = st.builds("SELECT {} FROM 't/#'".format, _LISTS) | st.builds(
    "FOREACH {} AS {} DO {} FROM 't/#'".format, _expressions(), st.sampled_from(["x", "s"]), _LISTS
)


def check(schema: Schema, payload: Any, sql: str) -> None:
    """Hold the rows of a statement for a payload against the types inferred from the schema."""
    serde = JsonSchemaSerde(json.dumps(schema))
    data = json.dumps(payload).encode()
    try:
        serde.decode(data)
    except DataRefused:
        assume(False)
    try:
        tree = parse(sql)
        program = compile_for_messages(
            tree, FUNCTIONS, RuleContext("n", {"rule_id": "r"}, lambda: 5)
        )
    except SluiceError:
        assume(False)
    found = infer(tree, FUNCTIONS, [message_input("t/#", serde.field_type())])
    message = Message("t/1", data, 1, False, Client("c", None, None, None), 5)
    try:
        result = program.run(message)
    except SluiceError:
        return
    columns = dict(found.columns)
    for row in result if isinstance(result, list) else [] if result is None else [result]:
        assert found.has_star or row.keys() <= columns.keys()
        for name, kind in columns.items():
            assert holds(kind, row.get(name, UNDEFINED)), (
                sql,
                name,
                kind,
                row.get(name, UNDEFINED),
            )


@settings(
    max_examples=examples(300),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
@given(
    (_objects(_typed()) | _objects(_typed()) | _typed()).flatmap(
        lambda typed: st.tuples(st.just(typed[0]), typed[1])
    ),
    _STATEMENTS,
)
@example(
    ({"type": "object", "properties": {"a": {"type": "integer"}}}, {"a": 1.0}),
    "SELECT payload.a + 1 AS x FROM 't'",
)
def test_the_type_of_a_column_holds_for_its_values(data: tuple[Schema, Any], sql: str) -> None:
    schema, payload = data
    check(schema, payload, sql)


# Functions by themselves

_SCALAR_VALUES = (
    st.integers(-3, 300)
    | st.floats(-1e6, 1e6)
    | st.booleans()
    | st.none()
    | st.sampled_from(
        [
            UNDEFINED,
            "",
            "on",
            "12",
            "a/b",
            '{"a": {"b": 1}}',
            "[1, 2]",
            "second",
            "%Y-%m-%d",
            "+08:00",
            "a",
        ]
    )
)
_VALUES = st.recursive(
    _SCALAR_VALUES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=5,
)


def type_of(value: Any) -> FieldType:
    """The closest type of a value."""
    if value is UNDEFINED or value is None:
        return FieldType("null")
    if isinstance(value, dict):
        return FieldType(
            "struct", False, {name: type_of(inner) for name, inner in value.items()}, open=False
        )
    if isinstance(value, list):
        return FieldType("array", False, item=unified_all(map(type_of, value)))
    names = {bool: "boolean", int: "long", float: "double", str: "string", bytes: "string"}
    return FieldType(names[type(value)], nullable=False)


@pytest.mark.parametrize("function", list(FUNCTIONS), ids=lambda function: function.name)
@settings(max_examples=examples(15), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_the_type_of_a_function_s_result_holds(function: Function, data: Any) -> None:
    most = function.least + 2 if function.most is None else function.most
    arguments = [data.draw(_VALUES) for _ in range(data.draw(st.integers(function.least, most)))]
    event = (
        []
        if function.column is None
        else [data.draw(_COLUMNS.get(function.column, st.just(UNDEFINED)))]
    )
    try:
        result = function.call(*event, *arguments)
    except SluiceError:
        return
    operands = [Operand(exp.column("x"), type_of(value)) for value in arguments]
    kind = result_type(function, operands)
    assert isinstance(result, Bits) or holds(kind, result), (function.name, arguments, kind, result)


_COLUMNS = {
    "topic": st.sampled_from(["a/b", UNDEFINED]),
    "flags": st.sampled_from([{"retain": True, "dup": False}, UNDEFINED]),
    "qos": st.sampled_from([1, UNDEFINED]),
}
