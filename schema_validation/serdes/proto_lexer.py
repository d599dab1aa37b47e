"""Text of ``.proto`` files to tokens, each with its place."""

from __future__ import annotations

import re
from dataclasses import dataclass

from schema_validation.serdes.base import MAX_SOURCE_BYTES, SourceError

_TOKEN = re.compile(
    r"""(?P<space>\s+|//[^\n]*|/\*.*?\*/)
    |(?P<name>[A-Za-z_][A-Za-z0-9_]*)
    |(?P<float>(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?|[0-9]+[eE][+-]?[0-9]+)
    |(?P<integer>0[xX][0-9a-fA-F]+|[0-9]+)
    |(?P<string>"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')
    |(?P<mark>[{}()\[\]<>=;,.:+\-/])""",
    re.VERBOSE | re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class Token:
    """``kind`` is name, float, integer, string, mark or end. ``line`` and ``column`` count from 1."""

    kind: str
    text: str
    line: int
    column: int


def tokenize(source: str) -> list[Token]:
    """The tokens of a file, closed by one of kind ``end``.

    Raises:
        SourceError: a character that begins no token.
    """
    if len(source) > MAX_SOURCE_BYTES:
        raise SourceError(f"a file has at most {MAX_SOURCE_BYTES} bytes")
    tokens: list[Token] = []
    at = 0
    line = 1
    line_start = 0
    while at < len(source):
        match = _TOKEN.match(source, at)
        if match is None:
            raise SourceError(f"unexpected character {source[at]!r}", line, at - line_start + 1)
        if match.lastgroup != "space":
            tokens.append(Token(str(match.lastgroup), match[0], line, at - line_start + 1))
        breaks = match[0].count("\n")
        if breaks:
            line += breaks
            line_start = at + match[0].rindex("\n") + 1
        at = match.end()
    tokens.append(Token("end", "", line, at - line_start + 1))
    return tokens
