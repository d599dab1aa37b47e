"""Effects of deletions, for every kind: an object that something depends on never says that nothing else is affected,
and what a dry run says equals what then happens."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from urllib.parse import quote

import pytest

from broker.core.kinds import Kind, kinds
from tests.end_to_end.test_impact import client, connected, effect, number, sessions
from tests.support.local_node import Node, running
from tests.support.node import eventually
from tests.support.processes import free_port

Make = Callable[[Node, ExitStack], str]
"""Makes an object and what depends on it; its name."""


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with running(
        tmp_path_factory.mktemp("kinds") / "data", config="lake.run_spark = false\n"
    ) as node:
        node.call("POST", "/authentication", {"mechanism": "builtin"})
        for user in ("ann", "bob"):
            node.call("POST", "/users", {"name": user, "password": "secret"})
        yield node


def rule(node: Node, name: str, sql: str, *actions: dict[str, str]) -> None:
    node.call("POST", "/rules", {"name": name, "sql": sql, "actions": list(actions)})


def registry(node: Node, _: ExitStack) -> str:
    node.call(
        "POST",
        "/schema-registries",
        {"name": "far", "type": "confluent", "url": "http://127.0.0.1:1"},
    )
    rule(node, "tagged", "SELECT schema_decode_tagged('far', payload) AS v FROM \"r/#\"")
    return "far"


def schema(node: Node, _: ExitStack) -> str:
    node.call("POST", "/schemas", {"name": "inner", "type": "json", "source": "{}"})
    reference = {"name": "inner", "schema": "inner", "version": 1}
    outer = {
        "name": "outer",
        "type": "json",
        "source": '{"$ref": "inner"}',
        "references": [reference],
    }
    node.call("POST", "/schemas", outer)
    rule(node, "decodes", "SELECT schema_decode('outer', payload) AS v FROM \"s/#\"")
    return "inner"


def validation(node: Node, _: ExitStack) -> str:
    check = {"type": "sql", "sql": "SELECT * WHERE payload.t < 30"}
    body = {"topics": ["v/#"], "checks": [check], "strategy": "all_pass", "failure_action": "drop"}
    node.call("POST", "/validations", {"name": "cool", **body})
    node.call(
        "POST", "/messages:publish", {"topic": "v/1", "payload": '{"t": 40}'}, expect=(200, 422)
    )
    eventually(lambda: node.call("GET", "/validations/cool")["metrics"]["matched"])
    return "cool"


def transformation(node: Node, _: ExitStack) -> str:
    operation = {"key": "payload.seen", "value": "'yes'"}
    body = {"topics": ["t/#"], "operations": [operation], "failure_action": "drop"}
    node.call("POST", "/transforms", {"name": "marks", **body})
    node.call("POST", "/messages:publish", {"topic": "t/1", "payload": "{}"}, expect=(200, 422))
    eventually(lambda: node.call("GET", "/transforms/marks")["metrics"]["matched"])
    return "marks"


def access_rule(node: Node, stack: ExitStack) -> str:
    for name, permission in (("all", "allow"), ("to-go", "allow")):
        topic = "a/#" if name == "to-go" else "other/#"
        spec = {
            "name": name,
            "permission": permission,
            "action": "all",
            "topics": [topic],
            "who": "all",
        }
        node.call("POST", "/access/rules", spec)
    stack.callback(node.call, "DELETE", "/access/rules/all")
    stack.enter_context(client(node, "rule-1", "ann", "a/1"))
    return "to-go"


def source_of_rules(node: Node, stack: ExitStack) -> str:
    stack.enter_context(client(node, "source-1", "ann"))
    return str(node.call("GET", "/authorization/sources")["items"][0]["name"])


def authenticator(node: Node, stack: ExitStack) -> str:
    stack.enter_context(client(node, "chain-1", "ann"))
    stack.callback(node.call, "POST", "/authentication", {"mechanism": "builtin"})
    return "builtin"


def user(node: Node, stack: ExitStack) -> str:
    stack.enter_context(client(node, "user-1", "bob", "u/#"))
    return "bob"


def ban(node: Node, stack: ExitStack) -> str:
    stack.enter_context(client(node, "ban-1", "ann"))
    node.call("POST", "/bans", {"as": "clientid", "who": "ban-1"})
    eventually(lambda: "ban-1" not in connected(node))
    return "clientid/ban-1"


def stream(node: Node, _: ExitStack) -> str:
    node.call("POST", "/streams", {"name": "rows", "topics": ["w/#"]})
    node.call("POST", "/lake/tables", {"name": "of-rows", "stream": "rows"})
    node.call("POST", "/groups", {"group": "$share/w/w/#", "start": "earliest"})
    return "rows"


def connector(node: Node, stack: ExitStack) -> str:
    action(node, stack)
    return "away"


def action(node: Node, _: ExitStack) -> str:
    node.call("PUT", "/connectors/away", {"type": "mqtt", "server": "127.0.0.1:1"})
    node.call(
        "POST",
        "/actions",
        {"name": "out", "type": "mqtt", "connector": "away", "parameters": {"topic": "o"}},
    )
    rule(node, "sends", 'SELECT 1 AS a FROM "x/#"', {"type": "bridge", "bridge": "mqtt:out"})
    return "out"


def source(node: Node, _: ExitStack) -> str:
    node.call("PUT", "/connectors/away", {"type": "mqtt", "server": "127.0.0.1:1"})
    node.call(
        "POST",
        "/sources",
        {"name": "in", "type": "mqtt", "connector": "away", "parameters": {"topic": "i"}},
    )
    rule(node, "reads", 'SELECT * FROM "$bridges/mqtt:in"')
    return "in"


def chained_rule(node: Node, stack: ExitStack) -> str:
    node.call("POST", "/streams", {"name": "raw", "topics": ["y/#"]})
    stack.callback(node.call, "DELETE", "/streams/raw")
    rule(node, "first", 'SELECT payload.t AS t FROM "y/#"')
    rule(node, "second", 'SELECT t FROM "$rules/first"')
    node.call("POST", "/lake/tables", {"name": "of-first", "stream": "raw", "rule": "first"})
    return "first"


def table(node: Node, stack: ExitStack) -> str:
    node.call("POST", "/streams", {"name": "filled", "topics": ["z/#"]})
    stack.callback(node.call, "DELETE", "/streams/filled")
    node.call("POST", "/lake/tables", {"name": "of-filled", "stream": "filled"})
    return "of-filled"


def rewrite(node: Node, stack: ExitStack) -> str:
    stack.enter_context(client(node, "rewrite-1", "ann"))
    node.call(
        "POST",
        "/rewrites",
        {"name": "moved", "source_topic": "old/#", "dest_topic": "new", "action": "publish"},
    )
    return "moved"


def auto_subscription(node: Node, stack: ExitStack) -> str:
    node.call("POST", "/auto-subscriptions", {"name": "own", "topic": "to/${clientid}"})
    stack.enter_context(client(node, "auto-1", "ann"))
    return "own"


def share_group(node: Node, _: ExitStack) -> str:
    node.call("POST", "/groups", {"group": "$share/g/g/#"})
    node.call("POST", "/messages:publish", {"topic": "g/1", "payload": "x", "qos": 1})
    eventually(lambda: node.call("GET", "/groups")["items"][0]["waiting"])
    return "$share/g/g/#"


def listener(node: Node, stack: ExitStack) -> str:
    port = free_port()
    node.call("POST", "/listeners/tcp:plant", {"bind": f"127.0.0.1:{port}"})
    stack.enter_context(client(node, "listener-1", "ann", port=port))
    return "tcp:plant"


def token(node: Node, stack: ExitStack) -> str:
    node.call("POST", "/streams", {"name": "read", "topics": ["n/#"]})
    stack.callback(node.call, "DELETE", "/streams/read")
    node.call("POST", "/tokens", {"name": "reader", "streams": ["read"]})
    return "reader"


def alarm_receiver(node: Node, _: ExitStack) -> str:
    body = {"name": "duty", "type": "topic", "topic": "duty/${name}"}
    node.call("POST", "/alarm-receivers", body)
    return "duty"


def account(node: Node, _: ExitStack) -> str:
    node.call("POST", "/accounts", {"name": "ann", "role": "viewer"})
    return "ann"


def secret(node: Node, _: ExitStack) -> str:
    node.call("PUT", "/secrets/service", {"value": "a token"})
    headers = {"X-Key": "${secret:service}"}
    node.call(
        "POST",
        "/connectors",
        {"name": "keyed", "type": "http", "url": "http://127.0.0.1:9", "headers": headers},
    )
    return "service"


MAKES: dict[str, Make] = {
    "schema registry": registry,
    "schema": schema,
    "validation": validation,
    "transformation": transformation,
    "access rule": access_rule,
    "source of rules": source_of_rules,
    "user": user,
    "ban": ban,
    "stream": stream,
    "connector": connector,
    "action": action,
    "source": source,
    "rule": chained_rule,
    "lake table": table,
    "rewrite": rewrite,
    "auto-subscription": auto_subscription,
    "share group": share_group,
    "listener": listener,
    "alarm receiver": alarm_receiver,
    "account": account,
    "token": token,
    "secret": secret,
    "authenticator": authenticator,
}


def objects(node: Node) -> set[tuple[str, str]]:
    """All objects, by kind and as others name them."""
    shown = [
        (kind, item)
        for kind in kinds()
        if kind.path != "config"
        for item in node.call("GET", f"/{kind.path}?limit=1000")["items"]
    ]
    return {
        (kind.name, reference(kind, item.get("type", ""), item[kind.key])) for kind, item in shown
    }


def reference(kind: Kind, type: str, name: str) -> str:
    return f"{type}:{name}" if kind.name in ("action", "source") else name


def test_every_kind_has_a_case() -> None:
    deleted = {kind.name for kind in kinds() if "delete" in kind.abilities.verbs}
    assert deleted - {"setting"} == MAKES.keys()  # a setting is reset, and nothing else with it


@pytest.mark.parametrize("name", MAKES)
def test_a_deletion_does_what_its_dry_run_says(node: Node, name: str) -> None:
    kind = next(kind for kind in kinds() if kind.name == name)
    with ExitStack() as stack:
        path = f"/{kind.path}/{quote(MAKES[name](node, stack), safe='')}"
        before, clients, known = objects(node), connected(node), sessions(node)
        with node.client() as http:
            plain = http.delete(f"/{kind.path}/{path.rpartition('/')[2]}?dry_run=true")
        assert plain.status_code in (200, 409), plain.text
        is_used = plain.status_code == 409
        if is_used:
            assert plain.json()["code"] == "in_use"
        query = "?cascade=true" if is_used else ""
        effects = effect(node, "DELETE", f"{path}{query}")
        assert effects["affected"] or effects["consequences"]
        assert "Nothing else is affected" not in effects["summary"]
        assert (objects(node), connected(node), sessions(node)) == (before, clients, known)

        node.call("DELETE", f"{path}{query}")

        gone = {
            (one["kind"], one["name"])
            for one in effects["affected"]
            if one["how"].startswith("is deleted too")
        }
        left = number(effects["consequences"], r"^(\d+) clients? (?:is|are) disconnected")
        ended = number(effects["consequences"], r"^(\d+) sessions? ends?, with")
        eventually(lambda: len(clients - connected(node)) == left)
        eventually(lambda: len(known - sessions(node)) == ended)
        assert len(before - objects(node)) == len(gone) + 1
        assert gone < before - objects(node)
