"""Random statements, as trees such as the parser makes, without the parentheses that printing adds."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st
from sqlglot import exp

from rules.sql.syntax.tree import Tree

NAMES = ("payload", "clientid", "qos", "topic", "a", "b", "x", "item", "missing")
KEYS = ("x", "y", "l", "i", "from", "b c", "1")
CALLS = {
    "upper": 1, "str": 1, "length": 1, "abs": 1, "is_null": 1, "is_not_null_var": 1, "coalesce": 2, "concat": 2,
    "nth": 2, "topic": 0, "payload": 0, "clientid": 0, "json_decode": 1, "map_get": 2, "contains": 2,
}  # fmt: skip


def identifier(name: str, quoted: bool = False) -> exp.Identifier:
    return exp.Identifier(this=name, quoted=quoted)


def column(name: str) -> Tree:
    return exp.Column(this=identifier(name, name == "b c"))


def number(value: int | float) -> Tree:
    literal = exp.Literal.number(str(abs(value)))
    return exp.Neg(this=literal) if value < 0 else literal


def key_step(path: Tree, name: str) -> Tree:
    return exp.Dot(this=path, expression=identifier(name, True))


def index_step(path: Tree, index: Tree) -> Tree:
    return exp.Bracket(this=path, expressions=[index])


def end_index() -> Tree:
    return exp.Neg(this=exp.Literal.number("0"))


@st.composite
def paths(draw: Any, names: tuple[str, ...] = NAMES, *, is_target: bool = False) -> Tree:
    path = column(draw(st.sampled_from(names)))
    for _ in range(draw(st.sampled_from((0, 0, 1, 1, 1, 2, 3)))):
        if draw(st.integers(0, 3)):
            path = key_step(path, draw(st.sampled_from(KEYS)))
        else:
            indexes = st.integers(-3, 3).map(number) | st.sampled_from(("qos", "x", "b")).map(
                column
            )
            path = index_step(
                path, draw(indexes if not is_target else indexes | st.builds(end_index))
            )
    return path


@st.composite
def ranged(draw: Any) -> Tree:
    ends = st.integers(-3, 4).map(number)
    return index_step(draw(paths()), exp.Slice(this=draw(ends), expression=draw(ends)))


TEXTS = st.sampled_from(("", "a", "it's", "8", "{}", "a%", "t/#", '{"x":[1,2]}', "2.5", "true"))
LITERALS = (
    st.integers(-5, 9).map(number)
    | st.sampled_from((0.5, 2.0, -1.5, 1e20, 1e300)).map(number)
    | TEXTS.map(exp.Literal.string)
    | st.booleans().map(lambda value: exp.Boolean(this=value))
    | st.builds(exp.Null)
    | st.tuples(st.integers(-2, 4), st.integers(-2, 4)).map(
        lambda ends: exp.GenerateSeries(start=number(ends[0]), end=number(ends[1]))
    )
)
LEAVES = paths() | paths() | paths() | LITERALS | ranged()


def _binary(inner: st.SearchStrategy[Tree]) -> st.SearchStrategy[Tree]:
    kinds = (
        exp.Add, exp.Sub, exp.Mul, exp.Div, exp.IntDiv, exp.Mod, exp.DPipe, exp.EQ, exp.NEQ, exp.LT, exp.LTE, exp.GT,
        exp.GTE, exp.And, exp.Or, exp.And, exp.Or, exp.EQ, exp.Add, exp.GT,
    )  # fmt: skip
    return st.builds(
        lambda kind, left, right: kind(this=left, expression=right),
        st.sampled_from(kinds),
        inner,
        inner,
    )


@st.composite
def _case(draw: Any, inner: st.SearchStrategy[Tree]) -> Tree:
    branches = [exp.If(this=draw(inner), true=draw(inner)) for _ in range(draw(st.integers(1, 2)))]
    subject, default = draw(st.none() | inner), draw(st.none() | inner)
    return exp.Case(this=subject, ifs=branches, default=default)


@st.composite
def _call(draw: Any, inner: st.SearchStrategy[Tree]) -> Tree:
    name = draw(st.sampled_from(tuple(CALLS)))
    return exp.Anonymous(this=name, expressions=[draw(inner) for _ in range(CALLS[name])])


@st.composite
def _like(draw: Any, inner: st.SearchStrategy[Tree]) -> Tree:
    pattern = draw(st.sampled_from(("a%", "%", "_", "!%%", "b_%")).map(exp.Literal.string) | inner)
    test = exp.Like(this=draw(inner), expression=pattern)
    return (
        exp.Escape(this=test, expression=exp.Literal.string("!")) if draw(st.booleans()) else test
    )


def _members(items: dict[str, Tree]) -> Tree:
    return exp.Struct(
        expressions=[
            exp.PropertyEQ(this=identifier(key, True), expression=value)
            for key, value in items.items()
        ]
    )


def _steps(inner: st.SearchStrategy[Tree]) -> st.SearchStrategy[Tree]:
    by_key = st.builds(key_step, inner, st.sampled_from(KEYS))
    by_index = st.builds(index_step, inner, st.integers(-2, 3).map(number))
    return (by_key | by_index).filter(lambda node: not _is_range(node.this))


def _is_range(node: Tree) -> bool:
    return isinstance(node, exp.Bracket) and isinstance(node.expressions[0], exp.Slice)


def _extend(inner: st.SearchStrategy[Tree]) -> st.SearchStrategy[Tree]:
    listed = st.lists(inner, min_size=1, max_size=3)
    return (
        _binary(inner)
        | _binary(inner)
        | inner.map(lambda node: exp.Neg(this=node))
        | inner.map(lambda node: exp.Not(this=node))
        | inner.map(lambda node: exp.Is(this=node, expression=exp.Null()))
        | st.builds(lambda node, items: exp.In(this=node, expressions=items), inner, listed)
        | st.builds(
            lambda node, low, high: exp.Between(this=node, low=low, high=high), inner, inner, inner
        )
        | _like(inner)
        | _case(inner)
        | _call(inner)
        | _steps(inner)
        | st.lists(inner, max_size=3).map(lambda items: exp.Array(expressions=items))
        | st.dictionaries(st.sampled_from(KEYS), inner, max_size=2).map(_members)
        | st.builds(
            lambda left, right: exp.Anonymous(this="topic_match", expressions=[left, right]),
            inner,
            inner,
        )
    )


WILD = st.recursive(LEAVES, _extend, max_leaves=6)


def _extend_safely(inner: st.SearchStrategy[Tree]) -> st.SearchStrategy[Tree]:
    """What fails on no value, or seldom."""
    kinds = st.sampled_from((exp.DPipe, exp.EQ, exp.NEQ))
    return (
        st.builds(lambda kind, left, right: kind(this=left, expression=right), kinds, inner, inner)
        | inner.map(lambda node: exp.Not(this=node))
        | inner.map(lambda node: exp.Is(this=node, expression=exp.Null()))
        | st.builds(
            lambda node, items: exp.In(this=node, expressions=items),
            inner,
            st.lists(inner, min_size=1),
        )
        | _case(inner)
        | _steps(inner)
        | st.builds(
            lambda one, two: exp.Anonymous(this="coalesce", expressions=[one, two]), inner, inner
        )
        | st.lists(inner, max_size=3).map(lambda items: exp.Array(expressions=items))
        | st.dictionaries(st.sampled_from(KEYS), inner, max_size=2).map(_members)
    )


SAFE = st.recursive(paths() | paths() | LITERALS, _extend_safely, max_leaves=4)
EXPRESSIONS = SAFE | SAFE | SAFE | WILD
TESTS = (
    SAFE.map(lambda node: exp.Is(this=node, expression=exp.Null()))
    | st.builds(lambda node, item: exp.NEQ(this=node, expression=item), paths(), LITERALS)
    | st.builds(
        lambda node, items: exp.In(this=node, expressions=items),
        paths(),
        st.lists(SAFE, min_size=1, max_size=2),
    )
)


@st.composite
def targets(draw: Any) -> Tree:
    path: Tree = draw(paths(("a", "b", "x", "payload", "clientid"), is_target=True))
    return path.this if isinstance(path, exp.Column) else path


FIELDS = (
    st.builds(lambda value, target: exp.Alias(this=value, alias=target), EXPRESSIONS, targets())
    | paths()
    | EXPRESSIONS
    | st.builds(exp.Star)
)


def _where(condition: Tree | None) -> exp.Where | None:
    return None if condition is None else exp.Where(this=condition)


def select(fields: list[Tree], condition: Tree | None, jq: str | None = None) -> exp.Select:
    tree = exp.Select(expressions=fields)
    if jq is not None:
        tree.set("jq", exp.Anonymous(this="jq", expressions=[exp.Literal.string(jq), exp.Star()]))
    tree.set("from_", exp.From(this=exp.Table(this=identifier("t/#", True))))
    tree.set("joins", [])
    if condition is not None:
        tree.set("where", _where(condition))
    return tree


def foreach(
    earlier: list[Tree],
    walked: Tree,
    alias: str | None,
    fields: list[Tree],
    incase: Tree | None,
    where: Tree | None,
) -> exp.Select:
    last = walked if alias is None else exp.Alias(this=walked, alias=identifier(alias))
    tree = select(fields, where)
    tree.set("foreach", [*earlier, last])
    if incase is not None:
        tree.set("incase", _where(incase))
    return tree


CONDITIONS = (
    st.none()
    | TESTS
    | TESTS.map(lambda test: exp.Not(this=test))
    | st.builds(
        lambda kind, *both: kind(this=both[0], expression=both[1]),
        st.sampled_from((exp.And, exp.Or)),
        TESTS,
        TESTS,
    )
    | EXPRESSIONS
)
SELECTS = st.builds(select, st.lists(FIELDS, min_size=1, max_size=4), CONDITIONS)
PIPED = st.builds(
    select,
    st.lists(FIELDS, min_size=1, max_size=2),
    CONDITIONS,
    st.sampled_from((".", "{a: .a}, {b: 'x'}")),
)
MEMBERS = st.builds(lambda key: key_step(column("payload"), key), st.sampled_from(("l", "l", "x")))
WALKED = MEMBERS | MEMBERS | MEMBERS | paths() | EXPRESSIONS
SOMETIMES = st.none() | st.none() | CONDITIONS
FOREACHES = st.builds(
    foreach,
    st.lists(FIELDS, max_size=2),
    WALKED,
    st.sampled_from((None, "x", "a")),
    st.lists(FIELDS, min_size=1, max_size=3) | st.builds(lambda: [exp.Star()]),
    SOMETIMES,
    SOMETIMES,
)
STATEMENTS = SELECTS | SELECTS | FOREACHES
