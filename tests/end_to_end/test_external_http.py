"""A server that codes payloads, in front of a whole broker: slow, wrong, gone; it costs its own clients only."""

from __future__ import annotations

import base64
import json
import struct
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import paho.mqtt.client as paho
import pytest
from paho.mqtt.enums import CallbackAPIVersion

from tests.support.coder import Coder
from tests.support.local_node import Node, running
from tests.support.node import TOKEN, Reachable, eventually
from tests.support.node import Node as NodeProcess
from tests.support.node import running as running_process


class Client:
    """An MQTT 5 client on a thread of its own, which keeps what it gets."""

    def __init__(self, node: Reachable, client_id: str, *topics: str) -> None:
        self.got: list[tuple[str, bytes]] = []
        self.acks: list[tuple[int, int]] = []
        ready = threading.Event()
        self._client = paho.Client(
            CallbackAPIVersion.VERSION2, client_id=client_id, protocol=paho.MQTTv5
        )
        self._client.on_message = lambda _c, _u, message: self.got.append(
            (message.topic, bytes(message.payload))
        )
        self._client.on_publish = lambda _c, _u, mid, code, _p: self.acks.append((mid, code.value))
        self._client.on_subscribe = lambda *_: ready.set()
        self._client.connect(*node.mqtt)
        self._client.loop_start()
        if topics:
            eventually(self._client.is_connected)
            self._client.subscribe([(topic, 1) for topic in topics])
            assert ready.wait(60)

    def publish(self, topic: str, payload: bytes | str, qos: int = 1) -> int:
        return self._client.publish(topic, payload, qos).mid

    def payloads(self, count: int) -> list[bytes]:
        """The payloads of so many messages, once they are there."""
        eventually(lambda: len(self.got) >= count, what=f"{count} messages")
        return [payload for _, payload in self.got]

    def close(self) -> None:
        self._client.disconnect()
        self._client.loop_stop()


@pytest.fixture
def coder() -> Iterator[Coder]:
    made = Coder()
    yield made
    made.stop()


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """One for all tests that need no settings of their own."""
    with running(tmp_path_factory.mktemp("external") / "node") as started:
        yield started


@pytest.fixture
def node(broker: Node) -> Iterator[Node]:
    """The broker, which afterwards is without the objects of the test."""
    yield broker
    for kind in ("rules", "validations", "transforms", "streams", "schema-registries", "schemas"):
        for made in broker.call("GET", f"/{kind}")["items"]:
            broker.call("DELETE", f"/{kind}/{made['name']}")


@pytest.fixture
def clients() -> Iterator[list[Client]]:
    made: list[Client] = []
    yield made
    for client in made:
        client.close()


def schema(node: Reachable, coder: Coder, **parameters: Any) -> None:
    given = {
        "url": coder.url,
        "headers": {"Authorization": "Bearer s3cret", "X-Site": "7"},
        **parameters,
    }
    node.call("POST", "/schemas", {"name": "frames", "type": "external_http", "parameters": given})


def validation(node: Reachable, action: str = "drop", **members: Any) -> None:
    checks = members.pop("checks", [{"type": "external_http", "schema": "frames"}])
    spec = {
        "name": "v",
        "topics": ["f/#"],
        "strategy": "all_pass",
        "failure_action": action,
        "checks": checks,
    }
    node.call("POST", "/validations", {**spec, **members})


def metric(node: Reachable, name: str) -> float:
    with node.client() as client:
        lines = client.get(f"{node.url}/metrics").text.splitlines()
    found = [line for line in lines if line.startswith((f"{name} ", f"sluice_{name} "))]
    return float(found[0].rpartition(" ")[2])


def test_a_validation_waits_for_the_server_and_only_its_clients_do(
    node: Node, coder: Coder, clients: list[Client]
) -> None:
    schema(node, coder, request_timeout="60s")
    validation(node)
    reader, slow, other = Client(node, "r", "f/#", "o/#"), Client(node, "s"), Client(node, "o")
    clients += [reader, slow, other]
    sent = [slow.publish("f/a", payload) for payload in (b"1", b"slow 2", b"bad 3", b"4")]
    eventually(
        lambda: coder.payloads() == [b"1", b"slow 2"], what="the second publish is with the server"
    )
    for number in range(200):
        other.publish("o/a", b"%d" % number)
    assert len(reader.payloads(201)) == 201
    assert coder.payloads() == [b"1", b"slow 2"]
    assert metric(node, "connections_parked") == 1, (
        "nobody waits for a client that waits, as it does still"
    )
    coder.release()
    eventually(lambda: len(slow.acks) == 4, what="an answer for each publish")
    assert slow.acks == [(sent[0], 0), (sent[1], 0), (sent[2], 0x99), (sent[3], 0)]
    reader.payloads(203)
    passed = [payload for topic, payload in reader.got if topic == "f/a"]
    assert passed == [b"1", b"slow 2", b"4"]
    counted = node.call("GET", "/validations/v/metrics")
    assert {name: counted[name] for name in ("matched", "succeeded", "failed")} == {
        "matched": 4, "succeeded": 3, "failed": 1,
    }  # fmt: skip
    assert node.call("GET", "/schemas/frames")["status"] == "connected"


@pytest.mark.parametrize("action", ["drop", "ignore"])
def test_a_server_that_is_slow_or_gone_is_a_failure_of_the_message(
    node: Node, coder: Coder, clients: list[Client], action: str
) -> None:
    schema(node, coder, request_timeout="300ms", max_retries=0)
    validation(node, action)
    reader, client = Client(node, "r", "f/#"), Client(node, "c")
    clients += [reader, client]
    client.publish("f/a", b"slow")
    eventually(lambda: len(client.acks) == 1)
    coder.stop()
    client.publish("f/a", b"gone")
    eventually(lambda: len(client.acks) == 2)
    codes = [code for _, code in client.acks]
    assert codes == ([0x99, 0x99] if action == "drop" else [0, 0])
    if action == "ignore":
        assert reader.payloads(2) == [b"slow", b"gone"]
    shown = node.call("GET", "/validations/v")
    assert "cannot be reached" in str(shown)
    found = node.call("GET", "/schemas/frames")
    assert found["status"] == "disconnected"
    assert found["node_status"][0]["status"] == "disconnected"
    assert "cannot be reached" in found["last_error"]


def test_a_transformation_decodes_by_one_server_and_encodes_by_it_again(
    node: Node, coder: Coder, clients: list[Client]
) -> None:
    schema(node, coder)
    codec = {"type": "external_http", "schema": "frames"}
    spec = {"topics": ["f/#"], "failure_action": "drop"}
    node.call("POST", "/transforms", {
        **spec, "name": "t", "payload_decoder": codec, "payload_encoder": codec,
        "operations": [{"key": "payload", "value": "concat([payload, '!'])"}],
    })  # fmt: skip
    reader, client = Client(node, "r", "f/#"), Client(node, "c")
    clients += [reader, client]
    for number in range(20):
        client.publish("f/a", b"%02d" % number, number % 3)
    expected = [b"e:" + (b"d:" + (b"%02d" % number)[::-1] + b"!")[::-1] for number in range(20)]
    assert reader.payloads(20) == expected
    eventually(lambda: len(client.acks) == 20)
    body = {
        "transformations": [node.call("GET", "/transforms/t")],
        "message": {"topic": "f/a", "payload": "ab", "qos": 0},
    }
    preview = node.call("POST", "/transforms:preview", body)
    assert preview["message"]["payload"] == {"encoding": "utf8", "data": "e:!ab:d"}


def test_rules_are_put_off_and_keep_their_order(
    node: Node, coder: Coder, clients: list[Client]
) -> None:
    schema(node, coder, request_timeout="4s")
    sql = "SELECT schema_decode('frames', payload) AS value FROM \"f/#\""
    republish = {"type": "republish", "topic": "out", "payload": "${value}", "qos": 1}
    node.call("POST", "/rules", {"name": "slow", "sql": sql, "actions": [republish]})
    other = 'SELECT payload FROM "f/#"'
    node.call("POST", "/rules", {"name": "quick", "sql": other, "actions": [{**republish, "topic": "quick",
                                                                            "payload": "${payload}"}]})  # fmt: skip
    reader, client = Client(node, "r", "out"), Client(node, "c")
    quick = Client(node, "q", "quick")
    clients += [reader, client, quick]
    payloads = [b"%d" % number for number in range(40)]
    payloads[5], payloads[9] = b"bad", b"slow"
    for payload in payloads:
        client.publish("f/a", payload)
    assert quick.payloads(40) == payloads, "another rule on the same messages waits for nothing"
    eventually(lambda: len(client.acks) == 40)
    assert reader.payloads(38) == [b"d:" + p[::-1] for p in payloads if p not in (b"bad", b"slow")]
    eventually(lambda: metrics(node)["matched"] == 40)
    counted = metrics(node)
    assert (counted["matched"], counted["passed"], counted["failed.exception"]) == (40, 38, 2)
    assert "did not answer within 4 s" in node.call("GET", "/rules/slow")["last_error"]["text"]


def metrics(node: Reachable) -> dict[str, Any]:
    found: dict[str, Any] = node.call("GET", "/rules/slow")["metrics"]
    return found


def test_a_server_that_dies_while_it_is_asked(
    node: Node, coder: Coder, clients: list[Client]
) -> None:
    schema(node, coder, max_retries=1)
    validation(node)
    client = Client(node, "c")
    clients.append(client)
    client.publish("f/a", b"slow")
    client.publish("o/a", b"behind")
    eventually(lambda: coder.payloads())
    coder.stop()
    eventually(lambda: len(client.acks) == 2)
    assert [code for _, code in client.acks] == [0x99, 0x10]


def test_a_broker_that_dies_while_a_client_is_parked_loses_nothing(
    tmp_path: Path, coder: Coder, clients: list[Client]
) -> None:
    with running_process(tmp_path / "node") as node:
        _dies_while_a_client_is_parked(node, coder, clients)


def _dies_while_a_client_is_parked(node: NodeProcess, coder: Coder, clients: list[Client]) -> None:
    schema(node, coder)
    validation(node)
    node.call("POST", "/streams", {"name": "kept", "topics": ["f/#"]})
    client = Client(node, "the one that is parked")
    clients.append(client)
    for payload in (b"1", b"slow", b"2"):
        client.publish("f/a", payload)
    eventually(lambda: coder.payloads() == [b"1", b"slow"] and client.acks)
    node.kill()
    coder.release()
    node.start()
    eventually(lambda: len(client.acks) == 3)
    assert sorted(client.acks) == [(1, 0), (2, 0), (3, 0)]
    positions = node.call("GET", "/streams/kept/positions")["shards"]
    assert sum(int(shard["next_offset"]) - int(shard["first_offset"]) for shard in positions) == 3


def test_the_first_message_with_a_number_of_a_registry_elsewhere_is_decoded(
    node: Node, clients: list[Client]
) -> None:
    """The broker's own Confluent face stands for the registry."""
    source = {"type": "record", "name": "M", "fields": [{"name": "t", "type": "int"}]}
    number = node.call(
        "POST", "/schemas", {"name": "meter", "type": "avro", "source": json.dumps(source)}
    )["id"]
    auth = {"mechanism": "basic", "username": "any", "password": TOKEN}
    node.call(
        "POST", "/schema-registries", {"name": "kafka", "url": f"{node.url}/registry", "auth": auth}
    )
    for name, topic, expression in (
        ("decode", "bin", "schema_decode_tagged('kafka', payload)"),
        (
            "encode",
            "json",
            "bin2hexstr(schema_encode_and_tag('meter', 'kafka', json_decode(payload), 'new-subject'))",
        ),
    ):
        republish = {"type": "republish", "topic": f"out/{name}", "payload": "${v}", "qos": 1}
        sql = f'SELECT {expression} AS v FROM "{topic}"'
        node.call("POST", "/rules", {"name": name, "sql": sql, "actions": [republish]})
    decoded, encoded, client = (
        Client(node, "d", "out/decode"),
        Client(node, "e", "out/encode"),
        Client(node, "c"),
    )
    clients += [decoded, encoded, client]
    tagged = [struct.pack(">BI", 0, number) + bytes([2 * number_]) for number_ in range(5)]
    for payload in tagged:
        client.publish("bin", payload)
    assert [json.loads(payload) for payload in decoded.payloads(5)] == [
        {"t": number_} for number_ in range(5)
    ]
    client.publish("json", '{"t": 3}')
    [text] = encoded.payloads(1)
    assert bytes.fromhex(text.decode()) == tagged[3]
    assert node.call("GET", "/schema-registries/kafka")["cached"] == 1
    client.publish("bin", struct.pack(">BI", 0, 123_456_789))
    eventually(lambda: "123456789" in str(node.call("GET", "/rules/decode")["last_error"]))


def test_what_is_published_inside_waits_too(
    node: Node, coder: Coder, clients: list[Client]
) -> None:
    schema(node, coder)
    validation(node)
    rule = {"type": "republish", "topic": "f/made", "payload": "${payload}", "qos": 1}
    node.call("POST", "/rules", {"name": "r", "sql": 'SELECT payload FROM "in"', "actions": [rule]})
    reader, client = Client(node, "r", "f/#"), Client(node, "c")
    clients += [reader, client]
    for payload in (b"1", b"bad", b"2", b"3"):
        client.publish("in", payload)
    assert reader.payloads(3) == [b"1", b"2", b"3"]
    assert (
        node.call("POST", "/messages:publish", {"topic": "f/api", "payload": "4"})["receivers"] == 1
    )
    refused = node.call(
        "POST", "/messages:publish", {"topic": "f/api", "payload": "bad"}, expect=422
    )
    assert "not a frame" in refused["detail"]


def test_a_condition_of_a_validation_may_ask(
    node: Node, coder: Coder, clients: list[Client]
) -> None:
    schema(node, coder)
    sql = "SELECT schema_decode('frames', payload) AS v WHERE v = 'd:ko'"
    validation(node, checks=[{"type": "sql", "sql": sql}])
    client = Client(node, "c")
    clients.append(client)
    for payload in (b"ok", b"no", b"bad"):
        client.publish("f/a", payload)
    eventually(lambda: len(client.acks) == 3)
    assert [code >= 0x80 for _, code in client.acks] == [False, True, True]


def test_secrets_are_stars_and_stars_keep_them(node: Node, coder: Coder) -> None:
    schema(node, coder)
    shown = node.call("GET", "/schemas/frames")
    assert shown["parameters"]["headers"] == {"Authorization": "******", "X-Site": "7"}
    assert shown["parameters"]["request_timeout"] == 10
    assert "source" not in shown
    changed = {**shown["parameters"], "request_timeout": "5s"}
    node.call(
        "PUT", "/schemas/frames", {"name": "frames", "type": "external_http", "parameters": changed}
    )
    assert decoded(node, "x") == "d:x"
    assert coder.headers[-1]["authorization"] == "Bearer s3cret"
    changed = {**changed, "headers": {"Authorization": "Bearer other"}}
    node.call(
        "PUT", "/schemas/frames", {"name": "frames", "type": "external_http", "parameters": changed}
    )
    decoded(node, "x")
    assert coder.headers[-1]["authorization"] == "Bearer other"
    node.call("PUT", "/schemas/frames", {"name": "frames", "type": "external_http", "parameters": {
        **changed, "headers": {"Authorization": "Bearer third"}}})  # fmt: skip
    decoded(node, "x")
    assert coder.headers[-1]["authorization"] == "Bearer third", (
        "a change of nothing but the secret counts"
    )
    versions = [one["version"] for one in node.call("GET", "/schemas/frames/versions")["items"]][
        -3:
    ]
    paths = ["/schemas", "/schemas/frames", "/schemas/frames/versions"]
    paths += [f"/schemas/frames/versions/{number}" for number in versions]
    texts = [str(node.call("GET", path)) for path in paths]
    assert not [text for text in texts if "Bearer" in text]
    node.stop()
    node.start()
    decoded(node, "x")
    assert coder.headers[-1]["authorization"] == "Bearer third"
    assert node.call("GET", "/schemas/frames")["status"] == "connected"


def decoded(node: Reachable, payload: str) -> str:
    found = node.call("POST", "/schemas:decode", {"name": "frames", "payload": payload})["value"]
    return base64.b64decode(found["$base64"]).decode()


def test_trials_ask_the_server(node: Node, coder: Coder) -> None:
    schema(node, coder)
    assert decoded(node, "ab") == "d:ba"
    bad = node.call("POST", "/schemas:decode", {"name": "frames", "payload": "bad"}, expect=422)
    assert "answered 422: not a frame" in str(bad)
    late = node.call("POST", "/schemas:decode", {"name": "frames", "payload": "slow"}, expect=422)
    assert "all that a trial waits" in str(late)
    spec = {"name": "v", "topics": ["f/#"], "strategy": "all_pass", "failure_action": "drop"}
    checks = [{"type": "external_http", "schema": "frames"}]
    body = {
        "validations": [{**spec, "checks": checks}],
        "message": {"topic": "f/a", "payload": "bad"},
    }
    assert node.call("POST", "/validations:test", body)["outcome"] == "drop"
    event = {"topic": "f/a", "payload": "ab"}
    tried = node.call("POST", "/rules:test", {"sql": "SELECT schema_decode('frames', payload) AS v FROM \"f/#\"",
                                              "event": event})  # fmt: skip
    assert tried["outcome"] == "rows" or tried["rows"]


def test_what_cannot_be_saved_says_why(node: Node, coder: Coder) -> None:
    schema(node, coder)
    refused = node.call(
        "POST", "/schemas", {"name": "x", "type": "external_http", "source": "{}"}, expect=422
    )
    assert "expected parameters" in str(refused)
    wrong = {"type": "json", "schema": "frames"}
    spec = {
        "name": "v",
        "topics": ["f/#"],
        "strategy": "all_pass",
        "failure_action": "drop",
        "checks": [wrong],
    }
    assert "is of type external_http, not json" in str(
        node.call("POST", "/validations", spec, expect=422)
    )
    validation(node)
    assert "validation 'v'" in str(node.call("DELETE", "/schemas/frames", expect=409))


def test_ssrf_lists_hold_for_schemas(tmp_path: Path, coder: Coder) -> None:
    with running_process(
        tmp_path / "node", config="rule_engine { ssrf { enable = true } }"
    ) as node:
        node.call("POST", "/schema-registries", {"name": "own", "url": f"{node.url}/registry"})
        sql = "SELECT avro_decode('own', payload, 1) AS t FROM \"a\""
        answer = node.call(
            "POST", "/rules:test", {"sql": sql, "event": {"topic": "a", "payload": "x"}}
        )
        assert "127.0.0.0/8" in str(answer["error"])
        schema(node, coder)
        refused = node.call(
            "POST", "/schemas:decode", {"name": "frames", "payload": "x"}, expect=422
        )
    assert "127.0.0.0/8" in str(refused)
    assert not coder.requests


def test_what_is_posted_is_answered_when_the_server_has_decided(
    node: Node, coder: Coder, clients: list[Client]
) -> None:
    schema(node, coder)
    validation(node)
    clients.append(reader := Client(node, "r", "f/#"))
    login = {"authentication": {"mechanism": "token", "tokens": ["wonderland"]}}
    node.call("POST", "/connectors", {"name": "web", "type": "http_server", **login})
    given = {"topic": "f/${path}", "body_format": "ndjson"}
    node.call(
        "POST",
        "/sources",
        {"name": "in", "type": "http_server", "connector": "web", "parameters": given},
    )
    eventually(lambda: node.call("GET", "/sources/in")["status"] == "connected")

    def post(*lines: str, **headers: str) -> httpx.Response:
        headers = {"Authorization": "Bearer wonderland", **headers}
        body = "\n".join(json.dumps(line) for line in lines)
        return httpx.post(
            f"{node.url}/ingest/in/a", content=body, headers=headers, timeout=30, trust_env=False
        )

    try:
        answers = [post("1", "bad 2", "3", **{"Idempotency-Key": "k"}) for _ in range(2)]
        first, again = [answer.json() for answer in answers]
        assert (first["accepted"], [one["index"] for one in first["refused"]]) == (2, [1])
        assert "validation 'v'" in first["refused"][0]["reason"]
        assert again == {**first, "duplicate": True}
        assert reader.payloads(2) == [b'"1"', b'"3"']
        none = post("bad 4")
        assert (none.status_code, none.json()["code"]) == (422, "message_refused")
        assert node.call("GET", "/sources/in")["metrics"]["refused"] == 2
    finally:
        node.call("DELETE", "/sources/in")
        node.call("DELETE", "/connectors/web")
