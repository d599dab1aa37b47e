"""Where a jq program that stands in SQL ends: just enough of jq's lexical rules to pass over it."""

from __future__ import annotations

import re
from typing import Final

_SPACE = re.compile(r"[ \t\r\n]*")
_IN_STRING = re.compile(r'[^"\\]*')
_PIECE = re.compile(
    r"""
      (?P<skip>\#[^\n]* | \.\. | [.$@][^\W\d]\w* | \d[\w.]* | \s+)
    | (?P<word>[^\W\d]\w*)
    | (?P<quote>")
    | (?P<open>[(\[{])
    | (?P<close>[)\]}])
    """,
    re.VERBOSE,
)
_CLOSERS: Final = {"(": ")", "[": "]", "{": "}"}
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
    at = start
    while at < len(sql):
        if pending and pending[-1][0] == '"':
            at = _through_string(sql, at, pending)
            continue
        match = _PIECE.match(sql, at)
        if match is None:
            at += 1
            continue
        text = match.group()
        if match.lastgroup == "word":
            if text.upper() == word and not pending:
                return at
            _pass_word(text, at, pending)
        else:
            _pass_sign(match.lastgroup, text, at, pending)
        at = match.end()
    raise _unfinished(pending, start, word)


def _through_string(sql: str, at: int, pending: list[tuple[str, int]]) -> int:
    """The offset after the next piece of a string: text, an escape, the closing quote or the start of ``\\(``."""
    match = _IN_STRING.match(sql, at)
    at = at if match is None else match.end()
    if sql.startswith('"', at):
        pending.pop()
        return at + 1
    if sql.startswith("\\(", at):
        pending.append((")", at))
    return at + 2


def _pass_word(text: str, at: int, pending: list[tuple[str, int]]) -> None:
    if text == "if":
        pending.append((_END_OF_IF, at))
    elif text == _END_OF_IF and pending and pending[-1][0] == _END_OF_IF:
        pending.pop()


def _pass_sign(kind: str | None, text: str, at: int, pending: list[tuple[str, int]]) -> None:
    if kind == "quote":
        pending.append(('"', at))
    elif kind == "open":
        pending.append((_CLOSERS[text], at))
    elif kind == "close":
        if not pending or pending[-1][0] != text:
            raise Unfinished(f"the jq program has a '{text}' that closes nothing", at)
        pending.pop()


def _unfinished(pending: list[tuple[str, int]], start: int, word: str) -> Unfinished:
    if not pending:
        return Unfinished(f"the jq program that begins here is not followed by {word}", start)
    closer, opened = pending[-1]
    what = "a string" if closer == '"' else "an 'if'" if closer == _END_OF_IF else "a bracket"
    return Unfinished(f"the jq program has {what} that is never closed", opened, f"close it with {closer}")
