"""A tree back to SQL text, normalised: keywords in capitals, one space, parentheses where the meaning needs them.

``parse(text)`` gives the tree again. The text of an expression is also the name of a column that has no alias.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from sqlglot import exp

from rules.sql import operators
from rules.sql.syntax.lexer import KEYWORDS
from rules.sql.syntax.tree import Path, Tree, path_of, sources_of

# Precedence of expressions; an inner expression that binds less needs parentheses. Keys and indexes can
# follow a base only.
_OR, _AND, _NOT, _TEST, _SUM, _PRODUCT, _UNARY, _OPERAND, _BASE = range(9)

# Spelling of the binary operators.
OPERATORS: Final[dict[type[Tree], str]] = {
    exp.Or: "OR", exp.And: "AND",
    **{kind: operator.sql for kind, operator in operators.OPERATORS.items()},
}  # fmt: skip
_LEVELS: Final[dict[type[Tree], int]] = {
    **dict.fromkeys(OPERATORS, _TEST),
    exp.Or: _OR, exp.And: _AND, exp.Add: _SUM, exp.Sub: _SUM, exp.DPipe: _SUM,
    **dict.fromkeys((exp.Mul, exp.Div, exp.IntDiv, exp.Mod), _PRODUCT),
}  # fmt: skip

_PLAIN_NAME: Final = re.compile(r"[^\W\d][\w$@~]*")
_WORDS_OF_VALUES: Final = frozenset({"TRUE", "FALSE"})


@dataclass(frozen=True, slots=True)
class Clause:
    """A clause: its word, and the texts of its parts with the node of each. ``joint`` separates them."""

    word: str
    parts: Sequence[tuple[str, Tree]]
    joint: str = ", "

    def __str__(self) -> str:
        return f"{self.word} {self.joint.join(text for text, _ in self.parts)}"


def clauses_of(tree: exp.Select) -> Iterator[Clause]:
    """The clauses of a statement, in order."""
    items = tree.args.get("foreach")
    fields = tree.expressions
    if items is None:
        yield Clause("SELECT", _texts(fields))
    else:
        yield Clause("FOREACH", _texts(items))
        if not (len(fields) == 1 and isinstance(fields[0], exp.Star)):
            yield Clause("DO", _texts(fields))
    if (jq := tree.args.get("jq")) is not None:
        yield Clause("JQ", [(_string(jq.expressions[0].name), jq)])
    if (incase := tree.args.get("incase")) is not None:
        yield Clause("INCASE", _conditions(incase.this), " AND ")
    yield Clause(
        "FROM", [(name_text(table.name, quoted=True), table) for table in sources_of(tree)]
    )
    if (where := tree.args.get("where")) is not None:
        yield Clause("WHERE", _conditions(where.this), " AND ")


def text_of_tree(node: Tree) -> str:
    """The text of an expression, a field or a target."""
    return _written(node)[0]


def target_of(field: Tree) -> Path:
    """The column, and the place in it, that a field of a list is written to."""
    target = field.args["alias"] if isinstance(field, exp.Alias) else field
    path = path_of(target)
    if path is not None:
        return Path(path.root, path.steps)
    has_name = isinstance(target, exp.Identifier) or (
        isinstance(target, exp.Literal) and target.is_string
    )
    return Path(target.name if has_name else text_of_tree(target))


def name_text(name: str, *, quoted: bool = False) -> str:
    """A name as it is written, in double quotes where it must be, or on request."""
    if quoted or not _PLAIN_NAME.fullmatch(name) or name.upper() in KEYWORDS:
        return '"' + name.replace('"', '""') + '"'
    return name


def _texts(fields: Sequence[Tree]) -> list[tuple[str, Tree]]:
    return [(text_of_tree(field), field) for field in fields]


def _conditions(node: Tree) -> list[tuple[str, Tree]]:
    """The conditions that AND joins."""
    parts: list[tuple[str, Tree]] = []
    while isinstance(node, exp.And):
        parts.append((_within(node.expression, _AND + 1), node.expression))
        node = node.this
    return [(_within(node, _AND) if parts else text_of_tree(node), node), *reversed(parts)]


def _fields(fields: Sequence[Tree]) -> str:
    return ", ".join(map(text_of_tree, fields))


def _string(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _within(node: Tree, level: int) -> str:
    """The text of a part, in parentheses where it binds less than required."""
    text, own = _written(node)
    return f"({text})" if own < level else text


def _written(node: Tree) -> tuple[str, int]:
    """Text, and how tight it binds."""
    if type(node) in OPERATORS:
        return _binary(node)
    write = _WRITERS.get(type(node))
    if write is None:
        raise ValueError(f"the language has no {type(node).__name__}")
    return write(node)


def _binary(node: Tree) -> tuple[str, int]:
    level = _LEVELS[type(node)]
    if level == _TEST:  # comparisons are not chained: both sides bind tighter
        left = _within(node.this, level + 1)
        right = _within(node.expression, level + 1)
        return f"{left} {OPERATORS[type(node)]} {right}", level
    parts: list[str] = []
    while _LEVELS.get(type(node)) == level:  # a chain, which is a tree as deep as it is long
        parts.append(f"{OPERATORS[type(node)]} {_within(node.expression, level + 1)}")
        node = node.this
    return " ".join([_within(node, level), *reversed(parts)]), level


def _not(node: Any) -> tuple[str, int]:
    inner = node.this
    if isinstance(inner, (exp.In, exp.Is, exp.Between, exp.Like, exp.Escape)):
        return _test(inner, "NOT "), _TEST
    return f"NOT {_within(inner, _NOT)}", _NOT


def _test(node: Any, negation: str = "") -> str:
    """A test that is a word: IN, IS NULL, BETWEEN, LIKE."""
    if isinstance(node, exp.Escape):
        return f"{_test(node.this, negation)} ESCAPE {_string(node.expression.name)}"
    left = _within(node.this, _SUM)
    if isinstance(node, exp.In):
        return f"{left} {negation}IN ({_fields(node.expressions)})"
    if isinstance(node, exp.Is):
        return f"{left} IS {negation}NULL"
    if isinstance(node, exp.Between):
        low = _within(node.args["low"], _SUM)
        high = _within(node.args["high"], _SUM)
        return f"{left} {negation}BETWEEN {low} AND {high}"
    return f"{left} {negation}LIKE {_within(node.expression, _SUM)}"


def _negative(node: Any) -> tuple[str, int]:
    inner = _within(node.this, _UNARY)
    return ("- " if inner.startswith("-") else "-") + inner, _UNARY  # two in a row begin a comment


def _column(node: Any) -> tuple[str, int]:
    name = node.this
    is_value = name.name.upper() in _WORDS_OF_VALUES or name.name in ("NULL", "JQ")
    return name_text(name.name, quoted=bool(name.args.get("quoted")) or is_value), _BASE


def _bracket(node: Any) -> tuple[str, int]:
    inner = node.expressions[0]
    level = _OPERAND if isinstance(inner, exp.Slice) else _BASE  # nothing follows a range
    return f"{_within(node.this, _BASE)}[{text_of_tree(inner)}]", level


def _slice(node: Any) -> tuple[str, int]:
    return f"{text_of_tree(node.this)}..{text_of_tree(node.expression)}", _BASE


def _call(node: Any) -> tuple[str, int]:
    if node.name == "topic_match" and len(node.expressions) == 2:
        left, right = node.expressions
        return f"{_within(left, _SUM)} =~ {_within(right, _SUM)}", _TEST
    return f"{node.name}({_fields(node.expressions)})", _BASE


def _case(node: Any) -> tuple[str, int]:
    parts = ["CASE"]
    if node.this is not None:
        parts.append(text_of_tree(node.this))
    for branch in node.args["ifs"]:
        parts += ["WHEN", text_of_tree(branch.this), "THEN", text_of_tree(branch.args["true"])]
    if node.args.get("default") is not None:
        parts += ["ELSE", text_of_tree(node.args["default"])]
    return " ".join([*parts, "END"]), _OPERAND


def _map(node: Any) -> tuple[str, int]:
    members = [
        f"{name_text(member.this.name)}: {text_of_tree(member.expression)}"
        for member in node.expressions
    ]
    return "{" + ", ".join(members) + "}", _BASE


def _alias(node: Any) -> tuple[str, int]:
    return f"{text_of_tree(node.this)} AS {text_of_tree(node.args['alias'])}", _OR


_WRITERS: Final[dict[type[Tree], Callable[[Any], tuple[str, int]]]] = {
    exp.Star: lambda node: ("*", _BASE),
    exp.Alias: _alias,
    exp.Identifier: lambda node: (
        name_text(node.name, quoted=bool(node.args.get("quoted"))),
        _BASE,
    ),
    exp.Column: _column,
    exp.Dot: lambda node: (f"{_within(node.this, _BASE)}.{name_text(node.expression.name)}", _BASE),
    exp.Bracket: _bracket,
    exp.Slice: _slice,
    exp.Literal: lambda node: (_string(node.name) if node.is_string else node.name, _OPERAND),
    exp.Boolean: lambda node: ("true" if node.this else "false", _OPERAND),
    exp.Null: lambda node: ("NULL", _OPERAND),
    exp.Paren: lambda node: (f"({text_of_tree(node.this)})", _BASE),
    exp.Array: lambda node: (f"[{_fields(node.expressions)}]", _BASE),
    exp.Struct: _map,
    exp.GenerateSeries: lambda node: (
        f"[{text_of_tree(node.args['start'])}..{text_of_tree(node.args['end'])}]",
        _OPERAND,
    ),
    exp.Anonymous: _call,
    exp.Case: _case,
    exp.Neg: _negative,
    exp.Not: _not,
    **dict.fromkeys(
        (exp.In, exp.Is, exp.Between, exp.Like, exp.Escape), lambda node: (_test(node), _TEST)
    ),
}
