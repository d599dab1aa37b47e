"""``kill -9`` of a broker that writes to a Kafka: at least once by default, exactly once where that is asked for."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.kafka_bridge import bridging
from tests.support.kafka_server import Kafka
from tests.support.kafka_topic import Topic
from tests.support.numbered import firsts_in_order

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(240)]


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kafka]:
    with Kafka(tmp_path_factory.mktemp("kafka") / "cluster", brokers=2) as started:
        yield started


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


def test_exactly_once_each_message_is_seen_once_over_kills_of_both_sides(
    kafka: Kafka, tmp_path: Path
) -> None:
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
