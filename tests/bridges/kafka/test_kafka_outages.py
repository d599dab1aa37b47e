"""A whole broker that writes to a Kafka in trouble: nothing acknowledged is lost, the order of each key holds, the
counters add up, the state names the cause within ten seconds and recovers by itself."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

import pytest

from tests.support.kafka_bridge import CONFIG, sending
from tests.support.kafka_server import Kafka
from tests.support.kafka_topic import Topic
from tests.support.node import Node, eventually, running
from tests.support.small_disk import SmallDisk, small_disk

DISK_MB = 192
LOGIN = {
    "authentication": {"mechanism": "scram_sha_256", "username": "alice", "password": "wonder:land"}
}
SETTINGS = {"connections.max.reauth.ms": "1500"}
"""Who has logged in must do so again so often: what was revoked ends then."""

pytestmark = pytest.mark.timeout(240)


@pytest.fixture(scope="module")
def disk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SmallDisk]:
    with small_disk(tmp_path_factory.mktemp("disk") / "small", DISK_MB) as mounted:
        yield mounted


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory, disk: SmallDisk) -> Iterator[Kafka]:
    """Two brokers and their controller, with all they keep on a small disk."""
    directory = tmp_path_factory.mktemp("kafka") / "cluster"
    with Kafka(
        directory, brokers=2, sasl=["SCRAM-SHA-256"], settings=SETTINGS, data=disk.path
    ) as started:
        yield started


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with running(tmp_path_factory.mktemp("node") / "data", config=CONFIG) as started:
        yield started


def stop(kafka: Kafka) -> Callable[[], None]:
    kafka.stop()
    return kafka.start


def kill(kafka: Kafka) -> Callable[[], None]:
    kafka.kill()
    return kafka.start


def freeze(kafka: Kafka) -> Callable[[], None]:
    for node in kafka.nodes:
        node.process.freeze()

    def thaw() -> None:
        for node in kafka.nodes:
            node.process.thaw()

    return thaw


@pytest.mark.parametrize(
    ("outage", "cause"),
    [(stop, "connection refused"), (kill, "connection refused"), (freeze, "no answer")],
    ids=["stopped", "killed", "partitioned off"],
)
def test_an_outage_loses_nothing_that_was_acknowledged(
    kafka: Kafka, node: Node, outage: Callable[[Kafka], Callable[[], None]], cause: str
) -> None:
    topic = asyncio.run(Topic(kafka, partitions=3, copies=2).make())
    with sending(node, topic) as bridge:
        end = outage(kafka)
        try:
            bridge.await_cause(cause)
            eventually(lambda: bridge.waiting >= 500, what="rows that wait")
        finally:
            end()
        bridge.await_more(600)
        bridge.await_drained()
        bridge.assert_all_there()


def test_a_leader_that_is_killed_moves_and_nothing_is_lost(kafka: Kafka, node: Node) -> None:
    topic = asyncio.run(Topic(kafka, copies=2).make())
    with sending(node, topic) as bridge:
        leader = asyncio.run(topic.leader())
        [killed] = [one for one in kafka.nodes if one.number == leader]
        killed.process.kill()
        try:
            bridge.await_cause("connection refused", "leader")
            bridge.await_more(600)
            assert asyncio.run(topic.leader()) != leader
            bridge.await_drained()
            bridge.assert_all_there()
        finally:
            killed.process.start()


def test_a_topic_that_is_deleted_is_waited_for(kafka: Kafka, node: Node) -> None:
    topic = asyncio.run(Topic(kafka, copies=2).make())
    with sending(node, topic) as bridge:
        bridge.await_drained()
        before = set(bridge.numbers.acknowledged)
        asyncio.run(topic.delete())
        bridge.numbers.start(node.mqtt)
        bridge.await_cause(f"unhealthy target: there is no topic '{topic.name}'")
        asyncio.run(topic.make())
        bridge.await_more()
        bridge.await_drained()
        bridge.assert_all_there(but=before)


def test_credentials_that_are_revoked_are_named_and_good_again_later(
    kafka: Kafka, node: Node
) -> None:
    topic = asyncio.run(Topic(kafka, copies=2).make())
    with sending(node, topic, kafka.secured("SASL_PLAINTEXT"), LOGIN) as bridge:
        kafka.configure("--delete-config", "SCRAM-SHA-256", user="alice")
        try:
            bridge.await_cause("uthentication failed")
        finally:
            kafka.configure("--add-config", "SCRAM-SHA-256=[password=wonder:land]", user="alice")
        bridge.await_more(600)
        bridge.await_drained()
        bridge.assert_all_there()


def test_a_disk_of_kafka_that_is_full_is_waited_for(
    kafka: Kafka, node: Node, disk: SmallDisk
) -> None:
    topic = asyncio.run(Topic(kafka, partitions=3, copies=2).make())
    with sending(node, topic) as bridge:
        disk.fill()
        bridge.await_cause("storage", "leader", "connection refused")
        eventually(lambda: bridge.waiting >= 500, what="rows that wait")
        disk.grow()
        kafka.kill()  # who has met a full disk has given it up, and is started again by whoever made room
        kafka.start()
        bridge.await_more(600)
        bridge.await_drained()
        bridge.assert_all_there()
