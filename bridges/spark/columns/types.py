"""The types of lake columns as text: ``long``, ``decimal(10, 2)``, ``array<struct<at: timestamp, n: long>>``.

The text is the type wherever one is kept or passed on: in the API, in a task's plan, in the metadata of a table. It
says what the column is and how JSON becomes it: ``timestamp(us)`` takes numbers as microseconds, ``timestamp`` as
milliseconds. Used on the driver and in tasks.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import count
from typing import Final

import pyarrow as pa

# Types without parameters and how they lie in files. ``json`` is a value of any shape as JSON text, ``enum`` a
# name, or the digits of a number that has none.
ARROW_TYPES: Final = {
    "boolean": pa.bool_(),
    "integer": pa.int32(),
    "long": pa.int64(),
    "double": pa.float64(),
    "string": pa.string(),
    "enum": pa.string(),
    "json": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestamp(us)": pa.timestamp("us", tz="UTC"),
}
NESTED: Final = frozenset({"array", "map", "struct"})
# Levels of arrays, maps and structs in a column; what is deeper is JSON text.
DEEPEST: Final = 16
# Columns of a table, each member of a struct counted as one.
MOST_COLUMNS: Final = 2000
_MOST_DIGITS: Final = 38
_UNFIT = re.compile(r"[ ,;{}()\n\t=\"`\0]")
_TOKEN = re.compile(r"\s*(?:(`(?:[^`]|``)*`)|(\w+)|([<>(),:]))")


@dataclass(frozen=True)
class ColumnType:
    """A type: ``name`` is one of ``ARROW_TYPES``, ``decimal``, ``array``, ``map`` or ``struct``.

    ``members`` are those of a struct by key, in order; ``item`` is the element of an array or the value of a map, whose
    keys are strings.
    """

    name: str
    members: tuple[tuple[str, ColumnType], ...] = ()
    item: ColumnType | None = None
    precision: int = 0
    scale: int = 0

    @cached_property
    def text(self) -> str:
        """The type as ``parse_type`` reads it."""
        if self.name == "struct":
            return (
                f"struct<{', '.join(f'{_quoted(key)}: {kind.text}' for key, kind in self.members)}>"
            )
        if self.item is not None:
            return (
                f"map<string, {self.item.text}>"
                if self.name == "map"
                else f"array<{self.item.text}>"
            )
        return f"decimal({self.precision}, {self.scale})" if self.name == "decimal" else self.name

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The names of a struct's members for readers."""
        unique_names: list[str] = []
        for key, _ in self.members:
            unique_names.append(column_name(key, {folded(name) for name in unique_names}))
        return tuple(unique_names)

    def paths(self, name: str) -> Iterator[str]:
        """The column of a name, and what is inside of it, as Iceberg calls them."""
        yield name
        if self.item is not None:
            yield from self.item.paths(f"{name}.{'value' if self.name == 'map' else 'element'}")
        for member, (_, kind) in zip(self.names, self.members, strict=True):
            yield from kind.paths(f"{name}.{member}")

    @cached_property
    def arrow(self) -> pa.DataType:
        """The Arrow type of values in files."""
        if self.name == "struct":
            kinds = (kind for _, kind in self.members)
            return pa.struct(
                [pa.field(name, kind.arrow) for name, kind in zip(self.names, kinds, strict=True)]
            )
        if self.item is not None:
            return (
                pa.map_(pa.string(), self.item.arrow)
                if self.name == "map"
                else pa.list_(self.item.arrow)
            )
        return (
            pa.decimal128(self.precision, self.scale)
            if self.name == "decimal"
            else ARROW_TYPES[self.name]
        )

    def field(self, name: str, ids: Iterator[int], *, nullable: bool = True) -> pa.Field:
        """A field of this type, with Iceberg's identifiers of it and of what is inside of it, outermost first."""
        metadata = {b"PARQUET:field_id": str(next(ids)).encode()}
        return pa.field(name, self._with_ids(ids), nullable, metadata)

    def _with_ids(self, ids: Iterator[int]) -> pa.DataType:
        if self.name == "struct":
            kinds = (kind for _, kind in self.members)
            return pa.struct(
                [kind.field(name, ids) for name, kind in zip(self.names, kinds, strict=True)]
            )
        if self.item is not None and self.name == "map":
            return pa.map_(_STRING.field("key", ids, nullable=False), self.item.field("value", ids))
        return self.arrow if self.item is None else pa.list_(self.item.field("item", ids))

    @cached_property
    def ids(self) -> int:
        """Fields that Iceberg numbers: itself and what is inside of it."""
        if self.item is not None:
            return self.item.ids + (2 if self.name == "map" else 1)
        return 1 + sum(kind.ids for _, kind in self.members)

    @cached_property
    def width(self) -> int:
        """Columns that it is: a struct is as many as its members are."""
        if self.name == "struct":
            return sum(kind.width for _, kind in self.members)
        return 1 if self.item is None else self.item.width


JSON: Final = ColumnType("json")
_STRING: Final = ColumnType("string")


class NotAType(ValueError):
    """Text that is no type of a column; the message says where it ends to be one."""


@lru_cache(maxsize=4096)
def parse_type(text: str) -> ColumnType:
    """The type that a text says.

    Raises:
        NotAType: it says none.
    """
    reader = _Reader(text)
    parsed = reader.type(0)
    if reader.next:
        raise reader.expected("the end")
    return parsed


def arrow_of(text: str) -> pa.DataType:
    """The Arrow type in files for a type."""
    return parse_type(text).arrow


def column_name(key: str, taken_names: Collection[str]) -> str:
    """The column name for a row's key: characters that table formats refuse become ``_``, clashes get a suffix.

    Args:
        key: any text; a publisher may choose it so that it clashes with a suffixed name.
        taken_names: names as ``folded`` gives them.
    """
    name = plain = _UNFIT.sub("_", key) or "_"
    for attempt in count(1):
        if not _clashes(folded(name), taken_names):
            break
        digest = hashlib.sha256((key if attempt == 1 else f"{key}\0{attempt}").encode()).hexdigest()
        name = f"{plain.replace('.', '_')}_{digest[:6]}"
    return name


def folded(name: str) -> str:
    """A name without case. Readers compare names in lower case, and Spark those of a struct's members as Java does, a
    character at a time: ``ſ`` is ``s``, ``µ`` (micro) is ``μ`` (mu), and ``İ`` and ``ı`` are ``i``."""
    lower = name.lower()
    if lower.isascii():
        return lower
    characters = (upper if len(upper := each.upper()) == 1 else each for each in lower)
    return "".join(characters).lower().replace("i\u0307", "i")


def _clashes(name: str, taken_names: Collection[str]) -> bool:
    """True if a name is taken, or is a path to a member of a taken one or the other way round, as ``a.b`` and ``a``."""
    return name in taken_names or any(
        other.startswith(f"{name}.") or name.startswith(f"{other}.")
        for other in taken_names
        if "." in name or "." in other
    )


def _quoted(key: str) -> str:
    return key if key.isidentifier() and key.isascii() else f"`{key.replace('`', '``')}`"


class _Reader:
    """Reads a type from left to right; ``next`` is the token that comes, empty at the end."""

    def __init__(self, text: str) -> None:
        self._text = text.rstrip()
        self._at = 0
        self.next = ""
        self._advance()

    def type(self, level: int) -> ColumnType:
        if level > DEEPEST:
            raise NotAType(
                f"expected at most {DEEPEST} levels of arrays, maps and structs, got more"
            )
        name = self.next
        if name in NESTED:
            self._advance()
            self._take("<")
            inner = self._nested(name, level + 1)
            self._take(">")
            return inner
        self._advance()
        if name == "decimal":
            return self._decimal()
        if name == "timestamp" and self.next == "(":
            self._advance()
            self._take("us")
            self._take(")")
            name = "timestamp(us)"
        if name not in ARROW_TYPES:
            names = ", ".join(
                (*ARROW_TYPES, "decimal(P, S)", "array<T>", "map<string, T>", "struct<NAME: T>")
            )
            raise NotAType(f"expected one of: {names}, got {name or self._text!r}")
        return ColumnType(name)

    def expected(self, expectation: str) -> NotAType:
        return NotAType(
            f"expected {expectation} at character {self._at - len(self.next) + 1}, got {self.next or 'the end'}"
        )

    def _nested(self, name: str, level: int) -> ColumnType:
        if name == "array":
            return ColumnType(name, item=self.type(level))
        if name == "map":
            self._take("string")
            self._take(",")
            return ColumnType(name, item=self.type(level))
        members: dict[str, ColumnType] = {}
        while True:
            key = self._key()
            if key in members:
                raise NotAType(f"expected different members, got {key!r} twice")
            self._take(":")
            members[key] = self.type(level)
            if self.next != ",":
                return ColumnType(name, tuple(members.items()))
            self._advance()

    def _key(self) -> str:
        token = self.next
        if not token or token in "<>(),:":
            raise self.expected("the name of a member")
        self._advance()
        return token[1:-1].replace("``", "`") if token.startswith("`") else token

    def _decimal(self) -> ColumnType:
        self._take("(")
        precision = self._number()
        self._take(",")
        scale = self._number()
        self._take(")")
        if not (1 <= precision <= _MOST_DIGITS and scale <= precision):
            raise NotAType(
                f"expected 1 to {_MOST_DIGITS} digits and at most as many decimals, got {precision}, {scale}"
            )
        return ColumnType("decimal", precision=precision, scale=scale)

    def _number(self) -> int:
        if not self.next.isdecimal():
            raise self.expected("a number")
        digits = int(self.next[:4])
        self._advance()
        return digits

    def _take(self, token: str) -> None:
        if self.next != token:
            raise self.expected(repr(token))
        self._advance()

    def _advance(self) -> None:
        if self._at >= len(self._text):
            self.next = ""
            return
        token = _TOKEN.match(self._text, self._at)
        if token is None:
            raise NotAType(
                f"expected a type, got {self._text[self._at :][:20]!r} at character {self._at + 1}"
            )
        self._at, self.next = token.end(), token.group().strip()
