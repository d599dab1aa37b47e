"""Changes between two versions of a schema: fields, types, optionality; in words and for programs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from broker.core import jsontext
from schema_validation.compatibility import avro, json_schema, protobuf
from schema_validation.compatibility.protobuf import field_type_name
from schema_validation.compatibility.verdict import ChangeView, FieldView
from schema_validation.fingerprints import Source
from schema_validation.serdes.avro_schema import MISSING, AvroType
from schema_validation.serdes.proto_types import is_repeated, is_required

MAX_FIELDS = 5_000
MAX_DEPTH = 16


@dataclass(frozen=True, slots=True)
class Entry:
    """A field in an outline. ``key`` finds it in another version: its path, or the number of a protobuf field."""

    key: str
    path: str
    type: str
    is_optional: bool
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Change:
    """One difference. ``change`` is added, removed, renamed, type, optionality, or the keyword that changed."""

    change: str
    path: str
    before: Any
    after: Any

    def view(self) -> ChangeView:
        """View for the API."""
        return {
            "change": self.change,
            "path": self.path,
            "before": self.before,
            "after": self.after,
            "text": str(self),
        }

    def __str__(self) -> str:
        where = self.path or "the schema"
        if self.change == "added":
            return f"{where} is new: {self.after}"
        if self.change == "removed":
            return f"{where} is gone; it was {self.before}"
        if self.change == "renamed":
            return f"{self.before} is now called {self.after}"
        if self.change == "type":
            return f"{where} was {self.before} and is {self.after}"
        if self.change == "optionality":
            return f"{where} is now {self.after}"
        if self.before is None:
            return f"{where}: {self.change} is new: {_short(self.after)}"
        if self.after is None:
            return f"{where}: {self.change} is gone; it was {_short(self.before)}"
        return f"{where}: {self.change} was {_short(self.before)} and is {_short(self.after)}"


def fields_of(kind: str, source: Source) -> list[FieldView]:
    """The fields of a schema, outermost first; the whole has an empty path."""
    outline = _limited(_outline(kind, source))
    return [
        {"path": entry.path, "type": entry.type, "is_optional": entry.is_optional}
        for entry in outline
    ]


def difference(kind: str, before: Source, after: Source) -> list[Change]:
    """The changes from one version to another, both known to be schemas of one type, in the order of the new one."""
    old = {entry.key: entry for entry in _limited(_outline(kind, before))}
    new = {entry.key: entry for entry in _limited(_outline(kind, after))}
    changes = [change for key, entry in new.items() for change in _changes(old.get(key), entry)]
    return changes + [
        Change("removed", entry.path, _words(entry), None)
        for key, entry in old.items()
        if key not in new
    ]


def _changes(old: Entry | None, new: Entry) -> Iterator[Change]:
    if old is None:
        yield Change("added", new.path, None, _words(new))
        return
    if old.path.rpartition(".")[2] != new.path.rpartition(".")[2]:
        yield Change("renamed", new.path, old.path, new.path)
    if old.type != new.type:
        yield Change("type", new.path, old.type, new.type)
    if old.is_optional != new.is_optional:
        yield Change("optionality", new.path, _optionality(old), _optionality(new))
    for name in dict.fromkeys((*old.details, *new.details)):
        if old.details.get(name) != new.details.get(name):
            yield Change(name, new.path, old.details.get(name), new.details.get(name))


def _outline(kind: str, source: Source) -> Iterator[Entry]:
    if kind == "avro" and isinstance(source, str):
        return _avro(avro.parse(source), "", False, {}, ())
    if kind == "json" and isinstance(source, str):
        return _json(json_schema.parse(source).root, "", True, 0)
    if kind == "external_http" and isinstance(source, str):
        return iter([Entry("", "", kind, False, jsontext.decode(source))])
    model = protobuf.parse(source)
    return (entry for name, message in model.messages.items() for entry in _message(name, message))


def _avro(
    schema: AvroType,
    path: str,
    is_optional: bool,
    details: Mapping[str, Any],
    within: tuple[str, ...],
) -> Iterator[Entry]:
    others = [branch for branch in schema.branches if branch.kind != "null"]
    if schema.kind == "union" and len(others) < len(schema.branches) and len(others) == 1:
        yield from _avro(others[0], path, True, details, within)
        return
    more = {**details}
    if schema.symbols:
        more["symbols"] = list(schema.symbols)
    if schema.kind == "fixed":
        more["size"] = schema.size
    if schema.logical:
        more["logicalType"] = schema.logical if schema.digits is None else schema.digits.text
    yield Entry(path, path, _avro_words(schema), is_optional, more)
    if schema.name in within or len(within) > MAX_DEPTH:
        return
    inside = (*within, schema.name) if schema.name else within
    for item in schema.fields:
        own = {"default": True} if item.default is not MISSING else {}
        yield from _avro(item.type, _below(path, item.name), False, own, inside)
    if schema.items is not None:
        yield from _avro(
            schema.items,
            f"{path}[]" if schema.kind == "array" else f"{path}{{}}",
            False,
            {},
            inside,
        )
    for branch in others if schema.kind == "union" else ():
        if branch.fields:
            yield from _avro(branch, f"{path}<{branch.name}>", False, {}, inside)


def _avro_words(schema: AvroType) -> str:
    if schema.kind == "union":
        return " or ".join(branch.text for branch in schema.branches)
    return schema.text


_JSON_STRUCTURE = frozenset(
    {"properties", "required", "type", "items", "$schema", "$id", "$defs", "definitions", "title", "description",
     "examples", "$comment", "default"}
)  # fmt: skip


def _json(schema: Any, path: str, is_required: bool, depth: int) -> Iterator[Entry]:
    if not isinstance(schema, Mapping):
        yield Entry(path, path, "anything" if schema else "nothing", not is_required)
        return
    declared = schema.get("type", schema.get("$ref", "any type"))
    words = declared if isinstance(declared, str) else " or ".join(map(str, declared))
    details = {key: value for key, value in schema.items() if key not in _JSON_STRUCTURE}
    yield Entry(path, path, words, not is_required, details)
    if depth > MAX_DEPTH:
        return
    properties = schema.get("properties", {})
    required = schema.get("required", ())
    for name, inner in (
        properties | {name: True for name in required if name not in properties}
    ).items():
        yield from _json(inner, _below(path, name), name in required, depth + 1)
    items = schema.get("items")
    if isinstance(items, Mapping):
        yield from _json(items, f"{path}[]", True, depth + 1)


def _message(name: str, message: Any) -> Iterator[Entry]:
    yield Entry(name, name, "message", True)
    for item in message.fields:
        repeated = "repeated " if is_repeated(item) else ""
        oneof = {"oneof": item.containing_oneof.name} if item.containing_oneof is not None else {}
        kind = repeated + field_type_name(item)
        yield Entry(
            f"{name}#{item.number}", f"{name}.{item.name}", kind, not is_required(item), oneof
        )


def _limited(entries: Iterator[Entry]) -> Iterator[Entry]:
    for count, entry in enumerate(entries):
        if count >= MAX_FIELDS:
            return
        yield entry


def _words(entry: Entry) -> str:
    return f"{entry.type}, {_optionality(entry)}"


def _optionality(entry: Entry) -> str:
    return "optional" if entry.is_optional else "required"


def _below(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 80 else text[:80] + "…"
