"""Text to tokens.

::

    name    = letter { letter | digit | "_" | "-" | "." }
    integer = [+-] digits          float = [+-] digits "." digits [ "e" [+-] digits ]
    string  = '...' or "..."       no escapes; may hold the other quote, line ends, any character
    space   = blank, tab, newline  (a carriage return is none)
"""

from __future__ import annotations

import re
from typing import NamedTuple

from transforms.variform.errors import CompileError

# Longest expression, in UTF-8.
MAX_BYTES = 8 * 1024

_TOKEN = re.compile(
    r"""(?P<space>[ \t\n]+)
    |(?P<name>[A-Za-z][A-Za-z0-9_.\-]*)
    |(?P<float>[+-]?[0-9]+\.[0-9]+(?:[eE][+-]?[0-9]+)?)
    |(?P<integer>[+-]?[0-9]+)
    |(?P<string>'[^']*'|"[^"]*")
    |(?P<mark>[(),\[\]])""",
    re.VERBOSE,
)


class Token(NamedTuple):
    """``kind`` is name, float, integer, string, mark or end; ``at`` is the offset of its first character."""

    kind: str
    text: str
    at: int


def tokenize(source: str) -> list[Token]:
    """The tokens of an expression, closed by one of kind ``end``.

    Raises:
        CompileError: a character that begins no token, a string without end, or too long a string.
    """
    if len(source) > MAX_BYTES or len(source.encode("utf-8", "replace")) > MAX_BYTES:
        raise CompileError(f"an expression has at most {MAX_BYTES} bytes", 1, 1)
    tokens: list[Token] = []
    at = 0
    while at < len(source):
        match = _TOKEN.match(source, at)
        if match is None:
            raise _unknown(source, at)
        if match.lastgroup != "space":
            tokens.append(Token(str(match.lastgroup), match[0], at))
        at = match.end()
    tokens.append(Token("end", "", len(source)))
    return tokens


def place(source: str, at: int) -> tuple[int, int]:
    """Line and column, from 1, of an offset."""
    return source.count("\n", 0, at) + 1, at - source.rfind("\n", 0, at)


def error_at(source: str, at: int, message: str, suggestion: str | None = None) -> CompileError:
    """A ``CompileError`` at an offset of the source."""
    line, column = place(source, at)
    return CompileError(message, line, column, suggestion)


def _unknown(source: str, at: int) -> CompileError:
    character = source[at]
    if character in "'\"":
        return error_at(source, at, f"the string that begins here has no closing {character}")
    if source.startswith("${", at):
        return error_at(source, at, "'${' has no meaning here", "write the variable without ${ }")
    if character in "+-*/=<>!%&|":
        return error_at(
            source, at, f"there is no operator {character!r}", "use functions, as num_gt(a, b)"
        )
    return error_at(source, at, f"unexpected character {character!r}")
