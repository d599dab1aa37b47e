"""Effects on clients: what a dry run says of users, rules, listeners, bans, sessions and messages is what happens."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import paho.mqtt.client as paho
import pytest
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from tests.support.local_node import Node, running, sluice
from tests.support.node import eventually
from tests.support.processes import free_port

CONFIG = """
lake.run_spark = false
authentication = [{mechanism = builtin}]
authorization.no_match = allow
"""


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with running(tmp_path_factory.mktemp("impact") / "data", config=CONFIG) as node:
        for user in ("ann", "bob"):
            node.call("POST", "/users", {"name": user, "password": "secret"})
        yield node


@contextmanager
def client(
    node: Node, name: str, user: str, topic: str = "", port: int = 0, will: str = ""
) -> Iterator[paho.Client]:
    """A client with a session of an hour, subscribed to a topic."""
    connecting = paho.Client(CallbackAPIVersion.VERSION2, name, protocol=paho.MQTTv5)
    connecting.username_pw_set(user, "secret")
    connecting.reconnect_delay_set(3600, 3600)
    if will:
        connecting.will_set(will, b"gone", 1)
    lasting = Properties(PacketTypes.CONNECT)
    lasting.SessionExpiryInterval = 3600
    connecting.connect(
        node.mqtt[0], port or node.mqtt[1], 3600, clean_start=True, properties=lasting
    )
    connecting.loop_start()
    eventually(connecting.is_connected)
    if topic:
        connecting.subscribe(topic, 1)
        eventually(lambda: node.call("GET", f"/sessions/{name}")["subscriptions"])
    try:
        yield connecting
    finally:
        connecting.disconnect()
        connecting.loop_stop()


def connected(node: Node) -> set[str]:
    return {
        one["clientid"] for one in node.call("GET", "/clients?connected=true&limit=1000")["items"]
    }


def sessions(node: Node) -> set[str]:
    return {one["clientid"] for one in node.call("GET", "/sessions?limit=1000")["items"]}


def effect(node: Node, method: str, path: str, body: Any = None) -> Any:
    return node.call(method, f"{path}{'&' if '?' in path else '?'}dry_run=true", body)


def number(sentences: list[str], pattern: str) -> int:
    """The number in the one sentence that has this pattern; 0 where there is none."""
    found = [match[1] for sentence in sentences if (match := re.search(pattern, sentence))]
    assert len(found) <= 1
    return int(found[0]) if found else 0


def forget_sessions(node: Node) -> None:
    node.call("POST", "/sessions:purge", {"clientid": "*", "connected": False})


def test_a_user_goes_with_its_clients_sessions_and_messages(node: Node) -> None:
    assert (
        effect(node, "DELETE", "/users/ann")["summary"]
        == "It would be deleted. Nothing else is affected."
    )
    with client(node, "a1", "ann", "u/#"):
        pass  # it leaves a session
    with client(node, "b1", "bob"), client(node, "a2", "ann", will="u/will") as second:
        for value in ("1", "2"):
            node.call("POST", "/messages:publish", {"topic": "u/1", "payload": value, "qos": 1})
        second.publish("$delayed/3600/u/later", b"x", 1).wait_for_publish(30)
        eventually(lambda: node.call("GET", "/sessions/a1")["queued"] == 2)
        before = connected(node), sessions(node)
        found = effect(node, "DELETE", "/users/ann")["consequences"]
        assert (connected(node), sessions(node)) == before
        assert "Not published: 1 will and 1 delayed message." in found
        node.call("DELETE", "/users/ann")
        eventually(lambda: sessions(node) == {"b1"})
        assert (
            number(found, r"(\d+) clients? (?:is|are) disconnected")
            == len(before[0] - connected(node))
            == 1
        )
        assert (
            number(found, r"(\d+) sessions? ends?, with 2 messages waiting")
            == len(before[1] - sessions(node))
            == 2
        )
    node.call("POST", "/users", {"name": "ann", "password": "secret"})
    forget_sessions(node)


def test_another_password_disconnects_and_a_description_does_not(node: Node) -> None:
    with client(node, "c1", "ann"):
        same = effect(node, "PUT", "/users/ann", {"description": "operator"})
        assert same["consequences"] == []
        other = effect(node, "PUT", "/users/ann", {"password": "secret"})
        assert other["consequences"] == ["1 client is disconnected."]
        node.call("PUT", "/users/ann", {"password": "secret"})
        eventually(lambda: "c1" not in connected(node))
    forget_sessions(node)


def test_an_access_rule_says_which_subscriptions_it_ends(node: Node) -> None:
    with (
        client(node, "d1", "ann", "r/a"),
        client(node, "d2", "ann", "r/b"),
        client(node, "d3", "bob", "r/a"),
    ):
        rule: dict[str, Any] = {
            "name": "no-a",
            "permission": "deny",
            "action": "all",
            "topics": ["r/a"],
        }
        rule["who"] = {"username": ["ann"]}
        found = effect(node, "POST", "/access/rules", rule)["consequences"]
        assert found[0] == "1 subscription of 1 connected client ends."
        node.call("POST", "/access/rules", rule)
        eventually(lambda: not node.call("GET", "/sessions/d1")["subscriptions"])
        assert node.call("GET", "/sessions/d2")["subscriptions"]
        assert node.call("GET", "/sessions/d3")["subscriptions"]
        for method, path in (("DELETE", "/access/rules/no-a"), ("PUT", "/access/rules/no-a")):
            again = effect(
                node, method, path, None if method == "DELETE" else {**rule, "topics": ["r/b"]}
            )
            ends = number(again["consequences"], r"(\d+) subscriptions? of")
            assert (method, ends) == (method, 0 if method == "DELETE" else 1)
        node.call("DELETE", "/access/rules/no-a")
    forget_sessions(node)


def test_a_listener_says_how_many_clients_it_disconnects(node: Node) -> None:
    port = free_port()
    node.call("POST", "/listeners/tcp:plant", {"bind": f"127.0.0.1:{port}"})
    assert effect(node, "DELETE", "/listeners/tcp:plant")["summary"].endswith(
        "Nothing else is affected."
    )
    with (
        client(node, "e1", "ann", port=port),
        client(node, "e2", "bob", port=port),
        client(node, "e3", "bob"),
    ):
        one = ["2 clients are disconnected."]
        assert effect(node, "DELETE", "/listeners/tcp:plant")["consequences"] == one
        assert effect(node, "POST", "/listeners/tcp:plant:stop")["consequences"] == one
        assert (
            effect(node, "POST", "/listeners/tcp:plant:stop")["summary"] == "It would be stopped."
        )
        assert (
            effect(node, "PATCH", "/listeners/tcp:plant", {"enable": False})["consequences"] == one
        )
        (stay,) = effect(node, "DELETE", "/listeners/tcp:plant?drain=true")["consequences"]
        assert stay == "2 clients may stay connected until they disconnect."
        assert connected(node) == {"e1", "e2", "e3"}
        node.call("POST", "/listeners/tcp:plant:stop")
        eventually(lambda: connected(node) == {"e3"})
    node.call("DELETE", "/listeners/tcp:plant")
    forget_sessions(node)


def test_a_ban_a_kick_and_a_session_say_whom_they_disconnect(node: Node) -> None:
    with client(node, "f1", "ann", "q/#"), client(node, "f2", "bob", will="q/will"):
        ban = {"as": "username", "who": "ann"}
        assert effect(node, "POST", "/bans", ban)["consequences"] == ["1 client is disconnected."]
        node.call("POST", "/bans", ban)
        eventually(lambda: connected(node) == {"f2"})
        lifted = effect(node, "DELETE", "/bans/username%2Fann")["consequences"]
        assert lifted == ["Clients of 1 session may connect again."]
        node.call("DELETE", "/bans/username%2Fann")
        chosen = {"clientids": ["f1", "f2", "nobody"]}
        kicked = effect(node, "POST", "/clients:kick", chosen)
        assert kicked["summary"] == "It would be disconnected."
        assert kicked["consequences"] == ["1 client is disconnected.", "1 will is published."]
        assert node.call("POST", "/clients:kick", chosen)["kicked"] == 1
        eventually(lambda: node.call("GET", "/sessions/f1")["queued"] == 1)  # the will
    ends = ["1 session ends, with 1 message waiting."]
    assert effect(node, "DELETE", "/sessions/f1")["consequences"] == ends
    cleared = effect(node, "POST", "/clients:clear", {"clientids": ["f1", "nobody"]})
    assert (cleared["summary"], cleared["consequences"]) == ("It would be cleared.", ends)
    purged = effect(node, "POST", "/sessions:purge", {"clientid": "f*"})["consequences"]
    counts = node.call("POST", "/sessions:purge", {"clientid": "f*"})
    assert number(purged, r"(\d+) sessions? end") == counts["sessions"] == 2
    node.call("DELETE", "/sessions/f1", expect=404)


def test_retained_and_delayed_messages_say_how_many_are_deleted(node: Node) -> None:
    for topic in ("k/1", "k/2", "l/1"):
        node.call(
            "POST",
            "/messages:publish",
            {"topic": topic, "payload": "four", "retain": True},
            expect=(200, 422),
        )
    found = effect(node, "POST", "/retained:clear", {"filter": "k/#"})["consequences"]
    assert found == ["2 retained messages are deleted (8 bytes of payloads)."]
    assert node.call("POST", "/retained:clear", {"filter": "k/#"})["messages"] == 2
    assert (
        effect(node, "POST", "/retained:clear", {"filter": "k/#"})["summary"]
        == "Nothing would change."
    )
    (one,) = effect(node, "DELETE", "/retained:message?topic=l/1")["consequences"]
    assert one.startswith("1 retained message is deleted")
    with client(node, "g1", "ann") as publisher:
        publisher.publish("$delayed/3600/later", b"x", 1).wait_for_publish(30)
    message = next(one for one in node.call("GET", "/delayed")["items"] if one["topic"] == "later")
    (late,) = effect(node, "DELETE", f"/delayed/{message['id']}")["consequences"]
    assert late == "The message on 'later' of client 'g1' is not published."
    forget_sessions(node)


def test_the_last_authenticator_and_an_automatic_subscription_say_what_stays(node: Node) -> None:
    node.call("POST", "/auto-subscriptions", {"name": "own", "topic": "to/${clientid}", "qos": 1})
    with client(node, "h1", "ann"):
        eventually(lambda: node.call("GET", "/sessions/h1")["subscriptions"])
        kept = effect(node, "DELETE", "/auto-subscriptions/own")["consequences"]
        assert kept == ["1 session keeps the subscription to 'to/${clientid}'."]
        node.call("DELETE", "/auto-subscriptions/own")
        assert node.call("GET", "/sessions/h1")["subscriptions"]
        rewrite = {
            "name": "moved",
            "source_topic": "old/#",
            "dest_topic": "new",
            "action": "publish",
        }
        node.call("POST", "/rewrites", rewrite)
        assert effect(node, "DELETE", "/rewrites/moved")["consequences"][0].startswith(
            "1 client is connected."
        )
        node.call("DELETE", "/rewrites/moved")
    forget_sessions(node)


def test_a_token_and_a_share_group_say_what_they_lose(node: Node) -> None:
    node.call("POST", "/streams", {"name": "read", "topics": ["n/#"]})
    node.call("POST", "/tokens", {"name": "reader", "streams": ["read"]})
    assert (
        "Token 'reader' can no longer read it."
        in effect(node, "DELETE", "/streams/read")["consequences"]
    )
    (lost,) = effect(node, "DELETE", "/tokens/reader")["consequences"]
    assert lost == "Programs that use it can no longer read 1 stream: 'read'."
    node.call("DELETE", "/tokens/reader")
    node.call("POST", "/groups", {"group": "$share/m/m/#"})
    for value in ("1", "2"):
        node.call("POST", "/messages:publish", {"topic": "m/1", "payload": value, "qos": 1})
    eventually(lambda: node.call("GET", "/groups/%24share%2Fm%2Fm%2F%23")["waiting"] == 2)
    group = effect(node, "DELETE", "/groups/%24share%2Fm%2Fm%2F%23")["consequences"]
    assert group == ["2 messages are discarded."]
    node.call("DELETE", "/groups/%24share%2Fm%2Fm%2F%23")
    assert node.call("GET", "/groups")["items"] == []
    node.call("DELETE", "/streams/read")


def test_what_ends_or_pauses_an_action_says_how_many_rows_wait(node: Node) -> None:
    node.call("POST", "/connectors", {"name": "away", "type": "mqtt", "server": "127.0.0.1:1"})
    action = {"name": "out", "type": "mqtt", "connector": "away", "parameters": {"topic": "out"}}
    node.call("POST", "/actions", action)
    send = [{"type": "bridge", "bridge": "mqtt:out"}]
    node.call(
        "POST", "/rules", {"name": "sends", "sql": 'SELECT 1 AS a FROM "o/#"', "actions": send}
    )
    node.call("POST", "/messages:publish", {"topic": "o/1", "payload": "x"}, expect=(200, 422))
    eventually(lambda: node.call("GET", "/actions/out")["metrics"]["queuing"] == 1)
    kept = "It sends nothing. 1 row in its buffer: kept."
    drained = effect(node, "POST", "/actions/out:drain", {"timeout_s": 0})
    assert drained["consequences"] == [
        "It sends the 1 row in its buffer, then stops. New rows are dropped."
    ]
    assert drained["summary"] == "It would be drained."
    assert "then stops" in sluice(node, "actions", "drain", "out", "--dry-run").stdout
    for verb, new in (
        ("stop", "are dropped"),
        ("disable", "are dropped"),
        ("pause", "wait with them"),
    ):
        found = effect(node, "POST", f"/actions/out:{verb}")
        assert found["consequences"] == [f"{kept} New rows {new}."]
        assert found["affected"] == [{"kind": "rule", "name": "sends", "how": "uses it"}]
        assert node.call("GET", "/actions/out")["paused"] is False
    assert effect(node, "POST", "/actions/out:resume")["change"] == "none"
    stopped = effect(node, "POST", "/connectors/away:stop")
    assert stopped["consequences"] == [f"action 'out': {kept} New rows wait with them."]
    assert [one["name"] for one in stopped["affected"]] == ["mqtt:out", "sends"]
    letters = effect(node, "POST", "/actions/out/dead-letters:purge")
    assert letters["summary"] == "Nothing would change."
    node.call("POST", "/actions/out:pause")
    node.call("POST", "/actions/out:drain?dry_run=true", {}, expect=422)  # as the call itself
    assert node.call("GET", "/actions/out")["metrics"]["queuing"] == 1
    node.call("DELETE", "/connectors/away?cascade=true")
