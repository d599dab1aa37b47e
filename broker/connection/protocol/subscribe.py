"""SUBSCRIBE and UNSUBSCRIBE.

One of a few filters is taken at once. What is longer, up to hundreds of thousands of filters, is read and processed in
steps over several turns of the loop: first all of it is read and checked, since a packet that is malformed further
behind must have no effect, then it takes effect filter by filter. Other clients' packets come in between; this one's do
not. When the connection ends before the last filter, what was granted until then holds as long as the session.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from logging import getLogger
from typing import Any, Final

from broker.codec import properties as p
from broker.codec.decode import Listing, open_subscribe, open_unsubscribe
from broker.codec.packets import SubAck, Subscribe, SubscriptionRequest, UnsubAck, Unsubscribe
from broker.codec.properties import SUBSCRIPTION_IDENTIFIER
from broker.connection.acknowledgements import Held
from broker.connection.authentication.pending import PendingLogins
from broker.connection.authentication.permissions import Permissions
from broker.connection.connection import PARKED_LOGIN, Connection
from broker.connection.context import Context
from broker.connection.events import SessionEvents
from broker.connection.protocol.limits import (
    check_subscribe,
    check_subscription,
    check_user_properties,
)
from broker.connection.scheduler import Steps
from broker.connection.sessions.subscriptions import SubscriptionRegistry
from broker.connection.sharing.groups import NoStart, ShareGroups, asked_start
from broker.connection.sys_topics import SysTopics
from broker.connection.timelines import EventKind
from broker.connection.withholding import Withholding
from broker.core import reason
from broker.core.errors import PeerError
from broker.core.subscription import Subscription
from broker.core.topic import SYSTEM_LEVEL, TopicFilter
from broker.routing.automatic import AutoSubscriptions
from broker.routing.rewrite import Rewrites, UnsafeName
from broker.session.subscriptions import size_of

_log = getLogger(__name__)

_FAILURE: Final = 0x80
_MQTT_3_1: Final = 3
# First levels under which the broker's parts know things by names that look like topics; no one subscribes to them.
_INTERNAL_TREES: Final = frozenset(("$events", "$file"))
# Maximum filters of one packet in the time line of a client.
_SHOWN: Final = 4
_ALWAYS: Final = 0
_IF_NEW: Final = 1

# A subscription, whether the session had none of its filter, and whether retained messages come with it.
_Granted = tuple[Subscription, bool, bool]


class Subscribing:
    """Takes SUBSCRIBE and UNSUBSCRIBE. ``automatic`` are the subscriptions that every client gets."""

    def __init__(
        self,
        context: Context,
        subscriptions: SubscriptionRegistry,
        share_groups: ShareGroups,
        permissions: Permissions,
        rewrites: Rewrites,
        sys_topics: SysTopics,
        waiting: PendingLogins,
        withholding: Withholding,
    ) -> None:
        self.subscriptions = subscriptions
        self._share_groups = share_groups
        self._permissions = permissions
        self._rewrites = rewrites
        self._sys_topics = sys_topics
        self.waiting = waiting
        self._withholding = withholding
        self._context = context
        self._scheduler = context.scheduler
        self._figures = context.figures
        self._session_events = SessionEvents(context.events)
        self.automatic = AutoSubscriptions(context.metrics)
        self.when_told: Callable[[Callable[[], None]], bool] | None = None
        """Calls a function once the other cells know of all subscriptions; False if they know already."""
        self.takers: Mapping[int, Callable[[Connection, Any], None]] = {
            p.SUBSCRIBE: self.take_subscribe,
            p.UNSUBSCRIBE: self.take_unsubscribe,
        }
        """By packet type."""
        self.long_takers: Mapping[int, Callable[[Connection, bytes, int, int], None]] = {
            0x82: self.take_long_subscribe,
            0xA2: self.take_long_unsubscribe,
        }
        """By first byte, packets that may hold very many topic filters: read while they are processed."""

    def take_subscribe(self, c: Connection, packet: Subscribe) -> None:
        """A SUBSCRIBE of a few filters."""
        check_user_properties(self._context.settings, self._figures, packet.properties)
        if c.is_v5:
            check_subscribe(c.terms, packet)
        if (
            c.permits is not None
            and (asking := self._permissions.asking(c, self._filters(c, packet))) is not None
        ):
            c.hold(PARKED_LOGIN)
            self.waiting.wait(c, asking, lambda _: self._subscribe(c, packet))
            return
        self._subscribe(c, packet)

    def _filters(self, c: Connection, packet: Subscribe) -> list[tuple[TopicFilter, int]]:
        """The filters of a SUBSCRIBE that are valid, and their QoS."""
        filters = []
        for request in packet.requests:
            with suppress(PeerError):
                filters.append((TopicFilter.parse(self._rewritten(c, request.filter)), request.qos))
        return filters

    def _subscribe(self, c: Connection, packet: Subscribe) -> None:
        work = _Request(self, c, packet)
        is_stored = False
        try:
            granted = [
                grant for request in packet.requests if (grant := work.take(request)) is not None
            ]
        finally:
            is_stored = work.store()
        if self.when_told is None:
            self._answer(c, work, is_stored=is_stored)
            self._send_retained(c, granted)
        else:
            self._send_retained(c, granted)
            self._answer(c, work, is_stored=is_stored)

    def _answer(self, c: Connection, work: _Request, *, is_stored: bool) -> None:
        """Send the SUBACK once the subscriptions are stored, other cells send what they match, and the first of their
        retained messages are here: these come right behind it, before newer messages and answers. Acknowledgements that
        come behind it leave behind it."""
        if self.when_told is None:
            c.answer_fitting(work.suback(), waits=is_stored)
            return
        suback: Held | None = None
        early = 0

        def told() -> None:
            nonlocal early
            if suback is None:
                early += 1
            else:
                suback.let_go()

        def stored(error: BaseException | None) -> None:
            if error is None:
                told()
            elif not c.is_closed:
                c.on_internal_error()

        waits = self.when_told(told) + self.subscriptions.when_retained(c.session, told) - early
        if waits <= 0:
            c.answer_fitting(work.suback(), waits=is_stored)
            return
        if (encoded := c.fitting(work.suback())) is not None:
            suback = self._withholding.hold_back(c, encoded, waits + is_stored)
        if is_stored:
            self._context.writer.when_committed(stored)

    def take_long_subscribe(self, c: Connection, data: bytes, start: int, stop: int) -> None:
        """A SUBSCRIBE of any number of filters, whose body is ``data[start:stop]``."""
        listing = open_subscribe(data, start, stop, c.version)
        check_user_properties(self._context.settings, self._figures, listing.packet.properties)
        self._scheduler.work_off(c, self._subscribe_long(c, listing))

    def _subscribe_long(
        self, c: Connection, listing: Listing[Subscribe, SubscriptionRequest]
    ) -> Steps:
        """Retained messages go with each filter, since newer ones may come before the next: they may leave before the
        SUBACK (section 3.8.4)."""
        work = _Request(self, c, listing.packet)
        is_stored = False
        identifier = listing.packet.properties.get(SUBSCRIPTION_IDENTIFIER, 0)
        for request in listing.items():
            if c.is_v5:
                check_subscription(c.terms, request, identifier)
            yield
        try:
            for request in listing.items():
                granted = work.take(request)
                if granted is not None:
                    c.session.subscriptions_changed(())
                    self._send_retained(c, (granted,))
                yield
        finally:
            is_stored = work.store()
        return partial(self._answer, c, work, is_stored=is_stored)

    def refusal(self, c: Connection, request: SubscriptionRequest, error: PeerError) -> int:
        """The code for a filter that is not subscribed. MQTT 3.1 has none: there, "it must make a positive
        acknowledgement" (section 3.8 of 3.1), and what is not even a filter ends the connection."""
        self._figures.refused_subscription(reason.name_of(error.reason_code))
        if error.reason_code == reason.NOT_AUTHORIZED and self._permissions.closes_on_denial():
            raise error
        if c.is_v5:
            return error.reason_code
        if c.version > _MQTT_3_1:
            return _FAILURE
        if error.reason_code == reason.TOPIC_FILTER_INVALID:
            raise error
        return request.qos

    def connected(self, c: Connection) -> None:
        """Remove the subscriptions of a client that connected that are no longer permitted, and add the automatic
        ones."""
        self._permissions.recheck(c)
        if requests := self.automatic.requests_for(c.client):
            self.subscribe_for(c, requests)

    def subscribe_for(
        self, c: Connection, requests: Sequence[SubscriptionRequest], *, checks_rules: bool = True
    ) -> list[SubscriptionRequest | PeerError]:
        """Subscribe a connected client for the broker or an administrator, as if the client had sent a SUBSCRIBE.

        A subscription that its access rules or its number of subscriptions forbid is left out, counted and logged.
        Returns each request with the QoS granted, or the reason for its refusal.
        """
        granted: list[_Granted] = []
        outcome: list[SubscriptionRequest | PeerError] = []
        is_changed = False
        for request in requests:
            try:
                subscription = self.subscription(c, request, 0, None, checks_rules=checks_rules)
            except PeerError as error:
                reason_name = reason.name_of(error.reason_code)
                self._figures.refused_subscription(reason_name)
                _log.warning(
                    "subscription.refused client_id=%.200s filter=%.300s reason=%s detail=%.300s",
                    c.client.client_id, request.filter, reason_name, error,
                )  # fmt: skip
                outcome.append(error)
                continue
            outcome.append(replace(request, qos=subscription.qos))
            existing = c.session.subscriptions.get(subscription.filter.text)
            if existing != replace(
                subscription, since_offset=existing.since_offset if existing else 0
            ):
                self.put(c, subscription, existing is None, Subscribe(0, [request]))
                is_changed = True
            granted.append((subscription, existing is None, not subscription.is_membership))
        if is_changed:
            self.subscriptions.changed(c.session)
        shown = [f"{item.filter.text} with QoS {item.qos}" for item, _, _ in granted[:_SHOWN]]
        self.note(c, "subscribed", shown, len(granted), "by_broker")
        self._send_retained(c, granted)
        return outcome

    def note(
        self, c: Connection, kind: EventKind, shown: Sequence[str], count: int, why: str = ""
    ) -> None:
        """Add the filters of one packet to the client's time line."""
        if shown:
            more = f" and {count - len(shown)} more" if count > len(shown) else ""
            self._context.timelines.add(c.client.client_id, kind, why, ", ".join(shown) + more)

    def take_unsubscribe(self, c: Connection, packet: Unsubscribe) -> None:
        """An UNSUBSCRIBE of a few filters, compared as text, character by character [MQTT-3.10.4-1]."""
        check_user_properties(self._context.settings, self._figures, packet.properties)
        codes, is_stored = self._unsubscribe(c, packet)
        c.answer_fitting(UnsubAck(packet.packet_id, codes), waits=is_stored)

    def take_long_unsubscribe(self, c: Connection, data: bytes, start: int, stop: int) -> None:
        """An UNSUBSCRIBE of any number of filters, whose body is ``data[start:stop]``."""
        listing = open_unsubscribe(data, start, stop, c.version)
        check_user_properties(self._context.settings, self._figures, listing.packet.properties)
        self._scheduler.work_off(c, self._unsubscribe_long(c, listing))

    def _unsubscribe_long(self, c: Connection, listing: Listing[Unsubscribe, str]) -> Steps:
        codes = list[int]()
        removed = list[Subscription]()
        is_stored = False
        for _ in listing.items():
            yield
        try:
            for asked in listing.items():
                codes.append(self._unsubscribe_one(c, asked, listing.packet, removed))
                c.session.subscriptions_changed(())
                yield
        finally:
            is_stored = bool(removed) and self.subscriptions.changed(c.session, removed)
            self._note_removed(c, removed)
        answered = UnsubAck(listing.packet.packet_id, codes)
        return partial(c.answer_fitting, answered, waits=is_stored)

    def unsubscribe_for(self, c: Connection, filters: Sequence[str]) -> list[str]:
        """End subscriptions of a client as if it had asked for that itself; return the ones that existed."""
        codes, _ = self._unsubscribe(c, Unsubscribe(0, list(filters)))
        return [text for text, code in zip(filters, codes, strict=True) if code == reason.SUCCESS]

    def _unsubscribe(self, c: Connection, packet: Unsubscribe) -> tuple[list[int], bool]:
        """End subscriptions; returns the code for each, and whether that is stored."""
        removed: list[Subscription] = []
        codes = [self._unsubscribe_one(c, asked, packet, removed) for asked in packet.filters]
        is_stored = bool(removed) and self.subscriptions.changed(c.session, removed)
        self._note_removed(c, removed)
        return codes, is_stored

    def _note_removed(self, c: Connection, removed: Sequence[Subscription]) -> None:
        self.note(c, "unsubscribed", [item.filter.text for item in removed[:_SHOWN]], len(removed))

    def _unsubscribe_one(
        self, c: Connection, asked: str, packet: Unsubscribe, removed: list[Subscription]
    ) -> int:
        """End one subscription, which is added to ``removed``; the code to answer with."""
        session = c.session
        text = self._known(c, asked)
        subscription = self.subscriptions.remove(session, text)
        if subscription is None:
            return self._why_unknown(c, text)
        removed.append(subscription)
        if "session.unsubscribed" in self._context.events.wanted:
            self._session_events.subscription(
                "session.unsubscribed", session, text, subscription.qos, packet.properties
            )
        return reason.SUCCESS

    def _why_unknown(self, c: Connection, text: str) -> int:
        """The code for an UNSUBSCRIBE of a filter that the session does not have."""
        try:
            TopicFilter.parse(
                text,
                self._context.settings.max_topic_levels,
                self._context.settings.max_topic_bytes,
            )
        except PeerError as error:
            return error.reason_code
        return reason.NO_SUBSCRIPTION_EXISTED

    def _rewritten(self, c: Connection, text: str) -> str:
        try:
            return self._rewrites.filter_for(text, c.client)
        except UnsafeName as error:
            raise PeerError(
                reason.TOPIC_FILTER_INVALID, f"topic filter {text!r}: {error}"
            ) from None

    def _known(self, c: Connection, text: str) -> str:
        """The filter that the client means by this one."""
        try:
            return self._rewrites.filter_for(text, c.client)
        except UnsafeName:
            return text

    def subscription(
        self,
        c: Connection,
        request: SubscriptionRequest,
        identifier: int,
        begins: tuple[str, str | None] | None,
        *,
        checks_rules: bool = True,
    ) -> Subscription:
        """Granted part of a request; ``begins`` is where it asks to begin in the past.

        Raises:
            PeerError: why it is refused.
        """
        subscriptions = c.session.subscriptions
        text = self._rewritten(c, request.filter)
        settings = self._context.settings
        topic_filter = TopicFilter.parse(text, settings.max_topic_levels, settings.max_topic_bytes)
        if topic_filter.levels[0] in _INTERNAL_TREES:
            raise PeerError(
                reason.NOT_AUTHORIZED,
                f"what begins with {topic_filter.levels[0]}/ is the broker's own",
            )
        if checks_rules:
            self._permissions.check_filter(c, topic_filter, request.qos)
        existing = subscriptions.get(topic_filter.text)
        if existing is None:
            self._check_room(c, topic_filter)
        self._share_groups.check(c.session, topic_filter)
        if begins is not None:
            self._share_groups.begin(c.session, topic_filter, begins)
        # raised from QoS 0, it holds for the log from now on
        keeps_place = existing is not None and existing.qos > 0
        return Subscription(
            topic_filter,
            min(request.qos, self._context.settings.maximum_qos),  # [MQTT-3.2.2-10]
            request.no_local or (c.client.is_bridge and topic_filter.share_group is None),
            request.retain_as_published or c.client.is_bridge,
            request.retain_handling,
            identifier,
            existing.since_offset
            if existing is not None and keeps_place
            else self.subscriptions.since_offset,
            begins is not None and topic_filter.share_group is None,
        )

    def _check_room(self, c: Connection, topic_filter: TopicFilter) -> None:
        """Refuse a further subscription that the session, or the broker, has no room for."""
        settings = self._context.settings
        subscriptions = c.session.subscriptions
        size = size_of(topic_filter)
        if len(subscriptions) >= settings.max_subscriptions:
            limit = "max_subscriptions"
        elif (
            topic_filter.share_group is not None
            and len(c.session.memberships) >= settings.max_shared_subscriptions
        ):
            limit = "max_shared_subscriptions"  # a session leaves all its groups at once, at some 20 microseconds each
        elif subscriptions.size_bytes + size > settings.max_subscription_bytes:
            limit = "max_subscription_bytes"
        elif self._context.subscribed.bytes + size > settings.max_subscription_bytes_total:
            limit = "max_subscription_bytes_total"
        else:
            return
        raise self._figures.over_limit(
            limit, f"no room for a further subscription; see mqtt.{limit}"
        )

    def put(
        self, c: Connection, subscription: Subscription, is_new: bool, packet: Subscribe
    ) -> _Granted:
        """Add a subscription to the session, or replace it."""
        session = c.session
        text = subscription.filter.text
        brings_retained = self._share_groups.brings_retained(session, subscription)
        self.subscriptions.add(session, subscription, is_new)
        if "session.subscribed" in self._context.events.wanted:
            self._session_events.subscription(
                "session.subscribed", session, text, subscription.qos, packet.properties
            )
        return subscription, is_new, brings_retained

    def _send_retained(self, c: Connection, granted: Sequence[_Granted]) -> None:
        """Retained messages, before any newer live one; once for a filter that one packet repeats."""
        asking = {
            subscription.filter.text: (subscription, brings_retained)
            for subscription, is_new, brings_retained in granted
            if subscription.retain_handling == _ALWAYS
            or (subscription.retain_handling == _IF_NEW and is_new)
        }
        for subscription, brings_retained in asking.values():
            if subscription.filter.levels[0] == SYSTEM_LEVEL:
                self._sys_topics.show(c.session, subscription)
            if brings_retained and c.terms.retain_available:
                self.subscriptions.send_retained(c.session, subscription)


class _Request:
    """A SUBSCRIBE that takes effect. Each filter is a request of its own with its own code [MQTT-3.8.4-5]; the SUBACK
    waits until they are stored."""

    __slots__ = (
        "_begins",
        "_c",
        "_codes",
        "_is_granted",
        "_lowered",
        "_packet",
        "_shown",
        "_subscribing",
        "_told",
    )

    def __init__(self, subscribing: Subscribing, c: Connection, packet: Subscribe) -> None:
        self._subscribing = subscribing
        self._c = c
        self._packet = packet
        self._begins = asked_start(packet.properties)
        self._codes: list[int] = []
        self._shown: list[str] = []
        self._told: dict[str, Any] = {}
        self._lowered: list[Subscription] = []
        self._is_granted = False

    def take(self, request: SubscriptionRequest) -> _Granted | None:
        """Subscribe to one filter, or have its refusal among the codes."""
        subscribing = self._subscribing
        c = self._c
        packet = self._packet
        identifier = packet.properties.get(SUBSCRIPTION_IDENTIFIER, 0)
        try:
            check_subscription(c.terms, request, identifier)
            subscription = subscribing.subscription(c, request, identifier, self._begins)
        except NoStart as error:
            self._told = {"Reason-String": str(error)} if c.wants_reasons else {}
            self._codes.append(error.reason_code)
            self._show(f"{request.filter} refused: {error}")
            return None
        except PeerError as error:
            self._codes.append(subscribing.refusal(c, request, error))
            self._show(f"{request.filter} refused: {reason.name_of(error.reason_code)}")
            return None
        existing = c.session.subscriptions.get(subscription.filter.text)
        if existing is not None and existing.qos and not subscription.qos:
            self._lowered.append(existing)
        self._codes.append(subscription.qos)
        self._is_granted = True
        self._show(f"{request.filter} with QoS {subscription.qos}")
        return subscribing.put(c, subscription, existing is None, packet)

    def _show(self, text: str) -> None:
        if len(self._shown) < _SHOWN:
            self._shown.append(text)

    def store(self) -> bool:
        """Write what was granted; returns whether there is something to write."""
        return self._is_granted and self._subscribing.subscriptions.changed(
            self._c.session, self._lowered
        )

    def suback(self) -> SubAck:
        """The SUBACK."""
        self._subscribing.note(self._c, "subscribed", self._shown, len(self._codes))
        return SubAck(self._packet.packet_id, self._codes, self._told)
