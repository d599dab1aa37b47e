"""A whole broker that writes to a Kafka in trouble: nothing acknowledged is lost, the order of each key holds, the
counters add up, the state names the cause within ten seconds and recovers by itself."""

from __future__ import annotations

import asyncio
import resource
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.kafka_server import Kafka
from tests.support.kafka_topic import Topic
from tests.support.node import Node, eventually, running
from tests.support.numbered import Numbers, firsts_in_order

CAUSE_S = 10.0
CONFIG = "lake.run_spark = false\n"
RULE = {"name": "all", "sql": 'SELECT payload.n AS n, topic FROM "n/#"', "actions": ["kafka:out"]}
RECORD = {"key": "${topic}", "value": "${n}"}

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(240)]


class Bridge:
    """A broker whose rule writes numbers to a topic, and a client that publishes them."""

    def __init__(self, node: Node, topic: Topic, hosts: str, login: dict[str, Any], **parameters: Any) -> None:
        self.node, self.topic, self.numbers = node, topic, Numbers()
        opts = {"health_check_interval": "1s", "reconnect_interval": "100ms"}
        connector = {"name": "plant", "type": "kafka", "bootstrap_hosts": hosts, "resource_opts": opts, **login}
        node.call("POST", "/connectors", connector)
        action = {
            "name": "out",
            "type": "kafka",
            "connector": "plant",
            "parameters": {"topic": topic.name, "message": RECORD, **parameters},
            "resource_opts": {"buffer_mode": "disk", "health_check_interval": "1s", "request_timeout": "10s"},
        }
        node.call("POST", "/actions", action)
        node.call("POST", "/rules", RULE)

    def shown(self) -> dict[str, Any]:
        """The action; its counters add up whenever it is looked at."""
        shown: dict[str, Any] = self.node.call("GET", "/actions/out")
        counts = shown["metrics"]
        ends = counts["success"] + counts["failed"] + counts["dropped"] + counts["queuing"] + counts["inflight"]
        assert counts["matched"] == ends, counts
        return shown

    def count(self, what: str) -> int:
        number: int = self.shown()["metrics"][what]
        return number

    def await_more(self, rows: int = 200) -> None:
        """Until so many more rows are confirmed."""
        before = self.count("success")
        eventually(lambda: self.count("success") >= before + rows, timeout_s=60, what=f"{rows} more rows")

    def await_cause(self, cause: str) -> None:
        """Until the state is not connected and names the cause."""

        def told() -> bool:
            shown = self.shown()
            return shown["status"] != "connected" and cause in shown["status_reason"]

        started = time.monotonic()
        eventually(told, timeout_s=CAUSE_S, what=f"{cause!r} in {self.shown()['status_reason']!r}")
        assert time.monotonic() - started <= CAUSE_S + 1

    def await_drained(self) -> None:
        """Until everything published is confirmed and the state is well."""
        self.numbers.stop()
        eventually(lambda: not self.count("queuing") + self.count("inflight"), timeout_s=60, what="all rows sent")
        eventually(lambda: self.shown()["status"] == "connected")
        counts = self.shown()["metrics"]
        assert (counts["failed"], counts["dropped"]) == (0, 0)

    def found(self, *, committed: bool = False) -> list[tuple[str, int]]:
        """Key and number of every record, in order."""
        records = asyncio.run(self.topic.records(committed=committed))
        return [(record.key.decode(), int(record.value)) for record in records]


@contextmanager
def bridging(
    directory: Path, topic: Topic, hosts: str = "", login: dict[str, Any] | None = None, **parameters: Any
) -> Iterator[Bridge]:
    with running(directory / "node", config=CONFIG) as node:
        bridge = Bridge(node, topic, hosts or topic.kafka.bootstrap, login or {}, **parameters)
        bridge.numbers.start(node.mqtt)
        try:
            bridge.await_more()
            yield bridge
        finally:
            bridge.numbers.stop()


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kafka]:
    with Kafka(tmp_path_factory.mktemp("kafka") / "cluster", brokers=2) as started:
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
    kafka: Kafka, tmp_path: Path, outage: Callable[[Kafka], Callable[[], None]], cause: str
) -> None:
    topic = asyncio.run(Topic(kafka, partitions=3, copies=2).make())
    with bridging(tmp_path, topic) as bridge:
        end = outage(kafka)
        try:
            bridge.await_cause(cause)
            eventually(lambda: bridge.count("queuing") + bridge.count("inflight") >= 500)
        finally:
            end()
        bridge.await_more(600)
        bridge.await_drained()
        found = bridge.found()
        assert {number for _, number in found} >= bridge.numbers.acknowledged
        assert firsts_in_order(found)


def test_a_leader_that_is_killed_moves_and_nothing_is_lost(kafka: Kafka, tmp_path: Path) -> None:
    topic = asyncio.run(Topic(kafka, copies=2).make())
    with bridging(tmp_path, topic) as bridge:
        leader = asyncio.run(topic.leader())
        [node] = [one for one in kafka.nodes if one.number == leader]
        node.process.kill()
        try:
            bridge.await_more(600)
            assert asyncio.run(topic.leader()) != leader
            bridge.await_drained()
            found = bridge.found()
        finally:
            node.process.start()
        assert {number for _, number in found} >= bridge.numbers.acknowledged
        assert firsts_in_order(found)


def test_a_topic_that_is_deleted_is_waited_for(kafka: Kafka, tmp_path: Path) -> None:
    topic = asyncio.run(Topic(kafka, copies=2).make())
    with bridging(tmp_path, topic) as bridge:
        bridge.await_drained()
        before = set(bridge.numbers.acknowledged)
        asyncio.run(topic.delete())
        bridge.numbers.start(bridge.node.mqtt)
        bridge.await_cause(f"unhealthy target: there is no topic '{topic.name}'")
        asyncio.run(topic.make())
        bridge.await_more()
        bridge.await_drained()
        found = bridge.found()
        assert {number for _, number in found} >= bridge.numbers.acknowledged - before
        assert firsts_in_order(found)


def test_credentials_that_are_revoked_are_named_and_good_again_later(tmp_path: Path) -> None:
    login = {"authentication": {"mechanism": "scram_sha_256", "username": "alice", "password": "wonder:land"}}
    with Kafka(tmp_path / "kafka", sasl=["SCRAM-SHA-256"]) as kafka:
        topic = asyncio.run(Topic(kafka).make())
        with bridging(tmp_path, topic, kafka.secured("SASL_PLAINTEXT"), login) as bridge:
            kafka.configure("--delete-config", "SCRAM-SHA-256", user="alice")
            kafka.stop()  # which ends the connections that were let in
            kafka.start()
            bridge.await_cause("uthentication failed")
            kafka.configure("--add-config", "SCRAM-SHA-256=[password=wonder:land]", user="alice")
            bridge.await_more()
            bridge.await_drained()
            found = bridge.found()
            assert {number for _, number in found} >= bridge.numbers.acknowledged
            assert firsts_in_order(found)


def test_a_disk_of_kafka_that_is_full_is_waited_for(tmp_path: Path) -> None:
    with Kafka(tmp_path / "kafka") as kafka:
        topic = asyncio.run(Topic(kafka).make())
        with bridging(tmp_path, topic) as bridge:
            [node] = kafka.nodes
            # No file may grow any more: to Kafka the same as a full disk, it gives its directory up and ends
            resource.prlimit(node.process.pid, resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
            bridge.await_cause("")
            node.process.kill()
            kafka.start()
            bridge.await_more()
            bridge.await_drained()
            found = bridge.found()
            assert {number for _, number in found} >= bridge.numbers.acknowledged
            assert firsts_in_order(found)


# The end of Sluice


def test_kill_nine_sends_a_tail_again_and_loses_nothing(kafka: Kafka, tmp_path: Path) -> None:
    topic = asyncio.run(Topic(kafka, partitions=3, copies=2).make())
    with bridging(tmp_path, topic) as bridge:
        for _ in range(3):
            bridge.node.kill()
            bridge.numbers.stop()
            bridge.node.start()
            bridge.numbers.start(bridge.node.mqtt)
            bridge.await_more()
        bridge.await_drained()
        found = bridge.found()
        assert {number for _, number in found} >= bridge.numbers.acknowledged
        assert firsts_in_order(found)


def test_exactly_once_each_message_is_seen_once_over_kills_of_both_sides(kafka: Kafka, tmp_path: Path) -> None:
    topic = asyncio.run(Topic(kafka, partitions=3, copies=2).make())
    with bridging(tmp_path, topic, exactly_once=True) as bridge:
        for turn in range(10):
            if turn % 4 == 3:
                broker = kafka.brokers[turn // 4 % 2]
                broker.process.kill()
                bridge.node.kill()
                broker.process.start()
            else:
                bridge.node.kill()
            bridge.numbers.stop()
            bridge.node.start()
            bridge.numbers.start(bridge.node.mqtt)
            bridge.await_more(50)
        bridge.await_drained()
        found = bridge.found(committed=True)
        numbers = [number for _, number in found]
        assert len(numbers) == len(set(numbers)), "something is seen twice"
        assert set(numbers) >= bridge.numbers.acknowledged
        assert firsts_in_order(found)
