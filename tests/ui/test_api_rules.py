"""Rules over HTTP: filters, patches, preconditions, versions, test cases, switching, counters, explain."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from rules.feature import RulesFeature
from tests.support.features import make_services
from tests.ui.api_node import Node, Running

SQL = "SELECT payload.t AS t FROM 'm/#' WHERE payload.t > 20"
WARM = {
    "name": "warm",
    "event": {"topic": "m/1", "payload": '{"t": 21}'},
    "expect": {"rows": [{"t": 21}]},
}


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    node = Node()
    node.context.services = {}
    services = make_services()
    feature = RulesFeature(services)
    node.context.section = services.storage.section
    feature.start()
    node.context.services = {"rules": feature.service}
    running = Running(node)
    yield running
    running.stop()


@pytest.fixture
def api(server: Running) -> Iterator[httpx.Client]:
    """A client, on a node without rules."""
    with server.client() as client:
        for rule in client.get("/rules").json()["items"]:
            client.delete(f"/rules/{rule['name']}?force=true")
        yield client


def make(api: httpx.Client, name: str = "r1", **spec: Any) -> dict[str, Any]:
    answer = api.post("/rules", json={"name": name, "sql": SQL, **spec})
    assert answer.status_code == 201, answer.text
    made: dict[str, Any] = answer.json()
    return made


def test_sql_is_run_on_several_events_and_explained_with_actions_that_are_not_saved(
    api: httpx.Client,
) -> None:
    events = [{"topic": "m/1", "payload": f'{{"t": {t}}}'} for t in (21, 19)] + [
        {"topic": "m/1", "payload": "{"}
    ]
    found = api.post("/rules:test-many", json={"sql": SQL, "events": events}).json()
    assert [one["outcome"] for one in found["outcomes"]] == ["rows", "no_result", "error"]
    assert (found["matched"], found["outcomes"][0]["rows"]) == (1, [{"t": 21}])
    assert api.post("/rules:test-many", json={"sql": SQL, "events": events * 50}).status_code == 422
    for refused, pointer in (("test-many", "/events"), ("fields", "/from"), ("format", "/sql")):
        given = {"sql": SQL} if refused == "test-many" else {}
        assert api.post(f"/rules:{refused}", json=given).json()["errors"][0]["pointer"] == pointer
    cases = [WARM, {**WARM, "name": "cold", "expect": {"no_result": True}}]
    tried = api.post("/rules:test-cases", json={"sql": SQL, "tests": cases}).json()
    assert (tried["passed"], tried["failed"], tried["cases"][1]["passed"]) == (1, 1, False)
    body = {"sql": SQL, "event": events[0], "actions": [{"type": "republish", "topic": "hot/${t}"}]}
    last = api.post("/rules:explain", json=body).json()["steps"][-1]
    assert last["effects"][0]["publish"]["topic"] == "hot/21"
    wrong = api.post("/rules:explain", json={**body, "actions": [{"type": "republish"}]}).json()
    assert wrong["errors"][0]["pointer"] == "/actions/0/topic"


@pytest.mark.parametrize(
    ("query", "names"),
    [
        ("enable=true", ["a", "b"]),
        ("enable=false", ["c"]),
        ("from=m/%2B", ["b"]),
        ("from=m/%2B&from=n/1", ["b", "c"]),
        ("like_from=n/", ["c"]),
        ("like_id=a", ["a"]),
        ("like_description=old", ["c"]),
        ("match_from=m/1", ["a", "b"]),
        ("match_from=n/%23", ["c"]),
        ("action=console", ["a"]),
        ("action=kafka:orders", ["b"]),
        ("action=console&action=bridge:kafka:orders", ["a", "b"]),
        ("source=mqtt:plant", ["c"]),
        ("enable=true&match_from=m/1&limit=1", ["a"]),
        ("", ["a", "b", "c"]),
    ],
)
def test_lists_are_filtered(api: httpx.Client, query: str, names: list[str]) -> None:
    make(api, "a", sql="SELECT * FROM 'm/#'", actions=[{"type": "console"}])
    make(
        api, "b", sql="SELECT * FROM 'm/+'", actions=[{"type": "bridge", "bridge": "kafka:orders"}]
    )
    make(
        api,
        "c",
        sql="SELECT * FROM 'n/1', '$bridges/mqtt:plant'",
        enable=False,
        description="the old one",
    )
    assert [rule["name"] for rule in api.get(f"/rules?{query}").json()["items"]] == names


def test_a_misspelt_filter_finds_nothing_but_an_error(api: httpx.Client) -> None:
    answer = api.get("/rules?enabled=true")
    assert (answer.status_code, answer.json()["code"]) == (400, "unknown_parameter")
    assert "match_from" in answer.json()["detail"]


def test_put_replaces_and_patch_merges(api: httpx.Client) -> None:
    make(api, description="d", actions=[{"type": "console"}])
    replaced = api.put("/rules/r1", json={"sql": SQL}).json()
    assert (replaced["description"], replaced["actions"]) == ("", [])
    patched = api.patch("/rules/r1", json={"description": "e", "enable": False}).json()
    assert (patched["sql"], patched["description"], patched["enable"]) == (SQL, "e", False)
    assert api.patch("/rules/r1", json={"description": None}).json()["description"] == ""
    assert api.patch("/rules/none", json={}).status_code == 404
    refused = api.patch("/rules/r1", json={"sql": None})
    assert (refused.status_code, refused.json()["errors"][0]["pointer"]) == (422, "/sql")
    assert api.patch("/rules/r1", json={"name": "other"}).status_code == 422


def test_nobody_overwrites_what_they_have_not_seen(api: httpx.Client) -> None:
    make(api)
    seen = api.get("/rules/r1").headers["etag"]
    changed = api.patch("/rules/r1", json={"description": "mine"}, headers={"If-Match": seen})
    assert changed.status_code == 200
    now = changed.headers["etag"]
    assert now != seen
    for answer in (
        api.put("/rules/r1", json={"sql": SQL}, headers={"If-Match": seen}),
        api.patch("/rules/r1", json={}, headers={"If-Match": seen}),
        api.delete("/rules/r1", headers={"If-Match": seen}),
        api.post("/rules/r1/versions/1:restore", headers={"If-Match": seen}),
        api.put("/rules/r1", json={"sql": SQL}, headers={"If-None-Match": "*"}),
        api.put("/rules/new", json={"sql": SQL}, headers={"If-Match": "*"}),
    ):
        assert (answer.status_code, answer.json()["code"]) == (412, "changed_meanwhile"), (
            answer.request
        )
    assert api.get("/rules/r1").json()["description"] == "mine"
    assert api.get("/rules/r1", headers={"If-None-Match": now}).status_code == 304
    assert (
        api.put("/rules/new", json={"sql": SQL}, headers={"If-None-Match": "*"}).status_code == 201
    )
    assert api.delete("/rules/r1", headers={"If-Match": f'"x", {now}'}).status_code == 204


def test_versions_are_listed_compared_and_restored(api: httpx.Client) -> None:
    make(api)
    api.patch("/rules/r1", json={"sql": SQL.replace("20", "25")})
    assert [one["version"] for one in api.get("/rules/r1/versions").json()["items"]] == [2, 1]
    assert api.get("/rules/r1/versions/1").json()["rule"]["sql"] == SQL
    compared = api.get("/rules/r1/versions/1/diff?to=2").json()
    assert compared["changes"] == [
        {"member": "sql", "before": SQL, "after": SQL.replace("20", "25")}
    ]
    restored = api.post("/rules/r1/versions/1:restore").json()
    assert (restored["version"], restored["sql"]) == (3, SQL)
    assert restored["created_at"] <= restored["updated_at"]
    assert api.get("/rules/r1/versions/9").status_code == 404
    assert api.get("/rules/r1/versions/none").status_code == 422


def test_a_failing_case_refuses_every_way_of_saving(api: httpx.Client) -> None:
    make(api, tests=[WARM])
    other = {"sql": SQL.replace("20", "25")}
    answers = [
        api.post("/rules", json={"name": "r2", "tests": [WARM], **other}),
        api.put("/rules/r1", json={"tests": [WARM], **other}),
        api.patch("/rules/r1", json=other),
    ]
    for answer in answers:
        assert (answer.status_code, answer.json()["code"]) == (422, "test_case_failed")
        assert answer.json()["errors"] == [
            {"pointer": "/tests/0", "message": "test case 'warm': expected 1 row, got no result"}
        ]
    assert api.patch("/rules/r1?force=true", json=other).status_code == 200
    found = api.post("/rules/r1:test-cases").json()
    assert (found["passed"], found["failed"]) == (0, 1)
    assert api.post("/rules/r1/versions/1:restore").status_code == 200
    assert api.post("/rules/r1:test-cases").json()["failed"] == 0
    assert api.post("/rules/none:test-cases").status_code == 404


def test_cases_without_end_do_not_hold_up_the_node(api: httpx.Client) -> None:
    endless = {"sql": "SELECT jq('def f: f; f', payload) AS x FROM 'm/#'", "tests": [WARM]}
    answer = api.post("/rules", json={"name": "r1", **endless})
    assert answer.status_code == 422, answer.text
    assert api.get("/rules").json()["items"] == []


def test_a_rule_is_switched_and_counts(api: httpx.Client) -> None:
    make(api)
    assert api.post("/rules/r1:disable").json()["state"] == "disabled"
    assert api.post("/rules/r1:enable").json()["state"] == "running"
    assert api.get("/rules/r1/metrics").json()["matched.rate.last5m"] == 0.0
    assert api.post("/rules/r1/metrics:reset").status_code == 204
    assert api.get("/rules/r1/code").json()["source"].startswith("def rule(message")
    for path in ("/rules/x:enable", "/rules/x/metrics:reset"):
        assert api.post(path).status_code == 404


def test_explain_tells_steps(api: httpx.Client) -> None:
    body = {"sql": SQL, "event": {"topic": "m/1", "payload": json.dumps({"t": 7})}}
    found = api.post("/rules:explain", json=body).json()
    assert [step["clause"] for step in found["steps"]] == ["FROM", "SELECT", "WHERE"]
    assert (found["outcome"], found["steps"][2]["holds"]) == ("no_result", False)


def test_a_node_without_streams_cannot_back_test(api: httpx.Client) -> None:
    assert api.post("/rules:backtest", json={"sql": SQL, "stream": "raw"}).status_code == 503
