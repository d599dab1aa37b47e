"""Errors of the HTTP side, and what stands on every answer."""

from __future__ import annotations

import logging
import re
from urllib.parse import urljoin, urlsplit

import httpx
import pytest

from tests.ui.api_node import Node
from ui.api.json_bodies import MAX_JSON_BYTES
from ui.api.problems import TITLES


def test_paths_and_methods_that_are_not_there_are_problems_too(api: httpx.Client) -> None:
    missing = api.get("/nothing")
    assert (missing.status_code, missing.json()["code"]) == (404, "no_such_path")
    wrong = api.patch("/rules")
    assert (wrong.status_code, wrong.json()["code"]) == (405, "method_not_allowed")
    assert set(wrong.headers["allow"].split(", ")) & {"GET", "POST"}
    assert {missing.headers["content-type"], wrong.headers["content-type"]} == {
        "application/problem+json"
    }


def test_a_defect_tells_its_identifier_and_nothing_else(
    api: httpx.Client, node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> str:
        raise RuntimeError("the secret is 1234")

    node.context.status = fail  # type: ignore[assignment] # a defect is wanted
    with caplog.at_level(logging.ERROR, "sluice.api"):
        answer = api.get("/status", headers={"X-Request-Id": "mine-1"})
    assert answer.status_code == 500
    assert answer.json()["code"] == "internal"
    assert "mine-1" in answer.json()["detail"]
    assert "1234" not in answer.text
    assert [record.message for record in caplog.records] == ["api.failed"]
    assert api.get("/rules").status_code == 200


def test_a_body_larger_than_the_limit_is_refused_and_the_server_goes_on(api: httpx.Client) -> None:
    answer = api.post("/rules", content=b" " * (MAX_JSON_BYTES + 1))
    assert (answer.status_code, answer.json()["code"]) == (413, "too_large")
    assert (
        api.post("/rules", content=b'{"name":"a"}' + b" " * (MAX_JSON_BYTES - 12)).status_code
        == 201
    )


@pytest.mark.parametrize(
    ("given", "kept"), [("abc-1.2:3", True), ("a b", False), ("x" * 129, False), ("", False)]
)
def test_a_request_identifier_is_taken_or_made(api: httpx.Client, given: str, kept: bool) -> None:
    answered = api.get("/status", headers={"X-Request-Id": given}).headers["x-request-id"]
    assert answered
    assert (answered == given) is kept


def test_answers_are_not_stored_and_not_sniffed(api: httpx.Client) -> None:
    headers = api.get("/status").headers
    assert headers["cache-control"] == "no-store"
    assert headers["x-content-type-options"] == "nosniff"
    assert "server" not in headers


def test_every_code_has_a_place_on_the_page_that_type_names(
    http: httpx.Client, api: httpx.Client
) -> None:
    page = http.get("/docs/problems").text
    assert [code for code in TITLES if f'id="{code}"' not in page] == []
    kind = api.get("/rules/none").json()["type"]
    assert kind == "/docs/problems#not_found"


def test_the_documentation_is_served_with_links_that_lead_to_pages_and_headings(
    http: httpx.Client,
) -> None:
    waiting, pages = ["/docs/README.md"], dict[str, str]()
    links = set[tuple[str, str]]()
    while waiting:
        path = waiting.pop()
        answer = http.get(path)
        assert answer.status_code == 200, path
        pages[path] = answer.text if path.endswith(".md") else ""
        for link in re.findall(r'(?:href|src)="([^"]+)"', pages[path]):
            address = urlsplit(urljoin(path, link))
            if not address.scheme and address.path.startswith("/docs/"):
                links.add((address.path, address.fragment))
        waiting += sorted({path for path, _ in links} - set(pages) - set(waiting))
    assert {"/docs/tutorial.md", "/docs/reference/cli.md", "/docs/images/start.png"} <= set(pages)
    assert not [(path, name) for path, name in links if name and f'id="{name}"' not in pages[path]]


@pytest.mark.parametrize(
    "path",
    ["none.md", "generate.py", "..%2fREADME.md", "..%2fpyproject.toml", "reference", "%00.md"],
)
def test_only_pages_of_the_documentation_are_served(http: httpx.Client, path: str) -> None:
    assert http.get(f"/docs/{path}").status_code == 404


def test_probes_and_metrics_need_no_token(http: httpx.Client, node: Node) -> None:
    assert http.get("/livez").text == "ok\n"
    assert http.get("/readyz").text == "ok\n"
    assert "received 5" in http.get("/metrics").text
    node.context.not_ready = lambda: "the store is opening"
    waiting = http.get("/readyz")
    assert (waiting.status_code, waiting.text) == (503, "the store is opening\n")
