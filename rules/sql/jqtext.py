"""Where a jq program inside SQL ends."""

from __future__ import annotations

import re
from typing import Final

from rules.jq.lexer import INSERT, words

_SPACE = re.compile(r"[ \t\r\n]*")
_CLOSERS: Final = {"(": ")", INSERT: ")", "[": "]", "{": "}"}
_END_OF_IF: Final = "end"


class Unfinished(ValueError):
    """The keyword that ends a program is not found; ``offset`` is where the reader should look."""

    def __init__(self, message: str, offset: int, suggestion: str | None = None) -> None:
        super().__init__(message)
        self.offset, self.suggestion = offset, suggestion


def begin(sql: str, at: int) -> int:
    """The offset of a program's first character, after white space."""
    match = _SPACE.match(sql, at)
    return at if match is None else match.end()


def end(sql: str, start: int, word: str) -> int:
    """The offset of the keyword ``word`` (FROM, END) that ends the program beginning at ``start``.

    It is found outside strings, comments and brackets; an ``end`` that belongs to jq's own ``if`` is not it, nor is a
    field such as ``.from``.

    Raises:
        Unfinished: there is none.
    """
    pending: list[tuple[str, int]] = []  # what must close before the program can end, and where it was opened
    for token in words(sql, start):
        text = token.text
        if token.kind == "unclosed":
            pending.append((text, token.at))
        elif token.kind == "name":
            if text.upper() == word and not pending:
                return token.at
            if text == "if":
                pending.append((_END_OF_IF, token.at))
            elif text == _END_OF_IF and pending and pending[-1][0] == _END_OF_IF:
                pending.pop()
        elif token.kind == "symbol" and text in _CLOSERS:
            pending.append((_CLOSERS[text], token.at))
        elif token.kind == "symbol" and text in _CLOSERS.values():
            if not pending or pending[-1][0] != text:
                raise Unfinished(f"the jq program has a '{text}' that closes nothing", token.at)
            pending.pop()
    raise _unfinished(pending, start, word)


def _unfinished(pending: list[tuple[str, int]], start: int, word: str) -> Unfinished:
    if not pending:
        return Unfinished(f"the jq program that begins here is not followed by {word}", start)
    closer, opened = pending[-1]
    what = "a string" if closer == '"' else "an 'if'" if closer == _END_OF_IF else "a bracket"
    return Unfinished(f"the jq program has {what} that is never closed", opened, f"close it with {closer}")
