"""What the pipeline does with messages, seen from both ends: real clients on one, the management API on the other."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pyarrow as pa
import pytest

from tests.end_to_end.clients import Client, MosquittoSub, publish
from tests.support.local_node import Node, running
from tests.support.node import eventually
from tests.support.plain_http import NO_TLS

SCHEMA = {"type": "object", "required": ["temp"], "properties": {"temp": {"type": "number"}}}


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with running(tmp_path_factory.mktemp("pipeline") / "node") as node:
        node.call(
            "POST", "/schemas", {"name": "reading", "type": "json", "source": json.dumps(SCHEMA)}
        )
        node.call("POST", "/validations", {
            "name": "gate", "topics": ["gate/#"], "strategy": "all_pass", "failure_action": "drop",
            "checks": [{"type": "json", "schema": "reading"}],
        })  # fmt: skip
        for stream in ("passed", "refused"):
            node.call("POST", "/streams", {"name": stream})
        node.call("POST", "/rules", {
            "name": "passed",
            "sql": 'SELECT payload.temp AS temp, clientid AS client, topic FROM "gate/#"',
            "actions": [{"type": "stream", "stream": "passed"}],
        })  # fmt: skip
        node.call("POST", "/rules", {
            "name": "refused",
            "sql": 'SELECT validation, clientid AS client, payload AS raw FROM "$events/schema_validation/failed"',
            "actions": [{"type": "stream", "stream": "refused"}],
        })  # fmt: skip
        yield node


def _records(
    node: Node, stream: str, first: int = 0, end: int | None = None
) -> list[dict[str, Any]]:
    """Records of a stream, as any reader gets them: by the redirect, as Arrow."""
    if end is None:
        end = int(node.call("GET", f"/streams/{stream}/positions")["shards"][0]["next_offset"])
    with node.client(follow_redirects=True) as client:
        response = client.get(f"/streams/{stream}/records", params={"from": first, "to": end})
    assert response.status_code == 200, response.text
    return list(pa.ipc.open_stream(response.content).read_all().to_pylist())


def _next_offset(node: Node, stream: str) -> int:
    return int(node.call("GET", f"/streams/{stream}/positions")["shards"][0]["next_offset"])


def test_an_invalid_message_reaches_no_subscriber_no_rule_and_no_stream_but_the_events_rule(
    node: Node,
) -> None:
    passed, refused = _next_offset(node, "passed"), _next_offset(node, "refused")
    with MosquittoSub(node, "-q", "1", "-t", "gate/#", form="%p") as subscriber:
        publish(node, "gate/attic", '{"temp": "hot"}', "-q", "1", "-i", "liar")
        publish(node, "gate/attic", '{"temp": 21.5}', "-q", "1", "-i", "honest")
        assert subscriber.take(1) == ['{"temp": 21.5}']
    eventually(lambda: _next_offset(node, "passed") == passed + 1)
    eventually(lambda: _next_offset(node, "refused") == refused + 1)
    (row,) = _records(node, "passed", passed)
    assert json.loads(row["payload"]) == {"temp": 21.5, "client": "honest", "topic": "gate/attic"}
    (event,) = _records(node, "refused", refused)
    assert json.loads(event["payload"]) == {
        "validation": "gate",
        "client": "liar",
        "raw": '{"temp": "hot"}',
    }
    newest = node.call("GET", "/status")["refusals"][0]
    assert "gate" in json.dumps(newest)


def test_a_transformation_changes_topic_payload_qos_retain_and_user_properties(node: Node) -> None:
    node.call("POST", "/transforms", {
        "name": "move", "topics": ["move/+"], "failure_action": "drop",
        "payload_decoder": {"type": "json"}, "payload_encoder": {"type": "json"},
        "operations": [
            {"key": "payload.room", "value": "nth(2, topic_split(topic))"},
            {"key": "topic", "value": "concat(['moved/', clientid])"},
            {"key": "qos", "value": "1"},
            {"key": "retain", "value": "'true'"},
            {"key": "user_property.gate", "value": "upper('passed')"},
        ],
    })  # fmt: skip
    with Client(node) as watcher:
        watcher.subscribe("moved/#", 2, retainAsPublished=True)
        watcher.subscribe("move/#", 2)
        publish(node, "move/attic", '{"temp": 20}', "-V", "mqttv5", "-q", "2", "-i", "m1")
        message = watcher.take()
        assert (message.topic, message.qos, message.retain) == ("moved/m1", 1, True)
        assert json.loads(message.payload) == {"temp": 20, "room": "attic"}
        properties: Any = message.properties
        assert properties.UserProperty == [("gate", "PASSED")]
        assert watcher.messages.empty()
    with MosquittoSub(node, "-t", "moved/#", form="%r %t") as late:
        assert late.take(1) == ["1 moved/m1"]


def test_a_transformation_that_fails_leaves_nothing_half_done(node: Node) -> None:
    node.call("POST", "/transforms", {
        "name": "strict", "topics": ["strict/+"], "failure_action": "drop",
        "payload_decoder": {"type": "json"}, "payload_encoder": {"type": "json"},
        "operations": [
            {"key": "user_property.first", "value": "'done'"},
            {"key": "payload.room", "value": "nth(9, topic_split(topic))"},
            {"key": "qos", "value": "payload.qos"},
        ],
    })  # fmt: skip
    with Client(node) as client:
        client.subscribe("strict/#", 2)
        reason, properties = client.publish("strict/1", "not JSON")
        assert reason.is_failure
        assert "strict" in properties.ReasonString
        client.publish("strict/1", '{"qos": 2}')
        assert json.loads(client.take().payload)["qos"] == 2


def test_a_rule_republishes_its_rows(node: Node) -> None:
    node.call("POST", "/rules", {
        "name": "alarm",
        "sql": "SELECT payload.temp AS temp, topic, CASE WHEN payload.temp > 90 THEN 'fire' ELSE 'hot' END AS level\n"
               'FROM "oven/+", "stove/+" WHERE payload.temp > 50',
        "actions": [{
            "type": "republish", "topic": "alarm/${level}", "payload": "${topic}: ${temp}", "qos": 2, "retain": False,
        }],
    })  # fmt: skip
    with MosquittoSub(node, "-q", "2", "-t", "alarm/#", form="%q %t %p") as subscriber:
        publish(node, "oven/1", '{"temp": 20}', "-q", "1")
        publish(node, "oven/1", '{"temp": 60}', "-q", "1")
        publish(node, "stove/2", '{"temp": 95.5}', "-q", "1")
        assert subscriber.take(2) == ["2 alarm/hot oven/1: 60", "2 alarm/fire stove/2: 95.5"]
    rule = node.call("GET", "/rules/alarm")["metrics"]
    assert (rule["matched"], rule["passed"], rule["actions.success"]) == (3, 2, 2)


def test_the_console_action_writes_rows_to_the_log_and_not_to_standard_output(node: Node) -> None:
    node.call("POST", "/rules", {
        "name": "look", "sql": 'SELECT upper(payload.word) AS loud FROM "console/+"', "actions": [{"type": "console"}],
    })  # fmt: skip
    publish(node, "console/1", '{"word": "hello-console"}', "-q", "1")
    line = eventually(
        lambda: [line for line in node.log.read_text().splitlines() if "HELLO-CONSOLE" in line]
    )[0]
    assert "look" in line


def test_a_rule_that_fails_on_a_message_is_counted_and_harms_nothing(node: Node) -> None:
    node.call("POST", "/rules", {
        "name": "fragile", "sql": 'SELECT payload.a + payload.b AS sum FROM "fragile/+"',
        "actions": [{"type": "console"}],
    })  # fmt: skip
    with Client(node) as client:
        client.subscribe("fragile/#", 1)
        for payload in ("not JSON", '{"a": 1, "b": {}}', '{"a": 1, "b": 2}'):
            reason, _ = client.publish("fragile/1", payload)
            assert not reason.is_failure
        assert [client.take().payload[:8] for _ in range(3)] == [
            b"not JSON",
            b'{"a": 1,',
            b'{"a": 1,',
        ]
    counts = node.call("GET", "/rules/fragile")["metrics"]
    assert counts["matched"] == 3
    assert counts["passed"] + counts["failed"] == 3
    assert counts["failed.exception"] >= 1
    assert "Traceback" not in node.log.read_text()


def test_a_stream_of_topics_keeps_messages_as_they_came(node: Node) -> None:
    node.call("POST", "/streams", {"name": "raw", "topics": ["raw/+/data"]})
    with Client(node, "sender") as client:
        client.publish(
            "raw/1/data", b"\x00\xff", 2, retain=True, UserProperty=[("a", "1"), ("a", "2")]
        )
        client.publish("raw/1/other", "not captured")
        client.publish("raw/2/data", "", 1)
    eventually(lambda: _next_offset(node, "raw") == 2)
    first, second = _records(node, "raw")
    assert (first["topic"], first["payload"], first["qos"], first["client_id"]) == (
        "raw/1/data",
        b"\x00\xff",
        2,
        "sender",
    )
    assert first["retain"]
    assert json.loads(first["properties"]) == {"User-Property": [["a", "1"], ["a", "2"]]}
    assert (second["topic"], second["payload"]) == ("raw/2/data", b"")


def test_records_are_read_over_http_by_positions_and_ticket(node: Node) -> None:
    node.call("POST", "/streams", {"name": "ranges", "topics": ["ranges"]})
    with Client(node) as client:
        for number in range(20):
            client.publish("ranges", str(number))
    eventually(lambda: _next_offset(node, "ranges") == 20)
    where = node.call("GET", "/streams/ranges/positions")
    shard = where["shards"][0]
    assert (where["kind"], shard["first_offset"]) == ("topics", "0")
    url = f"{where['ranges_url']}/streams/{where['log']}/{shard['shard']}"
    ticket = {"Authorization": f"Bearer {where['ticket']}"}
    read = httpx.get(
        url, params={"from": 5, "to": 9}, headers=ticket, trust_env=False, verify=NO_TLS
    )
    table = pa.ipc.open_stream(read.content).read_all()
    assert [value.decode() for value in table["payload"].to_pylist()] == ["5", "6", "7", "8"]
    assert [row["payload"] for row in _records(node, "ranges", 18, 20)] == [b"18", b"19"]
    refused = httpx.get(
        url,
        params={"from": 0, "to": 1},
        headers={"Authorization": "Bearer no"},
        trust_env=False,
        verify=NO_TLS,
    )
    assert refused.status_code == 401
    assert "request positions again" in refused.text


def test_a_time_is_turned_into_an_offset(node: Node) -> None:
    node.call("POST", "/streams", {"name": "times", "topics": ["times"]})
    with Client(node) as client:
        client.publish("times", "before")
        before_ms = time.time_ns() // 1_000_000
        between_ms = eventually(lambda: _later_than(before_ms))
        client.publish("times", "after")
    eventually(lambda: _next_offset(node, "times") == 2)

    def offset_at(at: str) -> str:
        return str(node.call("GET", f"/streams/times/positions?at={at}")["shards"][0]["at_offset"])

    assert offset_at(str(between_ms)) == "1"
    assert offset_at("2001-01-01T00:00:00Z") == "0"
    assert offset_at("2999-01-01T00:00:00Z") == "2"
    at = node.call("GET", "/streams/times/positions?at=yesterday", expect=422)
    assert (
        "expected a time as 2026-01-31T12:00:00Z or milliseconds since 1970, got 'yesterday'"
        in at["detail"]
    )


def _later_than(ms: int) -> int | None:
    """A millisecond that began after ``ms`` ended."""
    now_ms = time.time_ns() // 1_000_000
    return now_ms if now_ms > ms + 1 else None


def test_a_message_published_through_the_api_passes_the_same_gate(node: Node) -> None:
    with Client(node) as client:
        client.subscribe("gate/api", 1)
        refused = node.call(
            "POST", "/messages:publish", {"topic": "gate/api", "payload": "{}"}, expect=422
        )
        assert refused["code"] == "message_refused"
        assert "gate" in refused["detail"]
        taken = node.call(
            "POST", "/messages:publish", {"topic": "gate/api", "payload": '{"temp": 1}', "qos": 1}
        )
        assert taken["receivers"] >= 1
        assert client.take().payload == b'{"temp": 1}'


def test_the_status_accounts_for_every_message(node: Node) -> None:
    before = node.call("GET", "/status")
    with Client(node) as client:
        client.subscribe("gate/#", 1)
        for number in range(10):
            client.publish("gate/1", json.dumps({"temp": number if number % 2 else "hot"}))
    after = node.call("GET", "/status")
    assert after["counters"]["received"] - before["counters"]["received"] == 10
    assert after["counters"]["delivered"] - before["counters"]["delivered"] == 5
    assert after["ledger"]["dropped"] - before["ledger"]["dropped"] == 5
    assert after["ledger"]["residual"] == before["ledger"]["residual"] == 0
    with node.client() as client_:
        metrics = client_.get(f"{node.url}/metrics").text
    assert "sluice_messages_received" in metrics


def test_a_change_takes_effect_on_the_next_message(node: Node) -> None:
    rule = {
        "name": "versions", "sql": "SELECT 1 AS v FROM \"versions\"",
        "actions": [{"type": "republish", "topic": "version", "payload": "${v}", "qos": 1, "retain": False}],
    }  # fmt: skip
    with Client(node) as client:
        client.subscribe("version", 1)
        node.call("POST", "/rules", rule)
        client.publish("versions", "x")
        node.call("PUT", "/rules/versions", {**rule, "sql": 'SELECT 2 AS v FROM "versions"'})
        client.publish("versions", "x")
        node.call("PUT", "/rules/versions", {**rule, "enable": False})
        client.publish("versions", "x")
        node.call("DELETE", "/rules/versions")
        client.publish("versions", "x")
        client.publish("version", "end")
        assert [client.take().payload for _ in range(3)] == [b"1", b"2", b"end"]
    node.call("GET", "/rules/versions", expect=404)
