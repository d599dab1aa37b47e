"""What the value of a record is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bridges.kafka.settings import KafkaActionSettings, SchemaEncoding
from bridges.resource.errors import NeverAgain
from bridges.resource.templates import bytes_template, value_template
from broker.core.action import Row
from broker.core.errors import NotFound
from broker.core.schema import SchemaError, SchemaLookup, Serde, TaggedSchemas

Encode = Callable[[Row], "bytes | None"]


def encoder(settings: KafkaActionSettings, schemas: SchemaLookup) -> Encode:
    """How the value of a row is made."""
    if not isinstance(settings.value_encoding, SchemaEncoding):
        return bytes_template(settings.message.value)
    return _by_schema(settings, settings.value_encoding, schemas)


def _by_schema(settings: KafkaActionSettings, encoding: SchemaEncoding, schemas: SchemaLookup) -> Encode:
    is_row = settings.message.value in ("", "${.}", "${}")
    value_of = (lambda row: row) if is_row else value_template(settings.message.value)

    def encode(row: Row) -> bytes | None:
        value = value_of(row)
        if value is None:
            return None
        try:
            return _serde(encoding, schemas).encode(value, encoding.message_type)
        except (SchemaError, NotFound) as error:
            raise NeverAgain(str(error)) from None

    return encode


def _serde(encoding: SchemaEncoding, schemas: SchemaLookup) -> Serde:
    """The schema's version in use, looked up each time: it may be changed while the action runs."""
    name: Any = encoding.schema_name
    if encoding.wire_format == "confluent" and isinstance(schemas, TaggedSchemas):
        return schemas.tagged(name)
    return schemas.serde(name)
