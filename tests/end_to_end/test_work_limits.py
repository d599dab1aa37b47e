"""No saved object and no message holds up the broker: 100 ms of its loop at most, and 64 MiB of its memory."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.clients import Client
from tests.support.node import Node, eventually, running
from tests.support.watching import Watch

_CONFIG = "lake.run_spark = false\noverload.enable = false\n"


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with running(
        tmp_path_factory.mktemp("limits") / "node", config=_CONFIG, may_fork=False
    ) as node:
        node.call("POST", "/streams", {"name": "rows"})
        yield node
        assert "Traceback" not in node.log.read_text()


@pytest.fixture
def watch(node: Node) -> Iterator[Watch]:
    watch = Watch(node)
    yield watch
    watch.close()


REPUBLISH = {"type": "republish", "topic": "out/x", "payload": "${v}", "qos": 0}
STREAM = {"type": "stream", "stream": "rows"}


@dataclass(frozen=True)
class Heavy:
    """A rule and a payload that are a lot of work; ``says`` stands in the failure, None where it is done."""

    sql: str
    payload: str
    says: str | None
    action: Any = None
    rows: int = 1


def _list(items: int, item: str = "1") -> str:
    return "[" + ",".join([item] * items) + "]"


HEAVY = {
    "half a million items": Heavy(
        'FOREACH payload AS v DO v FROM "in/#"', _list(500_000), "at most 50000 rows"
    ),
    "a hundred thousand items, looked at one by one": Heavy(
        'FOREACH payload AS v DO v INCASE v = 1 FROM "in/#"', _list(100_000), "at most 50000 rows"
    ),
    "as many items as may be, republished": Heavy(
        'FOREACH payload AS v DO v FROM "in/#"', _list(50_000), None, rows=50_000
    ),
    "as many items as may be, into a stream": Heavy(
        'FOREACH payload AS v DO v, topic AS t FROM "in/#"', _list(50_000), None, STREAM, rows=50_000
    ),
    "rows that hold a payload each": Heavy(
        "FOREACH payload.v AS v DO concat(v, payload.x) AS v FROM \"in/#\"",
        json.dumps({"v": [1] * 300, "x": "x" * 600_000}), "too much text",
    ),
    "rows that are written with a payload each": Heavy(
        'FOREACH payload.v AS v DO v, payload.x AS x FROM "in/#"',
        json.dumps({"v": [1] * 300, "x": "x" * 600_000}), "take more than 16 MiB", STREAM,
    ),
    "rows of as many bytes as may be": Heavy(
        'FOREACH payload.v AS v DO v, payload.x AS x FROM "in/#"',
        json.dumps({"v": [1] * 27, "x": "x" * 600_000}), None, STREAM, rows=27,
    ),
    "a row of many columns that hold the payload": Heavy(
        "SELECT " + ", ".join(f"payload AS v{n}" for n in range(200)) + ' FROM "in/#"',
        "x" * 1_000_000, "takes more than 8 MiB", STREAM,
    ),
    "a row of many columns that hold an array": Heavy(
        "SELECT " + ", ".join(f"payload.v AS v{n}" for n in range(200)) + ' FROM "in/#"',
        json.dumps({"v": ["x" * 50] * 18_000}), "takes more than 8 MiB", STREAM,
    ),
    "rows of many columns that hold the payload": Heavy(
        "FOREACH payload.v AS v DO " + ", ".join(f"payload AS v{n}" for n in range(200)) + ' FROM "in/#"',
        json.dumps({"v": [1] * 50, "x": "x" * 900_000}), "takes more than 8 MiB", STREAM,
    ),
    "a row of as many bytes as may be": Heavy(
        "SELECT " + ", ".join(f"payload AS v{n}" for n in range(8)) + ' FROM "in/#"', "x" * 1_000_000, None, STREAM
    ),
    "a text of wide characters": Heavy(
        "SELECT concat(payload.t, " + ", ".join(["payload.x"] * 9) + ') AS v FROM "in/#"',
        json.dumps({"t": "\U0001f600", "x": "x" * 900_000}, ensure_ascii=False), "longer than", STREAM,
    ),
    "items of an expression each": Heavy(
        "FOREACH payload AS v DO " + ", ".join(f"concat(upper('a'), str(v + {n})) AS v{n}" for n in range(100))
        + ' FROM "in/#"',
        _list(5_000), None, rows=5_000,
    ),
    "rows of a short string each": Heavy(
        'FOREACH payload.v AS v DO concat(payload.x, str(v)) AS v FROM "in/#"',
        json.dumps({"v": [1] * 50_000, "x": "x" * 4_000}), None, rows=50_000,
    ),
    "rows of many short strings": Heavy(
        "FOREACH payload.v AS v DO " + ", ".join(f"concat(payload.x, str(v + {n})) AS v{n}" for n in range(100))
        + ' FROM "in/#"',
        json.dumps({"v": [1] * 1_000, "x": "x" * 4_000}), None, rows=1_000,
    ),
    "rows of an array each": Heavy(
        'FOREACH payload.v AS v DO split(payload.x, \',\') AS v FROM "in/#"',
        json.dumps({"v": [1] * 2_000, "x": "ab," * 1_000}), None, rows=2_000,
    ),
    "rows of many arrays each": Heavy(
        "FOREACH payload.v AS v DO " + ", ".join(f"split(concat(payload.x, '{n}'), ',') AS v{n}" for n in range(20))
        + ' FROM "in/#"',
        json.dumps({"v": [1] * 300, "x": "ab," * 1_300}), None, rows=300,
    ),
    "many JSON texts": Heavy(
        "SELECT " + ", ".join(f"json_decode(concat(payload.x, '{n}]')) AS v{n}" for n in range(19)) + ' FROM "in/#"',
        json.dumps({"x": "[" + "[]," * 90_000}), "too much",
    ),
    "comparisons of arrays in arrays": Heavy(
        "SELECT " + ", ".join(f"payload.a < payload.b{n} AS v{n}" for n in range(30)) + ' FROM "in/#"',
        json.dumps({"a": [[1] * 1_000] * 8, **dict.fromkeys((f"b{n}" for n in range(30)), [[1] * 1_000] * 8)}),
        "too much",
    ),
    "rows of a jq program": Heavy(
        'SELECT * JQ \'.payload | fromjson[] | {v: .}\' FROM "in/#"', _list(40_000), None, rows=40_000
    ),
    "a pattern of LIKE": Heavy(
        "SELECT 1 AS v FROM \"in/#\" WHERE payload.t LIKE payload.p",
        json.dumps({"t": "a" * 400_000, "p": "%" + "_" * 400_000 + "b%"}), "LIKE",
    ),
    "many patterns of LIKE": Heavy(
        "SELECT 1 AS v FROM \"in/#\" WHERE payload.t LIKE payload.p",
        json.dumps({"t": "ab" * 250_000, "p": "%" + "_a%" * 60_000 + "c"}), "LIKE",
    ),
    "a format": Heavy("SELECT sprintf(payload) AS v FROM \"in/#\"", "~s" * 500_000, "sprintf"),
    "a format and its values": Heavy(
        "SELECT sprintf_s(payload.f, payload.a) AS v FROM \"in/#\"",
        json.dumps({"f": "~p" * 200_000, "a": [1] * 200_000}), "sprintf",
    ),
    "a path of keys": Heavy(
        "SELECT mput(json_decode(payload), 1, map_new()) AS v FROM \"in/#\"", _list(200_000, '"k"'), "at most 128"
    ),
    "empty matches": Heavy(
        "SELECT regex_replace(payload, '', 'x') AS v FROM \"in/#\"", "a" * 1_000_000, "regex_replace"
    ),
    "a large expression": Heavy(
        "SELECT regex_match(payload.t, payload.p) AS v FROM \"in/#\"",
        json.dumps({"t": "a" * 900_000, "p": "(a|b)*" * 1_000 + "c"}), None,
    ),
    "escapes": Heavy("SELECT unescape(payload) AS v FROM \"in/#\"", "\\n" * 500_000, "too much"),
    "letters with accents": Heavy(
        "SELECT strlen(payload) AS v, reverse(payload) AS w FROM \"in/#\"", "e\u0301" * 300_000, "too much"
    ),
    "a comparison of arrays": Heavy(
        "SELECT 1 AS v FROM \"in/#\" WHERE payload.a = payload.b",
        json.dumps({"a": [1] * 150_000, "b": [1] * 150_000}), "too much",
    ),
    "a hundred calls": Heavy(
        "SELECT " + ", ".join(f"length(tokens(payload, ',;{n}')) AS v{n}" for n in range(100)) + ' FROM "in/#"',
        "a;b,c" * 200_000, "too much",
    ),
    "a jq program of the payload": Heavy(
        "SELECT jq(payload, 'null') AS v FROM \"in/#\"", '"a"*2000000000|length', "memory", None
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", HEAVY)
def test_a_message_takes_its_turn_or_fails_with_a_sentence(
    node: Node, watch: Watch, name: str
) -> None:
    _check(node, watch, HEAVY[name])


@pytest.mark.parametrize(
    ("name", "action"),
    [
        ("as many items as may be, into a stream", STREAM),
        ("items of an expression each", REPUBLISH),
        ("items of an expression each", STREAM),
        ("rows of many short strings", REPUBLISH),
        ("rows of as many bytes as may be", STREAM),
    ],
    ids=lambda part: part["type"] if isinstance(part, dict) else part,
)
def test_rows_take_as_little_memory_of_a_broker_that_has_kept_none(
    tmp_path: Path, name: str, action: Any
) -> None:
    with _fresh(tmp_path) as (node, watch):
        node.call("POST", "/streams", {"name": "rows"})
        _check(node, watch, replace(HEAVY[name], action=action))


def test_rows_that_are_done_before_a_later_piece_fails_are_kept(node: Node) -> None:
    sql = 'FOREACH payload.v AS v DO v + 1 AS n, concat(payload.x, str(v)) AS text FROM "in/#"'
    node.call("POST", "/rules", {"name": "pieces", "sql": sql, "actions": [REPUBLISH]})
    client = Client(node, "pieces")
    try:
        client.publish("in/1", json.dumps({"v": [*[1] * 9_000, {}], "x": "x" * 4_000}))
        shown = eventually(lambda: _failed(node, "pieces"))
        metrics = shown["metrics"]
        assert 3_000 < metrics["actions.success"] < 9_000
        assert (metrics["matched"], metrics["passed"], metrics["failed.exception"]) == (1, 0, 1)
        text = "line 1, column 27: '+' cannot take a map and an integer"
        assert shown["last_error"]["text"] == text
    finally:
        client.close()
        node.call("DELETE", "/rules/pieces")


def test_a_rule_that_drops_messages_looks_at_a_long_array_before_they_go_on(node: Node) -> None:
    sql = 'FOREACH payload AS v DO v INCASE v = 2 FROM "drop/#"'
    node.call("POST", "/rules", {"name": "drops", "sql": sql, "actions": [{"type": "drop"}]})
    client = Client(node, "drops")
    try:
        client.subscribe("drop/#", 1)
        client.publish("drop/1", _list(5_000)[:-1] + ",2]")
        client.publish("drop/2", _list(5_000))
        assert client.take().topic == "drop/2"
        client.publish("drop/3", _list(20_000))
        assert "walks at most 10000 items" in node.call("GET", "/rules/drops")["last_error"]["text"]
    finally:
        client.close()
        node.call("DELETE", "/rules/drops")


def test_a_rule_that_drops_messages_writes_few_rows_of_a_large_payload(
    node: Node, watch: Watch
) -> None:
    sql = 'FOREACH payload.v AS v DO v, payload.x AS x FROM "drop/#"'
    node.call(
        "POST", "/rules", {"name": "drops", "sql": sql, "actions": [STREAM, {"type": "drop"}]}
    )
    client = Client(node, "drops")
    try:
        watch.begin()
        client.publish("drop/1", json.dumps({"v": [1] * 2_000, "x": "x" * 600_000}))
        watch.check()
        shown = node.call("GET", "/rules/drops")
        assert "take more than 8 MiB" in shown["last_error"]["text"]
        client.publish("drop/2", json.dumps({"v": [1] * 9_000, "x": "x"}))
        watch.check()
        assert node.call("GET", "/rules/drops")["metrics"]["actions.success"] > 18_000
    finally:
        client.close()
        node.call("DELETE", "/rules/drops")


def test_a_rule_that_drops_messages_holds_few_copies_of_a_large_payload(
    node: Node, watch: Watch
) -> None:
    sql = 'FOREACH payload.v AS v DO v, payload AS p FROM "drop/#"'
    rule = {"name": "drops", "sql": sql, "actions": [REPUBLISH, {"type": "drop"}]}
    node.call("POST", "/rules", rule)
    client = Client(node, "drops")
    try:
        watch.begin()
        client.publish("drop/1", json.dumps({"v": [1] * 2_000, "x": "x" * 300_000}))
        watch.check()
        shown = node.call("GET", "/rules/drops")
        assert "take at most 33554432 bytes of memory" in shown["last_error"]["text"]
    finally:
        client.close()
        node.call("DELETE", "/rules/drops")


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ("strlen(reverse(concat([payload.x, 'N'])))", "longer than 50 ms"),
        ("payload.x", "more than 16777216 characters"),
    ],
)
def test_operations_of_a_transformation_hold_up_nobody(
    node: Node, watch: Watch, value: str, says: str
) -> None:
    operations = [
        {"key": f"payload.c{n}", "value": value.replace("N", str(n))} for n in range(1_000)
    ]
    codec = {"type": "json"}
    spec = {
        "name": "heavy",
        "topics": ["heavy/#"],
        "failure_action": "drop",
        "operations": operations,
    }
    node.call("POST", "/transforms", {**spec, "payload_decoder": codec, "payload_encoder": codec})
    client = Client(node, "heavy-publisher")
    try:
        watch.begin()
        for _ in range(3):
            client.publish("heavy/1", json.dumps({"x": "\u00e9" * 100_000}))
        watch.check()
        assert says in json.dumps(node.call("GET", "/transforms/heavy"))
    finally:
        client.close()
        node.call("DELETE", "/transforms/heavy")


def test_requests_that_compile_hold_up_nobody(node: Node, watch: Watch) -> None:
    program = 'SELECT jq(\'"a"*2000000000|length\', payload) AS v FROM "in/#"'
    node.call("POST", "/streams", {"name": "messages", "topics": ["kept/#"]})
    fields = ", ".join(
        f"CASE WHEN payload.a{n} > {n} THEN upper(payload.b{n}) ELSE 'x' END AS c{n}"
        for n in range(150)
    )
    node.call(
        "POST",
        "/rules",
        {"name": "long", "sql": f'SELECT {fields} FROM "in/#"', "actions": [REPUBLISH]},
    )
    try:
        watch.begin()
        refused = node.call(
            "POST", "/rules:backtest", {"sql": program, "stream": "messages"}, expect=422
        )
        assert "memory" in json.dumps(refused)
        for verb in ("disable", "enable"):
            node.call("POST", f"/rules/long:{verb}")
        node.call("POST", "/rules/long/versions/1:restore")
        watch.check()
    finally:
        node.call("DELETE", "/rules/long")


@pytest.mark.parametrize("items", [5_000, 50_000])
@pytest.mark.parametrize("source", ["$rules/first", "chain/#"])
def test_lists_of_lists_take_turns_and_end_at_what_may_be_put_off(
    tmp_path: Path, source: str, items: int
) -> None:
    with _fresh(tmp_path) as (node, watch), _chain(node, source):
        client = Client(node, "chains")
        watch.begin()
        client.publish("in/1", json.dumps({"v": [1] * items}))
        eventually(
            lambda: node.call("GET", "/rules/second")["metrics"]["actions.success"] > 300_000
        )
        watch.check()
        assert "take more than 16 MiB" in node.call("GET", "/rules/first")["last_error"]["text"]
        client.close()


@pytest.mark.parametrize("source", ["$rules/first", "chain/#"])
def test_short_lists_of_short_lists_take_turns(tmp_path: Path, source: str) -> None:
    with _fresh(tmp_path) as (node, watch), _chain(node, source):
        client = Client(node, "chains")
        watch.begin()
        client.publish("in/1", json.dumps({"v": [1] * 500}))
        eventually(
            lambda: node.call("GET", "/rules/second")["metrics"]["actions.success"] == 250_000
        )
        watch.check()
        client.close()


@contextmanager
def _fresh(tmp_path: Path) -> Iterator[tuple[Node, Watch]]:
    """A broker that has kept no memory of earlier tests, which would hide as much that a test takes."""
    with running(tmp_path / "node", config=_CONFIG, may_fork=False) as node:
        node.call("GET", "/rules")
        watch = Watch(node)
        yield node, watch
        watch.close()


@contextmanager
def _chain(node: Node, source: str) -> Iterator[None]:
    """Two rules with FOREACH: each row of the first holds the whole array, and the second reads it."""
    first = {
        "name": "first",
        "sql": 'FOREACH payload.v AS v DO payload AS p, p.v AS all FROM "in/#"',
    }
    chained = {"type": "republish", "topic": "chain/x", "payload": "${p}", "qos": 0}
    node.call(
        "POST", "/rules", {**first, "actions": [chained if source == "chain/#" else REPUBLISH]}
    )
    items = "payload.v" if source == "chain/#" else "all"
    second = {
        "name": "second",
        "sql": f'FOREACH {items} AS v DO v FROM "{source}"',
        "actions": [REPUBLISH],
    }
    node.call("POST", "/rules", second)
    client = Client(node, "first-of-all")
    # what is imported and kept from the first time on
    client.publish("in/1", json.dumps({"v": [1] * 600}))
    eventually(lambda: node.call("GET", "/rules/second")["metrics"]["actions.success"] == 360_000)
    node.call("POST", "/rules/second/metrics:reset")
    client.close()
    yield


def _check(node: Node, watch: Watch, heavy: Heavy) -> None:
    rule = {"name": "heavy", "sql": heavy.sql, "actions": [heavy.action or REPUBLISH]}
    node.call("POST", "/rules", rule)
    client = Client(node, "heavy-publisher")
    try:
        watch.begin()
        client.publish("in/1", heavy.payload)
        shown = eventually(lambda: _done(node, heavy))
        client.publish("in/1", "1")  # what follows has its turn as well
        watch.check()
        if heavy.says is None:
            assert shown["metrics"]["failed.exception"] == 0, shown["last_error"]
        else:
            assert heavy.says in shown["last_error"]["text"], shown["last_error"]
    finally:
        client.close()
        node.call("DELETE", "/rules/heavy")


def _failed(node: Node, rule: str) -> Any:
    shown = node.call("GET", f"/rules/{rule}")
    return shown if shown["metrics"]["failed.exception"] else None


def _done(node: Node, heavy: Heavy) -> Any:
    shown = node.call("GET", "/rules/heavy")
    metrics = shown["metrics"]
    if heavy.says is not None:
        return shown if metrics["failed.exception"] else None
    if metrics["failed.exception"] or metrics["actions.success"] >= heavy.rows:
        return shown
    return None
