"""Whatever is sent to the management API, the answer is not 500. Its description is the grammar, with its languages."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from broker.admin.rights import ROLES
from tests.support.node import TOKEN, Node, running
from tests.support.plain_http import NO_TLS

_CALLS = 1500
_ODD: list[Any] = [
    None, True, 0, -1, 2**63, 10**400, 1.5, -1e308, "", "\0", "\ud800", "a" * 300, "é/+#", "${x", "$SYS/x", [], {},
    [[]], [None], {"": 1}, {"$base64": "?"}, {"encoding": "json", "data": 10**30}, "9" * 5000,
]  # fmt: skip
_LANGUAGES = [
    'SELECT 1.5 + "5" AS y FROM "t"',
    'SELECT * FROM "t" WHERE a IN (\'\0\')',
    'FOREACH payload AS p DO p.x FROM "t/#"', 'SELECT', "SELECT " + "(" * 500 + "1" + ")" * 500 + ' FROM "t"',
    "concat(", "upper(a, b, c)", "iif(true,", "'" * 9, '{"type":"record"}', '{"$ref":"#"}', '{"pattern":"("}',
    'syntax = "proto3"; message M { int32 a = %s; }' % ("9" * 5000), "message M {", "[" * 2000, "${.}", "${a.b[1",
    "SELECT sprintf('%1000000000d', 1) AS x FROM \"t\"", 'SELECT payload.x[99999999999999999999] AS y FROM "t"',
]  # fmt: skip
_NAMES = ["a", "nosuch", "..", "%00", "%2F", "é", "a" * 300, "tcp:default", "-"]


class Caller:
    """Makes calls that an operation might be sent."""

    def __init__(self, document: dict[str, Any], seed: int) -> None:
        self._random = random.Random(seed)
        self._schemas = document["components"]["schemas"]
        self._operations = [
            (method, path, operation)
            for path, operations in document["paths"].items()
            for method, operation in operations.items()
        ]

    def call(self) -> tuple[str, str, Any, dict[str, str]]:
        """Method, path, body and query."""
        choice = self._random
        method, path, operation = choice.choice(self._operations)
        path = re.sub(r"\{[^}]+\}", lambda _: choice.choice(_NAMES), path)
        query = {
            parameter["name"]: choice.choice(
                ["", "0", "-1", "9" * 30, "x", "true", "%", "2026-13-01T00:00:00Z"]
            )
            for parameter in operation.get("parameters", [])
            if parameter["in"] == "query" and choice.random() < 0.3
        }
        content = operation.get("requestBody", {}).get("content", {}).get("application/json")
        return method, path, None if content is None else self._value(content["schema"], 0), query

    def _value(self, schema: dict[str, Any], depth: int) -> Any:
        choice = self._random
        if depth and choice.random() < 0.15:
            return choice.choice(_ODD)
        if "$ref" in schema:
            return self._value(self._schemas[schema["$ref"].rsplit("/", 1)[-1]], depth)
        if "anyOf" in schema or "oneOf" in schema:
            return self._value(choice.choice(schema.get("anyOf") or schema["oneOf"]), depth)
        if "enum" in schema:
            return choice.choice(schema["enum"])
        if "const" in schema:
            return schema["const"]
        kind = schema.get("type")
        if kind == "object" or "properties" in schema:
            members = schema.get("properties", {"x": {}})
            return {
                name: self._value(inner, depth + 1)
                for name, inner in members.items()
                if depth < 5 and choice.random() < 0.8
            }
        if kind == "array":
            return [
                self._value(schema.get("items", {}), depth + 1) for _ in range(choice.randrange(3))
            ]
        if kind == "string":
            return choice.choice(
                [
                    *_LANGUAGES,
                    "t/#",
                    "t",
                    "a",
                    "json",
                    "avro",
                    "protobuf",
                    *schema.get("examples", []),
                ]
            )
        if kind in ("integer", "number"):
            return choice.choice([0, 1, 2, 3, -1, 10**18])
        return choice.choice([True, False]) if kind == "boolean" else choice.choice(_ODD)


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with running(tmp_path_factory.mktemp("fuzz") / "node") as node:
        yield node


@pytest.mark.parametrize("seed", range(2))
def test_no_call_of_the_api_is_answered_by_500(node: Node, seed: int) -> None:
    caller = Caller(node.call("GET", "/openapi.json"), seed)
    failed: list[str] = []
    headers = {
        "Authorization": f"Bearer {TOKEN}",
        "Content-Type": "application/json",
        "Origin": node.url,
    }
    with httpx.Client(
        base_url=node.url, headers=headers, timeout=60, verify=NO_TLS, trust_env=False
    ) as client:
        for number in range(_CALLS // 2):
            method, path, body, query = caller.call()
            content = None if body is None else _json(body)
            answer = client.request(method, path, content=content, params=query)
            if answer.status_code >= 500 and answer.status_code != 503:
                failed.append(
                    f"{number}: {method} {path} {query} {(content or b'')[:600]!r}: {answer.text[:300]}"
                )
    assert failed == []
    assert "api.failed" not in node.log.read_text()


@pytest.mark.parametrize(
    "spec",
    [*({"role": role} for role in ROLES), {"role": "administrator", "topics": ["t/#"]}],
    ids=json.dumps,
)
def test_no_call_of_any_role_is_answered_by_500(node: Node, spec: dict[str, Any]) -> None:
    name = "-".join(["fuzz", *spec])
    token = node.call("PUT", f"/tokens/{name}-{spec['role']}", spec).get("token") or ""
    caller = Caller(node.call("GET", "/openapi.json"), len(token) + ROLES.index(spec["role"]))
    failed: list[str] = []
    refused = 0
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    with httpx.Client(
        base_url=node.url, headers=headers, timeout=60, verify=NO_TLS, trust_env=False
    ) as client:
        for number in range(_CALLS // 5):
            method, path, body, query = caller.call()
            if spec["role"] == "administrator" and "/tokens" in path:
                continue  # else it may delete its own
            content = None if body is None else _json(body)
            answer = client.request(method, path, content=content, params=query)
            refused += answer.status_code == 403
            assert answer.status_code != 401 or path.endswith("/session"), (
                method,
                path,
                answer.text[:300],
            )
            if answer.status_code >= 500 and answer.status_code != 503:
                failed.append(
                    f"{number}: {method} {path} {query} {(content or b'')[:600]!r}: {answer.text[:300]}"
                )
    assert failed == []
    assert refused > 0 or spec == {"role": "administrator"}
    assert "api.failed" not in node.log.read_text()


@pytest.mark.parametrize("number", range(len(_LANGUAGES)))
def test_no_text_of_a_language_is_answered_by_500(node: Node, number: int) -> None:
    text = _LANGUAGES[number]
    message = {"topic": "t", "payload": '{"a":1,"b":"x"}'}
    schema = {"type": "json", "source": text}
    check = {"type": "sql", "sql": text}
    gate = {"name": "fuzzed", "topics": ["t"], "failure_action": "drop"}
    transformation = {**gate, "operations": [{"key": "payload.x", "value": text}]}
    validation = {**gate, "strategy": "all_pass", "checks": [check]}
    calls: list[tuple[str, str, dict[str, Any]]] = [
        ("PUT", "/rules/fuzzed", {"sql": text}),
        ("PUT", "/rules/fuzzed", {"language": "jq", "jq": text, "from": ["t"]}),
        (
            "PUT",
            "/rules/fuzzed",
            {"sql": 'SELECT * FROM "t"', "actions": [{"type": "republish", "topic": text}]},
        ),
        ("PUT", "/transforms/fuzzed", transformation),
        ("PUT", "/validations/fuzzed", validation),
        *(
            ("PUT", "/schemas/fuzzed", {"type": kind, "source": text})
            for kind in ("json", "avro", "protobuf")
        ),
        (
            "PUT",
            "/rewrites/fuzzed",
            {"source_topic": "t/#", "re": text[:200], "dest_topic": "x/$1"},
        ),
        ("POST", "/rules:test", {"sql": text, "event": {"topic": "t", "payload": '{"b":1}'}}),
        ("POST", "/rules:check", {"sql": text}),
        ("POST", "/rules:explain", {"sql": text, "event": {"topic": "t"}}),
        ("POST", "/templates:render", {"template": text, "row": {"a": 1}}),
        ("POST", "/variform:eval", {"expression": text, "bindings": {"a": "1"}}),
        ("POST", "/transforms:preview", {"transformations": [transformation], "message": message}),
        (
            "POST",
            "/validations:test",
            {"validations": [validation], "message": message, "schemas": [schema]},
        ),
        ("POST", "/pipeline:preview", {"message": message}),
        ("POST", "/messages:publish", {"topic": "t", "payload": text}),
    ]
    failed = []
    with node.client() as client:
        for method, path, body in calls:
            answer = client.request(method, path, content=_json(body))
            if answer.status_code >= 500 and answer.status_code != 503:
                failed.append(f"{method} {path}: {answer.text[:300]}")
    assert failed == []


def _json(value: Any) -> bytes:
    """As text with lone surrogates escaped, which the standard library writes and reads."""
    return json.dumps(value).encode()
