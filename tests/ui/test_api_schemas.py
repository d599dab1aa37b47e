"""Schemas over HTTP: versions, who uses them, what a change would do, and schemas learnt from messages."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from broker.core.client import Client
from broker.core.message import Message
from broker.core.objects import MemorySection
from rules.feature import RulesFeature
from schema_validation.feature import SchemaValidationFeature
from tests.support.features import make_services, through
from tests.ui.api_node import Node, Running
from transforms.feature import TransformsFeature

V1 = {
    "type": "object",
    "required": ["t"],
    "properties": {"t": {"type": "number"}, "u": {"type": "string"}},
}
V2 = {
    "type": "object",
    "required": ["t"],
    "properties": {"t": {"type": ["number", "null"]}, "u": {"type": "string"}},
}
BREAKING = {
    "type": "object",
    "required": ["t", "v"],
    "properties": {"t": {"type": "string"}, "v": {}},
}
PROTO = 'syntax = "proto3"; message Reading { double t = 1; } message Other { string a = 1; }'
METERS = {
    "name": "meters",
    "topics": ["meters/#"],
    "strategy": "all_pass",
    "failure_action": "drop",
    "checks": [{"type": "json", "schema": "reading"}],
}


class Api:
    """The API over real features; ``sections`` are what they keep."""

    def __init__(self, sections: dict[str, MemorySection]) -> None:
        services = make_services(sections)
        self.schemas = SchemaValidationFeature(services)
        transforms, rules = TransformsFeature(services), RulesFeature(services)
        for feature in (self.schemas, transforms, rules):
            feature.start()
        node = Node()
        node.context.section = services.storage.section
        node.context.services = {
            "schemas": self.schemas.schemas,
            "validations": self.schemas.validations,
            "transforms": transforms.service,
            "rules": rules.service,
        }
        self._running = Running(node)
        self.http = self._running.client()

    def close(self) -> None:
        self.http.close()
        self._running.stop()

    def call(self, method: str, path: str, body: Any = None, expect: int = 200) -> Any:
        answer = self.http.request(method, path, json=body)
        assert answer.status_code == expect, answer.text
        return answer.json() if answer.content else None

    def publish(self, topic: str, payload: str, at_ns: int) -> None:
        """A message through all gates."""
        message = Message(topic, payload.encode(), 0, False, Client("c", None), at_ns)
        for gate in self.schemas.gates:
            through(gate, message)


@pytest.fixture
def sections() -> dict[str, MemorySection]:
    return {}


@pytest.fixture
def api(sections: dict[str, MemorySection]) -> Iterator[Api]:
    made = Api(sections)
    yield made
    made.close()


def put(api: Api, schema: Any, expect: int = 200, query: str = "", **members: Any) -> Any:
    return api.call(
        "PUT",
        f"/schemas/reading{query}",
        {"type": "json", "source": json.dumps(schema), **members},
        expect,
    )


def test_each_text_is_one_version_with_one_id(api: Api) -> None:
    first = put(api, V1, 201)
    second = put(api, V2)
    again = put(api, dict(reversed(V1.items())))
    assert (first["version"], second["version"], again["version"]) == (1, 2, 1)
    assert first["id"] == again["id"] != second["id"]
    assert [item["version"] for item in api.call("GET", "/schemas/reading/versions")["items"]] == [
        1,
        2,
    ]
    assert json.loads(api.call("GET", "/schemas/reading/versions/latest")["source"]) == V2
    other = api.call(
        "POST", "/schemas", {"name": "other", "type": "json", "source": json.dumps(V1)}, 201
    )
    assert other["id"] == first["id"]


def test_history_and_the_version_in_use_outlive_a_restart(
    sections: dict[str, MemorySection], api: Api
) -> None:
    first = put(api, V1, 201, tags=["meters"], metadata={"owner": "grid"})
    second = put(api, V2, description="may be null")
    api.call("POST", "/schemas/reading/versions/1:use")
    reborn = Api(sections)
    try:
        shown = reborn.call("GET", "/schemas/reading")
        assert (shown["version"], shown["latest"], shown["tags"]) == (1, 2, ["meters"])
        assert shown["metadata"] == {"owner": "grid"}
        assert [item["id"] for item in shown["versions"]] == [first["id"], second["id"]]
    finally:
        reborn.close()


def test_a_change_that_the_mode_forbids_is_refused_with_its_places(api: Api) -> None:
    put(api, V1, 201)
    refused = put(api, BREAKING, 422)
    assert refused["code"] == "incompatible"
    assert "properties.t.type: the writer allows number, the reader only string" in str(
        refused["errors"]
    )
    assert "properties.v" in str(refused["errors"])
    assert put(api, BREAKING, compatibility="none")["version"] == 2


def test_modes_are_set_for_the_registry_and_for_a_schema(api: Api) -> None:
    put(api, V1, 201)
    assert api.call("GET", "/schemas:compatibility") == {"compatibility": "backward"}
    api.call("PUT", "/schemas:compatibility", {"compatibility": "disabled"})
    assert put(api, V2, 422)["code"] == "incompatible"
    api.call("PUT", "/schemas/reading/compatibility", {"compatibility": "full"})
    assert api.call("GET", "/schemas/reading/compatibility") == {"compatibility": "full"}
    assert "the writer allows null" in str(put(api, V2, 422)["errors"])
    api.call("PUT", "/schemas:compatibility", {"compatibility": "sideways"}, 422)


def test_a_schema_in_use_is_not_deleted_but_by_force_and_its_numbers_go_on(api: Api) -> None:
    put(api, V1, 201)
    api.call("POST", "/validations", METERS, 201)
    assert api.call("GET", "/schemas/reading/users") == {
        "users": ["validation 'meters'"],
        "schemas": [],
    }
    assert api.call("DELETE", "/schemas/reading", expect=409)["users"] == ["validation 'meters'"]
    api.call("DELETE", "/schemas/reading?force=true", expect=204)
    api.call("GET", "/schemas/reading", expect=404)
    assert put(api, V2, 201)["version"] == 2
    api.call("DELETE", "/schemas/reading?force=true&permanent=true", expect=204)
    assert put(api, V2, 201)["version"] == 1


def test_a_change_that_breaks_a_user_names_it(api: Api) -> None:
    api.call(
        "POST",
        "/schemas",
        {"name": "p", "type": "protobuf", "source": PROTO, "compatibility": "none"},
        201,
    )
    check = {"type": "protobuf", "schema": "p", "message_type": "Other"}
    api.call("POST", "/validations", {**METERS, "checks": [check]}, 201)
    changed = {"type": "protobuf", "source": 'syntax = "proto3"; message Reading { double t = 1; }'}
    refused = api.call("PUT", "/schemas/p", changed, 409)
    assert "validation 'meters', which it would break" in refused["detail"]
    assert api.call("PUT", "/schemas/p?force=true", changed)["version"] == 2


def test_one_version_is_deleted_and_another_used(api: Api) -> None:
    put(api, V1, 201)
    put(api, V2)
    api.call("DELETE", "/schemas/reading/versions/2", expect=204)
    shown = api.call("GET", "/schemas/reading")
    assert (shown["version"], shown["versions"][1]["deleted"]) == (1, True)
    api.call("GET", "/schemas/reading/versions/2", expect=404)
    assert put(api, V2)["version"] == 3


def test_schemas_refer_to_versions_of_each_other(api: Api) -> None:
    place = {
        "type": "record",
        "name": "Place",
        "namespace": "geo",
        "fields": [{"name": "lat", "type": "double"}],
    }
    meter = {"type": "record", "name": "Meter", "fields": [{"name": "at", "type": "geo.Place"}]}
    api.call(
        "POST", "/schemas", {"name": "place", "type": "avro", "source": json.dumps(place)}, 201
    )
    reference = {"name": "geo.Place", "schema": "place"}
    body = {"name": "meter", "type": "avro", "source": json.dumps(meter), "references": [reference]}
    made = api.call("POST", "/schemas", body, 201)
    assert made["references"] == [{**reference, "version": 1}]
    coded = api.call("POST", "/schemas/meter:encode", {"value": {"at": {"lat": 1.5}}})
    assert api.call("POST", "/schemas/meter:decode", coded)["value"] == {"at": {"lat": 1.5}}
    assert api.call("DELETE", "/schemas/place", expect=409)["users"] == ["schema 'meter' version 1"]
    missing = api.call(
        "POST",
        "/schemas",
        {**body, "name": "m2", "references": [{"name": "x", "schema": "plac"}]},
        422,
    )
    assert "did you mean 'place'?" in missing["errors"][0]["message"]


def test_references_of_json_schemas_and_protobuf(api: Api) -> None:
    positive = {
        "$defs": {"p": {"minimum": 0}},
        "allOf": [{"$ref": "#/$defs/p"}, {"type": "number"}],
    }
    api.call(
        "POST",
        "/schemas",
        {"name": "positive", "type": "json", "source": json.dumps(positive)},
        201,
    )
    source = {"properties": {"t": {"$ref": "positive.json"}}}
    reference = {"name": "positive.json", "schema": "positive", "version": 1}
    body = {"name": "r", "type": "json", "source": json.dumps(source), "references": [reference]}
    api.call("POST", "/schemas", body, 201)
    assert api.call("POST", "/schemas/r:validate", {"value": {"t": 1}})["valid"]
    assert not api.call("POST", "/schemas/r:validate", {"value": {"t": -1}})["valid"]
    api.call("POST", "/schemas", {"name": "p", "type": "protobuf", "source": PROTO}, 201)
    importing = (
        'syntax = "proto3"; import "reading.proto"; message Batch { repeated Reading all = 1; }'
    )
    body = {
        "name": "b",
        "type": "protobuf",
        "source": importing,
        "references": [{"name": "reading.proto", "schema": "p"}],
    }
    api.call("POST", "/schemas", body, 201)
    value = {"value": {"all": [{"t": 1.5}]}, "message_type": "Batch"}
    assert api.call("POST", "/schemas/b:encode", value)["payload"]["data"]


def test_check_says_what_a_change_would_do_before_it_is_saved(api: Api) -> None:
    put(api, V1, 201)
    api.call("POST", "/validations", METERS, 201)
    for number in range(5):
        api.publish(
            "meters/1",
            json.dumps({"t": number, "v": 1} if number else {"t": "?", "v": 1}),
            number * 10**9,
        )
    found = api.call("POST", "/schemas/reading:check", {"source": json.dumps(BREAKING)})
    assert (found["version"], found["is_new_version"]) == (2, True)
    texts = [change["text"] for change in found["changes"]]
    assert texts == [
        "t was number and is string",
        "v is new: any type, required",
        "u is gone; it was string, optional",
    ]
    assert found["compatibility"]["compatible"] is False
    assert [item["user"] for item in found["impact"]] == ["validation 'meters'"]
    messages = found["messages"]
    assert (messages["tried"], messages["newly_refused"], messages["newly_accepted"]) == (5, 4, 1)
    assert messages["reasons"][0]["path"] == "payload.t"
    assert api.call("GET", "/schemas/reading")["version"] == 1


def test_differences_between_versions(api: Api) -> None:
    put(api, V1, 201)
    put(api, V2)
    found = api.call("GET", "/schemas/reading/diff?before=1&after=latest")
    assert [change["text"] for change in found["changes"]] == ["t was number and is number or null"]
    put(api, {**V2, "required": ["t", "id"]}, compatibility="none")
    found = api.call("GET", "/schemas/reading/diff?before=2&after=latest")
    assert [change["text"] for change in found["changes"]] == ["id is new: anything, required"]


def test_fields_of_versions_and_of_what_is_not_saved(api: Api) -> None:
    put(api, V1, 201)
    fields = api.call("GET", "/schemas/reading/versions/1")["fields"]
    assert fields[0] == {"path": "", "type": "object", "is_optional": False}
    assert {"path": "t", "type": "number", "is_optional": False} in fields
    proto = 'syntax = "proto3"; message M { repeated N inner = 1; } message N { int32 a = 1; }'
    checked = api.call(
        "POST", "/schemas:check", {"name": "frame", "type": "protobuf", "source": proto}
    )
    assert [(one["path"], one["type"]) for one in checked["fields"]] == [
        ("M", "message"), ("M.inner", "repeated N"), ("N", "message"), ("N.a", "int32"),
    ]  # fmt: skip


def test_a_schema_is_learnt_from_messages_and_they_fit_it(api: Api) -> None:
    samples: list[dict[str, Any]] = [
        {"t": 20 + n / 2, "at": "2026-01-01T00:00:00Z", "state": "on" if n % 2 else "off"}
        for n in range(30)
    ]
    samples[3]["note"] = None
    found = api.call("POST", "/schemas:infer", {"type": "json", "samples": samples})
    schema = json.loads(found["source"])
    assert schema["properties"]["at"] == {"type": "string", "format": "date-time"}
    assert schema["properties"]["state"] == {"type": "string", "enum": ["off", "on"]}
    assert schema["required"] == ["t", "at", "state"]
    avro = api.call(
        "POST", "/schemas:infer", {"type": "avro", "samples": samples, "name": "Reading"}
    )
    for kind, source in (("json", found["source"]), ("avro", avro["source"])):
        for sample in samples:
            assert api.call(
                "POST", "/schemas:validate", {"type": kind, "source": source, "value": sample}
            )["valid"]


def test_messages_of_a_topic_nobody_watched_are_kept_from_then_on(api: Api) -> None:
    refused = api.call("POST", "/schemas:infer", {"topic": "new/+"}, 422)
    assert "from now on" in refused["errors"][0]["suggestion"]
    api.publish("new/1", '{"a": 1}', 10**9)
    assert api.call("POST", "/schemas:infer", {"topic": "new/+"})["messages"] == 1


def test_a_schema_that_takes_long_to_compile_is_refused(api: Api) -> None:
    slow = {"properties": {f"p{n}": {"pattern": f"(?i)^\\pL{{1,40}}{n}$"} for n in range(300)}}
    refused = put(api, slow, 422)
    assert "hold up the broker" in refused["errors"][0]["message"]


def test_rules_and_tables_are_told_what_a_change_would_do_to_them(api: Api) -> None:
    closed = {**V1, "additionalProperties": False}
    put(api, closed, 201, compatibility="none")
    api.call("POST", "/validations", METERS, 201)
    api.call(
        "POST",
        "/rules",
        {"name": "hot", "sql": "SELECT payload.t AS t FROM \"meters/#\" WHERE payload.u = 'x'"},
        201,
    )
    gone = {
        "type": "object",
        "required": ["t"],
        "properties": {"t": {"type": "string"}},
        "additionalProperties": False,
    }
    found = api.call("POST", "/schemas/reading:check", {"source": json.dumps(gone)})["impact"]
    assert [(item["user"], item["breaks"]) for item in found] == [
        ("rule 'hot'", True),
        ("validation 'meters'", False),
    ]
    assert "column t was double and is string" in found[0]["why"]
    assert "payload.u" in found[0]["why"] or "'u'" in found[0]["why"]
    refused = api.call("PUT", "/schemas/reading", {"type": "json", "source": json.dumps(gone)}, 409)
    assert "rule 'hot', which it would break" in refused["detail"]


def test_a_creation_has_nothing_to_force(api: Api) -> None:
    refused = api.http.post(
        "/schemas", params={"force": "true"}, json={"name": "a", "type": "json", "source": "{}"}
    )
    assert (refused.status_code, refused.json()["code"]) == (400, "unknown_parameter")
    assert refused.json()["detail"] == "/api/v1/schemas has no parameter 'force'; there are dry_run"
    assert api.http.get("/schemas/a").status_code == 404
