"""What holds for all connections of a node at this moment."""

from __future__ import annotations

from typing import Final

from broker.connection.settings import MqttSettings
from broker.core.clock import Clock
from broker.core.tally import Tally

TICK_S: Final = 0.5
"""How often ``Hub.tick`` is to be called; keep-alive is enforced this exactly."""
_MOST_QOS: Final = 2


class NodeState:
    """What all connections of a node go by. ``settings`` are those of the default zone."""

    __slots__ = ("aliased", "greeted", "is_stopping", "now_s", "origin", "restricts_publish", "settings")

    settings: MqttSettings
    restricts_publish: bool
    """Whether there are publishes that clients may not make, by QoS or RETAIN."""

    def __init__(self, settings: MqttSettings, clock: Clock) -> None:
        self.now_s = clock.monotonic_s()
        """The monotonic clock at the last tick."""
        self.is_stopping = False
        self.origin = ""
        """Identifies the node among others (``broker.core.origin``)."""
        self.aliased, self.greeted = Tally(), Tally()
        """What clients have the broker keep: topics of aliases, user properties of their CONNECTs."""
        self.use(settings)

    def use(self, settings: MqttSettings) -> None:
        """Have these settings from now on."""
        self.settings = settings
        self.restricts_publish = settings.maximum_qos < _MOST_QOS or not settings.retain_available
