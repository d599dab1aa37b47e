"""Clients, sessions, subscriptions and retained messages through the management API, over a real server."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from broker.admin.traffic import Traffic
from broker.codec.packets import Disconnect, Publish, SubscriptionRequest, Will
from broker.connection import timelines
from broker.core.client import Client
from broker.core.message import Message
from broker.core.objects import Spec
from broker.storage.memory import MemoryStore
from tests.support.access import access
from tests.support.mqtt_server import Node, on_loop, running, tails_of
from ui.api.application import create_app
from ui.api.context import ApiContext

_LASTING = {"Session-Expiry-Interval": 1000}


@asynccontextmanager
async def api(node: Node) -> AsyncIterator[httpx.AsyncClient]:
    context = ApiContext(
        token="secret",
        services={},
        publisher=node.server.publisher,
        status=dict,  # type: ignore[arg-type]  # nobody asks for it here
        metrics_text=str,
        traffic=Traffic(node.server.hub, tails_of(node)),
        clock=node.clock,
    )
    transport = httpx.ASGITransport(create_app(context))
    headers = {"Authorization": "Bearer secret"}
    async with httpx.AsyncClient(
        transport=transport, base_url="http://127.0.0.1/api/v1", headers=headers
    ) as client:
        yield client


async def everything(http: httpx.AsyncClient, path: str, **parameters: Any) -> list[dict[str, Any]]:
    """All pages of a list."""
    found: list[dict[str, Any]] = []
    while True:
        answer = await http.get(path, params=parameters)
        assert answer.status_code == 200, answer.text
        page = answer.json()
        found += page["items"]
        if page["next"] is None:
            return found
        parameters["cursor"] = page["next"]


async def leave(node: Node, client_id: str, *filters: str, **connect: Any) -> None:
    """A client with a session that lasts, subscribed and gone."""
    client = await node.client(client_id, 5, clean_start=False, properties=_LASTING, **connect)
    if filters:
        await client.subscribe(*(SubscriptionRequest(text, 1) for text in filters))
    await client.close()
    await node.until(lambda: node.server.hub.sessions.by_client_id[client_id].is_away)


def publish(node: Node, topic: str, payload: bytes = b"x", qos: int = 1, **options: Any) -> None:
    node.server.publisher.publish(
        Message(topic, payload, qos, False, Client("p"), node.clock.now_ns(), **options)
    )


@pytest.mark.statement("own:R7")
@on_loop
async def test_a_client_is_shown_with_what_it_said_and_what_it_did() -> None:
    async with running() as node, api(node) as http:
        properties = {"User-Property": [("app", "7.1"), ("site", "berlin")], "Receive-Maximum": 10}
        will = Will("gone", b"bye", 1, True)
        client = await node.client(
            "dev/ä 1", 5, keep_alive_s=30, properties=properties, will=will, username="ann"
        )
        await client.subscribe(SubscriptionRequest("a/#", 1))
        client.send(Publish("t", b"12345"))
        publish(node, "a/b", b"waits")
        await client.expect(Publish)
        answer = await http.get("/clients/dev%2F%C3%A4%201")
        assert answer.status_code == 200, answer.text
        shown = answer.json()
        assert shown["user_properties"] == [["app", "7.1"], ["site", "berlin"]]
        assert (shown["protocol"], shown["keep_alive_s"], shown["username"]) == (
            "MQTT 5.0",
            30,
            "ann",
        )
        assert (shown["connected"], shown["receive_maximum"]) == (True, 10)
        assert [item["filter"] for item in shown["subscriptions"]] == ["a/#"]
        assert shown["will"]["topic"] == "gone"
        assert shown["inflight_messages"][0]["waits_for"] == "PUBACK"
        assert shown["total_payload_bytes"] == 5
        assert (shown["counters"]["messages_in"], shown["counters"]["messages_out"]) == (1, 1)
        assert shown["counters"]["packets_in"] == 3  # CONNECT, SUBSCRIBE, PUBLISH
        assert shown["counters"]["bytes_in"] > 20
        assert (await http.get("/clients/nobody")).status_code == 404


async def events_of(http: httpx.AsyncClient, client_id: str) -> list[tuple[str, str]]:
    """The time line of a client, oldest first."""
    answer = await http.get(f"/clients/{client_id}/events")
    assert answer.status_code == 200, answer.text
    return [(row["event"], row["text"]) for row in reversed(answer.json()["items"])]


@on_loop
async def test_the_time_line_of_a_client_is_kept_over_reconnects() -> None:
    async with running() as node, api(node) as http:
        client = await node.client("meter-1", 5, properties=_LASTING)
        await client.subscribe(SubscriptionRequest("a/#", 1), SubscriptionRequest("b/#/c", 0))
        again = await node.client("meter-1", 5, clean_start=False, properties=_LASTING)
        again.send(Disconnect(4, {"Reason-String": "battery low"}))
        await node.until(lambda: node.server.hub.sessions.by_client_id["meter-1"].is_away)
        events = await events_of(http, "meter-1")
        assert [kind for kind, _ in events] == [
            "connected",
            "subscribed",
            "taken_over",
            "connected",
            "disconnected",
        ]
        texts = [text for _, text in events]
        assert texts[0].startswith("Connected from 127.0.0.1:")
        assert texts[0].endswith("MQTT 5.0, new session")
        assert texts[1] == "Subscribed: a/# with QoS 1, b/#/c refused: topic_filter_invalid"
        assert texts[2] == "Another connection with the same client identifier took over"
        assert texts[3].endswith("its session continues, 0 messages waiting")
        assert texts[4] == "The client disconnected (battery low)"
        assert (await http.get("/clients/nobody/events")).status_code == 404


@on_loop
async def test_messages_that_a_client_loses_are_counted_in_its_time_line() -> None:
    async with running(max_queued_messages=2, slow_subscriber="drop") as node, api(node) as http:
        client = await node.client("slow", 5, properties={**_LASTING, "Receive-Maximum": 1})
        await client.subscribe(SubscriptionRequest("a/#", 1))
        await client.close()
        await node.until(lambda: node.server.hub.sessions.by_client_id["slow"].is_away)
        client = await node.client("slow", 5, clean_start=True, properties={"Receive-Maximum": 1})
        await client.subscribe(SubscriptionRequest("a/#", 1))
        for number in range(6):
            publish(node, "a/b", b"%d" % number)
        assert ("dropped", "3 messages not delivered: its queue was full") in await events_of(
            http, "slow"
        )
        shown = (await http.get("/clients/slow")).json()
        assert shown["problem"] == (
            "It acknowledges more slowly than messages arrive: all 1 that may be in flight are, and 2 messages wait. "
            "Its queue of 2 messages is full. Not delivered: 3 messages, since its queue was full."
        )
        answer = await http.get("/clients/slow/messages")
        assert [(row["place"], row["payload"]["data"]) for row in answer.json()["items"]] == [
            ("in_flight", "0"), ("queued", "4"), ("queued", "5"),
        ]  # fmt: skip


@on_loop
async def test_messages_in_the_session_log_are_peeked_and_stay_there() -> None:
    async with running() as node, api(node) as http:
        await leave(node, "away", "a/#")
        for number in range(300):
            publish(node, "a/b" if number % 2 else "other", b"%d" % number)
        await node.until(
            lambda: node.server.hub.sessions.by_client_id["away"].waiting_messages == 150
        )
        for _ in range(2):
            items = (await http.get("/clients/away/messages?limit=5")).json()["items"]
            assert [(row["place"], row["payload"]["data"]) for row in items] == [
                ("stored", str(number)) for number in (1, 3, 5, 7, 9)
            ]
        assert (await http.get("/clients/away")).json()[
            "problem"
        ] == "It is away, and 150 messages wait for it."
        assert (await http.get("/clients/nobody/messages")).status_code == 404


@on_loop
async def test_time_lines_are_bounded_and_made_up_identifiers_displace_none() -> None:
    async with running() as node:
        lines = node.server.hub.context.timelines
        lines.add("known", "connected", "", "x")
        for number in range(20_000):
            lines.refused(f"made-up-{number}", "not_authorized", "y" * 1000)
        assert len(lines.of("known")) == 1
        for number in range(200):
            lines.add("known", "subscribed", "", str(number))
        assert len(lines.of("known")) == timelines.MAX_EVENTS
        for number in range(60_000):
            lines.add(f"client-{number}", "subscribed", "", "z" * 1000)
        assert lines.size_bytes <= timelines.MAX_BYTES + timelines.MAX_REFUSED_BYTES
        assert not lines.of("known")


@on_loop
async def test_clients_are_searched_and_paged_in_order() -> None:
    async with running() as node, api(node) as http:
        here = [
            await node.client(f"dev-{number}", username=f"user{number}") for number in (3, 1, 2)
        ]
        await leave(node, "gone")
        assert [row["clientid"] for row in await everything(http, "/clients", limit=1)] == [
            "dev-1", "dev-2", "dev-3", "gone",
        ]  # fmt: skip
        for parameters, expected in (
            ({"clientid": "dev-*"}, ["dev-1", "dev-2", "dev-3"]),
            ({"clientid": "dev-2"}, ["dev-2"]),
            ({"username": "*3"}, ["dev-3"]),
            ({"connected": "false"}, ["gone"]),
            ({"address": "127.*", "protocol": "3.1.1"}, ["dev-1", "dev-2", "dev-3"]),
            ({"sort": "-clientid"}, ["gone", "dev-3", "dev-2", "dev-1"]),
            ({"sort": "-clientid", "clientid": "dev-*"}, ["dev-3", "dev-2", "dev-1"]),
            ({"sort": "--clientid"}, None),
        ):
            answer = await http.get("/clients", params=parameters)
            if expected is None:
                assert answer.status_code == 422
            else:
                assert [row["clientid"] for row in answer.json()["items"]] == expected
        rows = await everything(http, "/clients", sort="-clientid", limit=1)
        assert [row["clientid"] for row in rows] == ["gone", "dev-3", "dev-2", "dev-1"]
        assert (await http.get("/clients", params={"colour": "red"})).status_code == 400
        assert len(here) == 3


@on_loop
async def test_clients_are_searched_by_any_column() -> None:
    async with running() as node, api(node) as http:
        busy = await node.client("busy", 5, keep_alive_s=77)
        await busy.subscribe(SubscriptionRequest("a", 1), SubscriptionRequest("b", 1))
        node.pass_time(60)
        clients = [busy, await node.client("quiet", 5, keep_alive_s=0)]
        await leave(node, "gone", "a")
        session = node.server.hub.sessions.get("busy")
        assert session is not None
        session.dropped = {"queue_full": 3}
        publish(node, "a")
        await node.until(lambda: session.window.inflight)
        rows = {row["clientid"]: row for row in await everything(http, "/clients")}
        since = {"connected_since": rows["quiet"]["connected_at"]}
        for parameters, expected in (
            ({"min_subscriptions": 2}, ["busy"]),
            ({"min_subscriptions": 1}, ["busy", "gone"]),
            ({"min_inflight": 1}, ["busy"]),
            ({"min_dropped": 1}, ["busy"]),
            ({"min_dropped": 4}, []),
            ({"keep_alive_s": 77}, ["busy"]),
            ({"keep_alive_s": 0}, ["quiet"]),
            (since, ["quiet"]),
            ({"connected_until": rows["busy"]["connected_at"]}, ["busy"]),
        ):
            found = await everything(http, "/clients", **parameters)
            assert [row["clientid"] for row in found] == expected, parameters
        ordered = await everything(http, "/clients", sort="-dropped", limit=1)
        assert ordered[0]["clientid"] == "busy"
        assert len(clients) == 2


@on_loop
async def test_pages_in_the_order_of_a_number_neither_repeat_nor_skip() -> None:
    async with running() as node, api(node) as http:
        here = [await node.client(f"c{number}") for number in range(7)]
        for number, client in enumerate(here):
            if number % 3:
                await client.subscribe(
                    *(SubscriptionRequest(f"t/{one}", 0) for one in range(number % 3))
                )
        rows = await everything(http, "/clients", sort="-subscriptions", limit=2)
        counts = [row["subscriptions_count"] for row in rows]
        assert counts == sorted(counts, reverse=True)
        assert len({row["clientid"] for row in rows}) == len(rows) == 7


@on_loop
async def test_sessions_of_chosen_clients_are_cleared() -> None:
    async with running() as node, api(node) as http:
        client = await node.client("here", 5)
        await leave(node, "gone", "a")
        await leave(node, "stays", "a")
        body = {"clientids": ["here", "gone", "nobody"]}
        assert (await http.post("/clients:clear?dry_run=true", json=body)).json()["dry_run"]
        assert len(await everything(http, "/sessions")) == 3
        answer = await http.post("/clients:clear", json=body)
        assert answer.json() == {"cleared": 2, "unknown": ["nobody"]}
        await client.expect(Disconnect)
        assert [row["clientid"] for row in await everything(http, "/sessions")] == ["stays"]


@on_loop
async def test_clients_are_kicked_subscribed_and_unsubscribed() -> None:
    async with running() as node, api(node) as http:
        client = await node.client("c", 5)
        body = {"clientid": "c", "subscriptions": [{"filter": "x/+", "qos": 1}]}
        answer = await http.post("/clients:subscribe", json=body)
        assert [item["filter"] for item in answer.json()["subscriptions"]] == ["x/+"]
        granted = {"filter": "x/+", "reason_code": 1, "reason": "granted_qos_1"}
        assert answer.json()["results"] == [granted]
        publish(node, "x/1")
        assert (await client.expect(Publish)).topic == "x/1"
        answer = await http.post(
            "/clients:unsubscribe", json={"clientid": "c", "filters": ["x/+", "y"]}
        )
        assert answer.json()["ended"] == ["x/+"]
        answer = await http.post("/clients:kick", json={"clientids": ["c", "nobody"]})
        assert answer.json() == {"kicked": 1, "not_connected": ["nobody"]}
        assert (await client.expect(Disconnect)).reason_code == 0x98
        assert (await http.post("/clients:subscribe", json=body)).status_code == 404
        await leave(node, "away")
        assert (
            await http.post("/clients:subscribe", json={**body, "clientid": "away"})
        ).status_code == 409
        wrong = await http.post("/clients:kick", json={"clientid": "c"})
        assert wrong.status_code == 422
        assert {problem["pointer"] for problem in wrong.json()["errors"]} == {"/clientid"}


@on_loop
async def test_a_subscription_that_is_refused_has_its_reason_code() -> None:
    rules: list[Spec] = [
        {"permission": "deny", "action": "subscribe", "topics": ["secret/#"]},
        {"permission": "allow", "topics": ["#"]},
    ]
    async with running(access=access(rules=rules), max_subscriptions=2) as node, api(node) as http:
        await node.client("c", 5)
        asked = ["$file/x", "secret/a", "a/#/b", "$events/x", "a", "b", "c"]
        body = {"clientid": "c", "subscriptions": [{"filter": text, "qos": 1} for text in asked]}
        answer = (await http.post("/clients:subscribe", json=body)).json()
        codes = {result["filter"]: result["reason_code"] for result in answer["results"]}
        assert list(codes) == asked
        assert list(codes.values()) == [0x87, 0x87, 0x8F, 0x87, 1, 1, 0x97]
        assert answer["results"][1]["reason"] == "not_authorized"
        assert answer["results"][1]["detail"]
        assert [item["filter"] for item in answer["subscriptions"]] == ["a", "b"]
        refused = await http.post(
            "/clients:subscribe", json={**body, "subscriptions": [{"filter": "secret/b"}]}
        )
        assert (refused.status_code, refused.json()["code"]) == (422, "subscription_refused")
        assert refused.json()["errors"][0]["pointer"] == "/subscriptions/0/filter"
        assert refused.json()["results"][0]["reason_code"] == 0x87
        assert (
            await http.post("/clients:subscribe", json={**body, "subscriptions": []})
        ).status_code == 422


@on_loop
async def test_an_administrator_may_pass_access_rules_by() -> None:
    rules: list[Spec] = [{"permission": "deny", "topics": ["secret/#"]}]
    async with running(access=access(rules=rules)) as node, api(node) as http:
        await node.client("c", 5)
        body = {"clientid": "c", "subscriptions": [{"filter": "secret/a"}], "check_acl": False}
        answer = await http.post("/clients:subscribe", json=body)
        assert [item["filter"] for item in answer.json()["subscriptions"]] == ["secret/a"]


@pytest.mark.parametrize(
    "topic", ["$SYS/x", "$share/g/x", "$events/x", "$file/x", "$delayed/5/$SYS/x"]
)
@on_loop
async def test_nobody_publishes_where_the_broker_does(topic: str) -> None:
    async with running() as node, api(node) as http:
        watcher = await node.client("w", 5)
        await watcher.subscribe(SubscriptionRequest("$SYS/x", 0))
        answer = await http.post(
            "/messages:publish", json={"topic": topic, "payload": "x", "retain": True}
        )
        assert (answer.status_code, answer.json()["code"]) == (422, "message_refused")
        assert "reserved_topic" in answer.json()["detail"]
        assert node.dropped("reserved_topic") == 1
        assert (
            node.server.publisher.dispatch(Message(topic, b"", 0, False, Client("rule"), 1)).refusal
            is not None
        )
        await watcher.silence()
        assert node.server.hub.retained.count == 0


@on_loop
async def test_a_session_tells_what_waits_for_it_and_is_deleted() -> None:
    store = MemoryStore()
    async with running(store) as node, api(node) as http:
        await leave(node, "s", "a/#")
        await leave(node, "other", "b/#")
        for number in range(300):
            publish(node, f"a/{number}", b"12345678")
        publish(node, "b/1")
        await node.writer.committed()
        shown = (await http.get("/sessions/s")).json()
        assert (shown["queued"], shown["queued_in_log"], shown["connected"]) == (300, 300, False)
        assert shown["queued_bytes"] == sum(len(f"a/{number}") + 8 for number in range(300))
        assert shown["expires_at"] is not None
        top = (await http.get("/sessions:top", params={"count": 5})).json()["items"]
        assert [(row["clientid"], row["queued"]) for row in top] == [("s", 300), ("other", 1)]
        by_bytes = (await http.get("/sessions:top", params={"count": 1, "by": "bytes"})).json()[
            "items"
        ]
        assert [row["clientid"] for row in by_bytes] == ["s"]
        assert (await http.delete("/sessions/s")).status_code == 204
        assert (await http.get("/sessions/s")).status_code == 404
        assert [key for key, _ in store.scan(b"") if b"/s" in key and b"/session" not in key] == []


@pytest.mark.statement("own:N32")
@on_loop
async def test_old_sessions_are_purged_and_leave_nothing() -> None:
    store = MemoryStore()
    async with running(store) as node, api(node) as http:
        await leave(node, "old-1", "a/#")
        await leave(node, "old-2", "a/#")
        node.clock.move(500)
        await leave(node, "new", "a/#")
        here = await node.client("old-here", 5, clean_start=False, properties=_LASTING)
        publish(node, "a/1")
        await node.writer.committed()
        body = {"older_than_s": 300, "clientid": "old-*", "dry_run": True}
        told = (await http.post("/sessions:purge", json=body)).json()
        assert (told["sessions"], told["queued"], told["samples"]) == (2, 2, ["old-1", "old-2"])
        assert len(node.server.hub.sessions) == 4
        told = (await http.post("/sessions:purge", json={**body, "dry_run": False})).json()
        assert told["sessions"] == 2
        assert sorted(node.server.hub.sessions.by_client_id) == ["new", "old-here"]
        assert not [key for key, _ in store.scan(b"") if b"old-1" in key or b"old-2" in key]
        await http.post("/sessions:purge", json={"clientid": "old-here", "connected": True})
        assert (await here.expect(Disconnect)).reason_code == 0x98


@on_loop
async def test_clean_sessions_leave_nothing_behind() -> None:
    store = MemoryStore()
    async with running(store) as node, api(node) as http:
        before = [key for key, _ in store.scan(b"")]
        client = await node.client("c", 4)
        await client.subscribe(SubscriptionRequest("a/#", 1))
        publish(node, "a/1")
        await client.expect(Publish)
        await client.close()
        await node.until(lambda: not len(node.server.hub.sessions))
        await node.writer.committed()
        assert [key for key, _ in store.scan(b"")] == before
        assert (await http.get("/sessions")).json()["items"] == []


@on_loop
async def test_subscriptions_are_found_by_client_filter_and_topic() -> None:
    async with running() as node, api(node) as http:
        await leave(node, "d", "a/#", "$share/g/a/+")
        here = [await node.client(name) for name in ("x", "y")]
        for client in here:
            await client.subscribe(SubscriptionRequest("a/b", 0), SubscriptionRequest("c", 0))
        rows = await everything(http, "/subscriptions", limit=2)
        assert [(row["clientid"], row["filter"]) for row in rows] == [
            ("d", "$share/g/a/+"), ("d", "a/#"), ("x", "a/b"), ("x", "c"), ("y", "a/b"), ("y", "c"),
        ]  # fmt: skip
        assert [row["filter"] for row in rows if row["durable"]] == ["$share/g/a/+", "a/#"]
        matching = await everything(http, "/subscriptions", match="a/b", limit=1)
        assert [(row["clientid"], row["filter"]) for row in matching] == [
            ("d", "$share/g/a/+"), ("d", "a/#"), ("x", "a/b"), ("y", "a/b"),
        ]  # fmt: skip
        assert len(await everything(http, "/subscriptions", match="a/b", durable="true")) == 2
        assert len(await everything(http, "/subscriptions", filter="c")) == 2
        assert len(await everything(http, "/subscriptions", clientid="x")) == 2
        assert len(await everything(http, "/subscriptions", share_group="g")) == 1
        assert (await http.get("/subscriptions", params={"match": "a/#"})).status_code == 422


@on_loop
async def test_who_gets_a_topic_has_a_reason_for_each() -> None:
    rules: list[Spec] = [
        {
            "permission": "deny",
            "action": "publish",
            "topics": ["a/#"],
            "who": {"clientid": "reader"},
        },
        {
            "permission": "deny",
            "action": "subscribe",
            "topics": ["a/secret"],
            "who": {"clientid": "denied"},
        },
        {"permission": "allow", "topics": ["#"]},
    ]
    making = access(rules=rules, trusts_anonymous=True, trusted_client_attributes=["clientid"])
    async with running(access=making) as node, api(node) as http:
        for name, qos, no_local in (("reader", 1, False), ("denied", 1, False), ("own", 0, True)):
            client = await node.client(name, 5)
            await client.subscribe(SubscriptionRequest("a/#", qos, no_local))
        await leave(node, "away", "a/+")
        for name in ("w1", "w2"):
            client = await node.client(name, 5)
            await client.subscribe(SubscriptionRequest("$share/pool/a/#", 1))
        answer = await http.get("/topics:who", params={"topic": "a/secret", "clientid": "own"})
        assert answer.status_code == 200, answer.text
        shown = answer.json()
        rows = {row["clientid"]: (row["gets"], row["why"]) for row in shown["subscriptions"]}
        assert rows == {
            "reader": (True, "connected"),
            "denied": (False, "access denied by 'rule 2' of file"),
            "own": (False, "it published the message itself, and its subscription has No Local"),
            "away": (True, "away: messages of QoS 1 and 2 wait for it"),
        }
        (group,) = shown["groups"]
        assert (group["group"], group["strategy"], group["member_count"]) == (
            "$share/pool/a/#",
            "round_robin",
            2,
        )
        assert [member["can_get"] for member in group["members"]] == [True, True]
        assert shown["publisher"]["access"]["allowed"]
        answer = await http.get(
            "/topics:who", params={"topic": "a/b", "clientid": "reader", "limit": 1}
        )
        assert not answer.json()["publisher"]["access"]["allowed"]
        assert answer.json()["publisher"]["access"]["rule"]
        assert (answer.json()["subscriptions_total"], len(answer.json()["subscriptions"])) == (4, 1)
        assert (await http.get("/topics:who", params={"topic": "a/#"})).status_code == 422


@on_loop
async def test_retained_messages_are_listed_shown_and_deleted() -> None:
    store = MemoryStore()
    async with running(store) as node, api(node) as http:
        retained = node.server.hub.retained
        for name in ("a/1", "a/2", "b", "$SYS/x"):
            properties = {"Message-Expiry-Interval": 5} if name == "a/2" else None
            retained.retain(
                Message(
                    name, b"x" * 2000, 1, True, Client("c", "ann"), node.clock.now_ns(), properties
                )
            )
        assert [row["topic"] for row in await everything(http, "/retained", limit=1)] == [
            "a/1",
            "a/2",
            "b",
        ]
        [row] = (await http.get("/retained", params={"filter": "a/1"})).json()["items"]
        assert (row["payload_bytes"], row["truncated"], row["username"]) == (2000, True, "ann")
        one = (await http.get("/retained:message", params={"topic": "a/2"})).json()
        assert len(one["payload"]["data"]) == 2000
        assert one["expires_at"] is not None
        count = (await http.get("/retained:count")).json()
        assert count["messages"] == 4
        assert (await http.delete("/retained:message", params={"topic": "b"})).status_code == 204
        assert (await http.delete("/retained:message", params={"topic": "b"})).status_code == 404
        node.clock.move(6)
        told = (
            await http.post("/retained:clear", json={"filter": "#", "only_expired": True})
        ).json()
        assert (told["messages"], told["samples"]) == (1, ["a/2"])
        told = (await http.post("/retained:clear", json={"filter": "#", "dry_run": True})).json()
        assert (told["messages"], retained.count) == (1, 2)
        told = (await http.post("/retained:clear", json={"filter": "a/#"})).json()
        assert (told["messages"], retained.count) == (1, 1)
        assert (await http.post("/retained:clear", json={"filter": "a/#/b"})).status_code == 422
        assert (await http.post("/retained:clear", json={})).status_code == 422


@on_loop
async def test_a_client_is_found_whose_identifier_looks_like_a_path() -> None:
    names = ("a/events", "a/messages", "a", "x:kick", "a/events/events", "/", "a%2Fb", "ü/events")
    async with running() as node, api(node) as http:
        for name in names:
            await node.client(name)
        for name in names:
            encoded = quote(name, safe="")
            assert (await http.get(f"/clients/{encoded}")).json()["clientid"] == name
            events = (await http.get(f"/clients/{encoded}/events")).json()["items"]
            assert [event["event"] for event in events] == ["connected"], name
            assert "items" in (await http.get(f"/clients/{encoded}/messages")).json()
            assert (await http.get(f"/sessions/{encoded}")).json()["clientid"] == name
        # a slash that is not encoded belongs to the path where there is such a path, else to the name
        assert "items" in (await http.get("/clients/a/events")).json()
        assert (await http.get("/sessions/a/events")).json()["clientid"] == "a/events"
        assert (await http.delete("/sessions/a%2fevents")).status_code == 204
        assert (await http.get("/sessions/a%2Fevents")).status_code == 404


@on_loop
async def test_a_deletion_of_retained_messages_is_undone_within_ten_minutes() -> None:
    async with running() as node, api(node) as http:
        retained = node.server.hub.retained

        def put(topic: str, payload: bytes, **properties: Any) -> None:
            now_ns = node.clock.now_ns()
            client = Client("meter", "ann")
            retained.retain(Message(topic, payload, 1, True, client, now_ns, properties or None))

        for number in range(600):
            put(f"a/{number}", b"%d" % number)
        put("a/x", b"soon gone", **{"Message-Expiry-Interval": 60})
        put("b", b"single", **{"User-Property": [("k", "v")]})
        before_ns = node.clock.now_ns()
        planned = (
            await http.post("/retained:clear", json={"filter": "a/#", "dry_run": True})
        ).json()
        assert (planned["messages"], planned["undo"], planned["undo_problem"]) == (601, None, None)
        cleared = (await http.post("/retained:clear", json={"filter": "a/#"})).json()
        await http.delete("/retained:message", params={"topic": "b"})
        rows = (await http.get("/retained-deletions")).json()["items"]
        assert [(row["filter"], row["messages"]) for row in rows] == [("b", 1), ("a/#", 601)]
        assert rows[1]["id"] == cleared["undo"]
        assert len(rows[1]["samples"]) == 10
        node.clock.move(120)
        put("a/7", b"newer")
        undone = (await http.post(f"/retained-deletions/{cleared['undo']}:undo")).json()
        assert undone == {"restored": 599, "newer": 1, "expired": 1, "refused": 0}
        back, newer = retained.get("a/8"), retained.get("a/7")
        assert back is not None
        assert newer is not None
        assert (back.payload, back.client.username, back.received_ns) == (b"8", "ann", before_ns)
        assert newer.payload == b"newer"
        assert (await http.post(f"/retained-deletions/{cleared['undo']}:undo")).status_code == 404
        node.clock.move(481)
        assert (await http.get("/retained-deletions")).json()["items"] == []
        assert (await http.post(f"/retained-deletions/{rows[0]['id']}:undo")).status_code == 404


@on_loop
async def test_a_deletion_that_is_too_large_to_undo_says_so_before_and_after() -> None:
    async with running() as node, api(node) as http:
        retained = node.server.hub.retained
        for number in range(40):
            retained.retain(
                Message(f"a/{number}", b"x" * 1_000_000, 1, True, Client("c"), node.clock.now_ns())
            )
        for is_dry in (True, False):
            body = {"filter": "#", "dry_run": is_dry}
            told = (await http.post("/retained:clear", json=body)).json()
            assert told["undo"] is None
            assert "cannot be undone. Try: a narrower filter" in told["undo_problem"]
        assert (await http.get("/retained-deletions")).json()["items"] == []
        assert retained.count == 0


@on_loop
async def test_deletions_are_held_within_bytes_the_oldest_go_first() -> None:
    async with running() as node, api(node) as http:
        for number in range(3):
            for part in range(12):
                node.server.hub.retained.retain(
                    Message(
                        f"{number}/{part}",
                        b"x" * 1_000_000,
                        1,
                        True,
                        Client("c"),
                        node.clock.now_ns(),
                    )
                )
            await http.post("/retained:clear", json={"filter": f"{number}/#"})
        rows = (await http.get("/retained-deletions")).json()["items"]
        assert [row["filter"] for row in rows] == ["2/#", "1/#"]


@on_loop
async def test_names_of_the_last_release_work_and_are_called_deprecated() -> None:
    async with running() as node, api(node) as http:
        for name in ("old-1", "old-2", "else"):
            await node.client(name)
        for query, expected in (
            ("client_id=old-*", ["old-1", "old-2"]),
            ("sort=-client_id&limit=2", ["old-2", "old-1"]),
            ("sort=-client_id&client_id=old-2", ["old-2"]),
        ):
            answer = await http.get(f"/clients?{query}")
            assert [row["client_id"] for row in answer.json()["items"]] == expected
            assert [row["clientid"] for row in answer.json()["items"]] == expected
            assert answer.headers["deprecation"].startswith("@")
        body = {"client_id": "else", "subscriptions": [{"filter": "x/+"}]}
        assert (await http.post("/clients:subscribe", json=body)).headers["deprecation"]
        assert (await http.post("/clients:kick", json={"client_ids": ["else"]})).json()[
            "kicked"
        ] == 1
        present = await http.get("/clients?clientid=old-*&username=client_id%3Dx&sort=clientid")
        assert present.status_code == 200
        assert "deprecation" not in present.headers
        assert (await http.get("/clients?xclient_id=a")).status_code == 400
