"""Rules on real messages and events: what runs, what is counted, what the actions get."""

from __future__ import annotations

import json
from typing import Any

import pytest

from broker.core.client import Client
from broker.core.errors import AlreadyExists, Invalid, NotFound, Unavailable
from broker.core.message import Message
from broker.core.stream import StreamRecord

HOT = {"type": "stream", "stream": "hot"}


def rows(node: Any, stream: str = "hot") -> list[Any]:
    return [json.loads(record.payload) for record in node.streams.records[stream]]


def test_rows_go_to_a_stream_with_where_they_come_from(node: Any) -> None:
    node.rule("SELECT payload.t AS t, missing, clientid FROM 'm/+'", HOT)
    node.send("m/1", b'{"t":21.0}', qos=1)
    assert node.streams.records["hot"] == [
        StreamRecord(
            1_700_000_000_123_456,
            "m/1",
            b'{"t":21.0,"clientid":"c1"}',
            1,
            False,
            "c1",
            "u1",
            None,
            "r1",
        )
    ]


def test_rules_on_other_topics_cost_nothing(node: Any) -> None:
    for number in range(50):
        node.rule(f"SELECT * FROM 'other/{number}/#'", name=f"r{number}")
    assert node.feature.taps[-1].plan("m/1") is None


def test_a_disabled_rule_does_not_run(node: Any) -> None:
    node.service.create({"name": "r1", "sql": "SELECT * FROM '#'", "enable": False})
    assert node.feature.taps[-1].plan("m/1") is None


def test_system_messages_are_left_out(node: Any) -> None:
    node.rule("SELECT * FROM '$SYS/#'")
    assert node.feature.taps[-1].plan("$SYS/brokers") is None


def test_counters(node: Any) -> None:
    node.rule("SELECT payload.x AS x FROM '#' WHERE payload.x > 1", HOT, {"type": "console"})
    for payload in (b'{"x":2}', b'{"x":1}', b"no json", b'{"x":"y"}'):
        node.send("t", payload)
    metrics = node.service.get("r1")["metrics"]
    expected = {
        "matched": 4,
        "passed": 1,
        "failed": 3,
        "failed.exception": 2,
        "failed.no_result": 1,
        "actions.total": 2,
        "actions.success": 2,
        "actions.failed": 0,
        "actions.failed.out_of_service": 0,
        "actions.failed.unknown": 0,
        "actions.discarded": 0,
    }
    assert {name: metrics[name] for name in expected} == expected
    assert "which is not a number" in node.service.get("r1")["last_error"]["text"]


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        (b'{"l":1}', "payload.l is an integer"), (b"{}", "payload.l is undefined"),
        (b'{"l":null}', "payload.l is null"),
        (b'{"l":"[1"}', "payload.l is a string"), (b'{"l":"{}"}', "payload.l is a string"),
    ],
)  # fmt: skip
def test_foreach_says_why_it_walked_nothing(node: Any, payload: bytes, reason: str) -> None:
    sql = 'FOREACH payload.l AS x DO x FROM "#"'
    node.rule(sql)
    node.send("t", payload)
    text = f"no rows: FOREACH walks an array, and {reason}"
    assert node.service.get("r1")["last_error"]["text"] == text
    assert (node.count("failed.no_result"), node.count("failed.exception")) == (1, 0)
    outcome = node.service.test({"sql": sql, "event": {"topic": "t", "payload": payload.decode()}})
    assert outcome == {"outcome": "no_result", "reason": text}
    case = {
        "name": "c",
        "event": {"topic": "t", "payload": payload.decode()},
        "expect": {"rows": []},
    }
    node.service.replace("r1", {"sql": sql, "tests": [case]})
    node.service.replace("r1", {"sql": sql.replace("x FROM", "x, 1 AS one FROM")})
    node.send("t", b'{"l":[]}')
    node.send("t", b'{"l":"[5]"}')
    assert (node.count("passed"), node.service.get("r1")["last_error"]) == (1, None)


def test_replacing_a_rule_begins_its_counters_anew(node: Any) -> None:
    node.rule("SELECT * FROM '#'")
    node.send("t", b"")
    node.service.replace("r1", {"sql": "SELECT topic FROM '#'"})
    assert node.count("matched") == 0


def test_a_failing_action_does_not_stop_the_next(node: Any) -> None:
    node.rule("SELECT 'a/+' AS bad FROM '#'", {"type": "republish", "topic": "${bad}"}, HOT)
    node.send("t", b"")
    assert node.count("actions.failed.unknown") == 1
    assert node.count("actions.success") == 1
    assert "'+' or '#'" in node.service.get("r1")["last_error"]["text"]


def test_a_stream_that_refuses_is_out_of_service(node: Any) -> None:
    def full(_: StreamRecord) -> None:
        raise Unavailable("the store is full")

    node.streams.appender = lambda _: full
    node.rule("SELECT * FROM '#'", HOT)
    node.send("t", b"")
    assert node.count("actions.failed.out_of_service") == 1


def test_republish_fills_its_templates(node: Any) -> None:
    node.rule(
        "SELECT payload.t AS t, qos, map_put('a', 'b', map_new()) AS up FROM 'm/+'",
        {
            "type": "republish",
            "topic": "out/${t}",
            "payload": '{"t":${t}}',
            "qos": "${qos}",
            "retain": True,
            "user_properties": "${up}",
        },
    )
    node.send("m/1", b'{"t":1.5}', qos=1)
    out: Message = node.published[-1]
    assert (out.topic, out.payload, out.qos, out.retain) == ("out/1.5", b'{"t":1.5}', 1, True)
    assert out.user_properties == [("a", "b")]
    assert out.via == ("r1",)
    assert out.client.client_id == "r1"


def test_a_template_that_names_a_column_not_selected_is_a_warning(node: Any) -> None:
    node.rule(
        "SELECT topic FROM '#'",
        {"type": "republish", "topic": "a/${topic}/${payload.x}", "payload": ""},
    )
    assert node.service.get("r1")["warnings"] == [
        {
            "pointer": "/actions/0/topic",
            "message": "the SQL gives no column 'payload', so ${payload.x} never has a value",
            "suggestion": "select payload",
        }
    ]


def test_what_only_looks_like_a_placeholder_is_a_warning(node: Any) -> None:
    passed_on = "${pub_props.'User-Property'}"
    action = {
        "type": "republish",
        "topic": "a/${a[1]}",
        "payload": "${$}{b} ${.}",
        "user_properties": passed_on,
    }
    node.rule("SELECT * FROM '#'", action)
    assert [(one["pointer"], one["message"]) for one in node.service.get("r1")["warnings"]] == [
        ("/actions/0/topic", "${a[1]} is not a placeholder and is written as is")
    ]


def test_a_payload_that_is_no_text_is_republished_unchanged(node: Any) -> None:
    node.rule("SELECT payload FROM 'm/+'", {"type": "republish", "topic": "out"})
    node.send("m/1", b"\xff\x00")
    assert node.published[-1].payload == b"\xff\x00"


def test_a_rule_does_not_run_on_what_it_published(node: Any) -> None:
    node.rule("SELECT * FROM '#'", {"type": "republish", "topic": "again/${topic}"})
    node.send("t", b"")
    assert [message.topic for message in node.published] == ["t", "again/t"]
    assert node.count("matched") == 1


def test_rules_that_feed_each_other_come_to_an_end(node: Any) -> None:
    for one, other in (("a", "b"), ("b", "c"), ("c", "a")):
        node.rule(
            f"SELECT * FROM '{one}/#'",
            {"type": "republish", "topic": f"{other}/x"},
            name=f"to-{other}",
        )
    node.send("a/x", b"")
    assert [message.topic for message in node.published] == ["a/x", "b/x", "c/x", "a/x"]


def test_a_payload_is_decoded_once_for_all_rules(node: Any) -> None:
    for number in range(3):
        node.rule("SELECT payload.o AS o FROM '#'", HOT, name=f"r{number}")
    message = Message("t", b'{"o":{"a":1}}', 0, False, Client("c1"), 0)
    node.publish(message)
    assert len(rows(node)) == 3
    assert message.json() == {"o": {"a": 1}}


def test_writing_into_the_payload_changes_no_other_rule_s_view(node: Any) -> None:
    node.rule("SELECT payload, 9 AS payload.a, 8 AS payload.l[1] FROM '#'", HOT, name="writes")
    node.rule(
        "SELECT payload.a AS a, payload.l AS l FROM '#'",
        {"type": "stream", "stream": "cold"},
        name="reads",
    )
    node.send("t", b'{"a":1,"l":[1,2]}')
    assert rows(node) == [{"payload": {"a": 9, "l": [8, 2]}}]
    assert rows(node, "cold") == [{"a": 1, "l": [1, 2]}]


def test_events_are_wanted_and_run_once(node: Any) -> None:
    node.rule(
        "SELECT clientid, event, reason FROM '$events/client/+', '$events/client_disconnected'", HOT
    )
    assert "client.disconnected" in node.events.wanted
    node.events.emit(
        "client.disconnected", {"clientid": "c9", "reason": "normal", "username": None}
    )
    assert rows(node) == [{"clientid": "c9", "event": "client.disconnected", "reason": "normal"}]
    assert node.streams.records["hot"][0].topic == "$events/client/disconnected"
    node.service.delete("r1")
    assert node.events.wanted == frozenset()


def test_both_compilations_of_a_rule_agree(node: Any) -> None:
    sql = (
        "SELECT *, payload.a + 1 AS b, upper(clientid) AS c, payload.l[-1] AS last, flags.retain AS r, peerhost AS h "
        "FROM 't/#' WHERE qos = 1 and payload.a in (1, 2)"
    )
    node.rule(sql, HOT)
    node.send("t/1", b'{"a":1,"l":[1,2]}', qos=1)
    (live,) = rows(node)
    event = {
        key: live[key]
        for key in ("clientid", "username", "topic", "qos", "flags", "peerhost", "payload")
    }
    (tried,) = node.service.test({"sql": sql, "event": event})["rows"]
    assert {key: tried[key] for key in (*event, "b", "c", "last", "r", "h")} == {
        key: live[key] for key in (*event, "b", "c", "last", "r", "h")
    }


def test_objects_are_kept_and_loaded_again(node: Any) -> None:
    node.rule("SELECT * FROM '#'", HOT)
    saved = node.section.load()
    assert saved == [
        {
            "name": "r1",
            "sql": "SELECT * FROM '#'",
            "actions": [HOT],
            "enable": True,
            "description": "",
        }
    ]
    assert node.service.load([{**saved[0], "name": "r2"}, {"name": "r3", "sql": "SELECT"}]) == []
    [told] = node.service.failures()
    assert (
        "rule 'r3' cannot be used: line 1, column 7: expected a value, found the end of the text"
        in told
    )


def test_what_is_shown_can_be_sent_back(node: Any) -> None:
    node.rule("SELECT topic FROM '#'", HOT)
    shown = node.service.get("r1")
    assert node.service.replace("r1", shown)["sql"] == shown["sql"]


def test_users_of_streams_and_schemas(node: Any) -> None:
    node.rule("SELECT schema_decode('meters', payload) AS m FROM '#'", HOT)
    assert node.services.contributors.users_of("stream", "hot") == [("rule", "r1")]
    assert node.services.contributors.users_of("stream", "cold") == []
    assert node.services.contributors.users_of("schema", "meters") == [("rule", "r1")]


def test_names_are_unique_and_suggested(node: Any) -> None:
    node.rule("SELECT * FROM '#'", name="meters")
    with pytest.raises(AlreadyExists):
        node.rule("SELECT * FROM '#'", name="meters")
    with pytest.raises(NotFound, match="did you mean 'meters'"):
        node.service.get("meter")
    with pytest.raises(Invalid):
        node.service.replace("meters", {"name": "other", "sql": "SELECT * FROM '#'"})
