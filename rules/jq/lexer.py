"""Words of a jq program in order. A string is pieces, with the expressions it inserts between them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final


class Unreadable(Exception):
    """The text is beyond this reader; jq itself may understand it. Says where, as a position in the text."""

    def __init__(self, what: str, at: int) -> None:
        self.at = at
        super().__init__(what)


@dataclass(frozen=True, slots=True)
class Token:
    """A word. ``kind``: ``number``, ``string`` (a piece), ``field`` (``.name``), ``variable``, ``format``, ``name``,
    ``symbol`` or ``end``; ``unknown`` and ``unclosed`` for text that is not a word (``words``)."""

    kind: str
    text: str
    at: int


INSERT: Final = "\\("
_NAME: Final = r"[A-Za-z_][A-Za-z_0-9]*(?:::[A-Za-z_][A-Za-z_0-9]*)*"
_WORDS: Final = re.compile(
    rf"""(?P<space>[ \t\r\n]+|\#(?:[^\n\r\\]|\\\r?\n|\\.?)*)
    |(?P<field>\.[A-Za-z_][A-Za-z_0-9]*)
    |(?P<number>(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?)
    |(?P<variable>\$\s*{_NAME})
    |(?P<format>@[A-Za-z0-9_]+)
    |(?P<name>{_NAME})
    |(?P<string>")
    |(?P<symbol>\?//=?|\|=|//=|//|\+=|-=|\*=|/=|%=|==|!=|<=|>=|\.\.|[][(){{}}|,.:;?=<>+\-*/%])""",
    re.VERBOSE | re.ASCII,
)
# A string up to its end or an insertion. Possessive: one without an end would be tried in every way to split it.
_PIECE: Final = re.compile(r'((?:[^"\\]++|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*+)("|\\\()')


def tokens(program: str) -> list[Token]:
    """The words of a program, with an ``end`` last.

    Raises:
        Unreadable: there is something in it that is not a word of jq.
    """
    program_tokens = list(words(program))
    for token in program_tokens:
        if token.kind == "unclosed":
            raise Unreadable(
                "a string does not end, or has an escape that jq does not know", token.at
            )
        if token.kind == "unknown":
            raise Unreadable(f"{token.text!r} is not a word of jq", token.at)
    return [*program_tokens, Token("end", "", len(program))]


def words(text: str, at: int = 0) -> Iterator[Token]:
    """The words from an offset on; ``unknown`` for a character that begins none, ``unclosed`` for a string without an
    end, which is the last one."""
    open_parentheses: list[tuple[int, int]] = []
    """For each open string: the brackets open in its inserted expression, and its start."""
    while at < len(text):
        match = _WORDS.match(text, at)
        kind, word = (match.lastgroup or "", match.group()) if match else ("unknown", text[at])
        start = at
        at = at + len(word)
        string_start = start if kind == "string" else None
        if open_parentheses and word in ("(", ")"):
            count, opened = open_parentheses.pop()
            count += 1 if word == "(" else -1
            if count < 0:
                string_start = opened
            else:
                open_parentheses.append((count, opened))
        if kind not in ("space", "string"):
            yield Token(kind, "$" + word[1:].strip() if kind == "variable" else word, start)
        if string_start is not None:
            piece = _PIECE.match(text, at)
            if piece is None:
                yield Token("unclosed", '"', string_start)
                return
            yield Token("string", piece[1], at)
            at = piece.end()
            if piece[2] == INSERT:
                yield Token("symbol", INSERT, at - len(INSERT))
                open_parentheses.append((0, string_start))
    if open_parentheses:
        yield Token("unclosed", '"', open_parentheses[-1][1])
