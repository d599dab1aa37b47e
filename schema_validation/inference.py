"""A schema from messages: what all of them have in common, and no more than they show.

Fields that every message has are required, formats hold for every text seen, and a list of values is proposed only
where few values came back often. Nothing is closed: fields no one has sent yet stay allowed (in JSON Schema).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from ipaddress import IPv4Address, IPv6Address
from typing import Any
from uuid import UUID

from broker.core import jsontext
from broker.core.errors import Invalid, Problem
from schema_validation.serdes.base import InferredSchema
from schema_validation.serdes.json_schema import DEFAULT_DRAFT
from schema_validation.serdes.json_types import type_name

MAX_MESSAGES = 10_000
# Maximum field names of one object; with more it is taken for a map whose keys are data.
MAX_NAMES = 200
_MAX_VALUES = 8
_LEAST_SEEN = 20
_LEAST_EACH = 3
_SYMBOL = re.compile(r"[A-Za-z][A-Za-z0-9_.:-]{0,31}", re.ASCII)
_AVRO_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_LONG = 2**63


def infer_schema(kind: str, payloads: Sequence[bytes], name: str, pointer: str) -> InferredSchema:
    """The schema that the payloads fit, all JSON.

    Raises:
        Invalid: no payload is JSON, or Avro cannot say what is in them.
    """
    shape = Shape()
    taken = 0
    first_error = ""
    for payload in payloads[:MAX_MESSAGES]:
        try:
            shape.see(jsontext.decode(payload))
            taken += 1
        except jsontext.JsonError as error:
            first_error = first_error or str(error)
    if not taken:
        reason = f"no message is JSON: {first_error}" if payloads else "there are no messages"
        raise Invalid("no schema can be inferred", [Problem(reason, pointer)])
    warnings: list[str] = []
    schema = _json_root(shape) if kind == "json" else _Avro(warnings, pointer).root(shape, name)
    return {
        "type": kind,
        "source": jsontext.encode(schema).decode(),
        "messages": taken,
        "skipped": len(payloads) - taken,
        "warnings": warnings,
    }


@dataclass(slots=True)
class Shape:
    """Observations at one place: counts of each kind of value, and properties of the values."""

    kinds: Counter[str] = field(default_factory=Counter)
    fields: dict[str, Shape] = field(default_factory=dict)
    item: Shape | None = None
    texts: Counter[str] = field(default_factory=Counter)
    formats: set[str] | None = None
    is_wide: bool = False
    """An integer does not fit 64 bits."""

    @property
    def seen(self) -> int:
        """Number of values seen."""
        return self.kinds.total()

    def see(self, value: Any) -> None:
        """Learn from one value."""
        kind = type_name(value)
        self.kinds[kind] += 1
        if kind == "object":
            for name, inner in value.items():
                self.fields.setdefault(name, Shape()).see(inner)
        elif kind == "array":
            self.item = self.item or Shape()
            for inner in value:
                self.item.see(inner)
        elif kind == "string":
            self._see_text(value)
        elif kind == "integer" and not -_LONG <= value < _LONG:
            self.is_wide = True

    def _see_text(self, text: str) -> None:
        if len(self.texts) <= _MAX_VALUES:
            self.texts[text] += 1
        if self.formats is None:
            self.formats = {name for name, fits in FORMATS.items() if fits(text)}
        elif self.formats:
            self.formats = {name for name in self.formats if FORMATS[name](text)}

    @property
    def is_map(self) -> bool:
        """An object whose keys are data: too many to be names of fields."""
        return len(self.fields) > MAX_NAMES

    def is_always(self, name: str) -> bool:
        """Every object had the field."""
        return self.fields[name].seen == self.kinds["object"]

    @property
    def values(self) -> Sequence[str] | None:
        """The values of an enumeration: few, and each seen again and again."""
        enough = self.kinds["string"] >= _LEAST_SEEN and 0 < len(self.texts) <= _MAX_VALUES
        if not enough or not all(count >= _LEAST_EACH for count in self.texts.values()):
            return None
        return sorted(self.texts) if all(map(_SYMBOL.fullmatch, self.texts)) else None

    @property
    def merged_fields(self) -> Shape:
        """Common type of the values of a map."""
        merged = Shape()
        for inner in self.fields.values():
            merged.absorb(inner)
        return merged

    def absorb(self, other: Shape) -> None:
        """Learn what another shape has seen."""
        self.kinds += other.kinds
        for name, inner in other.fields.items():
            self.fields.setdefault(name, Shape()).absorb(inner)
        if other.item is not None:
            self.item = self.item or Shape()
            self.item.absorb(other.item)
        self.texts += other.texts
        if other.formats is not None:
            self.formats = other.formats if self.formats is None else self.formats & other.formats
        self.is_wide = self.is_wide or other.is_wide


def _parses(read: Callable[[str], object]) -> Callable[[str], bool]:
    def fits(text: str) -> bool:
        try:
            read(text)
        except ValueError:
            return False
        return True

    return fits


_DATE_TIME = re.compile(r"\d{4}-\d\d-\d\d[Tt]\d\d:\d\d:\d\d(\.\d+)?([Zz]|[+-]\d\d:\d\d)", re.ASCII)
_DATE = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
_EMAIL = re.compile(r"[A-Za-z0-9._%+-]+@[A-Za-z0-9-]+(\.[A-Za-z0-9-]+)+", re.ASCII)
_UUID = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}", re.ASCII)
_is_moment = _parses(datetime.fromisoformat)
FORMATS: Mapping[str, Callable[[str], bool]] = {
    "date-time": lambda text: _DATE_TIME.fullmatch(text) is not None and _is_moment(text),
    "date": lambda text: _DATE.fullmatch(text) is not None and _is_moment(text),
    "uuid": lambda text: _UUID.fullmatch(text) is not None and _parses(UUID)(text),
    "email": lambda text: _EMAIL.fullmatch(text) is not None,
    "ipv4": _parses(IPv4Address),
    "ipv6": _parses(IPv6Address),
}


def _json_root(shape: Shape) -> dict[str, Any]:
    return {"$schema": DEFAULT_DRAFT, **_json(shape)}


def _json(shape: Shape) -> dict[str, Any]:
    kinds = set(shape.kinds)
    if "number" in kinds:
        kinds.discard("integer")
    if not kinds:
        return {}
    listed = sorted(kinds)
    schema: dict[str, Any] = {"type": listed[0] if len(listed) == 1 else listed}
    if "object" in kinds and shape.is_map:
        schema["additionalProperties"] = _json(shape.merged_fields)
    elif "object" in kinds:
        schema["properties"] = {name: _json(inner) for name, inner in shape.fields.items()}
        if required := [name for name in shape.fields if shape.is_always(name)]:
            schema["required"] = required
    if "array" in kinds and shape.item is not None and shape.item.seen:
        schema["items"] = _json(shape.item)
    if "string" in kinds and shape.formats:
        schema["format"] = sorted(shape.formats)[0]
    elif kinds == {"string"} and shape.values is not None:
        schema["enum"] = list(shape.values)
    return schema


class _Avro:
    """Writes Avro types, each record under a name of its own."""

    def __init__(self, warnings: list[str], pointer: str) -> None:
        self._warnings = warnings
        self._pointer = pointer
        self._names: set[str] = set()

    def root(self, shape: Shape, name: str) -> Any:
        cleaned = re.sub(r"[^A-Za-z0-9_]", "_", name) or "Message"
        return self._type(
            shape, cleaned if _AVRO_NAME.fullmatch(cleaned) else f"_{cleaned}", "the message"
        )

    def _type(self, shape: Shape, name: str, where: str) -> Any:
        kinds = set(shape.kinds)
        is_nullable = "null" in kinds
        if "number" in kinds:
            kinds.discard("integer")
        branches = [self._branch(kind, shape, name, where) for kind in sorted(kinds - {"null"})]
        if not branches:
            self._warnings.append(
                f"{where} was never anything but null or empty; a string is assumed"
            )
            return ["null", "string"]
        if len(branches) == 1 and not is_nullable:
            return branches[0]
        return [*(["null"] if is_nullable else []), *branches]

    def _branch(self, kind: str, shape: Shape, name: str, where: str) -> Any:
        if kind == "object":
            return self._object(shape, name, where)
        if kind == "array":
            items = shape.item if shape.item is not None else Shape()
            return {
                "type": "array",
                "items": self._type(items, f"{name}_item", f"an item of {where}"),
            }
        if kind == "integer" and shape.is_wide:
            self._warnings.append(
                f"{where} holds integers beyond 64 bits; as double they lose digits"
            )
            return "double"
        return {"boolean": "boolean", "integer": "long", "number": "double", "string": "string"}[
            kind
        ]

    def _object(self, shape: Shape, name: str, where: str) -> Any:
        wrong = next((field for field in shape.fields if not _AVRO_NAME.fullmatch(field)), None)
        if shape.is_map or not shape.fields or wrong is not None:
            return self._map(shape, name, where, wrong)
        unique = name
        while unique in self._names:
            unique += "_"
        self._names.add(unique)
        return {
            "type": "record",
            "name": unique,
            "fields": [self._field(shape, key, unique) for key in shape.fields],
        }

    def _map(self, shape: Shape, name: str, where: str, wrong: str | None) -> Any:
        values = shape.merged_fields
        if wrong is not None:
            kinds = set(values.kinds) - {"null"}
            if len(kinds) > 1 and kinds != {"integer", "number"}:
                text = f"{where} has a field {wrong!r}, not an Avro name, and fields of other types; use json"
                raise Invalid("no schema can be inferred", [Problem(text, self._pointer)])
            self._warnings.append(f"{where} is a map: {wrong!r} is not an Avro name")
        return {"type": "map", "values": self._type(values, f"{name}_value", f"a value of {where}")}

    def _field(self, shape: Shape, key: str, name: str) -> dict[str, Any]:
        inner = shape.fields[key]
        kind = self._type(inner, f"{name}_{key}", key)
        if shape.is_always(key) and "null" not in inner.kinds:
            return {"name": key, "type": kind}
        branches = kind if isinstance(kind, list) else [kind]
        return {
            "name": key,
            "type": ["null", *(item for item in branches if item != "null")],
            "default": None,
        }
