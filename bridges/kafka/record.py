"""The record of Kafka that a row becomes: templates compiled once, rendered for each row."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, Final

import msgspec

from bridges.kafka.headers import of_message
from bridges.kafka.settings import KafkaActionSettings, SchemaEncoding
from bridges.resource.errors import NeverAgain
from bridges.resource.templates import bytes_template, strict_template, value_template
from broker.core.action import Row
from broker.core.errors import NotFound
from broker.core.message import Message
from broker.core.schema import SchemaError, SchemaLookup, Serde
from rules.actions.text import template
from rules.sql.values import json_bytes


class Record(msgspec.Struct, gc=False):
    """One record to send; ``partition`` is None where the strategy decides. A struct because one is made for each row:
    0.1 µs, a named tuple takes 0.3."""

    topic: str
    partition: int | None
    key: bytes | None
    value: bytes | None
    timestamp_ms: int
    headers: list[tuple[str, bytes]]


class Renderer:
    """Makes the records of one action."""

    def __init__(self, settings: KafkaActionSettings, schemas: SchemaLookup) -> None:
        self._has_mqtt_headers = settings.mqtt_headers
        self._has_own_headers = bool(settings.kafka_headers or settings.kafka_ext_headers)
        templates = settings.message
        self.fixed_topic = settings.topic if "${" not in settings.topic else None
        """The topic, where it is the same for all rows."""
        self._topic_of = strict_template(settings.topic, "the topic")
        self._key_of = bytes_template(templates.key) if templates.key else _none
        self._value_of: Encode = encoder(settings, schemas)
        self._time_of = template(templates.timestamp).value
        self._partition_of = value_template(settings.partition) if settings.partition else None
        self._headers_of = (
            value_template(settings.kafka_headers) if settings.kafka_headers else None
        )
        self._more_headers = [
            (
                strict_template(header.kafka_ext_header_key, "a header's name"),
                value_template(header.kafka_ext_header_value),
            )
            for header in settings.kafka_ext_headers
        ]
        self._is_json = settings.kafka_header_value_encode_mode == "json"
        is_plain = (
            self.fixed_topic is not None
            and self._partition_of is None
            and not self._has_own_headers
        )
        self.record: Callable[[Row, Message], Record] = (
            self._plain(self.fixed_topic or "") if is_plain else self._any
        )
        """The record of a row."""

    def _plain(self, topic: str) -> Callable[[Row, Message], Record]:
        """For one topic, without partitions and headers of the settings: everything it needs is bound to locals."""
        key_of = self._key_of
        value_of = self._value_of
        time_of = self._time_of
        headers_of = of_message if self._has_mqtt_headers else _no_headers

        def record(row: Row, message: Message) -> Record:
            timestamp = time_of(row)
            if type(timestamp) is not int or timestamp < 0:
                timestamp = message.received_ns // 1_000_000
            return Record(topic, None, key_of(row), value_of(row), timestamp, headers_of(message))

        return record

    def _any(self, row: Row, message: Message) -> Record:
        timestamp = self._time_of(row)
        if type(timestamp) is not int or timestamp < 0:
            timestamp = message.received_ns // 1_000_000
        headers = of_message(message) if self._has_mqtt_headers else []
        if self._has_own_headers:
            headers = headers + self._own_headers(row)
        return Record(
            self.fixed_topic or self._topic_of(row),
            None if self._partition_of is None else _number(self._partition_of(row)),
            self._key_of(row),
            self._value_of(row),
            timestamp,
            headers,
        )

    def _own_headers(self, row: Row) -> list[tuple[str, bytes]]:
        headers = [] if self._headers_of is None else self._of_value(self._headers_of(row))
        for name_of, value_of in self._more_headers:
            value = self._header_value(value_of(row))
            if value is not None:
                headers.append((name_of(row), value))
        return headers

    def _of_value(self, value: Any) -> list[tuple[str, bytes]]:
        if isinstance(value, dict):
            pairs = list(value.items())
        elif isinstance(value, list):
            pairs = [
                (item.get("key"), item.get("value")) for item in value if isinstance(item, dict)
            ]
        else:
            return []
        headers = [
            (name, self._header_value(value)) for name, value in pairs if isinstance(name, str)
        ]
        return [(name, value) for name, value in headers if value is not None]

    def _header_value(self, value: Any) -> bytes | None:
        if value is None:
            return None
        if self._is_json:
            return json_bytes(value)
        if isinstance(value, str):
            return value.encode()
        return bytes(value) if isinstance(value, (bytes, bytearray)) else None


def key_of(settings: KafkaActionSettings) -> Callable[[Row, Message], Hashable]:
    """Records with one key stay in order; without a key those of one client."""
    if not settings.message.key:
        return lambda row, message: message.client.client_id
    of_row = bytes_template(settings.message.key)
    column = _column_of(settings.message.key)

    def of_any(row: Row, message: Message) -> Hashable:
        return (of_row(row) or b"").decode(errors="surrogateescape") or message.client.client_id

    def of_column(row: Row, message: Message) -> Hashable:
        value = row.get(column)
        return value if type(value) is str and value else of_any(row, message)

    return of_column if column else of_any


def _column_of(text: str) -> str:
    """The column that a template consists of; empty where it is another one."""
    only = template(text).only
    return only[0] if only is not None and len(only) == 1 else ""


_NO_HEADERS: Final[list[tuple[str, bytes]]] = []


def _no_headers(_message: Message) -> list[tuple[str, bytes]]:
    return _NO_HEADERS


def _none(_row: Row) -> None:
    return None


def _number(value: Any) -> int | None:
    try:
        return int(value)
    except (TypeError, ValueError):
        return None


Encode = Callable[[Row], "bytes | None"]


def encoder(settings: KafkaActionSettings, schemas: SchemaLookup) -> Encode:
    """The function that makes the value of a row."""
    if not isinstance(settings.value_encoding, SchemaEncoding):
        return bytes_template(settings.message.value)
    return _by_schema(settings, settings.value_encoding, schemas)


def _by_schema(
    settings: KafkaActionSettings, encoding: SchemaEncoding, schemas: SchemaLookup
) -> Encode:
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
    if encoding.wire_format == "confluent":
        return schemas.tagged(name)
    return schemas.serde(name)
