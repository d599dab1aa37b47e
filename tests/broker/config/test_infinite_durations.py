"""Durations without an end: where a setting takes one, it is saved and read again; nothing else becomes one."""

from __future__ import annotations

from math import inf

import pytest
from pydantic import ValidationError

from broker.auth.authorize import AuthorizationOptions
from broker.config.assignments import line_of
from broker.config.units import parse_duration_s


def test_digits_do_not_become_infinite() -> None:
    assert parse_duration_s("infinity") == inf
    for text in ("9" * 400, "9" * 308 + "w", "1h" + "9" * 400 + "ms"):
        with pytest.raises(ValueError, match="digits is too large"):
            parse_duration_s(text)


def test_an_infinite_duration_is_saved_as_it_is_written() -> None:
    line = line_of({("a", "b"): {"ttl": inf, "list": [inf, 1.5]}})
    assert line == 'a.b = {"ttl": "infinity", "list": ["infinity", 1.5]}\n'
    assert parse_duration_s("infinity") == inf


@pytest.mark.parametrize("ttl", ["infinity", inf, "9" * 400])
def test_decisions_are_not_kept_for_ever(ttl: object) -> None:
    with pytest.raises(ValidationError):
        AuthorizationOptions.model_validate({"cache": {"ttl": ttl}})
