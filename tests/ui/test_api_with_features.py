"""The API over the real features: what people save, and what they try, as they would script it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from broker.admin.audit_log import AuditLog
from broker.config.root import load_config
from broker.config.sections import Sections
from broker.core.clock import SystemClock
from broker.core.errors import Unavailable
from broker.core.objects import saving
from broker.observe.settings import AuditLogSettings
from broker.storage.memory import MemoryStore
from broker.storage.writer import Writer
from rules.feature import RulesFeature
from schema_validation.feature import SchemaValidationFeature
from tests.support.features import make_services
from tests.support.plain_http import NO_TLS
from tests.ui.api_node import Node, Running
from transforms.feature import TransformsFeature

READING = '{"type": "object", "required": ["t"], "properties": {"t": {"type": "number"}}}'


class FailsLate:
    """A service whose deletions pass all checks, and then fail where an ``error`` is set."""

    def __init__(self, service: Any) -> None:
        self._service = service
        self.error: Exception | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._service, name)

    def delete(self, name: str, **options: Any) -> None:
        """See ``broker.core.objects.ObjectService``."""
        if self.error is not None:
            saving(saves={("schema_registry", "schemas", name): None})
            raise self.error
        self._service.delete(name, **options)


@pytest.fixture
def node(tmp_path: Path) -> Node:
    sections = Sections(load_config({}, data_dir=tmp_path, environ={}))
    assert sections.file is not None
    services = make_services(section=sections.section)
    schemas = SchemaValidationFeature(services)
    transforms, rules = TransformsFeature(services), RulesFeature(services)
    for feature in (schemas, transforms, rules):
        feature.start()
    node = Node()
    node.context.section = sections.section
    node.context.saved_objects = sections.file.on_change
    node.context.contributors = services.contributors
    node.context.services = {
        "schemas": FailsLate(schemas.schemas),
        "validations": schemas.validations,
        "transforms": transforms.service,
        "rules": rules.service,
    }
    return node


class Audited(Running):
    """The API with an audit log."""

    async def _serve(self) -> None:
        writer = Writer(MemoryStore(), asyncio.get_running_loop())
        self.node.context.audit_log = AuditLog(writer, SystemClock(), AuditLogSettings())
        await super()._serve()
        await writer.close()


@pytest.fixture
def audited(node: Node) -> Iterator[httpx.Client]:
    running = Audited(node)
    with running.client() as client:
        yield client
    running.stop()


@pytest.fixture
def api(node: Node) -> Iterator[httpx.Client]:
    running = Running(node)
    with running.client() as client:
        yield client
    running.stop()


def test_an_answer_without_end_is_refused(api: httpx.Client) -> None:
    sql = "FOREACH [1..20000] AS i DO pad('', 5000) AS s FROM '#'"
    answer = api.post("/rules:test", json={"sql": sql, "event": {"topic": "t"}})
    assert answer.status_code == 422
    # whichever bound a busy machine reaches first
    assert answer.json()["code"] in (
        "answer_too_large",
        "too_slow",
    )


def test_the_objects_of_the_way_are_made_used_and_protected(api: httpx.Client) -> None:
    made = [
        api.post("/schemas", json={"name": "reading", "type": "json", "source": READING}),
        api.post(
            "/validations",
            json={
                "name": "meters",
                "topics": ["meters/#"],
                "strategy": "all_pass",
                "failure_action": "drop",
                "checks": [{"type": "json", "schema": "reading"}],
            },
        ),
        api.post(
            "/transforms",
            json={
                "name": "site",
                "topics": ["meters/#"],
                "failure_action": "drop",
                "payload_decoder": {"type": "json"},
                "payload_encoder": {"type": "json"},
                "operations": [{"key": "payload.site", "value": "nth(2, tokens(topic, '/'))"}],
            },
        ),
        api.post(
            "/rules",
            json={
                "name": "warm",
                "sql": 'SELECT payload.t AS t FROM "meters/#"',
                "actions": [{"type": "console"}],
            },
        ),
    ]
    assert [answer.status_code for answer in made] == [201] * 4, [answer.text for answer in made]
    in_use = api.delete("/schemas/reading")
    assert (in_use.status_code, in_use.json()["users"]) == (409, ["validation 'meters'"])
    for path in ("rules/warm", "transforms/site", "validations/meters", "schemas/reading"):
        assert api.get(f"/{path}").status_code == 200
        assert api.delete(f"/{path}").status_code == 204


def test_a_cascade_lists_and_deletes_what_uses_an_object(api: httpx.Client) -> None:
    schema = {"name": "used", "type": "json", "source": READING}
    check = {
        "strategy": "all_pass",
        "failure_action": "drop",
        "checks": [{"type": "json", "schema": "used"}],
    }
    first = {"name": "first", "sql": 'SELECT payload.t AS t FROM "c/#"', "actions": []}
    second = {"name": "second", "sql": 'SELECT t FROM "$rules/first"', "actions": []}
    for path, body in (
        ("schemas", schema),
        ("validations", {"name": "by-schema", "topics": ["c/#"], **check}),
        ("rules", first),
        ("rules", second),
    ):
        assert api.post(f"/{path}", json=body).status_code == 201
    for path, name, user in (("schemas", "used", "by-schema"), ("rules", "first", "second")):
        assert api.delete(f"/{path}/{name}").json()["code"] == "in_use"
        effect = api.delete(f"/{path}/{name}", params={"cascade": True, "dry_run": True}).json()
        assert [(one["name"], one["how"]) for one in effect["affected"]] == [
            (user, "is deleted too")
        ]
        assert api.get(f"/{path}/{name}").status_code == 200
        assert api.delete(f"/{path}/{name}", params={"cascade": True}).status_code == 204
        assert api.get(f"/{path}/{name}").status_code == 404
    assert api.get("/validations/by-schema").status_code == 404
    assert api.get("/rules/second").status_code == 404
    missing = api.delete("/rules/none", params={"cascade": True})
    assert missing.status_code == 404


def saved(api: httpx.Client) -> list[Any]:
    """The validations in their order, without counters."""
    return [{**item, "metrics": None} for item in api.get("/validations").json()["items"]]


@pytest.mark.parametrize(
    ("error", "status"), [(Unavailable("the disk is full"), 503), (RuntimeError("a bug"), 500)]
)
def test_a_cascade_of_which_a_part_fails_late_changes_nothing(
    api: httpx.Client, node: Node, error: Exception, status: int
) -> None:
    assert (
        api.post("/schemas", json={"name": "used", "type": "json", "source": READING}).status_code
        == 201
    )
    check = {"topics": ["c/#"], "strategy": "all_pass", "failure_action": "drop"}
    for name in ("first", "second", "third"):
        checks = [
            {"type": "json", "schema": "used"}
            if name == "second"
            else {"type": "sql", "sql": "SELECT * WHERE payload.t <> 1"}
        ]
        assert (
            api.post("/validations", json={"name": name, "checks": checks, **check}).status_code
            == 201
        )
    before = saved(api)
    schemas: Any = node.context.services["schemas"]
    schemas.error = error
    effect = api.delete("/schemas/used", params={"cascade": True, "dry_run": True}).json()
    assert [one["name"] for one in effect["affected"]] == ["second"]
    assert api.delete("/schemas/used", params={"cascade": True}).status_code == status
    assert saved(api) == before
    assert api.get("/schemas/used").status_code == 200
    schemas.error = None
    assert api.delete("/schemas/used").json()["users"] == ["validation 'second'"]


def test_a_misspelt_function_is_refused_with_place_and_suggestion(api: httpx.Client) -> None:
    answer = api.post(
        "/rules",
        json={"name": "r", "sql": "SELECT\n  uper(payload.a) AS a\nFROM 't'", "actions": []},
    )
    assert answer.status_code == 422
    [problem] = answer.json()["errors"]
    assert (problem["pointer"], problem["line"], problem["column"]) == ("/sql", 2, 3)
    assert "upper" in problem["suggestion"]


def test_a_rule_is_tried_on_an_event(api: httpx.Client) -> None:
    body = b'{"sql":"SELECT payload.n AS n, payload.f AS f FROM \\"t/#\\"","event":{"topic":"t/1","payload":'
    big = b'"{\\"n\\":123456789012345678901234567890,\\"f\\":1.0}"}}'
    answer = api.post("/rules:test", content=body + big)
    assert (
        answer.content
        == b'{"outcome":"rows","rows":[{"n":123456789012345678901234567890,"f":1.0}]}'
    )


def test_bytes_go_in_and_come_out(api: httpx.Client) -> None:
    body = {
        "sql": 'SELECT payload FROM "t"',
        "event": {"topic": "t", "payload": {"encoding": "base64", "data": "/w=="}},
    }
    assert api.post("/rules:test", json=body).json()["rows"] == [{"payload": {"$base64": "/w=="}}]
    body = {"expression": "bytesize(b)", "bindings": {"b": {"$base64": "?"}}}
    assert api.post("/variform:eval", json=body).status_code == 422


def test_the_order_of_transformations_is_changed_as_a_whole(api: httpx.Client) -> None:
    for name in ("a", "b", "c"):
        spec = {
            "topics": ["t"],
            "failure_action": "drop",
            "operations": [{"key": "qos", "value": "1"}],
        }
        assert api.put(f"/transforms/{name}", json=spec).status_code == 201
    answer = api.post("/transforms:reorder", json={"order": ["c", "a", "b"]})
    assert [item["name"] for item in answer.json()["items"]] == ["c", "a", "b"]
    wrong = api.post("/transforms:reorder", json={"order": ["c", "a"]})
    assert (wrong.status_code, wrong.json()["errors"][0]["pointer"]) == (422, "/order")
    assert api.post("/transforms:reorder", json={"order": "c"}).status_code == 422


@pytest.mark.parametrize(
    "path", ["/rules:test", "/templates:render", "/variform:eval", "/transforms:preview"]
)
@pytest.mark.parametrize(
    "body", [{}, {"sql": 1}, {"expression": []}, {"template": None}, {"message": {"a": 1}}]
)
def test_a_body_without_sense_is_refused(
    api: httpx.Client, path: str, body: dict[str, object]
) -> None:
    answer = api.post(path, json=body)
    assert answer.status_code == 422
    assert answer.json()["code"] != "evaluation_failed"


def latest(api: httpx.Client) -> Any:
    """The newest entry of the audit log."""
    [row] = api.get("/audit-log", params={"limit": 1}).json()["items"]
    return api.get(f"/audit-log/{row['id']}").json()


def test_changes_of_schemas_rules_and_their_order_are_taken_back(audited: httpx.Client) -> None:
    schema = {"name": "reading", "type": "json", "source": READING}
    assert audited.post("/schemas", json=schema).status_code == 201
    for name in ("first", "second"):
        rule: dict[str, Any] = {
            "name": name,
            "sql": "SELECT payload.t AS t FROM 'a/#'",
            "actions": [],
        }
        assert audited.post("/rules", json=rule).status_code == 201
    assert audited.patch("/rules/first", json={"description": "d"}).status_code == 200
    changed = latest(audited)
    assert (changed["kind"], changed["name"], changed["summary"]) == (
        "rule",
        "first",
        "changed description",
    )
    assert audited.post(f"/audit-log/{changed['id']}:revert", params={"dry_run": True}).json()[
        "affected"
    ]
    assert audited.post(f"/audit-log/{changed['id']}:revert").status_code == 200
    assert audited.get("/rules/first").json().get("description", "") == ""
    again = audited.post(f"/audit-log/{changed['id']}:revert")
    assert (again.status_code, "has changed at" in again.json()["detail"]) == (409, True)
    assert audited.delete("/rules/first").status_code == 204
    assert audited.post(f"/audit-log/{latest(audited)['id']}:revert").status_code == 200
    assert [row["name"] for row in audited.get("/rules").json()["items"]] == ["first", "second"]
    assert len(audited.get("/rules/first/versions").json()["items"]) == 3


def test_a_cascade_is_one_entry_and_one_revert(audited: httpx.Client) -> None:
    audited.post("/schemas", json={"name": "reading", "type": "json", "source": READING})
    checks = [{"type": "json", "schema": "reading"}]
    gate = {
        "name": "meters",
        "topics": ["a/#"],
        "strategy": "all_pass",
        "failure_action": "drop",
        "checks": checks,
    }
    assert audited.post("/validations", json=gate).status_code == 201
    assert (
        audited.delete("/schemas/reading", params={"cascade": True, "permanent": True}).status_code
        == 204
    )
    entry = latest(audited)
    assert [(change["kind"], change["change"]) for change in entry["changes"]] == [
        ("validation", "deleted"),
        ("schema", "deleted"),
    ]
    reverted = audited.post(f"/audit-log/{entry['id']}:revert")
    assert reverted.status_code == 200, reverted.text
    assert audited.get("/validations/meters").json()["checks"][0]["schema"] == "reading"


def test_a_revert_that_fails_in_the_middle_changes_nothing(
    audited: httpx.Client, node: Node
) -> None:
    audited.post("/schemas", json={"name": "reading", "type": "json", "source": READING})
    created = latest(audited)["id"]
    node.context.services["schemas"].error = Unavailable("the disk is full")  # type: ignore[attr-defined]
    assert audited.post(f"/audit-log/{created}:revert").status_code == 503
    assert audited.get("/schemas/reading").status_code == 200
    refused = latest(audited)
    assert (refused["operation"], refused["outcome"], refused["changes"]) == (
        "revertAuditEntry",
        "failed",
        [],
    )
    assert audited.post(f"/audit-log/{refused['id']}:revert").status_code == 422


def test_trials_reads_and_wrong_cursors_leave_no_entry(audited: httpx.Client) -> None:
    audited.post("/rules:check", json={"sql": "SELECT * FROM 'a'"})
    audited.get("/rules")
    assert audited.get("/audit-log", params={"cursor": "WyJ6eiJd"}).status_code == 422
    assert audited.get("/audit-log/zz").status_code == 404
    assert audited.get("/audit-log").json()["items"] == []
    audited.put("/rules/none", json={"sql": "SELEC"})
    assert latest(audited)["outcome"] == "refused"


def test_a_sign_in_by_the_link_has_an_entry_without_its_code(
    audited: httpx.Client, node: Node
) -> None:
    code = node.context.sign_in.new_code()
    root = str(audited.base_url).removesuffix("/api/v1/")
    assert httpx.get(f"{root}/?code={code}", verify=NO_TLS).headers["set-cookie"]
    entry = latest(audited)
    assert (entry["operation"], entry["origin"], entry["request"]) == (
        "signIn",
        "dashboard",
        "GET /",
    )
    assert code not in str(entry)


def test_the_history_of_a_large_object_is_no_large_answer(audited: httpx.Client) -> None:
    operations = [{"key": f"payload.k{at}", "value": f"'{'y' * 980}'"} for at in range(900)]
    large = {"name": "large", "topics": ["a/#"], "failure_action": "drop", "operations": operations}
    assert audited.post("/transforms", json=large).status_code == 201
    for number in range(8):
        answer = audited.patch("/transforms/large", json={"description": f"change {number}"})
        assert answer.status_code == 200, answer.text
    kind = latest(audited)["kind"]
    answer = audited.get("/audit-log:history", params={"kind": kind, "name": "large"})
    assert answer.status_code == 200, answer.text
    versions = answer.json()["items"]
    assert len(versions) == 9
    assert len(answer.content) < 6 * 1024 * 1024
    assert [version["spec"] is None for version in versions] == [False] * 5 + [True] * 4
    restored = audited.post(f"/audit-log/{versions[-2]['id']}:restore")
    assert restored.status_code == 200, restored.text
    assert audited.get("/transforms/large").json()["description"] == "change 0"
