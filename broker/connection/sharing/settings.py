"""Settings of shared subscriptions, section ``shared_subscription``."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from broker.config.model import Settings
from broker.config.units import Duration, Size
from broker.connection.sharing.strategies import StrategyName


class ShareGroupSettings(Settings):
    """Settings of all groups of one share name, in place of the general settings."""

    strategy: StrategyName | None = None
    """Same as `shared_subscription.strategy`."""
    durable: bool = False
    """Keep a group of this name without members: from its first subscription on, messages of QoS 1 and 2 wait for it,
    within the bounds of `shared_subscription`, until it is deleted."""
    ack_deadline: Duration | None = None
    """Same as `shared_subscription.ack_deadline`."""


class SharedSettings(Settings):
    """Distribution of messages in share groups, and the messages that wait while no member can take one."""

    strategy: StrategyName = "round_robin"
    """Choice of the member that gets a message: `round_robin`, `random` or `least_inflight` among those with room in
    their windows; or one member for all messages of a key, in order: of a publisher and topic (`sticky`), of a
    publisher (`hash_clientid`), of a topic (`hash_topic`)."""
    durable: Literal["auto", "all", "off"] = "auto"
    """Groups that keep their messages on disk: `auto` those with a member whose session outlives its connection, `all`
    every one; with `off` such sessions are refused (0x9E)."""
    ack_deadline: Duration = Field(default=0, ge=0)
    """Seconds after which a QoS 1 message that a connected member has not acknowledged is given to another as well; 0
    waits as long as the connection lasts."""
    unsubscribe_timeout: Duration = Field(default=10, ge=0)
    """Seconds that a member which left the group has to acknowledge what it was sent; then others get it."""
    retained: Literal["none", "first_member"] = "none"
    """Send retained messages to the first member of a group. MQTT 5 says that no member gets them."""
    max_queued_messages: int = Field(default=10_000, ge=1)
    """Maximum messages that wait in memory for one group without durable members, when the windows of all are full;
    then the oldest is dropped."""
    max_queued_bytes: Size = Field(default=64 * 1024 * 1024, ge=1024)
    """Bytes of such messages."""
    max_waiting_messages: int = Field(default=1_000_000, ge=1)
    """Maximum messages that wait on disk for one durable group; then the oldest is dropped."""
    max_waiting_bytes: Size = Field(default=1024**3, ge=1024)
    """Bytes of such messages."""
    max_waiting_age: Duration = Field(default=7 * 86_400, gt=0)
    """Seconds that a message waits for a durable group before it is dropped."""
    groups: dict[str, ShareGroupSettings] = Field(default_factory=dict)
    """Settings for single share names: `groups.NAME { strategy = hash_topic }`."""

    def strategy_of(self, name: str | None) -> StrategyName:
        """The strategy of groups of a share name; None is a subscription that begins in the past."""
        own = self.groups.get(name) if name is not None else None
        return self.strategy if own is None or own.strategy is None else own.strategy

    def is_kept(self, name: str | None) -> bool:
        """Return whether groups of a share name outlive their members."""
        return name is not None and name in self.groups and self.groups[name].durable

    def ack_deadline_of(self, name: str | None) -> float:
        """The acknowledgement deadline of groups of a share name, in seconds; 0 is none."""
        own = self.groups.get(name) if name is not None else None
        return self.ack_deadline if own is None or own.ack_deadline is None else own.ack_deadline
