"""Share groups as users see them: members, waiting and in-flight messages; created and deleted.

A group is named by the filter that its members subscribe to, ``$share/NAME/FILTER``. Subscriptions that begin in the
past are groups of one client, named ``$replay/CLIENT_ID/FILTER``.
"""

from __future__ import annotations

import builtins
from collections.abc import Sequence
from itertools import islice
from typing import Final

from pydantic import Field
from typing_extensions import TypedDict

from broker.config.model import Settings
from broker.config.spec_problems import parsed
from broker.connection.sharing.group import ShareGroup
from broker.connection.sharing.groups import ShareGroups
from broker.connection.sharing.strategies import StrategyName
from broker.core.errors import Invalid, NotFound, PeerError, Problem
from broker.core.objects import Spec, Version, etag_of
from broker.core.topic import SHARE_PREFIXES, TopicFilter

MAX_MEMBERS_SHOWN: Final = 1000
_WHAT: Final = "the share group cannot be created"


class GroupSpec(Settings):
    """A share group that outlives its members."""

    group: str = Field(
        description="What its members subscribe to: `$share/NAME/FILTER` or `$queue/FILTER`."
    )
    strategy: StrategyName | None = Field(
        default=None, description="How messages are dealt. Default: as set."
    )
    start: str | None = Field(
        default=None, description="Where in a stream it begins: an offset, a time, `earliest`."
    )
    stream: str | None = Field(
        default=None, description="The stream, where several capture the topics."
    )


class GroupRow(TypedDict):
    """A share group with its figures, those of all cells added up. `name` is the NAME in `$share/NAME/FILTER`;
    `waiting` counts queued messages, `behind` the records of its stream that it has not read."""

    group: str
    name: str | None
    filter: str
    strategy: str
    durable: bool
    outlives_members: bool
    stream: str | None
    members: int
    connected: int
    waiting: int
    waiting_bytes: int
    inflight: int
    delivered: int
    redelivered: int
    behind: int | None


class GroupMember(TypedDict):
    """A member of a share group, and the messages that it has."""

    clientid: str
    connected: bool
    durable: bool
    qos: int
    inflight: int
    queued: int


class GroupPosition(TypedDict):
    """Position of a share group in a shard of its stream, and the number of messages before it that are not
    acknowledged."""

    shard: int
    position: str
    unsettled: int


class GroupView(GroupRow):
    """A share group with its members, at most 1,000, and its positions in a stream."""

    member_list: list[GroupMember]
    places: list[GroupPosition]


class GroupService:
    """Lists, shows, creates and deletes share groups. Used on the event loop."""

    kind: Final = "share group"

    def __init__(self, groups: ShareGroups) -> None:
        self._groups = groups

    def list(self) -> Sequence[GroupRow]:
        """Every group with its figures, by name."""
        return [_row(group) for _, group in sorted(self._groups.groups.items())]

    def get(self, name: str) -> GroupView:
        """One group with its members, at most ``MAX_MEMBERS_SHOWN`` of them, and its places in a stream.

        Raises:
            NotFound: there is none.
        """
        group = self._groups.groups.get(name)
        if group is None:
            raise NotFound(self.kind, name, "GET /api/v1/groups lists all")
        members: builtins.list[GroupMember] = [
            {
                "clientid": member.client_id,
                "connected": not member.session.is_away,
                "durable": member.session.is_durable,
                "qos": member.qos,
                "inflight": member.in_flight,
                "queued": len(member.lane),
            }
            for member in islice(group.own_members, MAX_MEMBERS_SHOWN)
        ]
        places: builtins.list[GroupPosition] = [
            {
                "shard": cursor.shard.shard,
                "position": str(group.position(cursor)),
                "unsettled": len(cursor.pending),
            }
            for cursor in group.cursors
        ]
        return {**_row(group), "member_list": members, "places": places}

    def saved_version(self, name: str) -> Version:
        """The version of a group, which is created and deleted, not changed."""
        shown = self.get(name)
        return Version(
            etag_of({member: shown[member] for member in ("group", "strategy", "stream")})
        )

    def create(self, spec: Spec) -> GroupView:
        """Create a group that outlives its members; returns it as ``get`` does.

        Raises:
            Invalid: its name is not a shared filter, or its start is not in a stream.
            AlreadyExists: there is one of that name.
        """
        wanted = parsed(GroupSpec, spec, _WHAT)
        topic_filter = _shared_filter(wanted.group)
        begins = None
        if wanted.start is not None:
            if self._groups.starts is None:
                raise _invalid("this broker has no streams to begin in", "/start")
            try:
                begins = self._groups.starts.find(topic_filter, wanted.start, wanted.stream)
            except Invalid as error:
                raise _invalid(str(error), "/start") from error
        self._groups.make(topic_filter, begins, wanted.strategy)
        return self.get(wanted.group)

    def delete(self, name: str) -> None:
        """Discard the messages that wait for a group; one with members ends with the last of them.

        Raises:
            NotFound: there is none.
        """
        self._groups.delete(name)


def _row(group: ShareGroup) -> GroupRow:
    """The part of a group that this cell has: its own members, and what waits here."""
    members = group.own_members
    return {
        "group": group.key,
        "name": group.filter.share_group,
        "filter": group.filter.filter,
        "strategy": group.strategy_name,
        "durable": group.is_persistent,
        "outlives_members": group.is_kept,
        "stream": group.stream,
        "members": len(members),
        "connected": group.connected,
        "waiting": group.waiting,
        "waiting_bytes": group.waiting_bytes,
        "inflight": sum(member.in_flight for member in members),
        "delivered": group.given,
        "redelivered": group.redelivered,
        "behind": group.behind,
    }


def _shared_filter(name: str) -> TopicFilter:
    if not name.startswith(SHARE_PREFIXES):
        raise _invalid(
            "group is what its members subscribe to, as $share/NAME/FILTER or $queue/FILTER",
            "/group",
        )
    try:
        return TopicFilter.parse(name)
    except PeerError as error:
        raise _invalid(str(error), "/group") from error


def _invalid(text: str, pointer: str) -> Invalid:
    return Invalid(_WHAT, [Problem(text, pointer)])
