"""Certificates and keys that objects name: held to the allowed directories through the API, free in ``sluice.conf``."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.certificates import Authority
from tests.support.local_node import Node, running

CONFIG = """
lake.run_spark = false
connectors = [{{ name = fixed, type = postgresql, server = "127.0.0.1:1", database = d, username = u, enable = false
  ssl {{ enable = true, cacertfile = "{ca}" }} }}]
"""
POSTGRESQL = {
    "type": "postgresql",
    "server": "127.0.0.1:1",
    "database": "d",
    "username": "u",
    "enable": False,
}


@pytest.fixture(scope="module")
def outside(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a certificate that objects may not name."""
    folder = tmp_path_factory.mktemp("outside")
    Authority(folder).file.rename(folder / "ca.pem")
    return folder


@pytest.fixture(scope="module")
def node(outside: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    config = CONFIG.format(ca=outside / "ca.pem")
    with running(tmp_path_factory.mktemp("node") / "data", config=config) as started:
        secrets = started.data_dir / "secrets"
        secrets.mkdir()
        (secrets / "ca.pem").write_bytes((outside / "ca.pem").read_bytes())
        (secrets / "link.pem").symlink_to(outside / "ca.pem")
        yield started


def objects(file: str) -> list[tuple[str, str, dict[str, Any], str]]:
    """Calls that save an object which names a file, and where it does."""
    tls = {"enable": True, "cacertfile": file}
    jwt = {"name": "jwt", "public_key": file, "algorithms": ["RS256"]}
    external = {"url": "https://127.0.0.1:1", "ssl": tls}
    return [
        ("POST", "/connectors", {"name": "c", **POSTGRESQL, "ssl": tls}, "/ssl/cacertfile"),
        ("PUT", "/connectors/c", {**POSTGRESQL, "ssl": {"keyfile": file}}, "/ssl/keyfile"),
        ("POST", "/connectors:probe", {"name": "c", **POSTGRESQL, "ssl": tls}, "/ssl/cacertfile"),
        ("POST", "/authentication", jwt, "/public_key"),
        (
            "POST",
            "/schemas",
            {"name": "s", "type": "external_http", "parameters": external},
            "/parameters/ssl/cacertfile",
        ),
        (
            "POST",
            "/schemas:check",
            {"type": "external_http", "parameters": external},
            "/parameters/ssl/cacertfile",
        ),
        (
            "POST",
            "/listeners/ssl:x",
            {
                "bind": "127.0.0.1:0",
                "ssl_options": {"sni": [{"server_name": "a", "certfile": file}]},
            },
            "/ssl_options/sni/0/certfile",
        ),
    ]


@pytest.mark.parametrize("at", range(len(objects(""))))
def test_an_object_made_through_the_api_names_no_file_outside_the_allowed_directories(
    node: Node, outside: Path, at: int
) -> None:
    for file in (
        str(outside / "ca.pem"),
        "relative.pem",
        str(node.data_dir / "secrets" / "link.pem"),
    ):
        method, path, body, pointer = objects(file)[at]
        refused = node.call(method, path, body, expect=422)
        [error] = refused["errors"]
        assert error["pointer"] == pointer, refused
        assert f"{file}: expected a path in " in error["message"]
        assert "allowed.secret_directories" in error["message"]


def test_a_file_in_the_secrets_of_the_data_directory_is_taken(node: Node) -> None:
    tls = {"enable": True, "cacertfile": str(node.data_dir.absolute() / "secrets" / "ca.pem")}
    node.call("POST", "/connectors", {"name": "good", **POSTGRESQL, "ssl": tls}, expect=201)
    refused = node.call(
        "PATCH", "/connectors/good", {"ssl": {"cacertfile": "/etc/hostname"}}, expect=422
    )
    assert "/etc/hostname: expected a path in" in json.dumps(refused)
    node.call("POST", "/connectors/good:disable")


def test_sluice_conf_may_name_files_anywhere(node: Node, outside: Path) -> None:
    assert node.call("GET", "/connectors/fixed")["ssl"]["cacertfile"] == str(outside / "ca.pem")
    node.call("POST", "/config:reload", {})


def test_a_member_written_with_escapes_names_a_file_too(node: Node, outside: Path) -> None:
    body = {"name": "c", **POSTGRESQL, "ssl": {"cacertfile": str(outside / "ca.pem")}}
    text = json.dumps(body).replace("cacertfile", r"\u0063\u0061\u0063ert\u0066ile")
    with node.client() as client:
        answer = client.post("/connectors", content=text)
    assert answer.status_code == 422
    assert [error["pointer"] for error in answer.json()["errors"]] == ["/ssl/cacertfile"]


@pytest.mark.parametrize("dry", ["", "?dry_run=true"])
def test_a_file_of_rules_that_the_api_names_is_in_the_allowed_directories(
    node: Node, outside: Path, dry: str
) -> None:
    (outside / "rules.conf").write_text('rules = [{permission = deny, topics = ["x"]}]')
    link = node.data_dir / "secrets" / "rules-link"
    link.unlink(missing_ok=True)
    link.symlink_to(outside / "rules.conf")
    for file in (
        "/etc/passwd",
        str(outside / "rules.conf"),
        "relative.conf",
        str(link),
        str(node.data_dir / "api.hocon"),
    ):
        calls = [
            ("POST", f"/authorization/sources{dry}", {"type": "file", "path": file}),
            ("PUT", f"/authorization/sources/file{dry}", {"path": file}),
        ]
        for method, path, body in calls:
            refused = node.call(method, path, body, expect=422)
            [error] = refused["errors"]
            assert error["pointer"] == "/path", refused
            assert f"{file}: expected a path in " in error["message"]
            assert "root:" not in json.dumps(refused)


@pytest.mark.parametrize("dry", ["", "?dry_run=true"])
@pytest.mark.parametrize(
    "content",
    [
        b"s3cr3t",
        b"s3cr3t: [",
        b"user = s3cr3t",
        b"a = ${s3cr3t}",
        b"\xff s3cr3t",
        b'include "s3cr3t"',
        b'rules = "s3cr3t"',
        b"rules = [s3cr3t]",
    ],
)
def test_a_file_that_has_no_rules_is_refused_and_not_shown(
    node: Node, dry: str, content: bytes
) -> None:
    file = node.data_dir.absolute() / "secrets" / "not-rules"
    file.write_bytes(content)
    refused = node.call(
        "POST", f"/authorization/sources{dry}", {"type": "file", "path": str(file)}, expect=422
    )
    assert str(file) in json.dumps(refused)
    assert "s3cr3t" not in json.dumps(refused)


def test_a_dry_run_looks_as_far_as_the_write_does(node: Node) -> None:
    secrets = node.data_dir.absolute() / "secrets"
    (secrets / "empty.pem").write_text("")
    tls = {"certfile": str(secrets / "empty.pem"), "keyfile": str(secrets / "empty.pem")}
    calls = [
        ("/authorization/sources", {"type": "file", "path": str(secrets / "missing")}),
        ("/authentication", {"mechanism": "jwt", "public_key": str(secrets / "missing")}),
        ("/authentication", {"mechanism": "jwt", "public_key": str(secrets / "empty.pem")}),
        ("/authentication", {"mechanism": "jwt", "secret": "${file:missing}"}),
        ("/listeners/ssl:dry", {"bind": "127.0.0.1:0", "ssl_options": tls}),
        ("/listeners/tcp:dry", {"bind": "0.0.0.0:0"}),
    ]
    for path, body in calls:
        written = node.call("POST", path, body, expect=422)
        tried = node.call("POST", f"{path}?dry_run=true", body, expect=422)
        assert (tried["detail"], tried.get("errors")) == (written["detail"], written.get("errors"))
