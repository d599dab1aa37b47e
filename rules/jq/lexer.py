"""Words of a jq program. Strings with interpolation become one token that holds the tokens of what is inserted."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final


class Unreadable(Exception):
    """The text is beyond this reader; jq itself may understand it. Says where, as a position in the text."""

    def __init__(self, what: str, at: int) -> None:
        self.at = at
        super().__init__(what)


@dataclass(frozen=True, slots=True)
class Token:
    """A word. ``kind``: ``number``, ``string``, ``field`` (``.name``), ``variable``, ``format``, ``name``, ``symbol``
    or ``end``. ``parts`` of a string are the token lists of its interpolations."""

    kind: str
    text: str
    at: int
    parts: tuple[tuple[Token, ...], ...] = ()


_NAME: Final = r"[A-Za-z_][A-Za-z_0-9]*(?:::[A-Za-z_][A-Za-z_0-9]*)*"
_WORDS: Final = re.compile(
    rf"""(?P<space>[ \t\r\n]+)
    |(?P<comment>\#)
    |(?P<field>\.[A-Za-z_][A-Za-z_0-9]*)
    |(?P<number>(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?)
    |(?P<variable>\$\s*{_NAME})
    |(?P<format>@[A-Za-z0-9_]+)
    |(?P<name>{_NAME})
    |(?P<string>")
    |(?P<symbol>\?//=?|\|=|//=|//|\+=|-=|\*=|/=|%=|==|!=|<=|>=|\.\.|[][(){{}}|,.:;?=<>+\-*/%])""",
    re.VERBOSE | re.ASCII,
)
_COMMENT_END: Final = re.compile(r"(?:[^\n\r\\]|\\\r?\n|\\.?)*")
_STRING_PIECE: Final = re.compile(r'[^"\\]+|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})')
MAX_NESTING: Final = 50


def tokens(program: str) -> tuple[Token, ...]:
    """The words of a program, with an ``end`` last.

    Raises:
        Unreadable: there is something in it that is no word of jq.
    """
    found, _ = _read(program, 0, closing=None, depth=0)
    return found


def _read(text: str, at: int, closing: str | None, depth: int) -> tuple[tuple[Token, ...], int]:
    """Words up to the end, or up to the parenthesis that closes an interpolation; and where reading stopped."""
    if depth > MAX_NESTING:
        raise Unreadable("strings nest too deep", at)
    found: list[Token] = []
    open_parentheses = 0
    while at < len(text):
        match = _WORDS.match(text, at)
        if match is None:
            raise Unreadable(f"{text[at]!r} is no word of jq", at)
        kind, word = match.lastgroup, match.group()
        if kind == "comment":
            end = _COMMENT_END.match(text, at)
            at = match.end() if end is None else end.end()
            continue
        if kind == "string":
            token, at = _string(text, at, depth)
            found.append(token)
            continue
        if closing is not None and word == "(":
            open_parentheses += 1
        elif closing is not None and word == ")":
            if open_parentheses == 0:
                return (*found, Token("end", "", at)), match.end()
            open_parentheses -= 1
        if kind == "variable":
            word = "$" + word[1:].strip()
        if kind is not None and kind != "space":
            found.append(Token(kind, word, at))
        at = match.end()
    if closing is not None:
        raise Unreadable("a string does not end", at)
    return (*found, Token("end", "", at)), at


def _string(text: str, start: int, depth: int) -> tuple[Token, int]:
    at, parts = start + 1, list[tuple[Token, ...]]()
    literal: list[str] = []
    while at < len(text):
        if text[at] == '"':
            return Token("string", "".join(literal), start, tuple(parts)), at + 1
        if text.startswith("\\(", at):
            inner, at = _read(text, at + 2, ")", depth + 1)
            parts.append(inner)
            continue
        piece = _STRING_PIECE.match(text, at)
        if piece is None:
            raise Unreadable("an escape that jq does not know", at)
        literal.append(piece.group())
        at = piece.end()
    raise Unreadable("a string does not end", start)
