"""Receivers of a topic: who gets what is published there, by which filter, and why others do not."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import islice
from typing import Final

from typing_extensions import TypedDict

from broker.admin.clients import connection_of
from broker.auth.authorize import Rulings
from broker.auth.rules import subscribe_kind
from broker.connection.hub import Hub
from broker.connection.sharing.group import ShareGroup
from broker.core.contributor import TopicStage
from broker.core.errors import Invalid, PeerError, Problem
from broker.core.kinds import counted
from broker.core.subscription import Subscription
from broker.core.topic import check_topic_name
from broker.session.session import Session

# Subscriptions that are described in one turn of the loop.
_AT_ONCE: Final = 200
_SHOWN_MEMBERS: Final = 100
_CHOICES: Final = {
    "round_robin": "the next connected member with room, in turn",
    "random": "any connected member with room",
    "least_inflight": "the connected member with the fewest messages in flight",
    "sticky": "the member that got the messages of the same publisher before",
    "hash_clientid": "the member that the publisher's client identifier is hashed to",
    "hash_topic": "the member that the topic is hashed to",
}


class AccessVerdict(TypedDict):
    """Decision of the access rules, and the rule that decides. `source` is `none` if no rule applies to the client."""

    allowed: bool
    source: str
    rule: str | None


class TopicReceiver(TypedDict):
    """A subscription that matches the topic. `gets` says whether a message is delivered for it, `why` the reason in
    words. `qos` is that of the subscription: a message arrives with the lower one of it and its own."""

    clientid: str
    filter: str
    qos: int
    connected: bool
    durable: bool
    gets: bool
    why: str
    access: AccessVerdict


class GroupMemberChoice(TypedDict):
    """A member of a share group, and whether it can be chosen now."""

    clientid: str
    can_get: bool
    why: str
    inflight: int


class GroupReceiver(TypedDict):
    """A share group that gets the topic: one of its members gets each message, by its `strategy`. At most 100 members
    are shown."""

    group: str
    strategy: str
    choice: str
    member_count: int
    waiting: int
    members: list[GroupMemberChoice]


class TopicPublisher(TypedDict):
    """The publisher that was asked about: whether its access rules allow it to publish there."""

    clientid: str
    connected: bool
    access: AccessVerdict


class TopicReceivers(TypedDict):
    """Receivers of a topic, with the stages that a message passes before it reaches them. `becomes` is the topic that a
    rewrite gives it. `subscriptions_total` and `groups_total` count all that match; `subscriptions` and `groups` are
    the first of them."""

    topic: str
    becomes: str | None
    publisher: TopicPublisher | None
    stages: list[TopicStage]
    subscriptions: list[TopicReceiver]
    subscriptions_total: int
    groups: list[GroupReceiver]
    groups_total: int


class ReceiverService:
    """Explains who gets a topic. Used on the event loop; long work is done a part in each of its turns."""

    def __init__(self, hub: Hub, stages: Callable[[str], list[TopicStage]]) -> None:
        self._hub = hub
        self._stages = stages

    async def who(
        self, topic: str, client_id: str | None, qos: int, retain: bool, limit: int
    ) -> TopicReceivers:
        """Describe who gets a message on a topic, as published by a client with that QoS.

        Raises:
            Invalid: it is not a valid topic name.
        """
        try:
            check_topic_name(topic)
        except PeerError as error:
            raise Invalid(
                "this is not a valid topic", [Problem(str(error), "/query/topic")]
            ) from None
        session = None if client_id is None else self._hub.sessions.get(client_id)
        publisher = (
            None if client_id is None else self._publisher(client_id, session, topic, qos, retain)
        )
        meant = topic
        if session is not None:
            meant = self._hub.plans.meant(topic.encode(), session.client)
        matching = self._hub.router.subscribed(meant)
        receivers: list[TopicReceiver] = []
        for number, (receiver, subscription) in enumerate(islice(matching, limit), 1):
            receivers.append(_receiver(receiver, subscription, meant, client_id))
            if number % _AT_ONCE == 0:
                await asyncio.sleep(0)
        groups = self._hub.share_groups.groups
        matching_groups = self._hub.router.matching_groups(meant)
        return {
            "topic": topic,
            "becomes": None if meant == topic else meant,
            "publisher": publisher,
            "stages": [stage for stage in self._stages(meant) if stage["stage"] != "subscribers"],
            "subscriptions": sorted(receivers, key=lambda row: (row["clientid"], row["filter"])),
            "subscriptions_total": len(matching),
            "groups": [_group(groups[key], meant) for key in sorted(matching_groups)[:limit]],
            "groups_total": len(matching_groups),
        }

    def _publisher(
        self, client_id: str, session: Session | None, topic: str, qos: int, retain: bool
    ) -> TopicPublisher:
        connection = None if session is None else connection_of(session)
        access: AccessVerdict = {"allowed": True, "source": "none", "rule": None}
        if connection is not None and connection.permits is not None:
            ruling = connection.permits.rulings.publish(topic, qos, retain)
            access = {
                "allowed": ruling.is_allowed,
                "source": ruling.source,
                "rule": ruling.rule or None,
            }
        return {"clientid": client_id, "connected": connection is not None, "access": access}


def _access(session: Session, topic: str, qos: int) -> AccessVerdict:
    """The verdict of the rules over the delivery of a topic."""
    connection = connection_of(session)
    if connection is None or connection.permits is None:
        is_allowed = session.may_have is None or session.may_have(topic, qos)
        return {
            "allowed": is_allowed,
            "source": "none" if is_allowed else "earlier rules",
            "rule": None,
        }
    return _delivery(connection.permits.rulings, topic, qos)


def _delivery(rulings: Rulings, topic: str, qos: int) -> AccessVerdict:
    if rulings.subject.is_superuser:
        return {"allowed": True, "source": "superuser", "rule": None}
    verdict = rulings.withheld.decide(topic, qos)
    if verdict is None:  # the subscription was allowed by another rule, or by none
        return {"allowed": True, "source": "no_match", "rule": None}
    kind = subscribe_kind(qos)
    rule = next((rule for rule in rulings.bound() if rule.is_about_delivery(kind, topic)), None)
    return {
        "allowed": verdict,
        "source": rule.source if rule else "rules",
        "rule": rule.name if rule else None,
    }


def _receiver(
    session: Session, subscription: Subscription, topic: str, publisher: str | None
) -> TopicReceiver:
    access = _access(session, topic, subscription.qos)
    gets, text = True, "connected"
    if not access["allowed"]:
        gets = False
        text = (
            f"access denied by {access['rule']!r} of {access['source']}"
            if access["rule"]
            else "access denied"
        )
    elif subscription.no_local and session.client_id == publisher:
        gets, text = False, "it published the message itself, and its subscription has No Local"
    elif session.is_away:
        keeps = session.outlives and (subscription.qos > 0 or session.keeps_qos0)
        gets = keeps
        text = (
            "away: messages wait for it" if keeps else "away: messages of QoS 0 do not wait for it"
        )
        if keeps and not session.keeps_qos0:
            text = "away: messages of QoS 1 and 2 wait for it"
    elif session.waiting_messages:
        text = f"connected, {counted(session.waiting_messages, 'message')} wait before it"
    return {
        "clientid": session.client_id,
        "filter": subscription.filter.text,
        "qos": subscription.qos,
        "connected": not session.is_away,
        "durable": session.is_durable,
        "gets": gets,
        "why": text,
        "access": access,
    }


def _group(group: ShareGroup, topic: str) -> GroupReceiver:
    members: list[GroupMemberChoice] = []
    for member in islice(group.members.values(), _SHOWN_MEMBERS):
        can_get, text = True, "it can be chosen"
        if member.session.is_away:
            can_get, text = False, "it is away"
        elif not member.may_have(topic):
            can_get, text = False, "its access rules deny the topic"
        elif not member.has_room:
            can_get, text = (
                False,
                "it has no room: its in-flight window is full, or it reads slowly",
            )
        members.append(
            {
                "clientid": member.client_id,
                "can_get": can_get,
                "why": text,
                "inflight": member.in_flight,
            }
        )
    return {
        "group": group.key,
        "strategy": group.strategy_name,
        "choice": f"Each message goes to one member: {_CHOICES[group.strategy_name]}.",
        "member_count": len(group.members),
        "waiting": group.waiting,
        "members": members,
    }
