"""Outside services of a whole broker: made, moved and shown by its API and its command line, with secrets as stars."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

import pytest

from broker.codec.encode import encode_packet
from broker.codec.packets import Connect
from broker.core import jsontext
from tests.support.node import Node, command, eventually, running
from tests.support.processes import free_port

PLANTED = "a-planted-secret"


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with running(tmp_path_factory.mktemp("outside") / "node") as node:
        yield node


def sluice(node: Node, *arguments: str) -> str:
    """Standard output of a command."""
    done = command(*arguments, "--url", node.url)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def names(node: Node, path: str) -> list[str]:
    return [item["name"] for item in node.call("GET", path)["items"]]


def database(**settings: Any) -> dict[str, Any]:
    return {"server": f"127.0.0.1:{free_port()}", "password": PLANTED, **settings}


def test_authenticators_are_added_moved_and_shown_with_their_state(node: Node) -> None:
    node.call("POST", "/authentication", {"name": "builtin"})
    sql = database(database="fleet", username="sluice")
    node.call(
        "POST", "/authentication", {"mechanism": "password_based", "backend": "postgresql", **sql}
    )
    headers = {"authorization": f"Bearer {PLANTED}"}
    node.call(
        "PUT",
        "/authentication/http",
        {"url": f"http://127.0.0.1:{free_port()}", "headers": headers},
    )
    node.call("PUT", "/authentication/redis", database())
    node.call(
        "PUT", "/authentication/ldap", database(base_dn="dc=example,dc=org", username="cn=sluice")
    )
    everything = ["builtin", "postgresql", "http", "redis", "ldap"]
    assert names(node, "/authentication") == everything
    for position, order in {
        "top": ["ldap", "builtin", "postgresql", "http", "redis"],
        "bottom": everything,
        "before:password_based:http": ["builtin", "postgresql", "ldap", "http", "redis"],
        "after:http": ["builtin", "postgresql", "http", "ldap", "redis"],
    }.items():
        node.call("POST", "/authentication:reorder", {"order": ["ldap"], "position": position})
        assert names(node, "/authentication") == order
    for wrong in ("after:nobody", "before:ldap", "first"):
        node.call(
            "POST", "/authentication:reorder", {"order": ["ldap"], "position": wrong}, expect=422
        )
    assert "order: redis, builtin" in sluice(
        node, "access", "authenticators", "reorder", "redis", "--to", "top"
    )
    eventually(lambda: _state(node, "postgresql")["status"] == "away")
    assert "127.0.0.1" in _state(node, "postgresql")["reason"]
    assert "away" in sluice(node, "access", "authenticators", "ls")
    shown = [
        node.call("GET", "/authentication"),
        node.call("GET", "/alarms"),
        node.call("GET", "/config"),
    ]
    assert PLANTED.encode() not in jsontext.encode(shown)
    changed = node.call("GET", "/authentication/redis")
    node.call("PUT", "/authentication/redis", {**changed, "timeout": 2})
    problem = node.call(
        "PUT", "/authentication/redis", {**changed, "server": "127.0.0.1:1"}, expect=422
    )
    assert "send the secret again" in jsontext.encode(problem).decode()
    for name in everything:
        node.call("DELETE", f"/authentication/{name}")


def _state(node: Node, name: str) -> Any:
    return node.call("GET", f"/authentication/{name}")["state"]["backend"]


def test_sources_are_added_and_moved(node: Node) -> None:
    node.call("PUT", "/authorization/sources/mysql", database(database="fleet", username="sluice"))
    node.call("PUT", "/authorization/sources/http", {"url": f"http://127.0.0.1:{free_port()}"})
    node.call(
        "POST", "/authorization/sources:reorder", {"order": ["http"], "position": "before:mysql"}
    )
    assert names(node, "/authorization/sources") == ["built_in", "http", "mysql"]
    shown = node.call("GET", "/authorization/sources/mysql")
    assert shown["state"]["backend"]["status"] in ("connecting", "away")
    assert PLANTED.encode() not in jsontext.encode(shown)
    for name in ("mysql", "http"):
        node.call("DELETE", f"/authorization/sources/{name}")


def test_settings_of_access_rules_are_read_and_replaced(node: Node) -> None:
    before = node.call("GET", "/authorization/settings")
    assert before["no_match"] is None
    node.call(
        "PUT", "/authorization/sources/file", {"rules": [{"permission": "deny", "topics": ["x"]}]}
    )
    changed = node.call(
        "PUT", "/authorization/settings", {"no_match": "deny", "cache": {"ttl": "10m"}}
    )
    assert (changed["no_match"], changed["cache"]["ttl"]) == ("deny", 600)
    assert names(node, "/authorization/sources") == ["built_in", "file"]
    asked = {"client": {"clientid": "c"}, "action": "publish", "topic": "y"}
    assert not node.call("POST", "/access:check", asked)["allowed"]
    assert "deny" in sluice(node, "access", "settings", "show")
    node.call("PUT", "/authorization/settings", {"no_match": "perhaps"}, expect=422)
    node.call("PUT", "/authorization/settings", {"sources": []}, expect=422)
    node.stop()
    node.start()
    assert node.call("GET", "/authorization/settings") == changed
    node.call("PUT", "/authorization/settings", {})
    assert node.call("GET", "/authorization/settings") == before


def test_a_listener_gets_authenticators_of_its_own(node: Node) -> None:
    own = {"mechanism": "redis", **database()}
    node.call("POST", "/listeners/tcp:plant", {"bind": "127.0.0.1:0", "authentication": [own]})
    shown = node.call("GET", "/listeners/tcp:plant")
    assert shown["settings"]["authentication"][0]["server"] == own["server"]
    assert PLANTED.encode() not in jsontext.encode(shown)
    node.call("PATCH", "/listeners/tcp:plant", {"enable_authn": "quick_deny_anonymous"})
    node.call(
        "PATCH", "/listeners/tcp:plant", {"authentication": [{"mechanism": "nobody"}]}, expect=422
    )
    node.call("DELETE", "/listeners/tcp:plant")


def test_authenticators_of_a_listener_are_added_shown_replaced_and_deleted(node: Node) -> None:
    node.call("POST", "/listeners/tcp:plant", {"bind": "127.0.0.1:0"})
    own = "/listeners/tcp:plant/authentication"
    assert node.call("GET", own)["items"] == []
    assert mqtt_result(node, "nobody", None) == 0
    node.call("POST", "/users", {"name": "ann", "password": "right"})
    node.call("POST", own, {"mechanism": "builtin"})
    postgresql = {"mechanism": "password_based", "backend": "postgresql", "query": "SELECT 1"}
    node.call("POST", own, {**postgresql, **database(database="fleet", username="sluice")})
    assert names(node, own) == ["builtin", "postgresql"]
    assert [mqtt_result(node, *login) for login in (("ann", "wrong"), ("ann", "right"))] == [4, 0]
    node.call("POST", own, {"mechanism": "builtin"}, expect=409)
    wrong = node.call("POST", own, {"mechanism": "nobody"}, expect=422)
    assert "authentication" in str(wrong)
    shown = node.call("GET", f"{own}/password_based:postgresql")
    assert shown["database"] == "fleet"
    assert PLANTED.encode() not in jsontext.encode([shown, node.call("GET", own)])
    body = {name: value for name, value in shown.items() if name != "name"}
    assert (
        node.call("PUT", f"{own}/postgresql", {**body, "database": "other"})["database"] == "other"
    )
    moved = node.call("PUT", f"{own}/postgresql", {**body, "server": "elsewhere:5432"}, expect=422)
    assert "send the secret again" in str(moved)
    node.call("PUT", f"{own}/postgresql", {"mechanism": "builtin"}, expect=422)
    node.call("PUT", f"{own}/redis", {"mechanism": "redis", **database()}, expect=404)
    node.call("DELETE", f"{own}/redis", expect=404)
    assert "builtin" in sluice(node, "listeners", "authenticators", "ls", "tcp:plant")
    node.stop()
    node.start()
    assert names(node, own) == ["builtin", "postgresql"]
    saved = (node.data_dir / "api.hocon").read_text()
    assert PLANTED in saved  # stars in the answer that was sent back have kept it
    assert "other" in saved
    sluice(node, "listeners", "authenticators", "rm", "tcp:plant", "postgresql", "--yes")
    node.call("DELETE", f"{own}/builtin")
    assert node.call("GET", own)["items"] == []
    assert node.call("GET", "/listeners/tcp:plant")["settings"]["authentication"] is None
    entries = node.call("GET", "/audit-log?kind=listener")["items"]
    assert {entry["operation"] for entry in entries} >= {
        "createListenerAuthenticator",
        "replaceListenerAuthenticator",
        "deleteListenerAuthenticator",
    }
    node.call("GET", "/listeners/tcp:none/authentication", expect=404)
    node.call("DELETE", "/listeners/tcp:plant")
    node.call("DELETE", "/users/ann")


def mqtt_result(node: Node, username: str, password: str | None) -> int:
    """Return code of a CONNECT of MQTT 3.1.1 at the listener of its own authenticators."""
    host, _, port = node.call("GET", "/listeners/tcp:plant")["address"].rpartition(":")
    packet = encode_packet(
        Connect(
            "asks", 4, username=username, password=None if password is None else password.encode()
        )
    )
    with socket.create_connection((host, int(port)), 60) as link:
        link.sendall(packet)
        return link.recv(4)[3]
