"""Names that no authenticator verified: which source of rules goes by them, and in which zone."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from broker.codec.packets import ConnAck, Connect, PubAck, Publish, SubscriptionRequest, Will
from broker.connection.sessions.zones import ZonesSettings
from broker.core import reason
from broker.net.listener import Listener
from broker.net.settings import ListenerSettings, NamedListener
from tests.support.access import BUILTIN, access
from tests.support.mqtt_server import Node, on_loop, running
from tests.support.wire import WireClient

OWN = {"permission": "allow", "topics": ["c/${clientid}/#"]}
"""Needs the client identifier, which a password does not verify."""


async def published(client: WireClient, topic: str) -> int:
    client.send(Publish(topic, b"", 1, packet_id=1))
    return (await client.expect(PubAck)).reason_code


def by_file(**source: Any) -> Any:
    sources = [{"type": "file", "rules": [OWN], **source}, {"type": "built_in"}]
    return access(BUILTIN, sources=sources, no_match="deny")


@on_loop
@pytest.mark.parametrize(("requires", "code"), [(True, reason.NOT_AUTHORIZED), (False, 0x10)])
async def test_a_source_believes_names_where_it_says_so(requires: bool, code: int) -> None:
    async with running(access=by_file(require_trusted_attributes=requires)) as node:
        client = await node.client("c1", 5, username="ann", password=b"pencil")
        assert await published(client, "c/c1/x") == code
        assert await published(client, "c/c2/x") == reason.NOT_AUTHORIZED


@on_loop
async def test_the_rules_of_the_api_believe_names_where_their_source_says_so() -> None:
    sources = [
        {"type": "built_in", "require_trusted_attributes": False},
        {"type": "file", "rules": [OWN]},
    ]
    async with running(access=access(BUILTIN, sources=sources, no_match="deny")) as node:
        client = await node.client("c1", 5, username="ann", password=b"pencil")
        assert await published(client, "c/c1/x") == reason.NOT_AUTHORIZED  # the file does not


@on_loop
async def test_a_will_is_left_by_the_names_that_were_believed() -> None:
    async with running(access=by_file(require_trusted_attributes=False)) as node:
        watcher = await node.client("w", 5, username="root", password=b"paper")
        await watcher.subscribe(SubscriptionRequest("c/#"))
        client = await node.client(
            "c1", 5, username="ann", password=b"pencil", will=Will("c/c1/gone", b"x")
        )
        client.abort()
        assert (await watcher.expect(Publish)).topic == "c/c1/gone"


@asynccontextmanager
async def in_zone(node: Node, **zone: Any) -> AsyncIterator[int]:
    """The port of a listener in a zone."""
    hub = node.server.hub
    hub.zones.use(hub.context.settings, ZonesSettings.model_validate({"plant": zone}))
    listener = Listener(
        NamedListener(ListenerSettings(bind="127.0.0.1:0", zone="plant"), "plant"),
        hub,
        node.metrics,
    )
    _, port = await listener.open()
    try:
        yield port
    finally:
        listener.close()
        listener.owner.dismiss(0x8B, "stopped")


@on_loop
async def test_a_zone_has_its_own_list_of_believed_names() -> None:
    async with running(access=by_file()) as node:
        for trusted, code in (
            (["clientid"], 0x10),
            ([], reason.NOT_AUTHORIZED),
            (None, reason.NOT_AUTHORIZED),
        ):
            async with in_zone(node, trusted_client_attributes=trusted) as port:
                wire = await WireClient.open(port, 5)
                wire.send(Connect("c1", 5, username="ann", password=b"pencil"))
                assert (await wire.expect(ConnAck)).reason_code == 0
                assert await published(wire, "c/c1/x") == code
                await wire.close()
        client = await node.client("c1", 5, username="ann", password=b"pencil")
        assert await published(client, "c/c1/x") == reason.NOT_AUTHORIZED
