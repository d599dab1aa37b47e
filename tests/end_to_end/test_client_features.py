"""What real clients do beside plain exchanges: large payloads, properties, shares, requests, WebSocket in TLS."""

from __future__ import annotations

import hashlib
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import paho.mqtt.client as paho
import pytest

from tests.end_to_end.clients import DEADLINE_S, Client, MosquittoSub, publish
from tests.support import mqttjs
from tests.support.certificates import Authority
from tests.support.node import Node, eventually, running

LARGE = 200 * 1024
PAHO_VERSIONS = [paho.MQTTv31, paho.MQTTv311, paho.MQTTv5]
MOSQUITTO_VERSIONS = ["mqttv31", "mqttv311", "mqttv5"]


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    directory = tmp_path_factory.mktemp("features")
    files = Authority(directory).sign("server", {"CN": "localhost"}, ["localhost", "127.0.0.1"])
    options = f'ssl_options {{ certfile = "{files.cert}", keyfile = "{files.key}" }}'
    config = f'listeners.wss.default {{ bind = "127.0.0.1:0", {options} }}'
    with running(directory / "node", config=config) as node:
        yield node


# -- paho --


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("version", PAHO_VERSIONS, ids=["3.1", "3.1.1", "5"])
def test_paho_gets_a_large_payload_as_it_was_sent_live_and_retained(
    node: Node, version: int, qos: int
) -> None:
    topic, payload = f"large/{version}/{qos}", os.urandom(LARGE)
    with Client(node, version=version) as live, Client(node, version=version) as late:
        live.subscribe(topic, qos)
        live.publish(topic, payload, qos, retain=True)
        assert live.take().payload == payload
        late.subscribe(topic, qos)
        message = late.take()
        assert (message.payload, message.retain) == (payload, True)
        live.publish(topic, b"", 1, retain=True)


@pytest.mark.parametrize("version", PAHO_VERSIONS, ids=["3.1", "3.1.1", "5"])
def test_paho_finds_its_session_with_what_came_meanwhile_in_order(node: Node, version: int) -> None:
    name, topic = f"resuming-{version}", f"resuming/{version}"
    with Client(node, name, version=version, is_clean=False, expiry_s=600) as first:
        first.subscribe(topic, 2)
    with Client(node) as publisher:
        for number in range(20):
            publisher.publish(topic, str(number), 2)
    with Client(node, name, version=version, is_clean=False, expiry_s=600) as again:
        # CONNACK of 3.1 does not say
        assert again.flags.session_present is (version != paho.MQTTv31)
        assert [again.take().payload for _ in range(20)] == [
            str(number).encode() for number in range(20)
        ]
    with Client(node, name, version=version, is_clean=True):
        pass


@pytest.mark.parametrize(("handling", "times"), [(0, 2), (1, 1), (2, 0)])
def test_paho_gets_retained_messages_as_its_retain_handling_says(
    node: Node, handling: int, times: int
) -> None:
    topic = f"handling/{handling}"
    with Client(node) as client:
        client.publish(topic, "kept", retain=True)
        client.subscribe(topic, 1, retainHandling=handling)
        client.subscribe(topic, 1, retainHandling=handling)
        client.publish(topic, "live")
        assert [client.take().payload for _ in range(times + 1)] == [b"kept"] * times + [b"live"]


@pytest.mark.parametrize("as_published", [True, False])
def test_paho_sees_the_retain_flag_of_live_messages_if_it_asks_for_it(
    node: Node, as_published: bool
) -> None:
    topic = f"flag/{as_published}"
    with Client(node) as client:
        client.subscribe(topic, 1, retainAsPublished=as_published)
        client.publish(topic, "x", retain=True)
        assert client.take().retain == as_published


# -- mosquitto's programs --


@pytest.mark.parametrize("version", MOSQUITTO_VERSIONS)
def test_mosquitto_gets_a_large_payload_as_it_was_sent(
    node: Node, version: str, tmp_path: Path
) -> None:
    file, topic = tmp_path / "large", f"large-file/{version}"
    file.write_bytes(os.urandom(LARGE))
    with MosquittoSub(node, "-V", version, "-q", "2", "-t", topic, form="%x") as subscriber:
        address = ("-h", node.mqtt[0], "-p", str(node.mqtt[1]))
        command = [
            "mosquitto_pub",
            *address,
            "-V",
            version,
            "-q",
            "2",
            "-t",
            topic,
            "-f",
            str(file),
        ]
        subprocess.run(command, check=True, timeout=DEADLINE_S)
        [printed] = subscriber.take(1)
    assert (
        hashlib.sha256(bytes.fromhex(printed)).digest()
        == hashlib.sha256(file.read_bytes()).digest()
    )


def test_mosquitto_sends_and_shows_properties_of_mqtt_5(node: Node) -> None:
    given = [
        *("-D", "publish", "content-type", "text/plain"),
        *("-D", "publish", "response-topic", "answers"),
        *("-D", "publish", "correlation-data", "abc"),
        *("-D", "publish", "payload-format-indicator", "1"),
        *("-D", "publish", "message-expiry-interval", "100"),
        *("-D", "publish", "user-property", "a", "1"),
        *("-D", "publish", "user-property", "a", "2"),
    ]
    numbered = ["-D", "subscribe", "subscription-identifier", "7"]
    shown = "%C|%R|%D|%F|%S|%P|%p"
    with MosquittoSub(
        node, "-V", "mqttv5", "-q", "1", "-t", "shown", *numbered, form=shown
    ) as subscriber:
        publish(node, "shown", "x", "-V", "mqttv5", "-q", "1", *given)
        assert subscriber.take(1) == ["text/plain|answers|abc|1|7|a:1 a:2|x"]


@pytest.mark.parametrize("version", ["mqttv311", "mqttv5"])
def test_members_of_mosquitto_share_a_subscription(node: Node, version: str) -> None:
    shared = ["-V", version, "-q", "1", "-t", f"$share/group-{version}/shared/{version}"]
    with (
        MosquittoSub(node, *shared, form="%p") as one,
        MosquittoSub(node, *shared, form="%p") as other,
    ):
        for number in range(10):
            publish(node, f"shared/{version}", str(number), "-q", "1")
        if node.workers == 1:
            got = one.take(5) + other.take(5)
        else:  # members of the publisher's cell come first
            got = []

            def all_came() -> bool:
                got.extend(one.take_ready() + other.take_ready())
                return len(got) >= 10

            eventually(all_came)
        assert sorted(got, key=int) == [str(number) for number in range(10)]


def test_mosquitto_rr_gets_its_answer(node: Node) -> None:
    with Client(node) as server:
        server.subscribe("questions", 1)
        address = ["-h", node.mqtt[0], "-p", str(node.mqtt[1])]
        command = [
            "mosquitto_rr",
            *address,
            "-V",
            "mqttv5",
            "-q",
            "1",
            "-t",
            "questions",
            "-e",
            "answers/1",
            "-m",
            "2+2",
        ]
        asking = subprocess.Popen(command, stdout=subprocess.PIPE)
        question = server.take()
        assert question.payload == b"2+2"
        properties: Any = question.properties
        server.publish(properties.ResponseTopic, "4")
        assert asking.communicate(timeout=DEADLINE_S)[0] == b"4\n"


def test_a_delayed_will_of_mosquitto_waits_for_its_delay(node: Node) -> None:
    will = ["--will-topic", "late/will", "--will-qos", "1", "--will-payload", "late"]
    delay = ["-D", "will", "will-delay-interval", "1", "-x", "60"]
    with MosquittoSub(node, "-q", "1", "-t", "late/#", form="%p") as watcher:
        leaving = MosquittoSub(
            node, "-V", "mqttv5", "-i", "leaving", "-c", "-t", "elsewhere", *will, *delay
        )
        killed_s = time.monotonic()
        leaving.kill()
        assert watcher.take(1) == ["late"]
        assert time.monotonic() - killed_s > 0.9


# -- MQTT.js --


@pytest.mark.parametrize("version", [4, 5])
def test_mqttjs_exchanges_messages_over_websocket_in_tls(
    node: Node, version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NODE_TLS_REJECT_UNAUTHORIZED", "0")
    [address] = [
        one["address"]
        for one in node.call("GET", "/status")["listeners"]
        if one["protocol"] == "wss"
    ]
    seen = mqttjs.exchange(f"wss://{address}/mqtt", version)
    assert [one["payload"] for one in seen["messages"]] == [
        "retained",
        "grüße 0",
        "grüße 1",
        "grüße 2",
    ]
    assert seen["away"] == ["0", "1", "2", "3", "4"]
    assert seen["sessionPresent"] is True
    assert seen["large"] is True
