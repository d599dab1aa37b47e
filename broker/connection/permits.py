"""Topics that one connection may publish and subscribe to, remembered per topic.

A client that nothing restricts has no permits, and its publishes are treated as if there were no rules. For others
the verdicts come before the cache of plans: a topic that is allowed leads to its plan, one that is denied to a
plan with a single gate, which refuses. So a denial is counted, answered and reported like that of any other stage.
"""

from __future__ import annotations

from collections.abc import Callable, Set
from typing import Final

from broker.auth.access import Access
from broker.auth.authorize import AuthorizationSettings, Ruling, Rulings
from broker.auth.backends.source import Unanswered
from broker.auth.rules import publish_kind
from broker.core import reason
from broker.core.client import Client
from broker.core.errors import PeerError
from broker.core.events import Events
from broker.core.message import Message
from broker.core.stage import Outcome, Refusal, WaitingGateCall
from broker.core.topic import TopicFilter, undelayed
from broker.pipeline.pipeline import Pipeline
from broker.pipeline.plan import MAX_CACHED_TOPIC_BYTES, Kind, Plans, SessionRoutes, TopicPlan
from broker.session.delivery import MayHave
from broker.session.session import Session
from broker.session.will import Will

FindPlan = Callable[[bytes], TopicPlan | None]
FindKind = Callable[[bytes], Kind | None]

EVENT: Final = "client.check_authz_complete"
_KINDS: Final = 8
_TEXT: Final = "the client may not publish this"


class Permits:
    """The verdicts of one connection. ``max_size`` topics are remembered, for ``ttl_s`` seconds."""

    __slots__ = (
        "_client", "_deny", "_events", "_expires_s", "_heads", "_max_size", "_plans", "_ttl_s", "_verdicts", "find",
        "find_kind", "find_qos1", "rulings",
    )  # fmt: skip

    def __init__(
        self,
        client: Client,
        rulings: Rulings,
        settings: AuthorizationSettings,
        plans: Plans,
        events: Events,
        now_s: float,
    ) -> None:
        self.rulings = rulings
        self._client = client
        self._events = events
        self._plans = plans
        self._max_size = settings.cache.max_size
        self._ttl_s = settings.cache.ttl
        self._expires_s = now_s + self._ttl_s
        self._verdicts: list[dict[bytes, TopicPlan]] = [{} for _ in range(_KINDS)]
        """By kind of publish: the plan that refuses, ``_ALLOWED`` where the topic's own plan holds."""
        self._heads: set[bytes] = set()
        """Heads of QoS 0 publishes that are allowed."""
        by_topic = plans.by_topic.get
        self.find = _finder(self._verdicts[0].get, by_topic)
        """The plan for a QoS 0 publish that is not retained, None when ``plan`` has to look."""
        self.find_kind = _kind_finder(self._heads, plans.by_head.get)
        """The kind of such a publish by its head where nothing but routing is done with it, None when ``find`` has to
        look."""
        self.find_qos1 = _finder(self._verdicts[publish_kind(1, retain=False)].get, by_topic)
        """Same as ``find``, with QoS 1."""
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
        """True if a listener gets every decision: then none is skipped."""
        return EVENT in self._events.wanted

    def plan(self, topic: bytes, first: int) -> TopicPlan:
        """The plan for a PUBLISH with this topic and first byte.

        Raises:
            PeerError: as ``Plans.plan``.
        """
        verdicts = self._verdicts[first & 7]
        verdict = verdicts.get(topic)
        if verdict is None or self.is_watched:
            verdict = self._decide(topic, first >> 1 & 3, retain=first & 1 == 1)
            if verdict.waits:
                return verdict
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

    def _decide(self, topic: bytes, qos: int, *, retain: bool) -> TopicPlan:
        meant = self._plans.meant(topic, self._client)
        ruling = self.rulings.publish(undelayed(meant), qos, retain)
        if ruling.unanswered is not None:
            return self._asking(topic, meant, ruling.unanswered, qos, retain=retain)
        self.announce(ruling, "publish", meant)
        if ruling.is_allowed:
            return _ALLOWED
        deny = self._deny

        def refuse(_message: Message) -> Refusal:
            return deny

        return TopicPlan(topic.decode(), topic, (("authorization", refuse),), (), _NOWHERE)

    def _asking(
        self, topic: bytes, meant: str, first: Unanswered, qos: int, *, retain: bool
    ) -> TopicPlan:
        """The plan of a topic that outside sources are asked about before all else."""

        async def ask(message: Message) -> Message | Refusal:
            unanswered: Unanswered | None = first
            while unanswered is not None:
                await unanswered.answer()
                ruling = self.rulings.publish(undelayed(meant), qos, retain)
                unanswered = ruling.unanswered if ruling.unanswered != unanswered else None
            self.announce(ruling, "publish", meant)
            return message if ruling.is_allowed else self._deny

        plan = self._plans.plan(topic)
        if plan.resolve is not None:
            plan = plan.resolve(self._client)
        gates = (("authorization", WaitingGateCall(ask)), *plan.gates)
        return TopicPlan(plan.topic, plan.topic_bytes, gates, plan.taps, plan.routes)

    def leaving(self, will: Will) -> Unanswered | None:
        """The request that an outside source has to be asked about before the client may publish its will."""
        meant = self._plans.meant(will.topic.encode(), self._client)
        return self.rulings.publish(undelayed(meant), will.qos, will.retain).unanswered

    def may_leave(self, will: Will) -> bool:
        """True if the client may publish its will."""
        meant = self._plans.meant(will.topic.encode(), self._client)
        ruling = self.rulings.publish(undelayed(meant), will.qos, will.retain)
        self.announce(ruling, "publish", meant)
        return ruling.is_allowed

    # -- subscribe --

    def check_subscribe(self, topic_filter: TopicFilter, qos: int) -> bool:
        """Raise ``PeerError`` 0x87 when the client may not subscribe to this.

        Returns:
            Whether messages on some of its topics have to be withheld.
        """
        ruling = self.rulings.subscribe(topic_filter, qos)
        self.announce(ruling, "subscribe", topic_filter.text)
        if not ruling.is_allowed:
            raise PeerError(reason.NOT_AUTHORIZED, "the client may not subscribe to this")
        return bool(ruling.withheld)

    # -- delivery --

    def may_have(self, session: Session) -> MayHave:
        """True if the client may have messages that were on their way to it before its rules were these."""
        rulings = self.rulings
        decide = self.rulings.withheld.decide

        def may_have(topic: str, qos: int) -> bool:
            verdict = decide(topic, qos)
            if verdict is None:  # then by a subscription that it may have
                return rulings.allows_the_rest or any(session.subscriptions.matching(topic))
            return verdict

        return may_have

    # -- all --

    def announce(self, ruling: Ruling, action: str, topic: str) -> None:
        """Raise the event about a decision, where it has listeners."""
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


class LeftBehind:
    """Publisher of wills and delayed messages, if the current rules, users and bans still allow their clients to.

    Topics of delayed messages have been rewritten already; those of wills are rewritten here.
    """

    def __init__(self, access: Access, plans: Plans, pipeline: Pipeline) -> None:
        self._access = access
        self._plans = plans
        self._pipeline = pipeline

    def publish(self, message: Message) -> Outcome:
        """Publish a delayed message; one without a standing is not a client's."""
        if message.client.standing is None or self._may_publish(message, message.topic):
            return self._pipeline.publish(message)
        return self._pipeline.refuse(message, _LATE)

    def publish_will(self, message: Message) -> Outcome:
        """Publish a will where its topic leads its client now."""
        try:
            meant = self._plans.meant(message.topic.encode(), message.client)
        except PeerError:
            meant = message.topic  # refused by the pipeline
        if self._may_publish(message, undelayed(meant)):
            return self._pipeline.publish_for_client(message)
        return self._pipeline.refuse(message, _LATE)

    def _may_publish(self, message: Message, topic: str) -> bool:
        return self._access.may_still_publish(message.client, topic, message.qos, message.retain)


_LATE: Final = Refusal(
    "authorization",
    "authorization",
    "not_authorized",
    reason.NOT_AUTHORIZED,
    "the client that left this may no longer publish it",
)
_NOWHERE: Final = SessionRoutes((), (), lambda outgoing, targets, is_addressed: None)
# Stands for the topic's own plan, which may be made again while the verdict holds.
_ALLOWED: Final = TopicPlan("", b"", (), (), _NOWHERE)


def _finder(verdict_of: FindPlan, plan_of: FindPlan) -> FindPlan:
    """Two dictionaries behind one call: some 70 ns a message, where a method took 200."""

    def find(topic: bytes) -> TopicPlan | None:
        verdict = verdict_of(topic)
        return plan_of(topic) if verdict is _ALLOWED else verdict

    return find


def _kind_finder(allowed: Set[bytes], kind_of: FindKind) -> FindKind:
    def find_kind(head: bytes) -> Kind | None:
        return kind_of(head) if head in allowed else None

    return find_kind
