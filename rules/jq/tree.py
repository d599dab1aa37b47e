"""The tree of a jq program, as far as the analysis needs it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Node:
    """An expression. ``at`` is where it begins in the program."""

    at: int


@dataclass(frozen=True, slots=True)
class Identity(Node):
    """``.``"""


@dataclass(frozen=True, slots=True)
class Recursion(Node):
    """``..``"""


@dataclass(frozen=True, slots=True)
class Number(Node):
    """A number."""

    value: float


@dataclass(frozen=True, slots=True)
class Text(Node):
    """A string, with a format that is applied to what is inserted."""

    literal: str
    parts: tuple[Expr, ...]
    format: str | None


@dataclass(frozen=True, slots=True)
class Format(Node):
    """``@base64`` as a function."""

    name: str


@dataclass(frozen=True, slots=True)
class Variable(Node):
    """``$name``."""

    name: str


@dataclass(frozen=True, slots=True)
class Index(Node):
    """``term.name``, ``term[index]``; ``index`` is evaluated on the input of the whole."""

    term: Expr
    index: Expr


@dataclass(frozen=True, slots=True)
class Slice(Node):
    """``term[first:last]``."""

    term: Expr
    first: Expr | None
    last: Expr | None


@dataclass(frozen=True, slots=True)
class Iterate(Node):
    """``term[]``."""

    term: Expr


@dataclass(frozen=True, slots=True)
class Array(Node):
    """``[inner]``."""

    inner: Expr | None


@dataclass(frozen=True, slots=True)
class Object(Node):
    """``{key: value, ...}``."""

    members: tuple[tuple[Expr, Expr], ...]


@dataclass(frozen=True, slots=True)
class Negate(Node):
    """``-term``."""

    inner: Expr


@dataclass(frozen=True, slots=True)
class Binary(Node):
    """Two operands; ``operator`` is ``|``, ``,``, arithmetic, comparison, ``and``, ``or``, ``//`` or an assignment."""

    operator: str
    left: Expr
    right: Expr


@dataclass(frozen=True, slots=True)
class Bind(Node):
    """``source as $names | body``; ``keys`` are the expressions inside patterns."""

    source: Expr
    names: tuple[str, ...]
    keys: tuple[Expr, ...]
    body: Expr


@dataclass(frozen=True, slots=True)
class Fold(Node):
    """``reduce`` and ``foreach``; ``extract`` is the third part of ``foreach``."""

    keyword: str
    source: Expr
    names: tuple[str, ...]
    keys: tuple[Expr, ...]
    initial: Expr
    update: Expr
    extract: Expr | None


@dataclass(frozen=True, slots=True)
class If(Node):
    """Conditions with what holds then, and what holds otherwise."""

    branches: tuple[tuple[Expr, Expr], ...]
    otherwise: Expr | None


@dataclass(frozen=True, slots=True)
class Try(Node):
    """``try body catch handler``, ``body?``."""

    body: Expr
    handler: Expr | None


@dataclass(frozen=True, slots=True)
class Label(Node):
    """``label $name | body``."""

    body: Expr


@dataclass(frozen=True, slots=True)
class Break(Node):
    """``break $name``."""


@dataclass(frozen=True, slots=True)
class Define(Node):
    """``def name(parameters): body; rest``."""

    name: str
    parameters: tuple[str, ...]
    body: Expr
    rest: Expr


@dataclass(frozen=True, slots=True)
class Call(Node):
    """A function with its arguments."""

    name: str
    arguments: tuple[Expr, ...]


Expr = (
    Identity | Recursion | Number | Text | Format | Variable | Index | Slice | Iterate | Array | Object | Negate
    | Binary | Bind | Fold | If | Try | Label | Break | Define | Call
)  # fmt: skip
