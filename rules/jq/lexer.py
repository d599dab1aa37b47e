"""Words of a jq program in order. A string is pieces, with what it inserts between them."""

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
    """A word. ``kind``: ``number``, ``string`` (a piece), ``field`` (``.name``), ``variable``, ``format``, ``name``,
    ``symbol`` or ``end``."""

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
_PIECE: Final = re.compile(r'((?:[^"\\]+|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*)("|\\\()')


def tokens(program: str) -> list[Token]:
    """The words of a program, with an ``end`` last.

    Raises:
        Unreadable: there is something in it that is no word of jq.
    """
    found: list[Token] = []
    open_parentheses: list[int] = []
    """How many are open in each insertion that is."""
    at = 0
    while at < len(program):
        match = _WORDS.match(program, at)
        if match is None:
            raise Unreadable(f"{program[at]!r} is no word of jq", at)
        kind, word = match.lastgroup or "", match.group()
        start, at = at, match.end()
        if open_parentheses and word == "(":
            open_parentheses[-1] += 1
        elif open_parentheses and word == ")":
            open_parentheses[-1] -= 1
        is_end_of_insertion = bool(open_parentheses) and open_parentheses[-1] < 0
        if kind not in ("space", "string"):
            found.append(Token(kind, "$" + word[1:].strip() if kind == "variable" else word, start))
        if is_end_of_insertion:
            open_parentheses.pop()
        if kind == "string" or is_end_of_insertion:
            piece = _PIECE.match(program, at)
            if piece is None:
                raise Unreadable("a string does not end, or has an escape that jq does not know", start)
            found.append(Token("string", piece[1], at))
            at = piece.end()
            if piece[2] == INSERT:
                found.append(Token("symbol", INSERT, at))
                open_parentheses.append(0)
    if open_parentheses:
        raise Unreadable("a string does not end", at)
    return [*found, Token("end", "", at)]
