"""Rows of the metrics history: what every series did in one interval, at four resolutions.

A value is the level of a gauge or the rate of a counter. A point of a series is ``(seconds, total, least, most)``: for
how long the series was observed in the interval, the sum of value times seconds, and the lowest and the highest value.
``total / seconds`` is the mean, and the points of shorter intervals add up to the point of a longer one.

The rows of a resolution are a ring: each has its place by its time, and replaces the row that was there. So their
number is fixed, however long the broker runs and whatever its clock does. A point takes 24 bytes before compression.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from struct import Struct
from typing import Any, Final, NamedTuple
from zlib import compress, decompress

Point = tuple[float, float, float, float]
# Points by the number of the series.
Points = dict[int, Point]
# The number of a series that every row has: its seconds are those that the broker ran in the interval.
RAN: Final = 0

_TIME: Final = Struct("=q")
_COLUMNS: Final = ("f", "d", "f", "f")
_POINT_BYTES: Final = 24
# Level of compression. Most columns hold few values: rows become a quarter as large, in 20 µs for 100 series.
_LEVEL: Final = 1
# Values beyond it are left out: they do not fit a point.
HIGHEST: Final = 1e38


class Resolution(NamedTuple):
    """Rows of ``step_s`` seconds each, and how many of them are kept."""

    step_s: int
    rows: int

    @property
    def span_s(self) -> int:
        """Time that the rows reach back."""
        return self.step_s * self.rows

    def start_of(self, second: int) -> int:
        """When the interval begins that a second is in."""
        return second - second % self.step_s

    def place(self, start_s: int) -> int:
        """Index in the ring of the row of an interval."""
        return start_s // self.step_s % self.rows


# 15 minutes, 3 hours, 24 hours and 7 days, and some rows more: a range of exactly so long has its first points too.
SECONDS, *COARSER = RESOLUTIONS = (
    Resolution(1, 960),
    Resolution(10, 1140),
    Resolution(60, 1500),
    Resolution(600, 1020),
)

_ROWS: Final = sum(resolution.rows for resolution in RESOLUTIONS)
# Bytes of a series when all rows have a point of it.
SERIES_BYTES: Final = _ROWS * _POINT_BYTES
# Bytes of all rows at most without series: their keys and times, and the overhead of compression if it gains nothing.
FIXED_BYTES: Final = _ROWS * (_POINT_BYTES + 100)


def add(points: Points, more: Mapping[int, Point]) -> None:
    """Add what was observed in a part of the interval."""
    if not points:
        points.update(more)
        return
    for series, new in more.items():
        old = points.get(series)
        points[series] = new if old is None else joined(old, new)


def joined(point: Point, other: Point) -> Point:
    """The point of both times together."""
    return (
        point[0] + other[0],
        point[1] + other[1],
        point[2] if point[2] < other[2] else other[2],
        point[3] if point[3] > other[3] else other[3],
    )


def pack(start_s: int, points: Mapping[int, Point]) -> bytes:
    """A row as it is stored: its time, the numbers of the series, and a column for each member of the points."""
    columns = [
        array(kind, column)
        for kind, column in zip(_COLUMNS, zip(*points.values(), strict=True), strict=False)
    ]
    return _TIME.pack(start_s) + compress(b"".join([array("I", points), *columns]), _LEVEL)


def unpack(row: bytes | None, start_s: int) -> Points:
    """The points of a stored row; none where there is no row, or one of another time."""
    if row is None or _TIME.unpack_from(row)[0] != start_s:
        return {}
    whole = memoryview(decompress(memoryview(row)[_TIME.size :]))
    count = len(whole) // _POINT_BYTES
    at = 0
    columns: list[Any] = []
    for kind in ("I", *_COLUMNS):
        end = at + count * array(kind).itemsize
        columns.append(whole[at:end].cast(kind))
        at = end
    numbers, *members = columns
    return dict(zip(numbers, zip(*members, strict=True), strict=True))
