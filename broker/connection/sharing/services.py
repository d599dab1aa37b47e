"""The state of one share group, and what all groups of a node use."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Protocol

from broker.connection.backpressure import Backpressure
from broker.connection.context import Context
from broker.connection.dead_letters import DeadLetters
from broker.connection.sessions.log import SessionLog
from broker.connection.sharing.settings import SharedSettings
from broker.connection.withholding import Withholding
from broker.core.client import Client
from broker.core.events import Events, delivery_columns
from broker.core.message import Message
from broker.core.stream import ShardRange
from broker.core.topic import TopicFilter
from broker.session.delivery import SharedDelivery
from broker.storage.store import LogShard

# Begins claims on messages of another cell's part of a group.
OF_CELL: Final = "\0cell:"
# Stands for one that is no more, and for any where its content does not matter.
NO_MESSAGE: Final = Message("", b"", 0, False, Client(""), 0)


class GroupState:
    """``key`` is the text of the subscription, or made from one that began in the past.

    ``is_kept`` means that the group outlives its members. ``outstanding`` and ``outstanding_bytes`` are what is in the
    session log for it and not settled. ``is_persistent`` means that its position in a log is in the store.
    ``in_flight`` is what its members have, also those in other cells, and ``borrowed`` what members here have from the
    group's parts in other cells.
    """

    def __init__(self, key: str, topic_filter: TopicFilter, created_ns: int) -> None:
        self.key = key
        self.filter = topic_filter
        self.created_ns = created_ns
        self.is_durable = self.is_kept = self.is_over = False
        self.is_private = self.is_persistent = False
        self.in_flight = self.borrowed = self.outstanding = self.outstanding_bytes = 0
        self.given = self.redelivered = self.settled_count = 0


class GroupLosses:
    """Messages that no member of a share group gets: the event that rules may read, and the dead letter.

    To rules, the client that did not get a message is the group. What a group discards after its last member left is
    counted (``group_ended``) and not reported here.
    """

    def __init__(self, events: Events, dead_letters: DeadLetters) -> None:
        self._events = events
        self._dead_letters = dead_letters

    def wants(self, why: str) -> bool:
        """True if a rule or a dead letter is made of messages lost for this reason."""
        return "delivery.dropped" in self._events.wanted or why in self._dead_letters.reasons

    def take(self, topic_filter: TopicFilter, message: Message, why: str) -> None:
        """The group with this filter has lost a message."""
        if "delivery.dropped" in self._events.wanted:
            columns = delivery_columns(message, Client(topic_filter.text))
            self._events.emit("delivery.dropped", {**columns, "reason": why}, message)
        self._dead_letters.take_of_group(topic_filter, message, why)


class Origin:
    """Source of a message that another cell's part of the group granted to a member of this cell. In the place of a
    cursor, it hears how the message ends."""

    __slots__ = ()

    def settled(self, delivery: SharedDelivery) -> None:
        """No member needs the message any longer."""
        raise NotImplementedError

    def returned(self, delivery: SharedDelivery) -> bool:
        """The member was sent it and did not settle it; False if this cell has to give it to another."""
        raise NotImplementedError

    def refused(self, delivery: SharedDelivery, why: str) -> None:
        """The member may not have it, or takes no packet so large."""
        raise NotImplementedError


class OtherCells(Protocol):
    """The parts of a group in other cells (``broker.cluster.shares``)."""

    def told(self, group: Any, member: Any) -> None:
        """A member of this cell joined, came, went, or changed how it is one."""

    def left(self, group: Any, member: Any) -> None:
        """A member of this cell is none any longer."""

    def rejoin(self, group: Any, member: Any) -> None:
        """A member of another cell is in a new group, since its group was deleted."""

    def restore(self, group: Any, members: list[Any], granted: list[Any]) -> None:
        """Restore the members that a group has in other cells, and what was granted to them."""

    def adopt(self, session: Any, packet_id: int, delivery: SharedDelivery) -> bool:
        """Take up what a restored session has in flight from another cell; False if it must be forgotten."""


@dataclass(slots=True)
class GroupServices:
    """Objects that all groups share. ``changed`` has the record of a group written, ``when_recorded`` does so at
    once. ``cells`` is None in a broker of one process."""

    context: Context
    settings: SharedSettings
    session_log: SessionLog
    backpressure: Backpressure
    withholding: Withholding
    losses: GroupLosses
    changed: Callable[[GroupState], None]
    when_recorded: Callable[[GroupState, Callable[[BaseException | None], None]], None]
    cells: OtherCells | None = None

    def range_of(self, shard: LogShard) -> ShardRange:
        """The offsets that a shard of a log holds."""
        return self.context.writer.store.range_of(shard)
