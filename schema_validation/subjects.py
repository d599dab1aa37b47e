"""The registry as Confluent's REST API shows it: subjects are schemas, their versions and ids are ours.

Names, numbers and error codes are those of Confluent Schema Registry; the HTTP of it is in ``ui.api.registry``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from uuid import UUID

from broker.core.errors import (
    Conflict,
    InUse,
    Invalid,
    NotFound,
    ReadOnly,
    SluiceError,
    Unavailable,
)
from schema_validation.compatibility.verdict import MODES, Mode, Verdict
from schema_validation.service import Prepared, SchemaService
from schema_validation.spec import schema_name_problem
from schema_validation.versions import Incompatible, Schema, SchemaVersion, candidate_of, verdict_on

Answer = Any

TYPES = {"AVRO": "avro", "JSON": "json", "PROTOBUF": "protobuf"}
_NAMES = {kind: name for name, kind in TYPES.items()}
_CODES = (
    (InUse, 42206),
    (ReadOnly, 42205),
    (Conflict, 409),
    (Unavailable, 50001),
    (NotFound, 40401),
)
_NUMBER = re.compile(r"[1-9][0-9]{0,9}", re.ASCII)


class RegistryError(Exception):
    """An error as Confluent answers it: the status is the first three digits of the code."""

    def __init__(self, error_code: int, message: str) -> None:
        self.error_code = error_code
        self.status = error_code if error_code < 1000 else error_code // 100
        super().__init__(message)


def as_registry_error(error: SluiceError) -> RegistryError:
    """An error with the code that clients of Confluent registries know."""
    if isinstance(error, Incompatible):
        return RegistryError(
            409, f"Schema being registered is incompatible with an earlier schema; {error}"
        )
    if isinstance(error, Invalid) and error.code == "too_slow":
        return RegistryError(50002, str(error))
    code = next((code for kind, code in _CODES if isinstance(error, kind)), None)
    return (
        RegistryError(42201, f"Invalid schema: {error}")
        if code is None
        else RegistryError(code, str(error))
    )


class Subjects:
    """The calls of the REST API. On the event loop; ``register`` gives what takes long to be run elsewhere."""

    def __init__(self, service: SchemaService) -> None:
        self._service = service

    # Reading

    def names(
        self, *, deleted: bool = False, deleted_only: bool = False, prefix: str = ""
    ) -> list[str]:
        """``GET /subjects``."""
        wanted = [
            schema for schema in self._service.all_schemas() if schema.name.startswith(prefix)
        ]
        if deleted_only:
            return sorted(schema.name for schema in wanted if schema.is_deleted)
        return sorted(schema.name for schema in wanted if deleted or not schema.is_deleted)

    def versions(self, subject: str, *, deleted: bool = False) -> list[int]:
        """``GET /subjects/{subject}/versions``."""
        schema = self._schema(subject, deleted=deleted)
        return [version.number for version in (schema.versions if deleted else schema.live)]

    def version(self, subject: str, number: str, *, deleted: bool = False) -> Answer:
        """``GET /subjects/{subject}/versions/{version}``."""
        schema = self._schema(subject, deleted=deleted)
        return _described(schema, self._version(schema, number, deleted=deleted))

    def text(self, subject: str, number: str) -> str:
        """``GET /subjects/{subject}/versions/{version}/schema``."""
        schema = self._schema(subject)
        return _text(self._version(schema, number))

    def referenced_by(self, subject: str, number: str) -> list[int]:
        """``GET /subjects/{subject}/versions/{version}/referencedby``: ids."""
        version = self._version(self._schema(subject), number)
        return sorted(
            {
                other.id
                for schema in self._service.all_schemas()
                for other in schema.live
                if any(
                    (item.schema, item.version) == (subject, version.number)
                    for item in other.references
                )
            }
        )

    def by_id(self, number: int) -> Answer:
        """``GET /schemas/ids/{id}``."""
        schema, version = self._places(number)[0]
        return _content(schema, version)

    def by_guid(self, guid: str) -> Answer:
        """``GET /schemas/guids/{guid}``."""
        for schema in self._service.all_schemas():
            for version in schema.versions:
                if _guid(version) == guid:
                    return _content(schema, version)
        raise RegistryError(40403, f"Schema {guid} not found")

    def text_by_id(self, number: int) -> str:
        """``GET /schemas/ids/{id}/schema``."""
        return _text(self._places(number)[0][1])

    def places(self, number: int, *, deleted: bool = False) -> list[tuple[str, int]]:
        """``GET /schemas/ids/{id}/versions``: subjects and their versions that hold a schema."""
        versions = self._places(number)
        return [
            (schema.name, version.number)
            for schema, version in versions
            if deleted or not version.is_deleted
        ]

    def all(
        self, *, prefix: str = "", latest_only: bool = False, deleted: bool = False
    ) -> list[Answer]:
        """``GET /schemas``."""
        answers: list[Answer] = []
        for schema in self._service.all_schemas():
            versions = schema.versions if deleted else schema.live
            if schema.name.startswith(prefix):
                answers += [
                    _described(schema, version)
                    for version in (versions[-1:] if latest_only else versions)
                ]
        return answers

    # Looking up, registering

    def look_up(self, subject: str, body: Mapping[str, Any], *, deleted: bool = False) -> Answer:
        """``POST /subjects/{subject}``: the version that has this schema."""
        schema = self._schema(subject, deleted=deleted)
        identity = self._candidate(subject, body).identity
        same = [
            version
            for version in (schema.versions if deleted else schema.live)
            if version.identity == identity
        ]
        if not same:
            raise RegistryError(40403, "Schema not found")
        return _described(schema, same[-1])

    def register(
        self, subject: str, body: Mapping[str, Any]
    ) -> tuple[Callable[[], Prepared], Mapping[str, Any]]:
        """``POST /subjects/{subject}/versions``, the first half: what compiles and compares, and the spec."""
        if problem := schema_name_problem(subject):
            raise RegistryError(
                42208, f"The specified subject '{subject}' is not a valid: {problem}"
            )
        spec = _spec(subject, body)
        return self._service.prepare(spec), spec

    def registered(self, subject: str, spec: Mapping[str, Any], prepared: Prepared) -> Answer:
        """The second half. A schema that a version has already is not registered again, and nothing changes."""
        base = self._service.registry.find(subject)
        version = prepared.schema.current
        same = (
            [] if base is None else [own for own in base.live if own.identity == version.identity]
        )
        if base is not None and same:
            return _described(base, same[-1])
        if base is None:
            self._service.create(dict(spec), prepared)
        else:
            self._service.replace(subject, dict(spec), prepared=prepared)
        schema = self._schema(subject)
        return _described(schema, schema.current)

    # Deleting

    def delete(self, subject: str, *, permanent: bool = False) -> list[int]:
        """``DELETE /subjects/{subject}``: the versions that are gone."""
        schema = self._schema(subject, deleted=True)
        if permanent and not schema.is_deleted:
            raise RegistryError(
                40405, f"Subject '{subject}' was not deleted first before being permanently deleted"
            )
        if not permanent and schema.is_deleted:
            text = f"Subject '{subject}' was soft deleted. Set permanent=true to delete permanently"
            raise RegistryError(40404, text)
        gone = [version.number for version in (schema.versions if permanent else schema.live)]
        self._service.delete(subject, permanent=permanent)
        return gone

    def delete_version(self, subject: str, number: str, *, permanent: bool = False) -> int:
        """``DELETE /subjects/{subject}/versions/{version}``."""
        schema = self._schema(subject, deleted=True)
        version = self._version(schema, number, deleted=True)
        who = f"Subject '{subject}' Version {version.number}"
        if permanent and not version.is_deleted:
            raise RegistryError(
                40407, f"{who} was not deleted first before being permanently deleted"
            )
        if not permanent and version.is_deleted:
            raise RegistryError(
                40406, f"{who} was soft deleted. Set permanent=true to delete permanently"
            )
        self._service.delete_version(subject, version.number, permanent=permanent)
        return version.number

    # Compatibility

    def level(self, subject: str | None, *, or_overall: bool = False) -> str:
        """``GET /config`` and ``GET /config/{subject}``."""
        if subject is not None and not or_overall and self._service.own_mode_of(subject) is None:
            text = f"Subject '{subject}' does not have subject-level compatibility configured"
            raise RegistryError(40408, text)
        return self._service.mode_of(subject).value.upper()

    def set_level(self, subject: str | None, level: object) -> str:
        """``PUT /config`` and ``PUT /config/{subject}``."""
        if not isinstance(level, str) or level.lower() not in MODES:
            valid = ", ".join(mode.upper() for mode in MODES)
            raise RegistryError(42203, f"Invalid compatibility level. Valid values are {valid}")
        return self._service.set_mode(subject, level.lower()).value.upper()

    def forget_level(self, subject: str | None) -> str:
        """``DELETE /config`` and ``DELETE /config/{subject}``: what counted until now."""
        before = self._service.mode_of(subject).value.upper()
        self._service.forget_mode(subject)
        return before

    def is_read_only(self, subject: str | None) -> bool:
        """True if no new versions are taken."""
        return self._service.mode_of(subject) is Mode.DISABLED

    def compatible(
        self, subject: str, number: str | None, body: Mapping[str, Any]
    ) -> Callable[[], Verdict]:
        """``POST /compatibility/subjects/{subject}/versions[/{version}]``; what it gives takes a while to run."""
        schema = self._service.registry.find(subject)
        if schema is None:
            if number is None or number == "latest":
                return lambda: Verdict(self._service.mode_of(subject), (), (), ())
            raise _no_subject(subject)
        held_to = schema if number is None else _only(schema, self._version(schema, number))
        mode = self._service.mode_of(subject)
        return lambda: verdict_on(held_to, self._candidate(subject, body), mode)

    def _candidate(self, subject: str, body: Mapping[str, Any]) -> SchemaVersion:
        return candidate_of(_spec(subject, body), self._service.registry.resolve)

    def _schema(self, subject: str, *, deleted: bool = False) -> Schema:
        registered = next(
            (schema for schema in self._service.all_schemas() if schema.name == subject), None
        )
        if registered is None or (registered.is_deleted and not deleted):
            raise _no_subject(subject)
        return registered

    def _version(self, schema: Schema, number: str, *, deleted: bool = False) -> SchemaVersion:
        if number in ("latest", "-1"):
            return (schema.versions if deleted else schema.live)[-1]
        if not _NUMBER.fullmatch(number):
            raise RegistryError(
                42202,
                f"The specified version '{number}' is not a valid version id. Allowed values are between [1, 2^31-1] "
                'and the string "latest"',
            )
        try:
            return schema.version(int(number), deleted=deleted)
        except NotFound:
            raise RegistryError(40402, f"Version {number} not found.") from None

    def _places(self, number: int) -> Sequence[tuple[Schema, SchemaVersion]]:
        places = self._service.ids.places(number)
        versions = [(self._schema(name, deleted=True), version) for name, version in places]
        if not versions:
            raise RegistryError(40403, f"Schema {number} not found")
        return versions


def _no_subject(subject: str) -> RegistryError:
    return RegistryError(40401, f"Subject '{subject}' not found.")


def _only(schema: Schema, version: SchemaVersion) -> Schema:
    return Schema(schema.name, schema.kind, (version,), version.number, schema.compatibility)


def _spec(subject: str, body: Mapping[str, Any]) -> dict[str, Any]:
    """A spec of ours from the body of a request."""
    kind = body.get("schemaType") or "AVRO"
    if kind not in TYPES:
        raise RegistryError(42201, f"Invalid schema type {kind}; known are {', '.join(TYPES)}")
    if not isinstance(body.get("schema"), str):
        raise RegistryError(42201, "Invalid schema: 'schema' is the text of a schema")
    references = body.get("references") or []
    spec: dict[str, Any] = {
        "name": subject,
        "type": TYPES[kind],
        "source": body["schema"],
        "references": references,
    }
    metadata = body.get("metadata")
    if isinstance(metadata, Mapping) and isinstance(metadata.get("properties"), Mapping):
        spec["metadata"] = {str(key): str(value) for key, value in metadata["properties"].items()}
    return spec


def _described(schema: Schema, version: SchemaVersion) -> Answer:
    return {
        "subject": schema.name,
        "version": version.number,
        "id": version.id,
        "guid": _guid(version),
        **_content(schema, version),
    }


def _content(schema: Schema, version: SchemaVersion) -> Answer:
    """A schema with its type, which is left out for Avro, as Confluent does."""
    content: dict[str, Any] = {"schema": _text(version)}
    if schema.kind != "avro":
        content["schemaType"] = _NAMES[schema.kind]
    if version.references:
        content["references"] = [
            {"name": item.name, "subject": item.schema, "version": item.version}
            for item in version.references
        ]
    return content


def _guid(version: SchemaVersion) -> str:
    """The identity as Kafka's headers carry it: 16 bytes."""
    return str(UUID(version.identity[:32]))


def _text(version: SchemaVersion) -> str:
    """The source; of a bundle the root file."""
    if isinstance(version.source, str):
        return version.source
    return next(str(item["contents"]) for item in version.source if item.get("root") is True)
