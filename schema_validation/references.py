"""Schemas that use each other, made into one self-contained source.

Each reference has a local name, which the source uses, and the schema and version that it stands for: an Avro type
name, the address in a JSON ``$ref``, the path of a protobuf import. A version never changes once it is saved, so what
it refers to never does either.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from typing_extensions import TypedDict

from broker.core import jsontext
from broker.core.errors import Invalid, NotFound, Problem
from schema_validation.fingerprints import Source
from schema_validation.serdes.avro_schema import PRIMITIVES

MAX_REFERENCES = 100


class SchemaReference(TypedDict):
    """A version of another schema, and the name by which a schema refers to it."""

    name: str
    schema: str
    version: int


@dataclass(frozen=True, slots=True)
class Reference:
    """A name that a source uses, and the version it stands for."""

    name: str
    schema: str
    version: int

    def as_spec(self) -> SchemaReference:
        """Members as saved and shown."""
        return {"name": self.name, "schema": self.schema, "version": self.version}


@dataclass(frozen=True, slots=True)
class Referred:
    """Target of a reference: its source as written, the self-contained one, and its own references."""

    reference: Reference
    kind: str
    source: Source
    flat: Source
    referred: tuple[Referred, ...] = ()


# ``resolve(local name, schema, version)``: what it leads to; without a version the latest. Raises ``NotFound``, or
# ``LookupError`` with a sentence.
Resolve = Callable[[str, str, "int | None"], Referred]


def read_references(
    spec: Mapping[str, Any], resolve: Resolve, pointer: str = ""
) -> tuple[Referred, ...]:
    """The references of a spec, resolved.

    Raises:
        Invalid: with every problem.
    """
    listed = spec.get("references") or []
    if not isinstance(listed, list) or len(listed) > MAX_REFERENCES:
        raise Invalid(
            "the references cannot be used",
            [Problem(f"expected a list of at most {MAX_REFERENCES}", f"{pointer}/references")],
        )
    by_name: dict[str, Referred] = {}
    problems: list[Problem] = []
    for index, item in enumerate(listed):
        place = f"{pointer}/references/{index}"
        try:
            referred = _one(item, spec, resolve)
        except (LookupError, NotFound) as error:
            problems.append(Problem(str(error.args[0]), place))
            continue
        if referred.reference.name in by_name:
            problems.append(Problem(f"the name {referred.reference.name!r} is given twice", place))
        by_name[referred.reference.name] = referred
    if problems:
        raise Invalid("the references cannot be used", problems)
    return tuple(by_name.values())


def _one(item: Any, spec: Mapping[str, Any], resolve: Resolve) -> Referred:
    if not isinstance(item, Mapping):
        raise LookupError("expected an object with name, schema and version")
    name = item.get("name")
    schema = item.get("schema", item.get("subject"))
    version = item.get("version", "latest")
    if not isinstance(name, str) or not name or not isinstance(schema, str):
        raise LookupError("expected strings for name and schema")
    if version in ("latest", -1):
        version = None
    elif isinstance(version, bool) or not isinstance(version, int) or version < 1:
        raise LookupError("expected a version number from 1, or 'latest'")
    if schema == spec.get("name") and version is None:
        raise LookupError(
            "a schema must not refer to itself; name an earlier version by its number"
        )
    target = resolve(name, schema, version)
    if target.kind != spec.get("type"):
        raise LookupError(
            f"schema {schema!r} is of type {target.kind}; only schemas of one type refer to each other"
        )
    return target


def standing_alone(kind: str, source: Source, referred: Sequence[Referred]) -> Source:
    """A source with everything it refers to put in.

    Raises:
        ValueError: it cannot be done; says why.
    """
    if not referred:
        return source
    if kind == "protobuf":
        return _with_files(source, referred)
    if not isinstance(source, str):
        raise ValueError(f"a schema of type {kind} has no references")
    if kind == "avro":
        return jsontext.encode(_AvroExpansion(referred).expand(jsontext.decode(source))).decode()
    if kind == "json":
        return jsontext.encode(_with_definitions(jsontext.decode(source), referred)).decode()
    raise ValueError(f"a schema of type {kind} has no references")


class _AvroExpansion:
    """Writes out each referred type where it is first used."""

    def __init__(self, referred: Sequence[Referred]) -> None:
        self._known: dict[str, tuple[Any, str]] = {}
        self._written: set[str] = set()
        for item in referred:
            if isinstance(item.flat, str):
                self._learn(jsontext.decode(item.flat), "")

    def expand(self, raw: Any, namespace: str = "") -> Any:
        if isinstance(raw, str):
            return self._named(raw, namespace)
        if isinstance(raw, list):
            return [self.expand(item, namespace) for item in raw]
        if not isinstance(raw, dict) or "type" not in raw:
            return raw
        if raw["type"] in ("record", "error", "enum", "fixed"):
            return self._definition(raw, namespace)
        members = {
            key: self.expand(raw[key], namespace)
            for key in ("type", "items", "values")
            if key in raw
        }
        return (
            {**raw, **members}
            if raw["type"] not in ("array", "map")
            else {**raw, **members, "type": raw["type"]}
        )

    def _named(self, name: str, namespace: str) -> Any:
        if name in PRIMITIVES:
            return name
        full = name if "." in name or not namespace else f"{namespace}.{name}"
        for candidate in (full, name):
            if candidate in self._written:
                return candidate
            if candidate in self._known:
                return self.expand(*self._known[candidate])
        return name

    def _definition(self, raw: dict[str, Any], namespace: str) -> Any:
        full = _full_name(raw, namespace)
        if full in self._written and full in self._known:
            return full
        self._written.add(full)
        inner, _, short = full.rpartition(".")
        record = {**raw, "name": short, "namespace": inner}
        if isinstance(raw.get("fields"), list):
            record["fields"] = [
                {**item, "type": self.expand(item["type"], inner)}
                if isinstance(item, dict) and "type" in item
                else item
                for item in raw["fields"]
            ]
        return record

    def _learn(self, raw: Any, namespace: str) -> None:
        """Know every named type of a source, with the namespace around it."""
        if isinstance(raw, list):
            for item in raw:
                self._learn(item, namespace)
        if not isinstance(raw, dict):
            return
        inner = namespace
        if raw.get("type") in ("record", "error", "enum", "fixed"):
            full = _full_name(raw, namespace)
            self._known.setdefault(full, (raw, namespace))
            inner = full.rpartition(".")[0]
        for key in ("type", "items", "values", "fields"):
            self._learn(raw.get(key), inner)


def _full_name(raw: Mapping[str, Any], namespace: str) -> str:
    name = str(raw.get("name"))
    own = raw.get("namespace", namespace)
    return name if "." in name or not own else f"{own}.{name}"


def _with_definitions(schema: Any, referred: Sequence[Referred]) -> Any:
    """The schema with its referenced schemas among its definitions, and its references leading there."""
    if not isinstance(schema, dict):
        return schema
    draft = schema.get("$schema")
    holder = "definitions" if isinstance(draft, str) and "draft-0" in draft else "$defs"
    places: dict[str, str] = {}
    definitions: dict[str, Any] = {}
    for item in referred:
        key = f"{item.reference.schema}.v{item.reference.version}"
        inner = _embeddable(item, schema)
        place = f"#/{holder}/{key}"
        places[item.reference.name] = place
        bare = {
            member: value
            for member, value in inner.items()
            if member not in ("$schema", "$id", "id")
        }
        definitions[key] = _moved(bare, {"": place})
    moved = _moved(schema, places)
    existing = moved.get(holder)
    return {**moved, holder: {**(existing if isinstance(existing, dict) else {}), **definitions}}


def _embeddable(item: Referred, outer: Mapping[str, Any]) -> dict[str, Any]:
    """The schema of a reference, when it means the same inside another document."""
    inner = jsontext.decode(item.flat) if isinstance(item.flat, str) else None
    who = f"schema {item.reference.schema!r} version {item.reference.version}"
    if not isinstance(inner, dict):
        raise ValueError(f"{who} cannot be referred to")
    if inner.get("$schema", outer.get("$schema")) != outer.get("$schema", inner.get("$schema")):
        raise ValueError(
            f"{who} is of another draft; schemas that refer to each other share '$schema'"
        )
    if any(_has_anchors(value) for value in inner.values()):
        raise ValueError(
            f"{who} gives names to its parts ($id, $anchor) and cannot be referred to; use '#/...' there"
        )
    return inner


def _has_anchors(value: Any) -> bool:
    if isinstance(value, list):
        return any(map(_has_anchors, value))
    if not isinstance(value, dict):
        return False
    named = any(
        isinstance(value.get(key), str)
        for key in ("$id", "$anchor", "$dynamicAnchor", "$dynamicRef")
    )
    return named or any(map(_has_anchors, value.values()))


def _moved(value: Any, places: Mapping[str, str]) -> Any:
    """The value with each ``$ref`` whose address is in ``places`` leading to that place."""
    if isinstance(value, list):
        return [_moved(item, places) for item in value]
    if not isinstance(value, dict):
        return value
    moved = {key: _moved(item, places) for key, item in value.items()}
    reference = moved.get("$ref")
    if isinstance(reference, str):
        address, _, fragment = reference.partition("#")
        if address in places:
            moved["$ref"] = places[address] + fragment
    return moved


def _with_files(source: Source, referred: Sequence[Referred]) -> Source:
    files = [dict(item) for item in source] if not isinstance(source, str) else []
    if isinstance(source, str):
        files.append({"path": "schema.proto", "root": True, "contents": source})
    contents = {item["path"]: item["contents"] for item in files}
    for path, text in _imports(referred):
        if contents.setdefault(path, text) != text:
            raise ValueError(f"two different files are imported as {path!r}")
        if path not in [item["path"] for item in files]:
            files.append({"path": path, "root": False, "contents": text})
    return files


def _imports(referred: Sequence[Referred]) -> list[tuple[str, str]]:
    """Path and text of every file that is imported, also by imported ones."""
    sources: list[tuple[str, str]] = []
    for item in referred:
        if not isinstance(item.source, str):
            raise ValueError(
                f"schema {item.reference.schema!r} is a bundle of files and cannot be imported"
            )
        sources += [(item.reference.name, item.source), *_imports(item.referred)]
    return sources
