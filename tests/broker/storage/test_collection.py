"""Collections say what was put last, and after a failed commit what the store has."""

import asyncio
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from broker.core.errors import Unavailable
from broker.storage.collection import (
    RAW,
    TEXT,
    Codec,
    Collection,
    LiveCollection,
    ResidentCollection,
    RetriedCollection,
)
from broker.storage.memory import MemoryStore
from broker.storage.store import Batch, Committed
from broker.storage.writer import Writer

Changes = list[tuple[str, int | None]]
NUMBERS = Codec[int](lambda number: b"%d" % number, int)
KEYS = ("a", "b", "c")
Group = tuple[Changes, bool]
"""Changes in the order in which they are made, and whether their commit fails."""

groups = st.lists(
    st.tuples(
        st.lists(st.tuples(st.sampled_from(KEYS), st.none() | st.integers(0, 9)), max_size=5),
        st.booleans(),
    ),
    max_size=6,
)


class FailingStore(MemoryStore):
    """A store whose commits fail when their turn says so."""

    def __init__(self, fails: list[bool]) -> None:
        super().__init__()
        self._fails = iter(fails)

    def commit(self, batch: Batch) -> Committed:
        if next(self._fails, False):
            raise Unavailable("disk full")
        return super().commit(batch)


def run(main: Coroutine[Any, Any, None]) -> None:
    asyncio.run(main)


async def settled(writer: Writer) -> None:
    with suppress(Unavailable):
        await writer.committed()


def apply(values: dict[str, int], changes: Changes) -> None:
    for key, value in changes:
        if value is None:
            values.pop(key, None)
        else:
            values[key] = value


@given(groups, st.booleans())
@example([([("a", 1)], False), ([("a", 2), ("a", None)], True), ([("a", 3)], True)], True)
def test_a_collection_has_what_was_put_and_the_store_what_was_committed(
    plan: list[Group], overlaps: bool
) -> None:
    """``overlaps``: a group gathers while the one before is written, and is changed before that one's end is known."""
    plan = [group for group in plan if group[0]]

    async def main() -> None:
        writer = Writer(FailingStore([fails for _, fails in plan]), asyncio.get_running_loop())
        index: dict[str, int] = {}

        def changed(key: str, value: int | None) -> None:
            apply(index, [(key, value)])

        resident = ResidentCollection(writer, b"resident/", TEXT, NUMBERS, changed)
        counted: dict[str, int] = {}

        def gone(key: str, value: int | None, stored: int | None) -> None:
            assert counted.get(key) == value
            apply(counted, [(key, stored)])

        on_disk = LiveCollection(writer, b"disk/", TEXT, NUMBERS, gone)
        committed: dict[str, int] = {}
        for number, (changes, fails) in enumerate(plan):
            apply(committed, [] if fails else changes)
            for key, value in changes:
                apply(counted, [(key, value)])
                resident.put(key, value)
                on_disk.put(key, value)
                assert resident.get(key) == on_disk.get(key) == value
            if overlaps and number % 2 == 0:
                # the group is sealed, and the next one gathers while it is written
                await asyncio.sleep(0)
                continue
            await settled(writer)
        await settled(writer)
        for key in KEYS:
            assert (
                resident.get(key)
                == on_disk.get(key)
                == on_disk.committed(key)
                == committed.get(key)
            )
        assert dict(on_disk.stored()) == dict(resident.stored()) == committed == index == counted
        assert {key: resident.get(key) for key in resident} == committed
        assert len(resident) == len(committed)
        restarted = ResidentCollection(writer, b"resident/", TEXT, NUMBERS)
        restarted.load()
        assert {key: restarted.get(key) for key in restarted} == committed
        await writer.close()

    run(main())


@given(groups, st.booleans())
@example([([("a", 1)], True), ([("b", 2)], False)], True)
def test_each_group_that_is_committed_has_all_retried_changes_before_it(
    plan: list[Group], overlaps: bool
) -> None:
    async def main() -> None:
        store = FailingStore([fails for _, fails in plan] + [False] * len(plan))
        writer = Writer(store, asyncio.get_running_loop())
        retried = RetriedCollection(writer, b"r/", TEXT, NUMBERS)
        values: dict[str, int] = {}
        sealed: list[dict[str, int]] = []
        commit, differing = store.commit, list[object]()

        def seal() -> None:
            writer.put(b"group", b"%d" % len(sealed))
            sealed.append(dict(values))

        def checked(batch: Batch) -> Committed:
            committed = commit(batch)
            expected = sealed[int(batch.puts[b"group"] or 0)]
            if (stored := dict(retried.stored())) != expected:
                differing.append((stored, expected))
            return committed

        writer.before_commit(seal)
        store.commit = checked  # type: ignore[method-assign]  # looks at what each leaves behind
        for number, (changes, _) in enumerate(plan):
            apply(values, changes)
            for key, value in changes:
                retried.put(key, value)
                assert retried.get(key) == value
            if overlaps and number % 2 == 0:
                await asyncio.sleep(0)
            else:
                await settled(writer)
        await settled(writer)
        while retried.waiting_count:
            writer.touch()
            await settled(writer)
        assert dict(retried.stored()) == values
        assert differing == []
        await writer.close()

    run(main())


def test_keys_are_read_in_their_order_some_at_a_time() -> None:
    async def main() -> None:
        writer = Writer(MemoryStore(), asyncio.get_running_loop())
        collection, other = (
            Collection(writer, b"k/", TEXT, RAW),
            Collection(writer, b"k0/", TEXT, RAW),
        )
        for key in ("b", "a", "ab", "c"):
            collection.put(key, b"")
        other.put("a", b"")
        await writer.committed()
        assert collection.keys_from(None, 2) == ["a", "ab"]
        assert collection.keys_from("ab", 9) == ["b", "c"]
        assert collection.keys_from("c", 1) == []
        await writer.close()

    run(main())
