"""The tree of a rule: stock sqlglot nodes, and how they express what only this language has.

=====================  ==============================================================================
column ``a``           ``Column(Identifier a)``
step ``.k``            ``Dot(path, Identifier k)``
step ``[i]``           ``Bracket(path, [i])``: a number, ``Neg`` of one, or a path
range ``a[m..n]``      ``Bracket(path, [Slice(m, n)])``
``[m..n]``, ``[x, y]``  ``GenerateSeries(m, n)``, ``Array``
``{k: v}``              ``Struct([PropertyEQ(Identifier k, v)])``
``f(x).k``, ``[x][1]``  ``Dot``, ``Bracket`` on that value, which is then no path
``f(x)``               ``Anonymous("f", [x])``
``a =~ b``             ``Anonymous("topic_match", [a, b])``
``IS NULL``            ``Is(a, Null)``; ``BETWEEN`` is ``Between``, ``LIKE`` is ``Like``, or ``Escape(Like, sign)``
``JQ v DO p END``      ``Anonymous("jq", [Literal p, v])``, as ``jq('p', v)``
``SELECT … FROM …``    ``Select``: ``From(Table)``, further sources as ``Join``; an alias may be a path
``SELECT … JQ p``      ``args["jq"]`` of the ``Select``: ``Anonymous("jq", [Literal p, Star])``; the star is the row
``FOREACH l DO d``     ``Select(d)`` with the list ``l`` as ``args["foreach"]``, and a ``Where`` as ``args["incase"]``
=====================  ==============================================================================

Every node carries ``meta["line"]`` and ``meta["column"]`` of its first character.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeVar

from sqlglot import exp

Tree = exp.Expr
Node = TypeVar("Node", bound=Tree)


@dataclass(frozen=True, slots=True)
class Path:
    """A column and the steps into it; ``range`` is set for ``a.b[m..n]``, whose steps are those of ``a.b``.

    A step is a key (``str``), an index (``int``), a path whose value is the index, or ``END_INDEX`` for ``[-0]``.
    """

    root: str
    steps: tuple[Any, ...] = ()
    range: tuple[int, int] | None = None

    @property
    def text(self) -> str:
        """The path as it is written in SQL."""
        steps = "".join(
            f".{step}" if isinstance(step, str) else f"[{step_text(step)}]" for step in self.steps
        )
        return self.root + steps


END_INDEX = object()

# Each ordering comparison with the one that is true where it is false: with null or undefined neither is true.
OPPOSITES: dict[type[Tree], type[Tree]] = {
    exp.LT: exp.GTE,
    exp.GTE: exp.LT,
    exp.GT: exp.LTE,
    exp.LTE: exp.GT,
}
COMPARISONS = (exp.EQ, exp.NEQ, exp.LT, exp.LTE, exp.GT, exp.GTE)
# Expressions that are always true or false.
TESTS = (*COMPARISONS, exp.And, exp.Or, exp.Not, exp.In, exp.Is, exp.Between, exp.Like, exp.Escape)


def step_text(step: Any) -> str:
    """An index as it is written in SQL."""
    if step is END_INDEX:
        return "-0"
    return step.text if isinstance(step, Path) else str(step)


def place(node: Node, line: int, column: int) -> Node:
    """The node, marked with its place."""
    node.meta["line"], node.meta["column"] = line, column
    return node


def place_of(node: Tree) -> tuple[int, int]:
    """Line and column of a node."""
    return node.meta.get("line", 1), node.meta.get("column", 1)


def path_of(node: Tree | None) -> Path | None:
    """The path a node is, or None."""
    if not isinstance(node, (exp.Column, exp.Dot, exp.Bracket)):
        return None
    base, path = value_path(node)
    return Path(base.name, path.steps, path.range) if isinstance(base, exp.Column) else None


def value_path(node: Tree) -> tuple[Tree, Path]:
    """The value that keys and indexes lead into, and those, as a path without a column."""
    steps: list[Any] = []
    limits: tuple[int, int] | None = None
    while isinstance(node, (exp.Dot, exp.Bracket)):
        if isinstance(node, exp.Dot):
            steps.append(node.expression.name)
        else:
            inner = node.expressions[0]
            if isinstance(inner, exp.Slice):
                limits = (integer_of(inner.this), integer_of(inner.expression))
            else:
                steps.append(_index_of(inner))
        node = node.this
    return node, Path("", tuple(reversed(steps)), limits)


def _index_of(node: Tree) -> Any:
    if isinstance(node, exp.Neg) and integer_of(node.this) == 0:
        return END_INDEX
    inner = path_of(node)
    return integer_of(node) if inner is None else inner


def integer_of(node: Tree) -> int:
    """The value of an integer literal, perhaps with a minus."""
    return -int(node.this.name) if isinstance(node, exp.Neg) else int(node.name)


def sources_of(tree: exp.Select) -> list[exp.Table]:
    """The tables, that is topics, of a statement in the order written."""
    return [tree.args["from_"].this, *(join.this for join in tree.args["joins"])]


def item_of(tree: exp.Select) -> str | None:
    """The name of the item that FOREACH walks to; None in a SELECT."""
    items = tree.args.get("foreach")
    return (items[-1].alias or "item") if items else None


def jq_of(tree: exp.Select) -> exp.Anonymous | None:
    """The call of ``jq`` on the rows of a statement with a JQ clause, whose second argument is a star."""
    call = tree.args.get("jq")
    return call if isinstance(call, exp.Anonymous) else None


def operands(node: Tree, kind: type[Tree]) -> list[Tree]:
    """The operands of a chain of ANDs or ORs, in order, without parentheses."""
    chain: list[Tree] = []
    pending = [node]
    while pending:
        node = bare(pending.pop())
        if type(node) is kind:
            pending += [node.expression, node.this]
        else:
            chain.append(node)
    return chain


def bare(node: Tree) -> Tree:
    """The node without parentheses around it."""
    while isinstance(node, exp.Paren):
        node = node.this
    return node


def literal_text(node: Tree) -> str | None:
    """The text of a string literal; None for anything else."""
    node = bare(node)
    return node.name if isinstance(node, exp.Literal) and node.is_string else None
