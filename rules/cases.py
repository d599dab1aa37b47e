"""Test cases of a rule as they are sent and saved: an event, and what the SQL makes of it."""

from __future__ import annotations

from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

MAX_CASES: Final = 100
"""They run on every save."""


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class Expectation(_Model):
    """One of three: these rows, no result, or an error (any, or one whose text holds this)."""

    rows: list[dict[str, Any]] | None = None
    no_result: Literal[True] | None = None
    error: Literal[True] | str | None = None

    @model_validator(mode="after")
    def _is_one(self) -> Expectation:
        if len(self.model_fields_set) == 1 and self.outcome is not None:
            return self
        raise ValueError('must be one of {"rows": [...]}, {"no_result": true}, {"error": true} and {"error": "text"}')

    @property
    def outcome(self) -> str | None:
        """``rows``, ``no_result`` or ``error``, as the test API names them."""
        return next((name for name in ("rows", "no_result", "error") if getattr(self, name) is not None), None)


class TestCase(_Model):
    """A case: the columns of an event, as ``rules:test`` takes them, and what is expected."""

    __test__ = False  # not one of pytest's

    name: str = Field(min_length=1, max_length=200)
    event: dict[str, Any]
    expect: Expectation
