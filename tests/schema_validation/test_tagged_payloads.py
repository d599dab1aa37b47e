"""Payloads with Confluent's tag: validated and transformed by the version that the tag names."""

from __future__ import annotations

import base64
import json
import struct
from typing import Any

import pytest

from broker.core.client import Client
from broker.core.message import Message
from broker.core.stage import Refusal
from schema_validation.feature import SchemaValidationFeature
from tests.support.features import make_services, through
from transforms.feature import TransformsFeature

OLD = {"type": "record", "name": "R", "fields": [{"name": "t", "type": "double"}]}
NEW = {**OLD, "fields": [{"name": "u", "type": "int", "default": 0}, *OLD["fields"]]}
PROTO = 'syntax = "proto3"; message A { message B { int32 n = 1; } } message C { int32 n = 1; }'


def tag(number: int, body: bytes) -> bytes:
    return struct.pack(">BI", 0, number) + body


class Bench:
    def __init__(self) -> None:
        services = make_services()
        self.feature, self.transforms = (
            SchemaValidationFeature(services),
            TransformsFeature(services),
        )
        self.feature.start()
        self.transforms.start()

    def save(self, kind: str, source: Any) -> int:
        spec = {
            "name": "s",
            "type": kind,
            "source": source if isinstance(source, str) else json.dumps(source),
        }
        known = self.feature.schemas.registry.find("s") is not None
        number: int = (
            self.feature.schemas.replace("s", spec) if known else self.feature.schemas.create(spec)
        )["id"]
        return number

    def validated(self, payload: bytes, **check: Any) -> Message | Refusal:
        check = {"schema": "s", "wire_format": "confluent", **check}
        spec = {
            "name": "v",
            "topics": "t",
            "strategy": "all_pass",
            "failure_action": "drop",
            "checks": [check],
        }
        self.feature.validations.create(spec)
        found = through(
            self.feature.gates[-1], Message("t", payload, 0, False, Client("c", None), 1)
        )
        self.feature.validations.delete("v")
        return found


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_the_version_that_the_tag_names_decodes(bench: Bench) -> None:
    old, new = bench.save("avro", OLD), bench.save("avro", NEW)
    body = struct.pack("<d", 1.5)
    assert isinstance(bench.validated(tag(old, body), type="avro"), Message)
    assert isinstance(bench.validated(tag(new, b"\x02" + body), type="avro"), Message)
    assert isinstance(bench.validated(tag(new, body), type="avro"), Refusal)


@pytest.mark.parametrize(
    ("payload", "said"),
    [
        (b"\x00\x00", "has no tag"),
        (b"{}", "has no tag"),
        (tag(7, b""), "schema id 7, which is not a version of 's'"),
    ],
)
def test_what_is_wrong_with_a_tag_is_told(bench: Bench, payload: bytes, said: str) -> None:
    bench.save("avro", OLD)
    refused = bench.validated(payload, type="avro")
    assert isinstance(refused, Refusal)
    assert said in refused.text


def test_json_too(bench: Bench) -> None:
    number = bench.save("json", {"required": ["t"]})
    assert isinstance(bench.validated(tag(number, b'{"t": 1}'), type="json"), Message)
    assert isinstance(bench.validated(tag(number, b"{}"), type="json"), Refusal)


@pytest.mark.parametrize(
    ("message_type", "path"),
    [("A", b"\x00"), ("A", b"\x02\x00"), ("C", b"\x02\x02"), ("A.B", b"\x04\x00\x00")],
)
def test_protobuf_has_the_path_of_the_message_type(
    bench: Bench, message_type: str, path: bytes
) -> None:
    number = bench.save("protobuf", PROTO)
    found = bench.validated(
        tag(number, path + b"\x08\x05"), type="protobuf", message_type=message_type
    )
    assert isinstance(found, Message)
    written = bench.feature.schemas.registry.tagged("s").encode(
        {"n": 5} if message_type != "A" else {}, message_type
    )
    expected = b"\x00" if message_type == "A" else path
    assert written[5:].startswith(expected)


def test_a_transformation_reads_and_writes_tags(bench: Bench) -> None:
    number = bench.save("avro", OLD)
    codec = {"type": "avro", "schema": "s", "wire_format": "confluent"}
    spec = {
        "name": "x",
        "topics": "t",
        "failure_action": "drop",
        "payload_decoder": codec,
        "payload_encoder": codec,
    }
    operation = {"key": "payload.t", "value": "2.5"}
    body = struct.pack("<d", 1.5)
    message = {"topic": "t", "payload": {"encoding": "base64", "data": _base64(tag(number, body))}}
    same = bench.transforms.service.preview(
        {"transformations": [{**spec, "operations": []}], "message": message}
    )
    assert same["message"]["payload"]["data"] == message["payload"]["data"]  # type: ignore[index]
    decoded = {**spec, "payload_encoder": {"type": "json"}, "operations": []}
    shown = bench.transforms.service.preview({"transformations": [decoded], "message": message})
    assert shown["message"]["payload"]["data"] == '{"t":1.5}'
    assert operation["key"] == "payload.t"


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()
