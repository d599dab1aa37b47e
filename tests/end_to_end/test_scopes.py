"""Scopes of tokens: topics, resources, and what an administrator with a scope cannot give away."""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.end_to_end.clients import Client as MqttClient
from tests.support.local_node import Node, running
from tests.support.node import TOKEN, eventually
from tests.support.plain_http import NO_TLS


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with running(tmp_path_factory.mktemp("node"), config="overload.enable = false\n") as node:
        yield node


def _token(node: Node, name: str, **spec: Any) -> str:
    token: str = node.call("POST", "/tokens", {"name": name, **spec})["token"]
    return token


def test_scopes_of_topics_apply_to_what_a_request_names(node: Node) -> None:
    node.call("POST", "/streams", {"name": "inside", "topics": ["plant/a/#"]})
    node.call("POST", "/streams", {"name": "outside", "topics": ["plant/#"]})
    node.call("POST", "/streams", {"name": "rows"})
    node.call(
        "POST", "/rules", {"name": "elsewhere", "sql": 'SELECT * FROM "plant/b"', "actions": []}
    )
    operator = _token(node, "operator-of-a", role="operator", topics=["plant/a/#"])
    editor = _token(node, "editor-of-a", role="editor", topics=["plant/a/#"])
    administrator = _token(node, "all-of-a", role="administrator", topics=["plant/a/#"])
    rule = {"name": "mine", "sql": 'SELECT * FROM "plant/a/+"', "actions": []}
    replay = {"to": "stream:inside"}
    receiver = {"name": "duty", "type": "topic"}
    republish = [{"type": "republish", "topic": "plant/b"}]
    cases: list[tuple[str, str, str, Any, bool]] = [
        (operator, "POST", "/messages:publish", {"topic": "plant/a/1", "payload": "1"}, True),
        (operator, "POST", "/messages:publish", {"topic": "plant/b", "payload": "1"}, False),
        (
            operator,
            "POST",
            "/messages:publish",
            {"topic": "$delayed/1/plant/a/1", "payload": "1"},
            False,
        ),
        (operator, "GET", "/retained?filter=plant/a/%2B", None, True),
        (operator, "GET", "/retained?filter=plant/%2B/x", None, False),
        (operator, "GET", "/retained", None, False),
        (operator, "GET", "/topics?under=plant/a", None, True),
        (operator, "GET", "/topics", None, False),
        (operator, "GET", "/topics/latest?filter=plant/a/1", None, True),
        (operator, "GET", "/topics/tail?filter=plant/%23&seconds=0.1", None, False),
        (operator, "GET", "/streams/inside/records", None, True),
        (operator, "GET", "/streams/outside/records", None, False),
        (operator, "GET", "/clients/c1/messages", None, False),
        (operator, "GET", "/lake/tables/t1/preview", None, False),
        (operator, "GET", "/rules/elsewhere", None, True),
        (editor, "POST", "/rules", rule, True),
        (editor, "POST", "/rules", {**rule, "name": "b", "sql": 'SELECT * FROM "plant/#"'}, False),
        (editor, "POST", "/rules", {**rule, "name": "b", "actions": republish}, False),
        (editor, "PUT", "/rules/elsewhere", {**rule, "name": "elsewhere"}, False),
        (editor, "DELETE", "/rules/elsewhere", None, False),
        (editor, "DELETE", "/rules/mine", None, True),
        (editor, "POST", "/rules:backtest", {"stream": "inside", "name": "elsewhere"}, False),
        (editor, "POST", "/rules:backtest", {"stream": "outside", "sql": rule["sql"]}, False),
        (editor, "POST", "/rules:reorder", {"order": ["elsewhere"]}, False),
        (editor, "POST", "/rules/elsewhere/versions/1:restore", {}, False),
        (editor, "POST", "/schemas:infer", {"type": "json", "topic": "plant/b"}, False),
        (editor, "POST", "/schemas:infer", {"type": "json", "samples": [{"a": 1}]}, True),
        (editor, "POST", "/lake/tables", {"name": "t2", "stream": "outside"}, False),
        (editor, "POST", "/streams/rows:plan-replay", replay, False),
        (operator, "POST", "/streams/rows:replay", replay, False),
        (administrator, "POST", "/captures", {"name": "c1", "clientid": "meter"}, False),
        (administrator, "POST", "/captures", {"name": "c1", "filter": "plant/#"}, False),
        (administrator, "POST", "/captures", {"name": "c1", "filter": "plant/a/1"}, True),
        (administrator, "GET", "/captures/c1/records", None, True),
        (operator, "GET", "/topics:who?topic=plant/b", None, False),
        (operator, "GET", "/refused", None, False),
        (operator, "GET", "/refused?filter=plant/a/%23", None, True),
        (operator, "POST", "/retained-deletions/1:undo", None, False),
        (administrator, "POST", "/alarm-receivers", {**receiver, "topic": "plant/b"}, False),
        (administrator, "POST", "/alarm-receivers:probe", {**receiver, "topic": "plant/b"}, False),
        (administrator, "POST", "/alarm-receivers", {**receiver, "topic": "plant/a/1"}, True),
    ]
    with httpx.Client(
        base_url=f"{node.url}/api/v1", verify=NO_TLS, timeout=60, trust_env=False
    ) as client:
        for token, method, path, body, is_allowed in cases:
            answer = client.request(
                method, path, json=body, headers={"Authorization": f"Bearer {token}"}
            )
            if is_allowed:
                assert answer.status_code < 300, (method, path, body, answer.text)
            else:
                assert answer.status_code == 403, (method, path, body, answer.text)
                assert re.search(
                    r"scope (is )?'plant/a/#'|no scope of topics", answer.json()["detail"]
                )


def test_a_token_shows_its_last_use_and_what_it_may_do(node: Node) -> None:
    token = _token(node, "used", role="operator", kinds=["clients", "jobs"])
    assert "last_used_at" not in node.call("GET", "/tokens/used")
    with httpx.Client(
        base_url=f"{node.url}/api/v1", verify=NO_TLS, timeout=60, trust_env=False
    ) as client:
        client.headers["Authorization"] = f"Bearer {token}"
        mine = client.get("/me").json()
        assert mine == {
            "name": "the token 'used'",
            "role": "operator",
            "kinds": ["clients", "jobs"],
            "topics": None,
            "rights": {
                "clients": ["read", "change", "try", "job"],
                "jobs": ["read", "change", "try", "job"],
                "nodes": ["read"],
            },
        }
        shown = node.call("GET", "/tokens/used")
        assert shown["last_used_from"] == "127.0.0.1"
        assert shown["last_used_at"] >= shown["created_at"]
        node.call("DELETE", "/tokens/used")
        assert client.get("/me").status_code == 401


@pytest.mark.parametrize(
    "spec",
    [
        {},
        {"role": "viewer", "streams": ["a"]},
        {"role": "owner"},
        {"streams": ["a"], "kinds": ["rules"]},
        {"role": "viewer", "kinds": ["no such kind"]},
        {"role": "viewer", "topics": ["a/#/b"]},
    ],
)
def test_a_token_with_unclear_rights_is_refused(node: Node, spec: dict[str, Any]) -> None:
    answer = httpx.post(
        f"{node.url}/api/v1/tokens",
        json={"name": "unclear", **spec},
        headers={"Authorization": f"Bearer {TOKEN}"},
        verify=NO_TLS,
        timeout=60,
    )
    assert answer.status_code == 422
    assert answer.json()["errors"]


def test_a_cascade_needs_the_right_on_what_it_deletes_too(node: Node) -> None:
    node.call(
        "POST", "/schemas", {"name": "used-schema", "type": "json", "source": '{"type": "object"}'}
    )
    check = {"type": "json", "schema": "used-schema"}
    deciding = {"strategy": "all_pass", "failure_action": "drop"}
    node.call(
        "POST", "/validations", {"name": "user", "topics": ["f/#"], "checks": [check], **deciding}
    )
    token = _token(node, "schemas-only", role="editor", kinds=["schemas"])
    with httpx.Client(
        base_url=f"{node.url}/api/v1", verify=NO_TLS, timeout=60, trust_env=False
    ) as client:
        client.headers["Authorization"] = f"Bearer {token}"
        for query in ({"cascade": "true"}, {"cascade": "true", "dry_run": "true"}):
            answer = client.delete("/schemas/used-schema", params=query)
            assert (answer.status_code, answer.json()["detail"]) == (
                403,
                "needs 'change' on 'validations'; your scope is 'schemas'",
            )
    assert node.call("GET", "/validations/user")["name"] == "user"


def test_a_scoped_administrator_cannot_make_tokens(node: Node) -> None:
    token = _token(node, "scoped", role="administrator", kinds=["tokens"])
    with httpx.Client(
        base_url=f"{node.url}/api/v1", verify=NO_TLS, timeout=60, trust_env=False
    ) as client:
        client.headers["Authorization"] = f"Bearer {token}"
        assert client.get("/tokens").status_code == 200
        answer = client.post("/tokens", json={"name": "more", "role": "administrator"})
        assert answer.status_code == 403
        assert "more rights" in answer.json()["detail"]


def test_an_entry_of_the_audit_log_gives_no_rights_back_to_a_scoped_administrator(
    node: Node,
) -> None:
    node.call("POST", "/accounts", {"name": "mallory", "role": "administrator"})
    node.call("PUT", "/accounts/mallory", {"role": "viewer"})
    demoted = node.call("GET", "/audit-log?limit=1&name=mallory")["items"][0]["id"]
    node.call("POST", "/tokens", {"name": "revoked", "role": "administrator"})
    node.call("DELETE", "/tokens/revoked")
    revoked = node.call("GET", "/audit-log?limit=1&name=revoked")["items"][0]["id"]
    token = _token(node, "reverter", role="administrator", kinds=["audit-entries"])
    with httpx.Client(
        base_url=f"{node.url}/api/v1", verify=NO_TLS, timeout=60, trust_env=False
    ) as client:
        client.headers["Authorization"] = f"Bearer {token}"
        for path in (f"{demoted}:revert", f"{revoked}:revert", f"{revoked}:revert?dry_run=true"):
            answer = client.post(f"/audit-log/{path}")
            assert answer.status_code == 403, answer.text
            assert "your scope is 'audit-entries'" in answer.json()["detail"]
        created = node.call("GET", "/audit-log?operation=createAccount&name=mallory")["items"][0]
        answer = client.post(f"/audit-log/{created['id']}:restore")
        assert answer.status_code == 403, answer.text
    assert node.call("GET", "/accounts/mallory")["role"] == "viewer"
    node.call("GET", "/tokens/revoked", expect=404)
    node.call("POST", f"/audit-log/{revoked}:revert")  # those with the right may
    assert node.call("GET", "/tokens/revoked")["name"] == "revoked"


def test_the_issuer_of_administrators_is_not_set_by_the_api(node: Node) -> None:
    issuer = {"issuer": "https://evil.example", "client_id": "x", "default_role": "administrator"}
    token = _token(node, "settings-only", role="administrator", kinds=["settings"])
    with httpx.Client(
        base_url=f"{node.url}/api/v1", verify=NO_TLS, timeout=60, trust_env=False
    ) as client:
        client.headers["Authorization"] = f"Bearer {token}"
        for path, value in (
            ("api.oidc", issuer),
            ("api", {"oidc": issuer}),
        ):
            answer = client.put(f"/config/{path}", json={"value": value})
            assert answer.status_code == 409, answer.text
            assert "sluice.conf" in answer.json()["detail"]


CANARY = "c4nary-of-plant-b"


def test_a_scope_of_topics_shows_no_message_of_another_topic(node: Node) -> None:
    """Messages on ``plant/b`` wait, are stored, captured, refused and counted in every place that has messages; no
    operation returns one to an administrator of ``plant/a/#``."""
    ids = _plant(node)
    token = _token(node, "administrator-of-a", role="administrator", topics=["plant/a/#"])
    document = node.call("GET", "/openapi.json")
    shown: list[str] = []
    refused: list[str] = []
    with httpx.Client(
        base_url=node.url, verify=NO_TLS, timeout=60, trust_env=False, follow_redirects=False
    ) as client:
        for path, methods in document["paths"].items():
            operation = methods.get("get")
            if operation is None or operation.get("security") == []:
                continue
            for name in ids.get(operation["x-resource"]["name"], ["1"]):
                for bearer, outcomes in ((TOKEN, shown), (token, refused)):
                    parameters = {"seconds": "0.1"} if path.endswith("/tail") else {}
                    answer = client.get(
                        re.sub(r"\{[^}]+\}", name, path),
                        params=parameters,
                        headers={"Authorization": f"Bearer {bearer}"},
                    )
                    assert answer.status_code < 500, answer.text
                    if (
                        CANARY in answer.text
                        or b64encode(CANARY.encode()).decode()[:16] in answer.text
                    ):
                        outcomes.append(operation["operationId"])
    assert refused == []
    # without the scope, the same requests show it: the test looks where messages are
    assert {
        "downloadCapture",
        "getBacktest",
        "getDelayed",
        "getQuarantine",
        "getRefused",
        "listCaptureRecords",
        "listRetained",
        "peekClientMessages",
        "readStreamRecords",
    } <= set(shown)


def _plant(node: Node) -> dict[str, list[str]]:
    """Leave messages on ``plant/b`` wherever a broker keeps some; returns the identifiers by resource."""
    node.call("POST", "/streams", {"name": "of-b", "topics": ["plant/b/#"]})
    node.call("POST", "/streams", {"name": "refused-of-b"})
    sql = 'SELECT payload AS p FROM "plant/b"'
    node.call("POST", "/rules", {"name": "of-b", "sql": sql, "actions": []})
    schema = {"name": "object", "type": "json", "source": '{"type": "object"}'}
    node.call("POST", "/schemas", schema)
    node.call("POST", "/captures", {"name": "of-b", "filter": "plant/b/#"})
    node.call(
        "POST",
        "/validations",
        {
            "name": "of-b",
            "topics": ["plant/b/refused"],
            "checks": [{"type": "json", "schema": "object"}],
            "strategy": "all_pass",
            "failure_action": "drop",
            "quarantine": "refused-of-b",
        },
    )
    with MqttClient(node, "leaver", is_clean=False, expiry_s=3600) as leaver:
        leaver.subscribe("plant/b/#", 1)
    for topic in ("plant/b", "plant/b/1", "plant/b/refused", "$delayed/3600/plant/b"):
        message = {"topic": topic, "payload": CANARY, "qos": 1, "retain": True}
        node.call("POST", "/messages:publish", message, expect=(200, 403, 422))
    records = eventually(lambda: node.call("GET", "/captures/of-b/records")["items"])
    assert records
    job = node.call("POST", "/rules:backtest", {"stream": "of-b", "name": "of-b"}, expect=202)["id"]
    eventually(lambda: node.call("GET", f"/backtests/{job}")["state"] == "done")
    delayed = [row["id"] for row in node.call("GET", "/delayed")["items"]]
    refused = [row["id"] for row in node.call("GET", "/refused")["items"]]
    return {
        "back-test": [job],
        "capture": ["of-b"],
        "client": ["leaver"],
        "delayed message": delayed,
        "quarantine": ["refused-of-b"],
        "refused message": refused,
        "rule": ["of-b"],
        "session": ["leaver"],
        "stream": ["of-b", "refused-of-b"],
        "validation": ["of-b"],
    }
