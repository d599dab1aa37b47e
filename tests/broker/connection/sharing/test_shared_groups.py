"""Share groups at work: who gets what, and what becomes of it when members come, go and die."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from broker.codec.packets import Publish
from broker.connection.settings import MqttSettings
from broker.connection.sharing.settings import ShareGroupSettings
from broker.connection.sharing.strategies import StrategyName
from broker.session import acks
from tests.support.examples import examples
from tests.support.share_bench import Player, ShareBench, payloads

TEXT = "$share/g/t/#"


@pytest.fixture
def bench() -> Iterator[ShareBench]:
    made = ShareBench()
    yield made
    made.close()


def bench_with(request: pytest.FixtureRequest, **shared: Any) -> ShareBench:
    made = ShareBench(**shared)
    request.addfinalizer(made.close)
    return made


def members(
    bench: ShareBench, count: int, *, is_durable: bool = False, qos: int = 1, **options: Any
) -> list[Player]:
    found = [
        bench.connect(f"m{number}", is_durable=is_durable, **options) for number in range(count)
    ]
    for member in found:
        bench.subscribe(member, TEXT, qos)
    return found


def publish(bench: ShareBench, count: int, *, qos: int = 1, start: int = 0) -> None:
    for number in range(start, start + count):
        bench.publish(f"t/{number % 7}", str(number), qos)
    bench.settle()


def numbers(count: int, start: int = 0) -> list[str]:
    return [str(number) for number in range(start, start + count)]


@pytest.mark.parametrize("is_durable", [False, True], ids=["memory", "durable"])
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_each_message_goes_to_exactly_one_member(
    bench: ShareBench, qos: int, is_durable: bool
) -> None:
    found = members(bench, 3, is_durable=is_durable, qos=qos)
    publish(bench, 90, qos=qos)
    got = [payloads(member) for member in found]
    assert Counter(map(len, got)) == {30: 3}
    assert sorted([payload for mine in got for payload in mine], key=int) == numbers(90)


def test_a_member_keeps_its_own_qos_and_identifier(bench: ShareBench) -> None:
    found = [bench.connect(f"m{qos}") for qos in range(3)]
    for qos, member in enumerate(found):
        bench.subscribe(member, TEXT, qos, identifier=qos + 1)
    publish(bench, 30, qos=2)
    for qos, member in enumerate(found):
        assert {
            (packet.qos, tuple(packet.properties["Subscription-Identifier"]))
            for packet in member.got
        } == {(qos, (qos + 1,))}


def test_a_repeated_subscribe_changes_the_qos_and_counts_once(bench: ShareBench) -> None:
    one, two = members(bench, 2)
    bench.subscribe(one, TEXT, 0)
    publish(bench, 20)
    assert (len(one.got), len(two.got)) == (10, 10)
    assert {packet.qos for packet in one.got} == {0}
    bench.unsubscribe(one, TEXT)
    publish(bench, 5, start=20)
    assert (len(one.got), len(two.got)) == (10, 15)


@pytest.mark.parametrize("is_durable", [False, True], ids=["memory", "durable"])
def test_qos_1_of_a_lost_connection_goes_to_another_at_once_and_may_be_a_duplicate(
    bench: ShareBench, is_durable: bool
) -> None:
    one, two = members(bench, 2, is_durable=is_durable)
    publish(bench, 10)
    assert len(one.got) == len(two.got) == 5
    lost = payloads(one)
    bench.disconnect(one)
    assert payloads(two)[5:] == lost
    assert [packet.dup for packet in two.got] == [False] * 5 + [True] * 5
    assert bench.metrics.value("shared_redelivered") == 5
    again = bench.connect("m0", is_durable=is_durable)
    assert payloads(again) == []


def test_qos_2_stays_with_its_session_and_comes_again_there(bench: ShareBench) -> None:
    one, two = members(bench, 2, is_durable=True, qos=2)
    publish(bench, 6, qos=2)
    mine, others = payloads(one), payloads(two)
    received = one.got[0]
    acks.pubrec(one.session, received.packet_id)
    bench.disconnect(one)
    assert payloads(two) == others
    again = bench.connect("m0", is_durable=True)
    assert payloads(again) == mine[1:]
    assert all(packet.dup for packet in again.got)
    assert len(again.other) == 1  # PUBREL
    acks.pubcomp(again.session, received.packet_id)
    assert bench.group(TEXT).in_flight == 5


def test_qos_2_of_a_session_that_ends_goes_to_nobody(bench: ShareBench) -> None:
    one, two = members(bench, 2, qos=2)
    publish(bench, 6, qos=2)
    before = payloads(two)
    bench.disconnect(one)
    assert payloads(two) == before
    assert bench.group(TEXT).in_flight == 3


def test_a_refused_message_is_discarded_and_counted(bench: ShareBench) -> None:
    one, two = members(bench, 2)
    publish(bench, 2)
    acks.refusal(one.session, one.got[0].packet_id, 1)
    bench.settle()
    assert (len(one.got), len(two.got)) == (1, 1)
    assert bench.group(TEXT).in_flight == 1
    assert bench.dropped("refused_by_client") == 1


@pytest.mark.parametrize("strategy", ["round_robin", "hash_topic"])
def test_what_is_too_large_for_one_goes_to_another(
    request: pytest.FixtureRequest, strategy: StrategyName
) -> None:
    bench = bench_with(request, strategy=strategy)
    small, large = bench.connect("small", max_bytes=100), bench.connect("large")
    for member in (small, large):
        bench.subscribe(member, TEXT)
    for number in range(20):
        bench.publish(f"t/{number}", "x" * 200)
    bench.settle()
    assert (len(small.got), len(large.got)) == (0, 20)
    bench.disconnect(large)
    assert bench.dropped("packet_too_large") == 20
    assert bench.group(TEXT).in_flight == 0


def test_absent_members_get_nothing_while_one_is_here_and_the_first_to_return_gets_all(
    bench: ShareBench,
) -> None:
    one, two = members(bench, 2, is_durable=True)
    bench.disconnect(one)
    publish(bench, 5)
    assert bench.ack_all(two) == numbers(5)
    bench.disconnect(two)
    publish(bench, 1500, start=5)
    assert bench.group(TEXT).waiting == 1500
    back = bench.connect("m1", is_durable=True)
    assert bench.ack_all(back) == numbers(1500, 5)
    assert (bench.group(TEXT).waiting, bench.group(TEXT).outstanding) == (0, 0)


def test_the_only_member_gets_what_it_had_under_the_old_identifiers(bench: ShareBench) -> None:
    [one] = members(bench, 1, is_durable=True)
    publish(bench, 3)
    before = [(packet.packet_id, packet.payload) for packet in one.got]
    bench.disconnect(one)
    again = bench.connect("m0", is_durable=True)
    assert [(packet.packet_id, packet.payload) for packet in again.got] == before
    assert all(packet.dup for packet in again.got)


def test_what_an_absent_member_had_goes_to_whoever_comes_first(bench: ShareBench) -> None:
    one, two = members(bench, 2, is_durable=True)
    bench.disconnect(two)
    publish(bench, 3)
    bench.disconnect(one)
    back = bench.connect("m1", is_durable=True)
    assert payloads(back) == numbers(3)
    assert payloads(bench.connect("m0", is_durable=True)) == []


def test_a_durable_group_is_stored_once_and_with_plain_sessions_too(bench: ShareBench) -> None:
    members(bench, 3, is_durable=True)
    plain = bench.connect("plain", is_durable=True)
    bench.subscribe(plain, "t/#")
    publish(bench, 10)
    held = bench.store.range_of(bench.hub.session_log.shard)
    assert held.next_offset - held.first_offset == 10


def test_memory_and_durable_members_share_one_source(bench: ShareBench) -> None:
    memory, durable = bench.connect("memory"), bench.connect("durable", is_durable=True)
    bench.subscribe(memory, TEXT)
    publish(bench, 4)
    bench.subscribe(durable, TEXT)
    publish(bench, 40, start=4)
    got = payloads(memory) + payloads(durable)
    assert sorted(got, key=int) == numbers(44)
    bench.disconnect(memory)
    assert sorted(bench.ack_all(durable), key=int) == sorted(set(numbers(44)), key=int)


@pytest.mark.parametrize("ends", ["unsubscribe", "end"])
def test_with_its_last_member_a_group_and_what_waits_is_gone(bench: ShareBench, ends: str) -> None:
    [one] = members(bench, 1, is_durable=True)
    bench.disconnect(one)
    publish(bench, 5)
    if ends == "unsubscribe":
        one = bench.connect("m0", is_durable=True, window=1)
        bench.unsubscribe(one, TEXT)
    else:
        bench.hub.life.end_session(one.session)
        bench.settle()
    assert TEXT not in bench.hub.share_groups.groups
    assert list(bench.store.scan(b"share-group/")) == []
    assert bench.dropped("group_ended") == (4 if ends == "unsubscribe" else 5)
    [fresh] = members(bench, 1)
    assert payloads(fresh) == []


def test_a_group_declared_durable_outlives_its_members(request: pytest.FixtureRequest) -> None:
    bench = bench_with(request, groups={"g": ShareGroupSettings(durable=True)})
    [one] = members(bench, 1)
    publish(bench, 1)
    bench.disconnect(one)
    publish(bench, 3, start=1)
    bench.crash()
    assert bench.group(TEXT).waiting == 4
    [again] = members(bench, 1)
    assert bench.ack_all(again) == numbers(4)
    bench.hub.share_groups.delete(TEXT)
    bench.disconnect(again)
    assert bench.group(TEXT).is_kept  # begun anew by the member that was still there


def test_too_much_for_a_durable_group_drops_the_oldest_by_name(
    request: pytest.FixtureRequest,
) -> None:
    bench = bench_with(request, max_waiting_messages=10)
    [one] = members(bench, 1, is_durable=True)
    bench.disconnect(one)
    publish(bench, 25)
    bench.pass_time(1)
    assert bench.dropped("group_full") == 15
    assert bench.group(TEXT).waiting == 10
    assert bench.ack_all(bench.connect("m0", is_durable=True)) == numbers(10, 15)


def test_what_waits_too_long_for_a_durable_group_is_dropped_by_name(
    request: pytest.FixtureRequest,
) -> None:
    bench = bench_with(request, max_waiting_age=100)
    [one] = members(bench, 1, is_durable=True)
    bench.disconnect(one)
    publish(bench, 3)
    bench.pass_time(90)
    publish(bench, 2, start=3)
    bench.clock.move(20)
    for _ in range(60):
        bench.hub.tick()
    bench.settle()
    assert bench.dropped("group_expired") == 3
    assert bench.ack_all(bench.connect("m0", is_durable=True)) == numbers(2, 3)


def test_too_much_in_the_session_log_drops_the_oldest_of_groups_too(bench: ShareBench) -> None:
    [one] = members(bench, 1, is_durable=True)
    bench.disconnect(one)
    publish(bench, 100)
    group = bench.group(TEXT)
    group.drop_excess(bench.clock.now_ns(), also_old=True, least_offset=60)
    assert bench.dropped("group_full") == 60
    assert bench.hub.share_groups.kept_from() == 60
    assert bench.ack_all(bench.connect("m0", is_durable=True)) == numbers(40, 60)


def test_too_much_for_a_memory_group_drops_the_oldest_by_name(
    request: pytest.FixtureRequest,
) -> None:
    bench = bench_with(request, mqtt=MqttSettings(slow_subscriber="drop"), max_queued_messages=5)
    [one] = members(bench, 1, window=2)
    publish(bench, 12)
    assert bench.dropped("queue_full") == 5
    assert bench.ack_all(one) == [*numbers(2), *numbers(5, 7)]


@pytest.mark.parametrize("is_durable", [False, True], ids=["memory", "durable"])
def test_a_silent_member_loses_its_messages_after_the_deadline(
    request: pytest.FixtureRequest, is_durable: bool
) -> None:
    bench = bench_with(request, ack_deadline=5)
    silent, busy = members(bench, 2, is_durable=is_durable, window=4)
    publish(bench, 8)
    kept = silent.got[0]
    bench.ack_all(busy)
    bench.pass_time(6)
    assert len(busy.got) == 4
    assert all(packet.dup for packet in busy.got)
    bench.ack(silent, kept)  # too late, and harmless
    assert len(bench.ack_all(busy)) == 4
    assert bench.group(TEXT).in_flight == 0
    publish(bench, 1, start=8)
    assert (payloads(silent)[3:], payloads(busy)) in ((["8"], []), ([], ["8"]))
    assert payloads(silent).count("8") + payloads(busy).count("8") == 1


def test_what_a_member_that_left_does_not_acknowledge_goes_to_others_in_time(
    request: pytest.FixtureRequest,
) -> None:
    bench = bench_with(request, unsubscribe_timeout=10)
    one, two = members(bench, 2)
    publish(bench, 6)
    bench.ack_all(two)
    bench.unsubscribe(one, TEXT)
    bench.ack(one, one.got[0])
    assert payloads(two) == []
    bench.pass_time(11)
    assert len(two.got) == 2
    assert bench.group(TEXT).in_flight == 2


def test_joining_and_leaving_100_times_leaves_nothing_behind(bench: ShareBench) -> None:
    [stays] = members(bench, 1, is_durable=True)
    toggles = bench.connect("toggles", is_durable=True)
    taken: list[str] = []
    for number in range(100):
        bench.subscribe(toggles, TEXT)
        publish(bench, 3, start=3 * number)
        taken += bench.ack_all(toggles) + bench.ack_all(stays)
        bench.unsubscribe(toggles, TEXT)
    group = bench.group(TEXT)
    assert sorted(taken, key=int) == numbers(300)
    assert (len(group.members), group.in_flight, group.waiting) == (1, 0, 0)
    assert (group._queue.held, len(group._leaving)) == (0, 0)
    assert toggles.session.memberships == {}
    assert group.cursors[0].pending == {}


def test_nothing_is_given_twice_or_passed_over_while_members_come_and_go(bench: ShareBench) -> None:
    [first] = members(bench, 1, is_durable=True, window=8)
    publish(bench, 50)
    second = bench.connect("second", is_durable=True, window=8)
    bench.subscribe(second, TEXT)
    publish(bench, 50, start=50)
    taken = bench.ack_all(second)
    bench.unsubscribe(second, TEXT)
    publish(bench, 50, start=100)
    taken += bench.ack_all(first)
    assert sorted(taken, key=int) == numbers(150)


@pytest.mark.parametrize("strategy", ["sticky", "hash_clientid", "hash_topic"])
@pytest.mark.parametrize("is_durable", [False, True], ids=["memory", "durable"])
def test_the_messages_of_a_key_stay_in_order_while_a_member_comes_and_goes(
    request: pytest.FixtureRequest, strategy: StrategyName, is_durable: bool
) -> None:
    bench = bench_with(request, strategy=strategy)
    found = members(bench, 4, is_durable=is_durable, window=4)
    order: dict[str, list[int]] = {}

    def take(limit: int) -> None:
        for member in found:
            for packet in member.got[:limit]:
                order.setdefault(packet.topic, []).append(int(packet.payload))
                bench.ack(member, packet)

    for number in range(400):
        bench.publish(f"t/{number % 20}", str(number), client_id=f"p{number % 20}")
        if number % 10 == 9:
            bench.settle()
            take(2)
        if number == 150:
            bench.disconnect(found[1])
            found[1].got.clear()
        if number == 250:
            found[1] = bench.connect("m1", is_durable=is_durable, window=4)
            if not is_durable:
                bench.subscribe(found[1], TEXT)
    while any(member.got for member in found):
        take(4)
    for topic, got in order.items():
        assert got == sorted(got), topic
    assert sorted(number for got in order.values() for number in got) == list(range(400))


def test_a_crash_loses_nothing_and_gives_each_message_to_one(bench: ShareBench) -> None:
    found = members(bench, 3, is_durable=True, window=10)
    publish(bench, 100)
    taken = [packet.payload.decode() for member in found for packet in member.got[:5]]
    for member in found:
        for packet in member.got[:5]:
            bench.ack(member, packet)
    bench.crash()
    back = [bench.connect(f"m{number}", is_durable=True, window=10) for number in range(3)]
    while any(member.got for member in back):
        taken += [payload for member in back for payload in bench.ack_all(member)]
    assert sorted(taken, key=int) == numbers(100)


def test_after_a_crash_qos_2_goes_on_with_the_member_that_had_it(bench: ShareBench) -> None:
    one, two = members(bench, 2, is_durable=True, qos=2, window=4)
    publish(bench, 8, qos=2)
    had = {
        player.session.client_id: [(p.packet_id, p.payload) for p in player.got]
        for player in (one, two)
    }
    bench.crash()
    for name in ("m1", "m0"):
        back = bench.connect(name, is_durable=True, window=4)
        assert [(packet.packet_id, packet.payload) for packet in back.got] == had[name]


def test_qos_2_sent_to_a_session_that_died_with_the_broker_goes_to_nobody(
    bench: ShareBench,
) -> None:
    durable, clean = bench.connect("durable", is_durable=True), bench.connect("clean")
    for member in (durable, clean):
        bench.subscribe(member, TEXT, 2)
    publish(bench, 10, qos=2)
    sent = payloads(clean)
    assert len(sent) == 5
    bench.crash()
    back = bench.connect("durable", is_durable=True)
    assert sorted(payloads(back) + sent, key=int) == numbers(10)


def test_a_group_of_sessions_that_all_died_with_the_broker_is_gone(
    request: pytest.FixtureRequest,
) -> None:
    bench = bench_with(request, durable="all")
    members(bench, 2)
    publish(bench, 5)
    assert list(bench.store.scan(b"share-group/")) != []
    bench.crash()
    bench.settle()
    assert bench.hub.share_groups.groups == {}
    assert list(bench.store.scan(b"share-group/")) == []


def test_the_session_log_is_kept_as_far_as_groups_need_it(bench: ShareBench) -> None:
    [one] = members(bench, 1, is_durable=True, window=2)
    publish(bench, 6)
    assert bench.hub.share_groups.kept_from() == 0
    bench.ack(one, one.got[1])
    assert bench.hub.share_groups.kept_from() == 0
    bench.ack(one, one.got[0])
    assert bench.hub.share_groups.kept_from() == 2
    bench.ack_all(one)
    assert bench.hub.share_groups.kept_from() == 6


def test_an_expired_message_is_not_given(bench: ShareBench) -> None:
    [one] = members(bench, 1, is_durable=True)
    bench.disconnect(one)
    bench.publish("t/1", "soon", expiry_s=5)
    bench.publish("t/1", "later", expiry_s=50)
    bench.settle()
    bench.clock.move(10)
    back = bench.connect("m0", is_durable=True)
    assert payloads(back) == ["later"]
    assert back.got[0].properties["Message-Expiry-Interval"] == 40
    assert bench.dropped("expired") == 1


class Groups(RuleBasedStateMachine):
    """Members of one group, durable ones and others, come, go, take, refuse and die with the broker.

    Every message of QoS 1 published while there was a group is acknowledged or refused by exactly one member in the
    end; in between no two connected members have it at once. What came while no member was durable is in memory only,
    and gone when the broker dies.
    """

    names = st.sampled_from(["clean-1", "clean-2", "durable-1", "durable-2"])

    @initialize(
        strategy=st.sampled_from(
            ["round_robin", "random", "least_inflight", "sticky", "hash_topic"]
        )
    )
    def begin(self, strategy: StrategyName) -> None:
        self.bench = ShareBench(strategy=strategy)
        self.here: dict[str, Player] = {}
        self.members: set[str] = set()
        self.published = 0
        self.expected: set[str] = set()
        self.stored: set[str] = set()
        self.done: Counter[str] = Counter()

    @rule(name=names, window=st.integers(1, 5))
    def connect(self, name: str, window: int) -> None:
        if name not in self.here:
            self.here[name] = self.bench.connect(
                name, is_durable=name.startswith("durable"), window=window
            )

    @rule(name=names)
    def subscribe(self, name: str) -> None:
        if name in self.here:
            self.bench.subscribe(self.here[name], TEXT)
            self.members.add(name)

    @rule(name=names)
    def unsubscribe(self, name: str) -> None:
        if name in self.here and name in self.members:
            self.bench.unsubscribe(self.here[name], TEXT)
            self._left(name)
            self._forget_in_flight_of_left(name)

    @rule(name=names)
    def disconnect(self, name: str) -> None:
        player = self.here.pop(name, None)
        if player is not None:
            self.bench.disconnect(player)
            if not name.startswith("durable"):
                self._left(name)

    @rule(count=st.integers(1, 12))
    def publish(self, count: int) -> None:
        for _ in range(count):
            self.published += 1
            self.bench.publish(f"t/{self.published % 5}", str(self.published))
            if self.members:
                self.expected.add(str(self.published))
                if self.bench.group(TEXT).is_durable:
                    self.stored.add(str(self.published))
        self.bench.settle()

    @rule(name=names, at=st.integers(0, 4), is_refused=st.booleans())
    def answer(self, name: str, at: int, is_refused: bool) -> None:
        player = self.here.get(name)
        if player is None or not player.got:
            return
        packet = player.got.pop(at % len(player.got))
        self._settle(player, packet, is_refused)

    @rule()
    def crash(self) -> None:
        self.bench.hub.tick()
        self.bench.crash()
        self.here.clear()
        self.expected &= self.stored
        for name in [name for name in self.members if not name.startswith("durable")]:
            self._left(name)

    @precondition(lambda self: self.here)
    @invariant()
    def no_two_members_have_one_message(self) -> None:
        having = Counter(p.payload for player in self.here.values() for p in player.got)
        assert not [payload for payload, count in having.items() if count > 1]

    @invariant()
    def a_group_is_there_as_long_as_it_has_members(self) -> None:
        assert (TEXT in self.bench.hub.share_groups.groups) is bool(self.members)

    def teardown(self) -> None:
        if not hasattr(self, "bench"):
            return
        if self.members:
            last = self.bench.connect("last", is_durable=True, window=3)
            self.bench.subscribe(last, TEXT)
            self.here["last"] = last
            while any(player.got for player in self.here.values()):
                for player in self.here.values():
                    for packet in list(player.got):
                        player.got.remove(packet)
                        self._settle(player, packet, is_refused=False)
            group = self.bench.group(TEXT)
            assert (group.in_flight, group.waiting) == (0, 0)
            assert {payload for payload in self.expected if not self.done[payload]} == set()
        assert all(count == 1 for count in self.done.values()), self.done
        self.bench.close()

    def _settle(self, player: Player, packet: Publish, is_refused: bool) -> None:
        if is_refused:
            acks.refusal(player.session, packet.packet_id, packet.qos)
        else:
            acks.puback(player.session, packet.packet_id)
        self.bench.settle()
        self.done[packet.payload.decode()] += 1

    def _left(self, name: str) -> None:
        self.members.discard(name)
        if not self.members:
            self.expected.clear()

    def _forget_in_flight_of_left(self, name: str) -> None:
        """It answers at once, so that what it has is not given to others when it is gone."""
        player = self.here[name]
        while player.got:
            self._settle(player, player.got.pop(0), is_refused=False)


def test_every_message_is_settled_once_whatever_happens() -> None:
    run_state_machine_as_test(
        Groups,
        settings=settings(
            max_examples=examples(60),
            stateful_step_count=40,
            deadline=None,
            suppress_health_check=[HealthCheck.too_slow],
        ),
    )
