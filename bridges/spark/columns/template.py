"""The template of the names of member tables: text and columns, such as ``telemetry_${site}``."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, Self

from broker.core.placeholders import ROW_PLACEHOLDER

MOST_TABLES: Final = 1000
_TEXT: Final = re.compile(r"[A-Za-z0-9_-]*")
_BEGIN: Final = re.compile(r"[A-Za-z0-9]")


@dataclass(frozen=True, slots=True)
class NameTemplate:
    """``parts`` are text, a column, text, a column and so on, text last."""

    text: str
    parts: tuple[str, ...]

    @classmethod
    def parse(cls, text: str) -> Self:
        """The template of a user's text.

        Raises:
            ValueError: it is not a template of names; the text is a sentence.
        """
        parts = tuple(ROW_PLACEHOLDER.split(text))
        template = cls(text, parts)
        if not template.columns or any(_is_no_column(name) for name in template.columns):
            raise ValueError(
                f"expected columns as ${{NAME}}, such as telemetry_${{site}}, got {text!r}"
            )
        if not all(_TEXT.fullmatch(part) for part in parts[::2]) or not _BEGIN.match(text):
            raise ValueError(
                f"expected letters, digits, '_' and '-' around the columns, and a letter or a digit first, got {text!r}"
            )
        return template

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that are in it, in order."""
        return self.parts[1::2]


def _is_no_column(name: str) -> bool:
    """True if it is the whole row, a path, or a dollar sign."""
    return not name or "." in name or ":" in name or name == "$"
