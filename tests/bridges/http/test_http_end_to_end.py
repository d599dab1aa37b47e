"""HTTP both ways through a whole broker that is killed meanwhile."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx
import paho.mqtt.client as paho
import pytest
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.subscribeoptions import SubscribeOptions

from tests.support.http_service import Received, Reply, Service
from tests.support.node import Node, eventually, running
from tests.support.plain_http import NO_TLS

ROWS = 60


class Subscriber:
    """A client of MQTT 5 with a session that outlives its connection, and what it got."""

    def __init__(self, node: Node, topic_filter: str) -> None:
        self.messages: list[paho.MQTTMessage] = []
        self.is_subscribed = False
        self._client = paho.Client(CallbackAPIVersion.VERSION2, "watcher", protocol=paho.MQTTv5)
        self._client.on_message = lambda _client, _data, message: self.messages.append(message)
        self._client.on_subscribe = self._subscribed
        lasting = Properties(PacketTypes.CONNECT)
        lasting.SessionExpiryInterval = 3600
        self._client.connect(*node.mqtt, clean_start=False, properties=lasting)
        self._client.loop_start()
        numbered = Properties(PacketTypes.SUBSCRIBE)
        numbered.SubscriptionIdentifier = 17
        self._client.subscribe(topic_filter, options=SubscribeOptions(qos=1), properties=numbered)
        eventually(lambda: self.is_subscribed, what="the subscription")

    def _subscribed(self, *_: Any) -> None:
        self.is_subscribed = True

    @property
    def payloads(self) -> list[Any]:
        return [json.loads(message.payload) for message in self.messages]

    def leave(self) -> None:
        self._client.disconnect()
        self._client.loop_stop()


def identifiers(message: paho.MQTTMessage) -> list[int]:
    """The subscription identifiers that a message came with."""
    properties: Any = message.properties
    return list(properties.SubscriptionIdentifier)


def post(node: Node, path: str, content: str, **headers: str) -> httpx.Response:
    given = {"Authorization": "Bearer wonderland", **headers}
    return httpx.post(
        f"{node.url}/ingest/{path}",
        content=content,
        headers=given,
        trust_env=False,
        timeout=30,
        verify=NO_TLS,
    )


def open_door(node: Node, **parameters: Any) -> None:
    authentication = {"mechanism": "token", "tokens": ["wonderland"]}
    node.call(
        "POST",
        "/connectors",
        {"name": "web", "type": "http_server", "authentication": authentication},
    )
    spec = {"name": "in", "type": "http_server", "connector": "web", "parameters": parameters}
    node.call("POST", "/sources", spec)
    eventually(lambda: node.call("GET", "/sources/in")["status"] == "connected")


def test_what_was_accepted_reaches_subscribers_and_rules_over_a_kill(tmp_path: Path) -> None:
    with running(tmp_path / "node") as node:
        open_door(node, topic="plant/${path}", body_format="ndjson")
        sql = 'SELECT payload.n AS n, path FROM "$bridges/http_server:in"'
        republish = {
            "function": "republish",
            "args": {"topic": "plant/seen", "payload": "${.}", "qos": 1},
        }
        node.call("POST", "/rules", {"name": "seen", "sql": sql, "actions": [republish]})
        subscriber = Subscriber(node, "plant/#")
        assert post(node, "in/a", '{"n": 1}').json()["accepted"] == 1
        eventually(
            lambda: len(subscriber.messages) == 2, what="the message and what the rule made of it"
        )
        assert sorted(subscriber.payloads, key=len) == [{"n": 1}, {"n": 1, "path": "a"}]
        assert {tuple(identifiers(message)) for message in subscriber.messages} == {(17,)}
        subscriber.leave()
        lines = "\n".join(json.dumps({"n": number}) for number in range(2, ROWS))
        answer = post(node, "in/b", lines, **{"Idempotency-Key": "k"}).json()
        node.kill()
        node.start()
        eventually(
            lambda: (
                post(node, "in/b", lines, **{"Idempotency-Key": "k"}).json()
                == {**answer, "duplicate": True}
            )
        )
        back = Subscriber(node, "plant/#")
        eventually(
            lambda: len(back.messages) >= 2 * (ROWS - 2), what="everything that was accepted"
        )
        taken = [row["n"] for row in back.payloads if "path" not in row]
        assert taken == list(range(2, ROWS)), "in order, once each"
        back.leave()


def test_rows_on_disk_outlive_service_and_broker_and_keep_their_keys(tmp_path: Path) -> None:
    """What is sent again after ``kill -9`` has the key it had, so that the service can tell."""
    is_well = [False]
    service = Service(
        lambda request: Reply() if is_well[0] or request.method == "GET" else Reply(503)
    )

    async def whole() -> None:
        async with service:
            await asyncio.to_thread(_rows_over_a_kill, tmp_path, service, is_well)

    asyncio.run(whole())
    keys = {_number(request): request.header("idempotency-key") for request in service.received}
    for request in service.received:
        assert request.header("idempotency-key") == keys[_number(request)], "a row keeps its key"
    assert len(set(keys.values())) == ROWS
    first = list(dict.fromkeys(_number(request) for request in service.taken))
    assert first == list(range(ROWS)), "in the order of their client"


def _number(request: Received) -> int:
    number: int = request.json()["n"]
    return number


def _rows_over_a_kill(directory: Path, service: Service, is_well: list[bool]) -> None:
    with running(directory / "node") as node:
        node.call("POST", "/connectors", {"name": "out", "type": "http", "url": service.url})
        parameters = {"path": "/rows", "idempotency_header": "Idempotency-Key"}
        options = {"buffer_mode": "disk", "retry_interval": "20ms", "resume_interval": "100ms"}
        spec = {
            "name": "out",
            "type": "http",
            "connector": "out",
            "parameters": parameters,
            "resource_opts": options,
        }
        node.call("POST", "/actions", spec)
        node.call(
            "POST",
            "/rules",
            {"name": "r", "sql": 'SELECT payload.n AS n FROM "m"', "actions": ["http:out"]},
        )
        open_door(node, topic="m", body_format="ndjson")
        assert (
            post(node, "in", "\n".join(f'{{"n": {number}}}' for number in range(ROWS))).json()[
                "accepted"
            ]
            == ROWS
        )
        eventually(lambda: len(service.received) >= 3, what="some attempts")
        assert "503" in node.call("GET", "/actions/out")["status_reason"]
        node.kill()
        node.start()
        before = len(service.received)
        eventually(lambda: len(service.received) > before, what="an attempt after the start")
        is_well[0] = True
        eventually(
            lambda: node.call("GET", "/actions/out")["metrics"]["success"] == ROWS, what="all rows"
        )


@pytest.mark.parametrize("type", ["http", "http_server"])
def test_the_types_describe_themselves(tmp_path: Path, type: str) -> None:
    with running(tmp_path / "node") as node:
        found = {kind["name"]: kind for kind in node.call("GET", "/connector-types")["items"]}
    assert found[type]["is_installed"]
    for schema in found[type]["parameters"].values():
        assert [
            name for name, field in schema["properties"].items() if not field.get("description")
        ] == []
