"""Secrets that are planted in every object which may have one are looked for in all that the API, the log and the files
of exports say, as each role: answers, refusals, effects, the audit log, backups and events."""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from broker.admin.rights import ROLES
from tests.end_to_end.clients import Client
from tests.support.local_node import Node, running, sluice
from tests.support.node import TOKEN
from tests.support.plain_http import NO_TLS

PLANTED = "pl4nted+Value/of a-secret"
FORMS = (
    PLANTED,
    quote(PLANTED),
    quote(PLANTED, safe=""),
    PLANTED.encode().hex(),
    b64encode(PLANTED.encode()).decode(),
    b64encode(f"ann:{PLANTED}".encode()).decode(),
)
HEADERS = {"authorization": f"Bearer {PLANTED}"}
URL = f"http://127.0.0.1:9/x?key={quote(PLANTED, safe='')}"
BASIC = {"mechanism": "basic", "username": "ann", "password": PLANTED}
DATABASE = {"server": "127.0.0.1:9", "database": "d", "username": "u", "password": PLANTED}
OBJECTS: list[tuple[str, dict[str, Any]]] = [
    ("/secrets", {"name": "planted", "value": PLANTED}),
    ("/users", {"name": "planted", "password": PLANTED}),
    ("/accounts", {"name": "planted", "role": "viewer", "password": PLANTED}),
    (
        "/connectors",
        {
            "name": "by-http",
            "type": "http",
            "url": "http://127.0.0.1:9",
            "headers": HEADERS,
            "authentication": BASIC,
            "health_check_path": f"/health?key={quote(PLANTED, safe='')}",
        },
    ),
    (
        "/connectors",
        {
            "name": "by-mqtt",
            "type": "mqtt",
            "server": "127.0.0.1:9",
            "username": "u",
            "password": PLANTED,
        },
    ),
    ("/connectors", {"name": "by-sql", "type": "postgresql", **DATABASE}),
    (
        "/actions",
        {
            "name": "calls",
            "type": "http",
            "connector": "by-http",
            "parameters": {
                "path": f"/x?key={quote(PLANTED, safe='')}",
                "query": {"key": PLANTED},
                "headers": HEADERS,
            },
        },
    ),
    ("/alarm-receivers", {"name": "planted", "type": "webhook", "url": URL, "headers": HEADERS}),
    (
        "/authentication",
        {"mechanism": "http", "url": URL + "&user=${username}", "headers": HEADERS},
    ),
    ("/authentication", {"mechanism": "postgresql", **DATABASE}),
    ("/authentication", {"mechanism": "jwt", "secret": PLANTED + "0" * 32}),
    ("/authorization/sources", {"type": "postgresql", **DATABASE}),
    (
        "/schema-registries",
        {
            "name": "planted",
            "type": "confluent",
            "url": "http://127.0.0.1:9",
            "auth": {"mechanism": "basic", "username": "ann", "password": PLANTED},
        },
    ),
]


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with running(tmp_path_factory.mktemp("node") / "data") as node:
        yield node


def leaks(text: str) -> bool:
    return any(form in text for form in FORMS)


def test_nobody_is_shown_a_planted_secret(node: Node) -> None:
    bearers = {"token": TOKEN}
    for role in ROLES:
        bearers[role] = node.call("POST", "/tokens", {"name": role, "role": role})["token"]
    names: dict[str, list[str]] = {}
    checked = 0
    with (
        httpx.Client(base_url=f"{node.url}/api/v1", verify=NO_TLS, timeout=60) as client,
        Client(node, "watcher") as watcher,
    ):

        def ask(bearer: str, method: str, path: str, body: Any = None) -> httpx.Response:
            answer = client.request(
                method, path, json=body, headers={"Authorization": f"Bearer {bearers[bearer]}"}
            )
            what = f"{bearer} {method} {path} {body}"
            assert answer.status_code < 500 or answer.status_code == 503, f"{what}: {answer.text}"
            assert not leaks(answer.text), f"{what}: {answer.text}"
            return answer

        watcher.subscribe("$SYS/#", 0)
        for path, body in OBJECTS:
            ask("viewer", "POST", path, body)
            ask("token", "POST", f"{path}?dry_run=true", body)
            for wrong in _wrong(body):
                ask("token", "POST", path, wrong)
            created = ask("token", "POST", path, body)
            # 409: a wrong one was none, such as a secret with line ends
            assert created.status_code in (201, 409), created.text
            ask("token", "POST", path, body)  # it exists, or is another of a list without names
            items = ask("token", "GET", path).json()["items"]
            key = "name" if "name" in items[0] else "id"
            names[path] = [str(item[key]) for item in items]
            for name in names[path]:
                replaced = {**body, key: name} if key in body else body
                for wrong in (replaced, *_wrong(replaced)):
                    ask("token", "PUT", f"{path}/{quote(name, safe='')}?dry_run=true", wrong)
                    ask("editor", "PUT", f"{path}/{quote(name, safe='')}", wrong)
        document = ask("token", "GET", "/openapi.json").json()
        ids = [
            entry["id"] for entry in ask("token", "GET", "/audit-log?limit=1000").json()["items"]
        ]
        assert len(ids) > len(OBJECTS)
        for path, methods in document["paths"].items():
            if "get" not in methods or "tail" in path:
                continue
            short = path.removeprefix("/api/v1")
            of_kind = names.get(short.split("/{")[0], ["planted"])
            for value in ids if short.startswith("/audit-log/") else of_kind:
                filled = re.sub(r"\{[^}]+\}", quote(str(value), safe=""), short)
                for bearer in bearers:
                    ask(bearer, "GET", filled)
                    checked += 1
        for path, of_path in names.items():
            for name in of_path:
                ask("token", "DELETE", f"{path}/{quote(name, safe='')}?dry_run=true")
        ask("token", "POST", "/connectors/by-http:test")
        ask("token", "POST", "/connectors/by-sql:test")
        while not watcher.messages.empty():
            message = watcher.messages.get()
            assert not leaks(message.payload.decode(errors="replace")), message.topic
    assert checked > 1000
    assert not leaks(node.log.read_text())


def test_no_file_for_others_has_a_planted_secret(node: Node, tmp_path: Any) -> None:
    exported = sluice(node, "export", str(tmp_path / "exported"))
    assert exported.returncode == 0, exported.stderr
    backup = sluice(node, "backup", str(tmp_path / "plain.backup"))
    assert backup.returncode == 0, backup.stderr
    restored = sluice(
        node,
        *("restore", str(tmp_path / "plain.backup"), "--data-dir", str(tmp_path / "restored")),
    )
    assert restored.returncode == 0, restored.stderr
    assert not leaks(exported.stdout + backup.stdout + backup.stderr + restored.stdout)
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(files) > 3
    for path in files:
        assert not leaks(path.read_bytes().decode("latin-1")), path


def _wrong(body: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The same body with a member that does not exist, and with its secrets in places and forms that are refused."""
    yield {**body, "misspelt": PLANTED}
    for member, value in body.items():
        if isinstance(value, str) and leaks(value):
            yield {**body, member: [value]}
            yield {**body, member: {"a": value}}
            yield {**body, member: value + "\r\n\x00" + value}
        elif isinstance(value, dict):
            for inner in _wrong(value):
                yield {**body, member: inner}
    yield {**body, "name": [7]}
