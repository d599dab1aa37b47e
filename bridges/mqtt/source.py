"""Messages of another broker as messages here and as what rules read.

A message is acknowledged to the other broker after the commit that holds what it led to. One with QoS 2 is taken once,
also across crashes; one with QoS 1 may come twice when the connection breaks between the two.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Any, Final
from uuid import uuid4

from bridges.mqtt.client import Client, carried
from bridges.mqtt.connection import MqttConnection
from bridges.mqtt.inbound import Delivery, Inbox, shard_of
from bridges.mqtt.loops import marked, marks_of
from bridges.mqtt.settings import LocalSettings, MqttSourceSettings
from bridges.resource.contract import Context, Feed, Incoming, Source
from bridges.resource.templates import bytes_template, text_template
from broker.codec.packets import Publish, SubscriptionRequest
from broker.core.errors import PeerError
from broker.core.events import property_columns
from broker.core.topic import SHARE_PREFIXES, TopicFilter, check_topic_name
from rules.sql.values import string

# Messages handed over together.
_MOST: Final = 500


class MqttSource(Source):
    """The subscriptions of one source."""

    def __init__(
        self, connection: MqttConnection, settings: MqttSourceSettings, context: Context
    ) -> None:
        self._connection = connection
        self._settings = settings
        self._context = context
        self._requests = [
            SubscriptionRequest(
                filter.topic,
                filter.qos,
                connection.settings.version == 5
                and settings.no_local
                and not filter.topic.startswith(SHARE_PREFIXES),
                connection.settings.version == 5,
                settings.retain_handling if connection.settings.version == 5 else 0,
            )
            for filter in settings.filters
        ]
        self._local = _Local(settings, connection.server) if settings.publish is not None else None

    async def check(self) -> None:
        """In a test: whether the filters are granted. Else ``run`` finds out."""
        if self._connection.is_trial:
            await self._connection.subscribe(self._context.name, self._requests)

    async def run(self, feed: Feed) -> None:
        """Read until cancelled."""
        client = self._connection.client
        arrived = asyncio.Event()
        filters = [TopicFilter.parse(request.filter).levels for request in self._requests]
        inbox = Inbox(self._context.name, filters, arrived.set)
        client.attach(inbox)
        try:
            await self._connection.subscribe(self._context.name, self._requests)
            while True:
                while not len(inbox):
                    arrived.clear()
                    await arrived.wait()
                await feed.ready()
                self._hand_over(feed, client, inbox.take(_MOST))
        finally:
            client.inbound.detach(inbox.name)

    def _hand_over(self, feed: Feed, client: Client, deliveries: list[Delivery]) -> None:
        with_columns = feed.is_read
        records = [
            self._incoming(feed, client, delivery.packet, with_columns=with_columns)
            for delivery in deliveries
        ]
        feed.hand_over(records, partial(self._settled, client, deliveries))

    def _settled(
        self, client: Client, deliveries: Sequence[Delivery], error: BaseException | None
    ) -> None:
        """Acknowledge; what could not be committed comes again over a new connection."""
        if error is None:
            client.inbound.committed(deliveries)
        else:
            self._context.lost(f"what came could not be stored: {error}")

    def _incoming(
        self, feed: Feed, client: Client, packet: Publish, *, with_columns: bool
    ) -> Incoming:
        needs_columns = with_columns or (self._local is not None and self._local.needs_columns)
        incoming = Incoming(self._columns(packet) if needs_columns else {})
        if packet.qos == 2:
            shard = shard_of(packet.packet_id)
            now_ns = self._context.services.node.clock.now_ns()
            incoming.shard = shard
            incoming.position = client.session.releases.position(
                packet.packet_id, lambda: feed.position_of(shard), now_ns
            )
        if self._local is not None:
            self._local.fill(incoming, packet)
            if client.remote_origin and self._connection.settings.loop_prevention:
                _mark_origin(incoming, client.remote_origin)
        return incoming

    def _columns(self, packet: Publish) -> dict[str, Any]:
        """The columns under EMQX's names."""
        return {
            "id": uuid4().hex,
            "server": self._connection.server,
            "payload": string(packet.payload),
            "topic": packet.topic,
            "qos": packet.qos,
            "dup": packet.dup,
            "retain": packet.retain,
            "pub_props": property_columns(carried(packet.properties)),
            "message_received_at": self._context.services.node.clock.now_ns() // 1_000_000,
        }


class _Local:
    """The message to publish here for a record."""

    def __init__(self, settings: MqttSourceSettings, server: str) -> None:
        publish = settings.publish or LocalSettings()
        self._publish = publish
        self._remote_prefix = settings.remote_prefix
        self._topic_of = text_template(publish.topic) if publish.topic else None
        self._payload_of = bytes_template(publish.payload) if publish.payload else None
        self.needs_columns = self._topic_of is not None or self._payload_of is not None

    def fill(self, incoming: Incoming, packet: Publish) -> None:
        """Topic, payload, QoS, RETAIN and properties."""
        publish = self._publish
        if self._topic_of is None:
            topic = publish.prefix + packet.topic.removeprefix(self._remote_prefix)
        else:
            topic = publish.prefix + self._topic_of(incoming.columns)
        try:
            check_topic_name(topic)
        except PeerError:
            return  # what is left of it cannot be published; rules have it
        incoming.topic = topic
        incoming.payload = (
            packet.payload
            if self._payload_of is None
            else self._payload_of(incoming.columns) or b""
        )
        incoming.qos = min(packet.qos, publish.qos)
        incoming.retain = packet.retain and publish.retain
        incoming.properties = carried(packet.properties)


def _mark_origin(incoming: Incoming, origin: str) -> None:
    if origin not in marks_of(incoming.properties):
        incoming.properties = marked(incoming.properties, origin)
