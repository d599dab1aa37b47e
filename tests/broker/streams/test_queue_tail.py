"""What a queue keeps of its last records in memory: always those up to the end, bounded, each given once."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from broker.streams.queues import QueueTail

RECORDS, BYTES = 10, 100

steps = st.lists(
    st.one_of(
        st.tuples(st.just("commit"), st.lists(st.integers(1, 40), max_size=25)),
        st.tuples(st.just("without values"), st.lists(st.integers(1, 40), min_size=1, max_size=5)),
        st.tuples(st.just("take"), st.lists(st.just(0), max_size=12)),
        st.tuples(st.just("skip"), st.lists(st.just(0), max_size=5)),
    ),
    max_size=40,
)


@given(steps, st.integers(0, 5))
def test_it_gives_what_was_committed_in_order_within_its_bounds(
    told: list[tuple[str, list[int]]], begin: int
) -> None:
    tail, end, read = QueueTail(begin, RECORDS, BYTES), begin, begin
    sizes: dict[int, int] = {}
    for what, values in told:
        if what == "commit":
            added = [(str(offset), size) for offset, size in enumerate(values, end)]
            sizes |= dict(enumerate(values, end))
            tail.extend(end, added, end + len(values))
            end += len(values)
        elif what == "without values":
            tail.extend(end, [], end + len(values))
            end += len(values)
        elif what == "take":
            found = tail.take(read, len(values))
            assert found == [(offset, str(offset)) for offset in range(read, read + len(found))]
            read += len(found)
        elif read < tail.first_offset:
            read += min(len(values), tail.first_offset - read)  # from disk
        assert tail.first_offset <= end
        held = range(tail.first_offset, end)
        assert len(held) <= RECORDS
        assert sum(sizes.get(offset, 0) for offset in held) <= BYTES
        assert all(offset in sizes for offset in held)


def test_a_reader_that_is_behind_is_given_nothing_until_it_has_caught_up() -> None:
    tail = QueueTail(0, RECORDS, BYTES)
    tail.extend(0, [(number, 1) for number in range(30)], 30)
    assert tail.first_offset == 20
    assert tail.take(0, 5) == []
    assert tail.take(20, 2) == [(20, 20), (21, 21)]
    assert tail.take(25, 100) == [(number, number) for number in range(25, 30)]
    assert tail.first_offset == 30
