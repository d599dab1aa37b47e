"""The page of promises names tests that are there."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "what-is-promised.md").read_text()


def test_every_promise_has_a_test() -> None:
    rows = re.findall(r"^\| (D\d+) \|(.*)\|$", PAGE, re.MULTILINE)
    assert [name for name, _ in rows] == [f"D{number}" for number in range(1, len(rows) + 1)]
    assert len(rows) > 10
    for _, row in rows:
        named = re.findall(r"`(tests/[^`]+\.py)`", row)
        assert named
        assert all((ROOT / path).exists() for path in named), named
