"""The audit log of a whole broker: what is in it, what is not, kills, and taking back what an entry changed."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.local_node import Node, running, sluice
from tests.support.node import TOKEN, Reachable, eventually
from tests.support.node import Node as NodeProcess
from tests.support.node import running as running_process
from tests.support.plain_http import NO_TLS
from tests.support.small_disk import small_disk

SQL = 'SELECT payload.t AS t FROM "halls/#" WHERE payload.t > 30'
RULE = {"name": "hot", "sql": SQL, "actions": []}
SECRET = "planted-5c1e7d"


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with running(tmp_path_factory.mktemp("audited") / "data") as started:
        yield started


@pytest.fixture(autouse=True)
def empty(node: Node) -> None:
    for path in ("rules", "actions", "connectors", "streams", "schemas", "tokens"):
        for item in node.call("GET", f"/{path}?limit=1000")["items"]:
            force = "" if path != "schemas" else "&permanent=true"
            node.call(
                "DELETE", f"/{path}/{item['name']}?cascade=true{force}", expect=(204, 404, 422, 400)
            )


def entries(node: Reachable, **filters: str) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = node.call("GET", f"/audit-log?{httpx.QueryParams(filters)}")[
        "items"
    ]
    return items


def latest(node: Reachable) -> dict[str, Any]:
    """The newest entry, whole."""
    entry: dict[str, Any] = node.call("GET", f"/audit-log/{entries(node, limit='1')[0]['id']}")
    return entry


def test_a_change_is_recorded_with_who_when_from_where_and_its_difference(node: Node) -> None:
    node.call("POST", "/rules", RULE)
    node.call(
        "PUT", "/rules/hot", {**RULE, "sql": SQL.replace("30", "31"), "description": "warmer"}
    )
    entry = latest(node)
    assert (entry["actor"], entry["origin"], entry["address"]) == (
        "administrator",
        "api",
        "127.0.0.1",
    )
    assert (entry["operation"], entry["kind"], entry["name"]) == ("putRule", "rule", "hot")
    assert (entry["outcome"], entry["status"], entry["request"]) == (
        "done",
        200,
        "PUT /api/v1/rules/hot",
    )
    assert entry["summary"] == "changed sql, description"
    [change] = entry["changes"]
    by_pointer = {
        item["pointer"]: (item["before"], item["after"]) for item in change["differences"]
    }
    assert by_pointer["/sql"] == (SQL, SQL.replace("30", "31"))
    assert by_pointer["/description"][1] == "warmer"
    [_, created] = entries(node, name="hot", limit="2")
    assert (created["operation"], created["summary"], created["status"]) == (
        "createRule",
        "created",
        201,
    )


def test_reads_tries_and_dry_runs_are_not_recorded(node: Node) -> None:
    node.call("POST", "/rules", RULE)
    before = entries(node, limit="1")
    node.call("GET", "/rules")
    node.call("POST", "/rules:check", {"sql": SQL})
    node.call("DELETE", "/rules/hot?dry_run=true")
    node.call("POST", "/retained:clear", {"filter": "#", "dry_run": True})
    node.call("POST", "/messages:publish", {"topic": "halls/1", "payload": "1"})
    node.call("POST", f"/audit-log/{before[0]['id']}:revert?dry_run=true")
    assert entries(node, limit="1") == before


def test_a_request_that_names_a_topic_is_recorded_with_it(node: Node) -> None:
    message = {"topic": "halls/1/state", "payload": "on", "retain": True}
    node.call("POST", "/messages:publish", message)
    node.call("DELETE", "/retained:message?topic=halls/1/state", expect=204)
    entry = latest(node)
    assert (entry["operation"], entry["kind"], entry["name"], entry["outcome"]) == (
        "deleteRetained",
        "retained message",
        "halls/1/state",
        "done",
    )
    node.call("POST", "/retained:clear", {"filter": "halls/#"})
    assert latest(node)["name"] == "halls/#"


def test_refusals_are_recorded_with_their_reason(node: Node) -> None:
    node.call("POST", "/rules", {**RULE, "sql": "SELEC"}, expect=422)
    entry = latest(node)
    assert (entry["operation"], entry["outcome"], entry["status"], entry["changes"]) == (
        "createRule",
        "refused",
        422,
        [],
    )
    assert "SELEC" in entry["summary"]
    node.call("DELETE", "/rules/none", expect=404)
    assert latest(node)["name"] == "none"
    token = node.call("POST", "/tokens", {"name": "reader", "streams": ["s"]})["token"]
    with httpx.Client(base_url=f"{node.url}/api/v1", trust_env=False, verify=NO_TLS) as reader:
        for _ in range(5):
            assert (
                reader.get("/status", headers={"Authorization": f"Bearer {token}"}).status_code
                == 403
            )
    entry = latest(node)
    assert (entry["actor"], entry["operation"], entry["outcome"]) == (
        "the token 'reader'",
        "getStatus",
        "refused",
    )
    assert token not in json.dumps(entries(node, limit="20"))
    assert entries(node, limit="2")[1]["operation"] == "createToken", (
        "one entry a minute of what a token may not do"
    )


def test_wrong_tokens_do_not_fill_the_log(node: Node) -> None:
    before = entries(node, limit="1")
    with httpx.Client(base_url=f"{node.url}/api/v1", trust_env=False, verify=NO_TLS) as stranger:
        assert (
            stranger.delete("/rules/hot", headers={"Authorization": "Bearer wrong"}).status_code
            == 401
        )
        assert stranger.delete("/rules/hot").status_code == 401
    assert entries(node, limit="1") == before


def test_secrets_are_stars_and_their_change_is_known_but_cannot_be_taken_back(node: Node) -> None:
    connector = {
        "name": "out",
        "type": "http",
        "url": "http://127.0.0.1:9",
        "headers": {"x-key": SECRET},
    }
    node.call("POST", "/connectors", connector)
    node.call("PUT", "/connectors/out", {**connector, "headers": {"x-key": f"{SECRET}2"}})
    changed = latest(node)
    assert changed["summary"] == "changed headers"
    refused = node.call("POST", f"/audit-log/{changed['id']}:revert", expect=422)
    assert "send it again" in refused["errors"][0]["message"]
    node.call("DELETE", "/connectors/out")
    shown = [node.call("GET", f"/audit-log/{row['id']}") for row in entries(node, name="out")]
    assert len(shown) == 3
    assert SECRET not in json.dumps(shown)


def test_the_dashboard_and_commands_are_told_apart(node: Node) -> None:
    with httpx.Client(base_url=node.url, trust_env=False, verify=NO_TLS) as page:
        origin = {"Origin": node.url}
        assert (
            page.post("/api/v1/session", json={"token": TOKEN}, headers=origin).status_code == 204
        )
        assert page.post("/api/v1/rules", json=RULE, headers=origin).status_code == 201
    assert [(row["operation"], row["origin"]) for row in entries(node, limit="2")] == [
        ("createRule", "dashboard"),
        ("signIn", "dashboard"),
    ]
    assert sluice(node, "rules", "disable", "hot").returncode == 0
    entry = latest(node)
    assert (entry["operation"], entry["origin"], entry["summary"]) == (
        "disableRule",
        "cli",
        "changed enable",
    )


def test_a_sign_in_that_is_refused_is_an_entry_a_minute_without_what_was_typed(node: Node) -> None:
    node.call(
        "POST", "/accounts", {"name": "ann", "role": "viewer", "password": "a-right-password"}
    )
    typed = ({"name": "ann", "password": "a-wrong-password"}, {"token": "a-wrong-token"})
    with httpx.Client(base_url=node.url, trust_env=False, verify=NO_TLS) as page:
        for body in typed * 2:
            answer = page.post("/api/v1/session", json=body, headers={"Origin": node.url})
            assert answer.status_code == 401
    [entry] = entries(node, operation="signIn", outcome="refused")
    assert (entry["actor"], entry["name"], entry["status"]) == ("not signed in", "ann", 401)
    assert (entry["address"], entry["origin"]) == ("127.0.0.1", "dashboard")
    assert entry["summary"] == "the name or the password is wrong"
    node.call("DELETE", "/accounts/ann")


def test_entries_are_found_by_every_filter_and_in_pages(node: Node) -> None:
    node.call("POST", "/rules", RULE)
    node.call("POST", "/rules", {**RULE, "name": "cold"})
    assert {row["name"] for row in entries(node, kind="rule", name="co*")} == {"cold"}
    assert entries(node, actor="nobody") == []
    assert entries(node, outcome="failed") == []
    assert entries(node, until="2020-01-01T00:00:00Z") == []
    assert entries(node, since="2020-01-01T00:00:00Z", limit="2")[0]["name"] == "cold"
    assert entries(node, search="createrule COLD", limit="1")[0]["name"] == "cold"
    assert entries(node, search="createrule nothing-such") == []
    first = node.call("GET", "/audit-log?limit=1&kind=rule")
    second = node.call("GET", f"/audit-log?limit=1&kind=rule&cursor={first['next']}")
    assert [first["items"][0]["name"], second["items"][0]["name"]] == ["cold", "hot"]
    assert node.call("GET", "/audit-log?cursor=WyJ6eiJd", expect=(422, 400))["detail"]
    assert node.call("GET", "/audit-log/zz", expect=404)["code"] == "not_found"
    assert node.call("GET", f"/audit-log/{'0' * 24}", expect=404)


def pointers(entry: dict[str, Any]) -> dict[tuple[str, str], set[str]]:
    """The members that changed, by kind and name."""
    return {
        (change["kind"], change["name"]): {item["pointer"] for item in change["differences"]}
        for change in entry["changes"]
    }


READING = json.dumps({"type": "object", "required": ["t"]})
OTHER = json.dumps({"type": "object", "required": ["u"]})


def test_every_operation_that_saves_something_is_recorded_with_its_values(node: Node) -> None:
    node.call(
        "POST",
        "/schemas",
        {"name": "reading", "type": "json", "source": READING, "compatibility": "none"},
    )
    node.call("PUT", "/schemas/reading", {"name": "reading", "type": "json", "source": OTHER})
    node.call("DELETE", "/schemas/reading/versions/1")
    assert pointers(latest(node)) == {("schema", "reading"): {"/versions/1/deleted"}}
    node.call("DELETE", "/schemas/reading/versions/1?permanent=true")
    entry = latest(node)
    assert pointers(entry) == {("schema", "reading"): {"/versions/1"}}
    assert "required" in json.dumps(entry["changes"]), (
        "the source of a version that is gone is in the log"
    )
    node.call("PUT", "/schemas:compatibility", {"compatibility": "full"})
    assert "/compatibility" in pointers(latest(node))["compatibility mode", "*"]
    node.call("PUT", "/schemas/reading/compatibility", {"compatibility": "forward"})
    [change] = latest(node)["changes"]
    assert (change["name"], change["differences"][-1]["after"]) == ("reading", "forward")
    node.call("PUT", "/schemas:compatibility", {"compatibility": "backward"})

    node.call("PUT", "/users/anna", {"password": SECRET})
    node.call("POST", "/users/anna:rotate")
    entry = latest(node)
    assert pointers(entry) == {("user", "anna"): {"/credentials"}}
    hashed = {"user_id": "ben", "password_hash": "ab" * 32, "salt": "cd", "is_superuser": False}
    body = {"algorithm": "sha256", "salt_position": "suffix", "users": [hashed]}
    node.call("POST", "/users:import", body)
    entry = latest(node)
    assert [(change["kind"], change["name"], change["change"]) for change in entry["changes"]] == [
        ("user", "ben", "created")
    ]
    assert "ab" * 32 not in json.dumps(entry)
    node.call("POST", f"/audit-log/{entry['id']}:revert")
    node.call("GET", "/users/ben", expect=404)
    node.call("DELETE", "/users/anna")

    node.call("POST", "/rules", RULE)
    node.call("POST", "/rules/hot:create-table", {"format": "delta"})
    entry = latest(node)
    kinds = {change["kind"] for change in entry["changes"]}
    assert kinds == {"stream", "lake table"}
    node.call("POST", f"/audit-log/{entry['id']}:revert")
    assert node.call("GET", "/lake/tables")["items"] == []

    node.call("POST", "/rules", {**RULE, "name": "last"})
    node.call("POST", "/rules:reorder", {"order": ["last", "hot"]})
    assert pointers(latest(node)) == {("rule", "*"): {"/order"}}
    node.call("POST", f"/audit-log/{latest(node)['id']}:revert")
    assert [row["name"] for row in node.call("GET", "/rules")["items"]] == ["hot", "last"]


def test_the_schema_registry_is_recorded_and_reverted(node: Node) -> None:
    with httpx.Client(
        base_url=f"{node.url}/registry", trust_env=False, verify=NO_TLS, auth=("", TOKEN)
    ) as registry:
        registered = registry.post(
            "/subjects/meters/versions", json={"schemaType": "JSON", "schema": READING}
        )
        assert registered.status_code == 200, registered.text
        entry = latest(node)
        assert (entry["origin"], entry["kind"], entry["name"]) == ("registry", "schema", "meters")
        assert any("required" in str(item["after"]) for item in entry["changes"][0]["differences"])
        assert registry.put("/config/meters", json={"compatibility": "NONE"}).status_code == 200
        set_mode = latest(node)
        assert pointers(set_mode) == {("schema", "meters"): {"/compatibility"}}
        node.call("POST", f"/audit-log/{set_mode['id']}:revert")
        assert node.call("GET", "/schemas/meters/compatibility")["compatibility"] == "backward"
        assert registry.delete("/subjects/meters").status_code == 200
    node.call("POST", f"/audit-log/{latest(node)['id']}:revert")
    assert node.call("GET", "/schemas/meters")["version"] == 1


@pytest.mark.parametrize("permanent", ["false", "true"])
def test_a_deleted_version_of_a_schema_comes_back(node: Node, permanent: str) -> None:
    node.call(
        "POST",
        "/schemas",
        {"name": "reading", "type": "json", "source": READING, "compatibility": "none"},
    )
    node.call("PUT", "/schemas/reading", {"name": "reading", "type": "json", "source": OTHER})
    before = node.call("GET", "/schemas/reading")
    node.call("DELETE", f"/schemas/reading/versions/1?permanent={permanent}")
    node.call("POST", f"/audit-log/{latest(node)['id']}:revert")
    assert node.call("GET", "/schemas/reading") == before
    node.call("DELETE", f"/schemas/reading/versions/2?permanent={permanent}")
    node.call("POST", f"/audit-log/{latest(node)['id']}:revert")
    assert node.call("GET", "/schemas/reading") == before


def test_an_object_has_a_history_with_its_versions_and_is_restored_from_it(node: Node) -> None:
    texts = ["", "first", "second", "third"]
    for text in texts:
        node.call("PUT", "/rules/hot", {**RULE, "description": text})
    node.call("DELETE", "/rules/hot")
    node.call("PUT", "/rules/hot", {**RULE, "description": "again"})
    versions = node.call("GET", "/audit-log:history?kind=rule&name=hot&limit=6")["items"]
    assert [item["change"] for item in versions] == [
        "created",
        "deleted",
        "changed",
        "changed",
        "changed",
        "created",
    ]
    specs = [item["spec"] and item["spec"]["description"] for item in versions]
    assert specs == ["again", None, "third", "second", "first", ""]
    assert versions[3]["differences"] == [
        {"pointer": "/description", "before": "first", "after": "second", "is_cut": False}
    ]
    first = versions[4]["id"]
    assert (
        node.call("POST", f"/audit-log/{first}:restore?dry_run=true")["affected"][0]["how"]
        == "is changed"
    )
    node.call("POST", f"/audit-log/{first}:restore")
    assert node.call("GET", "/rules/hot")["description"] == "first"
    restored = latest(node)
    assert (restored["operation"], restored["summary"]) == ("restoreObject", "changed description")
    node.call("POST", f"/audit-log/{versions[1]['id']}:restore")
    node.call("GET", "/rules/hot", expect=404)
    listed = sluice(node, "audit-log", "history", "rule", "hot")
    assert listed.returncode == 0, listed.stderr
    assert "restoreObject" in listed.stdout
    result = sluice(node, "audit-log", "restore", versions[3]["id"])
    assert result.returncode == 0, result.stderr
    assert node.call("GET", "/rules/hot")["description"] == "second"
    assert node.call("GET", "/audit-log:history?kind=rule&name=none")["items"] == []


def test_the_log_is_exported_as_lines_and_as_a_table(node: Node, tmp_path: Path) -> None:
    node.call("POST", "/rules", {**RULE, "description": "=1+1"})
    node.call("POST", "/rules", {**RULE, "name": "cold"})
    lines = sluice(node, "audit-log", "export", "--search", "createRule cold")
    assert lines.returncode == 0, lines.stderr
    first, *_ = [json.loads(line) for line in lines.stdout.splitlines()]
    assert first == latest(node)
    file = tmp_path / "log.csv"
    result = sluice(node, "audit-log", "export", str(file), "--format", "csv")
    assert result.returncode == 0, result.stderr
    with file.open() as opened:
        rows = list(csv.DictReader(opened))
    ids = {row["id"] for row in entries(node, limit="1000")}
    assert {row["id"] for row in rows} >= ids
    assert json.loads(rows[0]["changes"]) == first["changes"]
    assert sluice(node, "audit-log", "export", "--format", "xml").returncode == 2


def test_there_is_no_way_to_delete_entries(node: Node) -> None:
    entry = latest(node)["id"]
    node.call("DELETE", f"/audit-log/{entry}", expect=405)
    node.call("DELETE", "/audit-log", expect=405)


def test_what_was_answered_is_in_the_log_after_a_kill(tmp_path: Path) -> None:
    with running_process(tmp_path / "data") as node:
        for number in range(20):
            node.call("POST", "/rules", {**RULE, "name": f"r{number}"})
            if number % 5 == 4:
                node.kill()
                node.start()
                assert len(entries(node, operation="createRule", limit="100")) == number + 1


def exported(node: Reachable) -> list[dict[str, Any]]:
    """All entries, whole, newest first."""
    with node.client() as client:
        answer = client.get("/audit-log:export")
    return [json.loads(line) for line in answer.text.splitlines()]


def long_rule(number: int) -> dict[str, Any]:
    """A rule whose entry is some 60 kB long."""
    return {
        **RULE,
        "name": f"r{number % 3}",
        "sql": f"{SQL} OR payload.text = '{number:06}{'x' * 28_000}'",
    }


def test_the_log_stays_within_its_bytes_through_kills(tmp_path: Path) -> None:
    most = 4 * 1024 * 1024
    with running_process(tmp_path / "data", config=f"audit_log.max_bytes = {most}\n") as node:
        sent: list[str] = []
        for number in range(100):
            name = f"r{number % 3}"
            node.call("PUT", f"/rules/{name}", long_rule(number))
            sent.append(name)
            if number % 40 == 39:
                node.kill()
                node.start()
        kept = [entry for entry in exported(node) if entry["operation"] == "putRule"]
        size = sum(len(json.dumps(entry)) for entry in kept)
        assert [entry["name"] for entry in reversed(kept)] == sent[-len(kept) :], (
            "the latest ones, none is missing"
        )
        assert most / 2 < size < most * 1.05
        assert len(kept) < 100


def test_a_full_disk_refuses_the_change_and_the_log_goes_on(tmp_path: Path) -> None:
    with small_disk(tmp_path / "small", 48) as disk:
        node = NodeProcess(
            disk.path / "data", config="lake.run_spark = false\noverload.enable = false\n"
        )
        node.log = tmp_path / "node.log"
        node.start()
        try:
            node.call("POST", "/rules", RULE)
            disk.fill()
            node.call("PUT", "/rules/hot", long_rule(1), expect=(503, 422))
            disk.free()
            eventually(
                lambda: (
                    node.call("PUT", "/rules/r2", long_rule(2), expect=(200, 201, 503)).get("name")
                    == "r2"
                )
            )
            node.kill()
            node.start()
            done = [
                (entry["operation"], entry["name"])
                for entry in exported(node)
                if entry["outcome"] == "done"
            ]
            assert done == [("putRule", "r2"), ("createRule", "hot")]
        finally:
            node.stop()


def test_a_change_is_taken_back_and_later_changes_of_other_members_stay(node: Node) -> None:
    node.call("POST", "/rules", RULE)
    node.call("PUT", "/rules/hot", {**RULE, "sql": SQL.replace("30", "99")})
    broken = latest(node)["id"]
    node.call("PATCH", "/rules/hot", {"description": "kept"})
    effect = node.call("POST", f"/audit-log/{broken}:revert?dry_run=true")
    assert effect["affected"] == [{"kind": "rule", "name": "hot", "how": "is changed"}]
    node.call("POST", f"/audit-log/{broken}:revert")
    rule = node.call("GET", "/rules/hot")
    assert (rule["sql"], rule["description"]) == (SQL, "kept")
    revert = latest(node)
    assert revert["operation"] == "revertAuditEntry"
    assert (
        "changed at /sql" in node.call("POST", f"/audit-log/{broken}:revert", expect=409)["detail"]
    )
    result = sluice(node, "audit-log", "revert", revert["id"])
    assert result.returncode == 0, result.stderr
    assert node.call("GET", "/rules/hot")["sql"] == SQL.replace("30", "99")


def test_objects_of_settings_are_taken_back_too(node: Node) -> None:
    node.call("POST", "/listeners/tcp:extra", {"bind": "127.0.0.1:0", "max_connections": 10})
    node.call("PATCH", "/listeners/tcp:extra", {"max_connections": 20})
    entry = latest(node)
    assert (entry["kind"], entry["name"], entry["summary"]) == (
        "listener",
        "tcp:extra",
        "changed max_connections",
    )
    node.call("POST", f"/audit-log/{entry['id']}:revert")
    assert node.call("GET", "/listeners/tcp:extra")["max_connections"] == 10
    options = {"tcp_options": {"nodelay": False}, "backlog": 30}
    node.call("PATCH", "/listeners/tcp:extra", options)
    entry = latest(node)
    assert entry["summary"] == "changed backlog, tcp_options"
    node.call("POST", f"/audit-log/{entry['id']}:revert")
    settings = node.call("GET", "/listeners/tcp:extra")["settings"]
    assert (settings["backlog"], settings["tcp_options"]["nodelay"]) == (1024, True)
    node.call("DELETE", "/listeners/tcp:extra")
    node.call(
        "POST",
        "/access/rules",
        {"name": "r", "permission": "deny", "action": "publish", "topics": ["a/#"]},
    )
    node.call("DELETE", "/access/rules/r")
    node.call("POST", f"/audit-log/{latest(node)['id']}:revert")
    assert node.call("GET", "/access/rules/r")["topics"] == ["a/#"]
    node.call("DELETE", "/access/rules/r")


def test_a_creation_is_taken_back_unless_the_object_is_gone(node: Node) -> None:
    node.call("POST", "/streams", {"name": "s"})
    created = latest(node)["id"]
    node.call("POST", f"/audit-log/{created}:revert")
    node.call("GET", "/streams/s", expect=404)
    assert (
        "no longer exists"
        in node.call("POST", f"/audit-log/{created}:revert", expect=409)["detail"]
    )


def test_a_deletion_is_undone_with_versions_test_cases_secrets_and_order(node: Node) -> None:
    event = {"topic": "halls/1", "payload": '{"t": 31}'}
    tests = [{"name": "warm", "event": event, "expect": {"rows": [{"t": 31}]}}]
    node.call("POST", "/rules", {**RULE, "tests": tests})
    node.call("PUT", "/rules/hot", {**RULE, "description": "second", "tests": tests})
    node.call("POST", "/rules", {**RULE, "name": "last"})
    versions = node.call("GET", "/rules/hot/versions")["items"]
    assert len(versions) == 2
    node.call("DELETE", "/rules/hot")
    node.call("POST", f"/audit-log/{latest(node)['id']}:revert")
    assert [row["name"] for row in node.call("GET", "/rules")["items"]] == ["hot", "last"]
    assert node.call("GET", "/rules/hot/versions")["items"] == versions
    assert node.call("GET", "/rules/hot")["tests"][0]["name"] == "warm"


def test_a_cascade_is_undone_as_a_whole_with_its_secrets(node: Node, tmp_path: Path) -> None:
    node.call(
        "POST",
        "/connectors",
        {"name": "out", "type": "http", "url": "http://127.0.0.1:9", "headers": {"x-key": SECRET}},
    )
    node.call(
        "POST",
        "/actions",
        {"name": "send", "type": "http", "connector": "out", "parameters": {"path": "/x"}},
    )
    node.call("POST", "/rules", {**RULE, "actions": ["http:send"]})
    node.call("DELETE", "/connectors/out?cascade=true")
    entry = latest(node)
    assert [(change["kind"], change["change"]) for change in entry["changes"]] == [
        ("rule", "deleted"),
        ("action", "deleted"),
        ("connector", "deleted"),
    ]
    node.call("POST", f"/audit-log/{entry['id']}:revert")
    assert node.call("GET", "/rules/hot")["actions"][0]["bridge"] == "http:send"
    assert (node.data_dir / "api.hocon").read_text().count(SECRET) >= 2, (
        "saved again, with its secret"
    )


def test_a_deleted_schema_comes_back(node: Node) -> None:
    document = json.dumps({"type": "object", "required": ["t"]})
    node.call("POST", "/schemas", {"name": "reading", "type": "json", "source": document})
    node.call("DELETE", "/schemas/reading?permanent=true")
    node.call("POST", f"/audit-log/{latest(node)['id']}:revert")
    assert "required" in json.dumps(node.call("GET", "/schemas/reading"))


def test_a_reload_of_files_is_recorded_with_what_it_changed(tmp_path: Path) -> None:
    with running(tmp_path / "data", config="mqtt.max_inflight = 20\n") as node:
        (node.data_dir / "sluice.conf").write_text(
            'mqtt.max_inflight = 10\nstreams { meters { topics = ["meters/#"] } }\n'
        )
        node.call("POST", "/config:reload")
        request, files = entries(node, limit="2")
        assert (request["operation"], request["actor"]) == ("reloadConfig", "administrator")
        assert (files["operation"], files["actor"], files["origin"]) == (
            "reload",
            "broker",
            "files",
        )
        changes = {
            (change["kind"], change["name"]): change["change"]
            for change in node.call("GET", f"/audit-log/{files['id']}")["changes"]
        }
        assert changes == {
            ("setting", "mqtt.max_inflight"): "changed",
            ("stream", "meters"): "created",
        }
        assert (
            "files"
            in node.call("POST", f"/audit-log/{files['id']}:revert", expect=422)["errors"][0][
                "message"
            ]
        )


def test_the_log_is_listed_by_the_command_line(node: Node) -> None:
    node.call("POST", "/rules", RULE)
    listed = sluice(node, "audit-log", "ls", "--kind", "rule", "--limit", "1", "--json")
    [row] = json.loads(listed.stdout)["items"]
    shown = sluice(node, "audit-log", "get", row["id"])
    assert "createRule" in shown.stdout
    assert "differences" in shown.stdout
