"""Functions that use the schema registry, made for a node's own lookup."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from broker.core.errors import NotFound
from broker.core.schema import SchemaError, SchemaLookup, Serde
from rules.functions.registry import Data, Function, StrictText, failure, make
from rules.sql.values import UNDEFINED


def schema_functions(schemas: Callable[[], SchemaLookup]) -> list[Function]:
    """``schema_decode``, ``schema_encode`` and ``schema_check``; the lookup is asked for at each call."""

    def serde(function: str, name: str) -> Serde:
        try:
            return schemas().serde(name)
        except NotFound as error:
            raise failure(function, str(error)) from None

    def schema_decode(name: StrictText, data: Data, message_type: Any = UNDEFINED) -> Any:
        """The value that data stands for by a registered schema."""
        try:
            return serde("schema_decode", name).decode(data, _type("schema_decode", message_type))
        except SchemaError as error:
            raise failure("schema_decode", str(error)) from None

    def schema_encode(name: StrictText, value: Any, message_type: Any = UNDEFINED) -> bytes:
        """The bytes of a value by a registered schema."""
        try:
            return serde("schema_encode", name).encode(value, _type("schema_encode", message_type))
        except SchemaError as error:
            raise failure("schema_encode", str(error)) from None

    def schema_check(name: StrictText, value: Any, message_type: Any = UNDEFINED) -> bool:
        """Whether data would decode, or a value encode, by a registered schema."""
        found, kind = serde("schema_check", name), _type("schema_check", message_type)
        try:
            if isinstance(value, (str, bytes)):
                found.decode(value.encode() if isinstance(value, str) else value, kind)
            else:
                found.encode(value, kind)
        except SchemaError:
            return False
        return True

    return [
        make(schema_decode),
        make(schema_encode, returns="binary"),
        make(schema_check, returns="boolean"),
    ]


def _type(function: str, message_type: Any) -> str | None:
    if message_type is UNDEFINED:
        return None
    if type(message_type) is str:
        return message_type
    raise failure(function, "argument 3 must be the name of a message type")
