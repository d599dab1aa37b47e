"""What SQL means, as pairs of text: an expression and the JSON of its value, a statement and its rows.

``!`` stands for a failure, ``undefined`` for an absent column.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from broker.core.errors import Invalid

PAYLOAD = (
    '{"i":5,"f":2.5,"s":"b","n":null,"t":true,"no":false,"l":[1,2,3],"o":{"k":"v","1":"one"},"j":"{\\"k\\":7}",'
    '"m":[{"a":1},{"a":2}],"e":"","big":12345678901234567890123,"idx":2}'
)


def answer(node: Any, sql: str, payload: str = PAYLOAD) -> dict[str, Any]:
    try:
        got: dict[str, Any] = node.service.test(
            {
                "sql": sql,
                "event": {"topic": "t/a/b", "clientid": "c1", "qos": 1, "payload": payload, "i": 2},
            }
        )
    except Invalid:
        return {"outcome": "error"}
    return got


def shown(got: dict[str, Any]) -> str:
    if got["outcome"] != "rows":
        return "!" if got["outcome"] == "error" else got["outcome"]
    row = got["rows"][0]
    return (
        json.dumps(row["r"], separators=(",", ":"), ensure_ascii=False)
        if "r" in row
        else "undefined"
    )


EXPRESSIONS = r"""
1 + 2 * 3                               7
2 * 3 + 1.0                             7.0
'1' + 1                                 "11"
1 + '2' + 3                             "123"
'a' + missing                           "aundefined"
4 / 2                                   2.0
1 / 0                                   !
7 div 2                                 3
-7 div 2                                -3
-7 mod 3                                -1
7 mod -3                                1
7.0 div 2                               !
1 + true                                !
payload.n + 1                           !
-payload.f                              -2.5
- -5                                    5
+payload.s                              "b"
payload.big + 1                         12345678901234567890124
payload.f * 1e308                       !
1e3                                     1000.0
1 = 1.0                                 true
'1' = 1.0                               true
'x' = 1                                 !
'' = 1                                  !
true = 'true'                           true
true = 1                                false
payload.n = 'null'                      true
payload.n = missing                     false
missing = missing2                      true
missing != 1                            false
not missing = 1                         true
payload.l = [1, 2.0, 3]                 true
payload.l != 'x'                        true
'10' < '9'                              true
'B' < 'a'                               true
'é' > 'z'                               true
payload.n is null                       true
payload.s is not null                   true
payload.i between 5 and 6               true
1 || missing || payload.l               "1undefined[1,2,3]"
topic =~ 't/+/#'                        true
topic =~ missing                        false
'$SYS/a' =~ '#'                         false
8 in (8.0)                              false
payload.i in (4, 5)                     true
payload.i not in (4, 5)                 false
missing in (missing2)                   true
not (payload.t and payload.no)          true
not not payload.t                       true
payload.t or payload.i                  true
payload.no or payload.i                 !
payload.n and payload.t                 false
not payload.i                           false
case payload.i when 5.0 then 1 end      undefined
case when payload.n then 1 else 2 end   2
case when payload.i then 1 else 2 end   2
case when 1 then 1 else 2 end           2
case when true then case when false then 1 else 3 end end + 1   4
payload.l[1]                            1
payload.l[-1]                           3
payload.l[0]                            undefined
payload.l[9]                            undefined
payload.l[i]                            2
payload.l[idx]                          2
payload.l[2..9]                         [2,3]
payload.l[3..2]                         []
payload.l[3..1]                         !
payload.l[-2..-1]                       [2,3]
payload.l[0..1]                         !
payload.l[-9..2]                        !
payload.o[1..2]                         !
payload.m[2].a                          2
payload.o.1                             "one"
payload.o.'1'                           "one"
payload."o".k                           "v"
payload.j.k                             7
payload.s.x                             undefined
[1..4]                                  [1,2,3,4]
[3..1]                                  !
[]                                      []
[1, 'a', missing]                       [1,"a",null]
TRUE                                    true
NULL                                    undefined
'it''s'                                 "it's"
'\n'                                    "\\n"
topic(2)                                "a"
topic(9)                                !
payload('o.k')                          "v"
flags()                                 {}
str([97, 98])                           "[97,98]"
str(1.0e-7)                             "1e-7"
str(123456789.5e10)                     "1.234567895e18"
concat(1, true)                         "1true"
concat([1, 'a'])                        "1a"
coalesce(missing, payload.n, 1)         null
is_null(payload.n)                      false
abs(-1.5)                               1.5
round(2.5)                              3
round(-2.5)                             -3
power(2, 3)                             8.0
strlen('éx')                      2
reverse('añb')                          "bña"
substr('hello', 1, 3)                   "ell"
replace('aXbX', 'X', '-', 'trailing')   "aXb-"
regex_replace('a1b22', '([0-9]+)', '<\1&\&>')   "a<11&>b<2222&>"
map_put('a.b', 1, payload.o)            {"k":"v","1":"one","a":{"b":1}}
mget(['a', 'b'], '{"a":{"b":4}}')       4
contains_topic_match([map_put('topic', 't/#', map_new())], topic)   true
upper(missing)                          !
md5('a')                                "0cc175b9c0f1b6a831c399e269772661"
hash('md4', 'abc')                      "a448017aaf21d8525fc10ae87aa6729d"
unzip(zip('x')) + gunzip(gzip('y')) + zip_uncompress(zip_compress('z'))   "xyz"
term_decode(term_encode(payload.m))     [{"a":1},{"a":2}]
unix_ts_to_rfc3339(0) =~ '+'            true
format_date('second', '+08:00', '%Y-%m-%d %H:%M:%S%z', 0)   "1970-01-01 08:00:00+0800"
rfc3339_to_unix_ts('2024-02-23T15:56:30.123456Z', 'millisecond')   1708703790123
date_to_unix_ts('second', '%Y-%m-%d %H:%M:%S', '2023-02-29 10:40:12')   !
subbits(hexstr2bin('01FF'), 1, 16, 'integer', 'signed', 'little')   -255
jq('.a, .b', '{"a":1,"b":[2]}')         [1,[2]]
json_encode(missing)                    "null"
topic_match(topic, 't/#')               true
sprintf('~s|~5..0b|~.2f|~p', 'a', 7, 1.5, 'b')   "a|00007|1.50|<<\"b\">>"
"""


def cases() -> list[Any]:
    found = []
    for line in EXPRESSIONS.strip().splitlines():
        expression, _, want = line.rpartition("   ")
        found.append(pytest.param(expression.strip(), want.strip(), id=expression.strip()))
    return found


@pytest.mark.parametrize(("expression", "want"), cases())
def test_expression(node: Any, expression: str, want: str) -> None:
    assert shown(answer(node, f'SELECT {expression} AS r FROM "t/#"')) == want


STATEMENTS = [
    ("'zz' as clientid, clientid as c2", {"clientid": "zz", "c2": "zz"}),
    ("null() as clientid, clientid as c2", {"c2": "c1"}),
    ("payload.s, payload.i as i", {"payload": {"s": "b"}, "i": 5}),
    ("payload as p, p.i as i, 5 as p.x", {"p": {**json.loads(PAYLOAD), "x": 5}, "i": 5}),
    ("json_decode(payload.j) as p, 5 as p.x", {"p": {"k": 7, "x": 5}}),
    (
        """payload.i as i, '{"i":2}' as payload, payload.i as again""",
        {"i": 5, "payload": '{"i":2}', "again": 2},
    ),
    ("1 as a, 2 as a.b", {"a": {"b": 2}}),
    ("1 as a[5], 2 as a[1], 3 as a[9]", {"a": [2]}),
    ("1 as a[-0], 2 as a[-0], 0 as a[0]", {"a": [0, 1, 2]}),
    ("1 as i, [7,8] as a, 9 as a[i]", {"i": 1, "a": [9, 8]}),
    (
        "1 + 1, 'text', upper(clientid), -1",
        {"1 + 1": 2, "text": "text", "upper(clientid)": "C1", "-1": -1},
    ),
    ('1 as "a.b"', {"a.b": 1}),
    ('1 a, 2 "b c"', {"a": 1, "b c": 2}),
    ("payload.l[2..3]", {"payload": {"l": [2, 3]}}),
    ("1 as a -- why\n, /* and */ 2 as b", {"a": 1, "b": 2}),
    ("1 is, 2 between, 3 as like", {"is": 1, "between": 2, "like": 3}),
    ("topic() as t, _x as y, qos as _q", {"t": "t/a/b", "_q": 1}),
]


@pytest.mark.parametrize(("fields", "row"), STATEMENTS, ids=[fields for fields, _ in STATEMENTS])
def test_fields(node: Any, fields: str, row: dict[str, Any]) -> None:
    assert answer(node, f'SELECT {fields} FROM "t/#";') == {"outcome": "rows", "rows": [row]}


def test_star_keeps_the_rest_of_the_payload(node: Any) -> None:
    (row,) = answer(
        node, 'SELECT 0 as qos, *, 7 as qos, 5 AS payload.i FROM "t/#"', '{"i":1,"x":2}'
    )["rows"]
    assert row["qos"] == 7
    assert row["payload"] == {"i": 5, "x": 2}
    assert row["event"] == "message.publish"


@pytest.mark.parametrize(
    ("sql", "want"),
    [
        (
            "SELECT payload.i FROM '#' WHERE payload.s = 'b'",
            True,
        ),  # the implicit name hides nothing
        ("SELECT 'x' AS clientid FROM '#' WHERE clientid = 'c1'", False),
        ("SELECT null() AS clientid FROM '#' WHERE clientid = 'c1'", True),
        ("SELECT payload.i AS v FROM '#' WHERE v > 4 and topic(1) = 't'", True),
        ("SELECT 1 FROM '#' WHERE payload.t", True),
        ("SELECT 1 FROM '#' WHERE payload.missing", False),
    ],
)
def test_where(node: Any, sql: str, want: bool) -> None:
    assert answer(node, sql)["outcome"] == ("rows" if want else "no_result")


@pytest.mark.parametrize(
    ("sql", "rows"),
    [
        ("FOREACH payload.m AS x DO x.a AS a", [{"a": 1}, {"a": 2}]),
        (
            "FOREACH payload.m DO item.a, payload.i AS i",
            [{"item": {"a": 1}, "i": 5}, {"item": {"a": 2}, "i": 5}],
        ),
        (
            "FOREACH payload.m AS x DO x.a AS a, a + 1 AS b INCASE a = 1",
            [],
        ),  # INCASE cannot see what DO names
        ("FOREACH payload.m AS x INCASE x.a > 1 and clientid = 'c1'", None),
        ("FOREACH payload.i", "payload.i is an integer"),
        ("FOREACH jq('[.l]', payload) AS x DO x", [{"x": [[1, 2, 3]]}]),
        ("FOREACH 2 AS k, payload.l AS x DO x * k AS v", [{"v": 2}, {"v": 4}, {"v": 6}]),
        ("FOREACH payload.l AS x DO 10 div (2 - x) AS v", "error"),
    ],
)
def test_foreach(node: Any, sql: str, rows: Any) -> None:
    got = answer(node, f'{sql} FROM "t/#"')
    if rows is None:
        assert [row["x"] for row in got["rows"]] == [{"a": 2}]
        assert got["rows"][0]["payload"] == PAYLOAD
    elif rows == "error":
        assert got["outcome"] == "error"
    elif isinstance(rows, str):
        assert got == {
            "outcome": "no_result",
            "reason": f"no rows: FOREACH walks an array, and {rows}",
        }
    else:
        assert got == {"outcome": "rows", "rows": rows}


def test_foreach_over_a_payload_that_is_an_array(node: Any) -> None:
    assert answer(
        node,
        "FOREACH payload AS p DO p WHERE length(p) = 2".replace(" WHERE", " FROM '#' WHERE"),
        "[1,2]",
    ) == {
        "outcome": "rows",
        "rows": [{"p": 1}, {"p": 2}],
    }
    assert answer(node, "FOREACH payload AS p DO p FROM '#'", "no json")["outcome"] == "error"


@pytest.mark.parametrize(
    "body",
    [
        {},
        [],
        {"sql": 1},
        {"sql": "SELECT a FROM t", "event": []},
        {"sql": "SELECT '\ud800' AS a FROM t", "event": {}},
        {"sql": "SELECT a FROM t", "event": {"topic": "t", "a": ["\udfff"]}},
        {
            "sql": "SELECT a FROM t",
            "event": {"topic": "t", "payload": {"encoding": "base64", "data": "%"}},
        },
    ],
)
def test_a_request_that_cannot_be_read_is_refused(node: Any, body: Any) -> None:
    with pytest.raises(Invalid):
        node.service.test(body)
    with pytest.raises(Invalid):
        node.service.render(body)


@pytest.mark.parametrize(
    "event", [{"event": 5}, {"event": []}, {"topic": 5}, {"topic": "", "event": "$bridges/x"}]
)
def test_an_event_that_nothing_reads_has_no_result(node: Any, event: dict[str, Any]) -> None:
    assert node.service.test({"sql": "SELECT * FROM '#'", "event": event}) == {
        "outcome": "no_result"
    }


def test_an_error_in_select_fails_the_rule_though_where_is_false(node: Any) -> None:
    assert answer(node, "SELECT 1/0 AS x FROM '#' WHERE false")["outcome"] == "error"
