"""SQL layout for reading: a clause per line, its parts below each other where they are many, and its comments."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from sqlglot import exp

from broker.core.errors import Invalid
from rules.sql.syntax.lexer import Token, Tokens
from rules.sql.syntax.parser import parse, parse_tokens
from rules.sql.syntax.printer import Clause, clauses_of
from rules.sql.syntax.tree import place_of

_WIDTH: Final = 100
_INDENT: Final = "  "


@dataclass(slots=True)
class _Line:
    text: str
    place: tuple[int, int]


def formatted(sql: str) -> str:
    """The same statement in the usual layout.

    Raises:
        Invalid: it does not parse.
    """
    tokens = Tokens(sql)
    tree = parse_tokens(tokens)
    clauses = list(clauses_of(tree))
    text = _laid_out([_with_program_as_it_is(clause) for clause in clauses], tokens)
    return text if _is_same(text, tree) else _laid_out(clauses, tokens)


def _with_program_as_it_is(clause: Clause) -> Clause:
    """A jq program without quotes, which it needs only where a word of it could be read as SQL."""
    if clause.word != "JQ":
        return clause
    node = clause.parts[0][1]
    return replace(clause, parts=[(node.expressions[0].name, node)])


def _is_same(sql: str, tree: exp.Select) -> bool:
    try:
        return parse(sql) == tree
    except Invalid:
        return False


def _laid_out(clauses: Sequence[Clause], tokens: Tokens) -> str:
    lines = [
        line for clause in clauses for line in _lines(clause, has_comments=bool(tokens.comments))
    ]
    source_lines = tokens.sql.split("\n")
    for comment in tokens.comments:
        is_after_text = source_lines[comment.line - 1][: comment.column - 1].strip() != ""
        _insert(lines, comment, is_after_text=is_after_text)
    return "\n".join(line.text for line in lines) + "\n"


def _lines(clause: Clause, *, has_comments: bool) -> Iterator[_Line]:
    whole = str(clause)
    begin = place_of(clause.parts[0][1])
    if len(clause.parts) == 1 or (len(whole) <= _WIDTH and "\n" not in whole and not has_comments):
        yield _Line(whole, begin)
    elif clause.joint == " AND ":
        for at, (text, node) in enumerate(clause.parts):
            yield _Line(f"{_INDENT}AND {text}" if at else f"{clause.word} {text}", place_of(node))
    else:
        yield _Line(clause.word, begin)
        last = len(clause.parts) - 1
        for at, (text, node) in enumerate(clause.parts):
            yield _Line(f"{_INDENT}{text}{'' if at == last else ','}", place_of(node))


def _insert(lines: list[_Line], comment: Token, *, is_after_text: bool) -> None:
    """Put a comment after the token it followed on its line, else above the token it preceded."""
    place = (comment.line, comment.column)
    before = [at for at, line in enumerate(lines) if line.place <= place]
    if is_after_text and before:
        lines[before[-1]].text += f" {comment.text}"
    else:
        at = before[-1] + 1 if before else 0
        follower = lines[at].text if at < len(lines) else ""
        indent = follower[: len(follower) - len(follower.lstrip())]
        lines.insert(at, _Line(indent + comment.text, place))
