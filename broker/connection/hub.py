"""What all connections of a node share, and what happens to sessions whose connection is gone.

The hub owns sessions, routing, the pipeline and the session log, and acts when time passes. It knows no socket.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from logging import getLogger
from math import inf
from typing import TYPE_CHECKING, Final

from broker.auth.access import Access
from broker.auth.client_attributes import ClientAttributes
from broker.connection.admission import Admission
from broker.connection.authentication.expiry import Expiries
from broker.connection.authentication.permits import apply_rules, apply_users, close_banned
from broker.connection.authentication.waiting import WaitingLogins
from broker.connection.backlog import Backlog, Defer
from broker.connection.brake import Brake
from broker.connection.capabilities import MOST_QOS
from broker.connection.dead_letters import DeadLetters, DeadLetterSettings
from broker.connection.due import Due
from broker.connection.entrance import Entrance
from broker.connection.figures import Figures
from broker.connection.gauges import show_sizes
from broker.connection.housekeeping import Housekeeping
from broker.connection.parking import Parking
from broker.connection.publish_rate import Later, PublishRates
from broker.connection.queue_watch import QueueWatch
from broker.connection.replays import Replays
from broker.connection.restore import restore
from broker.connection.session_events import SessionEvents
from broker.connection.session_records import SessionRecords
from broker.connection.settings import MqttSettings
from broker.connection.sharing.losses import GroupLosses
from broker.connection.sharing.settings import SharedSettings
from broker.connection.sharing.shares import Shares
from broker.connection.sys_topics import SysTopics
from broker.connection.turns import MANY, Turns
from broker.connection.wills import Wills
from broker.connection.zone_settings import ZonesSettings
from broker.connection.zones import Zone, Zones
from broker.core.clock import Clock
from broker.core.events import Events
from broker.core.stage import Gate, Tap
from broker.core.subscription import Subscription
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
from broker.session import in_log, resending
from broker.session.inbound import Inbound
from broker.session.inbounds import Inbounds
from broker.session.outbox import Turn
from broker.session.registry import SessionRegistry
from broker.session.services import SessionServices
from broker.session.session import NEVER_S, Session
from broker.storage.store import LogShard
from broker.storage.writer import Writer

if TYPE_CHECKING:
    from broker.connection.connection import Connection

_log = getLogger(__name__)

_NS: Final = 1_000_000_000
_STALE_TICKS: Final = 240


class Hub:
    """What all connections of a node share.

    ``defer`` runs a callable in a later turn of the loop, ``later`` after some seconds, ``turn`` collects what it
    writes.
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
        self.settings, self.writer, self.events, self.clock = settings, writer, events, clock
        self.origin = ""
        """What the node is told apart from others by (``broker.core.origin``)."""
        self.access = access or Access.of(None, writer, metrics, clock)
        self.logins = WaitingLogins(metrics)
        self.expiries = Expiries(metrics)
        self.reauthenticating: set[Connection] = set()
        """Connected, and an exchange of AUTH is under way."""
        self.client_attributes = _client_attributes(settings, metrics)
        self.subscribed, self.aliased, self.greeted = Tally(), Tally(), Tally()
        """What clients have the broker keep: subscriptions, topics of aliases, user properties of their CONNECTs."""
        self.now_s = clock.monotonic_s()
        self.turn = Turn(lambda: defer(self.turn.flush))
        self.connections: set[Connection] = set()
        self.admission = Admission(settings.max_connections or inf)
        self.publish_rates = PublishRates(settings, clock, later, metrics)
        self.paused: set[Connection] = set()
        self.later = later
        self.turns = Turns(clock, defer)
        self.brake = Brake(settings.slow_subscriber_wait, later, metrics)
        self.sessions = SessionRegistry()
        self.inbounds = Inbounds(
            settings.max_inbound_bytes_total, settings.max_inbound_bytes_connected, self._forget_oldest_inbound, defer
        )
        self.shares = self._make_shares(shared or SharedSettings(), metrics, defer)
        self.router: Router[Session] = Router(self._keep, self._forget, self.shares)
        self.plans = self._make_plans()
        self.retained = Retained(writer, clock, retained)
        self.pipeline = self._make_pipeline(metrics)
        self.parking = Parking(self.pipeline, metrics)
        self.rewrites = Rewrites(self._forget_topics)
        self.automatic = AutoSubscriptions(metrics)
        self.delayed = self._make_delayed(metrics)
        self.figures = Figures(metrics, self.pipeline.dropped)
        self.session_events = SessionEvents(events)
        self.sys_topics = SysTopics(self, metrics, session_log)
        self.is_stopping = False
        self.restricts_publish = settings.maximum_qos < MOST_QOS or not settings.retain_available
        self.retained.is_on = settings.retain_available
        self.backlog = Backlog(writer, session_log, defer, metrics, settings.max_session_log_bytes)
        self.backlog.on_owed, self.backlog.on_settled = self.turns.owe, self.turns.settle
        self.replays = Replays(self.retained, self.backlog, writer, clock, defer, later, settings.max_queued_messages)
        self.wills = Wills(writer.put, self.pipeline.publish_for_client, clock)
        self.dead_letters = self._make_dead_letters(dead_letter or DeadLetterSettings(), metrics)
        watermark, every_s = settings.queue_high_watermark, settings.queue_watch_interval
        self.queue_watch = QueueWatch(self.sessions, metrics, watermark, every_s)
        self.records = SessionRecords(writer, self.backlog, self.shares.save, later)
        self.housekeeping = Housekeeping(self.sessions, self.inbounds, self.backlog, writer, self._forget_inbound)
        self.due = Due(self)
        self._ticks = 0
        self._services = self._make_services(defer)
        self.zones = Zones(zones, settings, self._services)
        self._introduce()
        show_sizes(self, metrics)

    def _introduce(self) -> None:
        """Tell the parts of each other where one is made before the other, and who is told of what."""
        access, pipeline, shares = self.access, self.pipeline, self.shares
        access.authorizer.on_change = lambda: apply_rules(self)
        access.bans.on_ban = lambda ban: close_banned(self, ban)
        if access.users is not None:
            access.users.on_change = lambda names: apply_users(self, names)
        if access.authorizer.settings.check_retain_source:
            self.replays.is_wanted = access.authorizer.may_retain
        shares.router = self.router
        shares.tell_of_losses(GroupLosses(self.events, self.dead_letters))
        pipeline.may_retain = self.retained.refusal
        pipeline.on_unwanted = self.dead_letters.take_unwanted
        Entrance(self.plans, self.rewrites, self.delayed)
        self.backlog.on_lost = self._take_back_offsets
        self.backlog.kept_from = shares.kept_from
        self.writer.on_relief(self._on_relief)

    def _make_plans(self) -> Plans[Routes[Session]]:
        settings, router = self.settings, self.router
        levels, size_bytes = settings.max_topic_levels, settings.max_topic_bytes
        max_plans, max_bytes = settings.max_cached_plans, settings.max_cached_plan_bytes
        return Plans(router.routes, router.forget_routes, max_plans, levels, size_bytes, max_bytes)

    def _make_pipeline(self, metrics: Metrics) -> Pipeline[Routes[Session]]:
        bounds = LaneBounds(self.settings.max_waiting_messages, self.settings.max_waiting_bytes)
        return Pipeline(self.plans, self.retained.retain, metrics, self.events, bounds)

    def _make_shares(self, settings: SharedSettings, metrics: Metrics, defer: Defer) -> Shares:
        return Shares(
            settings=settings,
            writer=self.writer,
            backlog=lambda: self.backlog,
            brake=self.brake,
            clock=self.clock,
            metrics=metrics,
            dropped=lambda why: self.figures.delivery_dropped(why),
            defer=defer,
        )

    def _make_delayed(self, metrics: Metrics) -> Delayed:
        return Delayed(
            settings=DelayedSettings(),
            writer=self.writer,
            clock=self.clock,
            metrics=metrics,
            publish=self.pipeline.publish,
            outcome_of_last=self.pipeline.lanes.outcome_of_last,
        )

    def _make_dead_letters(self, settings: DeadLetterSettings, metrics: Metrics) -> DeadLetters:
        return DeadLetters(
            settings,
            self.pipeline,
            self.backlog,
            self.clock,
            metrics,
            self.figures.delivery_dropped,
            self.pipeline.dropped,
        )

    def _make_services(self, defer: Defer) -> SessionServices:
        settings = self.settings
        return SessionServices(
            clock=self.clock,
            changed=self.records.changed,
            moved=self.records.moved,
            refill=self.backlog.refill,
            defer=defer,
            crowded=self.brake.crowded,
            relieved=self.brake.relieved,
            on_event=self.session_events.delivery,
            events=self.events,
            sent=self.figures.sent,
            dropped=self.figures.delivery_dropped,
            max_queue=settings.max_queued_messages,
            max_queue_bytes=settings.max_queued_bytes,
            max_late_bytes=settings.max_unsent_bytes,
            window=settings.max_inflight,
            resends=settings.retry_interval > 0,
            shed=self.dead_letters.take_shed,
            on_dropped=self.dead_letters.take if self.dead_letters.reasons else None,
            subscribed=self.subscribed,
        )

    # -- stages --

    def set_stages(self, gates: Sequence[Gate], taps: Sequence[Tap]) -> None:
        """Use these gates and taps from the next message on."""
        self.plans.set_stages(gates, taps)

    def _keep(self, *arguments: object) -> None:
        self.backlog.keep(*arguments)  # type: ignore[arg-type]  # the router is made before the backlog

    def _forget(self, topic_filter: TopicFilter) -> None:
        self.plans.forget(topic_filter)

    def _forget_topics(self) -> None:
        """What clients mean by a topic has changed: whether they may publish there is to be decided again."""
        self.plans.invalidate()
        for connection in self.connections:
            if connection.permits is not None:
                connection.permits.forget()

    def use_settings(self, settings: MqttSettings) -> None:
        """Have other settings; those of ``FIXED_SETTINGS`` must be as they were."""
        self.settings = settings
        self.restricts_publish = settings.maximum_qos < MOST_QOS or not settings.retain_available
        self.retained.is_on = settings.retain_available
        self.plans.limit(settings.max_topic_levels, settings.max_topic_bytes)
        self.zones.use(settings)
        self.brake.wait_s, self.backlog.max_bytes = settings.slow_subscriber_wait, settings.max_session_log_bytes
        self.inbounds.max_bytes = settings.max_inbound_bytes_total
        self.inbounds.max_connected_bytes = settings.max_inbound_bytes_connected
        self.inbounds.forget_oldest()
        self.queue_watch.use(settings.queue_high_watermark, settings.queue_watch_interval)
        self.publish_rates.settings = settings
        self.renew_meters()

    def renew_meters(self) -> None:
        """Measure what clients publish by the limits of this moment."""
        for connection in self.connections:
            connection.meter = self.publish_rates.meter(connection)

    # -- sessions --

    def load(self) -> Iterator[None]:
        """Restore everything from the store before the first connection, in steps, see ``restore``."""
        return restore(self, self._services)

    def new_session(self, client_id: str, *, is_durable: bool, zone: Zone | None = None) -> Session:
        """Begin a session, in place of the one there was; its zone is the default one where none is given."""
        old = self.sessions.get(client_id)
        if old is not None:
            self.end_session(old)
        zone = zone or self.zones.default
        session = Session(client_id, zone.services, is_durable=is_durable, next_offset=self.backlog.since_offset)
        session.zone = zone.name
        session.inbound = self.inbounds.get(client_id)
        if session.inbound is not None:
            session.inbound.restart()
            self.records.inbound_changed(client_id, session.inbound)
        self.sessions.add(session)
        return session

    def end_session(self, session: Session) -> None:
        """Forget a session; a will that waits for its delay is due now [MQTT-3.1.2-8]."""
        self.shares.away(session, for_good=True)
        session.is_ended = True
        session.drop_all("session_ended")
        self._end_subscriptions(session)
        session.may_have = None
        self.router.limit(session)
        self.sessions.remove(session)
        self.replays.session_ended(session)
        self.records.ended(session)
        if session.inbound is not None:
            session.inbound.restart()
            self.records.inbound_changed(session.client_id, session.inbound)
            self.inbounds.session_ended(session.client_id)
        if session.will_at_ns:
            self.wills.publish(session)

    def _end_subscriptions(self, session: Session) -> None:
        subscriptions = list(session.subscriptions.values())
        session.subscriptions.clear()
        if len(subscriptions) > MANY:
            self.turns.do(self.router.leave(session, subscriptions))
            return
        for subscription in subscriptions:
            self.router.unsubscribe(session, subscription.filter)

    def inbound_of(self, session: Session) -> Inbound:
        """The inbound state of a session's client identifier, made when first needed."""
        if session.inbound is None:
            session.inbound = self.inbounds.of_connected(session.client_id)
        return session.inbound

    def settle_inbound(self, session: Session) -> None:
        """The client said goodbye and nothing of what it sent waits for an answer: it will send none of it again."""
        inbound = session.inbound
        if inbound is not None and inbound.settle():
            self.records.inbound_changed(session.client_id, inbound)
            if not session.expiry_s:
                self.inbounds.pop(session.client_id, None)

    def subscriptions_changed(self, session: Session, given_up: Sequence[Subscription] = ()) -> None:
        """Write the subscriptions of a durable session with the commit group at hand; ``given_up`` are those that were
        removed, or asked for QoS 1 or 2 and do no more."""
        session.subscriptions_changed([item.filter for item in given_up if item.filter.share_group is None])
        if session.is_durable:
            self.records.subscriptions_changed(session)

    def detached(self, session: Session, *, is_will_due: bool) -> None:
        """A session's connection is gone: begin to count its life and its will's delay."""
        session.detach(self.backlog.log_next)
        now_ns = self.clock.now_ns()
        self._start_clocks(session, now_ns, is_will_due=is_will_due)
        if session.expiry_s == 0:
            self.end_session(session)
        else:
            self.shares.away(session)
            self.records.changed(session)
            self.sessions.schedule(session)
        self.inbounds.client_went(session.client_id)

    def cut_off(self, session: Session, now_ns: int) -> None:
        """A restored session's connection was cut off by the process's end: it has ended abnormally now."""
        session.maybe_sent_below = self.backlog.log_next
        self._start_clocks(session, now_ns, is_will_due=True)
        self.records.changed(session)
        self.sessions.schedule(session)

    def _start_clocks(self, session: Session, now_ns: int, *, is_will_due: bool) -> None:
        session.away_since_ns = now_ns
        session.ends_at_ns = 0 if session.expiry_s >= NEVER_S else now_ns + session.expiry_s * _NS
        will = session.will
        if will is None or not is_will_due:
            self.wills.forget(session)
        elif will.delay_s and session.expiry_s:
            session.will_at_ns = now_ns + min(will.delay_s, session.expiry_s) * _NS
        else:
            self.wills.publish(session)

    def _take_back_offsets(self, next_offset: int) -> None:
        """Records that were appended could not be stored: those that follow get their offsets."""
        for session in self.sessions:
            in_log.take_back_offsets(session, next_offset)
        self.shares.take_back_offsets(next_offset)

    # -- time --

    def tick(self) -> None:
        """Act on what time has brought: silent clients, wills, ends of sessions, trimming."""
        self.now_s = self.clock.monotonic_s()
        for connection in list(self.connections):
            if self.now_s > connection.deadline_s:
                connection.on_deadline()
        self.logins.tick(self.now_s)
        self.access.authenticators.tick()
        self.expiries.tick(self)
        for connection in list(self.reauthenticating):
            connection.on_tick()
        self.shares.tick(self.clock.now_ns())
        now_ns = self.clock.now_ns()
        self.due.act()
        self.due.publish_delayed()
        self.sys_topics.tick()
        self.due.sweep_retained()
        if self.settings.retry_interval:
            self._resend(now_ns - int(self.settings.retry_interval * _NS))
        if self.writer.failure is None:  # while the store is opened again it cannot be read
            self.housekeeping.tick(now_ns)
        self.queue_watch.tick(self.now_s)
        self._ticks += 1
        if self._ticks % _STALE_TICKS == 0:
            self.access.forget_old()
            for connection in self.connections:
                if connection.permits is not None:
                    connection.permits.forget_old(self.now_s)

    def _resend(self, sent_before_ns: int) -> None:
        for session in self.sessions:
            if session.window.inflight and not session.is_away:
                resending.resend(session, sent_before_ns)

    def _forget_inbound(self, client_id: str) -> None:
        del self.inbounds[client_id]
        self.records.forget_inbound(client_id)

    def _forget_oldest_inbound(self, client_id: str) -> None:
        """What a client that is gone published is forgotten, whether its session waits for it or not."""
        session = self.sessions.get(client_id)
        if session is not None:
            session.inbound = None
        self._forget_inbound(client_id)
        self.figures.inbounds_forgotten.value += 1

    def _on_relief(self) -> None:
        paused, self.paused = self.paused, set()
        for connection in paused:
            connection.let_go(self.writer)


def _client_attributes(settings: MqttSettings, metrics: Metrics) -> ClientAttributes:
    override = None if settings.clientid_override == "disabled" else settings.clientid_override
    return ClientAttributes(settings.client_attrs_init, metrics, override)
