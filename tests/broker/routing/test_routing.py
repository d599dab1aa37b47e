"""Filters, share groups, routes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.codec.outgoing import Outgoing
from broker.core.client import Client
from broker.core.message import Message
from broker.core.subscription import Subscription
from broker.core.topic import TopicFilter
from broker.core.topic_trie import FilterTrie
from broker.routing.router import Router, Target
from broker.routing.shared import RoutedGroup, RoutedGroups
from tests.support.strategies import filters, topics


class Listener:
    """A subscriber that keeps what it gets."""

    def __init__(self, client_id: str, *, is_durable: bool = False, is_away: bool = False) -> None:
        self.client_id, self.is_durable, self.is_away = client_id, is_durable, is_away
        self.outlives = is_durable
        self.is_v5 = False
        self.may_have: Callable[[str, int], bool] | None = None
        self.got: list[tuple[bytes, int, bool, tuple[int, ...]]] = []
        self.dropped: list[str] = []

    def drop(self, outgoing: Outgoing, why: str) -> None:
        self.dropped.append(why)

    def take_packets(self, packets: bytes, count: int) -> bool:
        return False

    def deliver(
        self, outgoing: Outgoing, qos: int, retain: bool, identifiers: tuple[int, ...]
    ) -> None:
        self.got.append((outgoing.message.payload, qos, retain, identifiers))


class DelayedMessage:
    """What was put into the session log."""

    def __init__(self) -> None:
        self.calls: list[tuple[bytes, list[str], bool]] = []

    def __call__(
        self,
        outgoing: Outgoing,
        targets: Sequence[Target[Listener | RoutedGroup]],
        is_addressed: bool,
    ) -> None:
        names = [target.subscriber.client_id or "group" for target in targets]
        self.calls.append((outgoing.message.payload, names, is_addressed))


def message(
    topic: str, qos: int = 0, retain: bool = False, client_id: str = "p", payload: bytes = b"x"
) -> Message:
    return Message(topic, payload, qos, retain, Client(client_id), 1)


def subscription(text: str, qos: int = 0, **options: int) -> Subscription:
    return Subscription(TopicFilter.parse(text), qos, **options)  # type: ignore[arg-type]  # flags as ints


@pytest.fixture
def kept() -> DelayedMessage:
    return DelayedMessage()


class Group:
    """A share group that keeps what it gets."""

    client_id = ""
    key = "$share/group/#"
    takes_runs = False

    def __init__(self, is_durable: bool) -> None:
        self.is_durable = is_durable
        self.got: list[bytes] = []
        self.noted = 0

    def offer(self, outgoing: Outgoing) -> int:
        self.got.append(outgoing.message.payload)
        return 1

    def offer_run(self, chunk: bytes, client: Client, now_ns: int) -> int:
        raise AssertionError("it takes no runs")

    def note_kept(self, outgoing: Outgoing) -> None:
        self.noted += 1

    def accept_logged(
        self, offset: int, outgoing: Outgoing, qos: int, retain: bool, ids: tuple[int, ...]
    ) -> None:
        raise AssertionError("nothing is committed here")

    def pump(self) -> None:
        raise AssertionError("nothing is committed here")


class Groups:
    """Who is in which group; a group is durable when its first member is."""

    def __init__(self) -> None:
        self.by_text: dict[str, Group] = {}
        self.members: dict[str, set[str]] = {}
        self.routed = RoutedGroups(lambda _: None)

    def join(self, subscriber: Listener, subscription: Subscription) -> None:
        text = subscription.filter.text
        if text not in self.by_text:
            group = self.by_text[text] = Group(subscriber.is_durable)
            self.routed.add(subscription.filter, text, group)
        self.members.setdefault(text, set()).add(subscriber.client_id)

    def leave(self, subscriber: Listener, text: str) -> bool:
        members = self.members.get(text, set())
        if subscriber.client_id not in members:
            return False
        members.discard(subscriber.client_id)
        if not members:
            del self.by_text[text]
            self.routed.remove(TopicFilter.parse(text), text)
        return True


@pytest.fixture
def groups() -> Groups:
    return Groups()


@pytest.fixture
def router(kept: DelayedMessage, groups: Groups) -> Router[Listener]:
    return Router(kept, lambda _: None, groups, groups.routed)


@given(st.lists(filters, max_size=8, unique=True), topics)
def test_trie_finds_exactly_the_filters_that_match(texts: list[str], topic: str) -> None:
    trie: FilterTrie[str] = FilterTrie()
    for text in texts:
        trie.put(TopicFilter.parse(text).levels, text, text)
    assert sorted(value for _, value in trie.match(topic)) == sorted(
        text for text in texts if TopicFilter.parse(text).matches(topic)
    )


@given(st.lists(filters, max_size=8, unique=True), topics)
def test_trie_forgets_what_is_removed(texts: list[str], topic: str) -> None:
    trie: FilterTrie[str] = FilterTrie()
    for text in texts:
        trie.put(TopicFilter.parse(text).levels, "me", text)
    for text in texts:
        trie.remove(TopicFilter.parse(text).levels, "me")
    assert trie.match(topic) == []
    assert trie._root.is_empty


@pytest.mark.parametrize(
    ("text", "topic", "expected"),
    [
        ("a/#", "a", True),
        ("a/#", "a/", True),
        ("a/+", "a", False),
        ("a/+", "a/", True),
        ("+/b", "/b", True),
        ("#", "$SYS/uptime", False),
        ("+/uptime", "$SYS/uptime", False),
        ("$SYS/#", "$SYS/uptime", True),
        ("a/$x/+", "a/$x/b", True),
        ("+/$x", "a/$x", True),
    ],
)
def test_filter_matches_topic(text: str, topic: str, expected: bool) -> None:
    trie: FilterTrie[int] = FilterTrie()
    trie.put(TopicFilter.parse(text).levels, "me", 1)
    assert bool(trie.match(topic)) is expected


def test_overlapping_subscriptions_make_one_copy_with_the_highest_qos_and_all_identifiers(
    router: Router[Listener],
) -> None:
    one = Listener("one")
    router.subscribe(one, subscription("a/#", 1, identifier=3), is_new=True)
    router.subscribe(one, subscription("a/b", 2, identifier=4), is_new=True)
    assert router.routes("a/b").deliver(message("a/b", 2)) == 1
    [(_, qos, _, identifiers)] = one.got
    assert qos == 2
    assert sorted(identifiers) == [3, 4]


def test_no_local_keeps_a_message_from_its_publisher(router: Router[Listener]) -> None:
    one = Listener("one")
    router.subscribe(one, subscription("a", no_local=True), is_new=True)
    assert router.routes("a").deliver(message("a", client_id="one")) == 0
    assert router.routes("a").deliver(message("a", client_id="two")) == 1


def test_retain_flag_is_kept_only_as_subscribed(router: Router[Listener]) -> None:
    plain, as_published = Listener("plain"), Listener("as published")
    router.subscribe(plain, subscription("a"), is_new=True)
    router.subscribe(as_published, subscription("a", retain_as_published=True), is_new=True)
    router.routes("a").deliver(message("a", retain=True))
    assert [got[2] for got in plain.got + as_published.got] == [False, True]


def test_a_share_group_is_offered_each_message_once(
    router: Router[Listener], groups: Groups
) -> None:
    for name in "abc":
        router.subscribe(Listener(name), subscription("$share/g/t", 1), is_new=True)
    assert [
        router.routes("t").deliver(message("t", qos, payload=b"%d" % qos)) for qos in (0, 1)
    ] == [1, 1]
    assert groups.by_text["$share/g/t"].got == [b"0", b"1"]


def test_a_message_for_a_durable_group_is_kept_once_with_what_sessions_get(
    router: Router[Listener], groups: Groups, kept: DelayedMessage
) -> None:
    router.subscribe(Listener("d1", is_durable=True), subscription("t", 1), is_new=True)
    for name in ("d2", "d3"):
        router.subscribe(
            Listener(name, is_durable=True), subscription("$share/g/t", 1), is_new=True
        )
    assert router.routes("t").deliver(message("t", 1)) == 2
    assert kept.calls == [(b"x", ["d1", "group"], False)]
    assert groups.by_text["$share/g/t"].noted == 1


def test_a_plain_and_a_shared_subscription_of_one_client_do_not_touch_each_other(
    router: Router[Listener], groups: Groups
) -> None:
    one = Listener("one")
    for text, is_new in (("t", True), ("$share/g/t", True), ("$share/g/t", False)):
        router.subscribe(one, subscription(text), is_new=is_new)
    router.unsubscribe(one, TopicFilter.parse("$share/g/t"))
    router.routes("t").deliver(message("t"))
    assert len(one.got) == 1
    assert not groups.by_text


def test_a_message_for_durable_sessions_is_kept_once(
    router: Router[Listener], kept: DelayedMessage
) -> None:
    for name in ("d1", "d2"):
        router.subscribe(Listener(name, is_durable=True), subscription("t", 1), is_new=True)
    clean = Listener("clean")
    router.subscribe(clean, subscription("t", 1), is_new=True)
    assert router.routes("t").deliver(message("t", 1)) == 3
    assert kept.calls == [(b"x", ["d1", "d2"], False)]
    assert len(clean.got) == 1


def test_topics_with_the_same_subscribers_have_the_same_routes(router: Router[Listener]) -> None:
    one = Listener("one")
    router.subscribe(one, subscription("#"), is_new=True)
    routes = router.routes("a")
    assert router.routes("b/c") is routes
    router.subscribe(one, subscription("b/#", 1), is_new=True)
    assert router.routes("b/c") is not router.routes("a")


def test_unsubscribing_ends_delivery(router: Router[Listener]) -> None:
    one = Listener("one")
    for text in ("a/+", "$share/g/a/b"):
        router.subscribe(one, subscription(text), is_new=True)
    for text in ("a/+", "$share/g/a/b"):
        router.unsubscribe(one, TopicFilter.parse(text))
    assert router.routes("a/b").is_empty
    assert router.subscription_count == 0


@given(
    st.lists(filters, min_size=1, max_size=12),
    st.lists(filters, max_size=6),
    topics,
    st.integers(0, 12),
)
def test_who_has_left_gets_nothing_and_whoever_comes_in_its_name_keeps_what_it_has(
    old: list[str], new: list[str], topic: str, steps: int
) -> None:
    groups = Groups()
    router: Router[Listener] = Router(DelayedMessage(), lambda _: None, groups, groups.routed)
    before, other, after = Listener("a"), Listener("b"), Listener("a")
    for text in dict.fromkeys(old):
        router.subscribe(before, subscription(text), is_new=True)
    router.subscribe(other, subscription(old[0]), is_new=True)
    router.routes(topic)
    leaving = router.leave(before, [subscription(text) for text in dict.fromkeys(old)])
    for text in dict.fromkeys(new):
        router.subscribe(after, subscription(text), is_new=True)
    is_awaited = any(TopicFilter.parse(text).matches(topic) for text in new)
    for _ in range(steps):
        next(leaving, None)
    for _ in range(2):
        router.routes(topic).deliver(message(topic))
        assert [one.got != [] for one in (before, other, after)] == [
            False, TopicFilter.parse(old[0]).matches(topic), is_awaited
        ]  # fmt: skip
        for _ in leaving:
            pass
    assert router.leaving == 0
    assert router.subscription_count == 1 + len(dict.fromkeys(new))
    for text in dict.fromkeys(new):
        router.unsubscribe(after, TopicFilter.parse(text))
    router.unsubscribe(other, TopicFilter.parse(old[0]))
    assert router.matching(topic) == []
