"""Named secrets: written over the API and the command line, never shown again, and encrypted on the disk."""

from __future__ import annotations

import hmac
import os
import re
import subprocess
import sys
import threading
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import paho.mqtt.client as mqtt
import pytest
from paho.mqtt.enums import CallbackAPIVersion

from tests.support.local_node import Node, running, sluice
from tests.support.node import TOKEN, Reachable, eventually
from tests.support.node import Node as NodeProcess

# What is searched for in everything that the broker says and writes.
PLANTED = "pl4nted-Value-of-a-secret"
FORMS = (PLANTED.encode(), b64encode(PLANTED.encode()), PLANTED.encode().hex().encode())


def leaks(text: str | bytes) -> bool:
    data = text if isinstance(text, bytes) else text.encode()
    return any(form in data for form in FORMS)


def files_with_it(node: Reachable) -> list[str]:
    """Files of the data directory, and the log, that have the value in them."""
    files = [
        node.log,
        *(path for path in node.data_dir.rglob("*") if path.is_file() and not path.is_symlink()),
    ]
    return [str(file) for file in files if leaks(file.read_bytes())]


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with running(tmp_path_factory.mktemp("node") / "data") as node:
        yield node


def put(node: Reachable, name: str, value: str = PLANTED, **members: Any) -> Any:
    return node.call("PUT", f"/secrets/{name}", {"value": value, **members})


def test_no_answer_and_no_file_has_the_value(node: Node) -> None:
    put(node, "shown", description="of the historian")
    requests: list[tuple[str, str, Any]] = [
        ("GET", "/secrets", None),
        ("GET", "/secrets/shown", None),
        ("GET", "/secrets?search=pl4nted", None),
        ("PUT", "/secrets/shown", {"value": PLANTED}),
        ("PUT", "/secrets/shown?dry_run=true", {"value": PLANTED + "2"}),
        ("PUT", "/secrets/shown", {"value": PLANTED, "valeu": PLANTED}),
        ("PUT", "/secrets/shown", {"value": [PLANTED]}),
        ("PUT", "/secrets/shown", {"value": {"a": PLANTED}}),
        ("PUT", "/secrets/shown", {"value": PLANTED * 3000}),
        ("PUT", "/secrets/shown", {"value": PLANTED + "\ud800"}),
        ("PUT", "/secrets/shown", {"encrypted": PLANTED}),
        ("PUT", "/secrets/shown", {"value": PLANTED, "description": 7}),
        ("PUT", "/secrets/shown", PLANTED),
        ("PUT", "/secrets/shown", [PLANTED]),
        ("PUT", "/secrets/a%20b", {"value": PLANTED}),
        ("POST", "/secrets", {"name": "shown", "value": PLANTED}),
        ("POST", "/secrets", {"name": "posted", "value": PLANTED}),
        ("POST", "/secrets", {"name": "posted/2", "value": PLANTED}),
        ("DELETE", "/secrets/shown?dry_run=true", None),
        ("DELETE", "/secrets/posted", None),
        ("GET", "/config", None),
        ("POST", "/config:reload?dry_run=true", None),
        ("POST", "/config:reload", None),
        ("GET", "/status", None),
        ("GET", "/metrics/history", None),
        ("GET", "/jobs", None),
    ]
    with node.client() as client:
        client.timeout = 120  # a reload is tried in a process of its own
        for method, path, body in requests:
            kwargs: dict[str, Any] = {} if body is None else {"content": _json(body)}
            answer = client.request(
                method, path, headers={"content-type": "application/json"}, **kwargs
            )
            assert answer.status_code < 500, f"{method} {path}: {answer.text}"
            assert not leaks(answer.content), f"{method} {path}: {answer.text[:2000]}"
        broken = client.put("/secrets/shown", content=f'{{"value": "{PLANTED}",,}}')
        assert broken.status_code in (400, 422)
        assert not leaks(broken.content)
        assert not leaks(client.get("/openapi.json").content)
    assert files_with_it(node) == []


def _json(body: Any) -> bytes:
    import json

    return json.dumps(body).encode()  # with half of a surrogate pair as \ud800


def test_an_answer_has_the_description_the_time_and_the_users(node: Node) -> None:
    created = put(node, "viewed", description="of the historian")
    assert created.pop("updated_at").endswith("Z")
    assert created == {"name": "viewed", "description": "of the historian", "used_by": []}
    [row] = [row for row in node.call("GET", "/secrets")["items"] if row["name"] == "viewed"]
    assert row.keys() == {"name", "description", "updated_at", "used_by", "etag", "fixed_by"}


def test_a_put_without_a_value_or_with_stars_keeps_it_and_a_new_value_gets_a_time(
    node: Node,
) -> None:
    first = put(node, "kept")
    for body in ({"description": "a"}, {"description": "b", "value": "******"}):
        changed = node.call("PUT", "/secrets/kept", body)
        assert (changed["description"], changed["updated_at"]) == (
            body["description"],
            first["updated_at"],
        )
    assert put(node, "kept", "another", description="b")["updated_at"] > first["updated_at"]
    effect = node.call(
        "PUT", "/secrets/kept?dry_run=true", {"value": "another", "description": "b"}
    )
    assert effect["change"] == "none"


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({}, "expected the secret itself, got none"),
        ({"value": "******"}, "expected the secret itself, got none"),
        ({"value": ""}, "got an empty string"),
        ({"value": "é" * 32_769}, "expected at most 65,536 bytes, got 65,538"),
        ({"value": 7}, "expected a string"),
        ({"encrypted": "AAAA"}, "expected the key that encrypted the secrets"),
    ],
)
def test_a_value_that_cannot_be_kept_is_refused(
    node: Node, body: dict[str, Any], expected: str
) -> None:
    put(node, "kept")  # the first one makes the key
    answer = node.call("PUT", "/secrets/wrong", body, expect=422)
    assert expected in str(answer["errors"])
    node.call("GET", "/secrets/wrong", expect=404)


def test_the_largest_value_is_kept(node: Node) -> None:
    put(node, "large", "é" * 32_768)
    node.call("DELETE", "/secrets/large")


def test_commands_take_the_value_from_a_file_or_standard_input_only(
    node: Node, tmp_path: Path
) -> None:
    file = tmp_path / "value"
    file.write_text(f"{PLANTED}\n")
    created = sluice(
        node, "secrets", "put", "commanded", "--value-file", str(file), "--description", "d"
    )
    assert (created.returncode, created.stdout) == (0, "secret commanded created\n"), created.stderr
    piped = sluice(node, "secrets", "put", "commanded", text="another")
    assert (piped.returncode, piped.stdout) == (0, "secret commanded replaced\n"), piped.stderr
    for words in (
        ("ls",),
        ("get", "commanded"),
        ("show", "commanded", "--json"),
        ("put", "--help"),
    ):
        shown = sluice(node, "secrets", *words)
        assert shown.returncode == 0
        assert not leaks(shown.stdout + shown.stderr)
    assert node.call("GET", "/secrets/commanded")["description"] == "d"  # stays
    # not on the command line
    assert sluice(node, "secrets", "put", "commanded", PLANTED).returncode == 2
    assert sluice(node, "secrets", "delete", "commanded", "--yes").returncode == 0
    node.call("GET", "/secrets/commanded", expect=404)


def test_a_secret_is_there_after_kill_nine_and_its_key_is_the_owners(tmp_path: Path) -> None:
    node = NodeProcess(tmp_path / "data").start()
    try:
        assert not (node.data_dir / "secrets.key").exists()  # nothing to encrypt yet
        node.call("PUT", "/secrets/lasting?dry_run=true", {"value": PLANTED})
        assert not (node.data_dir / "secrets.key").exists()
        put(node, "lasting")
        node.kill()
        assert (node.data_dir / "secrets.key").stat().st_mode & 0o777 == 0o600
        assert files_with_it(node) == []
        node.start()
        assert node.call("GET", "/secrets/lasting")["name"] == "lasting"
        assert (
            node.call("PUT", "/secrets/lasting?dry_run=true", {"value": PLANTED})["change"]
            == "none"
        )
    finally:
        node.kill()


def start_refused(node: Reachable) -> str:
    """What a start that must fail says."""
    command = [sys.executable, "-m", "broker.cli.main", "serve", "--data-dir", str(node.data_dir)]
    ended = subprocess.run(
        [*command, "--mqtt", "127.0.0.1:0", "--api", "127.0.0.1:0"],
        env=os.environ | {"SLUICE_API_TOKEN": TOKEN} | node.environ,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ended.returncode == 1, ended.stdout
    assert not leaks(ended.stderr)
    return ended.stderr.strip().splitlines()[-1]


def test_a_wrong_lost_or_malformed_key_is_one_sentence_at_the_start_and_deletes_nothing(
    tmp_path: Path,
) -> None:
    node = NodeProcess(tmp_path / "data").start()
    for name in ("a", "b"):
        put(node, name)
    assert node.stop() == 0
    key = node.data_dir / "secrets.key"
    right = key.read_text()
    saved = (node.data_dir / "api.hocon").read_bytes()
    key.unlink()
    assert (
        f"secrets 'a', 'b' cannot be decrypted: {key}: expected the key of the secrets, got no file"
        in start_refused(node)
    )
    assert not key.exists()  # a new key would hide that the old one is lost
    key.write_text("0" * 64)
    assert f"{key}: expected the key that encrypted the secrets, got another" in start_refused(node)
    key.write_text("short")
    assert "expected a key of 64 hexadecimal digits, got 5 characters" in start_refused(node)
    assert (node.data_dir / "api.hocon").read_bytes() == saved
    key.unlink()
    node.environ["SLUICE_SECRETS_KEY"] = right.strip()
    node.start()
    assert node.call("PUT", "/secrets/a?dry_run=true", {"value": PLANTED})["change"] == "none"
    assert node.stop() == 0
    assert not key.exists()
    elsewhere = tmp_path / "key"
    elsewhere.write_text(right)
    node.environ = {"SLUICE_SECRETS_KEY_FILE": str(elsewhere)}
    node.start()
    assert node.call("PUT", "/secrets/b?dry_run=true", {"value": PLANTED})["change"] == "none"
    elsewhere.write_text("1" * 64)  # as the broker runs
    answer = node.call("PUT", "/secrets/c", {"value": "x"}, expect=503)
    assert "expected the key that the broker started with" in answer["detail"]
    assert node.stop() == 0


def test_a_secret_works_under_its_own_name_only(tmp_path: Path) -> None:
    node = Node(tmp_path / "data").start()
    put(node, "a")
    assert node.stop() == 0
    file = node.data_dir / "api.hocon"
    file.write_text(
        file.read_text().replace("secrets.a", "secrets.b").replace('"name": "a"', '"name": "b"')
    )
    assert "secret 'b' cannot be decrypted" in start_refused(node)


def test_a_file_has_no_secret_in_plain_text(tmp_path: Path) -> None:
    node = Node(tmp_path / "data", config=f"secrets.plain.value = {PLANTED}\n")
    node.data_dir.mkdir()
    (node.data_dir / "sluice.conf").write_text(node.config)
    assert (
        "secret 'plain' cannot be used: expected an encrypted secret, got plain text"
        in start_refused(node)
    )


def test_a_secret_in_use_says_by_whom_and_goes_with_them_only(node: Node) -> None:
    put(node, "used")
    for number in (1, 2):
        headers = {"X-Key": "${secret:used}"}
        url = "http://127.0.0.1:9"
        node.call(
            "POST",
            "/connectors",
            {"name": f"c{number}", "type": "http", "url": url, "headers": headers},
        )
    users = ["connector 'c1'", "connector 'c2'"]
    assert node.call("GET", "/secrets/used")["used_by"] == users
    assert node.call("GET", "/connectors/c1")["headers"] == {"X-Key": "${secret:used}"}
    effect = node.call("PUT", "/secrets/used?dry_run=true", {"value": "another"})
    assert [affected["name"] for affected in effect["affected"]] == ["c2", "c1"]
    assert "connect again" in str(effect["consequences"])
    assert node.call("DELETE", "/secrets/used", expect=409)["code"] == "in_use"
    node.call("DELETE", "/secrets/used?cascade=true")
    for path in ("/secrets/used", "/connectors/c1", "/connectors/c2"):
        node.call("GET", path, expect=404)


def test_an_unknown_secret_is_refused_with_the_closest_name(node: Node) -> None:
    put(node, "historian")
    spec = {
        "name": "far",
        "type": "http",
        "url": "http://127.0.0.1:9",
        "headers": {"A": "${secret:historain}"},
    }
    expected = "expected the name of a secret, got 'historain'; did you mean 'historian'?"
    for path in ("/connectors", "/connectors:probe"):
        assert expected in str(node.call("POST", path, spec, expect=422)["errors"])
    jwt = {"mechanism": "jwt", "secret": "${secret:historain}"}
    assert expected in str(node.call("POST", "/authentication", jwt, expect=422)["errors"])


def test_settings_that_refer_to_a_secret_keep_it(tmp_path: Path) -> None:
    store = """lake.stores = [
      { url = "s3://bucket/", access_key_id = "${secret:key}", secret_access_key = "${secret:key}" }
    ]\n"""
    node = Node(tmp_path / "data", config="lake.run_spark = false\n").start()
    put(node, "key")
    assert node.stop() == 0
    node.config += store
    node.start()
    assert node.call("GET", "/secrets/key")["used_by"] == ["setting 'lake'"]
    for path in (
        "/secrets/key",
        "/secrets/key?cascade=true",
        "/secrets/key?cascade=true&dry_run=true",
    ):
        assert node.call("DELETE", path, expect=409)["code"] == "in_use"
    table = {"name": "t", "stream": "s", "format": "delta", "path": "s3://bucket/t"}
    node.call("POST", "/streams", {"name": "s"})
    node.call("POST", "/lake/tables", table)
    with node.client() as client:
        for path in ("/lake/tables", "/lake/tables/t", "/config"):
            assert not leaks(client.get(path).content)
    assert node.stop() == 0
    assert files_with_it(node) == []


SIGNED = """SELECT hmac('sha256', get_secret('signing'), payload) AS signature, payload FROM "orders/#\""""


def signature(key: str, payload: str) -> str:
    return hmac.digest(key.encode(), payload.encode(), "sha256").hex()


def test_a_rule_signs_with_a_secret_that_nothing_shows(node: Node) -> None:
    put(node, "signing")
    republish = {"type": "republish", "topic": "signed/1", "payload": "${signature}"}
    node.call("POST", "/rules", {"name": "sign", "sql": SIGNED, "actions": [republish]})
    assert node.call("GET", "/secrets/signing")["used_by"] == ["rule 'sign'"]
    assert node.call("DELETE", "/secrets/signing", expect=409)["code"] == "in_use"
    received: list[str] = []
    client = mqtt.Client(CallbackAPIVersion.VERSION2, "receiver", protocol=mqtt.MQTTv5)
    client.on_message = lambda _client, _data, message: received.append(message.payload.decode())
    subscribed = threading.Event()
    client.on_subscribe = lambda *_: subscribed.set()
    client.connect(*node.mqtt)
    client.loop_start()
    client.subscribe("signed/#", 1)
    assert subscribed.wait(60)
    client.publish("orders/1", "21 pieces", 1).wait_for_publish(60)
    eventually(lambda: received == [signature(PLANTED, "21 pieces")])
    put(node, "signing", "the next key")  # one PUT, nothing restarts
    client.publish("orders/1", "22 pieces", 1).wait_for_publish(60)
    eventually(lambda: received[1:] == [signature("the next key", "22 pieces")])
    put(node, "signing")
    client.disconnect()
    client.loop_stop()
    event = {"topic": "orders/1", "payload": "21 pieces"}
    answers = [
        node.call("POST", f"/rules:{verb}", {"sql": SIGNED, "event": event})
        for verb in ("test", "explain")
    ]
    answers.append(node.call("POST", "/rules:check", {"sql": SIGNED}))
    assert signature("******", "21 pieces") in str(answers[0]), "a trial signs with stars"
    shown = str(answers) + str(node.call("GET", "/rules/sign")) + str(node.call("GET", "/rules"))
    assert signature(PLANTED, "21 pieces") not in shown
    assert not leaks(shown)
    assert files_with_it(node) == []
    node.call("DELETE", "/secrets/signing?cascade=true")
    node.call("GET", "/rules/sign", expect=404)


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("get_secret('known')", "expected as the key of hmac"),
        ("'a' || get_secret('known')", "expected as the key of hmac"),
        ("hmac('sha256', payload, get_secret('known'))", "expected as the key of hmac"),
        ("hmac('sha256', upper(get_secret('known')), payload)", "expected as the key of hmac"),
        ("sha256(get_secret('known'))", "expected as the key of hmac"),
        (
            "hmac('sha256', get_secret(payload.name), payload)",
            "expected the name of a secret in quotes",
        ),
        ("hmac('sha256', get_secret('knwon'), payload)", "did you mean 'known'"),
        ("hmac('crc7', get_secret('known'), payload)", "'sha256'"),
    ],
)
def test_a_secret_in_sql_is_a_key_and_nothing_else(
    node: Node, expression: str, expected: str
) -> None:
    put(node, "known")
    rule = {"name": "wrong", "sql": f'SELECT {expression} AS x FROM "a"', "actions": []}
    answer = node.call("POST", "/rules", rule, expect=422)
    assert expected in str(answer["errors"])
    assert not leaks(str(answer))


def test_a_connector_logs_in_again_by_itself_after_one_put(node: Node) -> None:
    put(node, "login", "first")
    put(node, "other")
    host, port = node.mqtt
    connector = {"name": "self", "type": "mqtt", "server": f"{host}:{port}", "username": "sluice"}
    options = {"health_check_interval": "1s", "reconnect_interval": "1s"}
    node.call(
        "POST",
        "/connectors",
        {**connector, "password": "${secret:login}", "resource_opts": options},
    )
    action = {
        "name": "out",
        "type": "mqtt",
        "connector": "self",
        "parameters": {"topic": "t", "payload": "p"},
    }
    node.call("POST", "/actions", action)

    def logins() -> list[str]:
        return [
            row["connected_at"] for row in node.call("GET", "/clients?username=sluice")["items"]
        ]

    eventually(lambda: len(logins()) == 1)
    [first] = logins()
    put(node, "other", "another value")
    put(node, "login", "second")
    eventually(lambda: logins() and logins() != [first])
    eventually(lambda: node.call("GET", "/connectors/self")["status"] == "connected")
    node.call("DELETE", "/connectors/self?cascade=true")


def test_a_table_does_not_sign(node: Node) -> None:
    put(node, "signing")
    node.call("POST", "/rules", {"name": "sign", "sql": SIGNED, "actions": []})
    node.call("POST", "/streams", {"name": "orders", "topics": ["orders/#"]})
    table = {"name": "signed", "stream": "orders", "format": "delta", "rule": "sign"}
    answer = node.call("POST", "/lake/tables", table, expect=422)
    assert "get_secret reads a secret of the broker" in str(answer["errors"])


REFERENCE = "${secret:known}"
HTTP = {"name": "c", "type": "http", "url": "http://127.0.0.1:9"}
ON_A = {"name": "r", "sql": 'SELECT * FROM "a"'}
TRANSFORM = {"name": "t", "topics": ["a"], "failure_action": "drop"}
JSON = {"payload_decoder": {"type": "json"}, "payload_encoder": {"type": "json"}}
MISPLACED: list[tuple[str, dict[str, Any]]] = [
    (
        "/rewrites",
        {"name": "r", "source_topic": "a/#", "re": "a/(.+)", "dest_topic": f"{REFERENCE}/$1"},
    ),
    ("/auto-subscriptions", {"name": "a", "topic": REFERENCE}),
    (
        "/access/rules",
        {"name": "a", "permission": "deny", "action": "publish", "topics": [REFERENCE]},
    ),
    ("/streams", {"name": "s2", "topics": [REFERENCE]}),
    ("/bans", {"as": "clientid", "who": REFERENCE}),
    ("/users", {"name": REFERENCE, "password": "x"}),
    ("/schema-registries", {"name": "sr", "type": "confluent", "url": f"http://{REFERENCE}:1"}),
    ("/connectors", {**HTTP, "url": f"http://127.0.0.1:9/{REFERENCE}"}),
    ("/connectors", {**HTTP, "headers": {"A": f"Bearer {REFERENCE}"}}),
    (
        "/connectors",
        {"name": "c", "type": "mqtt", "server": "127.0.0.1:1", "clientid_prefix": REFERENCE},
    ),
    (
        "/rules",
        {**ON_A, "actions": [{"type": "republish", "topic": f"x/{REFERENCE}", "payload": "a"}]},
    ),
    ("/rules", {**ON_A, "actions": [{"type": "republish", "topic": "x", "payload": REFERENCE}]}),
    (
        "/transforms",
        {
            **TRANSFORM,
            **JSON,
            "operations": [{"key": "topic", "value": f"concat(['{REFERENCE}'])"}],
        },
    ),
]


@pytest.mark.parametrize(
    ("path", "body"), MISPLACED, ids=[f"{path[1:]}-{at}" for at, (path, _) in enumerate(MISPLACED)]
)
def test_a_reference_where_the_value_would_be_shown_is_refused_as_it_is_saved(
    node: Node, path: str, body: dict[str, Any]
) -> None:
    put(node, "known")
    answer = node.call("POST", path, body, expect=422)
    assert re.search(r"\$\{secret:|\$\{\.\.\.\}", str(answer["errors"])), (
        "a sentence about the reference"
    )
    assert not leaks(str(answer))


def everything(node: Reachable) -> Iterator[tuple[str, bytes]]:
    """Every answer of the API to a GET without parameters in its path, and those of each object."""
    document = node.call("GET", "/openapi.json")
    with node.client() as client:
        for path, operations in document["paths"].items():
            route = path.removeprefix("/api/v1")
            if "get" not in operations or route.endswith(("/tail", "/live")):
                continue
            if "{" not in route and not any(
                it["required"] for it in operations["get"].get("parameters", ())
            ):
                answer = client.get(route)
                yield route, answer.content
                if (
                    answer.headers["content-type"].startswith("application/json")
                    and "items" in answer.text
                ):
                    for item in answer.json().get("items", ()):
                        key = item.get("name") or item.get("id")
                        if key is not None and f"{path}/{{name}}" in document["paths"]:
                            yield f"{route}/{key}", client.get(f"{route}/{key}").content


def test_planted_secrets_are_in_no_answer_event_log_or_file(tmp_path: Path) -> None:
    config = """lake.run_spark = false
    lake.stores = [
      { url = "s3://bucket/", access_key_id = "${secret:planted}", secret_access_key = "${secret:planted}" }
    ]\n"""
    node = Node(tmp_path / "data", config="lake.run_spark = false\n").start()
    put(node, "planted")
    assert node.stop() == 0
    node.config = config
    node.start()
    reference = "${secret:planted}"
    connector = {"name": "out", "type": "http", "url": "http://127.0.0.1:9", "headers": {"X-Key": reference},
                 "authentication": {"mechanism": "bearer", "token": reference}}  # fmt: skip
    node.call("POST", "/connectors", connector)
    parameters = {"path": "x", "headers": {"X-Key": f"Key {reference}"}}
    node.call(
        "POST",
        "/actions",
        {"name": "send", "type": "http", "connector": "out", "parameters": parameters},
    )
    sql = "SELECT hmac('sha256', get_secret('planted'), payload) AS s FROM \"orders/#\""
    node.call(
        "POST",
        "/rules",
        {"name": "sign", "sql": sql, "actions": ["http:send", {"type": "console"}]},
    )
    node.call("POST", "/schema-registries", {"name": "sr", "url": "http://127.0.0.1:9",
              "auth": {"mechanism": "bearer", "token": reference}})  # fmt: skip
    external = {
        "url": "http://127.0.0.1:9/",
        "headers": {"X-Api-Key": reference},
        "request_timeout": "1s",
        "max_retries": 0,
    }
    node.call("POST", "/schemas", {"name": "far", "type": "external_http", "parameters": external})
    node.call("POST", "/streams", {"name": "s"})
    node.call(
        "POST",
        "/lake/tables",
        {"name": "t", "stream": "s", "format": "delta", "path": "s3://bucket/t"},
    )
    node.call("POST", "/messages:publish", {"topic": "orders/1", "payload": "a"})
    node.call("POST", "/connectors:probe", connector)
    node.call("POST", "/connectors/out:test")
    node.call("PUT", "/secrets/planted", {"value": f"{PLANTED}-second"})
    node.call("POST", "/messages:publish", {"topic": "orders/1", "payload": "a"})
    node.call("PUT", "/connectors/out", {**connector, "description": "changed"})
    node.call("POST", "/config:reload")
    shown = dict(everything(node))
    assert len(shown) > 40
    for path, content in shown.items():
        assert not leaks(content), path
        assert b"sealed:" not in content, f"{path} shows the encrypted value"
        assert b"secrets.key" not in content, f"{path} shows the place of the key"
    assert reference.encode() in shown["/lake/tables/t"], "references stay"
    assert reference.encode() in shown["/schema-registries/sr"]
    assert reference.encode() in shown["/schemas/far"]
    effect = node.call("PUT", "/secrets/planted?dry_run=true", {"value": "x"})
    users = {(item["kind"], item["name"]) for item in effect["affected"]}
    assert {
        ("schema registry", "sr"),
        ("schema", "far"),
        ("rule", "sign"),
        ("connector", "out"),
    } <= users
    for words in (
        ("audit-log", "export"),
        ("secrets", "ls"),
        ("config", "show"),
        ("connectors", "show", "out"),
    ):
        printed = sluice(node, *words)
        assert not leaks(printed.stdout + printed.stderr), words
    assert node.stop() == 0
    assert files_with_it(node) == []
