"""MQTT over a WebSocket of the API: a client of a listener with the browser's address, for users who may publish."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, cast

import pytest
from websockets.asyncio.client import ClientConnection, connect

from broker.admin.listeners import ListenerService
from broker.admin.rights import Actor
from tests.support import raw
from tests.support.mqtt_server import Node as Server
from tests.support.mqtt_server import clients_of, on_loop, running
from tests.ui.api_node import TOKEN, Node
from ui.api import mqtt_clients
from ui.api.application import create_app
from ui.api.server import ApiServer

FRAME_BYTES = 32 * 1024
"""Of a page; the API takes frames of at most 64 KiB."""


class Pages:
    """A broker and its API on the same loop."""

    def __init__(self, broker: Server, url: str, context: Any) -> None:
        self.broker, self.context = broker, context
        self._url = url

    def open(self, listener: str = "", **options: Any) -> connect:
        query = f"?listener={listener}" if listener else ""
        headers = {"Authorization": f"Bearer {options.pop('token', TOKEN)}"}
        return connect(
            f"{self._url}/api/v1/mqtt{query}",
            subprotocols=cast(Any, ["mqtt"]),
            additional_headers=headers,
            proxy=None,
            open_timeout=60,
            **options,
        )


@asynccontextmanager
async def serving(**settings: Any) -> AsyncIterator[Pages]:
    async with running(**settings) as broker:
        node = Node()
        services = dict(node.context.services)
        services["listeners"] = cast(
            Any, ListenerService(broker.server.listeners, cast(Any, None), cast(Any, None))
        )
        node.context.services = services
        api = ApiServer(create_app(node.context), "127.0.0.1", 0)
        host, port = await api.start()
        try:
            yield Pages(broker, f"ws://{host}:{port}", node.context)
        finally:
            await api.stop()


async def ending(page: ClientConnection) -> tuple[int, str]:
    """The code and the reason with which the server closes."""
    await page.wait_closed()
    return page.close_code or 0, page.close_reason or ""


@on_loop
async def test_a_page_is_a_client_of_the_listener_with_its_own_address() -> None:
    async with serving() as pages, pages.open() as page:
        assert page.subprotocol == "mqtt"
        await page.send(raw.connect(5, "page"))
        assert (await page.recv())[0] == raw.CONNACK
        client = clients_of(pages.broker).show("page")
        local = page.local_address
        assert client["clientid"] == "page"
        assert client["listener"] == "tcp:default"
        assert client["address"] == f"{local[0]}:{local[1]}"


@on_loop
async def test_what_a_page_publishes_reaches_subscribers_and_large_messages_come_back_whole() -> (
    None
):
    async with serving() as pages, pages.open(max_size=None) as page:
        await page.send(raw.connect(5, "page"))
        await page.recv()
        await page.send(raw.subscribe(5, 1, ("a/#", 0)))
        await page.recv()
        payload = bytes(range(256)) * 2048
        sent = raw.publish(5, "a/b", payload)
        for start in range(0, len(sent), FRAME_BYTES):
            await page.send(sent[start : start + FRAME_BYTES])
        got = b""
        while len(got) < len(payload):
            got += cast(bytes, await page.recv())
        assert got.endswith(payload)


@on_loop
async def test_the_end_of_a_page_is_the_end_of_its_client() -> None:
    async with serving() as pages:
        async with pages.open() as page:
            await page.send(raw.connect(5, "page"))
            await page.recv()
            await pages.broker.until(lambda: pages.broker.server.listeners.links == 1)
        await pages.broker.until(lambda: pages.broker.server.listeners.links == 0)


@on_loop
async def test_a_client_that_is_disconnected_closes_its_page() -> None:
    async with serving() as pages, pages.open() as page:
        await page.send(raw.connect(5, "page"))
        await page.recv()
        pages.broker.kick("page")
        disconnect = cast(bytes, await page.recv())
        assert (disconnect[0], disconnect[2]) == (raw.DISCONNECT, 0x98)
        assert (await ending(page))[0] == 1000


@on_loop
async def test_who_may_not_publish_is_refused_with_the_missing_right(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    actor = Actor("ann", "viewer")
    monkeypatch.setattr(mqtt_clients, "identify", lambda websocket: actor)
    async with serving() as pages:
        async with pages.open() as page:
            code, reason = await ending(page)
            assert code == 4403
            assert reason.startswith("needs 'change' on 'messages'; your role 'viewer'")
        actor = Actor("ann", "operator", topics=("a/#",))
        async with pages.open() as page:
            assert await ending(page) == (
                4403,
                "an MQTT client needs rights without a scope of topics",
            )


@on_loop
async def test_a_wrong_token_is_refused() -> None:
    async with serving() as pages, pages.open(token="wrong") as page:
        assert (await ending(page))[0] == 4401


@on_loop
async def test_rights_that_change_end_the_client(monkeypatch: pytest.MonkeyPatch) -> None:
    actor = Actor("ann", "operator")
    monkeypatch.setattr(mqtt_clients, "identify", lambda websocket: actor)
    monkeypatch.setattr(mqtt_clients, "CHECK_S", 0.05)
    async with serving() as pages:
        async with pages.open() as page:
            await page.send(raw.connect(5, "page"))
            await page.recv()
            actor = Actor("ann", "viewer")
            assert (await ending(page))[0] == 4403
        actor = Actor("ann", "operator")
        async with pages.open() as page:
            await page.send(raw.connect(5, "page"))
            await page.recv()
            actor = Actor("ann", "administrator")
            assert await ending(page) == (4409, "your rights changed; connect again")


@on_loop
async def test_at_most_a_number_of_pages_are_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mqtt_clients, "MAX_CLIENTS", 1)
    async with serving() as pages, pages.open() as first:
        await first.send(raw.connect(5, "page"))
        await first.recv()
        async with pages.open() as second:
            assert await ending(second) == (4429, "all 1 clients are in use")


@on_loop
async def test_text_unknown_stopped_and_guarded_listeners_are_refused_in_words() -> None:
    async with serving() as pages:
        async with pages.open() as page:
            await page.send("MQTT")
            assert await ending(page) == (1003, "expected binary frames that carry MQTT")
        async with pages.open(listener="tcp:none") as page:
            code, reason = await ending(page)
            assert (code, "tcp:none" in reason) == (1013, True)
        listeners = pages.broker.server.listeners
        [listener] = listeners._all.values()
        listener.settings = cast(
            Any,
            SimpleNamespace(tls=SimpleNamespace(verify="peer", fail_if_no_peer_cert=True)),
        )
        async with pages.open(listener="tcp:default") as page:
            assert "with a certificate only" in (await ending(page))[1]
        async with pages.open() as page:
            assert "no listener is open" in (await ending(page))[1]


@on_loop
async def test_a_listener_that_takes_no_more_connections_refuses_pages(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with serving() as pages:
        [listener] = pages.broker.server.listeners._all.values()
        monkeypatch.setattr(listener.owner, "knock", lambda host: False)
        async with pages.open() as page:
            assert await ending(page) == (
                1013,
                "listener 'tcp:default' takes no more connections now",
            )
