"""The records of streams in pages of JSON, as people read them."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import paho.mqtt.client as mqtt
import pytest
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from tests.support.local_node import Node, running, sluice

AVRO = {"type": "record", "name": "Reading", "fields": [{"name": "t", "type": "double"}]}
TEMPERATURE = bytes.fromhex("0000000000803540")
"""21.5 in Avro."""
KIB = 1024


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """A broker with a stream of messages, some in Avro, and one of rows."""
    with running(tmp_path_factory.mktemp("records") / "data") as node:
        node.call(
            "POST", "/schemas", {"name": "reading", "type": "avro", "source": json.dumps(AVRO)}
        )
        checks = [{"type": "avro", "schema": "reading"}]
        validation = {
            "topics": ["avro/#"],
            "strategy": "all_pass",
            "failure_action": "ignore",
            "checks": checks,
        }
        node.call("POST", "/validations", {"name": "readings", **validation})
        node.call("POST", "/streams", {"name": "all", "topics": ["avro/#", "json/#", "large/#"]})
        node.call("POST", "/streams", {"name": "rows"})
        action = {"type": "stream", "stream": "rows"}
        node.call(
            "POST",
            "/rules",
            {"name": "warm", "sql": 'SELECT payload.t AS t FROM "json/#"', "actions": [action]},
        )
        publish(node, "avro/1", TEMPERATURE)
        publish(node, "avro/2", b"\xff")
        publish(node, "json/1", b'{"t": 20}', "berlin")
        yield node


def publish(node: Node, topic: str, payload: bytes, site: str | None = None) -> None:
    """Publish with QoS 1, and wait for the acknowledgement."""
    client = mqtt.Client(CallbackAPIVersion.VERSION2, "meter", protocol=mqtt.MQTTv5)
    client.username_pw_set("u")
    client.connect(*node.mqtt)
    client.loop_start()
    properties = Properties(PacketTypes.PUBLISH)
    if site is not None:
        properties.UserProperty = ("site", site)
        properties.ContentType = "application/json"
    client.publish(topic, payload, 1, properties=properties).wait_for_publish(60)
    client.disconnect()
    client.loop_stop()


def read(node: Node, stream: str, **query: Any) -> dict[str, Any]:
    """A page."""
    with node.client() as client:
        answer = client.get(
            f"/streams/{stream}/records",
            params={key.rstrip("_"): one for key, one in query.items()},
        )
    assert answer.status_code == 200, answer.text
    page: dict[str, Any] = answer.json()
    return page


def test_a_record_has_all_that_was_published(node: Node) -> None:
    (record,) = read(node, "all", from_=2, limit=1)["items"]
    at = datetime.fromisoformat(record.pop("at"))
    assert abs((datetime.now(UTC) - at).total_seconds()) < 600
    assert record == {
        "shard": 0, "offset": "2", "topic": "json/1", "qos": 1, "retain": False, "clientid": "meter", "username": "u",
        "client_id": "meter",  # its name in 0.2
        "payload": {"encoding": "json", "data": {"t": 20}, "size_bytes": 9, "truncated": False},
        "raw": None,
        "schema": None, "schema_error": None, "rule": None,
        "properties": {"Content-Type": "application/json"}, "user_properties": [["site", "berlin"]],
    }  # fmt: skip


def test_a_filter_selects_topics(node: Node) -> None:
    found = read(node, "all", filter="+/1")
    assert [item["topic"] for item in found["items"] if not item["topic"].startswith("large")] == [
        "avro/1",
        "json/1",
    ]
    assert found["next"] is None
    first = read(node, "all", filter="+/1", limit=1)
    assert [
        item["topic"]
        for item in read(node, "all", filter="+/1", limit=1, cursor=first["next"])["items"]
    ] == ["json/1"]
    shown = json.loads(
        sluice(node, "streams", "records", "all", "--filter", "json/#", "--json").stdout
    )
    assert [item["topic"] for item in shown["items"]] == ["json/1"]
    with node.client() as client:
        answer = client.get("/streams/all/records", params={"filter": "a/#/b"})
    assert answer.status_code == 422
    assert "'#' must be the whole last level" in answer.json()["errors"][0]["message"]


def test_payloads_are_decoded_by_the_schema_that_is_bound_to_the_topic(node: Node) -> None:
    binary = base64.b64encode(TEMPERATURE).decode()
    raw, *_ = read(node, "all", limit=1)["items"]
    assert (raw["payload"]["encoding"], raw["payload"]["data"], raw["schema"]) == (
        "base64",
        binary,
        None,
    )
    good, bad = read(node, "all", limit=2, decode=True)["items"]
    whole = read(node, "all", limit=3, decode=True, raw=True)["items"]
    assert [base64.b64decode(one["payload"]["data"]) for one in whole] == [
        TEMPERATURE,
        b"\xff",
        b'{"t": 20}',
    ]
    assert (good["payload"]["encoding"], good["payload"]["data"], good["schema"]) == (
        "json",
        {"t": 21.5},
        "reading",
    )
    assert (bad["payload"]["encoding"], bad["schema"]) == ("base64", "reading")
    assert "reading" in bad["schema_error"]


def test_rows_are_json_and_name_their_rule(node: Node) -> None:
    (row,) = read(node, "rows", decode=True)["items"]
    assert (row["payload"]["data"], row["rule"], row["topic"]) == ({"t": 20}, "warm", "json/1")


def test_pages_follow_each_other_to_the_end(node: Node) -> None:
    page = read(node, "all", limit=2)
    assert ([one["offset"] for one in page["items"]], page["next"], page["first_offset"]) == (
        ["0", "1"],
        "2",
        "0",
    )
    page = read(node, "all", limit=1, cursor=page["next"])
    assert [one["offset"] for one in page["items"]] == ["2"]
    assert read(node, "all", from_=10**15)["items"] == []


def test_a_time_is_a_place_to_start_at(node: Node) -> None:
    records = read(node, "all", limit=3)["items"]
    assert read(node, "all", from_=records[0]["at"], limit=1)["items"] == records[:1]
    assert read(node, "all", from_="2099-01-01T00:00:00Z")["items"] == []
    with node.client() as client:
        answer = client.get("/streams/all/records", params={"from": "yesterday"})
    assert (answer.status_code, answer.json()["errors"][0]["pointer"]) == (422, "/query/from")


def test_a_page_and_its_payloads_are_bounded(node: Node) -> None:
    for _ in range(20):
        publish(node, "large/1", b"x" * 70 * KIB)
    page = read(node, "all", from_=3, limit=1000)
    shown = [one["payload"] for one in page["items"]]
    assert {(one["size_bytes"], len(one["data"]), one["truncated"]) for one in shown} == {
        (70 * KIB, 64 * KIB, True)
    }
    assert len(shown) == 16
    assert page["next"] == str(3 + 16)
