"""What depends on a topic alone, worked out once and kept until something changes.

Plans are keyed by the topic's bytes as received, so that the hit needs no decoding; the topic is checked when its plan
is made. The cache is bounded: when full, the oldest quarter goes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from broker.codec.wire import decode_text
from broker.core.stage import Gate, GateCall, Tap, TapCall, WaitingGateCall
from broker.core.topic import TopicFilter, check_topic_name

R = TypeVar("R")


class TopicPlan(Generic[R]):
    """The stages and routes of one topic.

    ``is_staged`` tells that there is a gate or a tap; ``waits`` that a gate may wait for another process, and then the
    gates are for ``Pipeline.decide`` only.
    """

    __slots__ = ("gates", "is_staged", "routes", "taps", "topic", "topic_bytes", "waits")

    def __init__(
        self,
        topic: str,
        topic_bytes: bytes,
        gates: tuple[tuple[str, GateCall | WaitingGateCall], ...],
        taps: tuple[tuple[str, TapCall], ...],
        routes: R,
    ) -> None:
        self.topic, self.topic_bytes = topic, topic_bytes
        self.gates, self.taps, self.routes = gates, taps, routes
        self.is_staged = bool(gates or taps)
        self.waits = any(isinstance(call, WaitingGateCall) for _, call in gates)

    def after_gates(self) -> TopicPlan[R]:
        """The same for a message that has passed all gates."""
        return TopicPlan(self.topic, self.topic_bytes, (), self.taps, self.routes)


class Plans(Generic[R]):
    """The cache of plans; ``broker.core.stage.Plans`` for features. ``by_topic`` is read by the hot path."""

    def __init__(
        self, routes: Callable[[str], R], forget_routes: Callable[[], None], max_plans: int, max_levels: int
    ) -> None:
        self._routes, self._forget_routes = routes, forget_routes
        self._max_plans, self._max_levels = max_plans, max_levels
        self._gates: Sequence[Gate] = ()
        self._taps: Sequence[Tap] = ()
        self.by_topic: dict[bytes, TopicPlan[R]] = {}
        self.generation = 0

    def set_stages(self, gates: Sequence[Gate], taps: Sequence[Tap]) -> None:
        """Use these gates and taps, in this order, from the next message on."""
        self._gates, self._taps = tuple(gates), tuple(taps)
        self.invalidate()

    def invalidate(self) -> None:
        """Forget all plans. The dictionary stays the same object: the hot path holds on to it."""
        self.generation += 1
        self.by_topic.clear()
        self._forget_routes()

    def forget(self, topic_filter: TopicFilter) -> None:
        """Forget the plans of topics that a filter matches."""
        if "+" in topic_filter.levels or "#" in topic_filter.levels:
            self.generation += 1
            self.by_topic.clear()
        else:
            self.by_topic.pop(topic_filter.filter.encode(), None)

    def plan(self, topic_bytes: bytes) -> TopicPlan[R]:
        """The plan of a topic, made if need be.

        Raises:
            PeerError: 0x81 when the bytes are not UTF-8 text, 0x90 when they are no topic name.
        """
        return self.by_topic.get(topic_bytes) or self._make(topic_bytes)

    def _make(self, topic_bytes: bytes) -> TopicPlan[R]:
        topic = decode_text(topic_bytes, "the topic of a PUBLISH")
        check_topic_name(topic, self._max_levels)
        gates = tuple((gate.name, call) for gate in self._gates if (call := gate.plan(topic)) is not None)
        taps = tuple((tap.name, look) for tap in self._taps if (look := tap.plan(topic)) is not None)
        plan = TopicPlan(topic, topic_bytes, gates, taps, self._routes(topic))
        if len(self.by_topic) >= self._max_plans:
            for oldest in list(self.by_topic)[: max(self._max_plans // 4, 1)]:
                del self.by_topic[oldest]
        self.by_topic[topic_bytes] = plan
        return plan
