"""What one connection may publish and subscribe to, remembered per topic.

A client that nothing restricts has no permits, and its publishes are looked at as if there were no rules. For others
the verdicts stand in front of the cache of plans: a topic that is allowed leads to its plan, one that is denied to a
plan with a single gate, which refuses. So a denial is counted, answered and told like that of any other stage.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence, Set
from dataclasses import replace
from typing import TYPE_CHECKING, Final, cast

from broker.auth.authorize import Ruling, Rulings, Withheld, is_wide
from broker.auth.bans import Ban
from broker.auth.rules import publish_kind
from broker.connection import close
from broker.core import reason
from broker.core.client import Client
from broker.core.errors import PeerError
from broker.core.message import Message
from broker.core.stage import Refusal
from broker.core.topic import TopicFilter, undelayed
from broker.observe.log import get_logger
from broker.pipeline.plan import MAX_CACHED_TOPIC_BYTES, Kind, Plans, TopicPlan
from broker.routing.router import Routes
from broker.session.delivery import MayHave
from broker.session.session import Session
from broker.session.will import Will

if TYPE_CHECKING:
    from broker.connection.connection import Connection
    from broker.connection.hub import Hub

log = get_logger(__name__)

SessionPlan = TopicPlan[Routes[Session]]
SessionRoutes = Routes[Session]
SessionKind = Kind[SessionRoutes]

FindPlan = Callable[[bytes], SessionPlan | None]
FindKind = Callable[[bytes], SessionKind | None]

EVENT: Final = "client.check_authz_complete"
_KINDS: Final = 8
_TEXT: Final = "the client may not publish this"


class Permits:
    """The verdicts of one connection. ``max_size`` topics are remembered, for ``ttl_s`` seconds."""

    __slots__ = (
        "_client",
        "_deny",
        "_events",
        "_expires_s",
        "_heads",
        "_max_size",
        "_plans",
        "_ttl_s",
        "_verdicts",
        "find",
        "find_kind",
        "find_qos1",
        "rulings",
    )  # fmt: skip

    def __init__(self, hub: Hub, client: Client, rulings: Rulings) -> None:
        settings = hub.access.authorizer.settings
        self.rulings = rulings
        self._client, self._events = client, hub.events
        self._plans: Plans[SessionRoutes] = hub.plans
        self._max_size, self._ttl_s = settings.cache.max_size, settings.cache.ttl
        self._expires_s = hub.now_s + self._ttl_s
        self._verdicts: list[dict[bytes, SessionPlan]] = [{} for _ in range(_KINDS)]
        """By kind of publish: the plan that refuses, ``_ALLOWED`` where the topic's own plan holds."""
        self._heads: set[bytes] = set()
        """Of QoS 0 publishes that are allowed."""
        by_topic = hub.plans.by_topic.get
        self.find = _finder(self._verdicts[0].get, by_topic)
        """The plan for a QoS 0 publish that is not retained, None when ``plan`` has to look."""
        self.find_kind = _kind_finder(self._heads, hub.plans.by_head.get)
        """The kind of such a publish by its head where nothing but routing is done with it, None when ``find`` has to
        look."""
        self.find_qos1 = _finder(self._verdicts[publish_kind(1, retain=False)].get, by_topic)
        """As ``find``, with QoS 1."""
        self._deny = Refusal(
            "authorization",
            "authorization",
            "not_authorized",
            reason.NOT_AUTHORIZED,
            _TEXT,
            disconnect=settings.deny_action == "disconnect",
        )

    # -- publish --

    @property
    def is_watched(self) -> bool:
        """Whether somebody wants to hear of every decision: then none is made out of sight."""
        return EVENT in self._events.wanted

    def plan(self, topic: bytes, first: int) -> SessionPlan:
        """The plan for a PUBLISH with this topic and first byte.

        Raises:
            PeerError: as ``Plans.plan``.
        """
        verdicts = self._verdicts[first & 7]
        verdict = verdicts.get(topic)
        if verdict is None or self.is_watched:
            verdict = self._decide(topic, first >> 1 & 3, retain=first & 1 == 1)
            if len(topic) > MAX_CACHED_TOPIC_BYTES:
                return self._plans.plan(topic) if verdict is _ALLOWED else verdict
            if len(verdicts) >= self._max_size and topic not in verdicts:
                del verdicts[next(iter(verdicts))]
            verdicts[topic] = verdict
        return self._plans.plan(topic) if verdict is _ALLOWED else verdict

    def remember_head(self, head: bytes) -> None:
        """QoS 0 publishes that begin with this are allowed."""
        if len(head) > MAX_CACHED_TOPIC_BYTES:
            return
        if len(self._heads) >= self._max_size:
            self._heads.clear()
        self._heads.add(head)

    def _decide(self, topic: bytes, qos: int, *, retain: bool) -> SessionPlan:
        meant = self._plans.meant(topic, self._client)
        ruling = self.rulings.publish(undelayed(meant), qos, retain)
        self.announce(ruling, "publish", meant)
        if ruling.is_allowed:
            return _ALLOWED
        deny = self._deny

        def refuse(_message: Message) -> Refusal:
            return deny

        return TopicPlan(topic.decode(), topic, (("authorization", refuse),), (), _NOWHERE)

    def may_leave(self, will: Will) -> bool:
        """Whether the client may publish its will."""
        ruling = self.rulings.publish(undelayed(will.topic), will.qos, will.retain)
        self.announce(ruling, "publish", will.topic)
        return ruling.is_allowed

    # -- subscribe --

    def check_subscribe(self, topic_filter: TopicFilter, qos: int) -> bool:
        """Raise ``PeerError`` 0x87 when the client may not subscribe to this.

        Returns:
            Whether messages on some of its topics are to be withheld.
        """
        ruling = self.rulings.subscribe(topic_filter, qos)
        self.announce(ruling, "subscribe", topic_filter.text)
        if not ruling.is_allowed:
            raise PeerError(reason.NOT_AUTHORIZED, "the client may not subscribe to this")
        return bool(ruling.withheld)

    # -- delivery --

    def may_have(self, session: Session) -> MayHave:
        """Whether the client may have messages that were on their way to it before its rules were these."""
        rulings, decide = self.rulings, self.rulings.withheld.decide

        def may_have(topic: str, qos: int) -> bool:
            found = decide(topic, qos)
            if found is None:  # then by a subscription that it may have
                return rulings.allows_the_rest or any(session.subscriptions.matching(topic))
            return found

        return may_have

    # -- all --

    def announce(self, ruling: Ruling, action: str, topic: str) -> None:
        """Tell those who want to know what was decided."""
        if not self.is_watched:
            return
        client = self._client
        columns = {
            "clientid": client.client_id,
            "username": client.username,
            "peerhost": client.peer_host,
            "peername": client.peer_name,
            "topic": topic,
            "action": action,
            "authz_source": ruling.source,
            "result": ruling.result,
            "client_attrs": dict(client.attributes),
        }
        self._events.emit(EVENT, columns)

    def forget_old(self, now_s: float) -> None:
        """Forget everything once it is older than it may be."""
        if now_s > self._expires_s:
            self._expires_s = now_s + self._ttl_s
            self.forget()

    def forget(self) -> None:
        """Forget everything that was decided."""
        self._heads.clear()
        for verdicts in self._verdicts:
            verdicts.clear()


_NOWHERE: Final = SessionRoutes((), (), lambda outgoing, targets, is_addressed: None)
_ALLOWED: Final = TopicPlan("", b"", (), (), _NOWHERE)
"""Stands for the topic's own plan, which may be made anew while the verdict holds."""


def _finder(verdict_of: FindPlan, plan_of: FindPlan) -> FindPlan:
    """Two dictionaries behind one call: some 70 ns a message, where a method took 200."""

    def find(topic: bytes) -> SessionPlan | None:
        verdict = verdict_of(topic)
        return plan_of(topic) if verdict is _ALLOWED else verdict

    return find


def _kind_finder(allowed: Set[bytes], kind_of: FindKind) -> FindKind:
    def find_kind(head: bytes) -> SessionKind | None:
        return kind_of(head) if head in allowed else None

    return find_kind


def finders(c: Connection) -> tuple[FindPlan, FindPlan, FindKind]:
    """How a connection's reads find the plans of QoS 0 and QoS 1 publishes by topic, and the kind of a QoS 0 publish by
    its head."""
    permits, plans = c.permits, c.hub.plans
    if permits is None:
        return plans.by_topic.get, plans.by_topic.get, plans.by_head.get
    return permits.find, permits.find_qos1, permits.find_kind


def remember_head(c: Connection, head: bytes, routes: SessionRoutes, size: int) -> SessionKind:
    """QoS 0 publishes of a client that begin with these bytes have nothing to them but these routes and this size."""
    if c.permits is not None:
        c.permits.remember_head(head)
    return c.hub.plans.remember_head(head, routes, size)


def grant(c: Connection, client: Client) -> None:
    """Give a connection its permits, by the rules of this moment."""
    assert c.subject is not None  # it was let in
    c.permits = _permits(c, client) if c.hub.access.authorizer.restricts(c.subject) else None


def _permits(c: Connection, client: Client) -> Permits:
    assert c.subject is not None
    return Permits(c.hub, client, c.hub.access.authorizer.rulings(c.subject))


def check_filter(c: Connection, topic_filter: TopicFilter, qos: int) -> None:
    """Raise ``PeerError`` 0x87 when a client may not subscribe to this."""
    permits = c.permits
    if permits is None and is_wide(topic_filter):
        permits = _permits(c, c.client)
    if permits is not None and permits.check_subscribe(topic_filter, qos):
        c.hub.figures.subscriptions_filtered.value += 1
        _limit_deliveries(c, permits.rulings.withheld)


def _limit_deliveries(c: Connection, withheld: Withheld | None) -> None:
    """From now on a client gets no messages but what these rules leave it, None for all. Worked out with the routes of
    a topic, so that others' messages cost nothing; where the rules are what they were, routes stay."""
    session, hub = c.session, c.hub
    if withheld == session.may_have:
        return
    session.may_have = withheld
    hub.router.limit(session)
    hub.plans.invalidate()
    if session.foretelling is not None:
        session.foretelling.upset()  # the record on disk foretells what goes by the rules of before
        hub.records.changed(session)


def closes_on_denial(c: Connection) -> bool:
    """Whether a client that asks for what it may not have loses its connection."""
    return c.hub.access.authorizer.settings.deny_action == "disconnect"


def recheck(c: Connection) -> None:
    """Take from a client what it may not have any more: subscriptions, its will."""
    permits, session = c.permits, c.session
    if permits is None:
        if not any(is_wide(subscription.filter) for subscription in session.subscriptions.values()):
            _limit_deliveries(c, None)
            return
        permits = _permits(c, c.client)
    if session.will is not None and not permits.may_leave(session.will):
        c.hub.wills.forget(session)
    lost, is_part_withheld = [], False
    for subscription in session.subscriptions.values():
        ruling = permits.rulings.subscribe(subscription.filter, subscription.qos)
        is_part_withheld = is_part_withheld or bool(ruling.withheld)
        if not ruling.is_allowed:
            lost.append(subscription)
    _limit_deliveries(c, permits.rulings.withheld if is_part_withheld else None)
    for subscription in lost:
        del session.subscriptions[subscription.filter.text]
        c.hub.router.unsubscribe(session, subscription.filter)
        c.hub.replays.forget(session, subscription.filter.text)
    if lost:
        c.hub.subscriptions_changed(session, lost)
    session.withhold(permits.may_have(session))
    if not lost:
        return
    c.hub.figures.subscriptions_revoked.value += len(lost)
    log.warning("subscriptions.revoked", client_id=session.client_id, filters=[one.filter.text for one in lost[:20]])
    if closes_on_denial(c):
        close.disconnect(c, reason.NOT_AUTHORIZED, "not_authorized")


def apply_rules(hub: Hub) -> None:
    """Rules have changed: let them count for everybody who is connected.

    For what is published from now on they count at once. What clients have already, subscriptions and wills, is looked
    at over some turns of the loop: 10,000 clients would hold it for a second.
    """
    connected = [c for c in hub.connections if c.is_connected and not c.is_closed]
    for c in connected:
        grant(c, c.client)
    hub.turns.do(_recheck(connected))


def _recheck(connected: Sequence[Connection]) -> Iterator[None]:
    for c in connected:
        if not c.is_closed:
            recheck(c)
        yield


def apply_users(hub: Hub, names: Collection[str]) -> None:
    """Users were deleted or changed: let that count for those who are connected as them."""
    hub.turns.do(_apply_users([c for c in hub.connections if c.account is not None and c.account.name in names]))


def _apply_users(connections: Sequence[Connection]) -> Iterator[None]:
    for c in connections:
        if c.is_connected and not c.is_closed:  # one that waits to be accepted is looked at then
            _apply_user(c)
        yield


def _apply_user(c: Connection) -> None:
    account, users = c.account, c.hub.access.users
    assert account is not None
    assert users is not None
    assert c.subject is not None
    user = users.find(account.name)
    if user is None or not user.logs_in_like(account):
        what = "was deleted" if user is None else "has another password or client identifier"
        close.disconnect(c, reason.NOT_AUTHORIZED, "user_changed", text=f"the user {what}")
        return
    c.account = user
    if c.subject.is_superuser != user.is_superuser:
        c.subject = replace(c.subject, is_superuser=user.is_superuser)
        grant(c, c.client)
        recheck(c)


def close_banned(hub: Hub, ban: Ban) -> None:
    """Somebody was banned: close the connections that it is about. That of one client identifier at once, others are
    looked for over some turns of the loop."""
    if ban.kind != "clientid":
        hub.turns.do(_close_banned(hub))
        return
    session = hub.sessions.get(ban.who)
    if session is not None and session.owner is not None:
        _close_if_banned(cast("Connection", session.owner))


def _close_banned(hub: Hub) -> Iterator[None]:
    for c in list(hub.connections):
        _close_if_banned(c)
        yield


def _close_if_banned(c: Connection) -> None:
    if c.is_connected and not c.is_closed and c.hub.access.bans.of(c.client) is not None:
        close.disconnect(c, reason.ADMINISTRATIVE_ACTION, "banned")
