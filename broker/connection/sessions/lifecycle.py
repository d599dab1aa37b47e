"""How sessions begin, go on with another connection, are left alone and end; and what of each is written."""

from __future__ import annotations

from collections.abc import Sequence
from logging import getLogger
from typing import Final

from broker.codec.outgoing import Outgoing
from broker.connection.context import Context
from broker.connection.scheduler import MANY, Scheduler
from broker.connection.sessions.log import SessionLog
from broker.connection.sessions.records import SessionRecords
from broker.connection.sessions.replays import Replays
from broker.connection.sessions.wills import Wills
from broker.connection.sessions.zones import Zone, Zones
from broker.connection.sharing.groups import ShareGroups
from broker.core.subscription import Subscription
from broker.routing.router import Router, Target
from broker.session import backlog
from broker.session.delivery import Delivery
from broker.session.inbound import Inbound, Inbounds
from broker.session.registry import SessionRegistry
from broker.session.session import Session
from broker.session.state import NEVER_S

_log = getLogger(__name__)

_NS: Final = 1_000_000_000


class SessionLife:
    """The life of sessions."""

    def __init__(
        self,
        context: Context,
        *,
        router: Router[Session],
        share_groups: ShareGroups,
        session_log: SessionLog,
        records: SessionRecords,
        replays: Replays,
        wills: Wills,
        zones: Zones,
        scheduler: Scheduler,
    ) -> None:
        self.sessions = SessionRegistry()
        self.router, self.share_groups, self.session_log = router, share_groups, session_log
        self.records, self.replays, self.wills, self.zones = records, replays, wills, zones
        settings = context.settings
        self.inbounds = Inbounds(
            settings.max_inbound_bytes_total,
            settings.max_inbound_bytes_connected,
            self._forget_oldest_inbound,
            context.defer,
        )
        self._scheduler, self._writer, self._clock = scheduler, context.writer, context.clock
        self._forgotten = context.figures.inbounds_forgotten
        session_log.when_lost(self._take_back_offsets)

    def new_session(self, client_id: str, *, is_durable: bool, zone: Zone | None = None) -> Session:
        """Begin a session, in place of the one there was; its zone is the default one where none is given."""
        old = self.sessions.get(client_id)
        if old is not None:
            self.end_session(old)
        zone = zone or self.zones.default
        session = Session(client_id, zone.services, is_durable=is_durable, next_offset=self.session_log.since_offset)
        session.zone = zone.name
        session.inbound = self.inbounds.get(client_id)
        if session.inbound is not None:
            session.inbound.restart()
            self.records.inbound_changed(client_id, session.inbound)
        self.sessions.add(session)
        return session

    def end_session(self, session: Session) -> None:
        """Forget a session; a will that waits for its delay is due now [MQTT-3.1.2-8]."""
        self.share_groups.away(session, for_good=True)
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
            self._scheduler.run_in_background(self.router.leave(session, subscriptions))
            return
        for subscription in subscriptions:
            self.router.unsubscribe(session, subscription.filter)

    def inbound_of(self, session: Session) -> Inbound:
        """The inbound state of a session's client identifier, made when first needed."""
        if session.inbound is None:
            session.inbound = self.inbounds.of_connected(session.client_id)
        return session.inbound

    def settle_inbound(self, session: Session) -> None:
        """The client disconnected with everything acknowledged: it will not resend anything."""
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
        session.detach(self.session_log.log_next)
        now_ns = self._clock.now_ns()
        self._start_clocks(session, now_ns, is_will_due=is_will_due)
        if session.expiry_s == 0:
            self.end_session(session)
        else:
            self.share_groups.away(session)
            self.records.changed(session)
            self.sessions.schedule(session)
        self.inbounds.client_went(session.client_id)

    def cut_off(self, session: Session, now_ns: int) -> None:
        """A restored session's connection was cut off by the process's end: it has ended abnormally now."""
        session.maybe_sent_below = self.session_log.log_next
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
            backlog.take_back_offsets(session, next_offset)
        self.share_groups.take_back_offsets(next_offset)

    def forget_inbound(self, client_id: str) -> None:
        """What a client sent is forgotten: a resend of it is taken as new."""
        del self.inbounds[client_id]
        self.records.forget_inbound(client_id)

    def _forget_oldest_inbound(self, client_id: str) -> None:
        """What a client that is gone published is forgotten, whether its session waits for it or not."""
        session = self.sessions.get(client_id)
        if session is not None:
            session.inbound = None
        self.forget_inbound(client_id)
        self._forgotten.value += 1

    def settle(self, session: Session, zone: Zone, *, is_to_last: bool) -> None:
        """A session continues with a connection in this zone; one in memory that ``is_to_last`` goes to disk with it
        where the zone keeps its sessions there."""
        session.enter_zone(zone.name, zone.services)
        if zone.keeps_on_disk and is_to_last and not session.is_durable and self.share_groups.may_be_durable(session):
            self._to_disk(session)

    def _to_disk(self, session: Session) -> None:
        """Write all of a session in memory with the commit group at hand; when that fails it is in memory as before."""
        session_log = self.session_log
        log = "session.moved_to_disk client_id=%s zone=%s inflight=%d queued=%d"
        _log.info(log, session.client_id, session.zone, len(session.window.inflight), len(session.queue))
        self.share_groups.part_with(session)
        flying, waiting = backlog.enter(session, session_log.since_offset)
        for delivery in [*flying, *waiting]:
            session_log.keep(_addressed(delivery), [_target(session, delivery)], True)

        def stored(error: BaseException | None) -> None:
            if error is not None and not session.is_ended:
                backlog.leave(session, waiting)

        self._writer.when_committed(stored)
        self.share_groups.member_is_durable(session)
        self.records.subscriptions_changed(session)
        if session.inbound is not None:
            self.records.inbound_changed(session.client_id, session.inbound)


def _addressed(delivery: Delivery) -> Outgoing:
    """As the session is to get it, since a record with an addressee is sent unchanged."""
    assert delivery.outgoing is not None
    message = delivery.outgoing.message
    return Outgoing(message.changed(message.topic, message.payload, delivery.qos, delivery.retain, message.properties))


def _target(session: Session, delivery: Delivery) -> Target[Session]:
    return Target(session, delivery.qos, delivery.retain, delivery.identifiers)
