"""Validations and transformations of a whole broker: what publishers are told, who passes them, and on which topic."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from broker.codec.packets import Connect, Disconnect, PubAck, PubComp, Publish, PubRec, PubRel
from tests.end_to_end.clients import Client, MosquittoSub, publish
from tests.support.mqtt_server import on_loop
from tests.support.node import Node, eventually, running
from tests.support.wire import WireClient

CONFIG = """
schema_registry.schemas = [{ name = reading, type = json
  source = { type = object, required = [t], properties { t { type = number } } } }]
schema_validation.validations = [
  { name = shape, topics = ["shape/#"], strategy = all_pass, failure_action = drop
    checks = [{ type = json, schema = reading }] }
  { name = range, topics = ["range/#"], strategy = all_pass, failure_action = drop
    checks = [{ type = sql, sql = "SELECT 1 AS ok WHERE payload.t < 50" }] }
  { name = strict, topics = ["strict/#"], strategy = all_pass, failure_action = disconnect
    checks = [{ type = json, schema = reading }] }
  { name = before, topics = ["from/#"], strategy = all_pass, failure_action = drop
    checks = [{ type = sql, sql = "SELECT 1 AS ok" }] }
  { name = behind, topics = ["to/#"], strategy = all_pass, failure_action = drop
    checks = [{ type = sql, sql = "SELECT 1 AS ok WHERE 1 = 2" }] }
]
message_transformation.transformations = [
  { name = decode, topics = ["decode/#"], failure_action = drop
    payload_decoder = { type = json }, payload_encoder = { type = json } }
  { name = operate, topics = ["operate/#"], failure_action = drop, operations = [{ key = qos, value = "'7'" }] }
  { name = close, topics = ["close/#"], failure_action = disconnect, operations = [{ key = qos, value = "'7'" }] }
  { name = move, topics = ["from/#"], failure_action = drop
    payload_decoder = { type = json }, payload_encoder = { type = json }
    operations = [{ key = topic, value = "concat(['to/', nth(2, tokens(topic, '/'))])" }
                  { key = retain, value = "true" }] }
  { name = still, topics = ["from/#"], failure_action = drop
    payload_decoder = { type = json }, payload_encoder = { type = json }
    operations = [{ key = "payload.matched", value = "'published topic'" }] }
  { name = behind, topics = ["to/#"], failure_action = drop
    payload_decoder = { type = json }, payload_encoder = { type = json }
    operations = [{ key = "payload.matched", value = "'new topic'" }] }
]
streams = [{ name = before, topics = ["from/#"] }, { name = after, topics = ["to/#"] }]
rule_engine.rules = [
  { name = before, sql = "SELECT topic FROM \\"from/#\\"", actions = [{ type = console }] }
  { name = after, sql = "SELECT topic, payload.matched AS matched FROM \\"to/#\\"", actions = [{ type = console }] }
  { name = again, sql = "SELECT payload FROM \\"raw/#\\""
    actions = [{ type = republish, topic = "shape/again", payload = "${payload}" }] }
]
"""
BAD = b'{"t": "x"}'


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with running(tmp_path_factory.mktemp("gates") / "node", config=CONFIG) as node:
        yield node


def metrics_of(node: Node, path: str) -> Any:
    return node.call("GET", f"/{path}/metrics")


async def connected(node: Node, client_id: str, version: int, **members: Any) -> WireClient:
    return await WireClient.connected(node.mqtt[1], Connect(client_id, version, **members))


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize(
    ("topic", "payload", "code", "said"),
    [
        ("shape/1", BAD, 0x99, "validation 'shape': payload.t"),
        ("shape/1", b"no json", 0x99, "validation 'shape': payload: not JSON"),
        ("range/1", b'{"t": 60}', 0x83, "validation 'range'"),
        ("decode/1", b"no json", 0x99, "transformation 'decode'"),
        ("operate/1", b"{}", 0x83, "transformation 'operate', operation 1: QoS is 0, 1 or 2"),
    ],
)
def test_version_5_is_told_what_was_dropped_and_why(
    node: Node, topic: str, payload: bytes, code: int, said: str, qos: int
) -> None:
    @on_loop
    async def run() -> None:
        client = await connected(node, "five", 5)
        client.send(Publish(topic, payload, qos, packet_id=7 if qos else 0))
        if qos:
            answer: PubAck | PubRec = await client.expect(PubAck if qos == 1 else PubRec)
            assert (answer.packet_id, answer.reason_code) == (7, code)
            assert answer.properties["Reason-String"].startswith(said)
        if qos == 2:
            # the flow is over: the identifier is free again, and nothing is there to release
            client.send(Publish(topic, payload, 2, packet_id=7))
            assert (await client.expect(PubRec)).reason_code == code
            client.send(PubRel(7))
            assert (await client.expect(PubComp)).reason_code == 0x92
        await client.silence()
        await client.close()

    run()


@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("topic", ["shape/1", "operate/1"])
def test_no_reason_string_for_whoever_asked_for_none(node: Node, topic: str, qos: int) -> None:
    @on_loop
    async def run() -> None:
        client = await connected(node, "quiet", 5, properties={"Request-Problem-Information": 0})
        client.send(Publish(topic, BAD, qos, packet_id=7))
        answer: PubAck | PubRec = await client.expect(PubAck if qos == 1 else PubRec)
        assert answer.reason_code >= 0x80
        assert answer.properties == {}
        await client.close()

    run()


@pytest.mark.parametrize("version", [3, 4])
@pytest.mark.parametrize("topic", ["shape/1", "range/1", "decode/1", "operate/1"])
def test_older_versions_get_a_plain_acknowledgement(node: Node, topic: str, version: int) -> None:
    @on_loop
    async def run() -> None:
        client = await connected(node, "old", version)
        client.send(
            Publish(topic, b"{", 0),
            Publish(topic, b"{", 1, packet_id=1),
            Publish(topic, b"{", 2, packet_id=2),
        )
        assert await client.expect(PubAck) == PubAck(1)
        assert await client.expect(PubRec) == PubRec(2)
        client.send(PubRel(2))
        assert await client.expect(PubComp) == PubComp(2)
        await client.silence()
        await client.close()

    run()


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("topic", ["strict/1", "close/1"])
def test_the_action_disconnect_closes(node: Node, topic: str, version: int, qos: int) -> None:
    @on_loop
    async def run() -> None:
        client = await connected(node, "closed", version)
        client.send(Publish(topic, BAD, qos, packet_id=1 if qos else 0))
        said = await client.closed()
        codes = [packet.reason_code for packet in said if isinstance(packet, Disconnect)]
        assert (len(said), codes) == ((1, [0x83]) if version == 5 else (0, []))

    run()


def test_what_is_dropped_reaches_nobody(node: Node) -> None:
    with MosquittoSub(node, "-t", "shape/#", "-q", "1") as subscriber:
        publish(node, "shape/kept", BAD.decode(), "-r", "-q", "1")
        publish(node, "shape/kept", '{"t": 1}', "-q", "1")
        assert subscriber.take(1) == ['shape/kept {"t": 1}']
    with MosquittoSub(node, "-t", "shape/#", "-t", "end", "-q", "1") as late:
        publish(node, "end", "of retained", "-q", "1")
        assert late.take(1) == ["end of retained"]


def test_real_clients_see_a_plain_success_or_the_reason(node: Node) -> None:
    with Client(node) as client:
        reason, properties = client.publish("range/1", '{"t": 60}', 1)
        assert (reason.value, "validation 'range'" in properties.ReasonString) == (0x83, True)
    assert publish(node, "shape/1", "x", "-q", "2", "-V", "311").returncode == 0


def test_wills_pass_the_same_stages(node: Node) -> None:
    before = metrics_of(node, "validations/shape")
    with MosquittoSub(node, "-t", "to/#", "-t", "shape/#", "-q", "1") as subscriber:
        for name, topic, payload in (
            ("dies", "shape/will", "no json"),
            ("moves", "from/will", "{}"),
        ):
            client = Client(node, name, will=(topic, payload))
            connection = client.paho.socket()
            assert connection is not None
            connection.close()
            client.paho.loop_stop()
        [line] = subscriber.take(1)
    assert line == 'to/will {"matched":"published topic"}'
    eventually(lambda: metrics_of(node, "validations/shape")["failed"] == before["failed"] + 1)


def test_what_the_api_publishes_passes_the_same_stages(node: Node) -> None:
    with MosquittoSub(node, "-t", "to/api", "-q", "1") as subscriber:
        told = node.call(
            "POST",
            "/messages:publish",
            {"topic": "shape/api", "payload": "no json"},
            expect=(200, 409, 422),
        )
        assert "validation 'shape'" in json.dumps(told)
        node.call("POST", "/messages:publish", {"topic": "from/api", "payload": "{}", "qos": 1})
        assert subscriber.take(1) == ['to/api {"matched":"published topic"}']


def test_what_rules_publish_passes_the_same_stages_and_a_refusal_is_a_failed_action(
    node: Node,
) -> None:
    publish(node, "raw/1", "no json", "-q", "1")

    def failed() -> int:
        [action] = node.call("GET", "/rules/again/metrics")["actions"]
        count: int = action["metrics"]["failed"]
        return count

    eventually(lambda: failed() == 1)
    with MosquittoSub(node, "-t", "shape/again", "-q", "1") as subscriber:
        publish(node, "raw/1", '{"t": 5}', "-q", "1")
        assert subscriber.take(1) == ['shape/again {"t": 5}']


def topics_of_the_page() -> dict[str, str]:
    """The table of docs/how-to/transform-messages.md: who acts by the published topic, and who by the new one."""
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "transform-messages.md").read_text()
    section = page.partition("## Which topic counts")[2].partition("\n## ")[0]
    rows = [line.strip("| ").split(" | ") for line in section.splitlines() if line.startswith("| ")]
    return {what: topic for what, topic in rows[1:] if what != "---"}


def test_who_acts_by_the_published_topic_and_who_by_the_new_one(node: Node) -> None:
    def counted(kind: str, name: str) -> int:
        count: int = metrics_of(node, f"{kind}/{name}")["matched"]
        return count

    def appended(name: str) -> int:
        count: int = node.call("GET", f"/streams/{name}")["records"]
        return count

    def topic_of(before: bool, after: bool) -> str:
        return {(True, False): "published", (False, True): "new"}[before, after]

    old = {
        "after": counted("rules", "after"),
        "stream": appended("after"),
        "move": counted("transforms", "move"),
    }
    with MosquittoSub(node, "-t", "from/topic", "-t", "to/topic", "-q", "1") as subscriber:
        publish(node, "from/topic", "{}", "-q", "1")
        [got] = subscriber.take(1)
    with MosquittoSub(node, "-t", "from/topic", "-t", "to/topic", "-q", "1") as late:
        [kept] = late.take(1)
    seen = {
        "validations": topic_of(
            counted("validations", "before") > 0, counted("validations", "behind") > 0
        ),
        "transforms": topic_of(
            counted("transforms", "move") > old["move"], counted("transforms", "behind") > 0
        ),
        "rules": topic_of(counted("rules", "before") > 0, counted("rules", "after") > old["after"]),
        "streams": topic_of(appended("before") > 0, appended("after") > old["stream"]),
        "retained store": topic_of(kept.startswith("from/"), kept.startswith("to/")),
        "subscribers": topic_of(got.startswith("from/"), got.startswith("to/")),
    }
    documented = topics_of_the_page()
    assert documented.pop("authorization of the publisher") == "published"
    assert seen == documented
    assert got == 'to/topic {"matched":"published topic"}'
