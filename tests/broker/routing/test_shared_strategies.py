"""Who gets a message of a share group, by strategy."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.connection.sharing.strategies import (
    STICKY_KEYS,
    Hashed,
    Keyed,
    Pool,
    Sticky,
    Strategy,
    StrategyName,
    strategy_of,
)
from broker.core.client import Client
from broker.core.message import Message

ALL: tuple[StrategyName, ...] = (
    "round_robin", "random", "least_inflight", "sticky", "hash_clientid", "hash_topic",
)  # fmt: skip
FREE: tuple[StrategyName, ...] = ("round_robin", "random", "least_inflight")


class Someone:
    """A member with a window of its own."""

    def __init__(self, client_id: str, room: int = 1 << 30) -> None:
        self.client_id, self.room, self.in_flight = client_id, room, 0
        self.cell: int | None = None

    @property
    def has_room(self) -> bool:
        return self.in_flight < self.room

    def __repr__(self) -> str:
        return self.client_id


def message(number: int, publishers: int = 50, topics: int = 100) -> Message:
    return Message(f"meters/{number % topics}", b"", 1, False, Client(f"p{number % publishers}"), 1)


def group_of(
    name: StrategyName, count: int, room: int = 1 << 30
) -> tuple[Strategy[Someone], list[Someone]]:
    strategy: Strategy[Someone] = strategy_of(name)
    members = [Someone(f"member-{number}", room) for number in range(count)]
    for member in members:
        strategy.came(member)
        strategy.opened(member)
    return strategy, members


def give(strategy: Strategy[Someone], sent: Message) -> Someone | None:
    member = strategy.pick(sent)
    if member is not None:
        member.in_flight += 1
        strategy.changed(member)
    return member


def shares(name: StrategyName, count: int = 4, messages: int = 1000) -> Counter[str]:
    strategy, _ = group_of(name, count)
    picked = [give(strategy, message(number)) for number in range(messages)]
    return Counter(member.client_id for member in picked if member is not None)


@pytest.mark.parametrize("name", ["round_robin", "least_inflight"])
def test_of_1000_messages_each_of_four_members_gets_250(name: StrategyName) -> None:
    assert sorted(shares(name).values()) == [250, 250, 250, 250]


def test_at_random_each_of_four_members_gets_about_a_quarter_of_1000() -> None:
    found = shares("random")
    assert sum(found.values()) == 1000
    assert all(180 <= count <= 320 for count in found.values())


@pytest.mark.parametrize("name", ["sticky", "hash_clientid", "hash_topic"])
def test_keys_spread_over_all_members(name: StrategyName) -> None:
    found = shares(name)
    assert sum(found.values()) == 1000
    assert len(found) == 4
    assert all(count >= 80 for count in found.values())


@pytest.mark.parametrize(
    ("name", "key_of"),
    [
        ("sticky", lambda m: (m.client.client_id, m.topic)),
        ("hash_clientid", lambda m: m.client.client_id),
        ("hash_topic", lambda m: m.topic),
    ],
    ids=["sticky", "hash_clientid", "hash_topic"],
)
def test_all_messages_of_a_key_go_to_one_member(name: StrategyName, key_of: object) -> None:
    strategy, _ = group_of(name, 5)
    assert callable(key_of)
    by_key: dict[object, set[str]] = {}
    for number in range(1000):
        sent = message(number)
        member = strategy.pick(sent)
        assert member is not None
        by_key.setdefault(key_of(sent), set()).add(member.client_id)
    assert all(len(members) == 1 for members in by_key.values())


def test_only_the_keys_of_a_member_that_leaves_move() -> None:
    strategy, members = group_of("hash_topic", 10)
    topics = [message(number, topics=1000) for number in range(1000)]
    before = {sent.topic: strategy.pick(sent) for sent in topics}
    strategy.left(members[3])
    after = {sent.topic: strategy.pick(sent) for sent in topics}
    moved = [topic for topic, member in before.items() if after[topic] is not member]
    assert all(before[topic] is members[3] for topic in moved)
    assert 40 <= len(moved) <= 180
    strategy.came(members[3])
    assert {sent.topic: strategy.pick(sent) for sent in topics} == before


def test_a_process_that_starts_again_gives_keys_to_the_same_members() -> None:
    strategy, _ = group_of("hash_clientid", 3)
    found = [strategy.pick(message(number)) for number in range(8)]
    assert [str(member) for member in found] == [
        str(group_of("hash_clientid", 3)[0].pick(message(n))) for n in range(8)
    ]


def test_a_key_moves_only_when_what_its_member_has_of_it_is_settled() -> None:
    strategy, members = group_of("hash_topic", 3)
    assert isinstance(strategy, Keyed)
    sent = message(7)
    owner = strategy.pick(sent)
    assert owner is not None
    strategy.left(owner)
    stand_in = strategy.pick(sent)
    assert stand_in in members
    assert stand_in is not owner
    assert stand_in is not None
    strategy.hold(sent.topic, stand_in)
    strategy.hold(sent.topic, stand_in)
    strategy.came(owner)
    assert strategy.pick(sent) is stand_in
    strategy.release(sent.topic, stand_in)
    assert strategy.pick(sent) is stand_in
    strategy.release(sent.topic, stand_in)
    assert strategy.pick(sent) is owner


@pytest.mark.parametrize("name", FREE)
def test_a_member_whose_window_is_full_is_passed_over(name: StrategyName) -> None:
    strategy, members = group_of(name, 3, room=2)
    members[1].room = 0
    picked = [give(strategy, message(number)) for number in range(5)]
    assert Counter(map(str, picked)) == {"member-0": 2, "member-2": 2, "None": 1}
    members[0].in_flight -= 1
    strategy.changed(members[0])
    strategy.opened(members[0])
    assert give(strategy, message(6)) is members[0]


def test_the_member_with_the_fewest_messages_in_flight_is_next() -> None:
    strategy, members = group_of("least_inflight", 3)
    for member, count in zip(members, (5, 1, 3), strict=True):
        member.in_flight = count
        strategy.changed(member)
    assert [str(give(strategy, message(n))) for n in range(4)] == [
        "member-1",
        "member-1",
        "member-2",
        "member-1",
    ]


@pytest.mark.parametrize("name", ALL)
def test_who_is_not_here_gets_nothing(name: StrategyName) -> None:
    strategy, members = group_of(name, 2)
    strategy.left(members[0])
    for number in range(10):
        assert strategy.pick(message(number)) is members[1]
        assert strategy.pick_any(message(number)) is members[1]
    strategy.left(members[1])
    assert strategy.pick(message(1)) is None
    assert strategy.pick_any(message(1)) is None


def test_sticky_forgets_the_key_given_longest_ago() -> None:
    strategy: Sticky[Someone] = Sticky(lambda sent: sent.topic)
    strategy.came(Someone("one"))
    for number in range(STICKY_KEYS + 10):
        strategy.pick(Message(f"{number}", b"", 1, False, Client("p"), 1))
    assert len(strategy._given) == STICKY_KEYS


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 9))))
def test_a_pool_holds_what_was_added_and_not_discarded(steps: list[tuple[bool, int]]) -> None:
    members = [Someone(str(number)) for number in range(10)]
    pool: Pool[Someone] = Pool()
    expected: set[str] = set()
    for is_added, at in steps:
        (pool.add if is_added else pool.discard)(members[at])
        (expected.add if is_added else expected.discard)(str(at))
        assert sorted(member.client_id for member in pool.items) == sorted(expected)
        assert len(pool) == len(expected)


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 5)), max_size=30))
def test_a_ring_is_what_its_members_make_it_whatever_came_before(
    steps: list[tuple[bool, int]],
) -> None:
    members = [Someone(str(number)) for number in range(6)]
    ring: Hashed[Someone] = Hashed(lambda sent: sent.topic)
    here: set[int] = set()
    for is_added, at in steps:
        (ring.came if is_added else ring.left)(members[at])
        (here.add if is_added else here.discard)(at)
    fresh: Hashed[Someone] = Hashed(lambda sent: sent.topic)
    for at in here:
        fresh.came(members[at])
    assert [ring.pick(message(n)) for n in range(20)] == [fresh.pick(message(n)) for n in range(20)]


@pytest.mark.parametrize("name", FREE)
def test_members_of_other_cells_get_what_those_of_this_one_have_no_room_for(
    name: StrategyName,
) -> None:
    strategy: Strategy[Someone] = strategy_of(name)
    near, far = Someone("near", 3), Someone("far", 3)
    far.cell = 1
    for member in (far, near):
        strategy.came(member)
        strategy.opened(member)
    assert strategy.pick_any(message(0)) is near
    given = [give(strategy, message(number)) for number in range(7)]
    assert given[6] is None
    if name == "least_inflight":
        assert given[0] is near
        assert [given[:6].count(member) for member in (near, far)] == [3, 3]
    else:
        assert given[:6] == [near] * 3 + [far] * 3
    strategy.left(near)
    assert strategy.pick_any(message(0)) is far


@pytest.mark.parametrize("name", ["hash_clientid", "hash_topic"])
def test_a_key_has_the_same_member_in_all_cells(name: StrategyName) -> None:
    strategies: list[Strategy[Someone]] = [strategy_of(name), strategy_of(name)]
    for cell, strategy in enumerate(strategies):
        for number in range(4):
            member = Someone(f"m{number}")
            member.cell = None if number % 2 == cell else number % 2
            strategy.came(member)
    for number in range(100):
        first, other = (strategy.pick(message(number)) for strategy in strategies)
        assert first is not None
        assert other is not None
        assert first.client_id == other.client_id
