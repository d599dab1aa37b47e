"""Validations and transformations over HTTP: filters, preconditions, patches, switches, counters, order."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from schema_validation.feature import SchemaValidationFeature
from tests.support.features import make_services
from tests.ui.api_node import Node, Running
from transforms.feature import TransformsFeature

READING = {"type": "object", "required": ["t"], "properties": {"t": {"type": "number"}}}
RECORD = {"type": "record", "name": "r", "fields": [{"name": "i", "type": "int"}]}
VALIDATIONS: list[dict[str, Any]] = [
    {"name": "fields", "topics": ["meters/#"], "checks": [{"type": "json", "schema": "reading"}]},
    {
        "name": "range",
        "topics": ["meters/+/t"],
        "checks": [{"type": "sql", "sql": "SELECT 1 AS x WHERE qos < 2"}],
    },
    {
        "name": "binary",
        "topics": ["bin/#"],
        "checks": [{"type": "avro", "schema": "record"}],
        "mode": "shadow",
    },
    {
        "name": "off",
        "topics": ["meters/9"],
        "checks": [{"type": "json", "schema": "reading"}],
        "enable": False,
    },
]
TRANSFORMS: list[dict[str, Any]] = [
    {"name": "raise", "topics": ["meters/#"], "operations": [{"key": "qos", "value": "1"}]},
    {
        "name": "convert",
        "topics": ["bin/#"],
        "payload_decoder": {"type": "avro", "schema": "record"},
        "payload_encoder": {"type": "json"},
    },
]


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    services = make_services()
    schemas = SchemaValidationFeature(services)
    transforms = TransformsFeature(services)
    for feature in (schemas, transforms):
        feature.start()
    node = Node()
    node.context.section = services.storage.section
    node.context.services = {
        "schemas": schemas.schemas,
        "validations": schemas.validations,
        "transforms": transforms.service,
    }
    running = Running(node)
    yield running
    running.stop()


@pytest.fixture
def api(server: Running) -> Iterator[httpx.Client]:
    with server.client() as client:
        for name, kind, source in (("reading", "json", READING), ("record", "avro", RECORD)):
            client.put(f"/schemas/{name}", json={"type": kind, "source": source})
        for spec in VALIDATIONS:
            made = client.put(
                f"/validations/{spec['name']}",
                json={"strategy": "all_pass", "failure_action": "drop"} | spec,
            )
            assert made.status_code in (200, 201), made.text
        for spec in TRANSFORMS:
            made = client.put(f"/transforms/{spec['name']}", json={"failure_action": "drop"} | spec)
            assert made.status_code in (200, 201), made.text
        yield client
        for path in ("validations", "transforms"):
            for item in client.get(f"/{path}").json()["items"]:
                client.delete(f"/{path}/{item['name']}")


@pytest.mark.parametrize(
    ("query", "names"),
    [
        ("", ["fields", "range", "binary", "off"]),
        ("topic=meters/9", ["fields", "off"]),
        ("topic=meters/9/t", ["fields", "range"]),
        ("topic=bin/%2B", ["binary"]),
        ("topic=elsewhere", []),
        ("schema_name=reading", ["fields", "off"]),
        ("schema_type=avro", ["binary"]),
        ("schema_type=sql", ["range"]),
        ("schema_name=reading&schema_type=avro", []),
        ("schema_name=reading&enable=true", ["fields"]),
        ("enable=false", ["off"]),
        ("mode=shadow", ["binary"]),
        ("like_name=an", ["range"]),
        ("topic=meters/9&limit=1", ["fields"]),
    ],
)
def test_validations_are_found(api: httpx.Client, query: str, names: list[str]) -> None:
    assert [item["name"] for item in api.get(f"/validations?{query}").json()["items"]] == names


@pytest.mark.parametrize(
    ("query", "names"),
    [
        ("", ["raise", "convert"]),
        ("topic=bin/1", ["convert"]),
        ("schema_name=record", ["convert"]),
        ("schema_type=json", ["convert"]),
        ("schema_name=record&schema_type=json", []),
        ("schema_type=none", ["raise"]),
    ],
)
def test_transformations_are_found(api: httpx.Client, query: str, names: list[str]) -> None:
    assert [item["name"] for item in api.get(f"/transforms?{query}").json()["items"]] == names


@pytest.mark.parametrize("query", ["schema_type=xml", "enable=perhaps", "mode=loud", "topics=a"])
def test_a_filter_that_is_none_is_refused(api: httpx.Client, query: str) -> None:
    assert api.get(f"/validations?{query}").status_code in (400, 422)


@pytest.mark.parametrize(("path", "name"), [("validations", "fields"), ("transforms", "raise")])
def test_nobody_overwrites_what_they_have_not_seen(api: httpx.Client, path: str, name: str) -> None:
    shown = api.get(f"/{path}/{name}")
    etag = shown.headers["etag"]
    assert api.get(f"/{path}/{name}", headers={"If-None-Match": etag}).status_code == 304
    changed = api.patch(f"/{path}/{name}", json={"description": "new"}, headers={"If-Match": etag})
    assert (changed.status_code, changed.json()["description"]) == (200, "new")
    assert changed.headers["etag"] != etag
    for late in (
        api.patch(f"/{path}/{name}", json={"description": "late"}, headers={"If-Match": etag}),
        api.put(f"/{path}/{name}", json=shown.json(), headers={"If-Match": etag}),
        api.put(f"/{path}/{name}", json=shown.json(), headers={"If-None-Match": "*"}),
        api.delete(f"/{path}/{name}", headers={"If-Match": etag}),
    ):
        assert (late.status_code, late.json()["code"]) == (412, "changed_meanwhile")
    again = api.put(
        f"/{path}/{name}", json=shown.json(), headers={"If-Match": changed.headers["etag"]}
    )
    assert (again.status_code, again.headers["etag"]) == (200, etag)


@pytest.mark.parametrize(
    ("patch", "member", "value"),
    [
        ({"topics": "a/b"}, "topics", ["a/b"]),
        ({"log_failure": {"level": "debug"}}, "log_failure", {"level": "debug"}),
        ({"mode": "shadow"}, "mode", "shadow"),
        ({"mode": None}, "mode", "enforce"),
        ({"metrics": {"matched": 5}}, "enable", True),
    ],
)
def test_members_are_changed(
    api: httpx.Client, patch: dict[str, Any], member: str, value: Any
) -> None:
    changed = api.patch("/validations/fields", json=patch)
    assert (changed.status_code, changed.json()[member]) == (200, value)


@pytest.mark.parametrize(
    ("patch", "pointer"),
    [
        ({"topics": []}, "/topics"),
        ({"strategy": None}, "/strategy"),
        ({"colour": 1}, "/colour"),
        ({"name": "x"}, "/name"),
    ],
)
def test_a_patch_that_leads_to_nonsense_changes_nothing(
    api: httpx.Client, patch: dict[str, Any], pointer: str
) -> None:
    before = api.get("/validations/fields").json()
    refused = api.patch("/validations/fields", json=patch)
    assert refused.status_code == 422
    assert refused.json()["errors"][0]["pointer"] == pointer
    assert api.get("/validations/fields").json() == before
    assert api.patch("/validations/nobody", json={}).status_code == 404


@pytest.mark.parametrize(("path", "name"), [("validations", "fields"), ("transforms", "raise")])
def test_switches_and_counters(api: httpx.Client, path: str, name: str) -> None:
    for verb, enabled in (
        ("disable", False),
        ("disable", False),
        ("enable", True),
        ("enable", True),
    ):
        assert api.post(f"/{path}/{name}:{verb}").json()["enable"] is enabled
    counted = api.get(f"/{path}/{name}/metrics").json()
    assert counted.keys() >= {"matched", "succeeded", "failed", "rate", "rate_last5m", "rate_max"}
    assert api.post(f"/{path}/{name}/metrics:reset").status_code == 204
    for call in ("nobody:enable", "nobody:disable", "nobody/metrics:reset"):
        assert api.post(f"/{path}/{call}").status_code == 404


def test_what_is_wrong_with_an_order_is_listed(api: httpx.Client) -> None:
    refused = api.post("/validations:reorder", json={"order": ["range", "range", "gone", "fields"]})
    told = refused.json()
    assert refused.status_code == 422
    assert told["not_found"] == ["gone"]
    assert told["not_reordered"] == ["binary", "off"]
    assert told["duplicated"] == ["range"]
    assert {error["pointer"] for error in told["errors"]} == {"/order"}
    names = ["off", "binary", "range", "fields"]
    assert [
        item["name"]
        for item in api.post("/validations:reorder", json={"order": names}).json()["items"]
    ] == names


def test_an_order_that_was_changed_meanwhile_is_not_overwritten(api: httpx.Client) -> None:
    names = [item["name"] for item in api.get("/validations").json()["items"]]
    mine = {"order": names[::-1]}
    seen = api.post("/validations:reorder", params={"dry_run": True}, json=mine)
    assert seen.json()["affected"][0]["how"] == "moves from place 4 to 1"
    known = {"If-Match": seen.headers["etag"]}
    assert api.post("/validations:reorder", json=mine, headers=known).status_code == 200
    late = api.post("/validations:reorder", json={"order": names}, headers=known)
    assert (late.status_code, late.json()["code"]) == (412, "changed_meanwhile")


@pytest.mark.parametrize(
    ("path", "members", "missing"),
    [
        (
            "validations",
            {
                "strategy": "all_pass",
                "checks": [
                    {"type": "json", "schema": "reading"},
                    {"type": "avro", "schema": "gone"},
                    {"type": "protobuf", "schema": "gone", "message_type": "M"},
                ],
            },
            [["gone"], ["gone", "M"]],
        ),
        (
            "transforms",
            {
                "payload_decoder": {"type": "avro", "schema": "a"},
                "payload_encoder": {"type": "avro", "schema": "record"},
            },
            [["a"]],
        ),
    ],
)
def test_every_missing_schema_is_listed(
    api: httpx.Client, path: str, members: dict[str, Any], missing: list[list[str]]
) -> None:
    refused = api.post(
        f"/{path}", json={"name": "n", "topics": ["t"], "failure_action": "drop", **members}
    )
    assert (refused.status_code, refused.json()["missing_schemas"]) == (422, missing)
    assert len(refused.json()["errors"]) == len(missing)
