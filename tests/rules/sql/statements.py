"""Statements as text."""

from __future__ import annotations

from sqlglot import exp

from rules.sql.syntax.printer import clauses_of


def text_of_statement(tree: exp.Select) -> str:
    """The clauses on one line."""
    return " ".join(map(str, clauses_of(tree)))
