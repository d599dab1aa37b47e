"""What of the session log waits for one session, beside a plain list of it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from broker.session.delivery import Delivery
from broker.session.log_queue import LogQueue, Shed

_MOST = 20
_STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(1, 5)),
        st.tuples(st.just("take"), st.integers(1, 30)),
        st.tuples(st.just("below"), st.integers(0, 60)),
    ),
    max_size=120,
)


@given(_STEPS)
def test_a_share_counts_what_a_list_would_hold_and_never_more_than_may(
    steps: list[tuple[str, int]],
) -> None:
    """``waiting`` holds the offsets that wait."""
    share, waiting, offset, lost, shed_in_all = LogQueue(), [], 0, 0, 0
    for verb, number in steps:
        if verb == "add":
            offset += number  # messages for others stand in between
            share.add(offset, 10)
            waiting.append(offset)
            shed = share.shed(_MOST, 1 << 30)
            lost += max(0, len(waiting) - _MOST)
            waiting = waiting[-_MOST:]
            shed_in_all += shed.messages
        elif verb == "take":
            read = [one for one in waiting if one >= share.next_offset][:number]
            share.to_skip = 0
            share.take(len(read), 10 * len(read))
            waiting = waiting[len(read) :]
            share.next_offset = waiting[0] if waiting else offset + 1
        else:
            # the log's end is the most that is asked for
            shed = share.shed_below(min(number, offset + 1))
            shed_in_all += shed.messages
            lost += shed.messages
            waiting = waiting[shed.messages :]
            assert not waiting or waiting[0] >= min(number, offset)
        assert share.messages == len(waiting)
        assert shed_in_all == lost
        assert share.messages <= _MOST
        if waiting:
            assert share.next_offset <= waiting[0]
            between = [one for one in range(share.next_offset, waiting[0]) if one]
            assert share.to_skip <= len(between) + lost


def test_bytes_are_a_bound_too_and_the_newest_message_always_stays() -> None:
    share = LogQueue()
    for offset in range(10):
        share.add(offset, 100)
    assert share.shed(1000, 250) == Shed(8, begin=0, skipped=0, moved_on=True)
    assert share.next_offset == 8
    assert (share.messages, share.size_bytes, share.to_skip) == (2, 200, 0)
    share.add(10, 10_000)
    share.shed(1000, 250)
    assert share.messages == 1


def test_what_is_put_back_is_the_oldest() -> None:
    share = LogQueue()
    share.add(10, 5)
    share.put_back(3, 2, 10)
    assert share.shed_below(4) == Shed(2, begin=3, skipped=0, moved_on=True)
    assert share.next_offset == 10
    assert (share.messages, share.size_bytes) == (1, 5)


def test_what_was_passed_over_before_is_told_with_what_is_passed_over_now() -> None:
    share = LogQueue(next_offset=10)
    share.add(10, 100, messages=5)
    assert share.shed(3, 1 << 30) == Shed(2, begin=10, skipped=0, moved_on=False)
    assert share.shed_below(20) == Shed(3, begin=10, skipped=2, moved_on=True)
    assert (share.messages, share.to_skip, share.next_offset) == (0, 0, 20)


def test_what_is_read_leaves_out_what_was_to_be_passed_over() -> None:
    share = LogQueue(is_behind=True)
    share.add(0, 100, messages=5)
    share.shed(3, 1 << 30)
    read = [Delivery(None, 1, False, (), offset) for offset in range(5)]
    assert share.read_on(read[:1], 1, is_end=False) == []
    assert share.read_on(read[1:], 5, is_end=True) == read[2:]
    assert (share.messages, share.is_behind, share.next_offset) == (0, False, 5)
