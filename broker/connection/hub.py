"""Parts that all connections of a node share, created in order: each part with those before it that it needs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from broker.auth.access import Access
from broker.connection.authentication.logins import Logins
from broker.connection.authentication.permissions import AccessChanges, Permissions
from broker.connection.backpressure import Backpressure
from broker.connection.client_topics import ClientTopics
from broker.connection.connection import Connection, ConnectionServices
from broker.connection.connections import Connections
from broker.connection.context import Context
from broker.connection.dead_letters import DeadLetters, DeadLetterSettings
from broker.connection.events import ClientEvents, SessionEvents
from broker.connection.link import Link
from broker.connection.permits import LeftBehind
from broker.connection.protocol.arrivals import Arrivals
from broker.connection.protocol.client_acknowledgements import Acknowledgements
from broker.connection.protocol.connect import Connecting
from broker.connection.protocol.disconnect import Disconnecting
from broker.connection.protocol.forwarding import Forwarding
from broker.connection.protocol.parking import Parking
from broker.connection.protocol.publish import Publishing
from broker.connection.protocol.reading import PacketReader
from broker.connection.protocol.subscribe import Subscribing
from broker.connection.sessions.inbounds import StoredInbounds
from broker.connection.sessions.lifecycle import SessionLife
from broker.connection.sessions.log import SessionLog
from broker.connection.sessions.maintenance import Housekeeping, QueueWatch
from broker.connection.sessions.records import SessionRecords
from broker.connection.sessions.recount import Recount
from broker.connection.sessions.restore import restore_sessions
from broker.connection.sessions.retained_delivery import Replays
from broker.connection.sessions.stored_wills import Wills
from broker.connection.sessions.subscriptions import SubscriptionRegistry
from broker.connection.sessions.zones import Zones, ZonesSettings
from broker.connection.settings import MqttSettings
from broker.connection.sharing.groups import ShareGroups
from broker.connection.sharing.settings import SharedSettings
from broker.connection.stalled import Stalled
from broker.connection.sys_topics import SysTopics, SysTopicSettings
from broker.connection.upkeep import Upkeep
from broker.connection.withholding import Withholding
from broker.core.message import Message
from broker.core.signals import Signal
from broker.core.stage import Outcome
from broker.core.topic import TopicFilter
from broker.pipeline.lanes import LaneBounds
from broker.pipeline.pipeline import Pipeline
from broker.pipeline.plan import Plans
from broker.pipeline.topic_counts import TopicCounts
from broker.routing.delayed import Delayed, DelayedSettings
from broker.routing.retained_store import Retained
from broker.routing.rewrite import Rewrites
from broker.routing.router import Router
from broker.routing.settings import RetainedSettings
from broker.routing.shared import RoutedGroups
from broker.session.registry import SessionRegistry
from broker.session.session import Session
from broker.session.state import SessionLimits, SessionServices
from broker.storage.store import LogShard
from broker.streams.starts import StreamStarts


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """The settings of an MQTT server, by section."""

    mqtt: MqttSettings = field(default_factory=MqttSettings)
    retained: RetainedSettings = field(default_factory=RetainedSettings)
    dead_letter: DeadLetterSettings = field(default_factory=DeadLetterSettings)
    shared: SharedSettings = field(default_factory=SharedSettings)
    delayed: DelayedSettings = field(default_factory=DelayedSettings)
    sys_topics: SysTopicSettings = field(default_factory=SysTopicSettings)
    zones: ZonesSettings | None = None


class Hub:
    """All parts of a node's MQTT server.

    Nothing below imports this module. Attributes are for the packages above, which show and change what the node does.
    """

    def __init__(
        self,
        context: Context,
        settings_of: ServerSettings,
        session_log: LogShard,
        access: Access | None = None,
        starts: StreamStarts | None = None,
    ) -> None:
        self.context = context
        settings = settings_of.mqtt
        writer = context.writer
        self.on_routes = Signal[TopicFilter]()
        """With a filter whose topics' subscribers changed."""
        self.access = access or Access.of(None, writer, context.metrics, context.clock)
        self.connections = Connections(context)
        self.stalled = Stalled(context, self.connections)
        self.backpressure = backpressure = Backpressure(context)
        self.withholding = Withholding(context, self.stalled)

        # the way of a message
        self.session_log = SessionLog(context, session_log, self.withholding)
        self.retained = Retained(writer, context.clock, settings_of.retained)
        self.retained.is_on = settings.retain_available
        self.delayed = Delayed(
            settings=settings_of.delayed,
            writer=writer,
            clock=context.clock,
            metrics=context.metrics,
        )
        self.rewrites = Rewrites(self._forget_topics)
        dead_letters = DeadLetters(
            context, settings_of.dead_letter, self.session_log, self._publish
        )
        groups = RoutedGroups(self._forget)
        self.share_groups = ShareGroups(
            context, settings_of.shared, self.session_log, groups, dead_letters, backpressure,
            self.withholding, starts,
        )  # fmt: skip
        self.router: Router[Session] = Router(
            self.session_log.keep, self._forget, self.share_groups, groups
        )
        self.plans = self._make_plans(settings)
        self.topic_counts = TopicCounts(context.clock, self.plans)
        self.pipeline = self._make_pipeline(settings, dead_letters, backpressure)
        self.sys_topics = SysTopics(
            context, settings_of.sys_topics, self.pipeline, self.plans, self.connections
        )

        # sessions
        self.sessions = SessionRegistry()
        self.inbounds = StoredInbounds(context, self.sessions)
        self.records = SessionRecords(context, self.session_log, self.share_groups.save)
        services = self._make_session_services(backpressure, dead_letters)
        self.zones = Zones(
            context,
            settings_of.zones,
            services,
            self.session_log,
            self.share_groups,
            self.records,
            self.inbounds,
        )
        self.access.authorizer.trusted_in = lambda zone: self.zones.named(zone).trusted
        self.replays = Replays(context, self.retained, self.session_log, self._may_send())
        self.subscriptions = SubscriptionRegistry(
            context, self.router, self.share_groups, self.session_log, self.records, self.replays
        )
        left_behind = LeftBehind(self.access, self.plans, self.pipeline)
        self.wills = Wills(context, self.sessions, left_behind.publish_will)
        self.life = SessionLife(
            context,
            self.sessions,
            self.session_log,
            self.records,
            self.subscriptions,
            self.inbounds,
            self.wills,
        )

        # clients
        permissions = Permissions(context, self.access, self.plans, self.subscriptions, self.wills)
        changes = AccessChanges(context, self.access, permissions, self.connections, self.life)
        self.access.authorizer.on_change.connect(changes.rules_changed)
        self.access.bans.on_ban.connect(changes.banned)
        if self.access.users is not None:
            self.access.users.on_change.connect(changes.users_changed)
        self.logins = Logins(context, self.access, permissions)
        self.subscribing = Subscribing(
            context,
            self.subscriptions,
            self.share_groups,
            permissions,
            self.rewrites,
            self.sys_topics,
            self.logins.waiting,
            self.withholding,
        )
        self._services = self._make_services(backpressure, dead_letters)

        # time
        upkeep = Upkeep(
            context, self.delayed, self.retained, left_behind.publish, self.pipeline.decided
        )
        self.queue_watch = QueueWatch(context, self.sessions, self.inbounds)
        self.housekeeping = Housekeeping(
            context,
            self.sessions,
            self.session_log,
            self.share_groups,
            self.inbounds,
            [self.records.subscriptions, self.replays.stored],
        )
        self._ticked = (
            self.connections, self.logins, self.share_groups, self.life, self.wills, upkeep, self.sys_topics,
            self.housekeeping, self.queue_watch, self.topic_counts, self.stalled, self.withholding,
        )  # fmt: skip

    def connect(self, link: Link) -> Connection:
        """A connection over a link that is about to open."""
        return Connection(self.context, self._services, link)

    def load(self) -> Iterator[None]:
        """Restore what the node knew before it was stopped or killed, a step of some milliseconds at a time, before the
        first connection.

        In this order: messages that are kept, share groups, the sessions that are their members, then what waits in the
        session log for each. Connections that the process's end cut off have ended abnormally now: their wills are due,
        once all sessions are there to get them.
        """
        store = self.context.writer.store
        wills = self.wills.load()
        yield from self.retained.load()
        self.delayed.load()
        self.access.bans.load()
        self.inbounds.load()
        self.share_groups.load()
        cut_off = yield from restore_sessions(self.records, self.life, self.zones, wills)
        self.share_groups.loaded()
        self.replays.load(self.sessions)
        yield from Recount(self.sessions, self.router, store, self.session_log.shard).run()
        ended_ns = self.context.clock.now_ns()
        for session in cut_off:
            self.life.cut_off(session, ended_ns)
        for will in wills.values():
            self.wills.publish_orphan(will)

    def tick(self) -> None:
        """Act on what time has brought; to be called every ``broker.connection.context.TICK_S``."""
        self.context.now_s = self.context.clock.monotonic_s()
        for part in self._ticked:
            part.tick()

    # -- what changes --

    def use_settings(self, settings: MqttSettings) -> None:
        """Apply other settings; those of ``FIXED_SETTINGS`` must be as they were."""
        self.context.use(settings)
        self.retained.is_on = settings.retain_available
        self.plans.limit(settings.max_topic_levels, settings.max_topic_bytes)
        self.zones.use(settings)
        self.inbounds.use(settings)
        self.connections.renew_meters()

    # -- a message made while another is routed, a plan while routes change --

    def _publish(self, message: Message) -> Outcome:
        return self.pipeline.publish(message)

    def _forget(self, topic_filter: TopicFilter) -> None:
        self.plans.forget(topic_filter)
        self.on_routes(topic_filter)

    def _forget_topics(self) -> None:
        self.plans.invalidate()
        self.connections.forget_permits()

    # -- construction --

    def _make_plans(self, settings: MqttSettings) -> Plans:
        return Plans(
            self.router.routes, self.router.forget_routes, ClientTopics(self.rewrites, self.delayed),
            self.context.clock, settings.max_cached_plans, settings.max_topic_levels, settings.max_topic_bytes,
            settings.max_cached_plan_bytes, self.router.watched,
        )  # fmt: skip

    def _make_pipeline(
        self, settings: MqttSettings, dead_letters: DeadLetters, backpressure: Backpressure
    ) -> Pipeline:
        return Pipeline(
            self.plans,
            self.retained,
            self.context.metrics,
            self.context.events,
            LaneBounds(settings.max_waiting_messages, settings.max_waiting_bytes),
            dead_letters.take_unwanted,
            self.topic_counts,
            self.withholding.with_room,
            backpressure,
            self.context.writer,
            self.context.later,
        )

    def _may_send(self) -> Callable[[Message], bool] | None:
        authorizer = self.access.authorizer
        return authorizer.may_retain if authorizer.settings.check_retain_source else None

    def _make_session_services(
        self, backpressure: Backpressure, dead_letters: DeadLetters
    ) -> SessionServices:
        context = self.context
        return SessionServices(
            clock=context.clock, changed=self.records.changed, moved=self.records.moved,
            refill=self.session_log.refill, defer=context.defer, crowded=backpressure.crowded,
            relieved=backpressure.relieved, queue_in_full=self.withholding.queue_in_full,
            drained=self.withholding.drained, on_event=SessionEvents(context.events).delivery, events=context.events,
            sent=context.figures.sent, dropped=context.figures.delivery_dropped, subscribed=context.subscribed,
            limits=SessionLimits.of(context.settings), resends=context.settings.retry_interval > 0,
            shed=dead_letters.take_shed, on_dropped=dead_letters.take if dead_letters.reasons else None,
            note_dropped=context.timelines.dropped,
        )  # fmt: skip

    def _make_services(
        self, backpressure: Backpressure, dead_letters: DeadLetters
    ) -> ConnectionServices:
        """Handlers of the packets of connections, by type, and the connections themselves."""
        context = self.context
        parking = Parking(self.pipeline, self.context.metrics)
        client_events = ClientEvents(context, self.sys_topics)
        holders = (
            parking,
            context.scheduler,
            self.logins,
            backpressure,
            self.withholding,
            self.connections,
        )
        abandon = [holder.abandon for holder in holders]
        connecting = self.connecting = Connecting(
            context, self.logins, self.subscribing, client_events, self.life, self.zones
        )
        disconnecting = Disconnecting(context, abandon, client_events, self.life, self.inbounds)
        publishing = Publishing(
            context, self.plans, self.pipeline, parking, self.inbounds, self.withholding
        )
        self.forwarding = forwarding = Forwarding(
            context, self.plans, self.pipeline, dead_letters, self.withholding
        )
        acknowledgements = Acknowledgements(context, self.inbounds)
        takers = {**connecting.takers, **disconnecting.takers}
        reader = PacketReader(
            context, publishing, forwarding, acknowledgements, self.subscribing, takers
        )
        self.arrivals = Arrivals(
            context, self.plans, publishing, forwarding, acknowledgements, self.topic_counts
        )
        return ConnectionServices(
            self.arrivals.add, self.arrivals.take, backpressure,
            self.topic_counts, connecting.read_first, reader.read_packets, self.connections.opened,
            disconnecting.ended,
        )  # fmt: skip
