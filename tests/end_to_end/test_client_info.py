"""Client attributes and the client-info authenticator of a whole broker, by its configuration file."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.end_to_end.clients import Client, MosquittoSub, publish
from tests.support.node import Node, command, running

CONFIG = """
authentication = [
  { mechanism = cinfo
    checks = [
      { is_match = "str_eq(clientid, 'ghost')", result = deny }
      { is_match = ["not(is_empty_val(username))", "str_eq(password, concat([username, '!']))"], result = allow }
      { is_match = "is_empty_val(username)", result = allow }
      { is_match = "true", result = deny }
    ] }
]
mqtt.client_attrs_init = [
  { expression = "coalesce(user_property.site, nth(1, tokens(clientid, '-')))", set_as_attr = site }
  { expression = "cert_common_name", set_as_attr = device }
]
schema_validation.validations = [
  { name = home, topics = ["home/#"], strategy = all_pass, failure_action = drop
    checks = [{ type = sql, sql = "SELECT 1 AS ok WHERE client_attrs.site = nth(2, split(topic, '/'))" }] }
]
message_transformation.transformations = [
  { name = tag, topics = ["t/#"], failure_action = drop
    operations = [{ key = "user_property.ou", value = "coalesce(client_attrs.device, 'none')" }
                  { key = topic, value = "concat([client_attrs.site, concat(['/', topic])])" }] }
]
rule_engine.rules = [
  { name = seen, sql = "SELECT client_attrs.site as site, clientid FROM \\"+/t/#\\"",
    actions = [{ type = republish, topic = "seen/${site}", payload = "${.}" }] }
]
"""


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with running(tmp_path_factory.mktemp("client-info") / "node", config=CONFIG) as node:
        yield node


def test_attributes_are_seen_by_transformations_and_rules(node: Node) -> None:
    with MosquittoSub(node, "-q", "1", "-t", "+/t/#", "-t", "seen/#") as subscriber:
        publish(node, "t/1", "x", "-q", "1", "-i", "berlin-7")
        lines = sorted(subscriber.take(2))
    topic, row = lines[1].split(" ", 1)
    assert lines[0] == "berlin/t/1 x"
    assert (topic, json.loads(row)) == ("seen/berlin", {"site": "berlin", "clientid": "berlin-7"})


@pytest.mark.parametrize(("topic", "code"), [("home/berlin/t", 0), ("home/paris/t", 0x83)])
def test_attributes_are_seen_by_checks(node: Node, topic: str, code: int) -> None:
    with Client(node, "berlin-8") as client:
        reason, _ = client.publish(topic, "x")
    assert reason.value in ((0, 0x10) if code == 0 else (code,))


def test_a_client_that_takes_over_has_the_attributes_of_its_own_connection(node: Node) -> None:
    first = Client(node, "c", expiry_s=60, user_properties=[("site", "berlin")])
    with MosquittoSub(node, "-q", "1", "-t", "+/t/#") as subscriber:
        first.publish("t/1", "by the first")
        with Client(
            node, "c", is_clean=False, expiry_s=60, user_properties=[("site", "paris")]
        ) as second:
            assert second.flags.session_present
            second.publish("t/1", "by the second")
        with Client(node, "c", is_clean=False, user_properties=[("site", "rome")]) as third:
            third.publish("t/1", "after a while")
        assert subscriber.take(3) == [
            "berlin/t/1 by the first",
            "paris/t/1 by the second",
            "rome/t/1 after a while",
        ]
    first.paho.loop_stop()


@pytest.mark.parametrize(
    ("client_id", "username", "password", "accepted"),
    [
        ("a", None, None, True),
        ("a", "u", "u!", True),
        ("a", "u", "wrong", False),
        ("ghost", "u", "u!", False),
    ],
)
@pytest.mark.parametrize("version", ["311", "5"])
def test_the_authenticator_decides(
    node: Node,
    client_id: str,
    username: str | None,
    password: str | None,
    accepted: bool,
    version: str,
) -> None:
    options = ["-i", client_id, "-V", version, "-q", "1"]
    options += ["-u", username, "-P", password or ""] if username else []
    if accepted:
        publish(node, "x", "y", *options)
    else:
        with pytest.raises(subprocess.CalledProcessError) as refused:
            publish(node, "x", "y", *options)
        assert "bad user name or password" in refused.value.stderr.lower()


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (
            'authentication = [{ mechanism = cinfo, checks = [{ is_match = "nosuch(1)", result = deny }] }]',
            "no function 'nosuch'",
        ),
        ("authentication = [{ mechanism = cinfo, checks = [] }]", "checks"),
        (
            'mqtt.client_attrs_init = [{ expression = "clientid", set_as_attr = "a b" }]',
            "set_as_attr",
        ),
    ],
)
def test_settings_that_cannot_be_used_are_refused_with_their_place(
    tmp_path: Path, config: str, expected: str
) -> None:
    file = tmp_path / "sluice.conf"
    file.write_text(config)
    done = command("config", "check", str(file))
    assert done.returncode != 0
    assert f"{file} line 1" in done.stderr + done.stdout
    assert expected in done.stderr + done.stdout
