"""Spark SQL against the broker's function: every operator, every function with a Spark form, on any payload."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from broker.core.schema import FieldType
from rules.functions.library import standard
from rules.functions.spark_form import SparkForm
from tests.differential.runtimes import (
    FAILED,
    IRREGULAR,
    Outcome,
    Record,
    compiled_in_spark,
    frame_of,
    in_spark_sql,
    live,
    statement_of,
)
from tests.support.examples import examples

pytestmark = pytest.mark.spark

LONG, DOUBLE, STRING, BOOLEAN = (
    FieldType(name) for name in ("long", "double", "string", "boolean")
)
PAYLOAD = FieldType(
    "struct",
    fields={
        "i": LONG, "j": LONG, "x": DOUBLE, "y": DOUBLE, "s": STRING, "u": STRING, "t": STRING, "f": BOOLEAN,
        "g": BOOLEAN, "o": FieldType("struct", fields={"x": DOUBLE, "s": STRING}), "key with `": LONG,
    },
)  # fmt: skip

FUNCTIONS = {
    "abs": ["abs(payload.i)", "abs(payload.x)", "abs(payload.x / 3)"],
    "ascii": ["ascii(payload.s)"],
    "base64_encode": ["base64_encode(payload.s)"],
    "bin2hexstr": ["bin2hexstr(payload.s)"],
    "bitand": ["bitand(payload.i, payload.j)"],
    "bitnot": ["bitnot(payload.i)"],
    "bitor": ["bitor(payload.i, payload.j)"],
    "bitsize": ["bitsize(payload.s)"],
    "bitsl": ["bitsl(payload.i, payload.j)", "bitsl(payload.i, 3)"],
    "bitsr": ["bitsr(payload.i, payload.j)"],
    "bitxor": ["bitxor(payload.i, payload.j)"],
    "bool": ["bool(payload.f)"],
    "bytesize": ["bytesize(payload.s)"],
    "ceil": ["ceil(payload.i)", "ceil(payload.x)", "ceil(payload.x / 7)"],
    "clientid": ["clientid()"],
    "coalesce": [
        "coalesce(payload.s, 'none')", "coalesce(payload.i, payload.j)", "coalesce(payload.x, payload.y)",
        "coalesce(payload.f, true)", "coalesce(payload.x / 3, 0.5)",
    ],
    "concat": ["concat(payload.s, payload.i)", "concat(payload.f, payload.u)"],
    "div": ["div(payload.i, payload.j)", "payload.i div 7"],
    "find": ["find(payload.s, payload.u)", "find(payload.s, 'e')"],
    "float": ["float(payload.i)", "float(payload.x)"],
    "floor": ["floor(payload.i)", "floor(payload.x)", "floor(payload.x / 7)"],
    "fmod": ["fmod(payload.x, payload.y)", "fmod(payload.i, payload.x)"],
    "hash": [
        f"hash('{name}', payload.s)" for name in ("md5", "sha", "sha1", "sha224", "sha256", "sha384", "sha512")
    ],
    "int": ["int(payload.i)", "int(payload.x)", "int(payload.x / 7)", "int(payload.f)"],
    "is_array": [f"is_array(payload.{name})" for name in "ixsf"] + ["is_array(payload.x / 2)"],
    "is_bool": [f"is_bool(payload.{name})" for name in "ixsf"] + ["is_bool(payload.x / 2)"],
    "is_float": ["is_float(payload.i)", "is_float(payload.s)", "is_float(payload.f)", "is_float(payload.x / 2)"],
    "is_int": ["is_int(payload.i)", "is_int(payload.s)", "is_int(payload.f)", "is_int(payload.x / 2)"],
    "is_map": [f"is_map(payload.{name})" for name in "ixsf"] + ["is_map(payload.x / 2)"],
    "is_not_null": [f"is_not_null(payload.{name})" for name in "ixsf"] + ["is_not_null(payload.x / 2)"],
    "is_null": [f"is_null(payload.{name})" for name in "ixsf"] + ["is_null(payload.x / 2)"],
    "is_num": [f"is_num(payload.{name})" for name in "ixsf"] + ["is_num(payload.x / 2)"],
    "is_str": [f"is_str(payload.{name})" for name in "ixsf"] + ["is_str(payload.x / 2)"],
    "lower": ["lower(payload.s)"],
    "ltrim": ["ltrim(payload.s)"],
    "md5": ["md5(payload.s)"],
    "mod": ["mod(payload.i, payload.j)", "payload.i mod 7"],
    "pad": [
        "pad(payload.s, payload.j)", "pad(payload.s, 5)", "pad(payload.s, 5, 'trailing')",
        "pad(payload.s, 5, 'leading')",
    ],
    "qos": ["qos()"],
    "replace": ["replace(payload.s, payload.u, '-')", "replace(payload.s, 'e', payload.u)"],
    "reverse": ["reverse(payload.s)"],
    "rfc3339_to_unix_ts": [
        "rfc3339_to_unix_ts(payload.t)",
        *(f"rfc3339_to_unix_ts(payload.t, '{unit}')" for unit in ("second", "millisecond", "microsecond")),
    ],
    "rm_prefix": ["rm_prefix(payload.s, payload.u)", "rm_prefix(payload.s, 'a')"],
    "round": ["round(payload.i)", "round(payload.x)", "round(payload.x / 7)"],
    "rtrim": ["rtrim(payload.s)"],
    "sha": ["sha(payload.s)"],
    "sha256": ["sha256(payload.s)"],
    "sqlserver_bin2hexstr": ["sqlserver_bin2hexstr(payload.s)"],
    "str": ["str(payload.s)", "str(payload.i)", "str(payload.f)"],
    "str_utf8": ["str_utf8(payload.s)"],
    "strlen": ["strlen(payload.s)"],
    "substr": [
        "substr(payload.s, payload.i)", "substr(payload.s, 1)", "substr(payload.s, 1, 2)",
        "substr(payload.s, 0, payload.j)",
    ],
    "topic": ["topic()", "topic(2)"],
    "trim": ["trim(payload.s)"],
    "upper": ["upper(payload.s)"],
    "username": ["username()"],
}  # fmt: skip
"""Calls of each function with a Spark form, that between them use each of its forms."""

OPERATORS = [
    *(f"payload.{left} {sign} payload.{right}" for sign in ("+", "-", "*", "/") for left, right in ("ij", "xy", "ix")),
    "payload.x * 1.8 + 32", "payload.i + 1", "payload.i * 0.5", "-payload.i", "-payload.x", "+payload.x", "-5",
    "payload.s + payload.i", "payload.s || payload.u", "'a' || payload.f", "payload.s + 'x'", "1 + payload.u",
    *(f"payload.{left} {sign} payload.{right}"
      for sign in ("=", "!=", "<", "<=", ">", ">=") for left, right in ("ij", "xy", "ix", "su", "fg", "fs")),
    *(f"payload.{name} {sign} {literal}"
      for sign in ("=", "!=", "<", ">=") for name, literal in (("i", "3"), ("x", "20"), ("x", "0.5"), ("s", "'abc'"))),
    "nosuchcolumn = payload.x", "null = payload.s", "payload.x <= null", "null >= null",
    "payload.f and payload.g", "payload.f or payload.x > 1", "not payload.f", "not payload.x > 1",
    "not payload.i < payload.x", "not payload.x <= null", "payload.x not between 1 and 20",
    "payload.x not between payload.y and payload.i", "not (payload.x > 1 and payload.f)",
    "not (payload.s >= 'b' or payload.i < 2)", "not not payload.x >= 2",
    "not (not payload.f and payload.s < payload.u)",
    "not (payload.s = 'abc' or payload.s like 'a%')", "case when not payload.x > 20 then 'cool' else 'unknown' end",
    "not (payload.f and payload.i = 1)", "payload.x > 1 and payload.y / payload.x > 0.5",
    "payload.i in (1, 2, 3)", "payload.s in ('a', 'abc', payload.u)", "payload.i not in (1, '1')",
    "payload.x is null", "payload.s is not null", "payload.x between 1 and 20", "payload.s between 'a' and payload.u",
    "payload.s like 'a%'", "payload.s like '_b_'", "payload.s not like '%e%'",
    "topic =~ 'plant/+/temp'", "topic =~ '#'", "payload.s =~ 'a/#'", "topic =~ '$SYS/#'",
    "case when payload.x > 20 then 'hot' when payload.x > 10 then payload.s else 'cold' end",
    "case when payload.f then payload.i end", "case payload.i when 1 then 'one' when payload.j then 'j' end",
    "case when payload.i <> 0 then payload.j / payload.i else 0.0 end", "case payload.s when 'abc' then true end",
    "is_null_var(payload.s)", "is_not_null_var(payload.i)", "null", "'it''s \\ \"x\"'", "1e3", "12345678901",
    "payload.o.x", "payload.o.s", "payload.o.x + payload.x", 'payload."key with `"', "payload",
    "event", "clientid", "username", "topic", "qos", "flags.retain", "flags.dup", "publish_received_at", "timestamp",
    "node", "metadata.rule_id", "peerhost", "nosuchcolumn",
]  # fmt: skip

NASTY = [
    b"", b" ", b"null", b"5", b'"text"', b"[]", b'[{"i":1}]', b"{}", b" {} ", b'{"i":1} x', b'{"i":1}{}', b'{"i":1}]',
    b'{"i":1},{"i":2}', b'{"i":1}],"q":[{}', b'{"i":1.0,"x":1}', b'{"i":1e2,"x":1e2}', b'{"i":"1","x":"1"}',
    b'{"i":true,"f":1}', b'{"i":null,"x":null,"s":null,"f":null,"o":null}', b'{"s":5,"u":true}',
    b'{"s":{"a":1},"u":[1]}', b'{"o":5}', b'{"o":"{\\"x\\":1}"}', b'{"o":{"x":"y","s":1}}', b"{'i':1}", b'{"i":01}',
    b'{"i":1,}', b'{"i":1,"i":2,"x":5,"x":"q"}', b'{"x":NaN}', b'{"x":"NaN","y":"Infinity"}', b'{"x":1e400}',
    b'{"z":1e400,"i":1}', b'{"x":-0,"y":-0.0,"i":-0}', b'{"x":12345678901234567890,"i":12345678901234567890}',
    b'{"x":9007199254740993,"y":9007199254740992}', b'{"i":9223372036854775807,"j":-9223372036854775808}',
    b'{"i":9223372036854775808}', b'{"z":"\\ud800","i":1}', b'{"s":"\\ud83d\\ude00","i":1}', b'{"s":"a\\u0000b"}',
    b'{"s":"tab\there"}', b'{"s":"\xff"}', b"\xff", b'\xef\xbb\xbf{"i":1}', b'{"I":7,"S":"A"}', b'{"i":1',
    b'{"i":1}\n', b'/* c */{"i":1}', b'{"s":"sluice:2f8c1d0ab7"}', b'{"z":' + b"[" * 130 + b"]" * 130 + b"}",
    b'{"z":' + b"[" * 90 + b"]" * 90 + b',"i":1}', b'{"x":0.1,"y":0.2,"i":3,"j":0}', b'{"i":5,"j":-2,"x":2.5,"y":-2.5}',
    '{"s":"Grüße ß","u":"ü"}'.encode(), '{"s":"İstanbul ΑΣ","u":"Σ"}'.encode(), b'{"s":"a\\r\\nb","u":"\\r"}',
    '{"s":"\u2003 pad \u00a0","u":""}'.encode(), b'{"t":"2024-02-29T23:59:59Z"}', b'{"t":"2024-02-30T00:00:00Z"}',
    b'{"t":"2024-02-29T23:59:59.123456+05:30"}', b'{"t":"0000-01-01T00:00:00Z"}', b'{"t":"2024-02-29 23:59:59Z"}',
    b'{"t":"1969-12-31T23:59:59.999Z"}', b'{"t":"2024-12-31T23:59:60Z"}', b'{"t":"2024-01-01T00:00:00+23:59"}',
    b'{"x":0.49999999999999994,"y":4503599627370495.5}', b'{"x":-0.5,"y":1e-300}', b'{"x":1e300,"y":1e-300}',
    b'{"s":"abc","u":"b","i":1,"j":2,"x":20.5,"y":3,"f":true,"g":false,"o":{"x":1,"s":"q"},"key with `":4}',
]  # fmt: skip
"""Payloads on which the two might differ."""

TEXTS = st.one_of(
    st.sampled_from(["", "a", "abc", "ABC e", "true", "1", "a/b", " x ", "9", "line1\nline2"]),
    st.text(max_size=6),
)
NUMBERS = st.one_of(
    st.integers(-5, 40),
    st.floats(-50, 50, allow_nan=False).map(lambda number: round(number, 2)),
    st.floats(allow_nan=False, allow_infinity=False),
    st.integers(-(2**64), 2**64),
)
LONGS = st.one_of(st.integers(-5, 10), st.integers(-(2**63), 2**63 - 1), st.just(1.5))
ANYTHING = st.one_of(st.none(), st.booleans(), NUMBERS, TEXTS, st.just({"x": 1}), st.just([1]))


def _rarely(usual: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Mostly what the schema says."""
    return st.integers(0, 19).flatmap(lambda number: ANYTHING if number == 0 else usual)


OBJECTS = st.fixed_dictionaries(
    {},
    optional={
        "i": _rarely(LONGS), "j": _rarely(LONGS), "x": _rarely(NUMBERS), "y": _rarely(NUMBERS), "s": _rarely(TEXTS),
        "u": _rarely(TEXTS), "f": _rarely(st.booleans()), "g": _rarely(st.booleans()),
        "t": _rarely(st.datetimes().map(lambda moment: moment.isoformat() + "Z")),
        "o": _rarely(st.fixed_dictionaries({}, optional={"x": NUMBERS, "s": TEXTS})), "other": ANYTHING,
    },
)  # fmt: skip
RECORDS = st.builds(
    Record,
    payload=OBJECTS.map(lambda value: json.dumps(value, ensure_ascii=len(value) % 2 == 0).encode()),
    topic=st.sampled_from(
        ["plant/1/temp", "plant/2", "plant", "plant//temp", "$SYS/plant", "other/1/temp"]
    ),
    client_id=st.sampled_from(["meter-1", "", "m é"]),
    username=st.sampled_from([None, "", "alice"]),
    qos=st.integers(0, 2),
    retain=st.booleans(),
)
EXPRESSIONS = [*OPERATORS, *(call for calls in FUNCTIONS.values() for call in calls)]
CHUNK = 24
CHUNKS = [EXPRESSIONS[at : at + CHUNK] for at in range(0, len(EXPRESSIONS), CHUNK)]


def _select(expression: str) -> str:
    return f'SELECT {expression} AS v FROM "plant/#", "$SYS/plant"'


def _compare(spark: Any, rules: Sequence[str], records: Sequence[Record]) -> list[list[Outcome]]:
    """Hold all rules against the broker's function; gives what Spark SQL gave."""
    frame_of(spark, records).createOrReplaceTempView("cases")
    found = in_spark_sql(
        spark, [statement_of(sql, PAYLOAD) for sql in rules], "cases", len(records)
    )
    for sql, in_sql in zip(rules, found, strict=True):
        for record, expected, outcome in zip(records, live(sql, records), in_sql, strict=True):
            if outcome != IRREGULAR:
                assert _same(expected, outcome), (
                    f"{sql}\n{record}\nlive {expected!r}, Spark SQL {outcome!r}"
                )
    return found


def _same(expected: Outcome, outcome: Outcome) -> bool:
    if isinstance(expected, str) or isinstance(outcome, str):
        return expected == outcome
    return len(expected) == len(outcome) and all(
        one == other and isinstance(one, bool) == isinstance(other, bool)
        for one, other in zip(expected, outcome, strict=True)
    )


@pytest.mark.parametrize("chunk", range(len(CHUNKS)))
def test_expressions_on_payloads_that_are_meant_to_confuse(interpreting: Any, chunk: int) -> None:
    records = [Record(payload, username="alice") for payload in NASTY]
    found = _compare(interpreting, [_select(expression) for expression in CHUNKS[chunk]], records)
    for expression, outcomes in zip(CHUNKS[chunk], found, strict=True):
        assert any(isinstance(one, tuple) for one in outcomes), (
            f"{expression} is irregular everywhere"
        )


@pytest.mark.parametrize("chunk", range(len(CHUNKS)))
def test_expressions_on_random_payloads(interpreting: Any, chunk: int) -> None:
    @settings(
        max_examples=examples(2),
        deadline=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate],
    )
    @given(st.lists(RECORDS, min_size=80, max_size=80))
    def check(records: list[Record]) -> None:
        _compare(interpreting, [_select(expression) for expression in CHUNKS[chunk]], records)

    check()


def test_conditions_on_payloads_that_are_meant_to_confuse(interpreting: Any) -> None:
    records = [Record(payload, username="alice") for payload in NASTY]
    wheres = ["payload.x > 20", "payload.f", "not payload.f", "payload.s = 'abc' or payload.x / payload.y > 1",
              "payload.x > 1 and payload.i in (1, 5)", "lower(payload.s) = 'abc'", "payload.x is null"]  # fmt: skip
    _compare(
        interpreting,
        [f'SELECT payload.i AS i, topic FROM "#" WHERE {where}' for where in wheres],
        records,
    )


CANONICAL = (
    'SELECT payload.x AS t, payload.x * 1.8 + 32 AS f, clientid FROM "plant/#" WHERE payload.x > 20'
)
RULES = [
    (CANONICAL, ["double", "double", "string"]),
    ('SELECT payload.x AS x, x + 1 AS y, topic(2) AS n FROM "plant/+/temp"', ["double", "double", "string"]),
    ("SELECT upper(payload.s) AS s, qos, flags.retain AS r FROM \"#\" WHERE payload.s like 'a%' or payload.f",
     ["string", "long", "boolean"]),
    ("SELECT case when payload.i div payload.j > 1 then 'many' else str(payload.i) end AS s FROM \"plant/#\"",
     ["string"]),
]  # fmt: skip


@pytest.mark.parametrize(("sql", "kinds"), RULES)
def test_three_runtimes_give_the_same(spark: Any, sql: str, kinds: list[str]) -> None:
    records = [Record(payload, username="alice") for payload in NASTY]
    records += [
        Record(b'{"x":%d.5,"i":%d,"j":2,"s":"abc"}' % (number, number), retain=True)
        for number in range(40)
    ]
    statement = statement_of(sql, PAYLOAD)
    assert [kind for _, kind in statement.columns] == kinds
    frame = frame_of(spark, records)
    columns = [{"name": name, "type": kind} for name, kind in statement.columns]
    expected = live(sql, records)
    compiled = compiled_in_spark(frame, sql, columns, len(records))
    for record, one, other in zip(records, expected, compiled, strict=True):
        # A value that its column cannot hold is a dead letter in the table, whichever way it comes.
        assert _same(one, other) or (other == FAILED and _is_beyond_columns(one)), (
            record,
            one,
            other,
        )
    _compare(spark, [sql], records)


def _is_beyond_columns(row: Outcome) -> bool:
    return any(isinstance(value, int) and abs(value) > 2**53 for value in row) or any(
        isinstance(value, (str, bool)) for value in row
    )


def test_every_function_with_a_spark_form_is_held_against_the_brokers() -> None:
    named = {function.name for function in standard() if function.spark}
    aliases = {"timezone_to_second", "clientip"}
    assert named - aliases == set(FUNCTIONS)


def test_every_form_is_used() -> None:
    used: set[str] = set()
    for name, calls in FUNCTIONS.items():
        found = standard().get(name)
        assert found is not None
        assert len(calls) >= len({form.value for form in found.spark}), name
        used.update(form.value for form in found.spark)
    assert all(isinstance(form, SparkForm) for function in standard() for form in function.spark)
