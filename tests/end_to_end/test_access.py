"""Users, access rules and bans of a whole broker: by its API, its command line, and real clients."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import paho.mqtt.client as paho
import pytest
from paho.mqtt.enums import CallbackAPIVersion

from tests.support.local_node import Node, command, running
from tests.support.node import TOKEN, Reachable, eventually
from tests.support.node import running as running_process
from tests.support.plain_http import NO_TLS
from tests.support.raw import packet, text

CONFIG = """
authentication = [ { mechanism = builtin } ]
password_hashing { iterations = 5000 }
users = [ { name = fixed, password = "from-the-file" } ]
authorization { no_match = deny, deny_action = ignore
  sources = [ { type = built_in }, { type = file, rules = [ { permission = allow, topics = ["open/#"] } ] } ] }
"""


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with running(tmp_path_factory.mktemp("access") / "node", config=CONFIG) as node:
        node.call("POST", "/users", {"name": "ann", "password": "pencil"})
        rule = {"name": "own", "permission": "allow", "topics": ["u/${username}/#"]}
        node.call("POST", "/access/rules", rule)
        yield node


def sluice(
    node: Reachable, *arguments: str, expect: int = 0, said: str = "", both: bool = False
) -> str:
    """Run a command; its standard output, with its standard error where that is asked for."""
    done = command(*arguments, "--url", node.url, text=said, SLUICE_API_TOKEN=TOKEN)
    assert done.returncode == expect, done.stdout + done.stderr
    return done.stdout + done.stderr if both else done.stdout


def login(
    node: Reachable, name: str | None, password: str | None, client_id: str | None = None
) -> int:
    """Log in by paho over MQTT 5, as a client of its own where no identifier is given; the reason code."""
    client = paho.Client(
        CallbackAPIVersion.VERSION2, client_id or uuid4().hex, protocol=paho.MQTTv5
    )
    if name is not None:
        client.username_pw_set(name, password)
    codes: list[int] = []
    client.on_connect = lambda client, userdata, flags, code, properties: codes.append(code.value)
    client.connect(*node.mqtt)

    def is_told() -> bool:
        client.loop(0.1)
        return bool(codes)

    eventually(is_told, every_s=0)
    client.disconnect()
    return codes[0]


def test_a_real_client_logs_in_by_its_password(node: Node) -> None:
    assert login(node, "ann", "pencil") == 0
    assert login(node, "fixed", "from-the-file") == 0
    assert login(node, "ann", "pen") == 0x86
    assert login(node, "nobody", "pencil") == 0x86
    assert login(node, None, None) == 0x87


def test_a_made_password_is_told_once_and_rotated(node: Node) -> None:
    made = node.call("POST", "/users", {"name": "meter/7@plant"})
    assert len(made["password"]) == 43
    assert login(node, "meter/7@plant", made["password"]) == 0
    path = "/users/meter%2F7@plant"
    shown = node.call("GET", path)
    assert shown["algorithm"] == "sha256"
    assert shown["methods"] == ["SCRAM-SHA-256", "SCRAM-SHA-512"]
    assert "password" not in shown
    assert "credentials" not in shown
    node.call("PUT", path, {"description": "in the attic"})
    assert login(node, "meter/7@plant", made["password"]) == 0
    rotated = [node.call("POST", f"{path}:rotate")["password"] for _ in range(2)]
    assert [login(node, "meter/7@plant", one) for one in (made["password"], *rotated)] == [
        0x86,
        0x86,
        0,
    ]
    node.call("DELETE", path)
    assert login(node, "meter/7@plant", rotated[1]) == 0x86


def test_no_password_and_nothing_of_one_is_shown_or_kept_in_the_open(node: Node) -> None:
    kept = (node.data_dir / "api.hocon").read_text()
    assert "pencil" not in kept
    line = next(line for line in kept.splitlines() if line.startswith("users."))
    stored = json.loads(line.partition(" = ")[2])["credentials"][0]
    assert stored["algorithm"] == "pbkdf2_sha256"
    assert stored["iterations"] == 5000
    shown = (
        json.dumps([node.call("GET", "/users"), node.call("GET", "/status")]) + node.log.read_text()
    )
    assert all(
        secret not in shown
        for secret in ("pencil", "from-the-file", stored["stored_key"], stored["salt"])
    )


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("POST", "/users", {"name": "ann", "password": "x"}, 409),
        ("POST", "/users", {"password": "x"}, 422),
        ("POST", "/users", {"name": "x", "password": "y", "colour": "red"}, 422),
        ("PUT", "/users/fixed", {"description": "x"}, 422),
        ("DELETE", "/users/nobody", None, 404),
        ("POST", "/users/nobody:rotate", None, 404),
        (
            "POST",
            "/users:import",
            {"users": [{"name": "x", "password_hash": "00", "algorithm": "md5"}]},
            422,
        ),
        ("POST", "/bans", {"as": "nobody", "who": "x"}, 422),
        ("POST", "/bans", {"as": "clientid_re", "who": "("}, 422),
        ("POST", "/bans", {"as": "clientid", "who": "x", "until": "2000-01-01T00:00:00Z"}, 422),
        ("DELETE", "/bans/clientid/x", None, 404),
        ("POST", "/access/rules", {"name": "x", "permission": "allow", "topics": ["a/#/b"]}, 422),
        ("POST", "/access:check", {"client": {}}, 422),
        (
            "POST",
            "/access:check",
            {"client": {"clientid": "x"}, "action": "publish", "topic": "#"},
            422,
        ),
    ],
)
def test_what_makes_no_sense_is_refused_with_a_sentence(
    node: Node, method: str, path: str, body: Any, status: int
) -> None:
    answer = node.call(method, path, body, expect=status if path != "/users/fixed" else (409, 422))
    assert answer["detail"]


def test_users_come_from_elsewhere_with_their_hashes(node: Node, tmp_path: Path) -> None:
    import hashlib

    salted = hashlib.sha256(b"saltsecret").hexdigest()
    (tmp_path / "users.csv").write_text(
        f"user_id,password_hash,salt,is_superuser\nold-1,{salted},salt,true\n"
    )
    assert "1 user imported" in sluice(node, "users", "import", "-f", str(tmp_path / "users.csv"))
    rounds = hashlib.pbkdf2_hmac("sha256", b"secret", b"salt", 1000).hex()
    more = [{"name": "old-2", "password_hash": rounds, "salt": "salt"}]
    node.call(
        "POST", "/users:import", {"users": more, "algorithm": "pbkdf2_sha256", "iterations": 1000}
    )
    assert [login(node, name, "secret") for name in ("old-1", "old-2")] == [0, 0]
    assert node.call("GET", "/users/old-2")["methods"] == ["SCRAM-SHA-256"]
    (tmp_path / "users.json").write_text(
        json.dumps(
            {
                "users": [{**more[0], "name": "old-3"}],
                "algorithm": "pbkdf2_sha256",
                "iterations": 1000,
            }
        )
    )
    assert "1 user imported" in sluice(node, "users", "import", "-f", str(tmp_path / "users.json"))
    assert login(node, "old-3", "secret") == 0


def test_an_import_file_with_an_unknown_member_is_refused(node: Node, tmp_path: Path) -> None:
    file = tmp_path / "users.json"
    file.write_text(json.dumps({"users": [], "algoritm": "sha512"}))
    refused = sluice(node, "users", "import", "-f", str(file), expect=1, both=True)
    assert "algoritm" in refused
    assert "did you mean 'algorithm'?" in refused


def test_rules_hold_for_real_clients_and_change_at_once(node: Node) -> None:
    got: list[tuple[str, bytes]] = []
    codes: list[int] = []
    client = paho.Client(CallbackAPIVersion.VERSION2, "reader", protocol=paho.MQTTv5)
    client.username_pw_set("ann", "pencil")
    client.on_message = lambda client, userdata, message: got.append(
        (message.topic, bytes(message.payload))
    )
    client.on_subscribe = lambda client, userdata, mid, granted, properties: codes.extend(
        one.value for one in granted
    )
    client.connect(*node.mqtt)
    client.loop_start()
    try:
        eventually(client.is_connected)
        client.subscribe([("u/ann/#", 0), ("u/bob/#", 0), ("open/#", 0)])
        eventually(lambda: len(codes) >= 3)
        assert codes[:3] == [0, 0x87, 0]
        published = client.publish("u/ann/x", b"1", 1)
        client.publish("u/bob/x", b"2", 1)
        eventually(lambda: bool(got))
        published.wait_for_publish(60)
        assert got == [("u/ann/x", b"1")]
        node.call(
            "POST", "/access/rules", {"name": "closed", "permission": "deny", "topics": ["u/#"]}
        )
        node.call("POST", "/access/rules:reorder", {"order": ["closed", "own"]})
        client.publish("u/ann/x", b"3", 1)
        client.publish("open/x", b"4", 1)
        eventually(lambda: len(got) == 2)
        assert got[1] == ("open/x", b"4")
        node.call("POST", "/access/rules:reorder", {"order": ["own", "closed"]})
    finally:
        client.loop_stop()
        client.disconnect()
    status = node.call("GET", "/status")
    assert status["dropped"]["not_authorized"] >= 2
    assert status["ledger"]["residual"] == 0
    node.call("DELETE", "/access/rules/closed")


def test_a_user_that_is_deleted_is_disconnected(node: Node) -> None:
    node.call("POST", "/users", {"name": "leaver", "password": "pencil"})
    codes: list[int] = []
    client = paho.Client(CallbackAPIVersion.VERSION2, "leaver", protocol=paho.MQTTv5)
    client.username_pw_set("leaver", "pencil")
    client.on_disconnect = lambda client, userdata, flags, code, properties: codes.append(
        code.value
    )
    client.connect(*node.mqtt)
    client.loop_start()
    try:
        eventually(client.is_connected)
        node.call("DELETE", "/users/leaver")
        eventually(lambda: bool(codes))
    finally:
        client.loop_stop()
    assert codes[0] == 0x87


def test_what_would_be_decided_is_told_with_its_reason(node: Node) -> None:
    allowed = sluice(node, "access", "check", "c1", "publish", "u/ann/x", "--username", "ann")
    assert "allowed, by built_in: own" in allowed
    assert "allow u/ann/#  (built_in: own)" in allowed
    denied = sluice(
        node, "access", "check", "c1", "subscribe", "u/#", "--username", "ann", expect=7
    )
    assert "denied, by authorization.no_match" in denied
    refused = sluice(node, "access", "check", "c1", "--anonymous", expect=7)
    assert "denied, by authentication (no authenticator decides: not_authorized)" in refused
    body = {
        "client": {"clientid": "c", "username": "ann", "password": "pencil"},
        "action": "publish",
        "topic": "u/c",
    }
    found = node.call("POST", "/access:check", body)
    assert (found["authentication"]["mechanism"], found["allowed"]) == ("builtin", False)
    assert found["facts"] == {"listener": "tcp:default", "username": "ann"}


def test_bans_are_made_listed_and_lifted(node: Node) -> None:
    assert "is banned until" in sluice(
        node, "bans", "add", "clientid", "bad", "--for", "10m", "--reason", "noise"
    )
    assert login(node, "ann", "pencil", "bad") == 0x8A
    assert "noise" in sluice(node, "bans", "ls")
    assert "denied, by a ban of the clientid bad" in sluice(
        node, "access", "check", "bad", expect=7
    )
    assert "no longer banned" in sluice(node, "bans", "rm", "clientid", "bad")
    assert login(node, "ann", "pencil", "bad") == 0


def test_bans_are_shown_by_what_they_compare(node: Node) -> None:
    made = node.call("POST", "/bans", {"as": "clientid_re", "who": "a/b.*"})
    assert made["name"] == "clientid_re/a/b.*"
    assert node.call("GET", "/bans/clientid_re/a%2Fb.*") == made
    assert "clientid_re" in sluice(node, "bans", "show", "clientid_re/a/b.*")
    node.call("DELETE", "/bans/clientid_re/a/b.*")
    node.call("GET", "/bans/clientid_re/a/b.*", expect=404)


def test_users_are_created_from_a_file_with_a_generated_password(
    node: Node, tmp_path: Path
) -> None:
    (tmp_path / "users.json").write_text(json.dumps([{"name": "of/a/file"}]))
    password = sluice(node, "users", "apply", "-f", str(tmp_path / "users.json")).strip()
    assert len(password) >= 16
    assert "replaced" in sluice(node, "users", "apply", "-f", str(tmp_path / "users.json"))
    refused = node.call("PUT", "/users/of%2Fa%2Ffile", {"name": "other"}, expect=422)
    assert refused["errors"][0]["pointer"] == "/name"
    sluice(node, "users", "rm", "of/a/file", "--yes")


def test_users_are_managed_by_the_command_line(node: Node, tmp_path: Path) -> None:
    password = sluice(node, "users", "add", "cli").strip()
    assert login(node, "cli", password) == 0
    (tmp_path / "secret").write_text("chosen\n")
    sluice(node, "users", "set", "cli", "--password-file", str(tmp_path / "secret"), "--superuser")
    assert login(node, "cli", "chosen") == 0
    assert json.loads(sluice(node, "users", "show", "cli", "--json"))["is_superuser"] is True
    rotated = json.loads(sluice(node, "users", "rotate", "cli", "--json"))["password"]
    assert login(node, "cli", rotated) == 0
    assert "cli" in sluice(node, "users", "ls")
    sluice(node, "users", "rm", "cli", "--yes")
    sluice(node, "users", "show", "cli", expect=5)


def test_everything_is_there_after_a_kill(tmp_path: Path) -> None:
    with running_process(tmp_path / "node", config=CONFIG) as node:
        made = node.call("POST", "/users", {"name": "meter"})
        node.call("POST", "/bans", {"as": "username_re", "who": "ann|bob"})
        node.call(
            "POST",
            "/access/rules",
            {"name": "own", "permission": "allow", "topics": ["u/${username}/#"]},
        )
        assert login(node, "ann", "x") == 0x8A
        node.kill()
        node.start()
        assert login(node, "meter", made["password"]) == 0
        assert login(node, "ann", "x") == 0x8A
        assert [rule["name"] for rule in node.call("GET", "/access/rules")["items"]] == ["own"]


def test_the_last_authenticator_can_be_removed_where_only_this_machine_connects(
    tmp_path: Path,
) -> None:
    open_listener = {"bind": "0.0.0.0:0"}
    with running(tmp_path / "node", environ={"SLUICE_API_TOKEN": TOKEN}) as node:
        node.call("POST", "/authentication", {"name": "builtin"})
        assert login(node, None, None) == 0x87
        node.call("POST", "/listeners/tcp:open", open_listener)
        refused = node.call("DELETE", "/authentication/builtin", expect=422)["detail"]
        assert "listener 'tcp:open' at 0.0.0.0:0 can be reached from other machines" in refused
        assert login(node, None, None) == 0x87
        node.call("POST", "/listeners/tcp:open:stop")
        node.call("DELETE", "/authentication/builtin", expect=422)  # it can be started again
        node.call("DELETE", "/listeners/tcp:open")
        said = sluice(node, "access", "authenticators", "rm", "builtin", "--yes", both=True)
        assert "every client that reaches a listener may connect without a password" in said
        assert login(node, None, None) == 0
        node.call("POST", "/listeners/tcp:open", open_listener, expect=422)
        node.stop()
        node.start()
        assert login(node, None, None) == 0


def test_authenticators_and_sources_change_while_the_broker_runs(tmp_path: Path) -> None:
    with running(tmp_path / "node") as node:
        node.call("POST", "/users", {"name": "ann", "password": "pencil"})
        assert login(node, None, None) == 0
        node.call("POST", "/authentication", {"name": "builtin"})
        assert [login(node, "ann", "pencil"), login(node, None, None)] == [0, 0x87]
        checks = [{"is_match": "str_eq(clientid, 'paho')", "result": "deny"}]
        node.call("PUT", "/authentication/cinfo", {"checks": checks})
        assert login(node, "ann", "pencil", "paho") == 0
        node.call("POST", "/authentication:reorder", {"order": ["cinfo", "builtin"]})
        assert login(node, "ann", "pencil", "paho") == 0x86
        node.call("DELETE", "/authentication/cinfo")
        node.call("POST", "/authentication", {"name": "builtin"}, expect=409)
        node.call("POST", "/authentication", {"name": "nobody"}, expect=422)

        node.call("POST", "/access/rules", {"name": "all", "permission": "allow", "topics": ["#"]})
        denial = {"permission": "deny", "topics": ["x"]}
        node.call("POST", "/authorization/sources", {"name": "file", "rules": [denial]})
        asked = {"client": {"clientid": "c"}, "action": "publish", "topic": "x"}
        assert node.call("POST", "/access:check", asked)["allowed"]
        node.call("POST", "/authorization/sources:reorder", {"order": ["file", "built_in"]})
        assert not node.call("POST", "/access:check", asked)["allowed"]
        node.call("PUT", "/authorization/sources/file", {"enable": False, "rules": [denial]})
        assert node.call("POST", "/access:check", asked)["allowed"]
        node.stop()
        node.start()
        assert [one["type"] for one in node.call("GET", "/authorization/sources")["items"]] == [
            "file",
            "built_in",
        ]
        assert [one["name"] for one in node.call("GET", "/access/rules")["items"]] == ["all"]
        assert [login(node, "ann", "pencil"), login(node, None, None)] == [0, 0x87]


def test_what_a_file_sets_is_changed_there_and_read_again(tmp_path: Path) -> None:
    with running(tmp_path / "node", config=CONFIG) as node:
        refusal = node.call("DELETE", "/authentication/builtin", expect=(409, 422))
        assert "sluice.conf" in refusal["detail"]
        checks = '{ mechanism = cinfo, checks = [ { is_match = "is_empty_val(username)", result = allow } ] }'
        changed = CONFIG.replace(
            "[ { mechanism = builtin } ]", f"[ {checks}, {{ mechanism = builtin }} ]"
        )
        (node.data_dir / "sluice.conf").write_text(
            changed.replace(
                'permission = allow, topics = ["open', 'permission = deny, topics = ["open'
            )
        )
        assert login(node, None, None) == 0x87
        sluice(node, "config", "reload")
        assert login(node, None, None) == 0
        asked = {"client": {"clientid": "c"}, "action": "publish", "topic": "open/x"}
        assert node.call("POST", "/access:check", asked)["authorization"]["rule"] == "rule 1"


def test_wrong_logins_are_limited_and_lock_nobody_else_out(tmp_path: Path) -> None:
    with running(
        tmp_path / "node", config=CONFIG + "login_limits.max_failures_per_user = 5\n"
    ) as node:
        node.call("POST", "/users", {"name": "ann", "password": "pencil"})
        codes = [connect(node, "ann", "wrong") for _ in range(50)]
        assert codes[:5] == [0x86] * 5
        assert set(codes[5:]) == {0x9F}
        assert connect(node, "ann", "pencil", source="127.0.0.2") == 0
        assert connect(node, "fixed", "from-the-file") == 0
        right = {"Authorization": f"Bearer {TOKEN}"}
        transport = httpx.HTTPTransport(local_address="127.0.0.4")
        with httpx.Client(base_url=f"{node.url}/api/v1", transport=transport, verify=NO_TLS) as api:
            outdated = {"Authorization": "Bearer an-outdated-token"}
            assert {api.get("/users", headers=outdated).status_code for _ in range(30)} == {401}
            assert api.get("/users", headers=right).status_code == 200
        transport = httpx.HTTPTransport(local_address="127.0.0.3")
        with httpx.Client(base_url=f"{node.url}/api/v1", transport=transport, verify=NO_TLS) as api:
            answers = [
                api.get("/users", headers={"Authorization": f"Bearer guess{number}"})
                for number in range(10)
            ]
            assert [answer.status_code for answer in answers] == [401] * 4 + [429] * 6
            assert answers[-1].json()["code"] == "too_many_logins"
            assert answers[-1].headers["Retry-After"] == "12"
            assert api.get("/users", headers=right).status_code == 429
            assert (
                api.post(
                    "/session", json={"token": TOKEN}, headers={"Origin": node.url}
                ).status_code
                == 429
            )
        # from an address that is known by now
        [alarm] = eventually(lambda: node.call("GET", "/alarms")["items"])
        assert alarm["name"] == "logins_limited"
        metrics = httpx.get(f"{node.url}/metrics", trust_env=False, verify=NO_TLS).text
        assert 'sluice_logins_limited_total{by="user"} 53' in metrics
        log = node.log.read_text()
        assert 1 <= log.count("authn.limited") <= 20
        assert "guess" not in log


def connect(node: Reachable, user: str, password: str, source: str = "127.0.0.1") -> int:
    """The code that a login is answered with."""
    fields = text("c") + text(user) + text(password)
    head = text("MQTT") + b"\5\xc2\0\x3c\0"
    with socket.create_connection(node.mqtt, timeout=30, source_address=(source, 0)) as wire:
        wire.sendall(packet(0x10, head + fields))
        return wire.recv(4)[3]
