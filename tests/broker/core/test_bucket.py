"""Token buckets, by their properties: what is taken in a span, whatever comes when."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from broker.core.bucket import TokenBucket

_RATES = st.floats(0.1, 10_000, allow_nan=False)
_GAPS = st.lists(st.floats(0, 5, allow_nan=False), max_size=60)


@given(_RATES, st.floats(0, 1000), _GAPS)
def test_in_any_span_no_more_is_taken_than_the_burst_and_what_the_rate_brings(
    rate: float, burst: float, gaps: list[float]
) -> None:
    bucket, now_s, taken = TokenBucket(rate, burst, 0.0), 0.0, []
    for gap in gaps:
        now_s += gap
        if bucket.try_take(now_s):
            taken.append(now_s)
    for first in range(len(taken)):
        span_s = taken[-1] - taken[first]
        assert len(taken) - first <= max(burst, 1) + rate * span_s + 1e-6


@given(_RATES, _GAPS)
def test_whoever_comes_no_faster_than_the_rate_is_never_refused(
    rate: float, gaps: list[float]
) -> None:
    bucket, now_s = TokenBucket(rate, 1, 0.0), 0.0
    for gap in gaps:
        now_s += gap + 1 / rate + 1e-6
        assert bucket.try_take(now_s)


@given(_RATES, st.floats(1, 1000), st.lists(st.floats(0, 2000), min_size=1, max_size=20))
def test_what_was_spent_is_paid_when_the_debt_says_so(
    rate: float, burst: float, amounts: list[float]
) -> None:
    bucket, now_s = TokenBucket(rate, burst, 0.0), 0.0
    for amount in amounts:
        bucket.spend(amount, now_s)
        now_s += bucket.wait_s(now_s)
        assert bucket.wait_s(now_s) * rate < 1e-3
    assert sum(amounts) <= max(burst, 1) + rate * now_s + 1e-3


def test_a_clock_that_stands_still_or_goes_back_gives_nothing() -> None:
    bucket = TokenBucket(1, 1, 10.0)
    assert bucket.try_take(10.0)
    assert not bucket.try_take(10.0)
    assert not bucket.try_take(5.0)
    assert bucket.try_take(11.0)
    assert bucket.is_full(12.0)
