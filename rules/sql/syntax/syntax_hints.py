"""Suggestions for syntax errors: one for each common mistake, by the tokens around it."""

from __future__ import annotations

from typing import Final

from broker.core.errors import Rename, closest
from rules.sql.syntax.lexer import Token

_CLAUSES: Final = ("GROUP", "ORDER", "LIMIT", "HAVING", "JOIN", "UNION", "OFFSET", "WINDOW")
_OPERATOR_WORDS: Final = ("WHERE", "AND", "OR", "NOT", "IN", "LIKE", "BETWEEN", "IS")
_KEYWORDS_LEFT_TO_RIGHT: Final = (
    "SELECT ... FROM ... WHERE ..., or FOREACH ... DO ... INCASE ... FROM ... WHERE ..."
)


def keyword(token: Token, *words: str) -> str | None:
    """``did you mean FROM?`` for a misspelt keyword."""
    if token.kind not in ("name", "keyword") or token.text.upper() in words:
        return None
    close = closest(token.text.upper(), words)
    return (
        Rename(token.text, close, f"did you mean {close}?", (token.line, token.column))
        if close
        else None
    )


def after_the_end(token: Token, before: Token, *, has_where: bool) -> str | None:
    """Hint for a token after a whole statement."""
    word = token.text.upper()
    if token.kind == "op" and token.text in "/+#.-:" and before.kind == "name":
        return 'a topic filter with such characters is written in double quotes: FROM "a/b"'
    if word == "WHERE" and has_where:
        return "join the conditions with AND"
    if word in _CLAUSES:
        return f"a rule sees one message at a time and has no {word}; tables of rows are made and queried in Spark"
    if word in ("DO", "INCASE"):
        return f"{word} comes before FROM, in a rule that begins with FOREACH"
    if word == "AS":
        return "topics have no aliases"
    if word == "IS":
        return "IS tests for NULL only; compare with = or !="
    if token.kind in ("string", "quoted", "number") and has_where:
        return "join conditions with AND or OR; strings are written in single quotes"
    return keyword(token, *_OPERATOR_WORDS)


def instead_of_from(token: Token, before: Token, *, in_foreach: bool) -> str | None:
    """Hint for a token in place of FROM."""
    word = token.text.upper() if token.kind in ("keyword", "name") else ""
    if word == "WHERE":
        return 'WHERE comes after FROM: FROM "topic/#" WHERE ...'
    if word in ("DO", "INCASE"):
        return (
            "DO comes before INCASE"
            if in_foreach
            else f"{word} belongs to FOREACH: {_KEYWORDS_LEFT_TO_RIGHT}"
        )
    if word == "JQ":
        return (
            "JQ is written in SELECT; here use jq('program', value)"
            if in_foreach
            else "a jq program follows JQ"
        )
    if token.kind == "end":
        return 'name the messages: FROM "topic/#"'
    if token.text in ("(", ")", "]", "}"):
        return "a bracket is open or closed too often"
    if token.kind in ("name", "quoted", "string", "number"):
        return (
            keyword(token, "FROM")
            or keyword(before, "FROM", "DO", "INCASE")
            or "columns are separated by commas"
        )
    return None


def quoted_name(token: Token) -> str | None:
    """Hint for text that cannot be an alias."""
    if token.kind == "keyword":
        return f'a column of that name is written "{token.text.lower()}"'
    if token.kind == "string":
        return f'names are written in double quotes: "{token.text}"'
    return None


def no_value(token: Token, before: Token | None) -> str | None:
    """Hint for a token in place of a value."""
    if before is not None and before.text == ",":
        if token.text in ("FROM", "DO", "INCASE", "WHERE", ")", "]", "}") or token.kind == "end":
            return "remove the comma before it"
        if token.text == ",":
            return "remove one of the commas"
    if token.kind == "keyword":
        return _instead_of_value(token.text, before)
    if token.text == ".":
        return "a number begins with a digit: 0.5"
    if token.text == "*" and before is not None and before.text == "(":
        return "functions take no *; a rule sees one message at a time"
    return None


def _instead_of_value(word: str, before: Token | None) -> str | None:
    if word in ("IF", "ELSIF"):
        return "conditions within a value: CASE WHEN ... THEN ... ELSE ... END"
    if word == "SELECT":
        return 'a rule has no queries within queries; use FROM "$rules/name" to read another rule\'s rows'
    if word in ("FROM", "WHERE") or (
        before is not None and before.text in ("AND", "OR", "NOT", "WHEN", "THEN", "ELSE")
    ):
        return None
    return f'a column of that name is written "{word.lower()}"'


def index(token: Token) -> str | None:
    """Hint for text that cannot be an index."""
    if token.kind == "string":
        return f"a key is written .'{token.text}'"
    if token.text == "]":
        return "elements count from 1; [-1] is the last"
    return None


def in_index(token: Token) -> str | None:
    """Hint for text that does not end an index."""
    if token.kind == "op" and token.text in "+-*/|":
        return "an index is a number, a column or a path; give it a name first: i + 1 AS j, a[j]"
    return expected("']'", token, token)


def map_key(token: Token) -> str | None:
    """Hint for text that cannot be a key of a map."""
    if token.kind == "keyword":
        return f"write '{token.text.lower()}'"
    if token.text == "}":
        return "remove the comma before it"
    return "a key is a name or a string in quotes" if token.kind == "number" else None


def in_arguments(token: Token, name: str) -> str | None:
    """Hint for text that neither continues nor ends the arguments of a call."""
    if token.text == "AS":
        return (
            f"arguments have no AS; {name}(...) AS name"
            if name.lower() != "cast"
            else "use int(x), float(x) or str(x)"
        )
    if token.text in ("FROM", "WHERE") or token.kind == "end":
        return "close the bracket"
    return None


def expected(what: str, token: Token, before: Token) -> str | None:
    """Hint for any other unexpected token."""
    if token.text == "=" and before.text == "=":
        return "write = to compare"
    if token.text in ("FROM", "WHERE") and what in ("']'", "')'", "'}'"):
        return "close the bracket"
    words = [word for word in what.replace(",", " ").split() if word.isupper()]
    return keyword(token, *words) if words else None
