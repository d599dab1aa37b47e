"""SQL text to tokens, each with its place."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from broker.core.errors import Invalid, Problem

MAX_SQL_CHARACTERS: Final = 100_000

KEYWORDS: Final = frozenset(
    {"AND", "AS", "CASE", "ELSE", "ELSIF", "END", "FOREACH", "FROM", "DO", "IF", "IN", "INCASE", "NOT", "OR", "SELECT"}
    | {"THEN", "WHEN", "WHERE"}
)

_TOKEN = re.compile(
    r"""
      (?P<space>[ \t\r\n]+ | --[^\n]* | /\*.*?\*/)
    | (?P<number>[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?)
    | (?P<name>[^\W\d][\w$@~]*)
    | (?P<string>'(?:[^']|'')*')
    | (?P<quoted>"(?:[^"]|"")*")
    | (?P<op>\.\.|=~|!=|<>|<=|>=|\|\||[-+*/=<>()\[\],.;{}:])
    """,
    re.VERBOSE | re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class Token:
    """``kind`` is ``keyword``, ``name``, ``quoted``, ``string``, ``number``, ``op`` or ``end``.

    ``text`` is the value: a keyword in capitals, a string without its quotes. ``line`` and ``column`` count from 1.
    """

    kind: str
    text: str
    line: int
    column: int

    def __str__(self) -> str:
        return "the end of the text" if self.kind == "end" else f"'{self.text}'"


def syntax_error(message: str, line: int, column: int, suggestion: str | None = None) -> Invalid:
    """What the parser and lexer raise."""
    return Invalid(
        "the SQL does not parse",
        [Problem(message, pointer="/sql", line=line, column=column, suggestion=suggestion)],
        code="sql_syntax",
    )


def tokens(sql: str) -> list[Token]:
    """All tokens, the last of kind ``end``.

    Raises:
        Invalid: with line and column of the first character that starts no token.
    """
    if len(sql) > MAX_SQL_CHARACTERS:
        raise syntax_error(f"the text is longer than {MAX_SQL_CHARACTERS} characters", 1, 1)
    found: list[Token] = []
    at, line, line_start = 0, 1, 0
    while at < len(sql):
        match = _TOKEN.match(sql, at)
        if match is None:
            raise _stray(sql, at, line, at - line_start + 1)
        text = match.group()
        if match.lastgroup != "space":
            found.append(_token(match.lastgroup or "", text, line, at - line_start + 1))
        breaks = text.count("\n")
        if breaks:
            line += breaks
            line_start = at + text.rindex("\n") + 1
        at = match.end()
        if match.lastgroup == "number" and at < len(sql) and (sql[at].isalpha() or sql[at] == "_"):
            raise syntax_error(
                f"'{text}{sql[at]}' is neither a number nor a name",
                line,
                at - line_start + 1,
                "a name begins with a letter",
            )
    found.append(Token("end", "", line, len(sql) - line_start + 1))
    return found


def _token(kind: str, text: str, line: int, column: int) -> Token:
    if kind == "name" and text.upper() in KEYWORDS:
        return Token("keyword", text.upper(), line, column)
    if kind == "string":
        return Token(kind, text[1:-1].replace("''", "'"), line, column)
    if kind == "quoted":
        return Token(kind, text[1:-1].replace('""', '"'), line, column)
    return Token(kind, text, line, column)


def _stray(sql: str, at: int, line: int, column: int) -> Invalid:
    character = sql[at]
    if character in "'\"":
        return syntax_error(f"the quote {character} is never closed", line, column)
    if sql.startswith("/*", at):
        return syntax_error("the comment /* is never closed", line, column)
    hint = {"!": "write != or <>", "%": "write mod", "&": "write AND, or bitand(a, b)", "|": "write OR, or bitor(a, b)"}
    return syntax_error(f"unexpected character {character!r}", line, column, hint.get(character))
