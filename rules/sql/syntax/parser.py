"""Tokens to a tree of stock sqlglot nodes (``tree`` says which node means what), by recursive descent.

A parser of our own, because the language is not quite SQL (paths with indexes, ranges, FOREACH, double quotes that
are never strings) and because every error must name its place and what was expected there.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final, NoReturn

from sqlglot import exp

from rules.sql.syntax import syntax_hints
from rules.sql.syntax.lexer import Token, Tokens, shortened, syntax_error
from rules.sql.syntax.tree import Node, Tree, place

# Deepest nesting of expressions; the parser takes fifteen Python frames for each level.
MAX_DEPTH = 40
# Maximum sums, products or steps of a path in a row, which are a tree as deep.
MAX_CHAIN = 150
# Maximum conditions joined by AND, or by OR.
MAX_CONDITIONS = 1_000

_COMPARISONS: dict[str, type[exp.Binary]] = {
    "=": exp.EQ, "!=": exp.NEQ, "<>": exp.NEQ, "<": exp.LT, "<=": exp.LTE, ">": exp.GT, ">=": exp.GTE,
}  # fmt: skip
_SUMS: dict[str, type[exp.Binary]] = {"+": exp.Add, "-": exp.Sub, "||": exp.DPipe}
_PRODUCTS: dict[str, type[exp.Binary]] = {
    "*": exp.Mul,
    "/": exp.Div,
    "div": exp.IntDiv,
    "mod": exp.Mod,
}
# Operators that are ordinary names elsewhere, as DIV, MOD, JQ, ESCAPE and NULL are.
_WORDS: Final = frozenset({"IS", "BETWEEN", "LIKE"})
# After a name ``jq`` that is an alias.
_NO_PROGRAM: Final = re.compile(r"\s*(?:,|;|$|(?:FROM|DO|INCASE)\b)", re.IGNORECASE)
# After JQ in capitals, which begins a block with a value; in small letters ``jq`` is a name.
_VALUE: Final = re.compile(
    r"""\s*(?!(?:FROM|AS|DO|INCASE|WHERE|WHEN|THEN|ELSE|END|AND|OR|NOT|IN)\b)[\w"'(\[{+-]""",
    re.IGNORECASE,
)
_ONLY_INTEGERS: Final = "write them as numbers; nth(i, array) takes any index"
_EMPTY_PROGRAM: Final = "write . for the value as it is"
_QUOTED: Final = re.compile(r"\s*'")


def parse(sql: str) -> exp.Select:
    """The tree of a statement.

    Raises:
        Invalid: one problem with line, column and what was expected.
    """
    return parse_tokens(Tokens(sql))


def parse_tokens(tokens: Tokens) -> exp.Select:
    """The tree of a statement, as ``parse``; the tokens then have its comments."""
    return _Parser(tokens).statement()


class _Parser:
    def __init__(self, tokens: Tokens) -> None:
        self._tokens = tokens
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
            self._fail(
                f"a rule begins with SELECT or FOREACH, not {start}",
                syntax_hints.keyword(start, "SELECT", "FOREACH"),
            )
        self._accept("op", ";")
        if self._now.kind != "end":
            before = self._tokens[self._at - 1]
            hint = syntax_hints.after_the_end(self._now, before, has_where="where" in tree.args)
            self._fail(f"unexpected {self._now} after the end of the statement", hint)
        return tree

    def _select(self, start: Token) -> exp.Select:
        tree = self._placed(exp.Select(expressions=self._fields()), start)
        if self._is_jq_clause():
            tree.set("jq", self._jq_clause())
        return self._with_source(tree)

    def _is_jq_clause(self) -> bool:
        token = self._now
        return (
            token.kind == "name"
            and token.text.upper() == "JQ"
            and not self._tokens.follows(token, _NO_PROGRAM)
        )

    def _jq_clause(self) -> Tree:
        """``JQ program``: a call of ``jq`` on the row, which is written as ``*``. The program may be quoted."""
        token = self._now
        self._at += 1
        row = self._placed(exp.Star(), token)
        if self._tokens.follows(token, _QUOTED):
            program = self._now
            if not program.text.strip():
                self._fail("the jq program is empty", _EMPTY_PROGRAM)
        else:
            program = self._program("FROM")
        self._at += 1
        return self._jq_call(token, program, row)

    def _program(self, word: str) -> Token:
        """The jq program from here to a keyword."""
        token = self._tokens.program(self._at - 1, word)
        if not token.text:
            self._fail("the jq program is empty", _EMPTY_PROGRAM)
        return token

    def _jq_call(self, token: Token, program: Token, value: Tree) -> Tree:
        literal = self._placed(exp.Literal.string(program.text), program)
        return self._placed(exp.Anonymous(this="jq", expressions=[literal, value]), token)

    def _foreach(self, start: Token) -> exp.Select:
        items = self._fields()
        if isinstance(items[-1], exp.Star):
            self._fail("the last item of FOREACH must be an array to walk, not *")
        fields = self._fields() if self._accept_keyword("DO") else [self._placed(exp.Star(), start)]
        tree = self._placed(exp.Select(foreach=items, expressions=fields), start)
        if self._accept_keyword("INCASE"):
            tree.set("incase", exp.Where(this=self._condition()))
        self._with_source(tree)
        last = items[-1]
        if isinstance(last, exp.Alias) and not isinstance(last.args["alias"], exp.Identifier):
            self._fail("the alias of the array that FOREACH walks must be a plain name")
        return tree

    def _with_source(self, tree: exp.Select) -> exp.Select:
        if not self._accept_keyword("FROM"):
            before = self._tokens[self._at - 1]
            self._expected(
                "FROM",
                syntax_hints.instead_of_from(self._now, before, in_foreach="foreach" in tree.args),
            )
        first, *others = self._sources()
        tree.set("from_", exp.From(this=first))
        tree.set("joins", [exp.Join(this=other) for other in others])
        if self._accept_keyword("WHERE"):
            tree.set("where", exp.Where(this=self._condition()))
        return tree

    def _sources(self) -> list[exp.Table]:
        clauses = []
        while True:
            token = self._now
            if token.kind not in ("name", "quoted", "string"):
                self._expected("a topic filter in double quotes")
            if not token.text:
                self._fail("a topic filter must not be empty")
            self._at += 1
            clauses.append(
                self._placed(exp.Table(this=exp.Identifier(this=token.text, quoted=True)), token)
            )
            if not self._accept("op", ","):
                return clauses

    def _fields(self) -> list[Tree]:
        return self._listed(self._field)

    def _listed(self, parse_one: Callable[[], Tree]) -> list[Tree]:
        """One or more, with commas between."""
        items = [parse_one()]
        while self._accept("op", ","):
            items.append(parse_one())
        return items

    def _field(self) -> Tree:
        token = self._now
        if self._accept("op", "*"):
            return self._placed(exp.Star(), token)
        value = self._condition()
        if self._accept_keyword("AS"):
            return self._placed(exp.Alias(this=value, alias=self._target()), token)
        if self._now.kind in ("name", "quoted") and not self._is_jq_clause():
            return self._placed(exp.Alias(this=value, alias=self._target()), token)
        return value

    def _target(self) -> Tree:
        token = self._now
        if token.kind not in ("name", "quoted"):
            self._expected("a name after AS", syntax_hints.quoted_name(token))
        self._at += 1
        path = self._steps(self._column(token), is_target=True)
        return path.this if isinstance(path, exp.Column) else path

    # Conditions and expressions, lowest precedence first

    def _condition(self) -> Tree:
        return self._deeper(self._or)

    def _or(self) -> Tree:
        return self._joined("OR", exp.Or, self._and)

    def _and(self) -> Tree:
        return self._joined("AND", exp.And, self._not)

    def _joined(self, word: str, kind: type[exp.Binary], operand: Callable[[], Tree]) -> Tree:
        left = operand()
        count = 1
        while self._accept_keyword(word):
            left = self._binary(kind, left, operand())
            count = count + 1
            if count > MAX_CONDITIONS:
                self._fail(
                    f"more than {MAX_CONDITIONS} conditions joined by {word}",
                    "use IN (...) or several rules",
                )
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
            if self._now.kind == "op" and (
                self._now.text in _COMPARISONS or self._now.text == "=~"
            ):
                self._fail("comparisons cannot be chained", "write a < b and b < c")
            if token.text == "=~":
                return self._at_place_of(
                    exp.Anonymous(this="topic_match", expressions=[left, right]), left
                )
            return self._binary(_COMPARISONS[token.text], left, right)
        negated = (
            token.kind == "keyword"
            and token.text == "NOT"
            and self._negates(self._tokens[self._at + 1])
        )
        if negated:
            self._at += 1
        tested = self._worded(left)
        return self._at_place_of(exp.Not(this=tested), left) if negated else tested

    def _negates(self, token: Token) -> bool:
        """True if NOT before this token belongs to it, as in NOT IN."""
        if token.kind == "keyword":
            return token.text == "IN"
        return token.kind == "name" and token.text.upper() in ("BETWEEN", "LIKE")

    def _worded(self, left: Tree) -> Tree:
        """A test that is a word: IN, IS NULL, BETWEEN, LIKE."""
        if self._accept_keyword("IN"):
            return self._membership(left)
        word = self._now.text.upper() if self._now.kind == "name" else ""
        if word not in _WORDS:
            return left
        after = self._tokens[self._at + 1]
        if word == "IS":
            return (
                self._is_null(left) if after.text == "NOT" or after.text.upper() == "NULL" else left
            )
        if not self._begins_operand(self._at + 1):
            return left
        self._at += 1
        return self._between(left) if word == "BETWEEN" else self._like(left)

    def _is_null(self, left: Tree) -> Tree:
        self._at += 1
        negated = self._accept_keyword("NOT")
        null = self._now
        if null.kind != "name" or null.text.upper() != "NULL":
            self._expected("NULL", "IS tests for NULL only; compare with = or !=")
        self._at += 1
        test = self._at_place_of(exp.Is(this=left, expression=self._placed(exp.Null(), null)), left)
        return self._at_place_of(exp.Not(this=test), left) if negated else test

    def _between(self, left: Tree) -> Tree:
        low = self._sum()
        if not self._accept_keyword("AND"):
            self._expected("AND and the upper end of BETWEEN")
        return self._at_place_of(exp.Between(this=left, low=low, high=self._sum()), left)

    def _like(self, left: Tree) -> Tree:
        like = self._at_place_of(exp.Like(this=left, expression=self._sum()), left)
        is_escape = self._now.kind == "name" and self._now.text.upper() == "ESCAPE"
        if not is_escape or self._tokens[self._at + 1].kind != "string":
            return like
        self._at += 1
        sign = self._now
        if len(sign.text) != 1:
            self._fail("the sign after ESCAPE must be one character")
        self._at += 1
        escape = self._placed(exp.Literal.string(sign.text), sign)
        return self._at_place_of(exp.Escape(this=like, expression=escape), left)

    def _membership(self, left: Tree) -> Tree:
        if not self._accept("op", "("):
            self._expected(
                "'('", "write values in parentheses: IN (1, 2); for an array use contains(x, array)"
            )
        items = self._listed(self._condition)
        self._need("op", ")")
        return self._at_place_of(exp.In(this=left, expressions=items), left)

    def _sum(self) -> Tree:
        return self._chain(_SUMS, self._product)

    def _product(self) -> Tree:
        return self._chain(_PRODUCTS, self._unary)

    def _chain(self, operators: dict[str, type[exp.Binary]], operand: Callable[[], Tree]) -> Tree:
        left = operand()
        length = 0
        while self._now.kind in ("op", "name") and self._now.text in operators:
            if self._now.kind == "name" and not self._begins_operand(self._at + 1):
                return left
            kind = operators[self._now.text]
            self._at += 1
            left = self._binary(kind, left, operand())
            length = length + 1
            if length > MAX_CHAIN:
                self._fail(
                    f"more than {MAX_CHAIN} operators in a row", "use concat or several columns"
                )
        return left

    def _begins_operand(self, at: int) -> bool:
        """True if ``div`` or ``mod`` before this token is an operator and not an alias of that name."""
        token = self._tokens[at]
        return token.kind in ("name", "number", "quoted", "string") or token.text in (
            "(",
            "[",
            "{",
            "-",
            "+",
            "CASE",
        )

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
            return self._steps(self._placed(exp.Paren(this=inner), token), is_target=False)
        if self._accept("op", "["):
            return self._steps(self._list(token), is_target=False)
        if self._accept("op", "{"):
            return self._steps(self._map(token), is_target=False)
        if self._accept_keyword("CASE"):
            return self._case(token)
        return self._no_operand(token)

    def _no_operand(self, token: Token) -> NoReturn:
        hint = syntax_hints.no_value(token, self._tokens[self._at - 1] if self._at else None)
        if token.kind == "keyword":
            self._fail(f"expected a value, found the keyword {token.text}", hint)
        self._expected("a value", hint)

    def _number(self, token: Token) -> Tree:
        self._at += 1
        if self._now.kind == "op" and self._now.text == ".":
            hint = "write digits on both sides of the point"
            self._fail(f"'{shortened(token.text)}.' is neither a number nor a path", hint)
        return self._placed(exp.Literal.number(token.text), token)

    def _name(self, token: Token) -> Tree:
        self._at += 1
        if token.kind == "name":
            if token.text == "JQ" and self._tokens.follows(token, _VALUE):
                return self._steps(self._jq_block(token), is_target=False)
            if self._is("("):
                return self._steps(self._call(token.text, token), is_target=False)
            if token.text.lower() in ("true", "false"):
                return self._placed(exp.Boolean(this=token.text.lower() == "true"), token)
            if token.text == "NULL":
                return self._placed(exp.Null(), token)
        return self._steps(self._column(token), is_target=False)

    def _column(self, token: Token) -> exp.Column:
        identifier = exp.Identifier(this=token.text, quoted=token.kind == "quoted")
        return self._placed(exp.Column(this=self._placed(identifier, token)), token)

    def _steps(self, path: Tree, *, is_target: bool) -> Tree:
        """The value with the keys and indexes that follow it."""
        if isinstance(path, exp.GenerateSeries):
            return self._refuse_steps(path, "a range literal")
        count = 0
        while self._is(".") or self._is("["):
            count += 1
            if count > MAX_CHAIN:
                self._fail(f"a path has more than {MAX_CHAIN} steps")
            if self._accept("op", "."):
                path = self._key(path)
                if self._is("(") and not is_target:
                    name = self._tokens[self._at - 1]
                    return self._steps(self._call(self._dotted(path), name), is_target=False)
            else:
                path = self._index(path, is_target=is_target)
                if isinstance(path.expressions[0], exp.Slice):
                    return self._refuse_steps(path, "a range")
        return path

    def _dotted(self, path: Tree) -> str:
        """The name of a function that is written like a path."""
        names = []
        while isinstance(path, exp.Dot):
            names.append(path.expression.name)
            path = path.this
        if not isinstance(path, exp.Column):
            self._fail("a function cannot be called on a value", "write f(value)")
        return ".".join([path.name, *reversed(names)])

    def _key(self, path: Tree) -> Tree:
        token = self._now
        if token.kind == "number" and not token.text.isdigit():
            digits = ".".join(f"'{part}'" for part in token.text.split("."))
            self._fail(f"'.{shortened(token.text)}' is ambiguous in a path", f"write .{digits}")
        if token.kind == "keyword":
            self._fail(
                f"the keyword {token.text} cannot be a key", f'write ."{token.text.lower()}"'
            )
        if token.kind not in ("name", "number", "string", "quoted"):
            self._expected("a key after '.'")
        self._at += 1
        return self._at_place_of(
            exp.Dot(this=path, expression=exp.Identifier(this=token.text, quoted=True)), path
        )

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
                self._fail("the ends of a range must be integers", _ONLY_INTEGERS)
            first = self._placed(exp.Slice(this=first, expression=last), token)
        if not self._accept("op", "]"):
            self._expected("']'", syntax_hints.in_index(self._now))
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
        return self._expected("an index: an integer, a column or a path", syntax_hints.index(value))

    def _list(self, token: Token) -> Tree:
        if self._accept("op", "]"):
            return self._placed(exp.Array(expressions=[]), token)
        items = self._listed(self._condition)
        if len(items) == 1 and self._accept("op", ".."):
            last = self._condition()
            if not (_is_integer(items[0]) and _is_integer(last)):
                self._fail("the ends of a range must be integers", _ONLY_INTEGERS)
            self._need("op", "]")
            return self._placed(exp.GenerateSeries(start=items[0], end=last), token)
        self._need("op", "]")
        return self._placed(exp.Array(expressions=items), token)

    def _map(self, token: Token) -> Tree:
        """``{key: value, ...}``; a key is a name or is in quotes of either kind."""
        members: list[Tree] = []
        while not members or self._accept("op", ","):
            if not members and self._is("}"):
                break
            key = self._now
            if key.kind not in ("name", "string", "quoted"):
                self._expected("a key of the map", syntax_hints.map_key(key))
            self._at += 1
            self._need("op", ":")
            name = self._placed(exp.Identifier(this=key.text, quoted=True), key)
            members.append(
                self._placed(exp.PropertyEQ(this=name, expression=self._condition()), key)
            )
        self._need("op", "}")
        return self._placed(exp.Struct(expressions=members), token)

    def _jq_block(self, token: Token) -> Tree:
        """``JQ value DO program END``, a call of ``jq``."""
        value = self._condition()
        if self._now.kind != "keyword" or self._now.text != "DO":
            self._expected("DO and the jq program")
        self._at += 1
        program = self._program("END")
        self._at += 1
        if not self._accept_keyword("END"):
            self._expected("END")
        return self._jq_call(token, program, value)

    def _call(self, name: str, token: Token) -> Tree:
        self._need("op", "(")
        arguments = [] if self._is(")") else self._listed(self._condition)
        if not self._accept("op", ")"):
            self._expected(
                f"',' or ')' in the arguments of {name}", syntax_hints.in_arguments(self._now, name)
            )
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
            self._fail(
                f"{what} cannot be followed by a key or an index",
                "give it a name first: ... AS x, x.key",
            )
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

    def _need(self, kind: str, text: str) -> None:
        if not self._accept(kind, text):
            self._expected(f"'{text}'")

    def _expected(self, what: str, hint: str | None = None) -> NoReturn:
        if hint is None and self._at:
            hint = syntax_hints.expected(what, self._now, self._tokens[self._at - 1])
        self._fail(f"expected {what}, found {self._now}", hint)

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
