"""What all share groups of a node use, and whom they tell."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from broker.connection.brake import Crowded
from broker.connection.sharing.settings import SharedSettings
from broker.connection.sharing.state import GroupState
from broker.core.client import Client
from broker.core.clock import Clock
from broker.core.message import Message
from broker.core.topic import TopicFilter
from broker.observe.metrics import Counter
from broker.storage.store import LogShard

NO_MESSAGE: Final = Message("", b"", 0, False, Client(""), 0)
"""Stands for one that is no more, and for any where its content does not matter."""

Found = Sequence[tuple[int, Message | None]]
"""Offsets and what stands there; None for what is not meant for groups."""


class Losses(Protocol):
    """Told of messages that nobody of a group gets."""

    def wants(self, why: str) -> bool:
        """Whether somebody wants to know of those that are lost for this reason."""
        ...

    def take(self, topic_filter: TopicFilter, message: Message, why: str) -> None:
        """The group with this filter has lost a message."""
        ...


@dataclass(slots=True)
class GroupServices:
    """What all groups share. ``read`` gives what is committed and was told of, ``changed`` has the record written."""

    settings: SharedSettings
    clock: Clock
    read: Callable[[LogShard, int, int], Found]
    first_offset: Callable[[LogShard], int]
    next_offset: Callable[[LogShard], int]
    log_next: Callable[[], int]
    defer: Callable[[Callable[[], None]], object]
    changed: Callable[[GroupState], None]
    when_recorded: Callable[[GroupState, Callable[[BaseException | None], None]], None]
    dropped: Callable[[str], Counter]
    redelivered: Counter
    crowded: Callable[[Crowded], None]
    relieved: Callable[[Crowded], None]
    losses: Losses
