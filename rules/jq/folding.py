"""What jq computes while it compiles a program: operations on constants, such as ``"a" * 2000000000``.

That takes the memory and time that it takes, wherever in the program it stands, so only a program in which nothing
large is computed is compiled in the broker.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import fields
from math import inf
from typing import Any, Final

from rules.jq.lexer import Unreadable
from rules.jq.parser import parse
from rules.jq.tree import Binary, Index, Node, Number, Text

MAX_CHARACTERS: Final = 4_000
"""Longest program that is compiled in the broker: jq may take the square of the length, 40 ms here."""
_MAX_FOLDED: Final = 65_536


def compiles_here(program: str) -> bool:
    """Whether compiling the program takes milliseconds, whatever comes of it."""
    if len(program) > MAX_CHARACTERS:
        return False
    try:
        return _largest(parse(program)) <= _MAX_FOLDED
    except (Unreadable, RecursionError):
        return "*" not in program or '"' not in program


def _largest(node: Node) -> float:
    """The longest text that a multiplication in the program may give, were its operands constant."""
    here = _length(node) if isinstance(node, Binary) and node.operator == "*" else 0.0
    return max([here, *map(_largest, _parts(node))])


def _length(node: Node) -> float:
    """The length of the text that an expression gives, at most."""
    if isinstance(node, Text):
        return len(node.literal) + sum(map(_length, node.parts))
    if isinstance(node, Index) and isinstance(node.index, Text):
        return _length(node.term)
    total = sum(map(_length, _parts(node)))
    if total and isinstance(node, Binary) and node.operator == "*":
        return total * max(_number(node.left), _number(node.right), 1.0)
    return total


def _number(node: Node) -> float:
    """The largest number that an expression gives, at most, signs left aside; what comes from the input is left out."""
    if isinstance(node, Number):
        return abs(node.value)
    numbers = list(map(_number, _parts(node)))
    if isinstance(node, Binary) and node.operator in ("*", "/"):
        return inf if node.operator == "/" else max(numbers[0], 1.0) * max(numbers[1], 1.0)
    return sum(numbers)


def _parts(node: Node) -> list[Node]:
    return list(_nodes_in([getattr(node, field.name) for field in fields(node)]))


def _nodes_in(found: Iterable[Any]) -> Iterator[Node]:
    for one in found:
        if isinstance(one, Node):
            yield one
        elif isinstance(one, tuple):
            yield from _nodes_in(one)
