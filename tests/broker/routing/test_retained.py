"""The retained store: found by filter, one entry a topic, counted, limited, expired, and there after a restart."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.core.client import Client
from broker.core.errors import ConfigError, SluiceError
from broker.core.message import Message
from broker.core.topic import TopicFilter
from broker.core.topic_keys import FilterWalk, topic_key, topic_of
from broker.routing.retained_record import account_of, decode_retained
from broker.routing.retained_store import Entry, Retained
from broker.routing.settings import RetainedBackend, RetainedSettings
from broker.storage.memory import MemoryStore
from broker.storage.rocksdb.store import RocksStore
from broker.storage.store import Batch, Store
from broker.storage.writer import Writer
from tests.support.mqtt_server import GatedStore, MovedClock, on_loop
from tests.support.strategies import filters, topics

CLOCK = MovedClock()
_ALL = 1_000_000


def message(topic: str, payload: bytes = b"x", client_id: str = "c", **properties: Any) -> Message:
    named = {name.replace("_", "-"): value for name, value in properties.items()}
    return Message(topic, payload, 1, True, Client(client_id, "u"), CLOCK.now_ns(), named or None)


class Shelf:
    """A retained store over a real writer."""

    def __init__(self, store: Store, **settings: Any) -> None:
        self.writer = Writer(store, asyncio.get_running_loop())
        self.retained = Retained(self.writer, CLOCK, RetainedSettings(**settings))
        for _ in self.retained.load():
            pass

    async def retain(self, *messages: Message) -> None:
        for one in messages:
            self.retained.retain(one)
        await self.writer.committed()

    def found(self, text: str, limit: int = _ALL) -> list[Entry]:
        walk, position, found = FilterWalk(TopicFilter.parse(text)), b"", list[Entry]()
        while position is not None:
            entries, position = self.retained.read(walk, position, limit, _ALL)  # type: ignore[assignment]
            assert len(entries) <= limit
            found += entries
        return found

    def topics(self, text: str = "#", limit: int = _ALL) -> list[str]:
        return [entry.message.topic for entry in self.found(text, limit)]


@pytest.fixture(params=["rocksdb", "memory store", "copy in memory"])
def shelf(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[], Shelf]]:
    """Opens a shelf; all that one test opens stand on the same store."""
    kind: str = request.param
    store: Store = MemoryStore() if kind == "memory store" else RocksStore(tmp_path)
    settings = {"storage": "memory"} if kind == "copy in memory" else {}
    yield lambda **more: Shelf(store, **settings, **more)
    store.close()


@given(st.lists(topics, max_size=12), filters, st.integers(1, 4))
def test_what_a_filter_matches_is_found_in_order_and_nothing_else(
    names: list[str], text: str, limit: int
) -> None:
    async def look() -> None:
        shelf = Shelf(MemoryStore())
        await shelf.retain(*map(message, names))
        topic_filter = TopicFilter.parse(text)
        expected = sorted({name for name in names if topic_filter.matches(name)}, key=topic_key)
        assert shelf.topics(text, limit) == expected
        await shelf.writer.close()

    asyncio.run(look())


@given(topics, filters)
def test_a_key_that_does_not_match_leads_on_and_never_past_a_match(name: str, text: str) -> None:
    topic_filter, key = TopicFilter.parse(text), topic_key(name)
    target = FilterWalk(topic_filter).follow(key)
    assert topic_of(key) == name
    assert (target == key) is topic_filter.matches(name)
    assert target is None or target >= key


@on_loop
async def test_a_wildcard_steps_over_what_cannot_match() -> None:
    store = CountingStore()
    shelf = Shelf(store)
    await shelf.retain(
        *(message(f"site{site}/dev{device}/temp") for site in range(20) for device in range(50))
    )
    await shelf.retain(message("site7/status"))
    store.steps = 0
    assert shelf.topics("+/status") == ["site7/status"]
    assert store.steps < 100
    store.steps = 0
    assert len(shelf.topics("site3/#")) == 50
    assert store.steps < 60


class CountingStore(MemoryStore):
    """Counts how often its cursors are moved."""

    steps = 0

    def cursor(self, prefix: bytes) -> Any:
        inner, store = super().cursor(prefix), self

        class Counting:
            value = staticmethod(inner.value)

            def seek(self, key: bytes) -> bytes | None:
                store.steps += 1
                return inner.seek(key)

            def next(self) -> bytes | None:
                store.steps += 1
                return inner.next()

        return Counting()


def test_there_is_one_entry_a_topic_and_it_survives(shelf: Callable[[], Shelf]) -> None:
    async def first() -> None:
        here = shelf()
        for number in range(50):
            await here.retain(message("a/b", b"%d" % number))
        await here.retain(
            message("gone"), message("a", b"root", User_Property=[("k", "1"), ("k", "2")])
        )
        await here.retain(message("gone", b""))
        assert here.retained.count == 2
        await here.writer.close()

    async def second() -> None:
        here = shelf()
        [root, leaf] = here.found("a/#")
        assert (leaf.message.payload, leaf.message.qos, leaf.message.client.username) == (
            b"49",
            1,
            "u",
        )
        assert root.message.properties == {"User-Property": [("k", "1"), ("k", "2")]}
        assert here.retained.count == 2
        assert here.retained.size_bytes == sum(
            len(key) - len(b"retained/") + len(value)
            for key, value in here.writer.store.scan(b"retained/")
        )
        assert here.retained.get("gone") is None
        await here.writer.close()

    asyncio.run(first())
    asyncio.run(second())


def test_expired_messages_are_swept_and_others_not_looked_at(shelf: Callable[[], Shelf]) -> None:
    async def sweep() -> None:
        here = shelf()
        await here.retain(
            message("short", Message_Expiry_Interval=5),
            message("long", Message_Expiry_Interval=500),
        )
        await here.retain(message("renewed", Message_Expiry_Interval=5), message("ever"))
        await here.retain(message("renewed", Message_Expiry_Interval=50))
        CLOCK.move(10)
        assert not here.retained.sweep()
        await here.writer.committed()
        assert here.topics() == ["ever", "long", "renewed"]
        assert here.retained.count == 3
        CLOCK.move(1000)
        here.retained.sweep()
        await here.writer.committed()
        assert here.topics() == ["ever"]
        assert not list(here.writer.store.scan(b"retained-expiry/"))
        await here.writer.close()

    asyncio.run(sweep())


@on_loop
async def test_a_sweep_of_much_is_cut_in_slices() -> None:
    shelf = Shelf(MemoryStore())
    await shelf.retain(
        *(message(f"t/{number}", Message_Expiry_Interval=1) for number in range(700))
    )
    CLOCK.move(2)
    assert [shelf.retained.sweep() for _ in range(3)] == [True, True, False]
    await shelf.writer.committed()
    assert (shelf.retained.count, shelf.topics()) == (0, [])


@on_loop
async def test_what_waits_for_its_commit_is_seen_and_counted_once() -> None:
    store = GatedStore()
    shelf = Shelf(store)
    await shelf.retain(message("a/1", b"old"), message("a/2"))
    store.allow.clear()
    shelf.retained.retain(message("a/1", b"new"))
    shelf.retained.retain(message("a/2", b""))
    shelf.retained.retain(message("b"))
    entries, without = shelf.retained.waiting_entries(FilterWalk(TopicFilter.parse("a/#")))
    assert [entry.message.payload for entry in entries] == [b"new"]
    assert without == {topic_key(name) for name in ("a/1", "a/2", "b")}
    assert shelf.retained.count == 2
    assert (shelf.retained.get("a/2"), shelf.retained.get("b") is None) == (None, False)
    store.allow.set()
    await shelf.writer.committed()
    assert shelf.retained.waiting == 0
    assert shelf.topics() == ["a/1", "b"]


@on_loop
async def test_a_commit_that_fails_leaves_the_totals_right() -> None:
    store = GatedStore()
    shelf = Shelf(store)
    await shelf.retain(message("kept"))
    size = shelf.retained.size_bytes
    store.fails = True
    shelf.retained.retain(message("lost"))
    shelf.retained.retain(message("kept", b""))
    shelf.retained.retain(message("twice", b"1"))
    failed = asyncio.Event()
    shelf.writer.when_committed(lambda _error: failed.set())
    await asyncio.sleep(0)
    shelf.retained.retain(message("twice", b"22"))
    await failed.wait()
    store.fails = False
    shelf.writer.touch()
    await shelf.writer.committed()
    assert shelf.topics() in (["kept"], ["kept", "twice"])
    assert shelf.retained.count == len(shelf.topics())
    shelf.retained.delete("twice")
    await shelf.writer.committed()
    assert (shelf.retained.count, shelf.retained.size_bytes) == (1, size)
    assert shelf.retained.accounts.bytes_on(account_of("c")) == size


@on_loop
async def test_what_one_client_may_have_is_free_again_once_it_is_replaced_deleted_or_expired(
    shelf: Callable[..., Shelf],
) -> None:
    opened = shelf(max_bytes_per_client=1000)
    retained = opened.retained

    def refused(topic: str, client_id: str) -> str | None:
        refusal = retained.refusal(message(topic, b"x" * 400, client_id))
        return None if refusal is None else refusal.reason

    await opened.retain(
        message("a/1", b"x" * 400, "a"), message("a/2", b"x" * 400, "a", Message_Expiry_Interval=5)
    )
    assert (refused("a/3", "a"), refused("a/1", "a"), refused("a/3", "b")) == (
        "retained_full_for_client",
        None,
        None,
    )
    assert retained.accounts.bytes_on(account_of("a")) == retained.size_bytes
    await opened.retain(message("a/1", b"x" * 400, "b"))
    assert (
        retained.accounts.bytes_on(account_of("a")) + retained.accounts.bytes_on(account_of("b"))
        == retained.size_bytes
    )
    assert refused("a/3", "a") is None
    await opened.retain(message("a/3", b"x" * 400, "a"))
    assert (refused("a/4", "a"), refused("a/4", "b")) == ("retained_full_for_client", None)
    CLOCK.move(6)
    assert not retained.sweep()
    assert refused("a/4", "a") is None
    await opened.retain(message("a/4", b"x" * 400, "a"))
    assert refused("a/5", "a") == "retained_full_for_client"
    retained.delete("a/4")
    assert refused("a/5", "a") is None
    await opened.retain(message("a/4", b"x" * 400, "a"))
    # counted since the start, also where one of before is replaced
    opened = shelf(max_bytes_per_client=1000)
    retained = opened.retained
    assert (retained.count, retained.accounts.bytes_on(account_of("a"))) == (3, 0)
    await opened.retain(message("a/4", b"x" * 400, "a"), message("a/3", b"", "a"))
    assert 400 < retained.accounts.bytes_on(account_of("a")) < 500
    assert refused("a/5", "a") is None


@given(
    st.lists(
        st.tuples(st.sampled_from("ab"), st.sampled_from("abc"), st.integers(0, 3), st.booleans()),
        max_size=20,
    )
)
def test_what_clients_have_is_what_there_is_when_commits_fail_too(
    steps: list[tuple[str, str, int, bool]],
) -> None:
    async def take() -> None:
        store = GatedStore()
        shelf = Shelf(store)
        for topic, client_id, size, waits in steps:
            shelf.retained.retain(message(topic, b"x" * size, client_id))
            store.fails = not store.fails and size == 3
            if waits:
                settled = asyncio.Event()
                shelf.writer.when_committed(lambda _error, settled=settled: settled.set())  # type: ignore[misc]
                await settled.wait()
        store.fails = False
        shelf.writer.touch()
        await shelf.writer.committed()
        sizes = dict.fromkeys("abc", 0)
        for key, value in store.scan(b"retained/"):
            entry = decode_retained("", value)
            sizes[entry.client.client_id] += len(key) - len(b"retained/") + len(value)
        assert sizes == {name: shelf.retained.accounts.bytes_on(account_of(name)) for name in sizes}

    on_loop(take)()


@on_loop
async def test_limits_refuse_with_a_name_and_let_replace_and_delete() -> None:
    shelf = Shelf(MemoryStore(), max_messages=2, max_payload=10)
    await shelf.retain(message("a"), message("b"))
    refusal = shelf.retained.refusal(message("c"))
    assert refusal is not None
    assert (refusal.reason, refusal.reason_code) == ("retained_full", 0x97)
    assert shelf.retained.refusal(message("a", b"again")) is None
    assert shelf.retained.refusal(message("a", b"")) is None
    too_large = shelf.retained.refusal(message("a", b"x" * 11))
    assert too_large is not None
    assert too_large.reason == "retained_payload_too_large"
    await shelf.retain(message("a", b""))
    assert shelf.retained.refusal(message("c")) is None


@on_loop
async def test_the_limit_of_bytes_holds_exactly() -> None:
    shelf = Shelf(MemoryStore(), max_bytes=1000)
    taken = 0
    while shelf.retained.refusal(message(f"t/{taken}", b"x" * 100)) is None:
        await shelf.retain(message(f"t/{taken}", b"x" * 100))
        taken += 1
    assert 0 < shelf.retained.size_bytes <= 1000
    assert shelf.retained.size_bytes + 100 > 1000 - 40


@on_loop
async def test_a_store_of_a_release_before_0_2_0_is_refused() -> None:
    store = MemoryStore()
    store.commit(Batch(puts={b"retained/a/b": b"\x97\1"}))
    with pytest.raises(
        SluiceError, match=r"expected data of Sluice 0.2.0 or later.* Try: start 0.2.0"
    ):
        Shelf(store)


def test_of_several_backends_one_is_enabled() -> None:
    both = [RetainedBackend(storage="disk", enable=False), RetainedBackend(storage="memory")]
    assert RetainedSettings(backends=both).used_storage == "memory"
    assert RetainedSettings(storage="memory").used_storage == "memory"
    assert RetainedSettings().used_storage == "disk"
    with pytest.raises((ValueError, ConfigError), match="one of them must be enabled"):
        RetainedSettings(backends=[RetainedBackend(), RetainedBackend()])
