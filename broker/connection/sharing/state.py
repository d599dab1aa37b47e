"""What is known of one share group, beside its messages and members."""

from __future__ import annotations

from broker.core.topic import TopicFilter


class GroupState:
    """``key`` is the text of the subscription, or stands for one that began in the past.

    ``is_kept`` tells that the group outlives its members. ``outstanding`` and ``outstanding_bytes`` are what is in the
    session log for it and not settled. ``is_persistent`` tells that its place in a log is kept in the store.
    """

    def __init__(self, key: str, topic_filter: TopicFilter, created_ns: int) -> None:
        self.key, self.filter, self.created_ns = key, topic_filter, created_ns
        self.is_durable = self.is_kept = self.is_over = False
        self.is_private = self.is_persistent = False
        self.in_flight = self.outstanding = self.outstanding_bytes = 0
        self.given = self.redelivered = 0
