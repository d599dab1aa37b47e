"""Writes that are safe to script, on a whole broker: versions of objects of every kind."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from broker.core.kinds import Kind, kinds
from tests.support.node import Node, running
from ui.api import examples


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """A broker with the example of every kind."""
    with running(tmp_path_factory.mktemp("writes") / "data") as node, node.client() as client:
        client.post("/streams", json={"name": "refused"}).raise_for_status()
        for kind in sorted(kinds(), key=lambda kind: kind.path not in ("streams", "schemas", "connectors")):
            made = _example(kind)
            path = _one(kind) if kind.path == "listeners" else f"/{kind.path}"
            created = client.post(path, json=made)
            assert created.status_code == 201, created.text
            assert created.headers["etag"], kind.name
        yield node


def _example(kind: Kind) -> dict[str, Any]:
    found: dict[str, Any] = examples.BODIES[f"create{kind.id}"]
    return found | ({"bind": "127.0.0.1:0"} if kind.path == "listeners" else {})


def _one(kind: Kind) -> str:
    return f"/{kind.path}/{quote(examples.name_of(_example(kind)), safe='')}"


def _etags(client: httpx.Client) -> dict[str, str]:
    """By path, of the example of every kind; as it is shown, and as the row of the list has it."""
    found = {}
    for kind in kinds():
        shown, rows = client.get(_one(kind)), client.get(f"/{kind.path}").json()["items"]
        tags = [row["etag"] for row in rows if row[kind.key] == examples.name_of(_example(kind))]
        assert [f'"{tag}"' for tag in tags] == [shown.headers["etag"]], kind.name
        found[kind.path] = shown.headers["etag"]
    return found


def test_every_kind_has_versions_that_rows_have_too_and_that_outlive_a_restart(node: Node) -> None:
    with node.client() as client:
        before = _etags(client)
        assert client.get("/rules/warm", headers={"If-None-Match": before["rules"]}).status_code == 304
    node.stop()
    node.start()
    with node.client() as client:
        assert _etags(client) == before
        late = client.delete("/rules/warm", headers={"If-Match": '"other"'}).json()
        assert late["detail"].endswith("last changed before the broker started")


@pytest.mark.parametrize("kind", kinds(), ids=lambda kind: kind.path)
def test_a_write_to_another_version_is_refused_and_says_which_it_is_now(node: Node, kind: Kind) -> None:
    verbs, other = kind.abilities.verbs, {"If-Match": '"other"'}
    with node.client() as client:
        etag = client.get(_one(kind)).headers["etag"]
        writes = [("DELETE", "", None)] * ("delete" in verbs) + [("PUT", "", _example(kind))] * ("put" in verbs)
        writes += [("PATCH", "", {"description": "x"})] * kind.abilities.can_patch
        writes += [("POST", f":{switch.verb}", None) for switch in kind.abilities.switches]
        for method, verb, body in writes:
            refused = client.request(method, f"{_one(kind)}{verb}", json=body, headers=other)
            assert refused.status_code == 412, (method, verb, refused.text)
            assert f'"{refused.json()["etag"]}"' == refused.headers["etag"] == etag
        assert client.get(_one(kind)).headers["etag"] == etag


def test_a_page_saves_from_the_row_of_a_list_and_the_next_one_is_late(node: Node) -> None:
    with node.client() as client:
        [row] = [row for row in client.get("/validations").json()["items"] if row["name"] == "meters"]
        mine = {"If-Match": f'"{row["etag"]}"'}
        saved = client.put("/validations/meters", json={**row, "description": "first"}, headers=mine)
        assert (saved.status_code, saved.headers["etag"] != mine["If-Match"]) == (200, True)
        late = client.put("/validations/meters", json={**row, "description": "second"}, headers=mine)
        assert late.status_code == 412
        assert late.json()["changed_at"] in late.json()["detail"]
        assert client.get("/validations/meters").json()["description"] == "first"


def test_the_compatibility_mode_has_a_version(node: Node) -> None:
    with node.client() as client:
        shown = client.get("/schemas:compatibility")
        late = {"If-Match": '"none"' if shown.json()["compatibility"] != "none" else '"full"'}
        assert client.put("/schemas:compatibility", json=shown.json(), headers=late).status_code == 412
        mine = {"If-Match": shown.headers["etag"]}
        assert client.put("/schemas:compatibility", json=shown.json(), headers=mine).status_code == 200
