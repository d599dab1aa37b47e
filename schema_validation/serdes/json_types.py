"""The field types of a JSON Schema, as rules and tables see them. What is not decided by the schema is ``unknown``.

Keywords that stand side by side must all hold, so their types are met: ``$ref``, ``allOf``, and of ``anyOf`` and
``oneOf`` what their branches have in common. A schema that contains itself is unknown from there on. ``properties``
without a ``type`` are an unknown type with fields, which count where a sibling type says ``object``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from broker.core.schema import UNKNOWN, FieldType
from rules.sql.type_checker.types import maybe, unified_all
from schema_validation.serdes.base import at_pointer, listed, mapped

_SCALARS = {
    "integer": "long",
    "number": "double",
    "string": "string",
    "boolean": "boolean",
    "null": "null",
}
_MAX_DEPTH = 32
# Maximum subschemas visited; references can make a small schema unfold to any size.
_MAX_VISITED = 20_000
_BRANCHING = ("if", "then", "else")
# Keywords that may allow members of any name: references below ``$id`` count from there.
_UNFOLLOWED = frozenset({"patternProperties", "$dynamicRef", "$recursiveRef", "$id"})
_FORMATS = {"date-time": "timestamp", "date": "date"}


def field_type_of(schema: Mapping[str, Any]) -> FieldType:
    """The type of the values a schema accepts."""
    return _settled(_Reader(schema).read(schema, None, frozenset()))


def _settled(kind: FieldType) -> FieldType:
    """The type without fields if it may be something other than an object."""
    if kind.name == "unknown":
        return FieldType("unknown", nullable=kind.nullable)
    fields = {name: _settled(inner) for name, inner in kind.fields.items()}
    return replace(kind, fields=fields, item=None if kind.item is None else _settled(kind.item))


class _Reader:
    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root
        self._visited = 0
        self._anchors: dict[str, Any] | None = None
        self._alone = "draft-0" in str(root.get("$schema", ""))
        """True if ``$ref`` overrides its siblings, as up to draft 7."""

    def read(
        self, schema: Any, inherited: Sequence[str] | None, within: frozenset[str]
    ) -> FieldType:
        """The type of a subschema.

        Args:
            schema: the subschema.
            inherited: the names of the types that keywords around it leave, None for all.
            within: the references that led here.
        """
        self._visited += 1
        if (
            not isinstance(schema, Mapping)
            or self._visited > _MAX_VISITED
            or len(within) > _MAX_DEPTH
        ):
            return UNKNOWN
        if "$id" in schema and schema is not self._root:
            return UNKNOWN  # its references count from elsewhere
        names = _names(schema, inherited)
        if "$ref" not in schema:
            return self._met(
                [self._own(schema, names, within), *self._parts(schema, names, within)]
            )
        target = self._referred(schema["$ref"], names, within)
        if self._alone:
            return target
        return self._met(
            [self._own(schema, names, within), target, *self._parts(schema, names, within)]
        )

    def _referred(
        self, reference: Any, names: Sequence[str] | None, within: frozenset[str]
    ) -> FieldType:
        if not isinstance(reference, str) or reference in within:
            return UNKNOWN
        return self.read(self._target(reference), names, within | {reference})

    def _target(self, reference: str) -> Any:
        """Target of a reference within the document (``#/$defs/x``, ``#anchor``); None for others."""
        if reference == "#" or reference.startswith("#/"):
            return at_pointer(self._root, reference[1:])
        if not reference.startswith("#"):
            return None
        if self._anchors is None:
            self._anchors = _anchors(self._root)
        return self._anchors.get(reference[1:])

    def _parts(
        self, schema: Mapping[str, Any], names: Sequence[str] | None, within: frozenset[str]
    ) -> Iterable[FieldType]:
        for part in listed(schema.get("allOf")):
            yield self.read(part, names, within)
        for keyword in ("anyOf", "oneOf"):
            if branches := listed(schema.get(keyword)):
                yield unified_all(self.read(branch, names, within) for branch in branches)

    def _met(self, kinds: Sequence[FieldType]) -> FieldType:
        met, *others = kinds
        for kind in others:
            met = meet(met, kind)
        return met

    def _own(
        self, schema: Mapping[str, Any], names: Sequence[str] | None, within: frozenset[str]
    ) -> FieldType:
        """The type by the keywords of the schema itself."""
        others = [name for name in names or () if name != "null"] or ["null"]
        if set(others) == {"integer", "number"}:
            others = ["number"]
        if names is None or len(others) != 1:
            closes = False in (
                schema.get("unevaluatedProperties"),
                schema.get("additionalProperties"),
            )
            if (names is not None and "object" not in names) or not (
                closes or mapped(schema.get("properties"))
            ):
                return UNKNOWN
            return replace(self._object(schema, within), name="unknown")
        return replace(self._named(others[0], schema, within), nullable="null" in names)

    def _named(self, name: str, schema: Mapping[str, Any], within: frozenset[str]) -> FieldType:
        if name == "object":
            return self._object(schema, within)
        if name == "array":
            is_list = "prefixItems" not in schema and not isinstance(schema.get("items"), list)
            return FieldType(
                "array", item=self.read(schema.get("items"), None, within) if is_list else UNKNOWN
            )
        if name == "string":
            values = tuple(v for v in _values(schema) or () if isinstance(v, str))
            return FieldType(
                "string", values=values, logical=_FORMATS.get(str(schema.get("format")), "")
            )
        return FieldType(_SCALARS.get(name, "unknown"))

    def _object(self, schema: Mapping[str, Any], within: frozenset[str]) -> FieldType:
        properties = mapped(schema.get("properties"))
        extra = schema.get("additionalProperties", True)
        required = listed(schema.get("required"))
        if not properties and isinstance(extra, Mapping) and "patternProperties" not in schema:
            return FieldType("map", item=self.read(extra, None, within))
        fields: dict[str, FieldType] = {}
        for name, inner in properties.items():
            kind = self.read(inner, None, within)
            fields[name] = kind if name in required else maybe(kind)
        for name in required:
            fields.setdefault(name, FieldType("unknown", nullable=False))
        evaluated: dict[str, None] = {}
        own = {
            word: value
            for word, value in schema.items()
            if word not in ("$id", "unevaluatedProperties")
        }
        are_all = self._evaluates(own, within, evaluated)
        for name in evaluated:
            fields.setdefault(name, UNKNOWN)
        leaves_none = schema.get("unevaluatedProperties") is False and not self._alone and are_all
        is_closed = leaves_none or (extra is False and not schema.get("patternProperties"))
        return FieldType("struct", fields=fields, open=not is_closed)

    def _evaluates(self, schema: Any, within: frozenset[str], names: dict[str, None]) -> bool:
        """Add the members that a schema speaks of, and the schemas that apply in its place; whether these are all that
        ``unevaluatedProperties: false`` allows."""
        if isinstance(schema, bool):
            return True
        self._visited += 1
        if (
            not isinstance(schema, Mapping)
            or self._visited > _MAX_VISITED
            or len(within) > _MAX_DEPTH
        ):
            return False
        names.update(dict.fromkeys(mapped(schema.get("properties"))))
        are_all = not _UNFOLLOWED & schema.keys()
        for keyword in ("additionalProperties", "unevaluatedProperties"):
            are_all = are_all and schema.get(keyword, False) is False
        parts = [part for word in ("allOf", "anyOf", "oneOf") for part in listed(schema.get(word))]
        parts += [schema[word] for word in _BRANCHING if word in schema]
        parts += mapped(schema.get("dependentSchemas")).values()
        if "$ref" in schema:
            reference = schema["$ref"]
            is_known = isinstance(reference, str) and reference not in within
            target = self._target(reference) if is_known else None
            are_all = self._evaluates(target, within | {str(reference)}, names) and are_all
        for part in parts:
            are_all = self._evaluates(part, within, names) and are_all
        return are_all


def meet(field_type: FieldType, other: FieldType) -> FieldType:
    """The type of a value that has both types; the first where they cannot be met."""
    nullable = field_type.nullable and other.nullable
    names = {field_type.name, other.name}
    if names <= {"struct", "unknown"} or (
        names <= {"struct", "unknown", "map"} and (field_type.fields or other.fields)
    ):
        fields = {
            name: _met_field(field_type, other, name)
            for name in {**field_type.fields, **other.fields}
        }
        name = "unknown" if names == {"unknown"} else "struct"
        return FieldType(
            name, nullable=nullable, fields=fields, open=field_type.open and other.open
        )
    if "unknown" in names:
        return replace(field_type if other.name == "unknown" else other, nullable=nullable)
    if field_type.name == other.name == "array":
        return FieldType(
            "array", nullable=nullable, item=meet(field_type.item or UNKNOWN, other.item or UNKNOWN)
        )
    if field_type.name == other.name == "string":
        common = tuple(value for value in field_type.values if value in other.values)
        values = common or field_type.values or other.values
        return FieldType(
            "string", nullable=nullable, values=values, logical=field_type.logical or other.logical
        )
    if names == {"long", "double"}:
        return FieldType("long", nullable=nullable)
    is_better = (
        bool(other.values)
        if field_type.name == other.name
        else (field_type.name, other.name) == ("map", "struct")
    )
    return replace(other if is_better else field_type, nullable=nullable)


def _met_field(field_type: FieldType, other: FieldType, name: str) -> FieldType:
    if name in field_type.fields and name in other.fields:
        return meet(field_type.fields[name], other.fields[name])
    return field_type.fields[name] if name in field_type.fields else other.fields[name]


def _names(schema: Mapping[str, Any], inherited: Sequence[str] | None) -> Sequence[str] | None:
    """The names of the types that are left."""
    own = schema.get("type")
    if own is None:
        return _names_of_values(schema) or inherited
    names = (
        [own] if isinstance(own, str) else [name for name in listed(own) if isinstance(name, str)]
    )
    if inherited is None:
        return names
    return [
        name for name in names if name in inherited or (name == "integer" and "number" in inherited)
    ] or names


def _names_of_values(schema: Mapping[str, Any]) -> Sequence[str] | None:
    """Without ``type``: a constant or an enumeration says it too."""
    values = _values(schema)
    names = None if values is None else list(dict.fromkeys(map(type_name, values)))
    return None if names is None or not _SCALARS.keys() >= set(names) else names


def _values(schema: Mapping[str, Any]) -> list[Any] | None:
    if isinstance(schema.get("enum"), list):
        return list(schema["enum"])
    return [schema["const"]] if "const" in schema else None


_TYPES: Sequence[tuple[type, str]] = (
    (bool, "boolean"), (int, "integer"), (float, "number"), (str, "string"), (list, "array"), (dict, "object"),
)  # fmt: skip


def type_name(value: Any) -> str:
    """The JSON type of a decoded value."""
    return next((name for python, name in _TYPES if isinstance(value, python)), "null")


def _anchors(root: Mapping[str, Any]) -> dict[str, Any]:
    """The subschemas with an ``$anchor`` by its name, without those of embedded resources (``$id``)."""
    anchors: dict[str, Any] = {}
    waiting: list[Any] = [root]
    for _ in range(_MAX_VISITED):
        if not waiting:
            break
        node = waiting.pop()
        if isinstance(node, list):
            waiting += node
        elif isinstance(node, Mapping) and (node is root or "$id" not in node):
            for keyword in ("$anchor", "$dynamicAnchor"):
                if isinstance(node.get(keyword), str):
                    anchors[node[keyword]] = node
            waiting += node.values()
    return anchors
