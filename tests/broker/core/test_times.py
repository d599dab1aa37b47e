"""Times as users see them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest

from broker.core.times import MILLISECONDS, rfc3339, rfc3339_of, rfc3339_or_none


@pytest.mark.parametrize(
    ("ns", "text"),
    [
        (0, "1970-01-01T00:00:00.000Z"),
        (1_700_000_000_999_999_999, "2023-11-14T22:13:20.999Z"),
        (-1, "1969-12-31T23:59:59.999Z"),
    ],
)
def test_a_time_has_milliseconds_and_a_zone(ns: int, text: str) -> None:
    assert rfc3339(ns) == text


def test_no_time_is_none() -> None:
    assert [rfc3339_or_none(time) for time in (None, 0)] == [None, None]
    assert rfc3339_or_none(1_700_000_000_001, MILLISECONDS) == "2023-11-14T22:13:20.001Z"


@pytest.mark.parametrize(
    ("moment", "text"),
    [
        (datetime(2026, 1, 31, 12, tzinfo=UTC), "2026-01-31T12:00:00.000Z"),
        (datetime(2026, 1, 31, 12), "2026-01-31T12:00:00.000Z"),
        (
            datetime(2026, 1, 31, 12, tzinfo=timezone(timedelta(hours=2))),
            "2026-01-31T10:00:00.000Z",
        ),
        (datetime(2026, 1, 31, 12, 0, 0, 1, tzinfo=UTC), "2026-01-31T12:00:00.000001Z"),
    ],
)
def test_a_moment_is_shown_in_utc_and_loses_nothing(moment: datetime, text: str) -> None:
    assert rfc3339_of(moment) == text
