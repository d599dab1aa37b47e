"""Tokens to a tree.

::

    expr  = call | variable | boolean | integer | float | string
    call  = name "(" [ arg { "," arg } ] ")"       arg = expr | array
    array = "[" arg { "," arg } "]"                never empty; not an expression on its own
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TypeAlias

from transforms.variform.lexer import Token, error_at, tokenize

# Deepest nesting of calls and arrays.
MAX_NESTING = 64


@dataclass(frozen=True, slots=True)
class Literal:
    value: str | int | float | bool


@dataclass(frozen=True, slots=True)
class Variable:
    """``path`` is never empty and has no empty segment."""

    path: tuple[str, ...]
    at: int


@dataclass(frozen=True, slots=True)
class Array:
    items: tuple[Node, ...]
    at: int


@dataclass(frozen=True, slots=True)
class Call:
    """``name`` as written, with its module if it has one (``maps.get``)."""

    name: str
    arguments: tuple[Node, ...]
    at: int


Node: TypeAlias = Literal | Variable | Array | Call


def parse(source: str) -> Node:
    """The tree of an expression.

    Raises:
        CompileError: with line and column.
    """
    return _Parser(source).whole()


class _Parser:
    def __init__(self, source: str) -> None:
        self._source = source
        self._tokens = tokenize(source)
        self._next = 0

    def whole(self) -> Node:
        if self._peek().kind == "end":
            raise error_at(self._source, 0, "an expression must not be empty")
        if self._peek().text == "[":
            raise error_at(
                self._source, self._peek().at, "an array is not an expression on its own"
            )
        node = self._argument(1)
        left = self._peek()
        if left.kind != "end":
            raise error_at(
                self._source, left.at, f"expected the end of the expression, found {left.text!r}"
            )
        return node

    def _argument(self, depth: int) -> Node:
        token = self._take()
        if depth > MAX_NESTING:
            raise error_at(
                self._source, token.at, f"an expression nests at most {MAX_NESTING} levels"
            )
        if token.text == "[" and token.kind == "mark":
            return Array(tuple(self._arguments("]", depth + 1)), token.at)
        if token.kind == "name":
            return self._named(token, depth)
        if token.kind == "string":
            return Literal(token.text[1:-1])
        if token.kind in ("integer", "float"):
            return self._number(token)
        token_text = "the end" if token.kind == "end" else repr(token.text)
        raise error_at(
            self._source,
            token.at,
            f"expected a value, a variable or a function, found {token_text}",
        )

    def _number(self, token: Token) -> Literal:
        if token.kind == "float":
            value = float(token.text)
            if math.isinf(value):
                raise error_at(self._source, token.at, "the number is too large")
            return Literal(value)
        if len(token.text) > 4000:
            raise error_at(self._source, token.at, "the number has more than 4000 digits")
        return Literal(int(token.text))

    def _named(self, token: Token, depth: int) -> Node:
        if self._peek().text == "(" and self._peek().kind == "mark":
            self._take()
            if self._peek().text == ")" and self._peek().kind == "mark":
                self._take()
                return Call(token.text, (), token.at)
            return Call(token.text, tuple(self._arguments(")", depth + 1)), token.at)
        if token.text in ("true", "false"):
            return Literal(token.text == "true")
        path = tuple(token.text.split("."))
        if "" in path:
            raise error_at(
                self._source,
                token.at,
                f"variable '{token.text}' has an empty part between its dots",
            )
        return Variable(path, token.at)

    def _arguments(self, close: str, depth: int) -> list[Node]:
        items = [self._argument(depth)]
        while True:
            token = self._take()
            if token.kind == "mark" and token.text == close:
                return items
            if token.kind != "mark" or token.text != ",":
                token_text = "the end" if token.kind == "end" else repr(token.text)
                raise error_at(
                    self._source, token.at, f"expected ',' or '{close}', found {token_text}"
                )
            items.append(self._argument(depth))

    def _peek(self) -> Token:
        return self._tokens[self._next]

    def _take(self) -> Token:
        token = self._tokens[self._next]
        if token.kind != "end":
            self._next += 1
        return token
