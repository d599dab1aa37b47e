"""Writes that are safe to script, on a whole broker: versions of objects of every kind, dry runs,
and keys of requests."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from broker.config.assignments import HEADER
from broker.core.kinds import Kind, kinds
from tests.end_to_end.clients import MosquittoSub
from tests.support.node import Node, running, sluice
from ui.api import examples


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """A broker with the example of every kind."""
    with running(tmp_path_factory.mktemp("writes") / "data") as node, node.client() as client:
        client.post("/streams", json={"name": "refused"}).raise_for_status()
        for kind in sorted(
            kinds(), key=lambda kind: kind.path not in ("streams", "schemas", "connectors")
        ):
            made = _example(kind)
            path = _one(kind) if kind.path in ("listeners", "config") else f"/{kind.path}"
            created = client.request("PUT" if kind.path == "config" else "POST", path, json=made)
            assert created.status_code == (200 if kind.path == "config" else 201), created.text
            assert created.headers["etag"], kind.name
        yield node


def _example(kind: Kind) -> dict[str, Any]:
    found: dict[str, Any] = (
        examples.BODIES.get(f"create{kind.id}") or examples.BODIES[f"put{kind.id}"]
    )
    return found | ({"bind": "127.0.0.1:0"} if kind.path == "listeners" else {})


def _one(kind: Kind) -> str:
    return f"/{kind.path}/{quote(examples.name_of(_example(kind)), safe='')}"


def _etags(client: httpx.Client) -> dict[str, str]:
    """By path, of the example of every kind; as it is shown, and as the row of the list has it."""
    found = {}
    for kind in kinds():
        shown, rows = client.get(_one(kind)), client.get(f"/{kind.path}?limit=1000").json()["items"]
        tags = [row["etag"] for row in rows if row[kind.key] == examples.name_of(_example(kind))]
        assert [f'"{tag}"' for tag in tags] == [shown.headers["etag"]], kind.name
        found[kind.path] = shown.headers["etag"]
    return found


def test_every_kind_has_versions_that_rows_have_too_and_that_outlive_a_restart(node: Node) -> None:
    with node.client() as client:
        before = _etags(client)
        assert (
            client.get("/rules/warm", headers={"If-None-Match": before["rules"]}).status_code == 304
        )
    node.stop()
    node.start()
    with node.client() as client:
        assert _etags(client) == before
        late = client.delete("/rules/warm", headers={"If-Match": '"other"'}).json()
        assert late["detail"].endswith("last changed before the broker started")


@pytest.mark.parametrize("kind", kinds(), ids=lambda kind: kind.path)
def test_a_write_to_another_version_is_refused_and_says_which_it_is_now(
    node: Node, kind: Kind
) -> None:
    verbs, other = kind.abilities.verbs, {"If-Match": '"other"'}
    with node.client() as client:
        etag = client.get(_one(kind)).headers["etag"]
        writes = [("DELETE", "", None)] * ("delete" in verbs) + [("PUT", "", _example(kind))] * (
            "put" in verbs
        )
        writes += [("PATCH", "", {"description": "x"})] * kind.abilities.can_patch
        writes += [("POST", f":{switch.verb}", None) for switch in kind.abilities.switches]
        for method, verb, body in writes:
            refused = client.request(method, f"{_one(kind)}{verb}", json=body, headers=other)
            assert refused.status_code == 412, (method, verb, refused.text)
            assert f'"{refused.json()["etag"]}"' == refused.headers["etag"] == etag
        assert client.get(_one(kind)).headers["etag"] == etag


def test_a_page_saves_from_the_row_of_a_list_and_the_next_one_is_late(node: Node) -> None:
    with node.client() as client:
        [row] = [
            row for row in client.get("/validations").json()["items"] if row["name"] == "meters"
        ]
        mine = {"If-Match": f'"{row["etag"]}"'}
        saved = client.put(
            "/validations/meters", json={**row, "description": "first"}, headers=mine
        )
        assert (saved.status_code, saved.headers["etag"] != mine["If-Match"]) == (200, True)
        late = client.put(
            "/validations/meters", json={**row, "description": "second"}, headers=mine
        )
        assert late.status_code == 412
        assert late.json()["changed_at"] in late.json()["detail"]
        assert client.get("/validations/meters").json()["description"] == "first"


def test_the_compatibility_mode_has_a_version(node: Node) -> None:
    with node.client() as client:
        shown = client.get("/schemas:compatibility")
        late = {"If-Match": '"none"' if shown.json()["compatibility"] != "none" else '"full"'}
        assert (
            client.put("/schemas:compatibility", json=shown.json(), headers=late).status_code == 412
        )
        mine = {"If-Match": shown.headers["etag"]}
        assert (
            client.put("/schemas:compatibility", json=shown.json(), headers=mine).status_code == 200
        )


def _writes(kind: Kind) -> list[tuple[str, str, Any, str]]:
    """Every write of an object of a kind: method, path, body, and what it changes."""
    one, example, verbs = _one(kind), _example(kind), kind.abilities.verbs
    others: dict[str, dict[str, Any]] = {
        "listeners": {"max_connections": 7},
        "access/rules": {"permission": "deny"},
        "config": {"value": "4MB"},
        "schema-registries": {"url": "https://other.example.com"},
    }
    switched = ("authentication", "authorization/sources", "rewrites", "auto-subscriptions")
    changed = (
        {"enable": False}
        if kind.path in switched
        else others.get(kind.path, {"description": "other"})
    )
    news: dict[str, dict[str, Any]] = {
        "listeners": {"id": "tcp:other"},
        "bans": {"who": "other"},
        "groups": {"group": "$share/o/x"},
        "lake/tables": {"name": "other", "path": "other"},
    }
    writes: list[tuple[str, str, Any, str]] = []
    if not kind.path.startswith("auth") and kind.path != "config":
        creation = "/listeners/tcp:other" if kind.path == "listeners" else f"/{kind.path}"
        writes.append(
            ("POST", creation, example | news.get(kind.path, {"name": "other"}), "create")
        )
    if "put" in verbs:
        writes.append(("PUT", one, example | changed, "replace"))
    if kind.abilities.can_patch:
        writes.append(("PATCH", one, changed, "replace"))
    if "delete" in verbs and kind.path not in ("connectors", "streams"):
        writes.append(("DELETE", one, None, "delete"))
    verbs_of = [
        switch.verb for switch in kind.abilities.switches if switch.verb in ("enable", "disable")
    ]
    writes += [
        ("POST", f"{one}:{verb}", None, "none" if verb == "enable" else "replace")
        for verb in verbs_of
    ]
    return writes


@pytest.mark.parametrize("kind", kinds(), ids=lambda kind: kind.path)
def test_a_dry_run_says_what_a_write_would_change_and_changes_nothing(
    node: Node, kind: Kind
) -> None:
    with node.client() as client:
        before, files = _state(client), (node.data_dir / "api.hocon").read_bytes()
        forced = {"force": "true"} if kind.path == "schemas" else {}
        for method, path, body, change in _writes(kind):
            dry = {"dry_run": "true", **(forced if method == "DELETE" else {})}
            effect = client.request(method, path, json=body, params=dry)
            assert effect.status_code == 200, (method, path, effect.text)
            found = effect.json()
            assert (found["dry_run"], found["change"]) == (True, change), (method, path, found)
            assert (found["before"] is None, found["after"] is None) == (
                change == "create",
                change == "delete",
            )
            assert "a long password" not in effect.text
            assert "secret of 32" not in effect.text
        assert _state(client) == before
        assert (node.data_dir / "api.hocon").read_bytes() == files


def _state(client: httpx.Client) -> dict[str, Any]:
    return {
        kind.path: [row["etag"] for row in client.get(f"/{kind.path}?limit=1000").json()["items"]]
        for kind in kinds()
    }


def test_a_dry_run_is_refused_as_the_write_would_be(node: Node) -> None:
    with node.client() as client:
        dry = {"dry_run": "true"}
        wrong = client.put("/rules/warm", json={"sql": "SELECT uper(topic) FROM 'm/#'"}, params=dry)
        assert (wrong.status_code, "did you mean 'upper'?" in wrong.text) == (422, True)
        used = client.delete("/connectors/plant", params=dry)
        assert (used.status_code, used.json()["code"]) == (409, "in_use")
        assert (
            client.post(
                "/rules", json={"name": "warm", "sql": "SELECT 1 FROM 'm'"}, params=dry
            ).status_code
            == 409
        )
        assert (
            client.delete("/rules/warm", params=dry, headers={"If-Match": '"other"'}).status_code
            == 412
        )


def test_a_dry_run_names_what_uses_the_object_directly_and_through_others(node: Node) -> None:
    with node.client() as client:
        sql = "SELECT schema_decode('meter', payload) AS m FROM 'meters/#'"
        client.post("/rules", json={"name": "decoding", "sql": sql}).raise_for_status()
        client.post(
            "/rules", json={"name": "next", "sql": "SELECT m FROM '$rules/decoding'"}
        ).raise_for_status()
        effect = client.delete("/schemas/meter", params={"dry_run": "true", "force": "true"}).json()
        found = {(one["kind"], one["name"]): one["how"] for one in effect["affected"]}
        assert found["rule", "decoding"] == found["validation", "meters"] == "uses it"
        assert found["rule", "next"] == "uses rule 'decoding'"
        body = examples.BODIES["putSchema"]
        replaced = client.put("/schemas/meter", json=body, params={"dry_run": "true"}).json()
        assert replaced["change"] == "replace"
        assert ("validation", "meters") in {
            (one["kind"], one["name"]) for one in replaced["affected"]
        }
        connector = client.patch(
            "/connectors/plant", json={"description": "x"}, params={"dry_run": "true"}
        ).json()
        assert {one["name"] for one in connector["affected"]} >= {"mqtt:alarms", "mqtt:orders"}


def test_a_dry_run_of_an_order_says_what_moves(node: Node) -> None:
    with node.client() as client:
        client.put("/rules/last", json={"sql": "SELECT 1 AS a FROM 'x'"}).raise_for_status()
        names = [row["name"] for row in client.get("/rules").json()["items"]]
        turned = {"order": [*names[1:], names[0]]}
        effect = client.post("/rules:reorder", json=turned, params={"dry_run": "true"}).json()
        assert (effect["change"], effect["before"]["order"], effect["after"]) == (
            "replace",
            names,
            turned,
        )
        assert effect["affected"][-1]["how"] == f"moves from place 1 to {len(names)}"
        assert [row["name"] for row in client.get("/rules").json()["items"]] == names


def test_a_dry_run_of_a_new_password_and_of_an_import_names_users_and_clients(
    tmp_path: Path,
) -> None:
    hashed = {"password_hash": "ab" * 32, "salt": "x"}
    body = {"users": [{"name": "pump", **hashed}, {"name": "fan", **hashed}]}
    dry, gone = {"dry_run": "true"}, "is disconnected: its password no longer works"
    config = "authentication = [ { mechanism = builtin } ]"
    with running(tmp_path / "data", config=config) as node, node.client() as client:
        client.post(
            "/users", json={"name": "pump", "password": "a long password"}
        ).raise_for_status()
        before = client.get("/users/pump").json()
        with MosquittoSub(node, "-i", "pump-1", "-u", "pump", "-P", "a long password", "-t", "x"):
            effect = client.post("/users/pump:rotate", params=dry).json()
            assert (effect["change"], effect["before"]["name"], "password" in effect["after"]) == (
                "replace",
                "pump",
                False,
            )
            assert effect["affected"] == [{"kind": "client", "name": "pump-1", "how": gone}]
            effect = client.post("/users:import", params=dry, json=body).json()
            assert (effect["change"], effect["after"]) == ("replace", {"created": 1, "replaced": 1})
            assert [(one["kind"], one["name"], one["how"]) for one in effect["affected"]] == [
                ("user", "pump", "is replaced"), ("client", "pump-1", gone),
            ]  # fmt: skip
            assert client.get("/clients/pump-1").json()["connected"]
        assert (client.get("/users/pump").json(), client.get("/users/fan").status_code) == (
            before,
            404,
        )
        wrong = client.post("/users:import", params=dry, json={"users": [{"name": "fan"}]})
        assert (wrong.status_code, wrong.json()["errors"][0]["pointer"]) == (422, "/users/0")
        (tmp_path / "users.json").write_text(json.dumps(body))
        shown = _sluice(node, "users", "import", "-f", str(tmp_path / "users.json"), "--dry-run")
        assert shown.startswith(
            "dry run: users would be changed\n  created: – → 1\n  replaced: – → 1\n"
        ), shown
        assert (
            _sluice(node, "users", "rotate", "pump", "--dry-run")
            == "dry run: user pump would be changed\n"
        )


def test_a_dry_run_of_deleting_a_version_names_what_uses_it(node: Node) -> None:
    dry = {"dry_run": "true"}
    with node.client() as client:
        source = {"type": "object", "properties": {"temp": {"type": "number"}}}
        client.post(
            "/schemas", json={"name": "hall", "type": "json", "source": source}
        ).raise_for_status()
        client.put(
            "/schemas/hall", json={"type": "json", "source": {**source, "title": "Hall"}}
        ).raise_for_status()
        spec = {**examples.BODIES["createValidation"], "name": "hall", "topics": ["hall"]}
        spec["checks"] = [{"type": "json", "schema": "hall"}]
        client.post("/validations", json=spec).raise_for_status()
        unused = client.delete("/schemas/hall/versions/1", params=dry).json()
        assert (unused["change"], unused["before"], unused["after"], unused["affected"]) == (
            "delete", {"name": "hall", "version": 1}, None, [],
        )  # fmt: skip
        assert client.delete("/schemas/hall/versions/2", params=dry).json()["code"] == "in_use"
        used = client.delete("/schemas/hall/versions/2", params={**dry, "force": "true"}).json()
        assert [(one["kind"], one["name"]) for one in used["affected"]] == [("validation", "hall")]
        assert client.delete("/schemas/hall/versions/9", params=dry).status_code == 404
        assert client.get("/schemas/hall/versions/1").status_code == 200
        shown = _sluice(node, "schemas", "rm", "hall", "--version", "1", "--dry-run")
        assert shown == "dry run: version 1 of schema hall would be removed\n"
        removed = _sluice(node, "schemas", "rm", "hall", "--version", "1", "--yes")
        assert removed == "version 1 of schema hall removed\n"
        assert client.get("/schemas/hall/versions/1").status_code == 404


def test_a_request_with_the_same_key_is_answered_again_and_not_done_again_also_after_a_kill(
    node: Node,
) -> None:
    key = {"Idempotency-Key": "deploy-1"}
    body = {"name": "once", "topics": ["once/#"]}
    publish = {"topic": "once/1", "payload": "x", "qos": 1}
    with node.client() as client:
        first = client.post("/streams", json=body, headers=key)
        again = client.post("/streams", json=body, headers=key)
        assert (
            (again.status_code, again.content)
            == (first.status_code, first.content)
            == (201, first.content)
        )
        assert ("idempotent-replayed" in first.headers, again.headers["idempotent-replayed"]) == (
            False,
            "true",
        )
        assert again.headers["location"] == first.headers["location"] == "/api/v1/streams/once"
        other = client.post("/streams", json=body | {"name": "twice"}, headers=key)
        assert (other.status_code, other.json()["code"]) == (422, "key_reused")
        for _ in range(3):
            client.post(
                "/messages:publish", json=publish, headers={"Idempotency-Key": "m1"}
            ).raise_for_status()
        assert client.get("/streams/once").json()["records"] == 1
    node.kill()
    node.start()
    with node.client() as client:
        late = client.post("/streams", json=body, headers=key)
        assert (late.status_code, late.headers["idempotent-replayed"], late.content) == (
            201,
            "true",
            first.content,
        )
        client.post(
            "/messages:publish", json=publish, headers={"Idempotency-Key": "m1"}
        ).raise_for_status()
        assert client.get("/streams/once").json()["records"] == 1


def test_a_refused_request_may_come_again_with_its_key(node: Node) -> None:
    with node.client() as client:
        key = {"Idempotency-Key": "retry"}
        right = {"name": "retry", "sql": "SELECT 1 AS a FROM 'x'"}
        assert (
            client.post("/rules", json={"name": "retry", "sql": "SELEC"}, headers=key).status_code
            == 422
        )
        assert client.post("/rules", json=right, headers=key).status_code == 201
        empty = client.post("/rules", json=right, headers={"Idempotency-Key": ""})
        assert empty.json()["detail"] == "Idempotency-Key: expected 1 to 255 characters, got 0."


def test_commands_print_the_effect_of_a_dry_run(node: Node, tmp_path: Path) -> None:
    file = tmp_path / "rule.json"
    file.write_text(
        json.dumps({"name": "fresh", "sql": "SELECT payload.nothing AS n FROM 'meters/#'"})
    )
    assert _sluice(node, "rules", "apply", "-f", str(file), "--dry-run").startswith(
        "dry run: rule fresh would be created"
    )
    disabled = _sluice(node, "validations", "disable", "meters", "--dry-run")
    assert disabled.startswith("dry run: validation meters would be changed\n  enable: yes → no\n")
    assert "Messages that fail would pass." in disabled
    removed = json.loads(_sluice(node, "streams", "rm", "refused", "--dry-run", "--json", expect=6))
    assert removed["code"] == "in_use"
    [effect] = json.loads(_sluice(node, "rewrites", "rm", "old", "--dry-run", "--json"))["items"]
    assert effect["change"] == "delete"
    with node.client() as client:
        assert client.get("/rules/fresh").status_code == 404
        assert client.get("/rewrites/old").status_code == 200


def _sluice(node: Node, *arguments: str, expect: int = 0) -> str:
    done = sluice(node, *arguments)
    assert done.returncode == expect, done.stdout + done.stderr
    return done.stdout if expect == 0 else done.stdout + done.stderr


def test_a_change_that_was_cut_off_is_not_made_and_is_logged(tmp_path: Path) -> None:
    directory = tmp_path / "data"
    directory.mkdir()
    whole = 'streams.whole = {"name": "whole"}\n'
    (directory / "api.hocon").write_text(f'{HEADER}{whole}streams.cut = {{"name": "c')
    with running(directory) as node:
        assert [stream["name"] for stream in node.call("GET", "/streams")["items"]] == ["whole"]
        [line] = [line for line in node.log.read_text().splitlines() if "config.line_cut" in line]
        assert str(directory / "api.hocon") in line
