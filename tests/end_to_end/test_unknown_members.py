"""A member that no object of a kind has is refused, whichever service keeps the objects."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.local_node import Node, running

_KNOWN: dict[str, dict[str, Any]] = {
    "schemas": {"type": "json", "source": "{}"},
    "schema-registries": {"url": "http://127.0.0.1:9"},
    "validations": {
        "topics": ["t"], "strategy": "all_pass", "failure_action": "drop",
        "checks": [{"type": "sql", "sql": "SELECT * WHERE payload.t > 1"}],
    },
    "transforms": {"topics": ["t"], "failure_action": "drop", "operations": []},
    "rules": {"sql": 'SELECT * FROM "t"'},
    "streams": {"topics": ["t/#"]},
    "access/rules": {"permission": "allow", "topics": ["t"]},
    "rewrites": {"source_topic": "a", "dest_topic": "b"},
    "auto-subscriptions": {"topic": "t"},
    "lake/tables": {"stream": "s"},
    "connectors": {"type": "http", "url": "http://127.0.0.1:9"},
    "actions": {"type": "http", "connector": "c", "parameters": {"path": "/"}},
    "sources": {"type": "http_server", "connector": "c", "parameters": {"topic": "t"}},
    "users": {"password": "long-enough-a-password"},
}  # fmt: skip


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with running(tmp_path_factory.mktemp("members") / "node") as node:
        yield node


@pytest.mark.parametrize("kind", _KNOWN)
@pytest.mark.parametrize("verb", ["POST", "PUT"])
def test_an_object_has_no_unknown_members(node: Node, kind: str, verb: str) -> None:
    path = f"/{kind}" if verb == "POST" else f"/{kind}/made"
    answer = node.call(verb, path, {"name": "made", **_KNOWN[kind], "unknwon": 1}, expect=422)
    assert "unknwon" in str(
        [(error.get("pointer"), error["message"]) for error in answer["errors"]]
    )
    node.call("GET", f"/{kind}/made", expect=404)


def test_operations_that_keep_nothing_have_none_either(node: Node) -> None:
    document = node.call("GET", "/openapi.json")
    asked = 0
    for path, operations in document["paths"].items():
        if "{" in path or ":" not in path or "requestBody" not in operations.get("post", {}):
            continue
        if "application/json" not in operations["post"]["requestBody"]["content"]:
            continue
        body: dict[str, Any] = {"unknwon": 1}
        if path.endswith(":probe"):
            types = {"sources": "http_server", "alarm-receivers": "topic"}
            of_kind = path.removeprefix("/api/v1/").removesuffix(":probe")
            body |= {"type": types.get(of_kind, "file"), "name": "x"}
        answer = node.call("POST", path.removeprefix("/api/v1"), body, expect=422)
        assert "unknwon" in str(answer["errors"]), (path, answer)
        asked += 1
    assert asked > 25
