"""Life of sessions: they begin, continue with another connection, wait without one and end."""

from __future__ import annotations

from typing import Final

from broker.connection.context import AT_ONCE, Context
from broker.connection.sessions.inbounds import StoredInbounds
from broker.connection.sessions.log import SessionLog
from broker.connection.sessions.records import SessionRecords
from broker.connection.sessions.stored_wills import Wills
from broker.connection.sessions.subscriptions import SubscriptionRegistry
from broker.connection.sessions.zones import Zone
from broker.core.client import Client
from broker.session import backlog, sending
from broker.session.delivery import MayHave
from broker.session.log_queue import LostRecords
from broker.session.outbox import Outbox
from broker.session.registry import SessionRegistry
from broker.session.session import Session
from broker.session.state import NEVER_S, Owner
from broker.session.will import Will

_NS: Final = 1_000_000_000


class SessionLife:
    """The life of sessions."""

    def __init__(
        self,
        context: Context,
        sessions: SessionRegistry,
        session_log: SessionLog,
        records: SessionRecords,
        subscriptions: SubscriptionRegistry,
        inbounds: StoredInbounds,
        wills: Wills,
    ) -> None:
        self.sessions = sessions
        self._session_log = session_log
        self._records = records
        self._subscriptions = subscriptions
        self._inbounds = inbounds
        self._wills = wills
        self._context = context
        self._clock = context.clock
        context.metrics.gauge("sessions", lambda: len(sessions), "sessions, connected or away")
        session_log.when_lost(self._take_back_offsets)

    def check_room(self, client_id: str, will: Will | None) -> None:
        """Refuse a client for whose session or will there is no room. Raises ``PeerError`` 0x97."""
        settings = self._context.settings
        over_limit = self._context.figures.over_limit
        old = self.sessions.get(client_id)
        if old is None and len(self.sessions) >= settings.max_sessions:
            raise over_limit(
                "max_sessions", f"there are {settings.max_sessions} sessions, the maximum"
            )
        if will is None:
            return
        kept = self._wills.size_bytes - (
            0 if old is None or old.will is None else old.will.size_bytes
        )
        if kept + will.size_bytes > (most := settings.max_will_bytes_total):
            raise over_limit(
                "max_will_bytes_total", f"the wills of all clients have {most} bytes, the maximum"
            )

    def new_session(self, client_id: str, zone: Zone, *, is_durable: bool) -> Session:
        """Begin a session, in place of the one there was."""
        old = self.sessions.get(client_id)
        if old is not None:
            self.end_session(old)
        session = Session(
            client_id,
            zone.services,
            is_durable=is_durable,
            next_offset=self._session_log.since_offset,
        )
        session.zone = zone.name
        self._inbounds.session_began(session)
        self.sessions.add(session)
        return session

    def attach(
        self, session: Session, owner: Owner, client: Client, box: Outbox, will: Will | None,
        receive_maximum: int, max_packet_bytes: int,
    ) -> None:  # fmt: skip
        """A connection takes a session, with its will; ``resume`` follows."""
        self._wills.keep(session, will)
        was_v5 = session.is_v5
        session.attach(owner, client, box, receive_maximum, max_packet_bytes)
        self._inbounds.client_came(session.client_id)
        if was_v5 != session.is_v5:
            self._subscriptions.version_changed(session)
        self._records.changed(session)

    def load_inflight(self, session: Session) -> None:
        """Fetch what a restart left of deliveries in flight. Raises what the store raises."""
        self._session_log.load_inflight(session)

    def resume(self, session: Session, may_have: MayHave | None) -> None:
        """The CONNACK is sent: send what waits for the session."""
        self._subscriptions.resumed(session, may_have)

    def end_session(self, session: Session) -> None:
        """Forget a session; a will that waits for its delay is due now [MQTT-3.1.2-8]."""
        self._subscriptions.away(session, for_good=True)
        session.is_ended = True
        session.drop_all("session_ended")
        self._subscriptions.ended(session)
        self.sessions.remove(session)
        self._records.ended(session)
        self._inbounds.session_ended(session)
        if session.will_at_ns:
            self._wills.publish(session)

    def detached(self, session: Session, *, is_will_due: bool) -> None:
        """A session's connection is gone: begin to count its life and its will's delay."""
        session.detach(self._session_log.log_next)
        now_ns = self._clock.now_ns()
        self._start_clocks(session, now_ns, is_will_due=is_will_due)
        if session.expiry_s == 0:
            self.end_session(session)
        else:
            self._subscriptions.away(session)
            self._records.changed(session)
            self.sessions.schedule(session)
        self._inbounds.client_went(session.client_id)

    def restored(self, session: Session, will: Will | None) -> None:
        """Take a session from the store, and its will."""
        self.sessions.add(session)
        session.inbound = self._inbounds.get(session.client_id)
        self._subscriptions.restored(session)
        if will is not None:
            self._wills.restored(session, will)
        elif session.will is not None:
            self._wills.keep(session, session.will)  # from a record that held it
        self.sessions.schedule(session)

    def cut_off(self, session: Session, now_ns: int) -> None:
        """A restored session's connection was cut off by the process's end: it has ended abnormally now."""
        session.maybe_sent_below = self._session_log.log_next
        self._start_clocks(session, now_ns, is_will_due=True)
        self._records.changed(session)
        self.sessions.schedule(session)

    def _start_clocks(self, session: Session, now_ns: int, *, is_will_due: bool) -> None:
        session.away_since_ns = now_ns
        session.ends_at_ns = 0 if session.expiry_s >= NEVER_S else now_ns + session.expiry_s * _NS
        will = session.will
        if will is None or not is_will_due:
            self._wills.forget(session)
        elif will.delay_s and session.expiry_s:
            session.will_at_ns = now_ns + min(will.delay_s, session.expiry_s) * _NS
        else:
            self._wills.publish(session)

    def tick(self) -> None:
        """Publish the wills and end the sessions whose time has come, a part in each turn of the loop; send again what
        3.1.1 clients have not acknowledged, where the settings say so."""
        self._end_due()
        retry_interval = self._context.settings.retry_interval
        if retry_interval:
            sent_before_ns = self._clock.now_ns() - int(retry_interval * _NS)
            for session in self.sessions:
                if session.window.inflight and not session.is_away:
                    sending.resend(session, sent_before_ns)

    def _end_due(self) -> None:
        now_ns = self._clock.now_ns()
        due = self.sessions.take_due(now_ns, AT_ONCE)
        for session in due:
            if session.will_at_ns and session.will_at_ns <= now_ns:
                self._wills.publish(session)
                self._records.changed(session)
            if session.ends_at_ns and session.ends_at_ns <= now_ns:
                self._context.figures.sessions_expired.value += 1
                self.end_session(session)
        if len(due) == AT_ONCE and not self._context.is_stopping:
            self._context.later(0, self._end_due)

    def _take_back_offsets(self, lost: LostRecords) -> None:
        for session in self.sessions:
            if backlog.take_back_offsets(session, lost):
                self._records.subscriptions_changed(session)
