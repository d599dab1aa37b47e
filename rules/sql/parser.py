"""Tokens to a tree of stock sqlglot nodes (``tree`` says which node means what), by recursive descent.

A parser of our own, because the language is not quite SQL (paths with indexes, ranges, FOREACH, double quotes that
are never strings) and because every error must name its place and what was expected there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn

from sqlglot import exp

from rules.sql.lexer import Token, syntax_error, tokens
from rules.sql.tree import Node, Tree, place

MAX_DEPTH = 40
"""Deepest nesting of expressions; the parser takes eleven Python frames for each level."""
MAX_CHAIN = 150
"""Most sums or products in a row, which are a tree as deep."""

_COMPARISONS: dict[str, type[exp.Binary]] = {
    "=": exp.EQ, "!=": exp.NEQ, "<>": exp.NEQ, "<": exp.LT, "<=": exp.LTE, ">": exp.GT, ">=": exp.GTE,
}  # fmt: skip
_SUMS: dict[str, type[exp.Binary]] = {"+": exp.Add, "-": exp.Sub, "||": exp.DPipe}
_PRODUCTS: dict[str, type[exp.Binary]] = {"*": exp.Mul, "/": exp.Div, "div": exp.IntDiv, "mod": exp.Mod}


def parse(sql: str) -> exp.Select:
    """The tree of a statement.

    Raises:
        Invalid: one problem with line, column and what was expected.
    """
    return _Parser(tokens(sql)).statement()


class _Parser:
    def __init__(self, found: list[Token]) -> None:
        self._tokens = found
        self._at = 0
        self._depth = 0

    # Statement

    def statement(self) -> exp.Select:
        start = self._now
        if self._accept_keyword("SELECT"):
            tree = self._select(start)
        elif self._accept_keyword("FOREACH"):
            tree = self._foreach(start)
        elif start.kind == "end":
            self._fail("the SQL is empty; a rule begins with SELECT or FOREACH")
        else:
            self._fail(f"a rule begins with SELECT or FOREACH, not {start}")
        self._accept("op", ";")
        if self._now.kind != "end":
            self._fail(f"unexpected {self._now} after the end of the statement")
        return tree

    def _select(self, start: Token) -> exp.Select:
        return self._with_source(self._placed(exp.Select(expressions=self._fields()), start))

    def _foreach(self, start: Token) -> exp.Select:
        items = self._fields()
        if isinstance(items[-1], exp.Star):
            self._fail("the last item of FOREACH must be an array to walk, not *")
        outer = self._placed(exp.Select(), start)
        outer.set("expressions", self._fields() if self._accept_keyword("DO") else [self._placed(exp.Star(), start)])
        if self._accept_keyword("INCASE"):
            outer.set("where", exp.Where(this=self._condition()))
        inner = self._with_source(self._placed(exp.Select(expressions=items), start))
        outer.set("from_", exp.From(this=exp.Subquery(this=inner)))
        last = items[-1]
        outer.meta["foreach"] = last.alias if isinstance(last, exp.Alias) else "item"
        if isinstance(last, exp.Alias) and not isinstance(last.args["alias"], exp.Identifier):
            self._fail("the alias of the array that FOREACH walks must be a plain name")
        return outer

    def _with_source(self, tree: exp.Select) -> exp.Select:
        if not self._accept_keyword("FROM"):
            self._expected("FROM")
        first, *others = self._sources()
        tree.set("from_", exp.From(this=first))
        tree.set("joins", [exp.Join(this=other) for other in others])
        if self._accept_keyword("WHERE"):
            tree.set("where", exp.Where(this=self._condition()))
        return tree

    def _sources(self) -> list[exp.Table]:
        found = []
        while True:
            token = self._now
            if token.kind not in ("name", "quoted", "string"):
                self._expected("a topic filter in double quotes")
            if not token.text:
                self._fail("a topic filter must not be empty")
            self._at += 1
            found.append(self._placed(exp.Table(this=exp.Identifier(this=token.text, quoted=True)), token))
            if not self._accept("op", ","):
                return found

    def _fields(self) -> list[Tree]:
        fields = [self._field()]
        while self._accept("op", ","):
            fields.append(self._field())
        return fields

    def _field(self) -> Tree:
        token = self._now
        if self._accept("op", "*"):
            return self._placed(exp.Star(), token)
        value = self._condition()
        if self._accept_keyword("AS"):
            return self._placed(exp.Alias(this=value, alias=self._target()), token)
        if self._now.kind in ("name", "quoted"):
            return self._placed(exp.Alias(this=value, alias=self._target()), token)
        return value

    def _target(self) -> Tree:
        token = self._now
        if token.kind not in ("name", "quoted"):
            self._expected("a name after AS")
        self._at += 1
        path = self._steps(self._column(token), is_target=True)
        return path.this if isinstance(path, exp.Column) else path

    # Conditions and expressions, lowest precedence first

    def _condition(self) -> Tree:
        return self._deeper(self._or)

    def _or(self) -> Tree:
        left = self._and()
        while self._accept_keyword("OR"):
            left = self._binary(exp.Or, left, self._and())
        return left

    def _and(self) -> Tree:
        left = self._not()
        while self._accept_keyword("AND"):
            left = self._binary(exp.And, left, self._not())
        return left

    def _not(self) -> Tree:
        token = self._now
        if self._accept_keyword("NOT"):
            return self._placed(exp.Not(this=self._deeper(self._not)), token)
        return self._comparison()

    def _comparison(self) -> Tree:
        left = self._sum()
        token = self._now
        if token.kind == "op" and (token.text in _COMPARISONS or token.text == "=~"):
            self._at += 1
            right = self._sum()
            if self._now.kind == "op" and (self._now.text in _COMPARISONS or self._now.text == "=~"):
                self._fail("comparisons cannot be chained", "write a < b and b < c")
            if token.text == "=~":
                return self._at_place_of(exp.Anonymous(this="topic_match", expressions=[left, right]), left)
            return self._binary(_COMPARISONS[token.text], left, right)
        if self._now.kind == "name":
            return self._worded(left)
        return self._membership(left)

    def _worded(self, left: Tree) -> Tree:
        """``IS [NOT] NULL`` and ``BETWEEN low AND high``; these words are ordinary names elsewhere."""
        word, after = self._now.text.upper(), self._tokens[self._at + 1]
        if word == "IS" and (after.text in ("NOT", "NULL") or after.text.upper() == "NULL"):
            self._at += 1
            test = "is_not_null_var" if self._accept_keyword("NOT") else "is_null_var"
            if self._now.text.upper() != "NULL":
                self._expected("NULL")
            self._at += 1
            return self._at_place_of(exp.Anonymous(this=test, expressions=[left]), left)
        if word == "BETWEEN" and self._begins_operand(self._at + 1):
            self._at += 1
            low = self._sum()
            if not self._accept_keyword("AND"):
                self._expected("AND")
            high = self._sum()
            above, below = self._binary(exp.GTE, left, low), self._binary(exp.LTE, left.copy(), high)
            return self._binary(exp.And, above, below)
        return left

    def _membership(self, left: Tree) -> Tree:
        negated = self._now.kind == "keyword" and self._now.text == "NOT" and self._peek_keyword("IN")
        if negated:
            self._at += 1
        if not self._accept_keyword("IN"):
            return left
        self._need("op", "(")
        items = [self._condition()]
        while self._accept("op", ","):
            items.append(self._condition())
        self._need("op", ")")
        found: Tree = self._at_place_of(exp.In(this=left, expressions=items), left)
        return self._at_place_of(exp.Not(this=found), left) if negated else found

    def _sum(self) -> Tree:
        return self._chain(_SUMS, self._product)

    def _product(self) -> Tree:
        return self._chain(_PRODUCTS, self._unary)

    def _chain(self, operators: dict[str, type[exp.Binary]], operand: Callable[[], Tree]) -> Tree:
        left, length = operand(), 0
        while self._now.kind in ("op", "name") and self._now.text in operators:
            if self._now.kind == "name" and not self._begins_operand(self._at + 1):
                return left
            kind = operators[self._now.text]
            self._at += 1
            left, length = self._binary(kind, left, operand()), length + 1
            if length > MAX_CHAIN:
                self._fail(f"more than {MAX_CHAIN} operators in a row", "use concat or several columns")
        return left

    def _begins_operand(self, at: int) -> bool:
        """Whether ``div`` or ``mod`` before this token is an operator and not an alias of that name."""
        token = self._tokens[at]
        return token.kind in ("name", "number", "quoted", "string") or token.text in ("(", "[", "-", "+", "CASE")

    def _unary(self) -> Tree:
        token = self._now
        if self._accept("op", "-"):
            return self._placed(exp.Neg(this=self._deeper(self._unary)), token)
        if self._accept("op", "+"):
            return self._deeper(self._unary)
        return self._operand()

    def _operand(self) -> Tree:
        token = self._now
        if token.kind == "number":
            return self._number(token)
        if token.kind == "string":
            self._at += 1
            return self._placed(exp.Literal.string(token.text), token)
        if token.kind in ("name", "quoted"):
            return self._name(token)
        if self._accept("op", "("):
            inner = self._condition()
            self._need("op", ")")
            return self._refuse_steps(self._placed(exp.Paren(this=inner), token), "an expression in parentheses")
        if self._accept("op", "["):
            return self._refuse_steps(self._list(token), "a list or range literal")
        if self._accept_keyword("CASE"):
            return self._case(token)
        return self._no_operand(token)

    def _no_operand(self, token: Token) -> NoReturn:
        if token.kind == "keyword":
            self._fail(
                f"expected a value, found the keyword {token.text}",
                f'a column of that name is written "{token.text.lower()}"' if token.text != "FROM" else None,
            )
        self._expected("a value")

    def _number(self, token: Token) -> Tree:
        self._at += 1
        if self._now.kind == "op" and self._now.text == ".":
            self._fail(f"'{token.text}.' is no number and no path", "write digits on both sides of the point")
        return self._placed(exp.Literal.number(token.text), token)

    def _name(self, token: Token) -> Tree:
        self._at += 1
        if token.kind == "name":
            if self._is("("):
                return self._refuse_steps(self._call(token.text, token), "a function result")
            if token.text.lower() in ("true", "false"):
                return self._placed(exp.Boolean(this=token.text.lower() == "true"), token)
            if token.text == "NULL":
                return self._placed(exp.Null(), token)
        return self._steps(self._column(token), is_target=False)

    def _column(self, token: Token) -> exp.Column:
        identifier = exp.Identifier(this=token.text, quoted=token.kind == "quoted")
        return self._placed(exp.Column(this=self._placed(identifier, token)), token)

    def _steps(self, path: Tree, *, is_target: bool) -> Tree:
        while True:
            if self._accept("op", "."):
                path = self._key(path)
                if self._is("(") and not is_target:
                    return self._call(_dotted(path), self._tokens[self._at - 1])
            elif self._is("["):
                path = self._index(path, is_target=is_target)
                if isinstance(path.expressions[0], exp.Slice):
                    return self._refuse_steps(path, "a range")
            else:
                return path

    def _key(self, path: Tree) -> Tree:
        token = self._now
        if token.kind == "number" and not token.text.isdigit():
            digits = ".".join(f"'{part}'" for part in token.text.split("."))
            self._fail(f"'.{token.text}' is ambiguous in a path", f"write .{digits}")
        if token.kind == "keyword":
            self._fail(f"the keyword {token.text} cannot be a key", f'write ."{token.text.lower()}"')
        if token.kind not in ("name", "number", "string", "quoted"):
            self._expected("a key after '.'")
        self._at += 1
        return self._at_place_of(exp.Dot(this=path, expression=exp.Identifier(this=token.text, quoted=True)), path)

    def _index(self, path: Tree, *, is_target: bool) -> Tree:
        self._need("op", "[")
        token = self._now
        first = self._deeper(self._index_value)
        if self._is(".."):
            if is_target:
                self._fail("a range cannot be written to", "write one index")
            self._at += 1
            last = self._index_value()
            if not (_is_integer(first) and _is_integer(last)):
                self._fail("the ends of a range must be integers")
            first = self._placed(exp.Slice(this=first, expression=last), token)
        self._need("op", "]")
        return self._at_place_of(exp.Bracket(this=path, expressions=[first]), path)

    def _index_value(self) -> Tree:
        token = self._now
        sign = self._accept("op", "-") or (self._accept("op", "+") and None)
        value = self._now
        if value.kind == "number" and value.text.isdigit():
            self._at += 1
            literal: Tree = self._placed(exp.Literal.number(value.text), value)
            return self._placed(exp.Neg(this=literal), token) if sign else literal
        if value.kind in ("name", "quoted") and value is token:
            self._at += 1
            return self._steps(self._column(value), is_target=True)
        return self._expected("an index: an integer, a column or a path")

    def _list(self, token: Token) -> Tree:
        if self._accept("op", "]"):
            return self._placed(exp.Array(expressions=[]), token)
        items = [self._condition()]
        if self._accept("op", ".."):
            last = self._condition()
            if not (_is_integer(items[0]) and _is_integer(last)):
                self._fail("the ends of a range must be integers")
            self._need("op", "]")
            return self._placed(exp.GenerateSeries(start=items[0], end=last), token)
        while self._accept("op", ","):
            items.append(self._condition())
        self._need("op", "]")
        return self._placed(exp.Array(expressions=items), token)

    def _call(self, name: str, token: Token) -> Tree:
        self._need("op", "(")
        arguments = []
        if not self._is(")"):
            arguments.append(self._condition())
            while self._accept("op", ","):
                arguments.append(self._condition())
        if not self._accept("op", ")"):
            self._expected(f"',' or ')' in the arguments of {name}")
        return self._placed(exp.Anonymous(this=name, expressions=arguments), token)

    def _case(self, token: Token) -> Tree:
        subject = None if self._now.text == "WHEN" else self._condition()
        branches = []
        while self._accept_keyword("WHEN"):
            test = self._condition()
            if not self._accept_keyword("THEN"):
                self._expected("THEN")
            branches.append(exp.If(this=test, true=self._condition()))
        if not branches:
            self._expected("WHEN")
        default = self._condition() if self._accept_keyword("ELSE") else None
        if not self._accept_keyword("END"):
            self._expected("WHEN, ELSE or END")
        return self._placed(exp.Case(this=subject, ifs=branches, default=default), token)

    def _refuse_steps(self, node: Tree, what: str) -> Tree:
        if self._is(".") or self._is("["):
            self._fail(f"{what} cannot be followed by a key or an index", "give it a name first: ... AS x, x.key")
        return node

    # Tokens

    @property
    def _now(self) -> Token:
        return self._tokens[self._at]

    def _is(self, text: str) -> bool:
        return self._now.kind == "op" and self._now.text == text

    def _accept(self, kind: str, text: str) -> bool:
        if self._now.kind == kind and self._now.text == text:
            self._at += 1
            return True
        return False

    def _accept_keyword(self, word: str) -> bool:
        return self._accept("keyword", word)

    def _peek_keyword(self, word: str) -> bool:
        token = self._tokens[self._at + 1]
        return token.kind == "keyword" and token.text == word

    def _need(self, kind: str, text: str) -> None:
        if not self._accept(kind, text):
            self._expected(f"'{text}'")

    def _expected(self, what: str) -> NoReturn:
        token = self._now
        hint = "write = to compare" if token.text == "=" and self._tokens[self._at - 1].text == "=" else None
        self._fail(f"expected {what}, found {token}", hint)

    def _fail(self, message: str, suggestion: str | None = None) -> NoReturn:
        raise syntax_error(message, self._now.line, self._now.column, suggestion)

    def _deeper(self, parse_part: Callable[[], Tree]) -> Tree:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            self._fail(f"expressions nest deeper than {MAX_DEPTH} levels")
        try:
            return parse_part()
        finally:
            self._depth -= 1

    # Nodes

    def _placed(self, node: Node, token: Token) -> Node:
        return place(node, token.line, token.column)

    def _at_place_of(self, node: Node, other: Tree) -> Node:
        return place(node, other.meta["line"], other.meta["column"])

    def _binary(self, kind: type[exp.Binary], left: Tree, right: Tree) -> Tree:
        return self._at_place_of(kind(this=left, expression=right), left)


def _is_integer(node: Tree) -> bool:
    if isinstance(node, exp.Neg):
        node = node.this
    return isinstance(node, exp.Literal) and not node.is_string and node.name.isdigit()


def _dotted(path: Tree) -> str:
    names = []
    while isinstance(path, exp.Dot):
        names.append(path.expression.name)
        path = path.this
    return ".".join([path.name, *reversed(names)])
