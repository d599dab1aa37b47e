"""The tree rules are made of: stock sqlglot nodes, and how the language's own notions are written with them.

=====================  ==============================================================================
column ``a``           ``Column(Identifier a)``
step ``.k``            ``Dot(path, Identifier k)``
step ``[i]``           ``Bracket(path, [i])``: a number, ``Neg`` of one, or a path
range ``a[m..n]``      ``Bracket(path, [Slice(m, n)])``
``[m..n]``, ``[x, y]``  ``GenerateSeries(m, n)``, ``Array``
``f(x)``               ``Anonymous("f", [x])``
``a =~ b``             ``Anonymous("topic_match", [a, b])``
``SELECT … FROM …``    ``Select``: ``From(Table)``, further sources as ``Join``; an alias may be a path
``FOREACH l DO d``     ``Select(d) FROM (Select(l) FROM … WHERE …)``, INCASE as its WHERE, item in ``meta["foreach"]``
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
        """The path as people write it."""
        steps = "".join(f".{step}" if isinstance(step, str) else f"[{_step_text(step)}]" for step in self.steps)
        return self.root + steps


END_INDEX = object()


def _step_text(step: Any) -> str:
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
    steps: list[Any] = []
    limits: tuple[int, int] | None = None
    while True:
        if isinstance(node, exp.Column):
            return Path(node.name, tuple(reversed(steps)), limits)
        if isinstance(node, exp.Dot):
            steps.append(node.expression.name)
        elif isinstance(node, exp.Bracket):
            inner = node.expressions[0]
            if isinstance(inner, exp.Slice):
                limits = (integer_of(inner.this), integer_of(inner.expression))
            else:
                steps.append(_index_of(inner))
        else:
            return None
        node = node.this


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
    source = tree.args["from_"].this
    if isinstance(source, exp.Subquery):
        return sources_of(source.this)
    return [source, *(join.this for join in tree.args.get("joins") or [])]


def text_of_tree(node: Tree) -> str:
    """The normalised text of an expression: the name of a column that has no alias."""
    path = path_of(node)
    if path is not None:
        return path.text + ("" if path.range is None else f"[{path.range[0]}..{path.range[1]}]")
    if isinstance(node, exp.Literal):
        return f"'{node.name}'" if node.is_string else node.name
    if isinstance(node, exp.Boolean):
        return "true" if node.this else "false"
    if isinstance(node, exp.Null):
        return "null"
    if isinstance(node, exp.Paren):
        return f"({text_of_tree(node.this)})"
    if isinstance(node, exp.Anonymous):
        return f"{node.name}({_list(node.expressions)})"
    if isinstance(node, exp.Array):
        return f"[{_list(node.expressions)}]"
    if isinstance(node, exp.GenerateSeries):
        return f"[{text_of_tree(node.args['start'])}..{text_of_tree(node.args['end'])}]"
    if isinstance(node, exp.Case):
        return _case_text(node)
    if isinstance(node, exp.In):
        return f"{text_of_tree(node.this)} in ({_list(node.expressions)})"
    if isinstance(node, exp.Neg):
        return f"-{text_of_tree(node.this)}"
    if isinstance(node, exp.Not):
        return f"not {text_of_tree(node.this)}"
    return f"{text_of_tree(node.this)} {OPERATORS[type(node)]} {text_of_tree(node.expression)}"


OPERATORS: dict[type[Tree], str] = {
    exp.Add: "+", exp.Sub: "-", exp.Mul: "*", exp.Div: "/", exp.IntDiv: "div", exp.Mod: "mod", exp.EQ: "=",
    exp.NEQ: "!=", exp.LT: "<", exp.LTE: "<=", exp.GT: ">", exp.GTE: ">=", exp.And: "and", exp.Or: "or",
    exp.DPipe: "||",
}  # fmt: skip
"""How the binary operators are written."""


def _list(nodes: list[Tree]) -> str:
    return ", ".join(map(text_of_tree, nodes))


def _case_text(node: exp.Case) -> str:
    parts = ["case"]
    if node.this is not None:
        parts.append(text_of_tree(node.this))
    for branch in node.args["ifs"]:
        parts += ["when", text_of_tree(branch.this), "then", text_of_tree(branch.args["true"])]
    if node.args.get("default") is not None:
        parts.append(f"else {text_of_tree(node.args['default'])}")
    return " ".join([*parts, "end"])
