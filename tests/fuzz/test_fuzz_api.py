"""Whatever is sent to the management API, the answer is one that its description has: a declared status, with a body
that fits, and not 500. The description is the grammar, with its languages. No call holds up the event loop.
"""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from broker.admin.rights import ROLES
from tests.support.api_document import ApiDocument
from tests.support.node import TOKEN, Node, running
from tests.support.plain_http import NO_TLS
from tests.support.processor import is_within, loop_s

_CALLS = 1500
_MOST_S = 0.1
_MOST_S_OF_TAIL = 1.0
"""Processor time of the event loop for one call."""
_ATTEMPTS = 4
"""A collection of garbage, or a timer, may fall into one of them."""
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
_NAMES = [
    "hot", "meters", "site", "plant", "orders", "readings", "meter", "duty", "meter-7", "disk_nearly_full",
    "mqtt:alarms", "mqtt:orders", "mqtt.max_packet_size", "mine", "old", "1",
    "a", "nosuch", "..", "%00", "%2F", "é", "a" * 300, "tcp:default", "-",
]  # fmt: skip


class Caller:
    """Makes calls that an operation might be sent."""

    def __init__(self, document: dict[str, Any], seed: int) -> None:
        self._random = random.Random(seed)
        self._schemas = document["components"]["schemas"]
        self.document = ApiDocument(document)

    def call(self) -> tuple[str, str, Any, dict[str, str], Any]:
        """Method, path, body, query, and the operation."""
        choice = self._random
        method, path, operation = choice.choice(self.document.operations)
        path = re.sub(r"\{[^}]+\}", lambda _: choice.choice(_NAMES), path)
        query = {
            parameter["name"]: choice.choice(
                ["", "0", "-1", "9" * 30, "x", "true", "%", "2026-13-01T00:00:00Z"]
            )
            for parameter in operation.get("parameters", [])
            if parameter["in"] == "query" and choice.random() < 0.2
        }
        content = operation.get("requestBody", {}).get("content", {}).get("application/json")
        body = None if content is None else self._value(content["schema"], 0)
        return method, path, body, query, operation

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
    config = "lake.run_spark = false\noverload.enable = false\nalarms.disk_free_min = 1000TB\n"
    with running(tmp_path_factory.mktemp("fuzz") / "node", config=config) as node:
        _populate(node)
        yield node


def _populate(node: Node) -> None:
    """Create the objects of the examples, and messages, so that calls have something to show."""
    document = ApiDocument(node.call("GET", "/openapi.json"))
    created = 0
    with node.client() as client:
        for _ in range(3):  # those that others name come first
            for method, path, operation in document.operations:
                content = operation.get("requestBody", {}).get("content", {})
                body = content.get("application/json", {}).get("example")
                if method == "post" and "{" not in path and ":" not in path and body:
                    answer = client.post(path.removeprefix("/api/v1"), json=body)
                    created += answer.status_code == 201
        for number in range(20):
            message = {
                "topic": f"meters/{number}/telemetry",
                "payload": '{"t": 30}',
                "retain": True,
            }
            client.post("/messages:publish", json=message)
    assert created > 15


class Session:
    """Sends calls, and gathers the problems of their answers."""

    def __init__(self, node: Node, token: str, seed: int, **headers: str) -> None:
        self._node = node
        self._caller = Caller(node.call("GET", "/openapi.json"), seed)
        self.wrong: list[str] = []
        self.statuses: Counter[int] = Counter()
        self._client = httpx.Client(
            base_url=node.url,
            headers={
                "Authorization": f"Bearer {token}",
                "Content-Type": "application/json",
                **headers,
            },
            timeout=60,
            verify=NO_TLS,
            trust_env=False,
        )

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def run(self, calls: int, skipped: str = "") -> None:
        """Make so many calls; those whose path has ``skipped`` in it are left out."""
        for _ in range(calls):
            method, path, body, query, operation = self._caller.call()
            if not skipped or skipped not in path:
                content = None if body is None else _json(body)
                self._send(method, path, content, query, operation)

    def _send(
        self, method: str, path: str, content: bytes | None, query: dict[str, str], operation: Any
    ) -> None:
        used_s, is_late = [], True
        most_s = _MOST_S_OF_TAIL if path.endswith("/topics/tail") else _MOST_S
        for _ in range(_ATTEMPTS):
            before_s = loop_s(self._node.pid)
            answer = self._client.request(method, path, content=content, params=query)
            used_s.append(loop_s(self._node.pid) - before_s)
            is_late = not is_within(used_s[-1], most_s)
            if not is_late or path.endswith("/topics/tail"):
                break  # a tail lasts for seconds, in which the broker does its other work
        self.statuses[answer.status_code] += 1
        problems = [] if ".." in path else [*self._caller.document.misfits(answer, operation)]
        if answer.status_code >= 500 and answer.status_code != 503:
            problems.append(f"status {answer.status_code}")
        if is_late:
            problems.append(f"holds up the loop for {min(used_s):.3f} s")
        if answer.status_code == 401 and not path.endswith("/session"):
            problems.append("the token is refused")
        if problems:
            call = f"{method} {path} {query} {(content or b'')[:600]!r}"
            self.wrong.append(
                f"{operation['operationId']}: {problems}: {call}: {answer.text[:300]}"
            )


@pytest.mark.parametrize("seed", range(2))
def test_every_call_of_the_api_is_answered_as_described(node: Node, seed: int) -> None:
    with Session(node, TOKEN, seed, Origin=node.url) as session:
        session.run(_CALLS // 2)
    assert session.wrong == []
    assert session.statuses[200] > _CALLS // 40
    assert "api.failed" not in node.log.read_text()


@pytest.mark.parametrize(
    "spec",
    [*({"role": role} for role in ROLES), {"role": "administrator", "topics": ["t/#"]}],
    ids=json.dumps,
)
def test_every_call_of_any_role_is_answered_as_described(node: Node, spec: dict[str, Any]) -> None:
    name = "-".join(["fuzz", *spec])
    token = node.call("PUT", f"/tokens/{name}-{spec['role']}", spec).get("token") or ""
    with Session(node, token, len(token) + ROLES.index(spec["role"])) as session:
        # else an administrator may delete its own token
        session.run(_CALLS // 5, skipped="/tokens" if spec["role"] == "administrator" else "")
    assert session.wrong == []
    assert session.statuses[403] > 0 or spec == {"role": "administrator"}
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
