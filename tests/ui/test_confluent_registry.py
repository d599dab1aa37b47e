"""The face of a Confluent registry: paths, bodies, error codes and content type as its clients expect them."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from schema_validation.feature import SchemaValidationFeature
from schema_validation.serdes.proto_parser import parse_file
from tests.support.features import make_services
from tests.support.plain_http import NO_TLS
from tests.ui.api_node import TOKEN, Node, Running

CONTENT_TYPE = "application/vnd.schemaregistry.v1+json"
READING = {"type": "record", "name": "Reading", "fields": [{"name": "t", "type": "double"}]}
WIDER = {**READING, "fields": [*READING["fields"], {"name": "u", "type": "string", "default": ""}]}
BREAKING = {**READING, "fields": [{"name": "t", "type": "string"}]}


@pytest.fixture
def url() -> Iterator[str]:
    services = make_services()
    feature = SchemaValidationFeature(services)
    feature.start()
    node = Node()
    node.context.section = services.storage.section
    node.context.services = {"schemas": feature.schemas, "validations": feature.validations}
    running = Running(node)
    yield f"{running.url}/registry"
    running.stop()


@pytest.fixture
def registry(url: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=url, auth=("any", TOKEN), timeout=60, verify=NO_TLS) as client:
        yield client


def body(schema: Any, kind: str | None = None, **more: Any) -> dict[str, Any]:
    text = schema if isinstance(schema, str) else json.dumps(schema)
    return {"schema": text, **({"schemaType": kind} if kind else {}), **more}


def ok(answer: httpx.Response) -> Any:
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == CONTENT_TYPE
    return answer.json()


def refused(answer: httpx.Response) -> tuple[int, int]:
    assert answer.headers["content-type"] == CONTENT_TYPE
    found = answer.json()
    assert set(found) == {"error_code", "message"}
    return answer.status_code, found["error_code"]


def test_registering_looking_up_and_reading(registry: httpx.Client) -> None:
    first = ok(registry.post("/subjects/t-value/versions", json=body(READING)))["id"]
    second = ok(registry.post("/subjects/t-value/versions", json=body(WIDER)))["id"]
    assert (
        ok(registry.post("/subjects/t-value/versions", json=body(READING)))["id"] == first != second
    )
    assert ok(registry.get("/subjects")) == ["t-value"]
    assert ok(registry.get("/subjects/t-value/versions")) == [1, 2]
    latest = ok(registry.get("/subjects/t-value/versions/latest"))
    assert (latest["subject"], latest["version"], latest["id"]) == ("t-value", 2, second)
    assert json.loads(latest["schema"]) == WIDER
    assert "schemaType" not in latest
    assert ok(registry.post("/subjects/t-value", json=body(READING)))["version"] == 1
    assert json.loads(ok(registry.get(f"/schemas/ids/{first}"))["schema"]) == READING
    assert ok(registry.get(f"/schemas/ids/{first}/schema")) == READING
    assert ok(registry.get(f"/schemas/ids/{first}/versions")) == [
        {"subject": "t-value", "version": 1}
    ]
    assert ok(registry.get(f"/schemas/ids/{first}/subjects")) == ["t-value"]
    assert json.loads(ok(registry.get(f"/schemas/guids/{latest['guid']}"))["schema"]) == WIDER
    assert ok(registry.get("/schemas/types")) == ["AVRO", "JSON", "PROTOBUF"]
    assert [item["version"] for item in ok(registry.get("/schemas?latestOnly=true"))] == [2]


def test_other_types_and_references(registry: httpx.Client) -> None:
    place = {"type": "object", "properties": {"lat": {"type": "number"}}}
    ok(registry.post("/subjects/place/versions", json=body(place, "JSON")))
    reference = {"name": "place.json", "subject": "place", "version": 1}
    source = {"properties": {"at": {"$ref": "place.json"}}}
    number = ok(
        registry.post("/subjects/meter/versions", json=body(source, "JSON", references=[reference]))
    )["id"]
    found = ok(registry.get(f"/schemas/ids/{number}"))
    assert (found["schemaType"], found["references"]) == ("JSON", [reference])
    assert ok(registry.get("/subjects/place/versions/1/referencedby")) == [number]
    assert refused(registry.delete("/subjects/place")) == (422, 42206)
    proto = 'syntax = "proto3"; message Reading { double t = 1; }'
    ok(registry.post("/subjects/p/versions", json=body(proto, "PROTOBUF")))
    assert ok(registry.get("/subjects/p/versions/1"))["schema"] == proto
    compiled = base64.b64encode(
        parse_file(proto, "default").SerializeToString()
    ).decode()  # as Confluent's client sends
    ok(registry.post("/subjects/c/versions", json=body(compiled, "PROTOBUF")))
    assert ok(registry.get("/subjects/c/versions/1"))["schema"] == compiled


def test_compatibility_is_asked_for_and_kept(registry: httpx.Client) -> None:
    ok(registry.post("/subjects/a.b-value/versions", json=body(READING)))
    asked = "/compatibility/subjects/a.b-value/versions"
    assert ok(registry.post(f"{asked}/latest", json=body(WIDER))) == {"is_compatible": True}
    verdict = ok(registry.post(f"{asked}?verbose=true", json=body(BREAKING)))
    assert verdict["is_compatible"] is False
    assert "fields.t" in verdict["messages"][0]
    assert refused(registry.post("/subjects/a.b-value/versions", json=body(BREAKING))) == (409, 409)
    assert ok(registry.get("/config")) == {"compatibilityLevel": "BACKWARD"}
    assert refused(registry.get("/config/a.b-value")) == (404, 40408)
    assert ok(registry.get("/config/a.b-value?defaultToGlobal=true")) == {
        "compatibilityLevel": "BACKWARD"
    }
    assert ok(registry.put("/config/a.b-value", json={"compatibility": "NONE"})) == {
        "compatibility": "NONE"
    }
    ok(registry.post("/subjects/a.b-value/versions", json=body(BREAKING)))
    assert ok(registry.delete("/config/a.b-value")) == {"compatibilityLevel": "NONE"}
    assert ok(registry.put("/config", json={"compatibility": "FULL_TRANSITIVE"}))
    assert ok(registry.get("/config")) == {"compatibilityLevel": "FULL_TRANSITIVE"}
    assert ok(registry.get("/mode")) == {"mode": "READWRITE"}


def test_deleting_softly_and_for_good(registry: httpx.Client) -> None:
    number = ok(registry.post("/subjects/s/versions", json=body(READING)))["id"]
    ok(registry.post("/subjects/s/versions", json=body(WIDER)))
    assert refused(registry.delete("/subjects/s/versions/1?permanent=true")) == (404, 40407)
    assert ok(registry.delete("/subjects/s/versions/1")) == 1
    assert refused(registry.delete("/subjects/s/versions/1")) == (404, 40406)
    assert ok(registry.get("/subjects/s/versions?deleted=true")) == [1, 2]
    assert ok(registry.get(f"/schemas/ids/{number}"))
    assert refused(registry.delete("/subjects/s?permanent=true")) == (404, 40405)
    assert ok(registry.delete("/subjects/s")) == [2]
    assert refused(registry.delete("/subjects/s")) == (404, 40404)
    assert ok(registry.get("/subjects")) == []
    assert ok(registry.get("/subjects?deleted=true")) == ["s"]
    assert ok(registry.delete("/subjects/s?permanent=true")) == [1, 2]
    assert refused(registry.get(f"/schemas/ids/{number}")) == (404, 40403)


@pytest.mark.parametrize(
    ("method", "path", "sent", "expected"),
    [
        ("GET", "/subjects/nobody/versions", None, (404, 40401)),
        ("GET", "/subjects/s/versions/9", None, (404, 40402)),
        ("GET", "/subjects/s/versions/0", None, (422, 42202)),
        ("GET", "/subjects/s/versions/first", None, (422, 42202)),
        ("GET", "/schemas/ids/7", None, (404, 40403)),
        ("POST", "/subjects/s", body(BREAKING), (404, 40403)),
        ("POST", "/subjects/nobody", body(READING), (404, 40401)),
        ("POST", "/subjects/s/versions", body("{"), (422, 42201)),
        ("POST", "/subjects/s/versions", {"schema": 1}, (422, 42201)),
        ("POST", "/subjects/s/versions", body(READING, "XML"), (422, 42201)),
        ("POST", "/subjects/-/versions", body(READING), (422, 42208)),
        ("PUT", "/config", {"compatibility": "SIDEWAYS"}, (422, 42203)),
        ("GET", "/nothing", None, (404, 404)),
    ],
)
def test_errors_have_the_codes_that_clients_know(
    registry: httpx.Client, method: str, path: str, sent: Any, expected: tuple[int, int]
) -> None:
    ok(registry.post("/subjects/s/versions", json=body(READING)))
    assert refused(registry.request(method, path, json=sent)) == expected


def test_nobody_gets_in_without_the_token(url: str) -> None:
    assert refused(httpx.get(f"{url}/subjects", verify=NO_TLS)) == (401, 40101)
    assert refused(httpx.get(f"{url}/subjects", auth=("x", "wrong"), verify=NO_TLS)) == (401, 40101)
    assert (
        ok(
            httpx.get(
                f"{url}/subjects", headers={"Authorization": f"Bearer {TOKEN}"}, verify=NO_TLS
            )
        )
        == []
    )
