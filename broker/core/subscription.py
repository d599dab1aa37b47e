"""A subscription, as session and routing both see it."""

from __future__ import annotations

from dataclasses import dataclass

from broker.core.topic import TopicFilter


@dataclass(frozen=True, slots=True)
class Subscription:
    """One subscription of one session. ``since_offset`` is where in the session log it begins to hold."""

    filter: TopicFilter
    qos: int
    no_local: bool = False
    retain_as_published: bool = False
    retain_handling: int = 0
    identifier: int = 0
    since_offset: int = 0
    is_replayed: bool = False
    """True if it began in the past, and so reads a stream."""

    @property
    def is_membership(self) -> bool:
        """True for a member of a group: a shared subscription, or one that began in the past."""
        return self.is_replayed or self.filter.share_group is not None
