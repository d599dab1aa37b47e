"""Functions that use the schema registry, made for a node's own lookup."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

from broker.core.errors import NotFound, Unavailable
from broker.core.schema import SchemaError, SchemaLookup, Serde
from rules.functions.registry import Function, Kind, StrictText, failure, make
from rules.sql.values import STRINGS, string, type_name

Schemas = Callable[[], SchemaLookup]
"""Asked at each call, since a node's lookup is set when all features are made."""


def _encoded(value: Any) -> bytes:
    if type(value) is str:
        return value.encode()
    if type(value) in (dict, list):
        raise ValueError(
            f"encoded data, not {type_name(value)}; it is decoded already, so take the schema's function or payload "
            "decoder away"
        )
    raise ValueError(f"encoded data, not {type_name(value)}")


Encoded = Annotated[
    bytes, Kind("string", "type({v}) is bytes", _encoded, shortcut=("type({v}) is str", "{v}.encode()"))
]
"""A string that a schema stands for, as bytes."""


def schema_functions(schemas: Schemas) -> list[Function]:
    """``schema_decode``, ``schema_encode`` and ``schema_check``."""

    def serde(function: str, name: str, message_type: str | None) -> Serde:
        try:
            found = schemas().serde(name)
        except NotFound as error:
            raise failure(function, str(error)) from None
        kind = getattr(found, "kind", "")
        if kind == "protobuf" and message_type is None:
            raise failure(function, f"schema '{name}' is protobuf, so argument 3 must name a message type")
        if kind not in ("protobuf", "") and message_type is not None:
            raise failure(function, f"schema '{name}' is {kind}, which has no message types; leave argument 3 out")
        return found

    def schema_decode(name: StrictText, data: Encoded, message_type: StrictText | None = None) -> Any:
        """The value that data stands for by a registered schema; protobuf needs a message type."""
        try:
            value = serde("schema_decode", name, message_type).decode(data, message_type)
            return string(value) if type(value) is bytes else value
        except SchemaError as error:
            raise failure("schema_decode", str(error)) from None

    def schema_encode(name: StrictText, value: Any, message_type: StrictText | None = None) -> bytes:
        """The bytes of a value by a registered schema; protobuf needs a message type."""
        try:
            return serde("schema_encode", name, message_type).encode(value, message_type)
        except SchemaError as error:
            raise failure("schema_encode", str(error)) from None

    def schema_check(name: StrictText, value: Any, message_type: StrictText | None = None) -> bool:
        """Whether data would decode, or a value of another type encode, by a registered schema."""
        found = serde("schema_check", name, message_type)
        try:
            if type(value) in STRINGS:
                found.decode(value.encode() if type(value) is str else value, message_type)
            else:
                found.encode(value, message_type)
        except SchemaError as error:
            if isinstance(error.__cause__, Unavailable):  # nobody was asked, so there is no verdict
                raise failure("schema_check", str(error)) from None
            return False
        return True

    return [
        make(schema_decode, is_pure=False),
        make(schema_encode, returns="binary", is_pure=False),
        make(schema_check, returns="boolean", is_pure=False),
    ]
