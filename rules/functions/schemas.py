"""Functions that use the schema registry, made for a node's own lookup."""

from __future__ import annotations

import struct
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Final

from sqlglot import exp

from broker.core.errors import NotFound, Unavailable
from broker.core.objects import Reference
from broker.core.schema import ExternalRegistry, SchemaError, SchemaLookup, Serde
from rules.functions.registry import Function, Functions, Kind, StrictText, between, make
from rules.sql.limits import MAX_TAGGED_SCHEMAS
from rules.sql.values import STRINGS, string, type_name

# Waiting at each call, since a node's lookup is set when all features are made.
Schemas = Callable[[], SchemaLookup]


def _encoded(value: Any) -> bytes:
    if type(value) is str:
        return value.encode()
    if type(value) in (dict, list):
        raise ValueError(
            f"encoded data, not {type_name(value)}; it is decoded already, so take the schema's function or payload "
            "decoder away"
        )
    raise ValueError(f"encoded data, not {type_name(value)}")


# A string that a schema stands for, as bytes.
Encoded = Annotated[
    bytes,
    Kind("string", "type({v}) is bytes", _encoded, shortcut=("type({v}) is str", "{v}.encode()")),
]


_ERRORS: Final = (NotFound, SchemaError)
_SCHEMA = "schema"
_REGISTRY = "schema registry"
# The kinds that the first arguments of a function name.
_NAMED_BY: Final = {
    "schema_decode": (_SCHEMA,),
    "schema_encode": (_SCHEMA,),
    "schema_check": (_SCHEMA,),
    "schema_encode_and_tag": (_SCHEMA, _REGISTRY),
    "schema_decode_tagged": (_REGISTRY,),
    "avro_encode": (_REGISTRY,),
    "avro_decode": (_REGISTRY,),
}


def schemas_in(tree: exp.Expression) -> set[Reference]:
    """The schemas and registries that the calls in a statement name by literals."""
    return {
        Reference(kind, argument.name)
        for call in tree.find_all(exp.Anonymous)
        for kind, argument in zip(
            _NAMED_BY.get(call.name.lower(), ()), call.expressions, strict=False
        )
        if isinstance(argument, exp.Literal)
    }


def schema_functions(schemas: Schemas) -> list[Function]:
    """``schema_decode``, ``schema_encode`` and ``schema_check``."""

    def serde(name: str, message_type: str | None) -> Serde:
        schema_serde = schemas().serde(name)
        kind = getattr(schema_serde, "kind", "")
        if kind == "protobuf" and message_type is None:
            raise SchemaError(
                f"schema '{name}' is protobuf, so argument 3 must name a message type"
            )
        if kind not in ("protobuf", "") and message_type is not None:
            raise SchemaError(
                f"schema '{name}' is {kind}, which has no message types; leave argument 3 out"
            )
        return schema_serde

    def schema_decode(
        name: StrictText, data: Encoded, message_type: StrictText | None = None
    ) -> Any:
        """The value that data stands for by a registered schema; protobuf needs a message type."""
        value = serde(name, message_type).decode(data, message_type)
        return string(value) if type(value) is bytes else value

    def schema_encode(
        name: StrictText, value: Any, message_type: StrictText | None = None
    ) -> bytes:
        """The bytes of a value by a registered schema; protobuf needs a message type."""
        return serde(name, message_type).encode(value, message_type)

    def schema_check(name: StrictText, value: Any, message_type: StrictText | None = None) -> bool:
        """True if data would decode, or a value of another type encode, by a registered schema."""
        schema_serde = serde(name, message_type)
        try:
            if type(value) in STRINGS:
                schema_serde.decode(value.encode() if type(value) is str else value, message_type)
            else:
                schema_serde.encode(value, message_type)
        except SchemaError as error:
            if isinstance(error.__cause__, Unavailable):
                # no server was asked, so there is no verdict
                raise
            return False
        return True

    return [
        make(schema_decode, is_pure=False, errors=_ERRORS),
        make(schema_encode, returns="binary", is_pure=False, errors=_ERRORS),
        make(schema_check, returns="boolean", is_pure=False, errors=_ERRORS),
    ]


# Functions over external schema registries, whose schemas have numbers that travel with the data.


_TAG = struct.Struct(">BI")
_MAGIC = 0
SchemaId = Annotated[int, between(0, 2**32 - 1)]


class _Registrations:
    """Numbers of local schemas under subjects, so that a registry is asked once for each text."""

    def __init__(self) -> None:
        self._numbers: OrderedDict[tuple[str, str, str], int] = OrderedDict()

    def number(self, name: str, registry: ExternalRegistry, subject: str, source: str) -> int:
        """The number of a string under a subject of a registry."""
        key = (name, subject, source)
        schema_id = self._numbers.get(key)
        if schema_id is None:
            schema_id = self._numbers[key] = registry.register(subject, source)
            while len(self._numbers) > MAX_TAGGED_SCHEMAS:
                self._numbers.popitem(last=False)
        return schema_id


def external_schema_functions(schemas: Schemas) -> list[Function]:
    """``avro_encode``, ``avro_decode``, ``schema_encode_and_tag`` and ``schema_decode_tagged``."""
    registrations = _Registrations()

    def coded(registry: str, number: int, code: Callable[[Serde], Any]) -> Any:
        """The result of ``code`` with a schema of a registry."""
        serde = schemas().external(registry).serde(number)
        try:
            return code(serde)
        except SchemaError as error:
            raise SchemaError(f"schema {number} of registry '{registry}': {error}") from None

    def avro_encode(registry_name: StrictText, value: Any, schema_id: SchemaId) -> bytes:
        """The bytes of a value by a schema of a registry elsewhere, by its number there; without a tag."""
        data: bytes = coded(registry_name, schema_id, lambda serde: serde.encode(value))
        return data

    def avro_decode(
        registry_name: StrictText, data: Encoded, schema_id: SchemaId | None = None
    ) -> Any:
        """The value that data stands for by a schema of a registry elsewhere: by its number, or by the data's tag."""
        number, encoded = _untagged(data) if schema_id is None else (schema_id, data)
        return coded(registry_name, number, lambda serde: serde.decode(encoded))

    def schema_encode_and_tag(
        schema: StrictText, registry_name: StrictText, value: Any, subject: StrictText
    ) -> bytes:
        """A value by a local Avro schema, with the tag that a registry elsewhere has for it under a subject."""
        kind, source = schemas().source(schema)
        if kind != "avro":
            raise SchemaError(
                f"schema '{schema}' is {kind}; only Avro schemas are registered elsewhere"
            )
        data = schemas().serde(schema).encode(value)
        number = registrations.number(
            registry_name, schemas().external(registry_name), subject, source
        )
        return _TAG.pack(_MAGIC, number) + data

    def schema_decode_tagged(registry_name: StrictText, data: Encoded) -> Any:
        """The value of tagged data by the schema of a registry elsewhere that the tag names."""
        return avro_decode(registry_name, data)

    usages: dict[Callable[..., Any], str] = {
        avro_encode: "(registry, value, schema_id)",
        avro_decode: "(registry, data[, schema_id])",
        schema_encode_and_tag: "(schema, registry, value, subject)",
        schema_decode_tagged: "(registry, data)",
    }
    return [
        make(
            name,
            returns="binary" if "encode" in name.__name__ else "unknown",
            is_pure=False,
            may_wait=True,
            usage=usage,
            errors=_ERRORS,
        )
        for name, usage in usages.items()
    ]


def _untagged(data: bytes) -> tuple[int, bytes]:
    """The number in the tag, and what follows it."""
    if len(data) < _TAG.size or data[0] != _MAGIC:
        raise SchemaError(
            "the data has no tag: it does not begin with a zero byte and a schema's number"
        )
    return _TAG.unpack_from(data)[1], data[_TAG.size :]


# Statements that may have to wait for another process: those that code by a schema that one codes, or by a
# external registry. Such a rule is run where it can wait (``rules.deferred``).


# Functions whose first argument names a registered schema; they wait only where another process codes that.
_BY_NAME: Final = frozenset(("schema_decode", "schema_encode", "schema_check"))


@dataclass(frozen=True, slots=True)
class Waiting:
    """A request that a statement may send. ``schemas`` holds None where a name is worked out for each message."""

    schemas: frozenset[str | None]
    has_registry: bool

    def __bool__(self) -> bool:
        return self.has_registry or bool(self.schemas)

    def waits(self, lookup: SchemaLookup) -> bool:
        """True if it may have to wait, with schemas as they are."""
        if self.has_registry:
            return True
        return any(lookup.waits(name) for name in self.schemas)


NOTHING: Final = Waiting(frozenset(), False)


def waiting_of(tree: exp.Expression, functions: Functions) -> Waiting:
    """Requests that a statement may send to other processes."""
    schemas: set[str | None] = set()
    has_registry = False
    for call in tree.find_all(exp.Anonymous):
        if call.name in _BY_NAME:
            first = call.expressions[0] if call.expressions else None
            is_text = isinstance(first, exp.Literal) and first.is_string
            schemas.add(first.this if isinstance(first, exp.Literal) and is_text else None)
        elif (function := functions.get(call.name)) is not None and function.may_wait:
            has_registry = True
    return Waiting(frozenset(schemas), has_registry)
