"""A schema as users write it: its members, its source, and the serde compiled from it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from broker.config.spec_problems import parsed
from broker.core import jsontext
from broker.core.errors import Invalid, Problem
from broker.core.lazy_module import LazyModule
from schema_validation.compile_limit import check_compiles_in_time
from schema_validation.external_http.spec import TYPE as EXTERNAL_HTTP
from schema_validation.external_http.spec import parse_parameters
from schema_validation.fingerprints import Source
from schema_validation.serdes.base import SchemaSerde, SourceError
from schema_validation.spec import SchemaBody, SchemaSpec

_SERDES: Mapping[str, tuple[Any, str]] = {
    "json": (LazyModule("schema_validation.serdes.json_schema"), "JsonSchemaSerde"),
    "avro": (LazyModule("schema_validation.serdes.avro"), "AvroSerde"),
    "protobuf": (LazyModule("schema_validation.serdes.protobuf"), "ProtobufSerde"),
}
# The types of schemas that have a source.
SOURCE_TYPES = tuple(_SERDES)
# Members of a schema as it is shown, ignored when it is sent back.
_SHOWN = {
    "version", "versions", "id", "fields", "facts", "fingerprints", "created_at", "latest", "deleted", "status",
    "node_status", "calls", "failed", "waiting", "last_error",
}  # fmt: skip


def check_members(spec: Any, pointer: str = "") -> None:
    """Check the shape of a schema as it was sent. Raises ``Invalid`` with every problem."""
    parsed(SchemaSpec, spec, "the schema cannot be saved", ignored=_SHOWN, pointer=pointer)


def check_body(spec: Mapping[str, Any], pointer: str = "") -> None:
    """Check type and source alone. Raises ``Invalid`` with every problem."""
    body = {name: spec[name] for name in SchemaBody.model_fields if name in spec}
    parsed(SchemaBody, body, "the schema cannot be used", pointer=pointer)


def source_of(spec: Mapping[str, Any]) -> Source:
    """The source of a checked spec; JSON values in place of text are written as text.

    A bundle may be written ``source { type = bundle, files = [...] }`` too, as EMQX writes it.
    """
    if spec["type"] == EXTERNAL_HTTP:
        return parse_parameters(spec["parameters"]).source()
    if spec.get("files"):
        files: list[dict[str, Any]] = spec["files"]
        return files
    source = spec["source"]
    if (
        spec["type"] == "protobuf"
        and isinstance(source, Mapping)
        and isinstance(source.get("files"), list)
    ):
        bundle: list[dict[str, Any]] = source["files"]
        return bundle
    return source if isinstance(source, str) else jsontext.encode(source).decode()


def compile_source(kind: str, source: Source, label: str, pointer: str = "") -> SchemaSerde:
    """The serde of a self-contained source.

    Raises:
        Invalid: the source is not a schema of that type, or takes too long to compile.
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
