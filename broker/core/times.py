"""Times as users see them: RFC 3339 in UTC, with ``Z`` and milliseconds."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

MICROSECONDS: Final = 1_000
# Units in nanoseconds.
MILLISECONDS: Final = 1_000_000


def rfc3339(ns: int) -> str:
    """Nanoseconds since 1970, cut to milliseconds: ``2026-01-31T12:00:00.000Z``."""
    seconds, rest = divmod(ns, 1_000_000_000)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{rest // 1_000_000:03}Z"


def rfc3339_or_none(time: int | None, unit_ns: int = 1) -> str | None:
    """The same for a time in other units; None where there is no time, or 0, which means none."""
    return rfc3339(time * unit_ns) if time else None


def rfc3339_of(moment: datetime) -> str:
    """A moment, as UTC where it has no zone; with microseconds where it has such, since it may be a value of users."""
    in_utc = moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    exact = "microseconds" if in_utc.microsecond % 1000 else "milliseconds"
    return in_utc.isoformat(timespec=exact).removesuffix("+00:00") + "Z"
