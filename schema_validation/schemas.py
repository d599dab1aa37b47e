"""A schema as people write it: its members, its source, and what the source is compiled to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from broker.core import jsontext
from broker.core.errors import Invalid, Problem
from broker.core.later import Later
from broker.core.ordered import MAX_NAME_BYTES, name_problem
from schema_validation.compatibility.verdict import MODES
from schema_validation.compile_limit import check_compiles_in_time
from schema_validation.external_http.spec import TYPE as EXTERNAL_HTTP
from schema_validation.external_http.spec import parse_parameters
from schema_validation.fingerprints import Source
from schema_validation.serdes.base import SchemaSerde, SourceError

_SERDES: Mapping[str, tuple[Any, str]] = {
    "json": (Later("schema_validation.serdes.json_schema"), "JsonSchemaSerde"),
    "avro": (Later("schema_validation.serdes.avro"), "AvroSerde"),
    "protobuf": (Later("schema_validation.serdes.protobuf"), "ProtobufSerde"),
}
SOURCE_TYPES = tuple(_SERDES)
"""The types of schemas that have a source."""
TYPES = (*SOURCE_TYPES, EXTERNAL_HTTP)
_WRITTEN = {
    "name", "type", "source", "files", "parameters", "description", "references", "compatibility", "tags", "metadata",
}  # fmt: skip
_SHOWN = {
    "version", "versions", "id", "fields", "facts", "fingerprints", "created_at", "latest", "deleted", "status",
    "node_status", "calls", "failed", "waiting", "last_error",
}  # fmt: skip
"""Members of a schema as it is shown, ignored when it is sent back."""


def check_members(spec: Mapping[str, Any], pointer: str = "") -> list[Problem]:
    """What is wrong with the shape of a schema as it was sent."""
    if not isinstance(spec, Mapping):
        return [Problem("an object is wanted", pointer)]
    known = _WRITTEN | _SHOWN
    problems = [Problem(f"unknown member {key!r}", f"{pointer}/{key}") for key in spec if key not in known]
    if why := schema_name_problem(spec.get("name")):
        problems.append(Problem(why, f"{pointer}/name"))
    if not isinstance(spec.get("description", ""), str):
        problems.append(Problem("a text is wanted", f"{pointer}/description"))
    if spec.get("compatibility") is not None and spec["compatibility"] not in MODES:
        problems.append(Problem(f"the compatibility is one of {', '.join(MODES)}", f"{pointer}/compatibility"))
    if not _are_texts(spec.get("tags", [])):
        problems.append(Problem("a list of texts is wanted", f"{pointer}/tags"))
    metadata = spec.get("metadata", {})
    if not isinstance(metadata, Mapping) or not _are_texts(list(metadata.values())):
        problems.append(Problem("an object of texts is wanted", f"{pointer}/metadata"))
    return problems + check_body(spec, pointer)


def schema_name_problem(name: object) -> str | None:
    """Why this cannot be the name of a schema. Dots are allowed inside it, as in subjects of Kafka topics."""
    if isinstance(name, str) and len(name) <= MAX_NAME_BYTES and not name.endswith("."):
        return name_problem(name.replace(".", "-"))
    return name_problem(name)


def _are_texts(value: object) -> bool:
    return isinstance(value, list) and len(value) <= 1000 and all(isinstance(item, str) for item in value)


def check_body(spec: Mapping[str, Any], pointer: str = "") -> list[Problem]:
    """What is wrong with type and source."""
    problems: list[Problem] = []
    if not isinstance(spec.get("type"), str) or spec["type"] not in TYPES:
        problems.append(Problem(f"the type is one of {', '.join(TYPES)}", f"{pointer}/type"))
    elif spec["type"] == EXTERNAL_HTTP:
        return _check_external(spec, pointer)
    elif "files" in spec and spec["type"] != "protobuf":
        problems.append(Problem("only a protobuf schema has files", f"{pointer}/files"))
    if ("source" in spec) == ("files" in spec):
        problems.append(Problem("either source or files is wanted", f"{pointer}/source"))
    return problems


def _check_external(spec: Mapping[str, Any], pointer: str) -> list[Problem]:
    wrong = [name for name in ("source", "files", "references") if spec.get(name)]
    problems = [Problem(f"a schema of type {EXTERNAL_HTTP} has no {name}", f"{pointer}/{name}") for name in wrong]
    if "parameters" not in spec:
        problems.append(Problem("parameters are wanted, at least {url}", f"{pointer}/parameters"))
    return problems


def source_of(spec: Mapping[str, Any]) -> Source:
    """The source of a checked spec; JSON values in place of text are written as text.

    A bundle may stand as ``source { type = bundle, files = [...] }`` too, as EMQX writes it.
    """
    if spec["type"] == EXTERNAL_HTTP:
        return parse_parameters(spec["parameters"]).source()
    if "files" in spec:
        files: list[dict[str, Any]] = spec["files"]
        return files
    source = spec["source"]
    if spec["type"] == "protobuf" and isinstance(source, Mapping) and isinstance(source.get("files"), list):
        bundle: list[dict[str, Any]] = source["files"]
        return bundle
    return source if isinstance(source, str) else jsontext.encode(source).decode()


def compile_source(kind: str, source: Source, label: str, pointer: str = "") -> SchemaSerde:
    """The serde of a source that stands alone.

    Raises:
        Invalid: the source is no schema of that type, or takes too long to compile.
    """
    try:
        if kind == "json" and isinstance(source, str):
            check_compiles_in_time(source)
        module, name = _SERDES[kind]
        serde: SchemaSerde = getattr(module, name)(source, label)
    except SourceError as error:
        member = "source" if isinstance(source, str) else "files"
        problem = Problem(error.message, f"{pointer}/{member}", error.line, error.column)
        raise Invalid(f"not a usable {kind} schema", [problem]) from None
    return serde
