"""QoS 0 messages that wait for a slow connection: the newest survive, and nothing gets lost uncounted."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from broker.session.qos0_queue import Qos0Item, Qos0Queue

_PIECES = st.lists(st.tuples(st.integers(1, 8), st.integers(1, 400)), max_size=60)


@given(_PIECES, st.integers(1, 20), st.integers(1, 1000))
def test_it_keeps_the_newest_pieces_within_both_bounds_and_gives_back_the_others(
    pieces: list[tuple[int, int]], max_messages: int, max_bytes: int
) -> None:
    queue = Qos0Queue()
    items = [Qos0Item(bytes(size), packets) for packets, size in pieces]
    gone = [one for item in items for one in queue.add(0, item, max_messages, max_bytes)]
    messages, size_bytes = queue.messages, queue.size_bytes
    kept = queue.take()
    assert gone + kept == items
    assert messages == sum(item.packets for item in kept)
    assert size_bytes == sum(item.size_bytes for item in kept)
    assert len(kept) <= 1 or (messages <= max_messages and size_bytes <= max_bytes)
    assert bool(kept) == bool(items)
    assert (len(queue), queue.messages, queue.size_bytes) == (0, 0, 0)


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 8)), max_size=40))
def test_what_waits_is_taken_when_its_turn_has_come_and_that_of_those_before_it(
    pieces: list[tuple[int, int]],
) -> None:
    queue, turn, expected = Qos0Queue(), 0, list[tuple[int, Qos0Item]]()
    for step, packets in pieces:
        turn += step
        expected.append((turn, Qos0Item(b"x", packets)))
        assert queue.add(*expected[-1], 1_000_000, 1_000_000) == []
    taken = 0
    for now in range(-1, turn + 1):
        found = queue.take(now)
        assert found == [item for at, item in expected[taken:] if at <= now]
        taken += len(found)
        assert queue.messages == sum(item.packets for _, item in expected[taken:])
    assert (taken, queue.size_bytes) == (len(expected), 0)
