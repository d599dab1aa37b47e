"""Avro schemas read strictly into a tree.

fastavro's ``parse_schema`` accepts a record without fields, names such as ``1x``, fields of one name twice, unions in
unions and ``["int", "int"]``; all of these are refused here. What could stall a reader is refused as well: arrays of
items that take no bytes (a count of 2^40 would be believed) and records that unfold to very many fields.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from broker.core import jsontext
from schema_validation.serdes.avro_decimal import Digits, digits_of, marked
from schema_validation.serdes.base import MAX_SOURCE_BYTES, SourceError, short

PRIMITIVES = frozenset({"null", "boolean", "int", "long", "float", "double", "bytes", "string"})
# Maximum fields of a schema when every named type is written out where it is used.
MAX_UNFOLDED = 100_000
# Maximum fields of an item in an array or a map that take no bytes.
MAX_EMPTY = 100

MISSING: Any = object()
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)


@dataclass(slots=True, eq=False)
class AvroField:
    name: str
    type: AvroType
    default: Any = MISSING
    aliases: tuple[str, ...] = ()


@dataclass(slots=True, eq=False)
class AvroType:
    """One type. ``items`` is that of an array or the value of a map; ``branches`` are those of a union; ``default`` is
    an enum's, read in place of symbols that it does not have; ``digits`` are a decimal's."""

    kind: str
    name: str = ""
    aliases: tuple[str, ...] = ()
    fields: list[AvroField] = field(default_factory=list)
    symbols: tuple[str, ...] = ()
    default: Any = MISSING
    size: int = 0
    items: AvroType | None = None
    branches: list[AvroType] = field(default_factory=list)
    logical: str | None = None
    digits: Digits | None = None

    @property
    def text(self) -> str:
        """The type for a message: ``record Reading``, ``long``."""
        return f"{self.kind} {self.name}" if self.name else self.kind

    def parts(self) -> list[AvroType]:
        """The types that this one is made of."""
        inner = [f.type for f in self.fields] + self.branches
        return [*inner, self.items] if self.items is not None else inner


@dataclass(frozen=True, slots=True)
class AvroSchema:
    """``plain`` is the schema for fastavro, without logical types but decimals; ``is_recursive`` that a type contains
    itself."""

    type: AvroType
    plain: Any
    is_recursive: bool


def read_schema(source: str) -> AvroSchema:
    """The schema of a source text.

    Raises:
        SourceError: with the place inside the schema.
    """
    if len(source) > MAX_SOURCE_BYTES:
        raise SourceError(f"a schema has at most {MAX_SOURCE_BYTES} bytes")
    try:
        raw = jsontext.decode(source)
    except jsontext.JsonError as error:
        raise SourceError(f"the schema is not JSON: {error}") from None
    read = _Reader().type(raw, "", "schema")
    try:
        if _unfolded(read, {}, set()) > MAX_UNFOLDED:
            raise SourceError(f"the schema unfolds to more than {MAX_UNFOLDED} fields")
        _check_arrays(read)
    except RecursionError:
        raise SourceError("the types nest too deep") from None
    return AvroSchema(read, _without_logical(raw), _is_recursive(read, set(), set()))


class _Reader:
    def __init__(self) -> None:
        self._named: dict[str, AvroType] = {}

    def type(self, raw: Any, namespace: str, at: str) -> AvroType:
        if isinstance(raw, str):
            return self._reference(raw, namespace, at)
        if isinstance(raw, list):
            return self._union(raw, namespace, at)
        if not isinstance(raw, dict) or "type" not in raw:
            raise SourceError(
                f"{at}: a type is a name, a union or an object with 'type', not {short(raw)}"
            )
        return self._object(raw, namespace, at)

    def _reference(self, name: str, namespace: str, at: str) -> AvroType:
        if name in PRIMITIVES:
            return AvroType(name)
        named = self._named.get(name if "." in name or not namespace else f"{namespace}.{name}")
        named = named or self._named.get(name)
        if named is None:
            raise SourceError(f"{at}: there is no type {name!r}")
        return named

    def _union(self, raw: list[Any], namespace: str, at: str) -> AvroType:
        if not raw:
            raise SourceError(f"{at}: a union has at least one branch")
        union = AvroType("union")
        seen: set[str] = set()
        for index, item in enumerate(raw):
            branch = self.type(item, namespace, f"{at}[{index}]")
            if branch.kind == "union":
                raise SourceError(f"{at}[{index}]: a union must not hold a union")
            key = branch.name or branch.kind
            if key in seen:
                raise SourceError(f"{at}[{index}]: {key!r} is in the union twice")
            seen.add(key)
            union.branches.append(branch)
        return union

    def _object(self, raw: dict[str, Any], namespace: str, at: str) -> AvroType:
        kind = raw["type"]
        if kind in ("record", "error", "enum", "fixed") and isinstance(kind, str):
            return self._named_type("record" if kind == "error" else kind, raw, namespace, at)
        if kind == "array":
            return AvroType(
                "array", items=self.type(_member(raw, "items", at), namespace, f"{at}.items")
            )
        if kind == "map":
            return AvroType(
                "map", items=self.type(_member(raw, "values", at), namespace, f"{at}.values")
            )
        reused = self.type(kind, namespace, at)
        logical = raw.get("logicalType")
        if reused.kind in PRIMITIVES and isinstance(logical, str):
            return AvroType(reused.kind, logical=logical, digits=digits_of(raw))
        return reused

    def _named_type(self, kind: str, raw: dict[str, Any], namespace: str, at: str) -> AvroType:
        full = _full_name(raw, namespace, at)
        if full in self._named:
            raise SourceError(f"{at}: the name {full!r} is defined twice")
        inner = full.rpartition(".")[0]
        record = self._named[full] = AvroType(kind, full, _aliases(raw, inner))
        if kind == "record":
            self._record(record, raw, inner, at)
        elif kind == "enum":
            record.symbols, record.default = _symbols(raw, at), raw.get("default", MISSING)
        else:
            record.size = _size(raw, at)
            record.logical = raw["logicalType"] if isinstance(raw.get("logicalType"), str) else None
            record.digits = digits_of(raw)
        return record

    def _record(self, schema: AvroType, raw: dict[str, Any], namespace: str, at: str) -> None:
        fields = _member(raw, "fields", at)
        if not isinstance(fields, list):
            raise SourceError(f"{at}.fields: expected a list")
        seen: set[str] = set()
        for index, item in enumerate(fields):
            place = f"{at}.fields[{index}]"
            if not isinstance(item, dict) or not isinstance(item.get("name"), str):
                raise SourceError(f"{place}: expected an object with a name and a type")
            name = item["name"]
            if not _NAME.fullmatch(name):
                raise _not_a_name(place, name)
            if name in seen:
                raise SourceError(f"{place}: the field {name!r} is defined twice")
            seen.add(name)
            inner = self.type(_member(item, "type", place), namespace, f"{place}.type")
            schema.fields.append(
                AvroField(name, inner, item.get("default", MISSING), _aliases(item, ""))
            )


def _member(raw: dict[str, Any], name: str, at: str) -> Any:
    if name not in raw:
        raise SourceError(f"{at}: {name!r} is missing")
    return raw[name]


def _full_name(raw: dict[str, Any], namespace: str, at: str) -> str:
    name = _member(raw, "name", at)
    own = raw.get("namespace", namespace)
    if not isinstance(name, str) or not isinstance(own, str):
        raise SourceError(f"{at}: expected strings for name and namespace")
    full = name if "." in name or not own else f"{own}.{name}"
    if not all(_NAME.fullmatch(part) for part in full.split(".")):
        raise SourceError(
            f"{at}: {short(full)} is not a name; expected letters, digits and '_', no digit first"
        )
    if full in PRIMITIVES:
        raise SourceError(f"{at}: {full!r} is the name of a primitive type")
    return full


def _not_a_name(at: str, name: str) -> SourceError:
    return SourceError(
        f"{at}: {short(name)} is not a name; expected letters, digits and '_', no digit first"
    )


def _aliases(raw: dict[str, Any], namespace: str) -> tuple[str, ...]:
    """Other names of a type or a field: as written, and of a type with the namespace."""
    listed = [alias for alias in raw.get("aliases") or () if isinstance(alias, str)]
    full = [f"{namespace}.{alias}" for alias in listed if namespace and "." not in alias]
    return (*listed, *full)


def _symbols(raw: dict[str, Any], at: str) -> tuple[str, ...]:
    symbols = _member(raw, "symbols", at)
    if not isinstance(symbols, list) or not symbols:
        raise SourceError(f"{at}.symbols: expected a list of names")
    for symbol in symbols:
        if not isinstance(symbol, str) or not _NAME.fullmatch(symbol):
            raise SourceError(f"{at}.symbols: {short(symbol)} is not a name")
    if len(set(symbols)) != len(symbols):
        raise SourceError(f"{at}.symbols: a symbol is listed twice")
    if "default" in raw and raw["default"] not in symbols:
        raise SourceError(f"{at}.default: {short(raw['default'])} is not a symbol of the enum")
    return tuple(symbols)


def _size(raw: dict[str, Any], at: str) -> int:
    size = _member(raw, "size", at)
    if not isinstance(size, int) or isinstance(size, bool) or not 0 <= size <= MAX_SOURCE_BYTES:
        raise SourceError(f"{at}.size: expected a number of bytes from 0 to {MAX_SOURCE_BYTES}")
    return size


def _without_logical(raw: Any) -> Any:
    """A copy of a schema without logical types but decimals: payloads carry the underlying numbers and bytes."""
    if isinstance(raw, list):
        return [_without_logical(item) for item in raw]
    if not isinstance(raw, dict):
        return raw
    plain = {key: value for key, value in raw.items() if key != "logicalType"} | marked(raw)
    for key in ("type", "items", "values"):
        if key in plain:
            plain[key] = _without_logical(plain[key])
    if isinstance(plain.get("fields"), list):
        plain["fields"] = [_without_logical(item) for item in plain["fields"]]
    return plain


def _check_arrays(read: AvroType) -> None:
    for part in all_types(read):
        if part.items is None:
            continue
        if _empty_fields(part.items, set()) > MAX_EMPTY:
            raise SourceError(
                f"an {part.kind}'s items have at most {MAX_EMPTY} fields that take no bytes"
            )


def all_types(read: AvroType) -> list[AvroType]:
    """A type and all that it is made of."""
    seen: dict[int, AvroType] = {}
    left = [read]
    while left:
        part = left.pop()
        if id(part) not in seen:
            seen[id(part)] = part
            left += part.parts()
    return list(seen.values())


def takes_bytes(read: AvroType) -> bool:
    """True if every value of the type takes at least one byte of a payload."""
    return _takes_bytes(read, set())


def _takes_bytes(read: AvroType, within: set[int]) -> bool:
    if read.kind == "record":
        if id(read) in within:
            return False
        return any(_takes_bytes(f.type, within | {id(read)}) for f in read.fields)
    return read.kind != "null" and not (read.kind == "fixed" and read.size == 0)


def _empty_fields(read: AvroType, within: set[int]) -> int:
    """Number of values of a record that take no bytes at all: a payload of a few bytes must not become megabytes."""
    if read.kind != "record":
        return int(not _takes_bytes(read, set()))
    if id(read) in within:
        return 0
    return sum(_empty_fields(f.type, within | {id(read)}) for f in read.fields)


def _unfolded(read: AvroType, known: dict[int, int], within: set[int]) -> int:
    if id(read) in within:
        return 1
    if id(read) not in known:
        total = 1
        for part in read.parts():
            total = min(MAX_UNFOLDED + 1, total + _unfolded(part, known, within | {id(read)}))
        known[id(read)] = total
    return known[id(read)]


def _is_recursive(read: AvroType, within: set[int], done: set[int]) -> bool:
    if id(read) in within:
        return True
    if id(read) in done:
        return False
    is_recursive = any(_is_recursive(part, within | {id(read)}, done) for part in read.parts())
    done.add(id(read))
    return is_recursive
