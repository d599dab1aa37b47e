"""QoS 0 messages that wait for a slow connection: the newest survive, and nothing gets lost uncounted."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from broker.session.late import Late, LateQueue

_PIECES = st.lists(st.tuples(st.integers(1, 8), st.integers(1, 400)), max_size=60)


@given(_PIECES, st.integers(1, 20), st.integers(1, 1000))
def test_it_keeps_the_newest_pieces_within_both_bounds_and_gives_back_the_others(
    pieces: list[tuple[int, int]], max_messages: int, max_bytes: int
) -> None:
    queue = LateQueue()
    items = [Late(bytes(size), packets) for packets, size in pieces]
    gone = [one for item in items for one in queue.add(item, max_messages, max_bytes)]
    messages, size_bytes = queue.messages, queue.size_bytes
    kept = queue.take_all()
    assert gone + kept == items
    assert messages == sum(item.packets for item in kept)
    assert size_bytes == sum(item.size_bytes for item in kept)
    assert len(kept) <= 1 or (messages <= max_messages and size_bytes <= max_bytes)
    assert bool(kept) == bool(items)
    assert (len(queue), queue.messages, queue.size_bytes) == (0, 0, 0)
