"""``sluice backup`` of a running node, and ``sluice restore`` on an empty machine."""

from __future__ import annotations

import asyncio
import json
import os
import zipfile
import zlib
from pathlib import Path
from typing import Any

import httpx
import pytest

from broker.codec.packets import (
    Auth,
    ConnAck,
    Connect,
    Publish,
    SubAck,
    Subscribe,
    SubscriptionRequest,
)
from tests.end_to_end.clients import publish
from tests.support.node import Node, command, eventually, running
from tests.support.plain_http import NO_TLS
from tests.support.scram import ScramClient
from tests.support.wire import WireClient

CONFIG = """
authentication = [ { mechanism = builtin } ]
password_hashing { iterations = 5000 }
"""
KEY = "correct horse battery staple"
PLANTED = (
    "PLANTED-named-secret",
    "PLANTED-header",
    "PLANTED-jwt-secret-of-thirty-two",
    "PLANTED-query",
)
PASSWORD = "pencil-of-ann"


def sluice(data_dir: Path, *arguments: str, status: int = 0, key: str | None = None) -> str:
    environ = {} if key is None else {"SLUICE_BACKUP_KEY": key}
    done = command(*arguments, "--data-dir", str(data_dir), **environ)
    assert done.returncode == status, f"{done.returncode}: {done.stdout}\n{done.stderr}"
    return done.stdout + done.stderr


def fill(node: Node) -> str:
    """One of everything that a backup has; the token that was created."""
    calls: list[tuple[str, str, Any]] = [
        ("POST", "/secrets", {"name": "plant", "value": PLANTED[0]}),
        ("POST", "/users", {"name": "ann", "password": PASSWORD}),
        ("POST", "/accounts", {"name": "bo", "role": "viewer", "password": "a password of bo"}),
        ("POST", "/connectors", {
            "name": "web", "type": "http", "url": "http://127.0.0.1:9/", "enable": False,
            "headers": {"authorization": PLANTED[1]},
        }),
        ("POST", "/connectors", {
            "name": "peer", "type": "mqtt", "server": "127.0.0.1:9", "enable": False, "username": "x",
            "password": "${secret:plant}",
        }),
        ("POST", "/actions", {
            "name": "hook", "type": "http", "connector": "web", "enable": False,
            "parameters": {"path": f"/in?key={PLANTED[3]}", "method": "post"},
        }),
        ("POST", "/streams", {"name": "readings", "topics": ["meters/#"]}),
        ("POST", "/schemas", {"name": "meter", "type": "json", "source": "{}"}),
        ("POST", "/rules", {"name": "warm", "sql": 'SELECT 1 AS a FROM "t"', "tests": [
            {"name": "one", "event": {"topic": "t", "payload": "{}"}, "expect": {"rows": [{"a": 1}]}},
        ]}),
        ("PUT", "/rules/warm", {"sql": 'SELECT 1 AS a FROM "t2"', "tests": [
            {"name": "one", "event": {"topic": "t2", "payload": "{}"}, "expect": {"rows": [{"a": 1}]}},
        ]}),
        ("POST", "/bans", {"as": "clientid", "who": "evil", "until": "infinity"}),
        ("POST", "/access/rules", {"name": "own", "permission": "allow", "topics": ["meters/#", "kept/#"]}),
        ("PUT", "/config/mqtt.max_subscriptions", {"value": 77}),
    ]  # fmt: skip
    for method, path, body in calls:
        node.call(method, path, body)
    token: str = node.call("POST", "/tokens", {"name": "ci", "role": "viewer"})["token"]
    return token


async def session(node: Node, clean: bool = False) -> list[Any]:
    """Log in as ann by SCRAM with a session; what came: the CONNACK, and a message that waited, if any."""
    client = ScramClient("ann", PASSWORD)
    wire = await WireClient.open(node.mqtt[1], 5)
    method = {"Authentication-Method": client.method}
    wire.send(
        Connect(
            "phone",
            5,
            clean,
            60,
            properties={
                **method,
                "Authentication-Data": client.first(),
                "Session-Expiry-Interval": 3600,
            },
        )
    )
    challenge = await wire.expect(Auth)
    proof = client.answer(challenge.properties["Authentication-Data"])
    wire.send(Auth(0x18, {**method, "Authentication-Data": proof}))
    connack = await wire.expect(ConnAck)
    assert connack.reason_code == 0
    seen: list[Any] = [connack]
    if not connack.session_present:
        wire.send(Subscribe(1, [SubscriptionRequest("meters/#", 1)]))
        await wire.expect(SubAck)
    else:
        while not any(isinstance(packet, Publish) for packet in seen):
            seen.append(await wire.receive())
    await wire.close()
    return seen


def password_login(node: Node) -> None:
    publish(node, "meters/1", '{"t": 2}', "-q", "1", "-u", "ann", "-P", PASSWORD, "-i", "p")


def answers(node: Node, token: str) -> dict[str, Any]:
    """What the API says of everything that was filled."""
    with httpx.Client(base_url=f"{node.url}/api/v1", verify=NO_TLS, trust_env=False) as client:
        status = client.get("/rules", headers={"Authorization": f"Bearer {token}"})
        assert status.status_code == 200
        signed = client.post("/session", json={"account": "bo", "password": "a password of bo"})
    paths = (
        "/users", "/accounts", "/secrets", "/schemas", "/rules/warm", "/rules/warm/versions", "/bans",
        "/access/rules", "/retained?filter=%23",
    )  # fmt: skip
    document = {path: node.call("GET", path) for path in paths}
    document["/rules/warm"] = {
        member: document["/rules/warm"][member]
        for member in ("sql", "version", "tests", "created_at")
    }
    return document | {"session": signed.status_code}


def opened(file: Path) -> bytes:
    """All that a backup without key has in clear."""
    with zipfile.ZipFile(file) as archive:
        return b"\0".join(
            zlib.decompress(archive.read(name)) if name.startswith("parts/") else archive.read(name)
            for name in archive.namelist()
        )


def test_a_restore_on_an_empty_machine_gives_the_same_export(tmp_path: Path) -> None:
    original = tmp_path / "node"
    with running(original, config=CONFIG) as node:
        token = fill(node)
        password_login(node)
        publish(node, "kept/1", "hello", "-r", "-q", "1", "-u", "ann", "-P", PASSWORD, "-i", "r")
        asyncio.run(session(node))
        password_login(node)
        said = json.loads(sluice(original, "backup", str(tmp_path / "all"), "--json", key=KEY))
        assert said["is_encrypted"]
        assert said["holds"]["users"] == 1
        whole = ("backup", str(tmp_path / "whole"), "--with-messages")
        sluice(original, *whole, key=KEY)
        plain = json.loads(sluice(original, "backup", str(tmp_path / "plain"), "--json"))
        before = answers(node, token)
        assert node.call("GET", "/streams/readings")["records"] == 2
        sluice(original, "export", str(tmp_path / "before"))
        for name in ("all", "whole", "plain"):
            data = (tmp_path / name).read_bytes()
            data += opened(tmp_path / "plain") if name == "plain" else b""
            assert os.stat(tmp_path / name).st_mode & 0o077 == 0
            assert [text for text in (*PLANTED, PASSWORD) if text.encode() in data] == []
    assert set(plain["missing_secrets"]) == {"plant", "connector-web-headers-authorization"}
    assert any("URL of action.hook" in text for text in plain["left_out"])
    assert any("sluice.conf" in text for text in plain["left_out"])
    exported = [file.read_bytes() for file in sorted((tmp_path / "before").iterdir())]
    assert len(exported) == 2
    for name in ("all", "whole"):
        empty = tmp_path / f"from-{name}"
        sluice(empty, "restore", str(tmp_path / name), "--dry-run", key=KEY)
        assert not empty.exists()
        sluice(empty, "restore", str(tmp_path / name), key=KEY)
        with running(empty) as restored:
            sluice(empty, "export", str(tmp_path / "after"))
            after = sorted((tmp_path / "after").iterdir())
            assert [file.read_bytes() for file in after] == exported
            assert answers(restored, token) == before
            shards = restored.call("GET", "/streams/readings/positions")["shards"]
            kept = 2 if name == "whole" else 0
            assert [int(shard["next_offset"]) for shard in shards] == [2]
            assert [int(shard["first_offset"]) for shard in shards] == [2 - kept]
            if name == "all":
                password_login(restored)
            [connack, *packets] = asyncio.run(session(restored))
            assert connack.session_present
            assert packets
            password_login(restored)
            shards = restored.call("GET", "/streams/readings/positions")["shards"]
            assert int(shards[0]["next_offset"]) > 2


def test_a_backup_without_key_restores_with_references(tmp_path: Path) -> None:
    with running(tmp_path / "node") as node:
        fill(node)
        sluice(node.data_dir, "backup", str(tmp_path / "plain"))
    empty = tmp_path / "empty"
    said = sluice(empty, "restore", str(tmp_path / "plain"))
    assert "sluice secrets put" in said
    with running(empty) as restored:
        web = restored.call("GET", "/connectors/web")
        assert web["headers"] == {"authorization": "${secret:connector-web-headers-authorization}"}
        restored.call("PUT", "/secrets/plant", {"value": "new one"})
        assert restored.call("GET", "/users/ann")["methods"]


def test_a_restore_refuses_a_directory_that_is_used(tmp_path: Path) -> None:
    file = tmp_path / "backup"
    with running(tmp_path / "node") as node:
        node.call("POST", "/schemas", {"name": "first", "type": "json", "source": "{}"})
        sluice(node.data_dir, "backup", str(file), key=KEY)
        node.call("POST", "/schemas", {"name": "second", "type": "json", "source": "{}"})
        said = sluice(node.data_dir, "restore", str(file), "--replace", status=1, key=KEY)
        assert "in use by another sluice" in said
    said = sluice(node.data_dir, "restore", str(file), status=6, key=KEY)
    assert "--replace" in said
    assert "second" in (node.data_dir / "api.hocon").read_text()
    sluice(node.data_dir, "restore", str(file), "--replace", key=KEY)
    [aside] = node.data_dir.glob("before-restore-*")
    assert "second" in (aside / "api.hocon").read_text()
    with running(node.data_dir) as again:
        assert [schema["name"] for schema in again.call("GET", "/schemas")["items"]] == ["first"]
    (node.data_dir / "restoring").touch()
    with pytest.raises(AssertionError, match="cut off"):
        eventually(lambda: Node(node.data_dir).start(20), timeout_s=1)
