"""Large bodies for every kind of objects and every operation, made from its schema: none holds up the event loop for
100 ms.

Each list is filled with valid items, with the same one, and with items of a wrong type; each map and each object gets
very many members, known or not. Nothing is saved: a dry run checks as far as a write does. Measured is the processor
time of the thread of the event loop, which other programs do not change.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from broker.core.kinds import Kind, kinds
from tests.support.node import Node, running
from tests.support.processor import is_within, loop_s

BODY_BYTES: Final = 2_000_000
"""Of a body, at most; the API takes 2 MiB."""
MOST_S: Final = 0.15
"""Processor time of the event loop for one body: some 50 ms to read it in several turns, and 100 ms to check it."""
ATTEMPTS: Final = 5
"""A collection of garbage, or a timer, may fall into one of them."""
SAMPLES: Final = {
    "name": "large",
    "topics": ["a/b"],
    "topic": "a/b",
    "sql": 'SELECT * FROM "a/b"',
    "schema": "s",
    "source": "{}",
    "url": "http://127.0.0.1:9",
    "server": "127.0.0.1:9",
    "bootstrap_hosts": "127.0.0.1:9",
    "filter": "a/b",
    "stream": "s",
    "value": "'x'",
    "strategy": "all_pass",
}
"""Values of members that a string alone would not fit."""

# Creations of kinds, which the first test is about, and reports of the broker's own processes.
LEFT_OUT: Final = {f"create{kind.id}" for kind in kinds()} | {"reportTable", "openTables"}
LONGEST_ANSWER: Final = dict.fromkeys(
    ("/clients:kick", "/clients:clear", "/pipeline:preview"), 2 * BODY_BYTES
)
"""Answers of operations that show what they were sent, in bytes."""


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    config = "lake.run_spark = false\noverload.enable = false\n"
    with running(tmp_path_factory.mktemp("large") / "node", config=config) as node:
        yield node
        assert "Traceback" not in node.log.read_text()


class Samples:
    """Bodies by a JSON schema, as pydantic writes it; ``definitions`` are those of the OpenAPI document."""

    def __init__(self, schema: dict[str, Any], definitions: dict[str, Any] | None = None) -> None:
        self._schema = schema
        self._definitions = schema.get("$defs", {}) if definitions is None else definitions
        self._seen: list[dict[str, Any]] = []

    def large(self) -> Iterator[tuple[str, Any]]:
        """Return what was made large, and the body."""
        return self._large(self._schema, "")

    def _large(self, schema: dict[str, Any], place: str) -> Iterator[tuple[str, Any]]:
        schema = self._resolved(schema)
        if schema in self._seen:
            return
        if "properties" in schema:
            self._seen.append(schema)
        for choice in schema.get("anyOf", schema.get("oneOf", ())):
            yield from self._large(choice, place)
        if schema.get("type") == "array":
            item = self.sample(schema.get("items", {}))
            yield f"{place}: equal items", _filled(lambda _: item)
            yield f"{place}: items", _filled(lambda at: _other(item, at))
            yield f"{place}: wrong items", _filled(lambda at: [at])
            for what, inner in self._large(schema.get("items", {}), f"{place}/0"):
                yield what, [inner]
        elif schema.get("type") == "object":
            sample = self.sample(schema)
            yield f"{place}: members", {**sample, **_members(str)}
            for name, member in schema.get("properties", {}).items():
                for what, inner in self._large(member, f"{place}/{name}"):
                    yield what, {**deepcopy(sample), name: inner}

    def sample(self, schema: dict[str, Any], name: str = "") -> Any:
        """A small value that fits."""
        schema = self._resolved(schema)
        if name in SAMPLES:
            return SAMPLES[name]
        for key in ("const", "default"):
            if schema.get(key) is not None:
                return schema[key]
        if "enum" in schema:
            return schema["enum"][0]
        if choices := schema.get("anyOf", schema.get("oneOf")):
            return self.sample(choices[0])
        kind = str(schema.get("type"))
        if kind == "object":
            members = schema.get("properties", {})
            return {name: self.sample(members[name], name) for name in schema.get("required", ())}
        if kind == "array":
            return [self.sample(schema.get("items", {}))]
        return {"integer": 1, "number": 1.5, "boolean": True, "null": None}.get(kind, "a/b")

    def _resolved(self, schema: dict[str, Any]) -> dict[str, Any]:
        found: dict[str, Any] = (
            self._definitions[schema["$ref"].split("/")[-1]] if "$ref" in schema else schema
        )
        return found


def _filled(item: Any) -> list[Any]:
    size = len(json.dumps(item(100_000))) + 2
    return [item(at) for at in range(min(150_000, BODY_BYTES // size))]


def _members(value: Any) -> dict[str, Any]:
    return {f"m{at}": value(at) for at in range(100_000)}


def _other(item: Any, at: int) -> Any:
    """The item with other strings, so that items differ."""
    if isinstance(item, str):
        return f"{item}{at}"
    if isinstance(item, dict):
        return {
            name: value if name == "type" else _other(value, at) for name, value in item.items()
        }
    return item


CASES = [
    pytest.param(kind, model, id=f"{kind.path}-{model.__name__}")
    for kind in kinds()
    if "create" in kind.abilities.verbs or "put" in kind.abilities.verbs
    for model in kind.spec_models()
]


@pytest.mark.parametrize(("kind", "model"), CASES)
def test_no_large_body_holds_up_the_event_loop(node: Node, kind: Kind, model: Any) -> None:
    samples = Samples(model.model_json_schema())
    with node.client() as client:
        method = "POST" if "create" in kind.abilities.verbs else "PUT"
        path = "/listeners/tcp:large" if kind.path == "listeners" else f"/{kind.path}"
        used_s = {
            what: _used_s(node, client, method, path, what, body, {"dry_run": True})
            for what, body in samples.large()
        }
    assert used_s
    assert not {what: used for what, used in used_s.items() if used}


def test_no_large_body_that_may_name_files_holds_up_the_event_loop(node: Node) -> None:
    body = {
        "name": "large",
        "type": "http",
        "url": "file",
        "ssl": _filled(lambda at: {"certfil": at}),
    }
    with node.client() as client:
        assert not _used_s(node, client, "POST", "/connectors", "files", body, {"dry_run": True})


DOCUMENT: Final = json.loads(Path("docs/reference/openapi.json").read_text())
OPERATIONS: Final = [
    pytest.param(method, path, operation, id=operation["operationId"])
    for path, methods in DOCUMENT["paths"].items()
    for method, operation in methods.items()
    if "application/json" in operation.get("requestBody", {}).get("content", {})
    and operation["operationId"] not in LEFT_OUT
    and (":" in path or "{" not in path)
]


@pytest.mark.parametrize(("method", "path", "operation"), OPERATIONS)
def test_no_large_body_of_an_operation_holds_up_the_event_loop(
    node: Node, method: str, path: str, operation: dict[str, Any]
) -> None:
    schema = operation["requestBody"]["content"]["application/json"]["schema"]
    samples = Samples(schema, DOCUMENT["components"]["schemas"])
    url = re.sub(r"\{[^}]+\}", "large", path).removeprefix("/api/v1")
    with node.client() as client:
        used_s = {
            what: _used_s(node, client, method, url, what, body, {})
            for what, body in samples.large()
        }
    assert not {what: used for what, used in used_s.items() if used}


def _used_s(
    node: Node,
    client: httpx.Client,
    method: str,
    path: str,
    what: str,
    body: Any,
    query: dict[str, Any],
) -> float:
    """Send a body, and again if it took too long; the least processor time of the event loop if it always did."""
    content, used_s = json.dumps(body), []
    for _ in range(ATTEMPTS):
        before_s = loop_s(node.pid)
        answer = client.request(method, path, params=query, content=content)
        used_s.append(loop_s(node.pid) - before_s)
        assert answer.status_code != 500, f"{what}: {answer.text[:500]}"
        assert len(answer.content) < LONGEST_ANSWER.get(path, 100_000), what
        if is_within(used_s[-1], MOST_S):
            return 0
    return min(used_s)
