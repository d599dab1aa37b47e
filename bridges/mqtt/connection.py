"""One client of another broker, which all actions and sources of the connector share, so that the other broker knows
what came from here."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final
from uuid import uuid4

from bridges.mqtt.client import Client, Login, Session
from bridges.mqtt.inbound import Releases, shard_of
from bridges.mqtt.settings import VERSIONS, MqttSettings
from bridges.mqtt.websocket import Tunnel
from bridges.resource.contract import Connector, Context, ProbeStep
from bridges.resource.errors import BridgeError, ReconnectFirst, connection_error
from bridges.resource.ingress import position_key
from bridges.resource.probe import connect_step, resolve_step, tls_step
from bridges.resource.settings.tls import client_context
from bridges.resource.tasks import future_of_done
from broker.codec.packets import SubscriptionRequest
from broker.config.ssrf import AddressDenied, GuardedLoop
from broker.core.cells import cell_of_name
from broker.core.topic import TopicFilter, levels_match
from broker.core.values import Done

_KEPT: Final = "bridges/mqtt/"
Filters = Mapping[str, Sequence[str]]


class MqttConnection(Connector):
    """One client of another broker, shared by all actions and sources of the connector."""

    def __init__(self, settings: MqttSettings, context: Context) -> None:
        self.settings = settings
        self.context = context
        self.name = context.name.partition(":")[2]
        self.server = settings.address.shown
        self._is_trial = False
        self._client: Client | None = None

    @property
    def client(self) -> Client:
        """The connection there is.

        Raises:
            ReconnectFirst: there is none.
        """
        if self._client is None:
            raise ReconnectFirst("not connected")
        return self._client

    @property
    def is_trial(self) -> bool:
        """True for a test while the connector itself works."""
        return self._is_trial

    @property
    def remote_origin(self) -> str:
        """The origin of the other broker, where it is a Sluice."""
        origin: str = self.context.memory.get("remote_origin", "")
        return origin

    def has_source(self, name: str) -> bool:
        """True for a source of this connector, ``mqtt:NAME``."""
        return name in self.context.memory.get("filters", ())

    def reads(self, topic: str) -> bool:
        """True if a source of this connector reads that topic of the other broker."""
        return any(levels_match(levels, topic) for levels in self.context.memory.get("levels", ()))

    # Life

    async def open(self) -> None:
        """Connect and log in."""
        context = self.context
        client = self._make_client()
        try:
            await self._dial(client)
            await client.connack
        except BaseException as error:
            client.close()
            if isinstance(error, Exception):
                raise connection_error(error, self.server) from error
            raise
        self._client = client
        if not self._is_trial:
            context.memory["remote_origin"] = client.remote_origin
            self._keep()
            context.services.messaging.set_state(f"connection/{self.name}/state", "1")

    def _make_client(self) -> Client:
        return Client(
            self._login(),
            self._session(),
            self._forget,
            self._is_lost,
            self._dropped,
            self._unsubscribe_stray,
        )

    async def _dial(self, client: Client) -> None:
        """Give the client its way to the other broker."""
        settings = self.settings
        server = self.settings.address
        tls = await asyncio.to_thread(client_context, settings.tls)
        loop = GuardedLoop(asyncio.get_running_loop(), self.context.guard)
        if not server.is_websocket:
            await loop.create_connection(lambda: client, server.host, server.port, ssl=tls)
            return
        tunnel = Tunnel(
            client, server, settings.websocket.revealed(), is_v3=settings.version == VERSIONS["v3"]
        )
        await loop.create_connection(lambda: tunnel, server.host, server.port, ssl=tls)
        try:
            await tunnel.opened
        except BaseException:
            tunnel.abort()
            raise

    async def close(self) -> None:
        """Log out; the other broker keeps the session."""
        client = self._client
        self._client = None
        if client is not None:
            client.close()
            await client.closed()
            if not self._is_trial:
                self.context.services.messaging.set_state(f"connection/{self.name}/state", "0")

    async def check(self) -> None:
        """Ping the other broker; raises an error if it does not answer."""
        await self.client.ping()

    def probe(self) -> Sequence[ProbeStep]:
        """Resolve, connect, TLS, WebSocket, log in with another client identifier and a session that ends at once."""
        self._is_trial = True
        host, port, is_websocket, *_ = self.settings.address
        guard = self.context.guard
        options = self.settings.tls

        async def websocket() -> str:
            client = self._make_client()
            try:
                await self._dial(client)
            except (OSError, AddressDenied) as error:
                raise connection_error(error, self.server) from error
            finally:
                client.close()
            return f"open at {self.settings.address.path.partition('?')[0]}"

        async def authenticate() -> str:
            await self.open()
            who = f"as {self.settings.username!r}" if self.settings.username else "without a login"
            return f"{self.settings.proto_ver} {who}"

        async def ping() -> str:
            await self.check()
            origin = self.client.remote_origin
            return "answers" + (f"; it is the Sluice {origin.partition('/')[0]}" if origin else "")

        return [
            resolve_step(host, port, guard),
            connect_step(host, port, guard),
            *([tls_step(host, port, guard, options)] if options.enable else []),
            *([ProbeStep("websocket", websocket)] if is_websocket else []),
            ProbeStep("authenticate", authenticate),
            ProbeStep("metadata", ping),
        ]

    def _login(self) -> Login:
        settings = self.settings
        node = self.context.services.node
        client_id = (
            settings.clientid or f"{settings.clientid_prefix}-{self._node_name()}-{self.name}"
        )
        if cell_of_name(self.name, node.cells) != node.cell:
            client_id = (
                f"{client_id}-cell-{node.cell}"  # the cell with its sources goes by the name itself
            )
        topic = settings.status_topic.replace("${clientid}", client_id).replace(
            "${name}", self.name
        )
        if self._is_trial:
            client_id = f"{client_id}-{uuid4().hex[:6]}"
            topic = ""
        is_clean = settings.clean_start or self._is_trial
        return Login(self.server, settings, client_id, is_clean, node.origin, topic)

    def _node_name(self) -> str:
        """The node's name; where machines take cells over, that of the first one: the other broker has its session."""
        node = self.context.services.node
        name: str = self._kept().get("node", node.name) if node.moves else node.name
        return name

    def _session(self) -> Session:
        """The state of the session with that broker under that name."""
        login = self._login()
        memory = self.context.memory
        clock = self.context.services.node.clock
        limit = self.settings.window
        key = (login.server, login.client_id, self.settings.version, limit)
        if self._is_trial:
            return Session(limit, clock, Releases(clock.now_ns()))
        if memory.get("key") != key:
            kept = self._kept()
            filters = kept.get("filters", {})
            releases = Releases(kept.get("session", 0), self._last_position(filters))
            if kept.get("key") != [login.server, login.client_id]:
                releases = releases.next_session(clock.now_ns())
            memory.update(key=key, session=Session(limit, clock, releases), filters=filters)
        session: Session = memory["session"]
        return session

    def _forget(self, packet_id: int, done: Done) -> None:
        """Delete the position of a message for all sources, those among them that do not read now."""
        values = self.context.services.storage.values
        shard = shard_of(packet_id)
        for source in self.context.memory.get("filters", ()):
            key = position_key(source, shard)
            if values.get(key) is not None:
                values.put(key, None)
        values.when_committed(done)

    def _last_position(self, sources: Iterable[str]) -> int:
        """The highest stored position, or 0."""
        values = self.context.services.storage.values
        keys = [key for source in sources for key in values.names(position_key(source, ""))]
        return max((int(values.get(key) or 0) for key in keys), default=0)

    def _is_lost(self, reason: str) -> None:
        self.context.lost(reason)

    def _dropped(self, why: str) -> None:
        metrics = self.context.services.monitoring.metrics
        help = "messages from another broker that a bridge left out, by reason: loop, nobody_reads, queue_full"
        metrics.counter("bridge_left_out", help, connector=self.name, reason=why).value += 1

    # Subscriptions at the other broker

    async def subscribe(self, source: str, requests: Sequence[SubscriptionRequest]) -> None:
        """Subscribe for a source, and end what it had subscribed to before.

        Raises:
            TargetMissing: a filter is refused.
        """
        wanted = [request.filter for request in requests]
        filters: dict[str, Sequence[str]] = self.context.memory.setdefault("filters", {})
        before = filters.setdefault(source, ())
        if self._is_trial:
            await self.client.subscribe(requests)
            return
        self._keep()
        committed, done = future_of_done()
        self.context.services.storage.values.when_committed(done)
        await committed  # a later process must know the session of which messages come
        await self.client.subscribe(requests)
        filters[source] = wanted
        used = {text for texts in filters.values() for text in texts}
        if gone := [text for text in before if text not in used]:
            await self.client.unsubscribe(gone)
        self._keep()

    def _unsubscribe_stray(self) -> None:
        """Messages come that no source reads: end what sources that are gone had subscribed to."""
        client = self._client
        if client is None:
            return
        filters: dict[str, Sequence[str]] = self.context.memory.get("filters", {})
        gone = [name for name in filters if name not in client.inbound.inboxes]
        texts = [text for name in gone for text in filters.pop(name)]
        client.inbound.give_up_unclaimed()
        self._keep()
        used = {text for filter_texts in filters.values() for text in filter_texts}
        if ended := [text for text in texts if text not in used]:
            self._ending = asyncio.create_task(
                _quietly(client, ended), name=f"unsubscribing of {self.context.name}"
            )

    def _kept(self) -> dict[str, Any]:
        stored = self.context.services.storage.values.get(_KEPT + self.name)
        kept: dict[str, Any] = {} if stored is None else json.loads(stored)
        return kept

    def _keep(self) -> None:
        """Remember the session over the end of the process."""
        memory = self.context.memory
        login = self._login()
        used = {text for texts in memory.get("filters", {}).values() for text in texts}
        memory["levels"] = [TopicFilter.parse(text).levels for text in used]
        kept = {
            "node": self._node_name(),
            "key": [login.server, login.client_id],
            "session": self._session().releases.session,
            "filters": memory.get("filters", {}),
        }
        self.context.services.storage.values.put(_KEPT + self.name, json.dumps(kept).encode())


async def _quietly(client: Client, filters: Sequence[str]) -> None:
    try:
        await client.unsubscribe(filters)
    except BridgeError:
        return  # the connection is gone; it is tried again when more comes
