"""Effects of changes on clients: who is disconnected, which sessions and messages end, which subscriptions are lost."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass
from glob import escape
from typing import Final

from broker.admin.access import AccessService
from broker.admin.clients import connection_of
from broker.admin.delayed import MAX_LISTED
from broker.admin.listing import SLICE, Selection
from broker.auth.authorize import Authorizer
from broker.connection.hub import Hub
from broker.core.client import Client
from broker.core.contributor import Change, Contributor
from broker.core.kinds import are, counted
from broker.core.objects import Spec
from broker.core.topic import TopicFilter, undelayed
from broker.core.topic_keys import FilterWalk
from broker.net.listeners import LIMITS
from broker.routing.automatic import filter_for
from broker.routing.retained_record import expires_ns_of
from broker.routing.rewrite import UnsafeName
from broker.session.session import Session

# Clients whose subscriptions are checked, and messages that are read, between two turns of the loop.
_AT_ONCE: Final = 50
_BYTES: Final = 1024 * 1024
# Verbs that close a listener.
_STOPPED: Final = ("stop", "restart")

Sentences = Iterator[str | None]


@dataclass(slots=True)
class _Tally:
    """Sessions: how many, of connected clients, that end with their connection, their messages and wills."""

    sessions: int = 0
    connected: int = 0
    brief: int = 0
    waiting: int = 0
    wills: int = 0

    def add(self, session: Session) -> None:
        is_connected = connection_of(session) is not None
        self.sessions += 1
        self.connected += is_connected
        self.brief += is_connected and not session.expiry_s
        self.waiting += session.waiting_messages
        self.wills += session.will is not None


def _changed(before: Spec, after: Spec) -> set[str]:
    """The members that differ."""
    return {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}


class ClientImpact(Contributor):
    """Effects on clients, by the kind of the changed object."""

    def __init__(self, hub: Hub, access: AccessService) -> None:
        self._hub = hub
        self._access = access

    def consequences(self, change: Change) -> Sentences:
        of_kind = _OF_KIND.get(change.target.kind)
        return iter(()) if of_kind is None else of_kind(self, change)

    # -- kinds --

    def _of_user(self, change: Change) -> Sentences:
        if change.before is None:
            return
        name = change.target.name
        after = change.after
        tally = yield from self._tally(lambda session: _account(session.client) == name)
        if after is None:
            delayed = self._delayed(lambda client: _account(client) == name)
            yield from _disconnected(tally)
            yield from _ended(tally)
            if left := [
                counted(n, noun)
                for n, noun in ((tally.wills, "will"), (delayed, "delayed message"))
                if n
            ]:
                yield f"Not published: {' and '.join(left)}."
        elif after.get("password") or after.get("clientid") != change.before.get("clientid"):
            yield from _disconnected(tally)
        elif after["is_superuser"] != change.before["is_superuser"] and tally.connected:
            rules = "no longer apply" if after["is_superuser"] else "apply"
            yield f"Access rules {rules} to {counted(tally.connected, 'connected client')}."

    def _of_ban(self, change: Change) -> Sentences:
        is_banned = self._hub.access.bans.trial(change.after or change.before or {})
        tally = yield from self._tally(lambda session: is_banned(session.client))
        if change.after is None:
            if tally.sessions:
                yield f"Clients of {counted(tally.sessions, 'session')} may connect again."
            return
        delayed = self._delayed(is_banned)
        yield from _disconnected(tally)
        if delayed:
            yield f"{are(delayed, 'delayed message')} not published while the ban lasts."

    def _of_client(self, change: Change) -> Sentences:
        chosen = change.options["client_ids"]
        sessions = filter(None, map(self._hub.sessions.get, chosen))
        tally = _Tally()
        for session in sessions:
            if connection_of(session) is not None:
                tally.add(session)
        yield from _disconnected(tally)
        if tally.brief:
            yield f"{counted(tally.brief, 'session')} of them {'ends' if tally.brief == 1 else 'end'}."
        if tally.wills:
            yield f"{are(tally.wills, 'will')} published."

    def _of_session(self, change: Change) -> Sentences:
        chosen = change.options.get("client_ids") if change.verb == "clear" else None
        if chosen is not None:
            tally = _Tally()
            for session in filter(None, map(self._hub.sessions.get, chosen)):
                tally.add(session)
            yield from _ended(tally)
            yield from _disconnected(tally)
            return
        is_one = change.verb == "delete"
        wanted = (
            Selection(client_id=escape(change.target.name))
            if is_one
            else Selection(**change.options)
        )
        tests = wanted.tests(self._hub.context.clock.now_ns())
        tally = yield from self._tally(
            lambda session: all(test(session) for test in tests), wanted.prefix
        )
        yield from _ended(tally)
        yield from _disconnected(tally)

    def _of_listener(self, change: Change) -> Sentences:
        before = change.before
        after = change.after
        if before is None:
            return
        name = change.target.name
        changed = set() if after is None else _changed(before, after)
        key = name.partition(":")[2]
        closes = (
            change.verb in _STOPPED
            or after is None
            or (not change.verb and after.get("enable") is False)
            or ("name" in changed and before.get("name", key) != after.get("name", key))
        )
        if not closes:
            if "enable" not in changed and changed - LIMITS - {"name"}:
                yield "Its address is opened again; connected clients stay."
            return
        tally = yield from self._tally(lambda session: session.client.listener == name)
        if change.options.get("drain"):
            if tally.connected:
                yield f"{counted(tally.connected, 'client')} may stay connected until they disconnect."
        else:
            yield from _disconnected(tally)

    def _of_rule(self, change: Change) -> Sentences:
        rules = self._access.rules.after(change.target.name, change.after)
        return self._checked_again(self._hub.access.authorizer.trial(rules))

    def _of_source(self, change: Change) -> Sentences:
        settings = self._access.sources.after(change.target.name, change.after)
        return self._checked_again(self._hub.access.authorizer.trial(settings=settings))

    def _of_authenticator(self, change: Change) -> Sentences:
        others = [
            authenticator
            for authenticator in self._access.authenticators.list()
            if authenticator["name"] != change.target.name
        ]
        specs = [*others, *([] if change.after is None else [change.after])]
        if change.before is not None and not any(
            authenticator.get("enable", True) for authenticator in specs
        ):
            yield "No authenticator is left: every client that reaches a listener may connect without a password."
        tally = yield from self._tally(lambda session: connection_of(session) is not None)
        if tally.connected:
            stays = "stays" if tally.connected == 1 else "stay"
            yield f"{counted(tally.connected, 'client')} {stays} connected; the change holds for logins from then on."

    def _of_auto_subscription(self, change: Change) -> Sentences:
        if change.before is None:
            return
        topic = change.before["topic"]
        tally = yield from self._tally(lambda session: _has(session, topic))
        if tally.sessions:
            keep = "keeps" if tally.sessions == 1 else "keep"
            yield f"{counted(tally.sessions, 'session')} {keep} the subscription to {topic!r}."

    def _of_rewrite(self, change: Change) -> Sentences:
        tally = yield from self._tally(lambda session: connection_of(session) is not None)
        if tally.connected:
            changed = "Their subscriptions stay; topics and filters that they name from then on follow the change."
            yield f"{are(tally.connected, 'client')} connected. {changed}"

    def _of_retained(self, change: Change) -> Sentences:
        options = change.options
        walk = FilterWalk(TopicFilter.parse(change.target.name))
        count = size_bytes = 0
        now_ns = self._hub.context.clock.now_ns()
        at: bytes | None = b""
        while at is not None:
            entries, at = self._hub.retained.read(walk, at, _AT_ONCE, _BYTES)
            for entry in entries:
                if not options.get("only_expired") or 0 < expires_ns_of(entry.message) <= now_ns:
                    count += 1
                    size_bytes += len(entry.message.payload)
            yield None
        if count:
            yield f"{are(count, 'retained message')} deleted ({size_bytes:,} bytes of payloads)."

    def _of_delayed(self, change: Change) -> Sentences:
        message = self._hub.delayed.get(change.target.name).message
        yield f"The message on {message.topic!r} of client {message.client.client_id!r} is not published."

    # -- counting --

    def _tally(
        self, wanted: Callable[[Session], bool], prefix: str = ""
    ) -> Generator[None, None, _Tally]:
        tally = _Tally()
        after = ""
        while sessions := self._hub.sessions.following(after, SLICE, prefix):
            for session in sessions:
                if wanted(session):
                    tally.add(session)
            after = sessions[-1].client_id
            yield None
        return tally

    def _delayed(self, wanted: Callable[[Client], bool]) -> int:
        """Delayed messages of clients that would be published, among those that are due first."""
        clients = (
            delayed_message.message.client
            for delayed_message in self._hub.delayed.page(None, MAX_LISTED)
        )
        return sum(
            wanted(client) and not self._hub.access.has_lost_its_user(client) for client in clients
        )

    def _checked_again(self, authorizer: Authorizer) -> Sentences:
        """The subscriptions and wills that connected clients lose."""
        clients = losing = lost = wills = 0
        for number, c in enumerate(self._hub.connections, 1):
            if number % _AT_ONCE == 0:
                yield None
            if c.subject is None or not c.is_connected or c.is_closed:
                continue
            clients += 1
            rulings = authorizer.rulings(c.subject)
            session = c.session
            of_client = sum(
                rulings.subscribe(subscription.filter, subscription.qos).is_denied
                for subscription in session.subscriptions.values()
            )
            lost = lost + of_client
            losing = losing + bool(of_client)
            if (will := session.will) is not None:
                topic = undelayed(self._hub.plans.meant(will.topic.encode(), c.client))
                wills += rulings.publish(topic, will.qos, will.retain).is_denied
        if lost:
            ended = f"{counted(lost, 'subscription')} of {counted(losing, 'connected client')}"
            yield f"{ended} {'ends' if lost == 1 else 'end'}."
        if wills:
            yield f"{are(wills, 'will')} not published."
        if clients:
            yield f"{are(clients, 'connected client')} checked by the rules that result."


# By kind, the effects on clients.
_OF_KIND: Final[Mapping[str, Callable[[ClientImpact, Change], Sentences]]] = {
    "user": ClientImpact._of_user,
    "ban": ClientImpact._of_ban,
    "client": ClientImpact._of_client,
    "session": ClientImpact._of_session,
    "listener": ClientImpact._of_listener,
    "access rule": ClientImpact._of_rule,
    "source of rules": ClientImpact._of_source,
    "authenticator": ClientImpact._of_authenticator,
    "auto-subscription": ClientImpact._of_auto_subscription,
    "rewrite": ClientImpact._of_rewrite,
    "retained message": ClientImpact._of_retained,
    "delayed message": ClientImpact._of_delayed,
}


def _account(client: Client) -> str | None:
    """The broker's own user that a client logged in as."""
    account = None if client.standing is None else client.standing.account
    return None if account is None else account[0]


def _has(session: Session, template: str) -> bool:
    try:
        return filter_for(template, session.client) in session.subscriptions
    except UnsafeName:
        return False


def _disconnected(tally: _Tally) -> Iterator[str]:
    if tally.connected:
        yield f"{are(tally.connected, 'client')} disconnected."


def _ended(tally: _Tally) -> Iterator[str]:
    if tally.sessions:
        waiting = counted(tally.waiting, "message")
        ends = "ends" if tally.sessions == 1 else "end"
        yield f"{counted(tally.sessions, 'session')} {ends}, with {waiting} waiting."
