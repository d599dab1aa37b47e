"""Points of shorter intervals add up to those of longer ones, in memory and on disk."""

from __future__ import annotations

from functools import reduce

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.observe.metric_rows import (
    RESOLUTIONS,
    SERIES_BYTES,
    Point,
    Points,
    Resolution,
    add,
    joined,
    pack,
    unpack,
)

whole = st.integers(min_value=-(2**20), max_value=2**20).map(float)
"""Exact in every column, so that sums can be compared."""


@st.composite
def observed(draw: st.DrawFn) -> Point:
    """A value that was observed for some seconds."""
    value, seconds = draw(whole), float(draw(st.integers(min_value=1, max_value=60)))
    return seconds, value * seconds, value, value


rows = st.dictionaries(st.integers(min_value=0, max_value=2**32 - 1), observed(), max_size=20)


@given(st.lists(observed(), min_size=1), st.data())
def test_joined_points_keep_seconds_sum_minimum_and_maximum(
    points: list[Point], data: st.DataObject
) -> None:
    cut = data.draw(st.integers(min_value=0, max_value=len(points) - 1))
    parts = [reduce(joined, part) for part in (points[:cut], points[cut:]) if part]
    seconds, total, least, most = reduce(joined, parts)
    assert (seconds, total) == (
        sum(point[0] for point in points),
        sum(point[1] for point in points),
    )
    assert (least, most) == (min(point[2] for point in points), max(point[3] for point in points))
    assert least <= total / seconds <= most


@given(st.lists(rows))
def test_adding_rows_is_joining_their_points_by_series(parts: list[Points]) -> None:
    row: Points = {}
    for part in parts:
        add(row, part)
    for series in {series for part in parts for series in part}:
        assert row[series] == reduce(joined, [part[series] for part in parts if series in part])
    assert row.keys() == {series for part in parts for series in part}


@given(st.integers(min_value=0, max_value=2**40), rows)
def test_a_stored_row_reads_back(start_s: int, points: Points) -> None:
    stored = pack(start_s, points)
    assert unpack(stored, start_s) == points
    assert unpack(stored, start_s + 960) == {}
    assert len(stored) <= 8 + 24 * len(points) + 20


def test_no_row_has_no_points() -> None:
    assert unpack(None, 0) == {}


@pytest.mark.parametrize("resolution", RESOLUTIONS)
def test_as_many_intervals_as_rows_have_places_of_their_own(resolution: Resolution) -> None:
    step_s, count = resolution
    places = {
        resolution.place(1_800_000_000 // step_s * step_s + place * step_s)
        for place in range(count)
    }
    assert places == set(range(count))


def test_resolutions_reach_as_far_back_as_the_pages_say() -> None:
    assert [step_s for step_s, _ in RESOLUTIONS] == [1, 10, 60, 600]
    assert [
        one.span_s >= hours * 3600
        for one, hours in zip(RESOLUTIONS, (0.25, 3, 24, 168), strict=True)
    ] == [True] * 4
    assert SERIES_BYTES == 110_880
