"""Permissions of connections, by the current rules: given at the login, checked again when rules, users or
bans change."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Coroutine, Iterator, Sequence
from dataclasses import replace
from typing import Any, Final, cast

from broker.auth.access import Access
from broker.auth.authorize import Rulings, is_wide
from broker.auth.bans import Ban
from broker.auth.decision import IGNORED, Decision
from broker.auth.users import User
from broker.connection.connection import Connection
from broker.connection.connections import Connections
from broker.connection.context import Context
from broker.connection.permits import Permits
from broker.connection.sessions.lifecycle import SessionLife
from broker.connection.sessions.stored_wills import Wills
from broker.connection.sessions.subscriptions import SubscriptionRegistry
from broker.core import reason
from broker.core.client import Client
from broker.core.topic import TopicFilter
from broker.observe.log import get_logger
from broker.pipeline.plan import Plans

log = get_logger(__name__)


class Permissions:
    """Gives connections their permits, and takes from clients what is no longer permitted."""

    def __init__(
        self,
        context: Context,
        access: Access,
        plans: Plans,
        subscriptions: SubscriptionRegistry,
        wills: Wills,
    ) -> None:
        self._context = context
        self._access = access
        self._plans = plans
        self._subscriptions = subscriptions
        self._wills = wills
        self.refresh = RuleRefresh(context, access, self)

    def grant(self, c: Connection, client: Client) -> None:
        """Give a connection its permits, by the rules of this moment. Where these must first be read from an outside
        source, it keeps its permits until then."""
        assert c.subject is not None  # it was let in
        self.refresh.watch(c)
        if self._access.authorizer.lacks(c.subject):
            return
        c.permits = (
            self._permits(c, client) if self._access.authorizer.restricts(c.subject) else None
        )

    def _permits(self, c: Connection, client: Client) -> Permits:
        assert c.subject is not None
        authorizer = self._access.authorizer
        rulings = authorizer.rulings(c.subject)
        context = self._context
        return Permits(
            client, rulings, authorizer.settings, self._plans, context.events, context.now_s
        )

    def check_filter(self, c: Connection, topic_filter: TopicFilter, qos: int) -> None:
        """Raise ``PeerError`` 0x87 when a client may not subscribe to this."""
        permits = c.permits
        if permits is None and is_wide(topic_filter):
            permits = self._permits(c, c.client)
        if permits is not None and permits.check_subscribe(topic_filter, qos):
            self._context.figures.subscriptions_filtered.value += 1
            self._subscriptions.limit(c.session, permits.rulings.withheld)

    def asking(
        self, c: Connection, filters: Sequence[tuple[TopicFilter, int]]
    ) -> Coroutine[Any, Any, Decision] | None:
        """Questions to outside sources about subscriptions, with their QoS, or None."""
        permits = c.permits
        if permits is None or not self._access.authorizer.outside:
            return None
        rulings = permits.rulings
        if any(
            rulings.subscribe(topic_filter, qos).unanswered is not None
            for topic_filter, qos in filters
        ):
            return _answered(rulings, filters)
        return None

    def closes_on_denial(self) -> bool:
        """True if a client that asks for something forbidden loses its connection."""
        return self._access.authorizer.settings.deny_action == "disconnect"

    def recheck(self, c: Connection) -> None:
        """Take from a client what is no longer permitted: subscriptions, its will."""
        permits = c.permits
        session = c.session
        if session.will is not None and session.will.client is not c.client:
            # it has authenticated again
            self._wills.keep(session, replace(session.will, client=c.client))
        if permits is None:
            if not any(
                is_wide(subscription.filter) for subscription in session.subscriptions.values()
            ):
                self._subscriptions.limit(session, None)
                return
            permits = self._permits(c, c.client)
        if session.will is not None and not permits.may_leave(session.will):
            self._wills.forget(session)
        lost = []
        is_part_withheld = False
        for subscription in session.subscriptions.values():
            ruling = permits.rulings.subscribe(subscription.filter, subscription.qos)
            is_part_withheld = is_part_withheld or bool(ruling.withheld)
            if ruling.is_denied:
                lost.append(subscription)
        self._subscriptions.limit(session, permits.rulings.withheld if is_part_withheld else None)
        for subscription in lost:
            self._subscriptions.remove(session, subscription.filter.text)
        if lost:
            self._subscriptions.changed(session, lost)
        session.withhold(permits.may_have(session))
        if not lost:
            return
        self._context.figures.subscriptions_revoked.value += len(lost)
        log.warning(
            "subscriptions.revoked",
            client_id=session.client_id,
            filters=[subscription.filter.text for subscription in lost[:20]],
        )
        if self.closes_on_denial():
            c.disconnect(reason.NOT_AUTHORIZED, "not_authorized")


async def _answered(rulings: Rulings, filters: Sequence[tuple[TopicFilter, int]]) -> Decision:
    for topic_filter, qos in filters:
        before = None
        while (
            unanswered := rulings.subscribe(topic_filter, qos).unanswered
        ) is not None and unanswered != before:
            await unanswered.answer()
            before = unanswered
    return IGNORED


# Connections whose rules are read at the same time.
_AT_ONCE: Final = 16


class RuleRefresh:
    """Reads the rules of connected clients again from outside sources when their time has come, and forgets the answers
    about topics."""

    def __init__(self, context: Context, access: Access, permissions: Permissions) -> None:
        self._context = context
        self._access = access
        self._permissions = permissions
        self._due: dict[Connection, float] = {}
        """In the order of their time: all have the same interval since the settings last changed."""
        self._lacking: dict[Connection, None] = {}
        """Connections whose rules were never read."""
        self._reading: dict[Connection, asyncio.Task[None]] = {}

    def watch(self, c: Connection) -> None:
        """Read the rules of a connection again later, or soon where they were never read."""
        sources = self._access.authorizer.outside
        self._due.pop(c, None)
        if not sources or c.subject is None or c.subject.is_superuser:
            return
        if self._access.authorizer.lacks(c.subject):
            self._lacking[c] = None
        else:
            interval_s = min(source.settings.refresh_interval for source in sources)
            self._due[c] = self._context.now_s + interval_s

    def abandon(self, c: Connection) -> None:
        """The connection has ended."""
        self._due.pop(c, None)
        self._lacking.pop(c, None)
        if (task := self._reading.pop(c, None)) is not None:
            task.cancel()

    def tick(self) -> None:
        """Begin with connections whose time has come, up to a number at the same time."""
        while len(self._reading) < _AT_ONCE and (c := self._next()) is not None:
            name = f"rules of {c.client.client_id}"
            self._reading[c] = asyncio.create_task(self._read(c), name=name)

    def _next(self) -> Connection | None:
        if self._lacking:
            c = next(iter(self._lacking))
            del self._lacking[c]
            return c
        for c, due_s in self._due.items():
            if due_s > self._context.now_s:
                return None
            del self._due[c]
            return c
        return None

    async def _read(self, c: Connection) -> None:
        assert c.subject is not None  # it was let in
        is_changed = await self._access.authorizer.read_again(c.subject)
        self._reading.pop(c, None)
        if not c.is_connected:  # it waits for its identifier
            self.watch(c)
        elif is_changed:
            self._permissions.grant(c, c.client)
            self._permissions.recheck(c)
        else:
            if c.permits is not None:
                c.permits.forget()
            self.watch(c)
        if not self._access.authorizer.lacks(c.subject):  # else its service is away
            self._context.later(0, self.tick)


class AccessChanges:
    """Lets changes of rules, users and bans count for those who are connected."""

    def __init__(
        self,
        context: Context,
        access: Access,
        permissions: Permissions,
        connections: Connections,
        life: SessionLife,
    ) -> None:
        self._access = access
        self._permissions = permissions
        self._connections = connections
        self._life = life
        self._scheduler = context.scheduler

    def rules_changed(self) -> None:
        """Rules have changed: apply them to all connected clients.

        For later publishes they count at once. What clients have already, subscriptions and wills, is
        checked over some turns of the loop: 10,000 clients would hold it for a second.
        """
        connected = [c for c in self._connections if c.is_connected and not c.is_closed]
        for c in connected:
            self._permissions.grant(c, c.client)
        self._scheduler.run_in_background(self._recheck(connected))

    def _recheck(self, connected: Sequence[Connection]) -> Iterator[None]:
        for c in connected:
            if not c.is_closed:
                self._permissions.recheck(c)
            yield

    def users_changed(self, names: Collection[str]) -> None:
        """Users were deleted or changed: let that count for those who are connected as them. The sessions of a deleted
        user end, so that another of its name gets nothing of them."""
        if names:  # none are where users were created
            self._scheduler.run_in_background(self._users_changed(names))

    def _users_changed(self, names: Collection[str]) -> Iterator[None]:
        for c in self._connections:
            account = None if c.subject is None else c.subject.account
            if account is not None and account.name in names:
                if c.is_connected and not c.is_closed:
                    # a waiting one is checked when it is accepted
                    self._user_changed(c, account)
                yield
        for session in self._life.sessions:
            if self._access.has_lost_its_user(session.client) and not session.is_ended:
                self._life.end_session(session)
            yield

    def _user_changed(self, c: Connection, account: User) -> None:
        users = self._access.users
        assert users is not None
        assert c.subject is not None
        user = users.find(account.name)
        if user is None or not user.logs_in_like(account):
            change = "was deleted" if user is None else "has another password or client identifier"
            c.disconnect(reason.NOT_AUTHORIZED, "user_changed", text=f"the user {change}")
            return
        was_superuser = c.subject.is_superuser
        c.subject = replace(c.subject, account=user, is_superuser=user.is_superuser)
        if was_superuser != user.is_superuser:
            self._permissions.grant(c, c.client)
            self._permissions.recheck(c)

    def banned(self, ban: Ban) -> None:
        """A ban was added: close the connections that it is about. That of one client identifier at once, others
        are searched over some turns of the loop."""
        if ban.kind != "clientid":
            self._scheduler.run_in_background(self._close_banned())
            return
        session = self._life.sessions.get(ban.who)
        if session is not None and session.owner is not None:
            self._close_if_banned(cast("Connection", session.owner))

    def _close_banned(self) -> Iterator[None]:
        for c in self._connections:
            self._close_if_banned(c)
            yield

    def _close_if_banned(self, c: Connection) -> None:
        if c.is_connected and not c.is_closed and self._access.bans.of(c.client) is not None:
            c.disconnect(reason.ADMINISTRATIVE_ACTION, "banned")
