"""Rows of a buffer on disk are the same whether they come from memory, a moment after they were put, or from disk."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bridges.resource.sending.buffer import Bounds, DiskBuffer
from bridges.resource.sending.item import Item
from broker.core.client import Client
from broker.core.clock import SystemClock
from broker.core.errors import SluiceError
from broker.core.message import Message
from broker.observe.metrics import Metrics
from broker.storage.memory import MemoryStore
from broker.storage.writer import Writer
from broker.streams.catalogue import LogKeys
from broker.streams.queues import StoredQueues
from rules.sql.values import UNDEFINED, Bits
from tests.support.examples import examples

values = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(2**63), 2**63 - 1),
        st.floats(allow_nan=False, allow_infinity=False),
        st.text(max_size=5),
        st.binary(max_size=5),
        st.just(UNDEFINED),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=6,
)
rows = st.dictionaries(st.sampled_from(("payload", "clientid", "n")), values, max_size=3)
properties = st.one_of(
    st.none(),
    st.fixed_dictionaries(
        {
            "Content-Type": st.just("text/plain"),
            "User-Property": st.lists(st.tuples(st.just("a"), st.just("b"))),
        }
    ),
)
clients = st.builds(
    Client, st.sampled_from(("c1", "c2")), st.sampled_from((None, "u")), st.just("::1"), st.just(1)
)
messages = st.builds(
    Message, st.just("in/1"), st.binary(max_size=5), st.sampled_from((0, 1)), st.booleans(), clients, st.just(7),
    properties, st.booleans(), st.sampled_from(((), ("r1",))), _id=st.sampled_from((None, "0" * 32)),
)  # fmt: skip


class Told:
    def __init__(self) -> None:
        self.rows = 0

    def succeeded(self, rows: int) -> None:
        self.rows += rows

    def failed(self, row: Any, message: Message, error: Exception) -> None:
        raise AssertionError(f"a row on disk is safe: {error}")


def shown(item: Item) -> Any:
    about = item.offset, item.size_bytes, item.attempts, item.is_done, item.is_fallback, item.settle
    return item.row, item.message, item.message.id, about


@given(st.lists(st.tuples(rows, messages, st.booleans()), min_size=1, max_size=6))
@settings(deadline=None, max_examples=examples(60))
def test_rows_from_memory_are_those_from_disk(
    put: list[tuple[dict[str, Any], Message, bool]],
) -> None:
    async def check() -> None:
        writer = Writer(MemoryStore(), asyncio.get_running_loop())
        queue = StoredQueues(LogKeys(writer), SystemClock(), Metrics()).open(
            "rows", max_records=1000, max_bytes=1 << 20
        )
        buffer = DiskBuffer(Bounds(1000, 1 << 20, False), SystemClock(), lambda *_: None, queue)
        told = Told()
        for row, message, is_fallback in put:
            buffer.put(row, message, told, is_fallback)
        assert told.rows == len(put)
        warm = await buffer.take(100)
        queue.rewind()
        cold = await DiskBuffer(buffer.bounds, SystemClock(), lambda *_: None, queue).take(100)
        assert [shown(item) for item in warm] == [shown(item) for item in cold]
        assert [item.offset for item in warm] == list(range(len(put)))
        for found, (_, message, _) in zip(warm, put, strict=True):
            assert found.message.changed("out", b"", 0, False, None).id == found.message.id, (
                "its identity goes with it"
            )
            assert message._id in (None, found.message.id), (
                "that of the publish itself is left alone"
            )
        buffer.done(warm)
        await writer.close()

    asyncio.run(check())


def test_what_cannot_be_kept_is_refused() -> None:
    async def check() -> None:
        writer = Writer(MemoryStore(), asyncio.get_running_loop())
        queue = StoredQueues(LogKeys(writer), SystemClock(), Metrics()).open(
            "rows", max_records=1000, max_bytes=1 << 20
        )
        buffer = DiskBuffer(Bounds(1000, 1 << 20, False), SystemClock(), lambda *_: None, queue)
        with pytest.raises(SluiceError, match="the row cannot be kept"):
            buffer.put({"bits": Bits(1, 1)}, Message("in", b"", 0, False, Client("c"), 1), Told())
        assert queue.records == 0
        await writer.close()

    asyncio.run(check())
