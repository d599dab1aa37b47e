"""SQL text to tokens, each with its place.

Tokens are made as they are asked for, since what follows the word JQ is a program in another language
(``Tokens.program``).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from broker.core.errors import Invalid, Problem
from rules.jq.lexer import INSERT, words

MAX_SQL_CHARACTERS: Final = 100_000
# Maximum words and signs, which are compiled in half a second.
MAX_TOKENS: Final = 20_000

KEYWORDS: Final = frozenset(
    {
        "AND",
        "AS",
        "CASE",
        "ELSE",
        "ELSIF",
        "END",
        "FOREACH",
        "FROM",
        "DO",
        "IF",
        "IN",
        "INCASE",
        "NOT",
        "OR",
        "SELECT",
    }
    | {"THEN", "WHEN", "WHERE"}
)

# Characters of the SQL that a message repeats.
_MAX_SHOWN: Final = 60

_TOKEN = re.compile(
    r"""
      (?P<space>[ \t\r\n]+)
    | (?P<comment>--[^\n]* | \#\#[^\n]* | /\*.*?\*/)
    | (?P<number>[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?)
    | (?P<name>[^\W\d][\w$@~]*)
    | (?P<string>'(?:[^']|'')*')
    | (?P<quoted>"(?:[^"]|"")*" | `(?:[^`]|``)*`)
    | (?P<op>\.\.|=~|!=|<>|<=|>=|\|\||[-+*/=<>()\[\],.;{}:])
    """,
    re.VERBOSE | re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class Token:
    """``kind`` is ``keyword``, ``name``, ``quoted``, ``string``, ``number``, ``op`` or ``end``.

    ``text`` is the value: a keyword in capitals, a string without its quotes. ``line`` and ``column`` count from 1,
    ``end`` is the offset of what follows.
    """

    kind: str
    text: str
    line: int
    column: int
    end: int = 0

    def __str__(self) -> str:
        return "the end of the text" if self.kind == "end" else f"'{shortened(self.text)}'"


def shortened(text: str) -> str:
    """A text as messages show it."""
    return text if len(text) <= _MAX_SHOWN else text[:_MAX_SHOWN] + "..."


def syntax_error(message: str, line: int, column: int, suggestion: str | None = None) -> Invalid:
    """The error of parser and lexer."""
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
    sql_tokens = Tokens(sql)
    count = 0
    while sql_tokens[count].kind != "end":
        count += 1
    return [sql_tokens[at] for at in range(count + 1)]


class Tokens:
    """The tokens of a text by number. The last is of kind ``end``; there is no token after it.

    Raises:
        Invalid: at once when the text is too long or not Unicode; when a token is asked for and there is none at its
            place, with that place.
    """

    def __init__(self, sql: str) -> None:
        if len(sql) > MAX_SQL_CHARACTERS:
            raise syntax_error(f"the text is longer than {MAX_SQL_CHARACTERS} characters", 1, 1)
        self.sql = sql
        self.comments: list[Token] = []
        self._found: list[Token] = []
        self._offset = 0
        self._line = 1
        self._line_start = 0
        try:
            sql.encode()
        except UnicodeEncodeError as error:
            raise syntax_error(
                "the text is not Unicode: half of a surrogate pair", *self._place(error.start)
            ) from None

    def __getitem__(self, number: int) -> Token:
        while len(self._found) <= number:
            if len(self._found) > MAX_TOKENS:
                place = self._line, self._offset - self._line_start + 1
                raise syntax_error(f"the text has more than {MAX_TOKENS} words and signs", *place)
            self._found.append(self._next())
        return self._found[number]

    def follows(self, token: Token, pattern: re.Pattern[str]) -> bool:
        """True if the text right after a token matches."""
        return pattern.match(self.sql, token.end) is not None

    def program(self, number: int, word: str) -> Token:
        """The jq program after the token of that number, up to the keyword ``word``, as a token of kind ``string``.

        Raises:
            Invalid: the word is missing, or is inside a string or bracket that is never closed.
        """
        begin = jq_begin(self.sql, self._found[number].end)
        try:
            end = jq_end(self.sql, begin, word)
        except Unfinished as error:
            raise syntax_error(str(error), *self._place(error.offset), error.suggestion) from None
        del self._found[number + 1 :]
        self.comments = [comment for comment in self.comments if comment.end <= begin]
        token = Token("string", self.sql[begin:end].rstrip(), *self._place(begin), end)
        self._found.append(token)
        self._line, column = self._place(end)
        self._offset = end
        self._line_start = end - column + 1
        return token

    def _place(self, offset: int) -> tuple[int, int]:
        """Line and column of any offset, found by counting."""
        return self.sql.count("\n", 0, offset) + 1, offset - self.sql.rfind("\n", 0, offset)

    def _advance(self, to: int) -> None:
        breaks = self.sql.count("\n", self._offset, to)
        if breaks:
            self._line += breaks
            self._line_start = self.sql.rindex("\n", self._offset, to) + 1
        self._offset = to

    def _next(self) -> Token:
        sql = self.sql
        while self._offset < len(sql):
            match = _TOKEN.match(sql, self._offset)
            if match is None or (match.group() == "/" and sql.startswith("*", match.end())):
                raise _stray(sql, self._offset, *self._place(self._offset))
            line = self._line
            column = self._offset - self._line_start + 1
            self._advance(match.end())
            if match.lastgroup == "number":
                self._refuse_letter_after(match.group())
            if match.lastgroup == "comment":
                self.comments.append(
                    Token("comment", match.group().rstrip(), line, column, match.end())
                )
            elif match.lastgroup != "space":
                return _token(match.lastgroup or "", match.group(), line, column, match.end())
        return Token("end", "", *self._place(len(sql)), len(sql))

    def _refuse_letter_after(self, number: str) -> None:
        follower = self.sql[self._offset : self._offset + 1]
        if follower.isalpha() or follower == "_":
            message = f"'{shortened(number)}{follower}' is neither a number nor a name"
            raise syntax_error(message, *self._place(self._offset), "a name begins with a letter")


def _token(kind: str, text: str, line: int, column: int, end: int) -> Token:
    if kind == "name" and text.upper() in KEYWORDS:
        return Token("keyword", text.upper(), line, column, end)
    if kind == "string":
        return Token(kind, text[1:-1].replace("''", "'"), line, column, end)
    if kind == "quoted":
        return Token(kind, text[1:-1].replace(2 * text[0], text[0]), line, column, end)
    return Token(kind, text, line, column, end)


_STRAY: Final = {
    "!": "write != or <> to compare, NOT to negate",
    "%": "write mod",
    "&": "write AND, or bitand(a, b)",
    "|": "write OR, || to join texts, or bitor(a, b)",
    "^": "write power(a, b), or bitxor(a, b)",
    "‘": "strings are written in straight quotes: 'text'",
    "’": "strings are written in straight quotes: 'text'",
    "“": 'names are written in straight double quotes: "name"',
    "”": 'names are written in straight double quotes: "name"',
    "$": "a template's ${...} has no place in SQL; write the column's name",
    "#": "a comment begins with -- or ##",
    "?": "there are no parameters; write the value",
}


def _stray(sql: str, at: int, line: int, column: int) -> Invalid:
    character = sql[at]
    if character in "'\"`":
        hint = "a quote inside the text is written twice" if character == "'" else None
        return syntax_error(f"the quote {character} is never closed", line, column, hint)
    if sql.startswith("/*", at):
        return syntax_error("the comment /* is never closed", line, column)
    return syntax_error(f"unexpected character {character!r}", line, column, _STRAY.get(character))


# End of a jq program inside SQL.


_SPACE = re.compile(r"[ \t\r\n]*")
_CLOSERS: Final = {"(": ")", INSERT: ")", "[": "]", "{": "}"}
_END_OF_IF: Final = "end"


class Unfinished(ValueError):
    """The keyword that ends a program is not found; ``offset`` is where the reader should look."""

    def __init__(self, message: str, offset: int, suggestion: str | None = None) -> None:
        super().__init__(message)
        self.offset = offset
        self.suggestion = suggestion


def jq_begin(sql: str, at: int) -> int:
    """The offset of a program's first character, after white space."""
    match = _SPACE.match(sql, at)
    return at if match is None else match.end()


def jq_end(sql: str, start: int, word: str) -> int:
    """The offset of the keyword ``word`` (FROM, END) that ends the program beginning at ``start``.

    It is found outside strings, comments and brackets; an ``end`` that belongs to jq's own ``if`` is not it, nor is a
    field such as ``.from``.

    Raises:
        Unfinished: there is none.
    """
    pending: list[
        tuple[str, int]
    ] = []  # what must close before the program can end, and where it was opened
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
    unclosed = "a string" if closer == '"' else "an 'if'" if closer == _END_OF_IF else "a bracket"
    return Unfinished(
        f"the jq program has {unclosed} that is never closed", opened, f"close it with {closer}"
    )
