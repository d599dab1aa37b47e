"""What objects made over the API may read and write on the broker's machine."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.http_service import Service
from tests.support.local_node import Node, running, sluice
from tests.support.node import eventually
from tests.support.waiting import until

SECRET = "a secret in a variable"


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    nothing = {"SLUICE_ALLOWED__DIRECTORIES": "[]", "SLUICE_ALLOWED__SECRET_DIRECTORIES": "[]"}
    environ = {**nothing, "SLUICE_SECRET_SERVICE": SECRET, "OTHER": "not for connectors"}
    with running(tmp_path_factory.mktemp("node") / "data", environ=environ) as node:
        node.call("POST", "/streams", {"name": "raw", "topics": ["raw/#"]})
        yield node


def refused(node: Node, method: str, path: str, body: dict[str, Any]) -> str:
    """Why, in words."""
    answer = node.call(method, path, body, expect=422)
    return json.dumps(answer["errors"])


def http(url: str = "http://127.0.0.1:9", **members: Any) -> dict[str, Any]:
    return {"name": "service", "type": "http", "url": url, **members}


@pytest.mark.parametrize(
    ("reference", "expected"),
    [
        ("${env:SLUICE_API_TOKEN}", "expected a variable named SLUICE_SECRET_..."),
        ("${env:OTHER}", "expected a variable named SLUICE_SECRET_..."),
        ("${file:/etc/passwd}", "expected a path in"),
        ("${file:../sluice.token}", "expected a path in"),
        ("${file:/proc/self/environ}", "expected a path in"),
    ],
)
def test_a_connector_refers_to_no_other_variables_and_files(
    node: Node, reference: str, expected: str
) -> None:
    spec = http(headers={"X-Api-Key": reference})
    assert expected in refused(node, "POST", "/connectors", spec)
    assert expected in refused(node, "POST", "/connectors:probe", spec)
    jwt = {"name": "jwt", "mechanism": "jwt", "secret": reference}
    assert expected in refused(node, "POST", "/authentication", jwt)


def test_a_reference_through_a_link_is_refused_and_one_within_bounds_is_read(node: Node) -> None:
    secrets = node.data_dir / "secrets"
    secrets.mkdir(exist_ok=True)
    (secrets / "link").symlink_to("/etc/passwd")
    (secrets / "plain").write_text("a secret in a file\n")
    assert "expected a path in" in refused(
        node, "POST", "/connectors", http(headers={"A": "${file:link}"})
    )

    async def sent() -> tuple[str | None, str | None]:
        async with Service() as service:
            headers = {"X-One": "${env:SLUICE_SECRET_SERVICE}", "X-Two": "${file:plain}"}
            spec = http(service.url, headers=headers, health_check_path="/")
            await asyncio.to_thread(node.call, "POST", "/connectors", spec)
            await until(lambda: bool(service.received))
            [found, *_] = service.received
            return found.header("x-one"), found.header("x-two")

    assert asyncio.run(sent()) == (SECRET, "a secret in a file")
    node.call("DELETE", "/connectors/service")


@pytest.mark.parametrize(
    "path",
    [
        "/proc/self/mem",
        "/etc/rows.log",
        "../sluice.conf",
        "../rocksdb/x",
        "link/rows.log",
        "pipe",
        "null",
        "x\0y",
    ],
)
def test_a_file_connector_writes_below_its_directories_only(node: Node, path: str) -> None:
    files = node.data_dir / "files"
    if not files.exists():
        files.mkdir()
        (files / "link").symlink_to("/etc")
        (files / "null").symlink_to("/dev/null")
        os.mkfifo(files / "pipe")
    answer = refused(node, "POST", "/connectors", {"name": "log", "type": "file", "filepath": path})
    assert "expected a" in answer


@pytest.mark.parametrize("path", ["/etc/table", "../../table", "../rocksdb"])
def test_a_table_lies_below_its_directories_only(node: Node, path: str) -> None:
    table = {"name": "t", "stream": "raw", "format": "delta", "path": path}
    assert "expected a path in" in refused(node, "POST", "/lake/tables", table)
    assert not Path("/etc/table").exists()


def test_authenticators_schemas_and_registries_keep_secrets_only_for_their_address(
    node: Node,
) -> None:
    again = "send the secret again"
    parameters = {"url": "http://127.0.0.1:9/a", "headers": {"Authorization": "Bearer abc"}}
    node.call(
        "POST", "/schemas", {"name": "far", "type": "external_http", "parameters": parameters}
    )
    shown = {"url": "http://127.0.0.1:9/a", "headers": {"Authorization": "******"}}
    node.call("PUT", "/schemas/far", {"name": "far", "type": "external_http", "parameters": shown})
    moved = {**shown, "url": "http://127.0.0.1:10/a"}
    body = {"name": "far", "type": "external_http", "parameters": moved}
    assert again in refused(node, "PUT", "/schemas/far", body)
    registry = {"name": "far", "type": "confluent", "url": "http://127.0.0.1:9"}
    auth = {"mechanism": "basic", "username": "u", "password": "pass"}
    node.call("POST", "/schema-registries", {**registry, "auth": auth})
    starred = {**registry, "auth": {**auth, "password": "******"}}
    node.call("PUT", "/schema-registries/far", starred)
    assert again in refused(
        node, "PUT", "/schema-registries/far", {**starred, "url": "http://127.0.0.1:10"}
    )
    jwt = {"mechanism": "jwt", "secret": "s" * 32, "jwks_url": "https://127.0.0.1:9/keys"}
    node.call("POST", "/authentication", {"name": "jwt", **jwt})
    starred = {**jwt, "secret": "******"}
    node.call("PUT", "/authentication/jwt", starred)
    assert again in refused(
        node, "PUT", "/authentication/jwt", {**starred, "jwks_url": "https://127.0.0.1:10/keys"}
    )


def test_a_connector_keeps_secrets_only_for_all_of_its_addresses(node: Node) -> None:
    again = "send the secret again"
    login = {
        "mechanism": "oauth",
        "endpoint_uri": "http://127.0.0.1:9/token",
        "client_id": "c",
        "client_secret": "abcd",
    }
    node.call("POST", "/connectors", http(authentication=login))
    starred = {**login, "client_secret": "******"}
    node.call("PUT", "/connectors/service", http(authentication=starred))
    moved = {**starred, "endpoint_uri": "http://127.0.0.1:10/token"}
    assert again in refused(node, "PUT", "/connectors/service", http(authentication=moved))
    proxied = http(authentication=starred, proxy={"url": "http://127.0.0.1:10"})
    assert again in refused(node, "PUT", "/connectors/service", proxied)
    assert again in refused(node, "PATCH", "/connectors/service", {"url": "http://127.0.0.1:10"})
    assert again in refused(
        node, "POST", "/connectors:probe", http("http://127.0.0.1:10", authentication=starred)
    )
    node.call(
        "PATCH", "/connectors/service", {"url": "http://127.0.0.1:10", "authentication": login}
    )


@pytest.mark.parametrize("value", ["s3cr3t", "s3cr3t%2B=="], ids=["plain", "encoded"])
def test_secrets_in_the_query_of_an_address_are_shown_nowhere(node: Node, value: str) -> None:
    objects: dict[str, dict[str, Any]] = {
        "/connectors/leaky": {
            **http(health_check_path=f"/up?key={value}"),
            "name": "leaky",
            "authentication": {
                "mechanism": "oauth",
                "endpoint_uri": f"http://127.0.0.1:9/token?code={value}",
                "client_id": "c",
                "client_secret": "client secret",
            },
        },
        "/connectors/socket": {
            "name": "socket",
            "type": "mqtt",
            "server": f"ws://127.0.0.1:9/mqtt?sig={value}",
        },
        "/connectors/path": {
            "name": "path",
            "type": "mqtt",
            "server": "ws://127.0.0.1:9",
            "websocket": {"path": f"/mqtt?{value}"},
        },
        "/actions/leaky": {
            "name": "leaky",
            "type": "http",
            "connector": "leaky",
            "parameters": {
                "path": f"/in/${{clientid}}?d=${{payload.id}}&api_key={value}&api_key=tok${{qos}}"
            },
        },
        "/schemas/leaky": {
            "name": "leaky",
            "type": "external_http",
            "parameters": {"url": f"http://127.0.0.1:9/a?key={value}"},
        },
        "/authentication/jwt": {
            "name": "jwt",
            "mechanism": "jwt",
            "jwks_url": f"https://127.0.0.1:9/keys?appid={value}",
        },
    }

    def shown(answer: Any) -> Any:
        text = json.dumps(answer)
        assert "s3cr3t" not in text
        assert "tok$" not in text
        return answer

    node.call("DELETE", "/authentication/jwt", expect=(204, 404))  # of another test
    for place, spec in objects.items():
        shown(node.call("POST", place.rpartition("/")[0], spec))
    assert node.call("GET", "/actions/leaky")["parameters"]["path"] == (
        "/in/${clientid}?d=${payload.id}&api_key=******&api_key=******"
    )
    assert node.call("GET", "/connectors/socket")["server"] == "ws://127.0.0.1:9/mqtt?sig=******"
    assert node.call("GET", "/connectors/path")["websocket"]["path"] == "/mqtt?******"
    failed = eventually(
        lambda: all(
            node.call("GET", f"/connectors/{n}")["status_reason"] for n in ("leaky", "socket")
        )
    )
    assert failed
    eventually(lambda: node.call("GET", "/authentication/jwt")["state"]["jwks"]["last_error"])
    for place, spec in objects.items():
        read = shown(node.call("GET", place))
        shown(node.call("GET", place.rpartition("/")[0]))
        sent = {member: read[member] for member in spec}
        shown(node.call("PUT", f"{place}?dry_run=true", sent))
        shown(node.call("PUT", place, sent))
        saved = (node.data_dir / "api.hocon").read_text()
        assert value in saved
        assert "******" not in saved
        if place.startswith(("/connectors", "/actions")):
            shown(node.call("PATCH", place, {"enable": False}))
    for verb, name in (("connectors", "leaky"), ("connectors", "socket"), ("actions", "leaky")):
        shown(node.call("POST", f"/{verb}/{name}:test"))
    shown(node.call("GET", "/schemas/leaky/versions"))
    shown(node.call("GET", "/config"))
    shown(sluice(node, "actions", "list", "--output", "json").stdout)
    moved = {
        **node.call("GET", "/authentication/jwt"),
        "jwks_url": "https://127.0.0.1:10/keys?appid=******",
    }
    moved.pop("state", None)
    assert "send the secret again" in refused(node, "PUT", "/authentication/jwt", moved)
    moved = node.call("GET", "/connectors/socket") | {"server": "ws://127.0.0.1:10/mqtt?sig=******"}
    assert "send the secret again" in refused(node, "PUT", "/connectors/socket", moved)
    moved = {
        "name": "leaky",
        "type": "external_http",
        "parameters": {"url": "http://127.0.0.1:10/a?key=******"},
    }
    assert "send the secret again" in refused(node, "PUT", "/schemas/leaky", moved)
    unknown = http(health_check_path="/up?key=******") | {"name": "new"}
    assert "not stored" in refused(node, "POST", "/connectors", unknown)
    for place in reversed(objects):
        shown(node.call("DELETE", place))
    assert "s3cr3t" not in node.log.read_text()


def test_headers_and_query_of_an_action_are_shown_as_stars_and_kept_for_their_connector(
    node: Node,
) -> None:
    node.call("PUT", "/connectors/service", http())
    node.call("POST", "/connectors", {**http(), "name": "elsewhere"})
    headers = {"X-Api-Key": "s3cr3t", "X-Topic": "${topic}", "X-Both": "Bearer ${payload.t}"}
    query = {"code": "s3cr3t-code", "device": "${clientid}${qos}"}
    action = {
        "name": "out",
        "type": "http",
        "connector": "service",
        "parameters": {"headers": headers, "query": query},
    }
    node.call("POST", "/actions", action)
    for shown in (node.call("GET", "/actions/out"), node.call("GET", "/actions")["items"][0]):
        assert shown["parameters"]["headers"] == {
            "X-Api-Key": "******",
            "X-Topic": "${topic}",
            "X-Both": "******",
        }
        assert shown["parameters"]["query"] == {"code": "******", "device": "${clientid}${qos}"}
    starred = {
        **action,
        "parameters": {
            "headers": shown["parameters"]["headers"],
            "query": shown["parameters"]["query"],
        },
    }
    assert "s3cr3t" not in json.dumps(node.call("PUT", "/actions/out", starred))
    assert "s3cr3t" in (node.data_dir / "api.hocon").read_text()
    assert "s3cr3t" not in json.dumps(node.call("PUT", "/actions/out?dry_run=true", starred))
    node.call("PATCH", "/actions/out", {"parameters": {"headers": {"X-New": "n"}}})
    saved = (node.data_dir / "api.hocon").read_text()
    assert "s3cr3t-code" in saved
    assert "******" not in saved
    moved = {**starred, "connector": "elsewhere"}
    assert "send the secret again" in refused(node, "PUT", "/actions/out", moved)
    node.call("DELETE", "/actions/out")
