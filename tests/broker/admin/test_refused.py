"""Messages that stages stopped: kept as they were published, within bounds, and shown to those who may see them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from broker.admin.refused import MAX_MESSAGES, MAX_PAYLOAD_BYTES, MAX_PROPERTIES_BYTES
from tests.support.local_node import Node, running
from tests.support.plain_http import NO_TLS


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """A broker with a validation that stops what is above 50."""
    with running(
        tmp_path_factory.mktemp("refused") / "data", config="overload.enable = false\n"
    ) as node:
        small = {"type": "object", "properties": {"t": {"type": "number", "maximum": 50}}}
        node.call(
            "POST", "/schemas", {"name": "small", "type": "json", "source": json.dumps(small)}
        )
        node.call(
            "POST",
            "/validations",
            {
                "name": "fits",
                "topics": ["halls/#"],
                "checks": [{"type": "json", "schema": "small"}],
                "strategy": "all_pass",
                "failure_action": "drop",
            },
        )
        yield node


def publish(node: Node, payload: Any, topic: str = "halls/1", **members: Any) -> None:
    body = {"topic": topic, "payload": payload, "qos": 1, **members}
    node.call("POST", "/messages:publish", body, expect=422)


def test_a_refused_message_is_shown_as_it_was_published(node: Node) -> None:
    publish(node, '{"t": 51}', user_properties=[["shift", "night"]], content_type="json")
    row = node.call("GET", "/refused")["items"][0]
    assert (row["topic"], row["stage"], row["name"]) == ("halls/1", "validation", "fits")
    assert (row["payload_bytes"], row["truncated"]) == (9, False)
    refused = node.call("GET", f"/refused/{row['id']}")
    message = refused.pop("message")
    assert {member: refused[member] for member in row} == row
    assert message["payload"] == {
        "encoding": "json",
        "data": {"t": 51},
        "size_bytes": 9,
        "truncated": False,
    }
    assert message["user_properties"] == [["shift", "night"]]
    assert message["properties"] == {"Content-Type": "json"}
    # the same message is in the status, and among the failures of the validation
    assert node.call("GET", "/status")["refusals"][0]["id"] == row["id"]
    failure = node.call("GET", "/validations/fits")["recent_failures"][-1]
    assert failure["message_id"] == row["id"]


def test_a_message_that_stages_changed_first_is_kept_as_it_was_before(node: Node) -> None:
    for name, key, value in (("stamp", "payload.by", "clientid"), ("move", "topic", "payload.to")):
        json_code = {"type": "json"}
        transform: dict[str, Any] = {"name": name, "topics": ["lifts/#"], "failure_action": "drop"}
        transform |= {"payload_decoder": json_code, "payload_encoder": json_code}
        node.call(
            "POST", "/transforms", {**transform, "operations": [{"key": key, "value": value}]}
        )
    publish(node, '{"to": "a/#"}', "lifts/1")
    row = node.call("GET", "/refused?limit=1")["items"][0]
    assert (row["stage"], row["name"]) == ("transformation", "move")
    message = node.call("GET", f"/refused/{row['id']}")["message"]
    assert (message["topic"], message["payload"]["data"]) == ("lifts/1", {"to": "a/#"})
    failure = node.call("GET", "/transforms/move")["recent_failures"][-1]
    assert failure["message_id"] == row["id"]
    # run again, it meets the stages in the same way: the second one stops it
    original = {"topic": message["topic"], "payload": {"encoding": "json", "data": {"to": "a/#"}}}
    trial = node.call("POST", "/pipeline:preview", {"message": original})
    assert trial["ended_by"] == {"stage": "transformation", "name": "move"}


@pytest.mark.parametrize(
    ("payload", "members", "kept_bytes"),
    [
        (" " * MAX_PAYLOAD_BYTES + "!", {}, MAX_PAYLOAD_BYTES),
        ("!", {"user_properties": [["x", "y" * 1024]] * (MAX_PROPERTIES_BYTES // 1024)}, 1),
    ],
)
def test_what_is_too_large_is_cut_and_says_so(
    node: Node, payload: str, members: dict[str, Any], kept_bytes: int
) -> None:
    publish(node, payload, **members)
    row = node.call("GET", "/refused?limit=1")["items"][0]
    assert (row["payload_bytes"], row["truncated"]) == (len(payload), True)
    message = node.call("GET", f"/refused/{row['id']}")["message"]
    assert message["payload"]["truncated"]
    assert message["payload"]["size_bytes"] == len(payload)
    assert len(message["payload"]["data"]) == kept_bytes
    assert message["user_properties"] == []


def test_pages_and_filters_and_the_oldest_go(node: Node) -> None:
    publish(node, "!", "halls/old")
    [oldest] = node.call("GET", "/refused?filter=halls/old")["items"]
    for number in range(MAX_MESSAGES):
        publish(node, "!", f"halls/new/{number}")
    whole = node.call("GET", "/refused?limit=1000")
    assert whole["total"] == MAX_MESSAGES
    assert [row["topic"] for row in whole["items"][:2]] == ["halls/new/49", "halls/new/48"]
    node.call("GET", f"/refused/{oldest['id']}", expect=404)
    first = node.call("GET", "/refused?limit=30")
    second = node.call("GET", f"/refused?limit=30&cursor={first['next']}")
    assert [*first["items"], *second["items"]] == whole["items"]
    assert second["next"] is None
    assert node.call("GET", "/refused?filter=halls/new/7")["total"] == 1
    node.call("GET", "/refused?filter=a/%23/b", expect=422)


def test_a_scope_of_topics_decides_who_sees_a_message(node: Node) -> None:
    publish(node, "!", "halls/1")
    id = node.call("GET", "/refused?limit=1")["items"][0]["id"]
    for name, scope, status in (("ours", "halls/#", 200), ("theirs", "cellars/#", 403)):
        spec = {"name": name, "role": "viewer", "topics": [scope]}
        token = node.call("POST", "/tokens", spec)["token"]
        answer = httpx.get(
            f"{node.url}/api/v1/refused/{id}",
            headers={"Authorization": f"Bearer {token}"},
            verify=NO_TLS,
            timeout=60,
        )
        assert answer.status_code == status, answer.text
