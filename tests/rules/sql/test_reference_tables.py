"""The tables of the language reference, a case for each line at least."""

from __future__ import annotations

from typing import Any

import pytest

from broker.core.errors import Invalid
from rules.sql.syntax.parser import parse
from rules.sql.values import UNDEFINED, identical
from tests.rules.sql.evaluation import FAILED, PAYLOAD, holds, result, row, value

U = UNDEFINED


@pytest.mark.parametrize(
    ("expression", "want"),
    [
        # values and their texts
        ("str(1500.0)", "1500.0"), ("str(3.14159265358979)", "3.14159265358979"), ("str(1e2)", "100.0"),
        ("str(4e-11)", "4e-11"), ("'t' || 1e22", "t1e22"), ("1e15 + ''", "1000000000000000.0"),
        ("str(2.0)", "2.0"), ("str(0.1)", "0.1"), ("str([])", "[]"), ("str(payload.o)", '{"k":"v","1":"one"}'),
        ("str(payload.n)", "null"), ("str(missing)", "undefined"), ("str(['é/'])", '["é/"]'),
        ("1 + true", FAILED), ("true = 1", False), ("payload.big", 12345678901234567890123),
        # numbers and literals
        ("0012", 12), ("1.5e3", 1500.0), ("1.5E-2", 0.015), ("1e3", 1000.0), ("TRUE", True), ("False", False),
        ("NULL", U), ("null", U), ("'\\n'", "\\n"), ("'it''s'", "it's"), ("''", ""), ("''''", "'"),
        # operators
        ("1 + 2", 3), ("1 + 2.0", 3.0), ("3 - 5", -2), ("2 * 2.5", 5.0), ("'1' + 1", "11"), ("1 + '2' + 3", "123"),
        ("'a' + missing", "aundefined"), ("4 / 2", 2.0), ("1 / 0", FAILED), ("1.0 / 0.0", FAILED),
        ("-5 div 2", -2), ("-5 mod 3", -2), ("5 mod -3", 2), ("div(7, 2)", 3), ("mod(7, 2)", 1), ("5 div 0", FAILED),
        ("5 mod 0", FAILED), ("5.0 div 2", FAILED), ("'5' - 1", FAILED), ("missing + 1", FAILED), ("-'5'", FAILED),
        ("+'5'", "5"), ("- -payload.i", 5), ("2 + 3 * 4 - 1", 13), ("(2 + 3) * 4", 20), ("10 - 4 - 3", 3),
        ("100 / 10 / 2", 5.0), ("-payload.i div 2", -2), ("1e308 * 10", FAILED),
        # comparison, the first row that applies
        ("missing = other", True), ("missing >= other", True), ("missing <= other", True),
        ("not missing >= other", False), ("not missing < other", False), ("missing between other and other", False),
        ("missing not between other and other", False),
        ("missing != other", False), ("missing < other", False), ("missing > other", False),
        ("missing = 1", False), ("missing != 1", False), ("1 != missing", False), ("1 < missing", False),
        ("payload.num = 8", True), ("payload.num > 7.5", True), ("8 = '8.0'", True), ("'8e0' = 8", True),
        ("payload.s > 1", FAILED), ("payload.e = 0", FAILED), ("true = 'true'", True), ("'null' = payload.n", True),
        ("true = 'x'", False), ("1 = 1.0", True), ("payload.big > 1e22", True), ("'10' < '9'", True),
        ("'B' < 'a'", True), ("'é' = 'é'", True), ("[1, 2.0] = [1.0, 2]", True), ("[1] = ['1']", False),
        ("{a: 1} = {a: 1.0}", True), ("[1] = '1'", False), ("payload.o != 5", True), ("true != 1", True),
        ("1 < true", FAILED), ("true < payload.o", FAILED), ("payload.o < payload.l", FAILED),
        ("payload.l < 'a'", FAILED), ("payload.o > 1", FAILED), ("payload.l > 1", FAILED), ("payload.t > 1", FAILED),
        ("payload.o < payload.o", FAILED), ("[1] < [true]", FAILED), ("[1] < ['2']", FAILED), ("[1, 2] < [1, 3]", True),
        ("false < true", True), ("true > 'abc'", True),
        # null has no place in any order, as in SQL; neither has what is missing
        *((f"{value} {sign} {other}", False) for value in ("payload.n", "missing") for sign in ("<", "<=", ">", ">=")
          for other in ("5", "'a'", "true", "payload.l", "payload.o", "payload.n")),
        *((f"5 {sign} payload.n", False) for sign in ("<", "<=", ">", ">=")),
        *((f"not payload.n {sign} 5", False) for sign in ("<", "<=", ">", ">=")),
        *((f"not not payload.n {sign} 5", False) for sign in ("<", "<=", ">", ">=")),
        ("not payload.i > 9", True), ("not payload.i > 4", False), ("not (payload.n > 5 and payload.t)", False),
        ("not (payload.n > 5 and payload.no)", True), ("not (payload.n > 5 or payload.no)", False),
        ("not (payload.n > 5 or payload.t)", False), ("not (missing > 5 or payload.i > 9)", False),
        ("not (payload.t and abs(payload.i) > 9)", True), ("not (payload.n > 1 and abs(payload.i) > 4)", False),
        ("not (payload.n > 1 and abs(payload.i) > 9)", True), ("not (payload.i > 9 and 1 / 0 > 1)", True),
        ("not (payload.i and payload.t)", FAILED), ("not (payload.n and payload.t)", False),
        ("not (payload.n and payload.no)", True), ("not not payload.n", False), ("not not missing > 5", False),
        ("payload.n between 1 and 9", False), ("payload.n not between 1 and 9", False),
        ("5 not between payload.n and 9", False), ("5 not between payload.n and 4", True),
        ("not payload.n between 1 and 9", False), ("payload.i not between 6 and payload.n", True),
        ("payload.n not like 'a%'", False), ("missing not like 'a%'", False), ("not payload.n like payload.s", False),
        ("case when payload.n > 5 then 'hot' else 'unknown' end", "unknown"),
        ("case when not payload.n > 5 then 'cool' else 'unknown' end", "unknown"),
        ("null > 1", False), ("not null > 1", False), ("not (null between 1 and 2)", False),
        ("not null like 'a'", False),
        ("payload.n = payload.n", True), ("payload.n != 1", True), ("not payload.n = 1", True),
        # topics
        ("topic =~ 't/+/b'", True), ("'a//b' =~ 'a/+/b'", True), ("'a' =~ 'a/#'", True), ("'$SYS/a' =~ '#'", False),
        ("'$SYS/a' =~ '+/a'", False), ("'$SYS/a' =~ '$SYS/#'", True), ("'A' =~ 'a'", False),
        ("missing =~ '#'", False), ("topic =~ missing", False),
        # exact equality
        ("8 in (8.0)", False), ("8 in ('8')", False), ("8 in (7, 8)", True), ("missing in (other)", True),
        ("payload.l in ([1, 2, 3])", True), ("payload.l in ([1.0, 2, 3])", False), ("true in (1)", False),
        ("payload.s in ('a', 'b', 'c')", True), ("payload.o in ('a')", False), ("payload.n in ('null')", False),
        ("case 8 when 8.0 then 1 else 2 end", 2), ("case 8 when '8' then 1 else 2 end", 2),
        ("case missing when other then 1 end", 1), ("case 8 when 7 then 1 end", U), ("eq(1, 1.0)", True),
        ("eq(1, '1')", False), ("eq(missing, other)", True), ("contains(8.0, [8])", False),
        # conditions as values
        ("not payload.t", False), ("not payload.i", False), ("not missing", False), ("not payload.n", False),
        ("payload.t and payload.no", False), ("payload.no or payload.t", True), ("payload.no and payload.i", False),
        ("payload.t or payload.i", True), ("payload.t and payload.i", FAILED), ("missing or payload.t", True),
        ("not (payload.t and payload.no)", True), ("not payload.i in (1, 2)", True), ("not not payload.t", True),
        ("payload.i not in (1, 5)", False), ("not payload.i = 5 or payload.t", True),
        ("not payload.i = 4 and payload.no", False),
        ("case when payload.i then 1 when payload.n then 2 else 3 end", 3),
        ("case when payload.i > 9 then 1 when payload.i = 5 then 2 end", 2),
        ("case payload.s when 'a' then 1 / 0 when 'b' then 2 end", 2),
        ("1 + case when true then case payload.i when 5 then 2 end end", 3),
        # what users of SQL expect
        ("payload.i is null", False), ("payload.n is null", True), ("missing is null", True),
        ("payload.n is not null", False), ("payload.i between 5 and 6", True), ("payload.i between 6 and 9", False),
        ("payload.i not between 6 and 9", True), ("missing between 1 and 2", False), ("'b' between 'a' and 'c'", True),
        ("payload.s like '_'", True), ("payload.s not like 'b%'", False), ("missing like '%'", False),
        ("payload.n like '%'", False), ("payload.i like '5'", FAILED), ("1 || 'a' || missing", "1aundefined"),
        ("{a: 1, 'b c': [2], \"d\": {}}", {"a": 1, "b c": [2], "d": {}}), ("{}", {}), ("{a: 1, a: 2}", {"a": 2}),
        ("[payload.i > 4, payload.t and true]", [True, True]), ("str(payload.i = 5)", "true"),
        ("split(topic, '/')[2]", "a"), ("[1, 2, 3][-1]", 3), ("{a: {b: 7}}.a.b", 7), ("json_decode('[1]')[1]", 1),
        ("split(topic, '/')[1..2]", ["t", "a"]), ("(payload.m)[2].a", 2), ("upper('x').y", U), ("[1, 2][i]", U),
        # paths
        ("payload.j.k", 7), ("payload.j.l[1].m", 1), ("payload.s.k", U), ("payload.o[1]", U), ("payload.l.k", U),
        ("payload.l[1]", 1), ("payload.l[+2]", 2), ("payload.l[-1]", 3), ("payload.l[-3]", 1), ("payload.l[-4]", U),
        ("payload.l[0]", U), ("payload.l[-0]", U), ("payload.l[4]", U), ("payload.o.1", "one"),
        ("payload.'o'.\"k\"", "v"), ("payload.l[qos]", 1), ("payload.l[idx]", 2), ("payload.l[payload.idx]", 2),
        ("payload.l[payload.s]", U), ("payload.l[1..2]", [1, 2]), ("payload.l[2..9]", [2, 3]),
        ("payload.l[9..10]", []), ("payload.l[3..2]", []), ("payload.l[3..1]", FAILED), ("payload.l[-2..-1]", [2, 3]),
        ("payload.l[-9..2]", FAILED), ("payload.l[0..1]", FAILED), ("payload.l[1..0]", FAILED),
        ("payload.s[1..2]", FAILED), ("missing[1..2]", FAILED), ("[2..4]", [2, 3, 4]), ("[3..2]", []),
        ("[3..1]", FAILED), ("[-1..1]", [-1, 0, 1]), ("[1, 'a', payload.i]", [1, "a", 5]), ("[]", []),
    ],
)  # fmt: skip
def test_expression(expression: str, want: Any) -> None:
    got = value(expression)
    assert got is want or identical(got, want), got


@pytest.mark.parametrize(
    ("condition", "want"),
    [
        ("payload.t", True), ("payload.no", False), ("missing", False), ("payload.n", False), ("payload.i", FAILED),
        ("payload.s", FAILED), ("true", True), ("FALSE", False), ("is_null(missing)", True),
        ("upper(clientid)", FAILED), ("topic(1) = 't'", True), ("clientid() = 'c1' and qos() = 1", True),
        ("case when payload.t then true else 1 end", True), ("payload.i = 5 and payload.f = 2.5", True),
        ("payload.i = 4 or payload.f = 2.5", True), ("not payload.i = 4", True), ("(payload.i = 5)", True),
        ("payload.no and 1 / 0 = 1", False), ("payload.t or 1 / 0 = 1", True), ("1 / 0 = 1 or payload.t", FAILED),
    ],
)  # fmt: skip
def test_where(condition: str, want: Any) -> None:
    assert holds(condition) == want


@pytest.mark.parametrize(
    ("fields", "want"),
    [
        ("'zz' as clientid, clientid as c2", {"clientid": "zz", "c2": "zz"}),
        ("null() as clientid, clientid as c2", {"c2": "c1"}),
        ("payload.i, payload.s as s", {"payload": {"i": 5}, "s": "b"}),
        ("payload.i, payload.o.k", {"payload": {"i": 5, "o": {"k": "v"}}}),
        ("payload.l[2]", {"payload": {"l": [2]}}),
        ("payload.l[2..3]", {"payload": {"l": [2, 3]}}),
        ("payload.i, payload.l[1..2] as r", {"payload": {"i": 5}, "r": [1, 2]}),
        ("7 as idx, payload.l[idx] as r", {"idx": 7}),  # the row first
        ("3 as idx, payload.l[idx] as r", {"idx": 3, "r": 3}),
        ("payload.i as x, x + 1 as y", {"x": 5, "y": 6}),
        ("clientid c, topic \"t t\"", {"c": "c1", "t t": "t/a/b"}),
        ("1 as a, 2 as a.b", {"a": {"b": 2}}),
        ("[1, 2] as a, 9 as a[1], 8 as a[-1]", {"a": [9, 8]}),
        ("[1, 2] as a, 9 as a[5], 9 as a[-5]", {"a": [1, 2]}),
        ("[1] as a, 0 as a[0], 2 as a[-0]", {"a": [0, 1, 2]}),
        ("1 as a[5]", {"a": [1]}),
        ("1 as a[5].b.c", {"a": [{"b": {"c": 1}}]}),
        ("[1, 2] as a, 2 as i, 9 as a[i], 'x' as j, 7 as a[j]", {"a": [1, 9], "i": 2, "j": "x"}),
        ("payload as p, p.i as i, 5 as p.x", {"p": {**PAYLOAD, "x": 5}, "i": 5}),
        ("payload as p, 5 as p.o.x", {"p": {**PAYLOAD, "o": {"k": "v", "1": "one", "x": 5}}}),
        ("payload as p, 5 as p.l[1]", {"p": {**PAYLOAD, "l": [5, 2, 3]}}),
        ("json_encode(payload.o) as t, 5 as t.x", {"t": {"k": "v", "1": "one", "x": 5}}),
        ("json_encode(payload.l) as t, 5 as t[-0]", {"t": [1, 2, 3, 5]}),
        ("{a: '{\"b\":{\"c\":1}}'} as t, 5 as t.a.b.d", {"t": {"a": {"b": {"c": 1, "d": 5}}}}),
        ("'text' as t, 5 as t.x", {"t": {"x": 5}}), ("'[1]' as t, 5 as t.x", {"t": {"x": 5}}),
        ("'{\"a\":1}' as t, 5 as t[1]", {"t": [5]}), ("'[1]' as t, 5 as t[missing]", {"t": "[1]"}),
        ("json_decode(payload) as p, 5 as p.i, p.i as i", {"p": {**PAYLOAD, "i": 5}, "i": 5}),
        ("payload, 6 as payload.i", {"payload": {**PAYLOAD, "i": 6}}),
        ("6 as payload.i", {"payload": {"i": 6}}),
        ("1 as a, 2 as a", {"a": 2}),
        ("'text', 1 + 1, upper(clientid), -qos", {"text": "text", "1 + 1": 2, "upper(clientid)": "C1", "-qos": -1}),
        ("1 as \"a.b\", \"a.b\" as c", {"a.b": 1, "c": 1}),
        ("payload.\"i\", payload.'s'", {"payload": {"i": 5, "s": "b"}}),
        ("clientid = 'c1' as same, case when true then 1 end one", {"same": True, "one": 1}),
    ],
)  # fmt: skip
def test_fields(fields: str, want: Any) -> None:
    assert row(fields) == want


@pytest.mark.parametrize(
    "payload", ["", "no json", b"\xff\x00", '{"a":1} x', "[1,]", "NaN", "{'a':1}"]
)
def test_a_payload_that_is_no_json_fails_where_it_is_looked_into(payload: Any) -> None:
    assert row("payload.x as x", payload) == FAILED
    assert holds("payload.x = 1", payload) == FAILED
    assert result('FOREACH payload FROM "#"', payload) == FAILED
    assert row("payload as p, p.x as x", payload) == {"p": payload}
    assert row("payload", payload) == {"payload": payload}


@pytest.mark.parametrize("payload", ["5", '"text"', "true", "null", "[1]", ' {"x" : 1, "x" : 2} '])
def test_any_json_may_be_looked_into(payload: str) -> None:
    assert row("payload.x as x", payload) == ({"x": 2} if "x" in payload and "{" in payload else {})


@pytest.mark.parametrize(
    ("sql", "want"),
    [
        ("FOREACH payload.m DO item.a", [{"item": {"a": 1}}, {"item": {"a": 2}}]),
        ("FOREACH payload.m AS s DO s.a AS v, v + payload.i AS w", [{"v": 1, "w": 6}, {"v": 2, "w": 7}]),
        ("FOREACH 3 AS n, payload.l AS s DO s * n AS v INCASE s != 2", [{"v": 3}, {"v": 9}]),
        ("FOREACH payload.i", []), ("FOREACH missing", []), ("FOREACH payload.o", []), ("FOREACH payload.s", []),
        ("FOREACH json_encode(payload.l) AS x DO x", [{"x": 1}, {"x": 2}, {"x": 3}]),
        ("FOREACH json_encode(payload.l) AS x DO x AS y", [{"y": 1}, {"y": 2}, {"y": 3}]),
        ("FOREACH json_encode(payload.o) AS x DO x", []), ("FOREACH '[1' AS x DO x", []),
        ("FOREACH [1..3] AS x DO x", [{"x": 1}, {"x": 2}, {"x": 3}]),
        ("FOREACH [1, 2] AS x DO x AS y INCASE y = 1", []),  # INCASE comes first
        ("FOREACH [1, 2] AS x DO x, x + 10 AS x, x AS y", [{"x": 11, "y": 11}, {"x": 12, "y": 12}]),
        ("FOREACH jq('.l[]', payload) AS x DO x", [{"x": 1}, {"x": 2}, {"x": 3}]),
        ("FOREACH [0, 1] AS x DO 1 / x AS y", FAILED),
        ("FOREACH [1, 2, 3] AS x DO clientid AS c INCASE clientid = 'c1' and x > 2", [{"c": "c1"}]),
    ],
)  # fmt: skip
def test_foreach(sql: str, want: Any) -> None:
    assert result(f'{sql} FROM "t/#"') == want


def test_in_where_the_alias_is_the_whole_array() -> None:
    assert result('FOREACH payload.l AS s DO s FROM "#" WHERE length(s) = 3') == [
        {"s": 1},
        {"s": 2},
        {"s": 3},
    ]
    assert result('FOREACH payload.l AS s DO s FROM "#" WHERE length(s) = 2') is None


@pytest.mark.parametrize("do", ["", "DO *"])
def test_without_do_a_row_is_all_columns_aliases_and_the_element(do: str) -> None:
    rows = result(f'FOREACH 1 AS n, payload.l AS s {do} FROM "t/#"')
    assert [(one["n"], one["s"], one["clientid"], one["topic"]) for one in rows] == [
        (1, item, "c1", "t/a/b") for item in (1, 2, 3)
    ]


def test_an_error_in_select_fails_though_where_is_false() -> None:
    assert result('SELECT 1 / payload.e FROM "#" WHERE false') == FAILED


@pytest.mark.parametrize(
    "sql",
    [
        "", "SELECT a", "SELECT FROM t", "SELECT a as [1..3] FROM t", "SELECT a.b[1..3].c FROM t",
        "SELECT [1..2][1] FROM t",
        "SELECT a.1.100 FROM t", "SELECT 1.b FROM t", "SELECT 1 < 2 < 3 FROM t", "SELECT .5 FROM t", "SELECT 5. FROM t",
        "SELECT a AS 'b' FROM t", "SELECT a FROM t WHERE", "FOREACH a INCASE b DO c FROM t", "SELECT a.select FROM t",
        "SELECT a FROM select", "SELECT a FROM t;;", "SELECT 5 DIV 2 FROM t x", "SELECT a AND FROM t",
    ],
)  # fmt: skip
def test_what_does_not_parse(sql: str) -> None:
    with pytest.raises(Invalid):
        parse(sql)


@pytest.mark.parametrize(
    "sql",
    [
        "select a from t", "\n\tSELECT\r\n a FROM t ;", "SELECT a FROM t -- the end", "SELECT a FROM t --",
        "SELECT /* a\n b */ a FROM t", "SELECT a-- b\n, c FROM t", "SELECT _a, a_$@~9, ä FROM t",
        "SELECT '--', \"/*\" FROM t",
        "SELECT a FROM t, 'b/#', \"c/+\"", "foreach a do b incase c from t where d", "SELECT * , * FROM t",
        "SELECT div, mod, like, is, between, escape, jq FROM t", "SELECT a div b, a mod b, div(a, b) FROM t",
        "SELECT \"select\", payload.\"from\" FROM t", "SELECT a FROM t WHERE a=1 and(b=2)",
    ],
)  # fmt: skip
def test_what_parses(sql: str) -> None:
    parse(sql)
