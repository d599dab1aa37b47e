"""A schema as people write it, and what it is compiled to."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from broker.core import jsontext
from broker.core.errors import Invalid, Problem
from broker.core.objects import Spec
from broker.core.ordered import name_problem
from schema_validation.serdes.avro import AvroSerde
from schema_validation.serdes.base import SchemaSerde, SourceError
from schema_validation.serdes.json_schema import JsonSchemaSerde
from schema_validation.serdes.protobuf import ProtobufSerde

Source = str | list[dict[str, Any]]
"""The text of a schema, or the files of a bundle: ``{"path", "root", "contents"}``."""

BUILDERS: Mapping[str, Callable[[Any, str], SchemaSerde]] = {
    "json": JsonSchemaSerde,
    "avro": AvroSerde,
    "protobuf": ProtobufSerde,
}
_MEMBERS = {"name", "type", "source", "files", "description", "version", "versions", "fields", "facts"}


@dataclass(frozen=True, slots=True)
class SchemaVersion:
    """One version of a schema, compiled. Numbers count from 1."""

    number: int
    source: Source
    description: str
    serde: SchemaSerde

    def as_spec(self) -> Spec:
        """The version as it is saved and shown."""
        member = "source" if isinstance(self.source, str) else "files"
        return {"version": self.number, member: self.source, "description": self.description}


@dataclass(frozen=True, slots=True)
class Schema:
    """A schema by name with all its versions; ``in_use`` is the number of the one that codes payloads."""

    name: str
    kind: str
    versions: tuple[SchemaVersion, ...]
    in_use: int

    @property
    def current(self) -> SchemaVersion:
        """The version in use."""
        return next(version for version in self.versions if version.number == self.in_use)

    def as_spec(self) -> Spec:
        """The schema as it is saved: the members that were sent, and every version."""
        current = self.current.as_spec()
        return {
            "name": self.name,
            "type": self.kind,
            **current,
            "versions": [version.as_spec() for version in self.versions],
        }


def check_members(spec: Mapping[str, Any], pointer: str = "") -> list[Problem]:
    """What is wrong with the shape of a schema as it was sent."""
    if not isinstance(spec, Mapping):
        return [Problem("an object is wanted", pointer)]
    problems = [Problem(f"unknown member {key!r}", f"{pointer}/{key}") for key in spec if key not in _MEMBERS]
    if why := name_problem(spec.get("name")):
        problems.append(Problem(why, f"{pointer}/name"))
    if not isinstance(spec.get("description", ""), str):
        problems.append(Problem("a text is wanted", f"{pointer}/description"))
    return problems + check_body(spec, pointer)


def check_body(spec: Mapping[str, Any], pointer: str = "") -> list[Problem]:
    """What is wrong with type and source."""
    problems: list[Problem] = []
    if not isinstance(spec.get("type"), str) or spec["type"] not in BUILDERS:
        problems.append(Problem(f"the type is one of {', '.join(BUILDERS)}", f"{pointer}/type"))
    elif "files" in spec and spec["type"] != "protobuf":
        problems.append(Problem("only a protobuf schema has files", f"{pointer}/files"))
    if ("source" in spec) == ("files" in spec):
        problems.append(Problem("either source or files is wanted", f"{pointer}/source"))
    return problems


def source_of(spec: Mapping[str, Any]) -> Source:
    """The source of a checked spec; JSON values in place of text are written as text."""
    if "files" in spec:
        files: list[dict[str, Any]] = spec["files"]
        return files
    source = spec["source"]
    return source if isinstance(source, str) else jsontext.encode(source).decode()


def compile_source(kind: str, source: Source, label: str, pointer: str = "") -> SchemaSerde:
    """The serde of a source.

    Raises:
        Invalid: the source is no schema of that type.
    """
    try:
        return BUILDERS[kind](source, label)
    except SourceError as error:
        member = "source" if isinstance(source, str) else "files"
        problem = Problem(error.message, f"{pointer}/{member}", error.line, error.column)
        raise Invalid(f"not a usable {kind} schema", [problem]) from None


def first_version(spec: Mapping[str, Any], pointer: str = "") -> Schema:
    """A schema with one version.

    Raises:
        Invalid: with every problem.
    """
    if problems := check_members(spec, pointer):
        raise Invalid("the schema cannot be saved", problems)
    name, kind = spec["name"], spec["type"]
    version = _version(name, kind, 1, source_of(spec), spec.get("description", ""), pointer)
    return Schema(name, kind, (version,), 1)


def next_version(schema: Schema, spec: Mapping[str, Any]) -> Schema:
    """The schema with one more version, in use at once; the same source again makes no new version.

    Raises:
        Invalid: with every problem; also when the type is another one.
    """
    if problems := check_members(spec):
        raise Invalid("the schema cannot be saved", problems)
    if spec["type"] != schema.kind:
        raise Invalid("a schema keeps its type", [Problem(f"the type of {schema.name!r} is {schema.kind}", "/type")])
    source, description = source_of(spec), spec.get("description", schema.current.description)
    if source == schema.current.source:
        same = SchemaVersion(schema.in_use, source, description, schema.current.serde)
        return Schema(schema.name, schema.kind, _with(schema.versions, same), schema.in_use)
    number = schema.versions[-1].number + 1
    version = _version(schema.name, schema.kind, number, source, description, "")
    return Schema(schema.name, schema.kind, (*schema.versions, version), number)


def restored(spec: Mapping[str, Any]) -> Schema:
    """A schema as the configuration holds it: with its versions, or with one source written by hand."""
    if "versions" not in spec:
        return first_version(spec)
    if problems := check_members(spec):
        raise Invalid("the schema cannot be used", problems)
    name, kind, versions = spec["name"], spec["type"], spec["versions"]
    if not isinstance(versions, list) or not versions:
        raise Invalid("the schema cannot be used", [Problem("a list of versions is wanted", "/versions")])
    made = tuple(_restored_version(name, kind, version, index) for index, version in enumerate(versions))
    in_use = spec.get("version", made[-1].number)
    if in_use not in [version.number for version in made]:
        raise Invalid("the schema cannot be used", [Problem(f"there is no version {in_use!r}", "/version")])
    return Schema(name, kind, made, in_use)


def _restored_version(name: str, kind: str, version: Any, index: int) -> SchemaVersion:
    pointer = f"/versions/{index}"
    if not isinstance(version, Mapping) or not isinstance(version.get("version"), int):
        raise Invalid("the schema cannot be used", [Problem("a version has a number", pointer)])
    if problems := check_body({**version, "type": kind}, pointer):
        raise Invalid("the schema cannot be used", problems)
    source, description = source_of(version), version.get("description", "")
    return _version(name, kind, version["version"], source, description, pointer)


def _version(name: str, kind: str, number: int, source: Source, description: str, pointer: str) -> SchemaVersion:
    label = f"schema '{name}' version {number}"
    return SchemaVersion(number, source, description, compile_source(kind, source, label, pointer))


def _with(versions: Sequence[SchemaVersion], changed: SchemaVersion) -> tuple[SchemaVersion, ...]:
    return tuple(changed if version.number == changed.number else version for version in versions)
