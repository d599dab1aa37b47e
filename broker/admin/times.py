"""Times as answers show them."""

from __future__ import annotations

from datetime import UTC, datetime


def moment(ns: int) -> str | None:
    """Nanoseconds since 1970 as RFC 3339 in UTC with milliseconds; None for 0, which is never."""
    if not ns:
        return None
    return datetime.fromtimestamp(ns / 1e9, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
