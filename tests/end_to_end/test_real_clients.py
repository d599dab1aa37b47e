"""Clients that are not ours: mosquitto's two programs, paho in three versions of the protocol, properties of MQTT 5."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import paho.mqtt.client as paho
import pytest

from tests.end_to_end.clients import DEADLINE_S, Client, MosquittoSub, Raw, publish
from tests.support.node import Node, eventually, running

VERSIONS = ["mqttv311", "mqttv5"]
PAHO_VERSIONS = [paho.MQTTv31, paho.MQTTv311, paho.MQTTv5]


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with running(tmp_path_factory.mktemp("clients") / "node") as node:
        yield node


# -- mosquitto's programs --


@pytest.mark.parametrize("qos", ["0", "1", "2"])
@pytest.mark.parametrize("version", VERSIONS)
def test_mosquitto_clients_exchange_messages_of_every_qos_in_order(
    node: Node, version: str, qos: str
) -> None:
    topic = f"plain/{version}/{qos}"
    with MosquittoSub(node, "-V", version, "-q", qos, "-t", topic, form="%q %t %p") as subscriber:
        for payload in ("one", "two", "grüße"):
            # one client, since there is no order between several
            publish(
                node, topic, payload, "-V", version, "-q", qos, "-i", f"orderly-{version}-{qos}"
            )
        assert subscriber.take(3) == [
            f"{qos} {topic} one",
            f"{qos} {topic} two",
            f"{qos} {topic} grüße",
        ]


def test_a_subscriber_of_one_version_gets_what_the_other_publishes_at_the_lower_qos(
    node: Node,
) -> None:
    with MosquittoSub(node, "-V", "mqttv311", "-q", "1", "-t", "mixed", form="%q %p") as subscriber:
        publish(
            node,
            "mixed",
            "from 5",
            "-V",
            "mqttv5",
            "-q",
            "2",
            "-D",
            "publish",
            "user-property",
            "a",
            "b",
        )
        assert subscriber.take(1) == ["1 from 5"]


@pytest.mark.parametrize("version", VERSIONS)
def test_a_retained_message_waits_for_subscribers_until_an_empty_one_removes_it(
    node: Node, version: str
) -> None:
    topic = f"retained/{version}"
    publish(node, topic, "kept", "-V", version, "-q", "1", "-r")
    with MosquittoSub(node, "-V", version, "-q", "1", "-t", topic, form="%r %p") as late:
        assert late.take(1) == ["1 kept"]
        publish(node, topic, "newer", "-V", version, "-q", "1", "-r")
        # the flag is for what was retained before, [MQTT-3.3.1-9]
        assert late.take(1) == ["0 newer"]
    publish(node, topic, "", "-V", version, "-q", "1", "-r")
    with MosquittoSub(node, "-V", version, "-q", "1", "-t", topic, form="%r %p") as later:
        publish(node, topic, "live", "-V", version, "-q", "1")
        assert later.take(1) == ["0 live"]


@pytest.mark.parametrize("version", VERSIONS)
def test_a_client_that_is_killed_leaves_its_will(node: Node, version: str) -> None:
    topic = f"wills/{version}"
    will = ["--will-topic", topic, "--will-qos", "1", "--will-payload", "was killed"]
    with MosquittoSub(node, "-V", version, "-q", "1", "-t", topic) as watcher:
        MosquittoSub(node, "-V", version, "-t", "elsewhere", *will).kill()
        assert watcher.take(1) == [f"{topic} was killed"]


def test_a_client_that_says_goodbye_leaves_its_will_only_if_it_asks_for_that(node: Node) -> None:
    will = ["--will-topic", "goodbyes", "--will-qos", "1", "--will-payload"]
    with MosquittoSub(node, "-q", "1", "-t", "goodbyes", form="%p") as watcher:
        for version in PAHO_VERSIONS:
            with Client(node, version=version, will=("goodbyes", f"paho {version}")):
                pass
        MosquittoSub(node, "-V", "mqttv311", "-t", "elsewhere", *will, "mosquitto 3.1.1").close()
        # Told to end, mosquitto_sub sends DISCONNECT with 0x04, "with will message", in the version that has it.
        MosquittoSub(node, "-V", "mqttv5", "-t", "elsewhere", *will, "mosquitto 5").close()
        assert watcher.take(1) == ["mosquitto 5"]


def test_wildcards_match_levels_and_not_what_begins_with_a_dollar(node: Node) -> None:
    with (
        MosquittoSub(node, "-t", "wild/+/temperature", form="%t") as one_level,
        MosquittoSub(node, "-t", "wild/#", form="%t") as below,
        MosquittoSub(node, "-t", "+/wild/end", form="%t") as first,
    ):
        for topic in (
            "wild/a/temperature",
            "wild/a/b/temperature",
            "wild",
            "$wild/wild/end",
            "x/wild/end",
        ):
            publish(node, topic, "x")
        publish(node, "wild/z/temperature", "last")
        assert one_level.take(2) == ["wild/a/temperature", "wild/z/temperature"]
        assert below.take(4) == [
            "wild/a/temperature",
            "wild/a/b/temperature",
            "wild",
            "wild/z/temperature",
        ]
        assert first.take(1) == ["x/wild/end"]


@pytest.mark.parametrize("version", VERSIONS)
def test_a_persistent_session_gets_what_was_published_while_it_was_away(
    node: Node, version: str
) -> None:
    session = ["-V", version, "-c", "-i", f"away-{version}", "-q", "1", "-t", f"away/{version}"]
    session += ["-x", "600"] if version == "mqttv5" else []
    MosquittoSub(node, *session).close()
    for payload in ("first", "second", "third"):
        publish(node, f"away/{version}", payload, "-V", version, "-q", "1")
    with MosquittoSub(node, *session, form="%p") as back:
        assert back.take(3) == ["first", "second", "third"]


# -- paho --


@pytest.mark.statement("3:7.0.0-1", "3:7.0.0-2")
@pytest.mark.parametrize("version", PAHO_VERSIONS, ids=["3.1", "3.1.1", "5"])
def test_paho_exchanges_messages_of_every_qos(node: Node, version: int) -> None:
    with Client(node, version=version) as client:
        client.subscribe("paho/#", 2)
        for qos in (0, 1, 2):
            client.publish(f"paho/{version}/{qos}", b"\x00\xffbytes", qos)
        got = [client.take() for _ in range(3)]
    assert [(m.topic, m.qos, m.payload) for m in got] == [
        (f"paho/{version}/{qos}", qos, b"\x00\xffbytes") for qos in (0, 1, 2)
    ]


def test_properties_of_mqtt_5_arrive_as_they_were_sent(node: Node) -> None:
    pairs = [("b", "1"), ("a", "2"), ("b", "1"), ("", "empty name"), ("ü", "ß")]
    with Client(node) as client:
        client.subscribe("properties", 1)
        client.publish(
            "properties", "{}",
            UserProperty=pairs, ContentType="application/json", CorrelationData=b"\x00\x01\xff",
            ResponseTopic="answers/here", PayloadFormatIndicator=1, MessageExpiryInterval=3600,
        )  # fmt: skip
        properties: Any = client.take().properties
    assert properties.UserProperty == pairs
    assert properties.ContentType == "application/json"
    assert properties.CorrelationData == b"\x00\x01\xff"
    assert properties.ResponseTopic == "answers/here"
    assert properties.PayloadFormatIndicator == 1
    assert 3500 <= properties.MessageExpiryInterval <= 3600


def test_a_message_that_expired_while_its_subscriber_was_away_is_not_delivered(node: Node) -> None:
    with Client(node, "sleeper", expiry_s=600) as sleeper:
        sleeper.subscribe("expiring", 1)
    with Client(node) as clock:
        clock.publish("expiring", "short-lived", MessageExpiryInterval=1)
        clock.publish("expiring", "lasting")
        clock.publish("expiring", "kept an hour", MessageExpiryInterval=3600)
        _let_pass(clock, seconds=2)
    with Client(node, "sleeper", is_clean=False, expiry_s=0) as back:
        assert [back.take().payload for _ in range(2)] == [b"lasting", b"kept an hour"]


def _let_pass(client: Client, seconds: int) -> None:
    """Wait on the broker's own clock: a retained message that lives for so long is no longer found."""
    client.publish("clock", "ticking", retain=True, MessageExpiryInterval=seconds)

    def is_gone() -> bool:
        client.subscribe("clock", 1)
        client.publish("clock", "probe")
        payload = client.take().payload
        if payload == b"ticking":
            assert client.take().payload == b"probe"
        return payload == b"probe"

    eventually(is_gone, what="a retained message to expire")


def test_a_refused_publish_is_told_0x99_and_why(node: Node) -> None:
    schema = json.dumps(
        {"type": "object", "required": ["temp"], "properties": {"temp": {"type": "number"}}}
    )
    node.call("POST", "/schemas", {"name": "reading", "type": "json", "source": schema})
    node.call("POST", "/validations", {
        "name": "readings", "topics": ["refusing/+"], "strategy": "all_pass", "failure_action": "drop",
        "checks": [{"type": "json", "schema": "reading"}],
    })  # fmt: skip
    with Client(node) as client:
        client.subscribe("refusing/#", 2)
        reason, properties = client.publish("refusing/1", '{"temp": "hot"}')
        assert reason.value == 0x99
        assert "readings" in properties.ReasonString
        assert "temp" in properties.ReasonString
        reason, _ = client.publish("refusing/1", '{"temp": 1}')
        assert reason.value == 0
        assert client.take().payload == b'{"temp": 1}'
    with Raw(node) as raw:
        # paho answers a PUBREC that refuses with PUBREL, which section 4.3.3 forbids
        raw.connect("refused-qos-2")
        raw.send(0x34, b"\x00\x0arefusing/1\x00\x07\x00not JSON")
        pubrec = raw.receive()
        assert pubrec is not None
        assert (pubrec[0], pubrec[2:5]) == (0x50, b"\x00\x07\x99")
        assert b"validation 'readings'" in pubrec
    with Client(node, version=paho.MQTTv311) as old:
        for qos in (1, 2):  # 3.1.1 has no word for it: acknowledged and dropped
            old.publish("refusing/1", "not JSON", qos)


def test_a_session_lasts_as_long_as_its_expiry_says(node: Node) -> None:
    with Client(node, "keeper", expiry_s=600) as first:
        assert not first.flags.session_present
    with Client(node, "keeper", is_clean=False, expiry_s=1) as second:
        assert second.flags.session_present
    eventually(
        lambda: node.call("GET", "/sessions/keeper", expect=404), what="the session to expire"
    )
    with Client(node, "keeper", is_clean=False) as third:
        assert not third.flags.session_present
    with Client(node, "keeper", is_clean=False) as fourth:
        assert not fourth.flags.session_present  # without an expiry it ends with the connection


def test_a_second_client_of_the_same_name_takes_over_and_the_first_is_told(node: Node) -> None:
    with Client(node, "twin", expiry_s=600) as first:
        first.subscribe("twins", 1)
        with Client(node, "twin", is_clean=False) as second:
            reason, _ = first.farewell.get(timeout=DEADLINE_S)
            assert reason.value == 0x8E
            assert second.flags.session_present
            second.publish("twins", "for the second")
            assert second.take().payload == b"for the second"
            assert first.messages.empty()


def test_no_local_keeps_a_client_from_hearing_itself(node: Node) -> None:
    with Client(node) as talker, Client(node) as other:
        talker.subscribe("no-local", 1, noLocal=True)
        talker.publish("no-local", "my own")
        other.publish("no-local", "somebody's")
        assert talker.take().payload == b"somebody's"


def test_a_topic_alias_stands_for_the_topic_that_set_it(node: Node) -> None:
    with Client(node) as subscriber, Raw(node) as raw:
        subscriber.subscribe("aliased/#", 1)
        raw.connect("aliasing")
        alias = b"\x03\x23\x00\x05"  # property length, Topic Alias, 5
        raw.send(0x32, b"\x00\x09aliased/a" + b"\x00\x01" + alias + b"sets it")
        raw.send(0x32, b"\x00\x00" + b"\x00\x02" + alias + b"uses it")
        raw.send(0x32, b"\x00\x09aliased/b" + b"\x00\x03" + alias + b"sets it anew")
        raw.send(0x32, b"\x00\x00" + b"\x00\x04" + alias + b"uses that")
        assert [raw.receive() for _ in range(4)] == [
            bytes((0x40, 2, 0, number)) for number in (1, 2, 3, 4)
        ]
        got = [
            (message.topic, message.payload) for message in (subscriber.take() for _ in range(4))
        ]
    assert got == [
        ("aliased/a", b"sets it"),
        ("aliased/a", b"uses it"),
        ("aliased/b", b"sets it anew"),
        ("aliased/b", b"uses that"),
    ]
