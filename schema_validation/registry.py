"""Schemas by name and by id, each with its versions; a ``broker.core.schema.SchemaLookup``."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from broker.core.errors import Invalid, NotFound, Problem, did_you_mean
from broker.core.schema import SPARKPLUG_B, ExternalRegistry, FieldType, SchemaLookup
from schema_validation.external_http.spec import TYPE as EXTERNAL_HTTP
from schema_validation.fingerprints import id_of
from schema_validation.references import Reference, Referred
from schema_validation.schemas import check_members
from schema_validation.serdes.base import DataRefused, Misfit, SchemaFacts, SchemaSerde
from schema_validation.serdes.varint import LongVarint, read_varint, signed, varint, zigzag
from schema_validation.versions import Schema, SchemaVersion, candidate_of

PayloadType = Callable[[str, SchemaLookup], "FieldType | None"]


class Registry(SchemaLookup):
    """Serdes by schema name, and payload types by topic.

    ``payload_type_of`` is settable: it is answered from validations, which come after schemas. So is ``externals``:
    registries elsewhere by name.
    """

    def __init__(
        self, find: Callable[[str], Schema | None], names: Callable[[], Iterable[str]]
    ) -> None:
        self._find = find
        self._names = names
        self.payload_type_of: PayloadType = _unknown
        self.externals: Mapping[str, ExternalRegistry] = {}

    def find(self, name: str) -> Schema | None:
        """The schema of that name, or None if it does not exist or its versions are deleted."""
        schema = self._find(name)
        return None if schema is None or schema.is_deleted else schema

    def serde(self, name: str) -> SchemaSerde:
        """The serde of a schema's version in use. Raises ``NotFound`` with a suggestion."""
        if name == SPARKPLUG_B:
            # protobuf's library imports slowly
            from schema_validation.serdes.protobuf import (
                sparkplug_serde,
            )

            return sparkplug_serde()
        return self.schema(name).current.serde

    def waits(self, name: str | None) -> bool:
        """True if a schema's payloads are coded by another process; without a name, if any schema's are."""
        names = list(self._names()) if name is None else [name]
        return any(
            (schema := self.find(schema_name)) is not None and schema.kind == EXTERNAL_HTTP
            for schema_name in names
        )

    def tagged(self, name: str) -> SchemaSerde:
        """The serde of a schema for data with Confluent's tag in front. Raises ``NotFound`` with a suggestion."""
        return TaggedSerde(self.schema(name))

    def source(self, name: str) -> tuple[str, str]:
        """The type and the text of a schema's version in use, what it refers to put in. Raises ``NotFound``."""
        schema = self.schema(name)
        source = schema.current.flat
        return schema.kind, source if isinstance(source, str) else ""

    def external(self, name: str) -> ExternalRegistry:
        """A registry elsewhere by the name it is configured under. Raises ``NotFound`` with a suggestion."""
        registry = self.externals.get(name)
        if registry is None:
            raise NotFound("registry", name, did_you_mean(name, self.externals))
        return registry

    def schema(self, name: str) -> Schema:
        """The schema of that name. Raises ``NotFound`` with a suggestion."""
        named = self.find(name)
        if named is None:
            raise self._missing(name)
        return named

    def payload_type(self, topic_filter: str) -> FieldType | None:
        """The type of payloads on the topics a filter names, when validations bind one schema to all of them."""
        return self.payload_type_of(topic_filter, self)

    def with_schemas(self, specs: Sequence[Mapping[str, Any]]) -> SchemaLookup:
        """A lookup of these schemas in addition to the registered ones; nothing is stored.

        Raises:
            Invalid: with every problem, pointers beginning with ``/schemas``.
        """
        drafts: dict[str, Schema] = {}
        problems: list[Problem] = []
        for index, spec in enumerate(specs):
            pointer = f"/schemas/{index}"
            try:
                check_members(spec, pointer)
                version = candidate_of(spec, self.trial(drafts).resolve, 1, pointer)
                drafts[spec["name"]] = Schema(spec["name"], spec["type"], (version,), 1)
            except Invalid as error:
                problems += error.problems
        if problems:
            raise Invalid("the schemas cannot be used", problems)
        return self.trial(drafts)

    def trial(self, schemas: Mapping[str, Schema]) -> Registry:
        """A registry with these schemas added to, or in place of, the existing ones."""
        trial = Registry(
            lambda name: schemas.get(name) or self._find(name), lambda: [*schemas, *self._names()]
        )
        trial.payload_type_of = self.payload_type_of
        trial.externals = self.externals
        return trial

    def resolve(self, local_name: str, name: str, number: int | None) -> Referred:
        """Target of a reference of a new version. Raises ``NotFound``."""
        return self._referred(self.schema(name), local_name, number, deleted=False)

    def resolve_kept(self, local_name: str, name: str, number: int | None) -> Referred:
        """Target of a reference of a saved version, deleted versions included."""
        schema = self._find(name)
        if schema is None:
            raise self._missing(name)
        return self._referred(schema, local_name, number, deleted=True)

    def _referred(
        self, schema: Schema, local_name: str, number: int | None, *, deleted: bool
    ) -> Referred:
        version = schema.latest if number is None else schema.version(number, deleted=deleted)
        inner = tuple(
            self.resolve_kept(item.name, item.schema, item.version) for item in version.references
        )
        reference = Reference(local_name, schema.name, version.number)
        return Referred(reference, schema.kind, version.source, version.flat, inner)

    def _missing(self, name: str) -> NotFound:
        return NotFound(
            "schema",
            name,
            did_you_mean(name, [other for other in self._names() if self.find(other)]),
        )


class Ids:
    """The global ids of a registry: one for each distinct schema, under whatever names and versions."""

    def __init__(self) -> None:
        self._where: dict[int, dict[tuple[str, int], SchemaVersion]] = {}

    def change(self, before: Schema | None, after: Schema | None) -> None:
        """Record the change of a schema; ``before`` is None for a new one, ``after`` for a deleted one."""
        if before is not None:
            for version in before.versions:
                places = self._where[version.id]
                del places[before.name, version.number]
                if not places:
                    del self._where[version.id]
        if after is not None:
            for version in after.versions:
                self._where.setdefault(version.id, {})[after.name, version.number] = version

    def given(self, schema: Schema) -> Schema:
        """The schema with an id in each version that has none."""
        new: dict[int, str] = {}
        versions = []
        for version in schema.versions:
            number = version.id or id_of(
                version.identity, lambda id: new.get(id) or self._identity(id)
            )
            new[number] = version.identity
            versions.append(replace(version, id=number))
        return replace(schema, versions=tuple(versions))

    def _identity(self, number: int) -> str | None:
        return next((version.identity for version in self._where.get(number, {}).values()), None)

    def places(self, number: int) -> Iterator[tuple[str, SchemaVersion]]:
        """Names and versions of a schema by its id, deleted ones too, live ones first."""
        versions = self._where.get(number, {}).items()
        yield from sorted(
            ((name, version) for (name, _), version in versions),
            key=lambda place: place[1].is_deleted,
        )


def _unknown(topic_filter: str, schemas: SchemaLookup) -> FieldType | None:
    return None


# Payloads with Confluent's tag in front: a zero byte, the schema's id in four bytes, big end first, then the data.
# The version that the id names decodes, whichever is in use; encoding writes the id of the version in use. For Protobuf
# the path of the message type is between the two, as zigzag varints: their count, then the indexes.


_TAG = struct.Struct(">BI")
_MOST_INDEXES = 32


class TaggedSerde(SchemaSerde):
    """The versions of a schema by their ids."""

    def __init__(self, schema: Schema) -> None:
        current = schema.current
        self.kind = schema.kind
        self.label = current.serde.label
        self._name = schema.name
        self._current = current.serde
        self._current_id = current.id
        self._index_path = getattr(current.serde, "index_path", None)  # of Protobuf alone
        self._by_id = {version.id: version.serde for version in schema.versions}

    def decode(self, data: bytes, message_type: str | None = None) -> Any:
        serde, body = self._opened(data)
        return serde.decode(body, message_type)

    def encode(self, value: Any, message_type: str | None = None) -> bytes:
        body = self._current.encode(value, message_type)
        path = b""
        if message_type is not None and self._index_path is not None:
            path = _written_path(self._index_path(message_type))
        return _TAG.pack(0, self._current_id) + path + body

    def has_message_type(self, message_type: str) -> bool:
        return self._current.has_message_type(message_type)

    def misfit(self, data: bytes, message_type: str | None = None) -> Misfit | None:
        try:
            serde, body = self._opened(data)
        except DataRefused as error:
            return error.misfit
        return serde.misfit(body, message_type)

    def field_type(self, message_type: str | None = None) -> FieldType:
        return self._current.field_type(message_type)

    def facts(self) -> SchemaFacts:
        return self._current.facts()

    def _opened(self, data: bytes) -> tuple[SchemaSerde, bytes]:
        """The decoder of the data, and the data without its tag."""
        if len(data) < _TAG.size or data[0] != 0:
            raise self._refused(
                "it has no tag: it does not begin with a zero byte and a schema's id"
            )
        number = _TAG.unpack_from(data)[1]
        serde = self._by_id.get(number)
        if serde is None:
            raise self._refused(
                f"its tag names the schema id {number}, which is not a version of {self._name!r}"
            )
        start = _TAG.size if self.kind != "protobuf" else self._after_path(data)
        return serde, data[start:]

    def _after_path(self, data: bytes) -> int:
        """Start position of the message: behind the count and the indexes, or the single zero that stands for
        ``[0]``."""
        try:
            count, at = read_varint(data, _TAG.size)
            if not 0 <= signed(count) <= _MOST_INDEXES:
                raise IndexError
            for _ in range(signed(count)):
                _, at = read_varint(data, at)
        except (IndexError, LongVarint):
            raise self._refused("its tag has no path of a message type") from None
        return at


def _written_path(indexes: list[int]) -> bytes:
    return (
        b"\x00"
        if indexes == [0]
        else b"".join(varint(zigzag(number)) for number in (len(indexes), *indexes))
    )
