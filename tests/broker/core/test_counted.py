"""Numbers of things in sentences."""

from __future__ import annotations

import pytest

from broker.core.kinds import counted


@pytest.mark.parametrize(
    ("number", "name", "text"),
    [
        (1, "broker", "1 broker"),
        (0, "row", "0 rows"),
        (2000, "row", "2,000 rows"),
        (2, "entry", "2 entries"),
        (3, "key", "3 keys"),
    ],
)
def test_a_number_of_things_is_in_the_plural_unless_it_is_one(
    number: int, name: str, text: str
) -> None:
    assert counted(number, name) == text
