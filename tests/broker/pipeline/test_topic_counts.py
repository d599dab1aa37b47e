"""Counts by topic: their sums are right whatever is published, and their room is bounded."""

from __future__ import annotations

from collections import Counter
from statistics import fmean
from typing import Any, ClassVar

from hypothesis import given
from hypothesis import strategies as st

from broker.codec.encode import encode_packet
from broker.codec.packets import PingReq, Publish
from broker.core.client import Client
from broker.pipeline.topic_counts import IDLE_S, MAX_BYTES, MAX_LEVELS, Level, TopicCounts
from tests.support.mqtt_server import MovedClock

NAMES = st.sampled_from(["", "a", "b", "cc", "é"])
TOPICS = st.lists(NAMES, min_size=1, max_size=5).map("/".join).filter(bool)
STEPS = st.lists(st.tuples(TOPICS, st.binary(max_size=300), st.integers(0, 2)), max_size=60)


CLIENT, CLIENT_V5 = Client("c", protocol_version=4), Client("c", protocol_version=5)


class NoPlans:
    """Every topic means itself."""

    by_topic: ClassVar[dict[bytes, object]] = {}

    def meant(self, topic_bytes: bytes, client: Client) -> str:
        return topic_bytes.decode()


def counting(**bounds: int) -> tuple[TopicCounts, MovedClock]:
    clock = MovedClock()
    plans: Any = NoPlans()
    counts = TopicCounts(clock, plans, **bounds)
    counts.look()
    return counts, clock


def look(counts: TopicCounts, clock: MovedClock) -> Level:
    """The root a second later."""
    clock.move(1)
    counts.look()
    return counts.root


def every(level: Level) -> list[Level]:
    return [level, *(one for child in level.children.values() for one in every(child))]


@given(STEPS, st.sampled_from([4, 5]))
def test_what_is_read_is_counted_by_topic_with_the_bytes_of_payloads(
    steps: list[tuple[str, bytes, int]], version: int
) -> None:
    counts, clock = counting()
    packets = [
        encode_packet(Publish(topic, data, qos, packet_id=7 if qos else 0), version)
        for topic, data, qos in steps
    ]
    ping = encode_packet(PingReq(), version)
    read = ping + ping.join(packets)
    counts.scan(CLIENT_V5 if version == 5 else CLIENT, 1, {}, b"...." + read, 4, 4 + len(read))
    look(counts, clock)
    messages, sizes = Counter[str](), Counter[str]()
    for topic, data, _ in steps:
        messages[topic] += 1
        sizes[topic] += len(data)
    found = list(counts.below(counts.root))
    assert {one.topic: (one.messages, one.bytes) for one in found} == {
        topic: (messages[topic], sizes[topic]) for topic in messages
    }


@given(
    st.lists(st.tuples(TOPICS, st.integers(0, 50), st.booleans()), max_size=200), st.integers(8, 20)
)
def test_sums_stay_right_when_levels_make_room(
    steps: list[tuple[str, int, bool]], most: int
) -> None:
    counts, clock = counting(max_levels=most)
    for number, (topic, size, looks) in enumerate(steps, 1):
        counts.count(topic, size, number)
        if looks:
            look(counts, clock)
    root = look(counts, clock)
    assert root.all_messages == len(steps)
    assert root.all_bytes == sum(size for _, size, _ in steps)
    assert root.all_last_ns == len(steps)
    assert root.all_topics >= len({topic for topic, _, _ in steps})
    levels = every(root)
    assert len(levels) <= most + 6
    for one in levels:
        below = one.children.values()
        assert one.all_messages == one.messages + one.rest_messages + sum(
            child.all_messages for child in below
        )
        assert one.all_bytes == one.bytes + one.rest_bytes + sum(child.all_bytes for child in below)
        assert one.all_topics == one.is_topic + one.rest_topics + sum(
            child.all_topics for child in below
        )
        assert one.rate is not None
        assert one.rate >= 0


def test_a_hundred_thousand_random_topics_take_bounded_room_and_the_busy_one_stays() -> None:
    counts, clock = counting()
    for number in range(100_000):
        counts.count(f"device/{number:x}/{'y' * (number % 900)}", 10, number)
        counts.count("plant/line/1", 10, number)
    root = look(counts, clock)
    levels = every(root)
    assert len(levels) <= MAX_LEVELS
    assert sum(one.size_bytes for one in levels) <= MAX_BYTES + 10_000
    assert (root.all_messages, root.all_topics) == (200_000, 100_001)
    busy = counts.find("plant/line/1")
    assert busy is not None
    assert busy.messages == 100_000


def test_too_long_and_too_deep_topics_count_at_the_root() -> None:
    counts, clock = counting()
    counts.count("a" * 2000, 1, 1)
    counts.count("/" * 100, 1, 1)
    root = look(counts, clock)
    assert (root.all_messages, root.children) == (2, {})


def test_rates_are_of_the_time_since_the_last_look() -> None:
    counts, clock = counting()
    assert counts.root.rate is None
    for _ in range(20):
        counts.count("a/b", 50, 1)
    clock.move(10)
    counts.look()
    level = counts.find("a")
    assert level is not None
    assert (level.rate, level.byte_rate) == (2, 100)
    assert look(counts, clock).rate == 0


def test_above_a_rate_some_reads_count_for_all() -> None:
    read = b"".join(encode_packet(Publish(f"t/{number}", b"x", 0), 4) for number in range(100))
    found = []
    for _ in range(25):
        # one differs from what was sent by a tenth (standard deviation), their mean by a fiftieth
        counts, clock = counting()
        for number in range(5000):  # a million messages in a second
            counts.scan(CLIENT, number * 100_000, {}, read, 0, len(read))
        found.append(look(counts, clock).all_messages)
        assert counts.is_sampled
    assert 0.9 < fmean(found) / 500_000 < 1.1


def test_a_clock_that_goes_back_does_not_thin_out_the_sample() -> None:
    counts, clock = counting()
    read = encode_packet(Publish("t", b"x", 0), 4)
    for now_ns in (10**18, 10**9):
        for number in range(3000):
            counts.scan(CLIENT, now_ns + number * 1_000_000, {}, read, 0, len(read))
    assert look(counts, clock).all_messages == 6000
    assert not counts.is_sampled


def test_an_alias_counts_for_its_topic() -> None:
    counts, clock = counting()
    for topic in ("a/b", "", ""):
        read = encode_packet(Publish(topic, b"12345", 0, properties={"Topic-Alias": 3}), 5)
        counts.scan(CLIENT_V5, 1, {3: b"a/b"}, read, 0, len(read))
    look(counts, clock)
    level = counts.find("a/b")
    assert level is not None
    assert (level.messages, level.bytes) == (3, 15)


def test_counting_ends_when_nobody_looks() -> None:
    counts, clock = counting()
    counts.count("a", 1, 1)
    clock.move(IDLE_S)
    counts.tick()
    assert counts.is_on
    clock.move(1)
    counts.tick()
    assert not counts.is_on
    assert counts.find("a") is None
