"""Text of a jq program to its tree, by jq's own grammar and precedence.

jq's compiler decides what a program is; this reader serves the analysis only. What it cannot read (modules,
``?//``, rarities of the grammar) is refused, and a program that is refused here is taken for one that may not end.
"""

from __future__ import annotations

from typing import Final

from rules.jq.lexer import Token, Unreadable, tokens
from rules.jq.tree import (
    Array,
    Binary,
    Bind,
    Break,
    Call,
    Define,
    Expr,
    Fold,
    Format,
    Identity,
    If,
    Index,
    Iterate,
    Label,
    Negate,
    Number,
    Object,
    Recursion,
    Slice,
    Text,
    Try,
    Variable,
)  # fmt: skip

_MAX_DEPTH: Final = 60
_KEYWORDS: Final = frozenset(
    {"def", "if", "then", "elif", "else", "end", "as", "reduce", "foreach", "try", "catch", "label", "import",
     "include", "and", "or", "__loc__"}
)  # fmt: skip
_UPDATES: Final = ("=", "|=", "+=", "-=", "*=", "/=", "%=", "//=")
_COMPARISONS: Final = ("==", "!=", "<", "<=", ">", ">=")


def parse(program: str) -> Expr:
    """The tree.

    Raises:
        Unreadable: it is not jq, or jq beyond this reader.
    """
    return _Parser(tokens(program)).whole()


class _Parser:
    def __init__(self, words: tuple[Token, ...], depth: int = 0) -> None:
        self._words, self._next, self._depth = words, 0, depth

    def whole(self) -> Expr:
        if self._words[0].kind == "end":
            return Identity(0)
        found = self._pipe()
        self._expect_kind("end")
        return found

    # Words

    @property
    def _word(self) -> Token:
        return self._words[self._next]

    def _is(self, *texts: str) -> bool:
        word = self._word
        return word.kind in ("symbol", "name") and word.text in texts

    def _take(self) -> Token:
        word = self._word
        if word.kind != "end":
            self._next += 1
        return word

    def _took(self, *texts: str) -> bool:
        if self._is(*texts):
            self._next += 1
            return True
        return False

    def _expect(self, text: str) -> None:
        if not self._took(text):
            raise Unreadable(f"{text!r} was expected", self._word.at)

    def _expect_kind(self, kind: str) -> Token:
        if self._word.kind != kind:
            raise Unreadable(f"unexpected {self._word.text!r}", self._word.at)
        return self._take()

    # Operators, from the loosest to the tightest

    def _pipe(self) -> Expr:
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise Unreadable("the program nests too deep", self._word.at)
        try:
            return self._pipe_of()
        finally:
            self._depth -= 1

    def _pipe_of(self) -> Expr:
        at = self._word.at
        if self._took("def"):
            return self._define(at)
        if self._took("label"):
            self._expect_kind("variable")
            self._expect("|")
            return Label(at, self._pipe())
        left = self._comma()
        if self._took("|"):
            return Binary(at, "|", left, self._pipe())
        return left

    def _comma(self) -> Expr:
        left = self._alternative()
        while self._is(","):
            at = self._take().at
            left = Binary(at, ",", left, self._alternative())
        return left

    def _alternative(self) -> Expr:
        left = self._update()
        if self._is("//"):
            at = self._take().at
            return Binary(at, "//", left, self._alternative())
        return left

    def _update(self) -> Expr:
        left = self._or()
        if self._word.kind == "symbol" and self._word.text in _UPDATES:
            word = self._take()
            return Binary(word.at, word.text, left, self._or())
        return left

    def _or(self) -> Expr:
        left = self._and()
        while self._is("or"):
            at = self._take().at
            left = Binary(at, "or", left, self._and())
        return left

    def _and(self) -> Expr:
        left = self._comparison()
        while self._is("and"):
            at = self._take().at
            left = Binary(at, "and", left, self._comparison())
        return left

    def _comparison(self) -> Expr:
        left = self._sum()
        if self._word.kind == "symbol" and self._word.text in _COMPARISONS:
            word = self._take()
            return Binary(word.at, word.text, left, self._sum())
        return left

    def _sum(self) -> Expr:
        left = self._product()
        while self._word.kind == "symbol" and self._word.text in ("+", "-"):
            word = self._take()
            left = Binary(word.at, word.text, left, self._product())
        return left

    def _product(self) -> Expr:
        left = self._postfix()
        while self._word.kind == "symbol" and self._word.text in ("*", "/", "%"):
            word = self._take()
            left = Binary(word.at, word.text, left, self._postfix())
        return left

    # Terms

    def _postfix(self) -> Expr:
        at = self._word.at
        if self._took("-"):
            return Negate(at, self._postfix())
        if self._took("try"):
            body = self._postfix()
            handler = self._postfix() if self._took("catch") else None
            return Try(at, body, handler)
        if self._is("reduce", "foreach"):
            return self._fold()
        if self._is("def"):
            raise Unreadable("a definition inside of an expression", at)
        term = self._suffixes(self._term())
        if self._is("as"):  # binds tighter than any operator: '1 + . as $x | ...' is '1 + (. as $x | ...)'
            self._take()
            names, keys = self._patterns()
            self._expect("|")
            return Bind(at, term, names, keys, self._pipe())
        return term

    def _suffixes(self, term: Expr) -> Expr:
        while True:
            word = self._word
            if word.kind == "field":
                self._take()
                term = Index(word.at, term, Text(word.at, word.text[1:], (), None))
            elif self._is("?"):
                self._take()
                term = Try(word.at, term, None)
            elif self._is("["):
                term = self._brackets(term)
            elif self._is(".") and self._words[self._next + 1].kind == "string":
                self._take()
                term = Index(word.at, term, self._string(None))
            elif self._is(".") and self._words[self._next + 1].text == "[":
                self._take()
                term = self._brackets(term)
            else:
                return term

    def _brackets(self, term: Expr) -> Expr:
        at = self._take().at
        if self._took("]"):
            return Iterate(at, term)
        first = None if self._is(":") else self._pipe()
        if self._took(":"):
            last = None if self._is("]") else self._pipe()
            self._expect("]")
            return Slice(at, term, first, last)
        self._expect("]")
        assert first is not None
        return Index(at, term, first)

    def _term(self) -> Expr:
        word = self._word
        if word.kind == "field":
            self._take()
            return Index(word.at, Identity(word.at), Text(word.at, word.text[1:], (), None))
        if word.kind == "number":
            return Number(self._take().at, float(word.text))
        if word.kind == "string":
            return self._string(None)
        if word.kind == "format":
            self._take()
            return self._string(word.text) if self._word.kind == "string" else Format(word.at, word.text)
        if word.kind == "variable":
            return Variable(self._take().at, word.text[1:])
        if word.kind == "symbol":
            return self._symbol_term()
        if word.kind == "name":
            return self._name_term()
        raise Unreadable(f"unexpected {word.text!r}", word.at)

    def _symbol_term(self) -> Expr:
        word = self._take()
        if word.text == "..":
            return Recursion(word.at)
        if word.text == ".":
            if self._word.kind == "string":
                return Index(word.at, Identity(word.at), self._string(None))
            return Identity(word.at)
        if word.text == "(":
            inner = self._pipe()
            self._expect(")")
            return inner
        if word.text == "[":
            if self._took("]"):
                return Array(word.at, None)
            items = self._pipe()
            self._expect("]")
            return Array(word.at, items)
        if word.text == "{":
            return self._object(word.at)
        raise Unreadable(f"unexpected {word.text!r}", word.at)

    def _name_term(self) -> Expr:
        word = self._take()
        if word.text == "if":
            return self._if(word.at)
        if word.text == "break":
            self._expect_kind("variable")
            return Break(word.at)
        if word.text in _KEYWORDS:
            raise Unreadable(f"unexpected {word.text!r}", word.at)
        arguments: list[Expr] = []
        if self._took("("):
            arguments.append(self._pipe())
            while self._took(";"):
                arguments.append(self._pipe())
            self._expect(")")
        return Call(word.at, word.text, tuple(arguments))

    def _string(self, form: str | None) -> Text:
        word = self._expect_kind("string")
        parts = tuple(_Parser(inner, self._depth + 1).whole() for inner in word.parts)
        return Text(word.at, word.text, parts, form)

    def _object(self, at: int) -> Expr:
        members: list[tuple[Expr, Expr]] = []
        while not self._took("}"):
            members.append(self._member())
            if not self._took(","):
                self._expect("}")
                break
        return Object(at, tuple(members))

    def _member(self) -> tuple[Expr, Expr]:
        word = self._word
        key: Expr
        default: Expr
        if word.kind == "variable":
            self._take()
            key, default = Text(word.at, word.text[1:], (), None), Variable(word.at, word.text[1:])
        elif word.kind in ("name", "number"):
            self._take()
            key = Text(word.at, word.text, (), None)
            default = Index(word.at, Identity(word.at), key)
        elif word.kind in ("string", "format"):
            form = self._take().text if word.kind == "format" else None
            key = self._string(form)
            default = Index(word.at, Identity(word.at), key)
        else:
            self._expect("(")
            key = self._pipe()
            self._expect(")")
            self._expect(":")
            return key, self._member_value()
        return key, self._member_value() if self._took(":") else default

    def _member_value(self) -> Expr:
        """Terms joined by ``|`` and what binds tighter than a comma; jq takes a part of that, which does no harm."""
        left = self._alternative()
        if self._is("|"):
            at = self._take().at
            return Binary(at, "|", left, self._member_value())
        return left

    def _if(self, at: int) -> Expr:
        branches: list[tuple[Expr, Expr]] = []
        otherwise: Expr | None = None
        while True:
            condition = self._pipe()
            self._expect("then")
            branches.append((condition, self._pipe()))
            if not self._took("elif"):
                break
        if self._took("else"):
            otherwise = self._pipe()
        self._expect("end")
        return If(at, tuple(branches), otherwise)

    def _fold(self) -> Expr:
        word = self._take()
        source = self._suffixes(self._term())
        self._expect("as")
        names, keys = self._patterns()
        self._expect("(")
        initial = self._pipe()
        self._expect(";")
        update = self._pipe()
        extract = self._pipe() if word.text == "foreach" and self._took(";") else None
        self._expect(")")
        folded = Fold(word.at, word.text, source, names, keys, initial, update, extract)
        return self._suffixes(folded)

    def _define(self, at: int) -> Expr:
        name = self._expect_kind("name").text
        parameters: list[str] = []
        if self._took("("):
            parameters.append(self._parameter())
            while self._took(";"):
                parameters.append(self._parameter())
            self._expect(")")
        self._expect(":")
        body = self._pipe()
        self._expect(";")
        return Define(at, name, tuple(parameters), body, self._pipe())

    def _parameter(self) -> str:
        word = self._take()
        if word.kind not in ("name", "variable"):
            raise Unreadable(f"unexpected {word.text!r}", word.at)
        return word.text

    # Patterns

    def _patterns(self) -> tuple[tuple[str, ...], tuple[Expr, ...]]:
        names: list[str] = []
        keys: list[Expr] = []
        self._pattern(names, keys)
        if self._is("?//"):
            raise Unreadable("alternatives of patterns", self._word.at)
        return tuple(names), tuple(keys)

    def _pattern(self, names: list[str], keys: list[Expr]) -> None:
        word = self._take()
        if word.kind == "variable":
            names.append(word.text[1:])
        elif word.text == "[" and word.kind == "symbol":
            self._pattern(names, keys)
            while self._took(","):
                self._pattern(names, keys)
            self._expect("]")
        elif word.text == "{" and word.kind == "symbol":
            self._member_pattern(names, keys)
            while self._took(","):
                self._member_pattern(names, keys)
            self._expect("}")
        else:
            raise Unreadable(f"unexpected {word.text!r}", word.at)

    def _member_pattern(self, names: list[str], keys: list[Expr]) -> None:
        word = self._take()
        if word.kind == "variable":
            names.append(word.text[1:])
            if not self._took(":"):
                return
        elif word.kind == "symbol" and word.text == "(":
            keys.append(self._pipe())
            self._expect(")")
            self._expect(":")
        elif word.kind == "string":
            keys.extend(_Parser(inner, self._depth + 1).whole() for inner in word.parts)
            self._expect(":")
        elif word.kind == "name":
            self._expect(":")
        else:
            raise Unreadable(f"unexpected {word.text!r}", word.at)
        self._pattern(names, keys)
