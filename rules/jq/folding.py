"""What jq computes while it compiles a program: operations on constants, such as ``"a" * 2000000000``.

That takes the memory and time that it takes, wherever in the program it stands, so only a program in which nothing
large is computed is compiled in the broker.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from typing import Any, Final

from rules.jq.lexer import Unreadable
from rules.jq.parser import parse
from rules.jq.tree import Binary, Negate, Node, Number, Text

MAX_CHARACTERS: Final = 4_000
"""Longest program that is compiled in the broker: jq may take the square of the length, 40 ms here."""
_MAX_FOLDED: Final = 65_536


def compiles_here(program: str) -> bool:
    """Whether compiling the program takes milliseconds, whatever comes of it."""
    if len(program) > MAX_CHARACTERS:
        return False
    try:
        return all(_length(node) <= _MAX_FOLDED for node in _nodes(parse(program)))
    except (Unreadable, RecursionError):
        return "*" not in program or '"' not in program


def _nodes(found: Any) -> Iterator[Node]:
    if isinstance(found, tuple):
        for one in found:
            yield from _nodes(one)
    elif isinstance(found, Node):
        yield found
        for field in fields(found):
            yield from _nodes(getattr(found, field.name))


def _length(node: Node) -> float:
    """The length of the text that a constant expression gives; 0 for what is none."""
    if isinstance(node, Text):
        return 0 if node.parts else len(node.literal)
    if not isinstance(node, Binary):
        return 0
    lengths = _length(node.left), _length(node.right)
    if node.operator == "+":
        return sum(lengths)
    return max(lengths) * max(_number(node.left), _number(node.right), 1) if node.operator == "*" else 0


def _number(node: Node) -> float:
    """The largest number that a constant expression may give, signs left aside."""
    if isinstance(node, Number):
        return abs(node.value)
    if isinstance(node, Negate):
        return _number(node.inner)
    if isinstance(node, Binary):
        left, right = _number(node.left), _number(node.right)
        return left * max(right, 1) if node.operator == "*" else left + right if node.operator != "/" else float("inf")
    return 0
