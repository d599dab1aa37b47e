"""Topics that an HTTP service decides about, on the wire: publishes, subscriptions and wills wait for its answers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from broker.codec.packets import ConnAck, Connect, PubAck, Publish, SubscriptionRequest, Will
from broker.core import jsontext, reason
from tests.support.access import BUILTIN, access
from tests.support.http_service import Received, Reply, Service
from tests.support.mqtt_server import Node, on_loop, running
from tests.support.wire import WireClient

DENIED = reason.NOT_AUTHORIZED
NO_SUBSCRIBERS = 0x10


def by_topic(**results: str) -> Callable[[Received], Reply]:
    """A service that answers by the first level of the topic, else with ``ignore``."""

    def answer(request: Received) -> Reply:
        result = results.get(request.json()["topic"].partition("/")[0], "ignore")
        return Reply(body=jsontext.encode({"result": result}))

    return answer


def source(service: Service, **settings: Any) -> dict[str, Any]:
    return {"type": "http", "url": f"{service.url}/acl", **settings}


def guarded(service: Service, *others: dict[str, Any], **settings: Any) -> Any:
    """Access by the service, with the broker's own users."""
    return access(BUILTIN, sources=[source(service, **settings), *others], no_match="deny")


async def published(client: WireClient, topic: str, number: int = 1) -> int:
    client.send(Publish(topic, b"", 1, packet_id=number))
    return (await client.expect(PubAck)).reason_code


async def ann(node: Node, **connect: Any) -> WireClient:
    return await node.client("c1", 5, username="ann", password=b"pencil", **connect)


@on_loop
async def test_publishes_are_decided_by_the_service_and_its_answers_are_remembered() -> None:
    async with (
        Service(by_topic(a="allow", b="deny")) as service,
        running(access=guarded(service)) as node,
    ):
        client = await ann(node)
        for _ in range(2):
            assert await published(client, "a/1") == NO_SUBSCRIBERS
            assert await published(client, "b/1") == DENIED
            assert await published(client, "c/1") == DENIED  # no opinion, and no_match = deny
        assert len(service.received) == 3
        assert service.received[0].json() == {
            "username": "ann", "clientid": "", "peerhost": "127.0.0.1", "action": "publish", "topic": "a/1",
        }  # fmt: skip
        node.pass_time(301)
        service.answer = by_topic(a="deny")
        assert await published(client, "a/1") == DENIED


@on_loop
async def test_the_next_source_decides_where_the_service_has_no_opinion() -> None:
    file = {"type": "file", "rules": [{"permission": "allow", "topics": ["#"]}]}
    async with (
        Service(by_topic(b="deny")) as service,
        running(access=guarded(service, file)) as node,
    ):
        client = await ann(node)
        assert await published(client, "a/1") == NO_SUBSCRIBERS
        assert await published(client, "b/1") == DENIED


@on_loop
async def test_subscriptions_wait_for_the_answers_and_later_packets_behind_them() -> None:
    async with (
        Service(by_topic(a="allow", b="deny")) as service,
        running(access=guarded(service)) as node,
    ):
        client = await ann(node)
        requests = [
            SubscriptionRequest("a/+", 1),
            SubscriptionRequest("b/+"),
            SubscriptionRequest("c/#"),
        ]
        assert await client.subscribe(*requests) == [1, DENIED, DENIED]
        assert {request.json()["action"] for request in service.received} == {"subscribe"}
        client.send(Publish("a/1", b"", 1, packet_id=1))
        assert {type(await client.receive()) for _ in range(2)} == {Publish, PubAck}


@on_loop
async def test_a_will_is_decided_when_the_client_connects() -> None:
    async with Service(by_topic(a="allow")) as service, running(access=guarded(service)) as node:
        for topic, code in {"a/gone": 0, "b/gone": DENIED}.items():
            wire = await WireClient.open(node.port, 5)
            wire.send(Connect("c1", 5, username="ann", password=b"pencil", will=Will(topic, b"")))
            assert (await wire.expect(ConnAck)).reason_code == code
            await wire.close()


@on_loop
async def test_while_the_service_is_away_answers_hold_and_new_topics_are_denied() -> None:
    async with Service(by_topic(a="allow")) as service, running(access=guarded(service)) as node:
        client = await ann(node)
        assert await published(client, "a/1") == NO_SUBSCRIBERS
        await service.down()
        assert await published(client, "a/2") == DENIED
        assert [alarm.name for alarm in node.alarms.active()] == ["source_unavailable:http"]
        node.pass_time(301)
        assert await published(client, "a/1") == NO_SUBSCRIBERS
        await service.up()
        node.pass_time(2)
        await node.until(lambda: not node.alarms.active())
        assert await published(client, "a/2") == NO_SUBSCRIBERS


@on_loop
async def test_a_service_that_is_away_can_be_passed_over() -> None:
    file = {"type": "file", "rules": [{"permission": "allow", "topics": ["a/#"]}]}
    async with (
        Service(by_topic(a="deny")) as service,
        running(access=guarded(service, file, on_unavailable="ignore")) as node,
    ):
        await service.down()
        client = await ann(node)
        assert await published(client, "a/1") == NO_SUBSCRIBERS


@on_loop
async def test_a_client_that_waits_holds_no_other_up() -> None:
    go_on = asyncio.Event()

    def answer(request: Received) -> Reply:
        waits_for = go_on if request.json()["topic"] == "slow" else None
        return Reply(body=b'{"result": "allow"}', waits_for=waits_for)

    async with Service(answer) as service, running(access=guarded(service)) as node:
        slow = await ann(node)
        slow.send(Publish("slow", b"", 1, packet_id=1), Publish("fast", b"", 1, packet_id=2))
        other = await node.client("c2", 5, username="ann", password=b"pencil")
        assert await published(other, "fast") == NO_SUBSCRIBERS
        go_on.set()
        assert [(await slow.expect(PubAck)).packet_id for _ in range(2)] == [1, 2]


@on_loop
async def test_names_that_are_not_verified_are_asked_about_where_that_is_allowed() -> None:
    async with (
        Service(by_topic(a="allow")) as service,
        running(access=guarded(service, require_trusted_attributes=False)) as node,
    ):
        client = await ann(node)
        assert await published(client, "a/1") == NO_SUBSCRIBERS
        assert service.received[0].json()["clientid"] == "c1"
