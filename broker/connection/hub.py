"""What all connections of a node share, made in order: each part with those before it that it needs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import inf

from broker.auth.access import Access
from broker.auth.client_attributes import ClientAttributes
from broker.connection.acknowledge import Acknowledgements
from broker.connection.admission import Admission
from broker.connection.announce import Announcements
from broker.connection.authentication.expiry import Expiries
from broker.connection.authentication.logins import Logins
from broker.connection.authentication.permissions import AccessChanges, Permissions
from broker.connection.authentication.waiting import WaitingLogins
from broker.connection.backlog import Backlog
from broker.connection.brake import Brake, StoreBrake
from broker.connection.connect import Connecting
from broker.connection.connection import Connection, ConnectionServices
from broker.connection.connections import Connections
from broker.connection.dead_letters import DeadLetters, DeadLetterSettings
from broker.connection.entrance import Entrance
from broker.connection.figures import Figures
from broker.connection.housekeeping import Housekeeping
from broker.connection.link import Link
from broker.connection.parking import Parking
from broker.connection.publish import Publishing
from broker.connection.publish_rate import PublishRates
from broker.connection.queue_watch import QueueWatch
from broker.connection.reading import PacketReader
from broker.connection.replays import Replays
from broker.connection.restore import restore
from broker.connection.session_events import SessionEvents
from broker.connection.session_life import SessionLife
from broker.connection.session_records import SessionRecords
from broker.connection.settings import MqttSettings
from broker.connection.sharing.losses import GroupLosses
from broker.connection.sharing.settings import SharedSettings
from broker.connection.sharing.shares import Shares
from broker.connection.state import NodeState
from broker.connection.subscribe import Subscribing
from broker.connection.sys_topics import SysTopics
from broker.connection.turns import Turns
from broker.connection.upkeep import Upkeep
from broker.connection.wills import Wills
from broker.connection.zone_settings import ZonesSettings
from broker.connection.zones import Zones
from broker.core.clock import Clock, Defer, Later
from broker.core.events import Events
from broker.core.message import Message
from broker.core.stage import Gate, Outcome, Tap
from broker.core.tally import Tally
from broker.core.topic import TopicFilter
from broker.observe.metrics import Metrics
from broker.pipeline.lanes import LaneBounds
from broker.pipeline.pipeline import Pipeline
from broker.pipeline.plan import Plans
from broker.routing.automatic import AutoSubscriptions
from broker.routing.delayed import Delayed, DelayedSettings
from broker.routing.retained import Retained
from broker.routing.rewrite import Rewrites
from broker.routing.router import Router, Routes
from broker.routing.settings import RetainedSettings
from broker.routing.shared import ShareGroups
from broker.session.outbox import Turn
from broker.session.registry import SessionRegistry
from broker.session.session import Session, SessionServices
from broker.storage.store import LogShard
from broker.storage.writer import Writer


class Hub:
    """What all connections of a node share. ``defer`` runs a callable in a later turn of the loop, ``later`` after some
    seconds.

    Nothing below knows it: what is an attribute here is so for those above, who show and change what the node does.
    """

    def __init__(
        self,
        *,
        settings: MqttSettings,
        writer: Writer,
        session_log: LogShard,
        metrics: Metrics,
        events: Events,
        clock: Clock,
        defer: Defer,
        later: Later,
        access: Access | None = None,
        retained: RetainedSettings | None = None,
        dead_letter: DeadLetterSettings | None = None,
        shared: SharedSettings | None = None,
        zones: ZonesSettings | None = None,
    ) -> None:
        self.writer, self.clock = writer, clock
        self.state = state = NodeState(settings, clock)
        self.access = access or Access.of(None, writer, metrics, clock)
        self.admission = Admission(settings.max_connections or inf)
        self.figures = figures = Figures(metrics)
        self.connections: set[Connection] = set()
        self.turns = Turns(clock, defer)
        self._brake = Brake(settings.slow_subscriber_wait, later, metrics)
        self.sessions = SessionRegistry()
        self.backlog = Backlog(writer, session_log, defer, metrics, settings.max_session_log_bytes, self.turns)
        self.retained = Retained(writer, clock, retained)
        self.retained.is_on = settings.retain_available
        self.rewrites = Rewrites(self._forget_topics)
        self.delayed = Delayed(settings=DelayedSettings(), writer=writer, clock=clock, metrics=metrics)
        self.dead_letters = DeadLetters(
            dead_letter or DeadLetterSettings(),
            self._publish_dead_letter,
            self.backlog,
            clock,
            metrics,
            figures.delivery_dropped,
        )
        groups = ShareGroups(self._forget)
        self.shares = Shares(
            settings=shared or SharedSettings(),
            writer=writer,
            backlog=self.backlog,
            routed=groups,
            losses=GroupLosses(events, self.dead_letters),
            brake=self._brake,
            clock=clock,
            metrics=metrics,
            dropped=figures.delivery_dropped,
            defer=defer,
        )
        self.router: Router[Session] = Router(self.backlog.keep, self._forget, self.shares, groups)
        self.plans = self._make_plans(settings)
        self.pipeline: Pipeline[Routes[Session]] = Pipeline(
            self.plans,
            self.retained.retain,
            metrics,
            events,
            LaneBounds(settings.max_waiting_messages, settings.max_waiting_bytes),
            self.retained.refusal,
            self.dead_letters.take_unwanted,
        )
        self.records = SessionRecords(writer, self.backlog, self.shares.save, later)
        authorizer = self.access.authorizer
        self.replays = Replays(
            self.retained,
            self.backlog,
            writer,
            clock,
            defer,
            later,
            settings.max_queued_messages,
            authorizer.may_retain if authorizer.settings.check_retain_source else None,
        )
        subscribed, session_events = Tally(), SessionEvents(events)
        self.zones = Zones(zones, settings, self._make_services(settings, events, session_events, subscribed, defer))
        self.life = life = SessionLife(
            sessions=self.sessions,
            router=self.router,
            shares=self.shares,
            backlog=self.backlog,
            records=self.records,
            replays=self.replays,
            wills=Wills(writer.put, self.pipeline.publish_for_client, clock),
            zones=self.zones,
            turns=self.turns,
            writer=writer,
            clock=clock,
            defer=defer,
            inbound_bounds=(settings.max_inbound_bytes_total, settings.max_inbound_bytes_connected),
            forgotten=figures.inbounds_forgotten,
        )
        self.sys_topics = SysTopics(
            publisher=self.pipeline,
            plans=self.plans,
            life=life,
            connections=self.connections,
            retained=self.retained,
            figures=figures,
            metrics=metrics,
            clock=clock,
            state=state,
        )
        self.publish_rates = PublishRates(settings, figures, clock, later, metrics)
        permissions = Permissions(self.access, self.plans, life, events, figures, state)
        self.access.announce_to(AccessChanges(self.access, permissions, self.connections, life, self.turns))
        parking, waiting_logins = Parking(self.pipeline, metrics), WaitingLogins(metrics)
        expiries, store_brake = Expiries(state, clock, later, metrics), StoreBrake(writer)
        self.client_attributes = _client_attributes(settings, metrics)
        logins = Logins(
            access=self.access,
            permissions=permissions,
            waiting=waiting_logins,
            expiries=expiries,
            attributes=self.client_attributes,
            turns=self.turns,
            figures=figures,
            state=state,
        )
        announcements = Announcements(events, self.sys_topics, clock)
        self.registry = Connections(
            all=self.connections,
            parked_by=(parking, waiting_logins, self.turns),
            held_by=(logins, expiries, store_brake),
            life=life,
            announcements=announcements,
            publish_rates=self.publish_rates,
            access=self.access,
            figures=figures,
            state=state,
        )
        self.subscribing = Subscribing(
            life=life,
            permissions=permissions,
            rewrites=self.rewrites,
            sys_topics=self.sys_topics,
            turns=self.turns,
            writer=writer,
            events=events,
            session_events=session_events,
            figures=figures,
            subscribed=subscribed,
            state=state,
        )
        self.automatic = AutoSubscriptions(metrics)
        self.turn = Turn(defer)
        connecting = Connecting(
            access=self.access,
            logins=logins,
            waiting=waiting_logins,
            permissions=permissions,
            attributes=self.client_attributes,
            subscribing=self.subscribing,
            automatic=self.automatic,
            announcements=announcements,
            life=life,
            plans=self.plans,
            writer=writer,
            turn=self.turn,
            clock=clock,
            figures=figures,
            state=state,
        )
        publishing = Publishing(
            plans=self.plans,
            pipeline=self.pipeline,
            parking=parking,
            life=life,
            writer=writer,
            admission=self.admission,
            figures=figures,
            state=state,
        )
        reader = PacketReader(
            connecting=connecting,
            logins=logins,
            publishing=publishing,
            acknowledgements=Acknowledgements(life, figures),
            subscribing=self.subscribing,
            announcements=announcements,
            plans=self.plans,
            pipeline=self.pipeline,
            dead_letters=self.dead_letters,
            admission=self.admission,
            turns=self.turns,
            events=events,
            clock=clock,
            figures=figures,
            state=state,
        )
        self._services = ConnectionServices(
            state=state,
            clock=clock,
            later=later,
            writer=writer,
            turn=self.turn,
            brake=self._brake,
            store_brake=store_brake,
            admission=self.admission,
            figures=figures,
            dropped=self.pipeline.dropped,
            reader=reader,
            registry=self.registry,
        )
        watermark, every_s = settings.queue_high_watermark, settings.queue_watch_interval
        self.queue_watch = QueueWatch(self.sessions, metrics, watermark, every_s)
        self.housekeeping = Housekeeping(
            self.sessions, life.inbounds, self.backlog, writer, self.shares.kept_from, life.forget_inbound
        )
        self._upkeep = Upkeep(
            connections=self.registry,
            life=life,
            waiting_logins=waiting_logins,
            logins=logins,
            access=self.access,
            expiries=expiries,
            sys_topics=self.sys_topics,
            delayed=self.delayed,
            retained=self.retained,
            publisher=self.pipeline,
            housekeeping=self.housekeeping,
            queue_watch=self.queue_watch,
            writer=writer,
            clock=clock,
            later=later,
            state=state,
            expired=figures.sessions_expired,
        )
        self._show_sizes(metrics, subscribed)

    def connect(self, link: Link) -> Connection:
        """A connection over a link that is about to open."""
        return Connection(self._services, link)

    def load(self) -> Iterator[None]:
        """Restore everything from the store before the first connection, in steps, see ``restore``."""
        bans, store = self.access.bans, self.writer.store
        return restore(self.life, self.retained, self.delayed, bans, store, self.clock.now_ns)

    def tick(self) -> None:
        """Act on what time has brought; to be called every ``broker.connection.state.TICK_S``."""
        self._upkeep.tick()

    # -- what changes --

    def set_stages(self, gates: Sequence[Gate], taps: Sequence[Tap]) -> None:
        """Use these gates and taps from the next message on."""
        self.plans.set_stages(gates, taps)

    def use_settings(self, settings: MqttSettings) -> None:
        """Have other settings; those of ``FIXED_SETTINGS`` must be as they were."""
        self.state.use(settings)
        self.retained.is_on = settings.retain_available
        self.plans.limit(settings.max_topic_levels, settings.max_topic_bytes)
        self.zones.use(settings)
        self._brake.wait_s, self.backlog.max_bytes = settings.slow_subscriber_wait, settings.max_session_log_bytes
        self.life.inbounds.max_bytes = settings.max_inbound_bytes_total
        self.life.inbounds.max_connected_bytes = settings.max_inbound_bytes_connected
        self.life.inbounds.forget_oldest()
        self.queue_watch.use(settings.queue_high_watermark, settings.queue_watch_interval)
        self.publish_rates.settings = settings
        self.registry.renew_meters()

    # -- a message made while another is routed, a plan while routes change --

    def _publish_dead_letter(self, letter: Message) -> Outcome:
        return self.pipeline.publish(letter)

    def _forget(self, topic_filter: TopicFilter) -> None:
        self.plans.forget(topic_filter)

    def _forget_topics(self) -> None:
        self.plans.invalidate()
        self.registry.forget_permits()

    # -- making --

    def _make_plans(self, settings: MqttSettings) -> Plans[Routes[Session]]:
        return Plans(
            self.router.routes,
            self.router.forget_routes,
            Entrance(self.rewrites, self.delayed),
            settings.max_cached_plans,
            settings.max_topic_levels,
            settings.max_topic_bytes,
            settings.max_cached_plan_bytes,
        )

    def _make_services(
        self, settings: MqttSettings, events: Events, session_events: SessionEvents, subscribed: Tally, defer: Defer
    ) -> SessionServices:
        return SessionServices(
            clock=self.clock,
            changed=self.records.changed,
            moved=self.records.moved,
            refill=self.backlog.refill,
            defer=defer,
            crowded=self._brake.crowded,
            relieved=self._brake.relieved,
            on_event=session_events.delivery,
            events=events,
            sent=self.figures.sent,
            dropped=self.figures.delivery_dropped,
            max_queue=settings.max_queued_messages,
            max_queue_bytes=settings.max_queued_bytes,
            max_late_bytes=settings.max_unsent_bytes,
            window=settings.max_inflight,
            resends=settings.retry_interval > 0,
            shed=self.dead_letters.take_shed,
            on_dropped=self.dead_letters.take if self.dead_letters.reasons else None,
            subscribed=subscribed,
        )

    def _show_sizes(self, metrics: Metrics, subscribed: Tally) -> None:
        """Gauges of how much there is of what clients have the broker keep, read when somebody asks for them."""
        gauge, state, life = metrics.gauge, self.state, self.life
        gauge("connections", lambda: len(self.connections), "clients connected")
        gauge("sessions", lambda: len(self.sessions), "sessions, connected or away")
        gauge("subscriptions", lambda: self.router.subscription_count, "subscriptions of all sessions")
        gauge("subscription_bytes", lambda: subscribed.bytes, "memory of the subscriptions of all sessions")
        gauge("will_bytes", lambda: life.wills.size_bytes, "memory of the wills of all sessions")
        gauge("topic_alias_bytes", lambda: state.aliased.bytes, "topics behind the aliases that clients set")
        gauge("user_property_bytes", lambda: state.greeted.bytes, "memory of the user properties of connected clients")
        help = "memory of the records of what connected clients may send again"
        gauge("inbound_connected_bytes", lambda: life.inbounds.connected.bytes, help)
        gauge("inbound_bytes", lambda: life.inbounds.gone_bytes, "memory of what clients that are gone may send again")
        gauge("cached_plan_bytes", lambda: self.plans.size_bytes, "memory of the plans that are kept by topic")
        gauge("retained_messages", lambda: self.retained.count, "topics with a retained message")
        gauge("retained_bytes", lambda: self.retained.size_bytes, "bytes of retained messages with topics")
        gauge("retained_replays", lambda: len(self.replays), "subscriptions that retained messages are sent to")


def _client_attributes(settings: MqttSettings, metrics: Metrics) -> ClientAttributes:
    override = None if settings.clientid_override == "disabled" else settings.clientid_override
    return ClientAttributes(settings.client_attrs_init, metrics, override)
