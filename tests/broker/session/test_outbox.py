"""What waits to be written: a turn of the loop writes as much as it may take, the rest in order in the turns after."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from broker.session import outbox
from broker.session.outbox import AT_ONCE, AT_ONCE_BYTES, Outbox, PendingWrites


class Loop:
    """Turns of an event loop, and what outboxes wrote in them."""

    def __init__(self) -> None:
        self._deferred: list[Callable[[], None]] = []
        self.left: list[bool] = []
        self.written: list[tuple[int, bytes]] = []
        self.pending = PendingWrites(self._deferred.append, self.left.append)

    def boxes(self, count: int) -> list[Outbox]:
        """Connections, by number."""
        return [Outbox(self.pending, partial(self._write, number)) for number in range(count)]

    def _write(self, number: int, data: bytes) -> None:
        self.written.append((number, data))

    def turn(self) -> list[tuple[int, bytes]]:
        """What one turn writes."""
        deferred, self._deferred[:] = self._deferred[:], []
        for work in deferred:
            work()
        written, self.written[:] = self.written[:], []
        return written


def test_a_turn_writes_to_so_many_connections_and_leaves_the_rest_in_order() -> None:
    loop = Loop()
    boxes = loop.boxes(2 * AT_ONCE + 1)
    for box in boxes:
        box.add(b"a")
    assert loop.turn() == [(number, b"a") for number in range(AT_ONCE)]
    boxes[0].add(b"b")
    boxes[-1].add(b"b")
    assert loop.turn() == [(number, b"a") for number in range(AT_ONCE, 2 * AT_ONCE)]
    assert loop.left == [True]
    assert loop.turn() == [(2 * AT_ONCE, b"ab"), (0, b"b")]
    assert loop.left == [True, False]
    assert loop.turn() == []


def test_a_turn_writes_so_many_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox, "AT_ONCE_BYTES", 100)
    loop = Loop()
    for box in loop.boxes(5):
        box.add(bytes(60))
    assert [len(loop.turn()) for _ in range(4)] == [2, 2, 1, 0]
    assert AT_ONCE_BYTES > 100


def test_what_is_flushed_before_the_turn_ends_is_written_once() -> None:
    loop = Loop()
    boxes = loop.boxes(AT_ONCE + 3)
    for box in boxes:
        box.add(b"a")
    loop.pending.flush()
    boxes[0].add(b"b")
    loop.pending.flush()
    boxes[1].add(b"c")
    assert loop.turn()[AT_ONCE:] == [*((AT_ONCE + n, b"a") for n in range(3)), (0, b"b"), (1, b"c")]
    assert loop.left == [True, False]
    assert loop.turn() == []


def test_bytes_that_connections_share_are_not_copied_for_each() -> None:
    loop = Loop()
    [box] = loop.boxes(1)
    large = bytes(100_000)
    for chunk in (large, large, b"a", b"b"):
        box.add(chunk)
    written = [data for _, data in loop.turn()]
    assert written == [large, large, b"ab"]
    assert written[0] is written[1] is large
    assert box.bytes_out == 200_002
