"""Schemas as rules and bridges see them, without knowing the registry."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, runtime_checkable

from broker.core.errors import Invalid, NotFound, Problem
from broker.core.objects import Reference


@dataclass(frozen=True, slots=True)
class FieldType:
    """The type of a field, in words that Arrow, Spark and JSON share.

    ``name`` is one of ``boolean``, ``long``, ``double``, ``string``, ``binary``, ``timestamp``, ``array``, ``map``,
    ``struct``, ``null``, ``unknown``. ``fields`` are those of a struct by name; ``item`` is the element of an array or
    the value of a map. ``nullable`` means that the field may be absent or null, ``open`` that a struct may have further
    fields. ``values`` are all that a string can be; empty where it can be any. ``coding`` says how payloads of this
    type are written: ``json``, ``avro`` or ``protobuf``. ``logical`` is what values mean, where a schema says more than
    their type: ``date``, ``timestamp`` (text, milliseconds, or a map of ``seconds`` and ``nanos``), ``timestamp(us)``
    (microseconds), ``decimal(PRECISION, SCALE)`` or ``enum`` (a name, or a number without one); what is
    computed of them has none.
    """

    name: str
    nullable: bool = True
    fields: Mapping[str, FieldType] = field(default_factory=dict)
    item: FieldType | None = None
    open: bool = True
    values: tuple[str, ...] = ()
    coding: str = "json"
    logical: str = ""


UNKNOWN = FieldType("unknown")

# The name of the built-in schema of Sparkplug B payloads; names of users' schemas cannot begin with ``_``.
SPARKPLUG_B: Final = "__sparkplug_b"


class Serde(Protocol):
    """Encodes and decodes payloads by one version of one schema."""

    def decode(self, data: bytes, message_type: str | None = None) -> Any:
        """Bytes to a value. Raises ``SchemaError`` when they do not fit."""

    def encode(self, value: Any, message_type: str | None = None) -> bytes:
        """A value to bytes. Raises ``SchemaError`` when it does not fit."""


@dataclass(frozen=True, slots=True)
class SchemaEffect:
    """Effect of a change of a schema on an object that uses it.

    ``breaks``: the user would no longer do what it does; ``why`` says in what way. ``streams`` are those whose rows
    would change.
    """

    user: Reference
    breaks: bool
    why: str
    streams: tuple[str, ...] = ()


class SchemaError(ValueError):
    """Data that does not fit a schema: which schema and version, where in the value, what was expected and found."""


@runtime_checkable
class TypedSerde(Serde, Protocol):
    """A serde with its kind, so that references to it can be checked when they are saved."""

    kind: str
    """``json``, ``avro`` or ``protobuf``."""

    def has_message_type(self, message_type: str) -> bool:
        """True if the schema defines this message type; only protobuf schemas define any."""


class ExternalRegistry(Protocol):
    """A schema registry elsewhere, as Confluent's, that gives each schema a number of its own.

    Calls may wait for the registry, and keep what they learn: the schema of a number never changes.
    """

    def serde(self, schema_id: int) -> Serde:
        """The serde of a schema by its number.

        Raises:
            SchemaError: the registry has no such schema, cannot be reached, or gives what cannot be used.
        """

    def register(self, subject: str, source: str) -> int:
        """The number of a schema under a subject, registered there when it is not yet.

        Raises:
            SchemaError: the registry refuses it or cannot be reached.
        """


class SchemaLookup:
    """Schemas by name. This one has none, for rules tested alone; ``schema_validation.registry`` has those that users
    saved."""

    def serde(self, name: str) -> Serde:
        """The serde of a schema's version in use. Raises ``broker.core.errors.NotFound``."""
        raise NotFound("schema", name)

    def tagged(self, name: str) -> Serde:
        """The serde of a schema for data with a tag in front that names the version, as Confluent's; without such tags
        the plain one. Raises ``broker.core.errors.NotFound``."""
        return self.serde(name)

    def payload_type(self, topic_filter: str) -> FieldType | None:
        """The type of payloads on the topics a filter names, when validations bind one schema to all of them."""
        return None

    def waits(self, name: str | None) -> bool:
        """True if another process codes a schema's payloads (``broker.core.waiting``); without a name, if it does for
        any schema."""
        return False

    def with_schemas(self, specs: Sequence[Mapping[str, Any]]) -> SchemaLookup:
        """A lookup for one call that has these schemas in addition; nothing is stored.

        Raises:
            broker.core.errors.Invalid: with every problem, pointers beginning with ``/schemas``.
        """
        raise Invalid(
            "the schemas cannot be used", [Problem("this node has no schema registry", "/schemas")]
        )

    def source(self, name: str) -> tuple[str, str]:
        """The type and the text of a schema's version in use. Raises ``broker.core.errors.NotFound``."""
        raise NotFound("schema", name)

    def external(self, name: str) -> ExternalRegistry:
        """An external registry by the name it is configured under. Raises ``broker.core.errors.NotFound``."""
        raise NotFound("registry", name)
