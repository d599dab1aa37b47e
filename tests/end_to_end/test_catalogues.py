"""The catalogues of events and functions say what a real broker does."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event
from typing import Any

import paho.mqtt.client as mqtt
import pytest
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.subscribeoptions import SubscribeOptions

from tests.support.local_node import Node, running, sluice
from tests.support.node import TOKEN, eventually
from transforms.variform.compiler import compile_expression
from transforms.variform.functions import catalogue

CONFIG = "mqtt { queue_high_watermark = 100, queue_watch_interval = 1s }\noverload.enable = false"
SEEN = """SELECT * FROM "meters/#", "$events/#" WHERE is_null(clientid) OR clientid = 'meter-1'"""
READING = {"type": "record", "name": "R", "fields": [{"name": "t", "type": "double"}]}


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """A broker with the schemas, the registry and the gates that the examples name."""
    with running(tmp_path_factory.mktemp("catalogues") / "data", config=CONFIG) as node:
        required = json.dumps({"type": "object", "required": ["t"]})
        node.call("POST", "/schemas", {"name": "meter", "type": "json", "source": required})
        node.call(
            "POST", "/schemas", {"name": "reading", "type": "avro", "source": json.dumps(READING)}
        )
        auth = {"mechanism": "basic", "username": "any", "password": TOKEN}
        node.call(
            "POST",
            "/schema-registries",
            {"name": "central", "url": f"{node.url}/registry", "auth": auth},
        )
        check = {"strategy": "all_pass", "checks": [{"type": "json", "schema": "meter"}]}
        gate = {"failure_action": "drop"}
        node.call(
            "POST", "/validations", {"name": "meters", "topics": ["checked/#"], **gate, **check}
        )
        operation = {"key": "user_property.site", "value": "payload.site"}
        node.call(
            "POST",
            "/transforms",
            {"name": "site", "topics": ["shaped/#"], **gate, "operations": [operation]},
        )
        own = {"name": "meters", "permission": "allow", "action": "all", "topics": ["#"]}
        node.call("POST", "/access/rules", own)
        yield node


def test_examples_of_events_have_the_shape_of_real_ones(node: Node) -> None:
    republish = {"type": "republish", "topic": "seen/${event}", "payload": "${.}"}
    node.call("POST", "/rules", {"name": "seen", "sql": SEEN, "actions": [republish]})
    seen: dict[str, Any] = {}

    def see(_client: Any, _data: Any, message: mqtt.MQTTMessage) -> None:
        seen.setdefault(message.topic.removeprefix("seen/"), json.loads(message.payload))

    losses: list[str] = []
    with _client(node, "watcher", losses, see) as watcher:
        _subscribe(watcher, "seen/#")
        _cause_events(node, seen, losses)
    assert not losses
    events = node.call("GET", "/events")["items"]
    assert sorted(seen) == sorted(event["name"] for event in events)
    for event in events:
        assert _shape(event["example"]) == _shape(seen[event["name"]]), event["name"]


def test_rules_to_start_from_give_a_row_of_their_example(node: Node) -> None:
    for event in node.call("GET", "/events")["items"]:
        answer = node.call("POST", "/rules:test", {"sql": event["rule"], "event": event["example"]})
        assert answer["outcome"] == "rows", event["name"]
        assert len(answer["rows"]) == 1, event["name"]
        assert None not in answer["rows"][0].values(), event["name"]


def test_examples_of_functions_give_their_results(node: Node) -> None:
    (event,) = node.call("GET", "/events?name=message.publish")["items"]
    functions = node.call("GET", "/functions?language=sql")["items"]
    assert all(function["examples"] and function["category"] for function in functions)
    wrong = []
    for example in {
        example["expression"]: example for function in functions for example in function["examples"]
    }.values():
        sql = f'SELECT {example["expression"]} AS found FROM "#"'
        body = {"sql": sql, "event": event["example"]}
        answer = node.call("POST", "/rules:test", body, expect=(200, 422))
        if answer.get("code") == "too_slow":  # its first use imports libraries
            answer = node.call("POST", "/rules:test", body)
        if answer.get("rows") != [{"found": example["result"]}]:
            wrong.append((example, answer))
    assert not wrong


def test_examples_of_variform_give_their_results() -> None:
    examples = [example for function in catalogue() for example in function["examples"]]
    for example in examples:
        expression = compile_expression(example["expression"], raw=True, in_transformations=True)
        assert expression.evaluate({}) == example["result"], example


def test_catalogues_on_the_command_line(node: Node) -> None:
    assert "$events/client/ping" in _sluice(node, "events")
    assert "reason_code" in _sluice(node, "events", "client.connack")
    assert "upper('hot') → \"HOT\"" in _sluice(node, "functions", "upper")
    assert "lists.sum" not in _sluice(node, "functions", "--language", "sql")
    (found,) = json.loads(_sluice(node, "functions", "bitand", "--json"))["items"]
    assert found["category"] == "bits"


def _sluice(node: Node, *words: str) -> str:
    done = sluice(node, *words, COLUMNS="200")
    assert done.returncode == 0, done.stderr
    return done.stdout


def _cause_events(node: Node, seen: dict[str, Any], losses: list[str]) -> None:
    with _client(node, "meter-1", losses) as meter:
        _subscribe(
            meter,
            "meters/#",
            options=SubscribeOptions(1),
            properties=_properties(PacketTypes.SUBSCRIBE),
        )
        _subscribe(meter, "own/#", options=SubscribeOptions(1, noLocal=True))
        sent = _properties(PacketTypes.PUBLISH, ContentType="application/json")
        for topic, payload in (
            ("meters/1", '{"t": 21.5}'),
            ("own/1", "x"),
            ("checked/1", "{}"),
            ("shaped/1", "{}"),
        ):
            meter.publish(topic, payload, 1, properties=sent)
        meter._send_pingreq()  # a keep alive of a second would end the connection on a busy machine
        _await(seen, losses, "message.acked", "message.transformation_failed", "client.ping")
        meter.unsubscribe("own/#", properties=_properties(PacketTypes.UNSUBSCRIBE))
        _await(seen, losses, "session.unsubscribed")
    _await(seen, losses, "client.disconnected")
    node.call("POST", "/messages:publish", {"topic": "meters/1", "payload": "x" * 200, "qos": 1})
    _await(seen, losses, "alarm.activated")
    with _client(node, "meter-1", losses):
        _await(seen, losses, "alarm.deactivated")


def _await(seen: dict[str, Any], losses: list[str], *events: str) -> None:
    for event in events:
        eventually(lambda event=event: losses or event in seen, what=event)  # type: ignore[misc] # the default binds now
        assert not losses, event


def _subscribe(client: mqtt.Client, topic: str, **options: Any) -> None:
    """Subscribe, and wait for the SUBACK: paho forgets what it has not sent when it connects again."""
    is_subscribed = Event()
    client.on_subscribe = lambda *_: is_subscribed.set()
    client.subscribe(topic, **options)
    assert is_subscribed.wait(60), topic


@contextmanager
def _client(
    node: Node, name: str, losses: list[str], on_message: Any = None
) -> Iterator[mqtt.Client]:
    """A connected client; ``losses`` gets the reason where its connection ends before the block does."""
    client = mqtt.Client(CallbackAPIVersion.VERSION2, name, protocol=mqtt.MQTTv5)
    client.username_pw_set("meter")
    client.on_message = on_message
    client.on_disconnect = lambda _client, _data, _flags, reason, _properties: losses.append(
        f"{name}: {reason}"
    )
    properties = _properties(PacketTypes.CONNECT, SessionExpiryInterval=60)
    client.connect(*node.mqtt, 60, clean_start=name != "meter-1", properties=properties)
    client.loop_start()
    yield client
    client.on_disconnect = None
    client.disconnect()
    client.loop_stop()


def _properties(packet: int, **given: Any) -> Properties:
    properties = Properties(packet)
    properties.UserProperty = ("site", "berlin")
    for name, value in given.items():
        setattr(properties, name, value)
    return properties


def _shape(value: Any) -> Any:
    """Its type, and those of its members."""
    return (
        {key: _shape(item) for key, item in value.items()}
        if isinstance(value, dict)
        else type(value).__name__
    )
