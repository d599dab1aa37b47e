"""Subscriptions of all sessions: each session, the router, share groups, replays and the store agree on it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from broker.auth.authorize import Withheld
from broker.connection.context import Context
from broker.connection.scheduler import MANY
from broker.connection.sessions.log import SessionLog
from broker.connection.sessions.records import SessionRecords
from broker.connection.sessions.retained_delivery import Replays
from broker.connection.sharing.groups import ShareGroups
from broker.core.subscription import Subscription
from broker.routing.router import Router
from broker.session.delivery import MayHave
from broker.session.session import Session


class SubscriptionRegistry:
    """The subscriptions of all sessions."""

    def __init__(
        self,
        context: Context,
        router: Router[Session],
        share_groups: ShareGroups,
        session_log: SessionLog,
        records: SessionRecords,
        replays: Replays,
    ) -> None:
        self._router = router
        self._share_groups = share_groups
        self._session_log = session_log
        self._records = records
        self._replays = replays
        self._scheduler = context.scheduler
        gauge = context.metrics.gauge
        gauge("subscriptions", lambda: router.subscription_count, "subscriptions of all sessions")
        help = "subscriptions of all sessions that are shared"
        gauge("shared_subscriptions", lambda: router.shared_subscription_count, help)

    @property
    def since_offset(self) -> int:
        """The offset in the session log from which a subscription holds that is made now."""
        return self._session_log.since_offset

    def add(self, session: Session, subscription: Subscription, is_new: bool) -> None:
        """Add a subscription to a session, or replace it."""
        session.subscriptions[subscription.filter.text] = subscription
        self._router.subscribe(session, subscription, is_new)

    def remove(self, session: Session, text: str) -> Subscription | None:
        """Remove a subscription by its text; None when there was none."""
        subscription: Subscription | None = session.subscriptions.pop(text, None)
        if subscription is not None:
            self._router.unsubscribe(session, subscription.filter)
            self._replays.forget(session, text)
        return subscription

    def changed(self, session: Session, given_up: Sequence[Subscription] = ()) -> bool:
        """Write the subscriptions of a durable session with the present commit group; returns whether there is
        something to write. ``given_up`` are those that were removed, or asked for QoS 1 or 2 and do no more."""
        session.subscriptions_changed(
            [item.filter for item in given_up if item.filter.share_group is None]
        )
        if session.is_durable:
            self._records.subscriptions_changed(session)
        return session.is_durable

    def send_retained(self, session: Session, subscription: Subscription) -> None:
        """Send the retained messages that a new subscription finds."""
        self._replays.start(session, subscription)

    def when_retained(self, session: Session, then: Callable[[], None]) -> bool:
        """Call a function once the first retained messages of other cells are on their way to a session with new
        subscriptions; False if none are waited for."""
        return self._replays.when_begun(session, then)

    def limit(self, session: Session, withheld: Withheld | None) -> None:
        """From now on a client gets no messages but what these rules leave it, None for all. Worked out with the routes
        of a topic, so that others' messages cost nothing; where the rules are what they were, routes stay."""
        if withheld == session.may_have:
            return
        session.may_have = withheld
        self._router.limit(session)
        self._router.regroup()
        if session.prediction is not None:
            session.prediction.upset()  # the record on disk predicts what goes by the rules of before
            self._records.changed(session)

    def version_changed(self, session: Session) -> None:
        """The session's client speaks another version of MQTT than before; routes are grouped by version."""
        if session.subscriptions:
            self._router.regroup()

    def resumed(self, session: Session, may_have: MayHave | None) -> None:
        """The session has a connection, and its CONNACK is sent: send what waits for it."""
        self._share_groups.here(session)
        session.resume(may_have)
        self._replays.resumed(session)

    def away(self, session: Session, *, for_good: bool = False) -> None:
        """The session's connection is lost, or the session ends: others get what it leaves in share groups."""
        self._share_groups.away(session, for_good=for_good)

    def ended(self, session: Session) -> None:
        """Forget all that a session had subscribed to."""
        subscriptions = list(session.subscriptions.values())
        session.subscriptions.clear()
        if len(subscriptions) > MANY:
            self._scheduler.run_in_background(self._router.leave(session, subscriptions))
        else:
            for subscription in subscriptions:
                self._router.unsubscribe(session, subscription.filter)
        session.may_have = None
        self._router.limit(session)
        self._replays.session_ended(session)

    def restored(self, session: Session) -> None:
        """Take the subscriptions of a session from the store."""
        for subscription in session.subscriptions.values():
            self._router.subscribe(session, subscription, is_new=True)
        self._share_groups.adopt(session)
