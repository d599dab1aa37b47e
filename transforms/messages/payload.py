"""Payload decoders and encoders, made when a topic's plan is made.

Between transformations the payload is bytes, or a decoded value that an encoder ``none`` left; ``UNTOUCHED`` says that
there is no such value and the message's bytes count.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from broker.config.schema_use import (
    ExternalHttpUse,
    SchemaUse,
    TaggedUse,
    message_type_of,
    serde_of,
)
from broker.core import jsontext
from broker.core.errors import NotFound
from broker.core.message import Message
from broker.core.schema import SchemaError, SchemaLookup, Serde
from transforms.messages.failure import TransformationFailed
from transforms.messages.spec import JsonCodec, NoCodec
from transforms.variform.values import text_or_bytes

UNTOUCHED: Any = object()

Codec = NoCodec | JsonCodec | SchemaUse
# ``decode(message, left)``: the value of a message's payload; ``left`` is what an earlier transformation left.
Decode = Callable[[Message, Any], Any]
Encode = Callable[[Any], bytes]


@dataclass(frozen=True, slots=True)
class PayloadCodec:
    """Decoder and encoder of a transformation's payload. ``encode`` is None for an encoder ``none``."""

    decode: Decode
    encode: Encode | None
    is_same: bool
    """Decoder and encoder are the same: bytes stay as they are unless an operation writes the payload."""
    check_encode: bool
    """Encoding what was decoded may fail, so it is tried even where the bytes stay."""
    gives_json: bool
    may_hold_bytes: bool
    """The decoded payload may hold bytes, which JSON cannot say as they are."""


def payload_codec(
    decoder: Codec, encoder: Codec, schemas: SchemaLookup, *, may_hold_bytes: bool
) -> PayloadCodec:
    """The codec of one transformation. A schema that is not there makes every message fail, not the making."""
    holds_bytes = may_hold_bytes or not isinstance(decoder, JsonCodec)
    return PayloadCodec(
        _decoder(decoder, schemas),
        _encoder(encoder, schemas),
        decoder == encoder,
        isinstance(encoder, TaggedUse),
        isinstance(encoder, JsonCodec),
        holds_bytes,
    )


def _decoder(codec: Codec, schemas: SchemaLookup) -> Decode:
    if isinstance(codec, NoCodec):
        return _as_it_is
    if isinstance(codec, JsonCodec):
        return _from_json
    return _from_schema(codec, schemas)


def _as_it_is(message: Message, left: Any) -> Any:
    if left is not UNTOUCHED:
        return left
    return text_or_bytes(message.payload)


def _from_json(message: Message, left: Any) -> Any:
    try:
        if left is UNTOUCHED:
            return message.json()
        return jsontext.decode(_raw(left))
    except jsontext.JsonError as error:
        raise TransformationFailed(
            "payload_decode_failed", f"the payload is not JSON: {error}", is_payload=True
        ) from (error)


def _raw(left: Any) -> bytes:
    if isinstance(left, str):
        return left.encode("utf-8", "surrogatepass")
    if isinstance(left, bytes):
        return left
    raise TransformationFailed(
        "payload_decode_failed",
        "the payload is decoded already; the transformation before this one has no encoder, check the order of yours",
        is_payload=True,
    )


def _from_schema(codec: SchemaUse, schemas: SchemaLookup) -> Decode:
    serde = _serde(codec, schemas)
    message_type = message_type_of(codec)
    gives_bytes = isinstance(codec, ExternalHttpUse)

    def decode(message: Message, left: Any) -> Any:
        if serde is None:
            raise _no_schema("payload_decode_schema_not_found", codec)
        data = message.payload if left is UNTOUCHED else _raw(left)
        try:
            value = serde.decode(data, message_type)
            return text_or_bytes(value) if gives_bytes else value
        except SchemaError as error:
            raise TransformationFailed(
                "payload_decode_schema_failure", str(error), is_payload=True
            ) from error

    return decode


def _no_schema(kind: str, codec: SchemaUse) -> TransformationFailed:
    return TransformationFailed(kind, f"there is no schema {codec.schema_name!r}", is_payload=True)


def _encoder(codec: Codec, schemas: SchemaLookup) -> Encode | None:
    if isinstance(codec, NoCodec):
        return None
    if isinstance(codec, JsonCodec):
        return _to_json
    return _to_schema(codec, schemas)


def _to_json(value: Any) -> bytes:
    try:
        return jsontext.encode_any(value)
    except jsontext.JsonError as error:
        raise TransformationFailed("payload_encode_failed", str(error), is_payload=True) from error


def _to_schema(codec: SchemaUse, schemas: SchemaLookup) -> Encode:
    serde = _serde(codec, schemas)
    message_type = message_type_of(codec)

    def encode(value: Any) -> bytes:
        if serde is None:
            raise _no_schema("payload_encode_schema_not_found", codec)
        try:
            return serde.encode(value, message_type)
        except SchemaError as error:
            raise TransformationFailed(
                "payload_encode_schema_failure", str(error), is_payload=True
            ) from error

    return encode


def _serde(codec: SchemaUse, schemas: SchemaLookup) -> Serde | None:
    try:
        return serde_of(codec, schemas)
    except NotFound:
        return None


def final_bytes(value: Any) -> bytes:
    """Bytes of the last transformation's payload: text counts as its UTF-8, other values are refused."""
    if isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode("utf-8", "surrogatepass")
    raise TransformationFailed(
        "transformation_bad_encoding",
        "the payload is still a decoded value after the last transformation; give this one a payload_encoder",
        is_payload=True,
    )
