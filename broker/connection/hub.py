"""What all connections of a node share, made in order: each part with those before it that it needs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from broker.auth.access import Access
from broker.connection.authentication.logins import Logins
from broker.connection.authentication.permissions import AccessChanges, Permissions
from broker.connection.backpressure import Backpressure, StoreBackpressure
from broker.connection.client_topics import ClientTopics
from broker.connection.connection import Connection, ConnectionServices
from broker.connection.connections import Connections
from broker.connection.context import Context
from broker.connection.dead_letters import DeadLetters, DeadLetterSettings
from broker.connection.events import ClientEvents, SessionEvents
from broker.connection.link import Link
from broker.connection.protocol.acknowledge import Acknowledgements
from broker.connection.protocol.connect import Connecting
from broker.connection.protocol.forwarding import Forwarding
from broker.connection.protocol.parking import Parking
from broker.connection.protocol.publish import Publishing
from broker.connection.protocol.reading import PacketReader
from broker.connection.protocol.subscribe import Subscribing
from broker.connection.publish_rate import PublishRates
from broker.connection.scheduler import Scheduler
from broker.connection.sessions.lifecycle import SessionLife
from broker.connection.sessions.log import SessionLog
from broker.connection.sessions.maintenance import Housekeeping, QueueWatch
from broker.connection.sessions.records import SessionRecords
from broker.connection.sessions.replays import Replays
from broker.connection.sessions.restore import restore
from broker.connection.sessions.wills import Wills
from broker.connection.sessions.zones import Zones, ZonesSettings
from broker.connection.settings import MqttSettings
from broker.connection.sharing.groups import ShareGroups
from broker.connection.sharing.settings import SharedSettings
from broker.connection.sys_topics import SysTopics
from broker.connection.upkeep import Upkeep
from broker.core.message import Message
from broker.core.stage import Gate, Outcome, Tap
from broker.core.topic import TopicFilter
from broker.pipeline.lanes import LaneBounds
from broker.pipeline.pipeline import Pipeline
from broker.pipeline.plan import Plans
from broker.routing.delayed import Delayed, DelayedSettings
from broker.routing.retained import Retained
from broker.routing.rewrite import Rewrites
from broker.routing.router import Router, Routes
from broker.routing.settings import RetainedSettings
from broker.routing.shared import RoutedGroups
from broker.session.session import Session
from broker.session.state import SessionLimits, SessionServices
from broker.storage.store import LogShard


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """The settings of an MQTT server, by section."""

    mqtt: MqttSettings = field(default_factory=MqttSettings)
    retained: RetainedSettings = field(default_factory=RetainedSettings)
    dead_letter: DeadLetterSettings = field(default_factory=DeadLetterSettings)
    shared: SharedSettings = field(default_factory=SharedSettings)
    zones: ZonesSettings | None = None


class Hub:
    """All parts of a node's MQTT server.

    Nothing below imports this module. Attributes are for the packages above, which show and change what the node does.
    """

    def __init__(
        self, context: Context, settings_of: ServerSettings, session_log: LogShard, access: Access | None = None
    ) -> None:
        self.context, settings = context, settings_of.mqtt
        writer, metrics, events, clock = context.writer, context.metrics, context.events, context.clock
        self.access = access or Access.of(None, writer, metrics, clock)
        self.connections: set[Connection] = set()
        self.scheduler = Scheduler(clock, context.defer)
        self._backpressure, store_backpressure = Backpressure(context), StoreBackpressure(writer)
        self.session_log = SessionLog(context, session_log, self.scheduler)
        self.retained = Retained(writer, clock, settings_of.retained)
        self.retained.is_on = settings.retain_available
        self.rewrites = Rewrites(self._forget_topics)
        self.delayed = Delayed(settings=DelayedSettings(), writer=writer, clock=clock, metrics=metrics)
        self.dead_letters = DeadLetters(context, settings_of.dead_letter, self.session_log, self._publish)
        groups = RoutedGroups(self._forget)
        self.share_groups = ShareGroups(
            context, settings_of.shared, self.session_log, groups, self.dead_letters, self._backpressure
        )
        self.router: Router[Session] = Router(self.session_log.keep, self._forget, self.share_groups, groups)
        self.plans = self._make_plans(settings)
        self.pipeline: Pipeline[Routes[Session]] = Pipeline(
            self.plans,
            self.retained.retain,
            metrics,
            events,
            LaneBounds(settings.max_waiting_messages, settings.max_waiting_bytes),
            self.retained.refusal,
            self.dead_letters.take_unwanted,
            context.topic_counts,
        )
        context.topic_counts.known, context.topic_counts.meant = lambda: self.plans.by_topic, self.plans.meant
        authorizer = self.access.authorizer
        may_send = authorizer.may_retain if authorizer.settings.check_retain_source else None
        self.replays = Replays(context, self.retained, self.session_log, may_send)
        self.records = SessionRecords(context, self.session_log, self.share_groups.save)
        self.zones = Zones(settings_of.zones, settings, self._make_services(settings))
        self.life = life = SessionLife(
            context,
            router=self.router,
            share_groups=self.share_groups,
            session_log=self.session_log,
            records=self.records,
            replays=self.replays,
            wills=Wills(context, self.pipeline.publish_for_client),
            zones=self.zones,
            scheduler=self.scheduler,
        )
        self.sessions = life.sessions
        self.sys_topics = SysTopics(
            context,
            publisher=self.pipeline,
            plans=self.plans,
            life=life,
            connections=self.connections,
            retained=self.retained,
        )
        self.publish_rates = PublishRates(context)
        permissions = Permissions(context, self.access, self.plans, life)
        self.access.announce_to(AccessChanges(self.access, permissions, self.connections, life, self.scheduler))
        self.logins = Logins(context, self.access, permissions, self.scheduler)
        self._services = self._make_connection_services(permissions, store_backpressure)
        self.queue_watch = QueueWatch(context, self.sessions)
        self.housekeeping = Housekeeping(context, life)
        upkeep = Upkeep(context, life, self.delayed, self.retained, self.pipeline)
        self._ticks = (
            self.registry.tick,
            self.logins.tick,
            self.share_groups.tick,
            upkeep.tick,
            self.sys_topics.tick,
            self.housekeeping.tick,
            self.queue_watch.tick,
            context.topic_counts.tick,
        )
        self._show_sizes()

    def connect(self, link: Link) -> Connection:
        """A connection over a link that is about to open."""
        return Connection(self.context, self._services, link)

    def load(self) -> Iterator[None]:
        """Restore everything from the store before the first connection, in steps, see ``restore``."""
        return restore(self.context, self.life, self.retained, self.delayed, self.access.bans)

    def tick(self) -> None:
        """Act on what time has brought; to be called every ``broker.connection.context.TICK_S``."""
        self.context.now_s = self.context.clock.monotonic_s()
        for tick in self._ticks:
            tick()

    # -- what changes --

    def set_stages(self, gates: Sequence[Gate], taps: Sequence[Tap]) -> None:
        """Use these gates and taps from the next message on."""
        self.plans.set_stages(gates, taps)

    def use_settings(self, settings: MqttSettings) -> None:
        """Have other settings; those of ``FIXED_SETTINGS`` must be as they were."""
        self.context.use(settings)
        self.retained.is_on = settings.retain_available
        self.plans.limit(settings.max_topic_levels, settings.max_topic_bytes)
        self.zones.use(settings)
        self.life.inbounds.max_bytes = settings.max_inbound_bytes_total
        self.life.inbounds.max_connected_bytes = settings.max_inbound_bytes_connected
        self.life.inbounds.forget_oldest()
        self.registry.renew_meters()

    # -- a message made while another is routed, a plan while routes change --

    def _publish(self, message: Message) -> Outcome:
        return self.pipeline.publish(message)

    def _forget(self, topic_filter: TopicFilter) -> None:
        self.plans.forget(topic_filter)

    def _forget_topics(self) -> None:
        self.plans.invalidate()
        self.registry.forget_permits()

    # -- construction --

    def _make_plans(self, settings: MqttSettings) -> Plans[Routes[Session]]:
        return Plans(
            self.router.routes, self.router.forget_routes, ClientTopics(self.rewrites, self.delayed),
            settings.max_cached_plans, settings.max_topic_levels, settings.max_topic_bytes,
            settings.max_cached_plan_bytes, self.router.watched,
        )  # fmt: skip

    def _make_services(self, settings: MqttSettings) -> SessionServices:
        context = self.context
        return SessionServices(
            clock=context.clock,
            changed=self.records.changed,
            moved=self.records.moved,
            refill=self.session_log.refill,
            defer=context.defer,
            crowded=self._backpressure.crowded,
            relieved=self._backpressure.relieved,
            on_event=SessionEvents(context.events).delivery,
            events=context.events,
            sent=context.figures.sent,
            dropped=context.figures.delivery_dropped,
            limits=SessionLimits.of(settings),
            resends=settings.retry_interval > 0,
            shed=self.dead_letters.take_shed,
            on_dropped=self.dead_letters.take if self.dead_letters.reasons else None,
            subscribed=context.subscribed,
        )

    def _make_connection_services(
        self, permissions: Permissions, store_backpressure: StoreBackpressure
    ) -> ConnectionServices:
        """What handles the packets of connections, by type, and the connections themselves."""
        context, life = self.context, self.life
        client_events, parking = ClientEvents(context, self.sys_topics), Parking(self.pipeline, context.metrics)
        self.registry = Connections(
            context,
            self.connections,
            holders=(parking, self.scheduler, self.logins, store_backpressure),
            life=life,
            client_events=client_events,
            publish_rates=self.publish_rates,
            access=self.access,
        )
        self.subscribing = Subscribing(
            context,
            life=life,
            permissions=permissions,
            rewrites=self.rewrites,
            sys_topics=self.sys_topics,
            scheduler=self.scheduler,
        )
        connecting = Connecting(
            context,
            access=self.access,
            logins=self.logins,
            permissions=permissions,
            subscribing=self.subscribing,
            client_events=client_events,
            life=life,
        )
        reader = PacketReader(
            context,
            publishing=Publishing(context, plans=self.plans, pipeline=self.pipeline, parking=parking, life=life),
            forwarding=Forwarding(context, self.plans, self.pipeline, self.dead_letters),
            acknowledgements=Acknowledgements(context, life),
            subscribing=self.subscribing,
            takers=connecting.takers,
            scheduler=self.scheduler,
        )
        return ConnectionServices(
            backpressure=self._backpressure,
            store_backpressure=store_backpressure,
            dropped=self.pipeline.dropped,
            read_first=connecting.read_first,
            read_packets=reader.read_packets,
            opened=self.registry.opened,
            ended=self.registry.ended,
        )

    def _show_sizes(self) -> None:
        """Gauges of how much there is of what clients have the broker keep, read when somebody asks for them."""
        context, life = self.context, self.life
        gauge = context.metrics.gauge
        gauge("connections", lambda: len(self.connections), "clients connected")
        gauge("sessions", lambda: len(self.sessions), "sessions, connected or away")
        gauge("subscriptions", lambda: self.router.subscription_count, "subscriptions of all sessions")
        gauge("subscription_bytes", lambda: context.subscribed.bytes, "memory of the subscriptions of all sessions")
        gauge("will_bytes", lambda: life.wills.size_bytes, "memory of the wills of all sessions")
        gauge("topic_alias_bytes", lambda: context.aliased.bytes, "topics behind the aliases that clients set")
        gauge(
            "user_property_bytes", lambda: context.greeted.bytes, "memory of the user properties of connected clients"
        )
        help = "memory of the records of what connected clients may send again"
        gauge("inbound_connected_bytes", lambda: life.inbounds.connected.bytes, help)
        gauge("inbound_bytes", lambda: life.inbounds.gone_bytes, "memory of what clients that are gone may send again")
        gauge("cached_plan_bytes", lambda: self.plans.size_bytes, "memory of the plans that are kept by topic")
        gauge("retained_messages", lambda: self.retained.count, "topics with a retained message")
        gauge("retained_bytes", lambda: self.retained.size_bytes, "bytes of retained messages with topics")
        gauge("retained_replays", lambda: len(self.replays), "subscriptions that retained messages are sent to")
