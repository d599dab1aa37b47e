"""Times of the last seconds, under a clock that the test moves."""

from __future__ import annotations

from broker.observe.timing import RecentTiming

S = 1_000_000_000


def test_recent_times_are_of_the_last_ten_to_twenty_seconds() -> None:
    clock = [0]
    timing = RecentTiming(lambda: clock[0])
    assert timing.quantile_s(0.5) is None
    timing.note(1000)
    clock[0] = 15 * S
    timing.note(1_000_000)
    assert [timing.quantile_s(share) for share in (0.5, 1.0)] == [1.024e-6, 1.048576e-3]
    clock[0] = 25 * S
    assert timing.quantile_s(0.01) == 1.048576e-3
    clock[0] = 40 * S
    assert timing.quantile_s(0.5) is None
