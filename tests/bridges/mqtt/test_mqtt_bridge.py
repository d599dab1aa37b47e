"""A bridge to real brokers: mosquitto (3.1, 3.1.1, 5.0), nats-server (3.1.1) and Sluice itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from broker.codec.packets import PubComp, Publish, PubRec, PubRel, Subscribe
from broker.core.client import Client
from broker.core.message import Message
from broker.storage.memory import MemoryStore
from tests.bridges.mqtt.watcher import (
    PlayedBroker,
    action,
    connected,
    connector,
    played_broker,
    source,
    watching,
)
from tests.support.bridges import Bridges
from tests.support.certificates import Authority
from tests.support.forwarder import Forwarder
from tests.support.mqtt_server import GatedStore, on_loop, running
from tests.support.peers import Peer, mosquitto, nats
from tests.support.processes import free_port
from tests.support.waiting import until

PROPERTIES: dict[str, Any] = {
    "Payload-Format-Indicator": 1,
    "Content-Type": "application/json",
    "Response-Topic": "answers/here",
    "Correlation-Data": b"\x00\xff" * 200,
    "User-Property": [("b", "2"), ("a", "1"), ("b", "3")],
}


IN_MEMORY = {"buffer_mode": "memory_only"}
"""Publishers wait for what becomes of their rows; for those on disk they wait until they are there."""


@pytest.fixture(scope="module")
def remote(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Peer]:
    with mosquitto(tmp_path_factory.mktemp("mosquitto"), "max_queued_messages 0") as peer:
        yield peer


@pytest.fixture(scope="module")
def nats_remote(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Peer]:
    with nats(tmp_path_factory.mktemp("nats")) as peer:
        yield peer


@asynccontextmanager
async def bridging(**options: Any) -> AsyncIterator[Bridges]:
    bridges = Bridges(**options)
    bridges.begin()
    try:
        yield bridges
    finally:
        await bridges.end()


def say(
    bridges: Bridges,
    topic: str,
    payload: bytes,
    qos: int = 1,
    *,
    action: str = "out",
    **members: Any,
) -> None:
    """A rule hands over a message as it is: ``SELECT *``."""
    retain, client = members.pop("retain", False), members.pop("client", Client("meter-7"))
    now_ns = bridges.services.node.clock.now_ns() - members.pop("waited_ns", 0)
    message = Message(topic, payload, qos, retain, client, now_ns, members.pop("properties", None))
    row = {"topic": topic, "payload": payload, "qos": qos, "flags": {"retain": retain}}
    sink = bridges.services.endpoints.sinks.find(f"mqtt:{action}")
    assert sink is not None
    sink.write(row, message, bridges.settle)


# Out


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("version", ["v3", "v4", "v5"])
@on_loop
async def test_rows_arrive_in_every_version_and_qos(remote: Peer, version: str, qos: int) -> None:
    async with bridging() as bridges, watching(remote.port, "site/#") as seen:
        connector(bridges, remote.port, proto_ver=version, clientid=f"out-{version}-{qos}")
        action(bridges, remote_prefix="site/", local_prefix="here/")
        for number in range(50):
            say(bridges, f"here/plant/{number % 3}", b"%d" % number, qos)
        messages = await seen.until(50)
        assert [int(message.payload) for message in messages] == list(range(50))
        assert {message.qos for message in messages} == {qos}
        assert messages[4].topic == "site/plant/1"
        await bridges.until_sent(50)


@on_loop
async def test_properties_arrive_as_they_were_with_one_mark_behind(remote: Peer) -> None:
    async with bridging() as bridges, watching(remote.port, "props/#") as seen:
        connector(bridges, remote.port)
        action(bridges)
        say(
            bridges,
            "props/a",
            b"{}",
            properties={**PROPERTIES, "Message-Expiry-Interval": 100},
            waited_ns=40 * 10**9,
        )
        [message] = await seen.until(1)
        found: Any = message.properties
        assert found.PayloadFormatIndicator == 1
        assert found.ContentType == "application/json"
        assert found.ResponseTopic == "answers/here"
        assert found.CorrelationData == PROPERTIES["Correlation-Data"]
        assert found.UserProperty == [
            *PROPERTIES["User-Property"],
            ("sluice-bridge", bridges.services.node.origin),
        ]
        assert 55 <= found.MessageExpiryInterval <= 60


@on_loop
async def test_message_is_given_up_when_its_life_is_over(remote: Peer) -> None:
    async with bridging() as bridges:
        connector(bridges, remote.port)
        action(bridges, options=IN_MEMORY)
        say(bridges, "old/a", b"x", properties={"Message-Expiry-Interval": 5}, waited_ns=6 * 10**9)
        await bridges.until(lambda: bridges.counts("out")["failed"] == 1)
        assert "expiry was over" in str(bridges.settled[0])


@on_loop
async def test_retained_messages_stay_retained(remote: Peer) -> None:
    async with bridging() as bridges:
        connector(bridges, remote.port)
        action(bridges)
        say(bridges, "kept/a", b"on", retain=True)
        await bridges.until_sent(1)
        async with watching(remote.port, "kept/#") as seen:
            [message] = await seen.until(1)
            assert (message.payload, message.retain) == (b"on", True)


@on_loop
async def test_payload_qos_and_retain_are_templates(remote: Peer) -> None:
    async with bridging() as bridges, watching(remote.port, "made/#") as seen:
        connector(bridges, remote.port)
        action(bridges, topic="made/${key}", payload='{"n": ${n}}', qos="${q}", retain=False)
        bridges.send({"key": "k1", "n": 4, "q": 2}, action="mqtt:out")
        [message] = await seen.until(1)
        assert (message.topic, message.payload, message.qos) == ("made/k1", b'{"n": 4}', 2)


@on_loop
async def test_row_that_makes_no_message_is_given_up_with_a_sentence(remote: Peer) -> None:
    async with bridging() as bridges:
        connector(bridges, remote.port)
        action(bridges, options=IN_MEMORY, topic="made/${key}", qos="${q}")
        await connected(bridges)
        for row in (
            {"payload": "x"},
            {"key": "a#b", "payload": "x"},
            {"key": "k", "payload": "x", "q": 3},
            {"key": 1},
        ):
            bridges.send(row, action="mqtt:out")
        await bridges.until(lambda: bridges.counts()["failed"] == 4)
        reasons = [str(error) for error in bridges.settled]
        assert "the row has no 'key', which the topic needs" in reasons[0]
        assert "must not contain '+' or '#'" in reasons[1]
        assert "not 0, 1 or 2" in reasons[2]
        assert "nothing for the payload" in reasons[3]


@on_loop
async def test_packet_that_the_other_broker_does_not_take_is_given_up(tmp_path: Path) -> None:
    with mosquitto(tmp_path / "m", "max_packet_size 1000") as remote:
        async with bridging() as bridges, watching(remote.port, "#") as seen:
            connector(bridges, remote.port)
            action(bridges, options=IN_MEMORY)
            say(bridges, "a", b"x" * 2000)
            say(bridges, "a", b"small")
            await seen.until(1)
            await bridges.until(lambda: bridges.counts()["failed"] == 1)
            assert "takes 1000 at most" in str(next(error for error in bridges.settled if error))
            assert bridges.connectors.get("plant")["status"] == "connected"


@on_loop
async def test_topic_that_is_forbidden_is_a_missing_target_and_its_rows_wait(
    tmp_path: Path,
) -> None:
    acl = tmp_path / "acl"
    acl.write_text("topic readwrite open/#\n")
    acl.chmod(0o644)
    with mosquitto(tmp_path / "m", f"acl_file {acl}") as remote:
        async with bridging() as bridges:
            connector(bridges, remote.port)
            action(bridges, options={"missing_target": "wait"})
            say(bridges, "secret/a", b"x")
            await bridges.until(
                lambda: bridges.actions.get("out")["status_reason"].startswith("unhealthy target: ")
            )
            assert "'secret/a'" in bridges.actions.get("out")["status_reason"]
            assert bridges.connectors.get("plant")["status"] == "connected"
            assert bridges.counts()["failed"] == 0


@pytest.mark.parametrize("qos", [1, 2])
@on_loop
async def test_nothing_is_lost_and_qos_2_comes_once_while_connections_break(qos: int) -> None:
    """Sluice keeps sessions, so that what was on the way goes on with its identifiers."""
    async with running() as node:
        way = Forwarder(free_port(), node.port)
        way.open()
        async with bridging() as bridges, watching(node.port, "cut/#") as seen:
            connector(bridges, way.port)
            action(bridges, options={"batch_size": 20})
            for number in range(3000):
                say(bridges, "cut/a", b"%d" % number, qos)
                if number % 500 == 499:
                    await seen.until(number - 300)
                    way.cut_connections()
            await bridges.until_sent(3000)
            way.cut()
            numbers = [int(payload) for payload in await _all(seen, qos)]
            assert list(dict.fromkeys(numbers)) == list(range(3000)), (
                "all, and first arrivals in order"
            )
            if qos == 2:
                assert len(numbers) == 3000


async def _all(seen: Any, qos: int) -> list[bytes]:
    """What came, and what comes until a message sent behind it; paho keeps the order of each QoS."""
    await seen.publish("cut/end", b"-1", qos)
    await until(lambda: b"-1" in seen.payloads)
    return [payload for payload in seen.payloads if payload != b"-1"]


@on_loop
async def test_frozen_broker_is_told_and_gets_everything_once_it_goes_on(tmp_path: Path) -> None:
    with mosquitto(tmp_path / "m") as remote:
        async with bridging() as bridges, watching(remote.port, "ice/#") as seen:
            connector(bridges, remote.port)
            action(bridges, options={"request_timeout": "500ms"})
            say(bridges, "ice/a", b"0")
            await seen.until(1)
            remote.process.freeze()
            try:
                say(bridges, "ice/a", b"1")
                await bridges.until(lambda: bridges.actions.get("out")["status"] != "connected")
            finally:
                remote.process.thaw()
            await bridges.until_sent(2)
            await seen.until(2)
            assert {b"0", b"1"} == set(seen.payloads)


@on_loop
async def test_backlog_of_an_outage_comes_in_order(tmp_path: Path) -> None:
    port = free_port()
    remote = mosquitto(
        tmp_path / "m", "max_queued_messages 0", "max_inflight_messages 0", port=port
    )
    remote.process.start()
    try:
        async with bridging() as bridges:
            connector(bridges, port)
            action(bridges, qos=1, options={"buffer_mode": "disk"})
            say(bridges, "back/a", b"0")
            await bridges.until_sent(1)
            remote.process.kill()
            for number in range(1, 10_001):
                say(bridges, "back/a", b"%d" % number)
            await bridges.until(lambda: bridges.actions.get("out")["status"] != "connected")
            bridges.connectors.replace(
                "plant", {**_raw(port), "resource_opts": {"start_after_created": False}}
            )
            remote.process.start()
            async with watching(port, "back/#", qos=1) as seen:
                bridges.connectors.replace("plant", _raw(port))
                await bridges.until_sent(10_001)
                found = [int(message.payload) for message in await seen.until(10_000)]
                assert found == list(range(1, 10_001))
            assert (bridges.counts()["failed"], bridges.counts()["dropped"]) == (0, 0)
    finally:
        remote.process.kill()


def _raw(port: int) -> dict[str, Any]:
    return {"name": "plant", "type": "mqtt", "server": f"127.0.0.1:{port}"}


# In


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("version", ["v3", "v4", "v5"])
@on_loop
async def test_messages_come_in_in_every_version_and_qos(
    remote: Peer, version: str, qos: int
) -> None:
    async with bridging() as bridges, watching(remote.port) as sender:
        connector(bridges, remote.port, proto_ver=version, clientid=f"in-{version}-{qos}")
        source(
            bridges,
            topics=[{"topic": "floor/#", "qos": 2}],
            remote_prefix="site/",
            publish={"prefix": "far/"},
        )
        await _subscribed(bridges, sender, "site/floor/a")
        for number in range(50):
            await sender.publish("site/floor/a", b"%d" % number, qos)
        await bridges.until(lambda: len(_came(bridges)) >= 50)
        assert [int(message.payload) for message in _came(bridges)] == list(range(50))
        assert {(message.topic, message.qos) for message in _came(bridges)} == {
            ("far/floor/a", qos)
        }


def _came(bridges: Bridges) -> list[Message]:
    return [
        message
        for message in bridges.published.messages
        if not message.payload.startswith(b"first ")
    ]


async def _subscribed(bridges: Bridges, sender: Any, topic: str) -> None:
    """The source reads this topic: something came through, and not what was on the way from another."""
    probe = b"first to " + topic.encode()

    async def is_read() -> bool:
        await sender.publish(topic, probe, 0)
        return any(message.payload == probe for message in bridges.published.messages)

    await until(is_read)


@on_loop
async def test_properties_and_retain_come_in_as_they_were(remote: Peer) -> None:
    async with bridging() as bridges, watching(remote.port) as sender:
        given = {
            "PayloadFormatIndicator": 1, "ContentType": "application/json", "ResponseTopic": "answers/here",
            "CorrelationData": PROPERTIES["Correlation-Data"], "UserProperty": PROPERTIES["User-Property"],
        }  # fmt: skip
        await sender.publish("whole/a", b"{}", retain=True, **given)
        connector(bridges, remote.port)
        source(bridges, topic="whole/#")
        await bridges.until(lambda: bridges.published.messages)
        [message] = bridges.published.messages
        assert message.retain
        assert dict(message.properties or {}) == PROPERTIES
        await sender.publish("whole/a", b"", retain=True)


@on_loop
async def test_session_brings_what_came_while_the_process_was_away(remote: Peer) -> None:
    store, sections = MemoryStore(), dict[str, Any]()
    async with watching(remote.port) as sender:
        bridges = Bridges(store=store, sections=sections)
        bridges.begin()
        connector(bridges, remote.port, clientid="away")
        source(bridges, topic="away/#")
        await _subscribed(bridges, sender, "away/a")
        await bridges.crash()
        for number in range(100):
            await sender.publish("away/a", b"%d" % number, 1 + number % 2)
        async with bridging(store=store, sections=sections) as again:
            await again.until(lambda: len(_came(again)) >= 100)
            assert [int(message.payload) for message in _came(again)] == list(range(100))


@on_loop
async def test_qos_2_that_was_stored_before_a_crash_is_not_taken_again() -> None:
    """The crash is between the commit and PUBREC: the other broker sends the message again."""
    async with running() as node:
        store, sections = MemoryStore(), dict[str, Any]()
        bridges = Bridges(store=store, sections=sections)
        bridges.begin()
        connector(bridges, node.port, clientid="twice")
        source(bridges, topics=[{"topic": "twice/#", "qos": 2}])
        async with watching(node.port) as sender:
            await _subscribed(bridges, sender, "twice/a")
            client = bridges.feature.resources.supervisors["plant"].connector.client  # type: ignore[union-attr]
            client.inbound._acknowledge = lambda _packet: None
            await sender.publish("twice/a", b"once", 2)
            await bridges.until(lambda: _came(bridges))
            await bridges.writer.committed()
            await bridges.crash()
            async with bridging(store=store, sections=sections) as again:
                await again.until(lambda: again.sources.get("in")["metrics"]["duplicates"] == 1)
                await sender.publish("twice/a", b"next", 2)
                await again.until(lambda: _came(again))
                assert [message.payload for message in _came(again)] == [b"next"]


@on_loop
async def test_identifier_is_free_again_once_its_release_is_stored() -> None:
    """The crash is between PUBREL and the commit: the other broker may not use the identifier again before."""
    store, sections = GatedStore(), dict[str, Any]()
    async with played_broker() as far:
        bridges = Bridges(store=store, sections=sections)
        bridges.begin()
        played(bridges, far)
        wire = await far.subscribed(has_session=False)
        wire.send(Publish("a", b"one", 2, packet_id=5))
        await wire.expect(PubRec)
        store.allow.clear()
        wire.send(PubRel(5), PubRec(9))
        assert await wire.receive() == PubRel(9), "the answer to what came behind PUBREL"
        store.fails = True
        store.allow.set()
        await bridges.crash()
        store.fails = False
        async with bridging(store=store, sections=sections) as again:
            wire = await far.subscribed(has_session=True, before=PubRel(5))
            await wire.expect(PubComp)
            wire.send(Publish("a", b"two", 2, packet_id=5))
            await again.until(lambda: _came(again))
            assert [message.payload for message in _came(again)] == [b"two"]


@on_loop
async def test_message_is_released_for_a_source_that_does_not_read() -> None:
    store, sections = MemoryStore(), dict[str, Any]()
    async with played_broker() as far:
        bridges = Bridges(store=store, sections=sections)
        bridges.begin()
        played(bridges, far)
        wire = await far.subscribed(has_session=False)
        wire.send(Publish("a", b"one", 2, packet_id=5))
        await wire.expect(PubRec)
        bridges.sources.enable("in", False)
        source: Any = bridges.feature.resources.sources["in"]
        await bridges.until(lambda: source.supervisor is None or not source.supervisor._serving)
        wire.send(PubRel(5))
        await wire.expect(PubComp)
        await bridges.crash()
        async with bridging(store=store, sections=sections) as again:
            again.sources.enable("in", True)
            wire = await far.subscribed(has_session=True)
            wire.send(Publish("a", b"two", 2, packet_id=5))
            await again.until(lambda: _came(again))


@on_loop
async def test_message_of_a_new_session_is_not_a_known_one_though_the_clock_was_set_back() -> None:
    store, sections = MemoryStore(), dict[str, Any]()
    async with played_broker() as far:
        bridges = Bridges(store=store, sections=sections)
        bridges.clock.ahead_s = 3600
        bridges.begin()
        played(bridges, far)
        wire = await far.subscribed(has_session=False)
        wire.send(Publish("a", b"one", 2, packet_id=5))
        await wire.expect(PubRec)
        await bridges.crash()
        async with bridging(store=store, sections=sections) as again:
            wire = await far.subscribed(has_session=False)
            wire.send(Publish("a", b"two", 2, packet_id=5))
            await again.until(lambda: _came(again))


@on_loop
async def test_source_subscribes_once_its_session_is_stored() -> None:
    store = GatedStore()
    async with played_broker() as far, bridging(store=store) as bridges:
        store.allow.clear()
        played(bridges, far)
        wire, _ = await far.accept(has_session=False)
        supervisor = bridges.feature.resources.supervisors["plant"]
        await bridges.until(
            lambda: supervisor.connector and supervisor.connector.client.inbound.inboxes  # type: ignore[attr-defined]
        )
        wire.send(PubRec(9))
        assert await wire.receive() == PubRel(9), "the answer to what came when the source began"
        store.allow.set()
        await wire.expect(Subscribe)


@pytest.mark.parametrize(("moves", "names"), [(True, ["a", "a"]), (False, ["a", "b"])])
@on_loop
async def test_client_identifier_stays_where_machines_take_over(
    moves: bool, names: list[str]
) -> None:
    store, sections = MemoryStore(), dict[str, Any]()
    identifiers = []
    async with played_broker() as far:
        for name in ("a", "b"):
            bridges = Bridges(store=store, sections=sections)
            bridges.services.node.name, bridges.services.node.moves = name, moves
            bridges.begin()
            if name == "a":
                played(bridges, far)
            _, connect = await far.accept(has_session=False)
            identifiers.append(connect.client_id)
            await connected(bridges)
            await bridges.crash()
    assert identifiers == [f"sluice-{name}-plant" for name in names]


def played(bridges: Bridges, far: PlayedBroker) -> None:
    """A connector and a source at a broker that a test plays."""
    connector(bridges, far.port, proto_ver="v4", resource_opts={"health_check_interval": "1h"})
    source(bridges, topics=[{"topic": "a", "qos": 2}])


@on_loop
async def test_nothing_is_confirmed_before_it_is_stored(
    remote: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with bridging() as bridges, watching(remote.port) as sender:
        connector(bridges, remote.port, clientid="careful")
        source(bridges, topic="careful/#")
        await _subscribed(bridges, sender, "careful/a")
        monkeypatch.setattr(bridges.services.storage.values, "when_committed", lambda _done: None)
        await sender.publish("careful/a", b"kept", 1)
        await bridges.until(lambda: _came(bridges))
        monkeypatch.undo()
        bridges.published.messages.clear()
        await bridges.connectors.restart("plant")
        await bridges.until(lambda: _came(bridges), "it comes again")


@on_loop
async def test_filter_that_is_refused_is_named() -> None:
    async with running(shared_subscription_available=False) as node, bridging() as bridges:
        connector(bridges, node.port)
        source(bridges, topics=["open/#", "$share/g/open/#"])
        await bridges.until(
            lambda: bridges.sources.get("in")["status_reason"].startswith("unhealthy target: ")
        )
        assert "'$share/g/open/#'" in bridges.sources.get("in")["status_reason"]
        tested = await bridges.sources.test("in")
        assert [step["name"] for step in tested["steps"] if step["result"] == "failed"] == [
            "target"
        ]


@on_loop
async def test_two_bridges_share_a_subscription_of_the_other_broker(remote: Peer) -> None:
    async with bridging() as bridges, watching(remote.port) as sender:
        for name in ("one", "two"):
            connector(bridges, remote.port, name=name, clientid=f"share-{name}")
            source(bridges, name=f"in-{name}", on=name, topics=["$share/pool/shared/#"])
            await connected(bridges, name)
        await _subscribed(bridges, sender, "shared/a")
        for number in range(200):
            sender.publish_soon("shared/a", b"%d" % number)
        await bridges.until(lambda: len(_came(bridges)) >= 200)
        assert Counter(int(message.payload) for message in _came(bridges)) == Counter(range(200))
        by_source = Counter(message.client.client_id for message in _came(bridges))
        assert min(by_source["mqtt:in-one"], by_source["mqtt:in-two"]) > 20


@on_loop
async def test_stopped_source_is_subscribed_no_more_once_its_filter_is_changed(
    remote: Peer,
) -> None:
    async with bridging() as bridges, watching(remote.port) as sender:
        connector(bridges, remote.port, clientid="changing")
        source(bridges, topic="before/#")
        await _subscribed(bridges, sender, "before/a")
        bridges.published.messages.clear()
        spec = {
            "name": "in",
            "type": "mqtt",
            "connector": "plant",
            "parameters": {"topic": "after/#", "publish": {}},
        }
        bridges.sources.replace("in", spec)
        await _subscribed(bridges, sender, "after/a")
        await sender.publish("before/a", b"unwanted")
        await sender.publish("after/a", b"wanted")
        await bridges.until(lambda: _came(bridges))
        assert [message.payload for message in _came(bridges)] == [b"wanted"]


@on_loop
async def test_paused_source_leaves_messages_where_they_are(remote: Peer) -> None:
    async with bridging() as bridges, watching(remote.port) as sender:
        connector(bridges, remote.port, clientid="paused")
        source(bridges, topic="paused/#")
        await _subscribed(bridges, sender, "paused/a")
        bridges.sources.pause("in")
        for number in range(50):
            await sender.publish("paused/a", b"%d" % number, 1)
        assert _came(bridges) == []
        bridges.sources.resume("in")
        await bridges.until(lambda: len(_came(bridges)) == 50)


# Other brokers, TLS, status


@on_loop
async def test_both_ways_with_nats_which_takes_no_qos_2(nats_remote: Peer) -> None:
    async with (
        bridging() as bridges,
        watching(nats_remote.port, "out/#", version="v4", qos=1) as seen,
    ):
        connector(bridges, nats_remote.port, proto_ver="v4", max_qos=1)
        action(bridges)
        source(bridges, topics=["in/#"])
        await _subscribed(bridges, seen, "in/a")
        for number in range(100):
            say(bridges, "out/a", b"%d" % number, number % 3)
            await seen.publish("in/a", b"%d" % number, 1)
        await bridges.until(lambda: len(_came(bridges)) >= 100)
        assert sorted(int(message.payload) for message in _came(bridges)) == list(range(100))
        assert Counter(map(int, (one.payload for one in await seen.until(100)))) == Counter(
            range(100)
        )


@on_loop
async def test_certificates_are_shown_and_checked(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    server, client = (
        authority.sign("server", {"CN": "far"}, ["127.0.0.1"]),
        authority.sign("client", {"CN": "bridge"}),
    )
    server.key.chmod(0o644)
    lines = (
        f"cafile {authority.file}", f"certfile {server.cert}", f"keyfile {server.key}", "require_certificate true",
        "use_identity_as_username true",
    )  # fmt: skip
    with mosquitto(tmp_path / "m", *lines) as remote:
        async with bridging() as bridges:
            trust = {"enable": True, "cacertfile": str(authority.file)}
            connector(bridges, remote.port, ssl={**trust, **client.settings})
            await connected(bridges)
            tested = await bridges.connectors.test("plant")
            assert [step["name"] for step in tested["steps"]] == [
                "resolve", "connect", "tls", "authenticate", "metadata",
            ]  # fmt: skip
            assert tested["ok"], tested
            connector(bridges, remote.port, name="unknown", ssl={"enable": True})
            await bridges.until(
                lambda: "certificate" in bridges.connectors.get("unknown")["status_reason"]
            )


@on_loop
async def test_status_is_told_on_the_other_broker_and_here(tmp_path: Path) -> None:
    told: list[tuple[str, str | None]] = []
    with mosquitto(tmp_path / "m") as remote:
        way = Forwarder(free_port(), remote.port)
        way.open()
        async with watching(remote.port, "bridges/#") as seen:
            bridges = Bridges()
            bridges.services.messaging.set_state = lambda name, value: told.append((name, value))
            bridges.begin()
            connector(bridges, way.port, status_topic="bridges/${name}/state")
            await seen.until(1)
            await connected(bridges)
            way.cut()
            await seen.until(2)
            way.open()
            await seen.until(3)
            await connected(bridges)
            await bridges.end()
            await seen.until(4)
            assert [(one.topic, one.payload) for one in seen.messages] == [
                ("bridges/plant/state", state) for state in (b"1", b"0", b"1", b"0")
            ]
            assert [value for name, value in told if name == "connection/plant/state"] == [
                "1",
                "0",
                "1",
                "0",
            ]


@on_loop
async def test_test_of_a_connection_leaves_the_connection_alone(remote: Peer) -> None:
    async with bridging() as bridges:
        connector(bridges, remote.port)
        await connected(bridges)
        epoch = bridges.feature.resources.supervisors["plant"].epoch
        assert (await bridges.connectors.test("plant"))["ok"]
        assert bridges.feature.resources.supervisors["plant"].epoch == epoch


@pytest.mark.parametrize(
    ("members", "sentence"),
    [
        ({"server": "far:0"}, "has no port from 1 to 65535"),
        ({"bridge_mode": True}, "bridge_mode is for v3 and v4"),
        ({"proto_ver": "v4", "password": "x"}, "a password needs a username before v5"),
        ({"status_topic": "a/#"}, "must not contain '+' or '#'"),
    ],
    ids=["port", "bridge_mode", "password", "status_topic"],
)
@on_loop
async def test_settings_that_cannot_work_are_refused(
    members: dict[str, Any], sentence: str
) -> None:
    async with bridging() as bridges:
        with pytest.raises(Exception, match="cannot be") as refused:
            bridges.connectors.create(
                {"name": "plant", "type": "mqtt", "server": "far:1883", **members}
            )
        assert sentence in str(refused.value) + str(getattr(refused.value, "problems", ""))
