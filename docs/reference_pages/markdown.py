"""Pages and tables in Markdown, as all pages of the reference have them."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Sequence
from typing import Final

_NOTE: Final = "<!-- Written by 'python -m docs.generate' from the code; change it there. -->"
_CODE: Final = re.compile(r"``(.+?)``")


def page(title: str, *parts: str) -> str:
    """A page of parts."""
    return "\n\n".join((f"# {title}", _NOTE, *parts))


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table; cells may be texts of several lines, and docstrings."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(map(_cell, line)) + " |" for line in lines)


def prose(docstring: str) -> str:
    """A docstring as a paragraph."""
    return _CODE.sub(r"`\1`", inspect.cleandoc(docstring))


def _cell(text: str) -> str:
    return re.sub(r"\s*\n\s*", " ", prose(text)).replace("|", "\\|")
