"""The vectors of validations and of schema codecs, through the services that the API calls."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pytest

from schema_validation.feature import SchemaValidationFeature
from tests.support.features import REFUSED, answered, load_vectors, make_services
from tests.support.vectors import message_of, payload_bytes, same

VECTORS = Path(__file__).parent / "vectors"


@pytest.fixture(scope="module")
def feature() -> SchemaValidationFeature:
    made = SchemaValidationFeature(make_services())
    made.start()
    return made


@pytest.mark.parametrize(
    "vector", load_vectors(VECTORS / "validations.json"), ids=lambda v: v["id"]
)
def test_validation_vector(feature: SchemaValidationFeature, vector: dict[str, Any]) -> None:
    body = {
        "validations": vector["validations"],
        "message": message_of(vector),
        "schemas": vector.get("schemas", []),
        "check_references": not vector.get("bypass_reference_check", False),
    }
    got = answered(feature.validations.test, body)
    if vector["expect"] == "config_error":
        assert got is REFUSED
        return
    assert got is not REFUSED
    assert got["outcome"] == vector["expect"], got
    assert got["failed"] == vector.get("failed", got["failed"])


@pytest.mark.parametrize(
    "vector", load_vectors(VECTORS / "schema_codecs.json"), ids=lambda v: v["id"]
)
def test_schema_codec_vector(feature: SchemaValidationFeature, vector: dict[str, Any]) -> None:
    _Codec(feature, vector).check()


class _Codec:
    def __init__(self, feature: SchemaValidationFeature, vector: dict[str, Any]) -> None:
        self._schemas, self._vector = feature.schemas, vector
        schema = vector["schema"]
        self._base = {"type": vector["type"]}
        self._base.update(
            {"files": schema["files"]} if isinstance(schema, dict) else {"source": schema}
        )

    def check(self) -> None:
        vector, want = self._vector, self._vector["expect"]
        is_schema = want == "invalid" and "value" not in vector and "encoded_base64" not in vector
        if vector.get("target") == "schema" or is_schema:
            assert (answered(self._schemas.check, self._base) is REFUSED) == (want == "invalid")
        elif want == "encode_error":
            assert self._encode() is REFUSED
        elif want == "decode_error":
            assert self._decode(vector["encoded_base64"]) is REFUSED
        elif vector["type"] == "json":
            got = answered(self._schemas.validate, {**self._base, "value": vector["value"]})
            assert got["valid"] is (want == "valid"), got
        else:
            self._round_trip(want == "roundtrip")

    def _round_trip(self, with_encoding: bool) -> None:
        vector = self._vector
        if with_encoding:
            got = self._encode()
            assert got is not REFUSED
            assert payload_bytes(got) == base64.b64decode(vector["encoded_base64"])
        decoded = self._decode(vector["encoded_base64"])
        assert decoded is not REFUSED
        assert same(
            _wire(vector.get("decoded", vector.get("value"))), decoded["value"], loose=True
        ), decoded

    def _encode(self) -> dict[str, Any]:
        body = {**self._base, **self._message_type(), "value": _wire(self._vector["value"])}
        return answered(self._schemas.encode, body)

    def _decode(self, data: str) -> dict[str, Any]:
        body = {
            **self._base,
            **self._message_type(),
            "payload": {"encoding": "base64", "data": data},
        }
        return answered(self._schemas.decode, body)

    def _message_type(self) -> dict[str, Any]:
        return (
            {"message_type": self._vector["message_type"]} if "message_type" in self._vector else {}
        )


def _wire(value: Any) -> Any:
    """The ``{"$bytes": ...}`` of the files is ``{"$base64": ...}`` on the wire."""
    if isinstance(value, dict):
        return (
            {"$base64": value["$bytes"]}
            if value.keys() == {"$bytes"}
            else {k: _wire(v) for k, v in value.items()}
        )
    return [_wire(item) for item in value] if isinstance(value, list) else value
