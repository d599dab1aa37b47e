"""The topic explorer on a real broker: the tree, tails, and the latest messages as test input."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import paho.mqtt.client as mqtt
import pytest
from jsonschema import Draft202012Validator
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from broker.cli.exit_codes import CHECK_SAID_NO
from tests.support.local_node import Node, running, sluice
from tests.support.node import eventually
from tests.support.ticking import ticking

SCHEMA = json.dumps({"type": "object", "required": ["t"], "properties": {"t": {"type": "number"}}})


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """A broker with a schema bound to ``meters/#``, a transform, and a stream of ``kept/#``."""
    with running(tmp_path_factory.mktemp("topics") / "data") as node:
        node.call("POST", "/schemas", {"name": "meter", "type": "json", "source": SCHEMA})
        check = {"type": "json", "schema": "meter"}
        validation = {
            "name": "meters",
            "topics": ["meters/#"],
            "strategy": "all_pass",
            "failure_action": "drop",
        }
        node.call("POST", "/validations", {**validation, "checks": [check]})
        operations = [
            {"key": "topic", "value": "'clean/1'"},
            {"key": "user_property.site", "value": "'berlin'"},
        ]
        transform = {
            "name": "clean",
            "topics": ["meters/raw"],
            "failure_action": "drop",
            "operations": operations,
        }
        node.call("POST", "/transforms", transform)
        node.call("POST", "/streams", {"name": "kept", "topics": ["kept/#"]})
        yield node


@contextmanager
def client(node: Node, name: str, version: int = mqtt.MQTTv5) -> Iterator[mqtt.Client]:
    made = mqtt.Client(CallbackAPIVersion.VERSION2, name, protocol=MQTTProtocolVersion(version))
    made.connect(*node.mqtt)
    made.loop_start()
    try:
        yield made
    finally:
        made.disconnect()
        made.loop_stop()


def publish(node: Node, *messages: tuple[str, bytes], qos: int = 1, **more: Any) -> None:
    """Publish, and wait until the broker has it all."""
    with client(node, "publisher") as publisher:
        for topic, payload in messages:
            publisher.publish(topic, payload, qos, **more).wait_for_publish(30)


@contextmanager
def tailing(node: Node, topic_filter: str, **parameters: Any) -> Iterator[Iterator[Any]]:
    """The lines of a tail that is open."""
    query = {"filter": topic_filter, "seconds": 60, **parameters}
    with node.client() as api, api.stream("GET", "/topics/tail", params=query) as answer:
        assert answer.status_code == 200, answer.read()
        assert answer.headers["content-type"] == "application/x-ndjson"
        lines = (json.loads(line) for line in answer.iter_lines())
        assert next(lines) == {"kind": "status", "matched": 0, "shown": 0, "skipped": 0}
        yield lines


def messages(lines: Iterator[Any], count: int) -> list[Any]:
    found = (line for line in lines if line["kind"] == "message")
    return [next(found) for _ in range(count)]


def test_the_tree_has_rates_sizes_times_and_retained_flags_by_level(node: Node) -> None:
    publish(node, ("site/lobby/t", b"21"), retain=True)
    assert node.call("GET", "/topics?under=site")["items"][0]["topic"] == "site/lobby"
    for version in (mqtt.MQTTv311, mqtt.MQTTv5):
        with client(node, f"c{version}", version) as publisher:
            for qos in (0, 1, 2):
                for number in range(10):
                    publisher.publish(
                        f"site/{version}/{number % 2}", b"x" * 100, qos
                    ).wait_for_publish(30)
    node.call("POST", "/messages:publish", {"topic": "site/api", "payload": "12345"})

    def counted() -> Any:
        page = node.call("GET", "/topics?under=site&sort=name")
        return (
            page
            if page["under"]["messages"] == 61 and page["under"]["message_rate"] is not None
            else None
        )

    page = eventually(counted)
    rows = {row["name"]: row for row in page["items"]}
    assert list(rows) == ["4", "5", "api", "lobby"]
    for name in "45":
        assert (rows[name]["messages"], rows[name]["bytes"], rows[name]["mean_bytes"]) == (
            30,
            3000,
            100,
        )
        assert (rows[name]["topics"], rows[name]["levels"], rows[name]["is_topic"]) == (2, 2, False)
    assert (rows["api"]["messages"], rows["api"]["is_topic"], rows["api"]["retained"]) == (
        1,
        True,
        False,
    )
    [lobby] = node.call("GET", "/topics?under=site/lobby")["items"]
    assert (lobby["topic"], lobby["retained"], lobby["messages"]) == ("site/lobby/t", True, 0)
    assert (
        page["under"]["bytes"]
        == sum(row["bytes"] for row in page["items"]) + page["rest"]["bytes"]
        == 6005
    )
    assert page["total"] == 4
    found = node.call("GET", "/topics?search=site/*/1&sort=name")
    assert [row["topic"] for row in found["items"]] == ["site/4/1", "site/5/1"]


def test_a_level_is_read_page_by_page(node: Node) -> None:
    node.call("GET", "/topics")
    publish(node, *[(f"paged/{number}", b"x" * number) for number in range(5)])
    for sort in ("name", "-name", "bytes", "-bytes", "-rate"):
        names, cursor = [], ""
        while cursor is not None:
            query = {
                "under": "paged",
                "sort": sort,
                "limit": 2,
                **({"cursor": cursor} if cursor else {}),
            }
            with node.client() as api:
                page = api.get("/topics", params=query).json()
            names += [row["name"] for row in page["items"]]
            cursor = page["next"]
        assert sorted(names) == list("01234")
        assert sort.endswith("rate") or names == sorted(names, reverse=sort.startswith("-"))
    problem = node.call("GET", "/topics?sort=colour", expect=422)
    assert "expected one of name, rate" in problem["errors"][0]["message"]


def test_a_tail_shows_messages_as_published_and_what_became_of_them(node: Node) -> None:
    properties = Properties(PacketTypes.PUBLISH)
    properties.UserProperty = [("a", "1"), ("a", "2")]
    with tailing(node, "meters/#") as lines:
        publish(
            node,
            ("meters/1", b'{"t": 1}'),
            ("meters/1", b'{"t": "hot"}'),
            ("meters/raw", b'{"t": 2}'),
        )
        publish(node, ("meters/2", b'{"t": 3}'), qos=0, retain=True, properties=properties)
        passed, dropped, transformed, retained = messages(lines, 4)
    document = node.call("GET", "/openapi.json")
    line = Draft202012Validator(
        {"$ref": "#/components/schemas/TailLine", "components": document["components"]}
    )
    for message in (passed, dropped, transformed, retained):
        line.validate(message)
    assert (passed["topic"], passed["qos"], passed["clientid"], passed["outcome"]) == (
        "meters/1",
        1,
        "publisher",
        "passed",
    )
    assert passed["payload"] == {
        "encoding": "json",
        "data": {"t": 1},
        "size_bytes": 8,
        "truncated": False,
    }
    assert (passed["schema"], passed["became"], passed["refusal"]) == ("meter", None, None)
    assert dropped["outcome"] == "dropped"
    assert dropped["refusal"]["reason"] == "validation_failed"
    assert "payload.t: 'hot' is not of type" in dropped["schema_error"]
    assert dropped["payload"]["data"] == {"t": "hot"}
    assert transformed["outcome"] == "transformed"
    assert (transformed["topic"], transformed["became"]["topic"]) == ("meters/raw", "clean/1")
    assert transformed["became"]["user_properties"] == [["site", "berlin"]]
    assert (retained["retain"], retained["user_properties"]) == (True, [["a", "1"], ["a", "2"]])


def test_a_tail_of_the_topic_that_a_transform_writes_shows_what_arrives_there(node: Node) -> None:
    with tailing(node, "clean/#", count=1) as lines:
        publish(node, ("meters/raw", b'{"t": 2}'))
        [message] = messages(lines, 1)
        assert (message["topic"], message["outcome"]) == ("clean/1", "passed")
        assert [line["kind"] for line in lines] == ["status"]


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("version", [mqtt.MQTTv311, mqtt.MQTTv5])
def test_a_tail_of_topics_without_stages_leaves_delivery_alone(
    node: Node, qos: int, version: int
) -> None:
    received: list[bytes] = []
    with client(node, "receiver", version) as receiver, tailing(node, "plain/+") as lines:
        receiver.on_message = lambda _client, _data, message: received.append(
            bytes(message.payload)
        )
        granted: list[int] = []
        receiver.on_subscribe = lambda *_: granted.append(1)
        receiver.subscribe("plain/#", qos)
        eventually(lambda: granted)
        with client(node, "sender", version) as sender:
            for number in range(20):
                sender.publish(f"plain/{number % 3}", f"{number}", qos).wait_for_publish(30)
            shown = messages(lines, 20)
        eventually(lambda: len(received) == 20)
    assert [message["payload"]["data"] for message in shown] == [
        str(number) for number in range(20)
    ]
    assert {(message["qos"], message["clientid"], message["outcome"]) for message in shown} == {
        (qos, "sender", "passed")
    }
    assert sorted(int(payload) for payload in received) == list(range(20))


def test_a_tail_is_bounded_and_counts_what_it_skips(node: Node) -> None:
    began_s = time.monotonic()
    with tailing(node, "busy/#", messages_per_s=10) as lines:
        publish(node, *[("busy/1", b"x")] * 500)
        publish(node, ("busy/1", b"y" * 100_000))
        shown = []
        for line in lines:
            if line["kind"] == "message":
                shown.append(line)
            elif line["matched"] == 501:
                break
    assert line["shown"] == len(shown) <= 10 * (time.monotonic() - began_s + 1)
    assert line["skipped"] == 501 - len(shown) > 0


def test_a_tail_ends_when_its_time_is_over(node: Node) -> None:
    with tailing(node, "none", seconds=1) as lines:
        assert {line["kind"] for line in lines} == {"status"}


def test_long_payloads_are_cut_and_binary_ones_encoded(node: Node) -> None:
    with tailing(node, "odd/#") as lines:
        publish(node, ("odd/1", b"z" * 100_000), ("odd/2", b"\xff\x00"))
        long, binary = messages(lines, 2)
    assert (long["payload"]["size_bytes"], long["payload"]["truncated"]) == (100_000, True)
    assert len(long["payload"]["data"]) == 64 * 1024
    assert binary["payload"] == {
        "encoding": "base64",
        "data": "/wA=",
        "size_bytes": 2,
        "truncated": False,
    }


def test_a_tail_that_nobody_reads_any_more_is_closed(node: Node) -> None:
    with tailing(node, "left/#"):
        assert _open_tails(node) >= 1
    publish(node, ("left/1", b"x"))
    eventually(lambda: _open_tails(node) == 0)


def _open_tails(node: Node) -> int:
    text = httpx.get(
        f"{node.url}/metrics", headers=dict(node.client().headers), trust_env=False
    ).text
    return next(
        int(float(line.split()[-1]))
        for line in text.splitlines()
        if line.startswith("sluice_tails")
    )


def test_the_latest_messages_are_input_for_trials(node: Node) -> None:
    publish(node, *[(f"kept/{number}", json.dumps({"t": number}).encode()) for number in range(5)])
    items = eventually(lambda: node.call("GET", "/topics/latest?filter=kept/%23&limit=3")["items"])
    assert [item["message"]["topic"] for item in items] == ["kept/4", "kept/3", "kept/2"]
    assert {(item["source"], item["stream"]) for item in items} == {("stream", "kept")}
    sql = 'SELECT payload.t AS t, clientid FROM "kept/#" WHERE payload.t > 3'
    outcome = node.call("POST", "/rules:test", {"sql": sql, "event": items[0]["event"]})
    assert outcome == {"outcome": "rows", "rows": [{"t": 4, "clientid": "publisher"}]}
    operations = [{"key": "user_property.from", "value": "clientid"}]
    transform = {
        "name": "x",
        "topics": ["kept/#"],
        "failure_action": "drop",
        "operations": operations,
    }
    body = {"transformations": [transform], "message": items[0]["message"]}
    assert node.call("POST", "/transforms:preview", body)["message"]["user_properties"] == [
        ["from", "publisher"]
    ]


def test_rules_are_tried_on_the_latest_message_as_the_stages_left_it(node: Node) -> None:
    sql = 'SELECT topic, payload.t AS t FROM "clean/#"'
    with ticking(node, ("meters/raw", b'{"t": 1}'), ("meters/1", b'{"t": "warm"}')):
        [item] = node.call("GET", "/topics/latest?filter=meters/raw&wait=20")["items"]
        [dropped] = node.call("GET", "/topics/latest?filter=meters/1&wait=20")["items"]
        ran = sluice(node, "rules", "run", "--sql", sql, "--latest", "meters/raw")
        refused = sluice(node, "rules", "run", "--sql", sql, "--latest", "meters/1")
    assert (item["message"]["topic"], item["event"]["topic"], item["refusal"]) == (
        "meters/raw",
        "clean/1",
        None,
    )
    body = {"sql": sql, "event": item["event"]}
    assert node.call("POST", "/rules:test", body)["rows"] == [{"topic": "clean/1", "t": 1}]
    assert json.loads(ran.stdout) == {"topic": "clean/1", "t": 1}, ran.stderr
    assert (dropped["refusal"]["stage"], dropped["refusal"]["name"]) == ("validation", "meters")
    assert refused.returncode == CHECK_SAID_NO
    assert "validation 'meters' dropped the latest message on 'meters/1'" in refused.stderr


def test_messages_dropped_before_rules_are_none_of_their_latest(node: Node) -> None:
    stopping = {"name": "stops", "sql": 'SELECT 1 FROM "stopped/#"', "actions": [{"type": "drop"}]}
    node.call("POST", "/rules", stopping)
    many = [("meters/own/1", b'{"t": "warm"}')] * 30
    with ticking(
        node, *many, ("meters/own/2", b'{"t": 1}'), ("stopped/1", b"by a rule, which saw it")
    ):
        items = node.call("GET", "/topics/latest?filter=meters/own/%23&limit=5&wait=20")["items"]
        [stopped] = node.call("GET", "/topics/latest?filter=stopped/%23&wait=20")["items"]
    assert {item["message"]["topic"] for item in items} == {"meters/own/2"}
    assert stopped["refusal"] is None
    node.call("DELETE", "/rules/stops")


def test_the_latest_message_is_a_retained_one_or_the_next_one(node: Node) -> None:
    publish(node, ("once/1", b"\xff"), retain=True)
    [item] = node.call("GET", "/topics/latest?filter=once/%2B&limit=10")["items"]
    assert (item["source"], item["message"]["payload"]) == (
        "retained",
        {"encoding": "base64", "data": "/w=="},
    )
    assert node.call("GET", "/topics/latest?filter=none/%2B")["items"] == []
    with ticking(node, ("none/1", b'{"t": 1}')):
        [item] = node.call("GET", "/topics/latest?filter=none/%2B&wait=20")["items"]
    assert (item["source"], item["message"]["clientid"]) == ("live", "ticking")
    assert (
        node.call("GET", "/topics/latest?filter=a/%23/b", expect=422)["errors"][0]["pointer"]
        == "/query/filter"
    )


def test_a_broker_with_an_open_tail_stops_at_once(tmp_path: Any) -> None:
    with running(tmp_path / "data") as node, tailing(node, "#") as lines:
        assert node.stop(20) == 0
        assert [line["kind"] for line in lines] == ["status"]
