"""Places in a stream, as people write them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from broker.config.places import parse_place


@pytest.mark.parametrize(
    ("value", "place"),
    [
        (7, 7),
        ("7", 7),
        ("2026-01-31T12:00:00Z", datetime(2026, 1, 31, 12, tzinfo=UTC)),
        ("0:100,12:200", {0: 100, 12: 200}),
        ({"0": 100, "1": "200"}, {0: 100, 1: 200}),
    ],
)
def test_an_offset_a_time_and_offsets_by_shard_are_places(value: Any, place: Any) -> None:
    assert parse_place(value) == place


@pytest.mark.parametrize(
    "value", [-1, True, "", "soon", "2026-01-31T12:00:00", "0:", "0:1,", {}, {"a": 1}, {"0": -1}]
)
def test_anything_else_is_none(value: Any) -> None:
    with pytest.raises(ValueError, match="expected an offset, a time such as"):
        parse_place(value)
