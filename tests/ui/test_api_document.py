"""Every operation of the OpenAPI document: done once, and held against what the document says."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from tests.ui.api_node import Node
from ui.api.application import create_app

METHODS = ("get", "post", "put", "patch", "delete")


@dataclass(frozen=True)
class Operation:
    """One operation as the document has it."""

    id: str
    method: str
    path: str
    description: dict[str, Any]

    @property
    def takes_a_body(self) -> bool:
        return "application/json" in self.description.get("requestBody", {}).get("content", {})

    @property
    def is_public(self) -> bool:
        return self.description.get("security") == []

    @property
    def name(self) -> str:
        return "readings" if "/streams" in self.path else "meters" if "/lake" in self.path else "a"

    def url(self) -> str:
        return self.path.replace("{name}", self.name)


def operations() -> Iterator[Operation]:
    for path, methods in create_app(Node().context).openapi()["paths"].items():
        for method in METHODS:
            if method in methods:
                yield Operation(methods[method]["operationId"], method, path, methods[method])


OPERATIONS = list(operations())
EVERY_OPERATION = pytest.mark.parametrize(
    "operation", OPERATIONS, ids=lambda operation: operation.id
)

PARAMETERS = {"readStreamRecords": {"from": "3", "to": "5"}}
"""Parameters that an operation cannot do without."""


@EVERY_OPERATION
def test_an_operation_wants_the_token(http: httpx.Client, operation: Operation) -> None:
    answer = http.request(operation.method, operation.url())
    if operation.id == "getSignInMethods":  # which a page reads before anyone is signed in
        assert answer.json() == {"oidc": None}
        return
    assert answer.status_code in ((400, 403) if operation.is_public else (401,))
    _check_problem(answer)
    _check_declared(operation, answer)


@pytest.mark.parametrize(
    "operation", [o for o in OPERATIONS if not o.is_public], ids=lambda operation: operation.id
)
def test_an_operation_refuses_parameters_that_it_does_not_have(
    api: httpx.Client, operation: Operation
) -> None:
    query = {"misspelt": "1"} | PARAMETERS.get(operation.id, {})
    answer = api.request(operation.method, operation.url().removeprefix("/api/v1"), params=query)
    assert answer.status_code == 400
    assert "'misspelt'" in answer.json()["detail"]


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"{", 400),
        (b"", 400),
        (b'{"a":NaN}', 400),
        (b"\xff", 400),
        (b"[]", 422),
        (b'"a"', 422),
        (b"[" * 200_000, 400),
    ],
)
@pytest.mark.parametrize(
    "operation", [o for o in OPERATIONS if o.takes_a_body], ids=lambda operation: operation.id
)
def test_a_body_that_is_no_object_is_refused(
    api: httpx.Client, operation: Operation, body: bytes, status: int
) -> None:
    many, slash, part = operation.url().removeprefix("/api/v1").partition(f"/{operation.name}")
    if slash and (part or operation.method != "put"):
        api.put(f"{many}/{operation.name}", json={})
    here = {"Origin": str(api.base_url).removesuffix("/api/v1/")}
    answer = api.request(
        operation.method, operation.url().removeprefix("/api/v1"), content=body, headers=here
    )
    is_too_large = operation.is_public and len(body) > 4096
    assert answer.status_code == (413 if is_too_large else status)
    _check_problem(answer)


def test_the_document_is_whole() -> None:
    document = create_app(Node().context).openapi()
    assert document["openapi"] == "3.1.0"
    assert len({operation.id for operation in OPERATIONS}) == len(OPERATIONS) > 40
    components = {**document["components"]["schemas"], **document["components"]["responses"]}
    assert [ref for ref in _references(document) if ref.rsplit("/", 1)[-1] not in components] == []
    for operation in OPERATIONS:
        assert operation.description["tags"]
        assert operation.description["summary"]
        assert re.fullmatch(r"[A-Z`].+\.", operation.description.get("description", ""), re.S), (
            operation.id
        )
        assert {"400", "401", "403", "429", "500", "503"} <= operation.description[
            "responses"
        ].keys()


def test_an_operation_says_what_it_does_and_where_it_runs() -> None:
    says = {operation.id: operation.description["x-resource"] for operation in OPERATIONS}
    assert says["cancelJob"] == {"name": "job", "does": "job", "at": "jobs", "topics": "none"}
    assert says["getStatus"] == {"name": "node", "does": "read", "at": "sum", "topics": "none"}
    assert says["putRule"] == {"name": "rule", "does": "change", "at": "config", "topics": "named"}
    assert says["listRules"] == {"name": "rule", "does": "read", "at": "running", "topics": "none"}
    assert says["restartConnector"] == {
        "name": "connector",
        "does": "change",
        "at": "each",
        "topics": "none",
    }
    assert says["testConnector"] == {
        "name": "connector",
        "does": "try",
        "at": "here",
        "topics": "none",
    }


def test_the_document_is_compressed_for_clients_that_take_it(api: httpx.Client) -> None:
    answer = api.get("/openapi.json", headers={"Accept-Encoding": "br, gzip"})
    assert answer.headers["Content-Encoding"] == "gzip"
    assert int(answer.headers["Content-Length"]) < len(answer.content) / 5
    assert (
        api.get("/openapi.json", headers={"Accept-Encoding": "GZIP"}).headers["ETag"]
        == answer.headers["ETag"]
    )
    for taken in ("identity", "gzip;q=0", "br, gzip; q=0.0, identity"):
        plain = api.get("/openapi.json", headers={"Accept-Encoding": taken})
        assert "Content-Encoding" not in plain.headers
        assert plain.json() == answer.json()
        assert plain.headers["Vary"] == "Accept-Encoding"
        assert plain.headers["ETag"] != answer.headers["ETag"]


@pytest.mark.parametrize("path", ["/openapi.json", "/openapi.json/schemas/StreamSpec"])
@pytest.mark.parametrize("taken", ["gzip", "identity"])
def test_the_document_is_sent_again_only_if_it_changed(
    api: httpx.Client, path: str, taken: str
) -> None:
    first = api.get(path, headers={"Accept-Encoding": taken})
    assert first.headers["Cache-Control"] == "no-cache"
    again = api.get(
        path, headers={"Accept-Encoding": taken, "If-None-Match": first.headers["ETag"]}
    )
    assert (again.status_code, again.content) == (304, b"")
    assert again.headers["ETag"] == first.headers["ETag"]
    assert again.headers["Vary"] == "Accept-Encoding"
    changed = api.get(path, headers={"Accept-Encoding": taken, "If-None-Match": '"another"'})
    assert (changed.status_code, changed.json()) == (200, first.json())


def test_a_schema_alone_has_what_it_refers_to(api: httpx.Client) -> None:
    whole = api.get("/openapi.json").json()["components"]["schemas"]
    for name in whole:
        part = api.get(f"/openapi.json/schemas/{name}").json()
        schemas = part["components"]["schemas"]
        assert schemas[name] == whole[name]
        assert all(whole[other] == schemas[other] for other in schemas)
        needed = {name} | {reference.rsplit("/", 1)[1] for reference in _references(part)}
        assert needed == schemas.keys()
    stream = api.get("/openapi.json/schemas/StreamSpec", headers={"Accept-Encoding": "identity"})
    assert len(stream.content) < 20_000


def test_a_schema_that_the_api_does_not_have(api: httpx.Client) -> None:
    answer = api.get("/openapi.json/schemas/NoSuchSpec")
    assert answer.status_code == 404
    assert "expected a schema of this API, got 'NoSuchSpec'" in answer.json()["detail"]


def test_a_rule_in_jq_needs_no_sql(api: httpx.Client) -> None:
    spec = api.get("/openapi.json/schemas/RuleSpec").json()["components"]["schemas"]["RuleSpec"]
    assert spec["required"] == ["name"]


def test_an_item_of_a_list_can_be_sent_back(api: httpx.Client) -> None:
    assert api.put("/streams/mine", json={"name": "mine", "topics": ["t/#"]}).is_success
    [item] = [item for item in api.get("/streams").json()["items"] if item["name"] == "mine"]
    assert item["fixed_by"] is None
    assert api.put(
        "/streams/mine", json={name: item[name] for name in ("name", "topics", "fixed_by")}
    ).is_success


def test_every_body_is_closed() -> None:
    document = create_app(Node().context).openapi()
    open_ones = [
        operation.id
        for operation in OPERATIONS
        for content in operation.description.get("requestBody", {}).get("content", {}).values()
        for body in _bodies(document, content["schema"])
        if body.get("additionalProperties") is not False
    ]
    assert open_ones == []


def test_a_server_without_a_feature_has_no_paths_for_it() -> None:
    context = Node().context
    context.streams = context.lake = context.lake_reads = context.lake_states = None
    context.services = {"rules": context.services["rules"]}
    paths = create_app(context).openapi()["paths"]
    assert "/api/v1/rules:test" in paths
    assert not [path for path in paths if "lake" in path or "streams" in path or "schemas" in path]


def _check_declared(operation: Operation, answer: httpx.Response) -> None:
    declared = operation.description["responses"].get(str(answer.status_code))
    assert declared, f"{answer.status_code} is not declared"
    if "content" in declared:
        assert answer.headers["content-type"] in declared["content"]


def _check_problem(answer: httpx.Response) -> None:
    assert answer.headers["content-type"] == "application/problem+json"
    problem = answer.json()
    assert set(problem) >= {"type", "title", "status", "detail", "instance", "code", "errors"}
    assert problem["status"] == answer.status_code
    assert problem["instance"] == answer.headers["x-request-id"]


def _bodies(document: dict[str, Any], schema: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """What a body may be: the schema that a reference leads to, or each of several."""
    while "$ref" in schema:
        schema = document["components"]["schemas"][schema["$ref"].rsplit("/", 1)[-1]]
    for one in schema.get("anyOf", ()):
        yield from _bodies(document, one)
    if "anyOf" not in schema:
        yield schema


def _references(part: Any) -> Iterator[str]:
    if isinstance(part, dict):
        if isinstance(part.get("$ref"), str):
            yield part["$ref"]
        for item in part.values():
            yield from _references(item)
    elif isinstance(part, list):
        for item in part:
            yield from _references(item)
