"""Everything that depends on a topic alone, worked out once and kept until something changes.

Plans are keyed by the topic's bytes as received, so that the hit needs no decoding; the topic is checked when its plan
is made. The cache is bounded by plans and by bytes: when full, the oldest quarter goes. Topics of more than
``MAX_CACHED_TOPIC_BYTES`` are planned for each message.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Protocol

from broker.codec.primitives import decode_text
from broker.core.client import Client
from broker.core.clock import Clock
from broker.core.stage import (
    ActsByObjects,
    Gate,
    GateCall,
    HasParts,
    RecordedTap,
    Tap,
    TapCall,
    WaitingGateCall,
)
from broker.core.topic import MAX_TOPIC_BYTES, TopicFilter, check_topic_name, is_reserved
from broker.pipeline.recording import RecordedWatch, Recorders, TopicRecorder
from broker.pipeline.tails import Tails, Watch
from broker.routing.router import Routes
from broker.session.session import Session

SessionRoutes = Routes[Session]

# Maximum number of topics about which anything is remembered.
MAX_CACHED_TOPIC_BYTES: Final = 1024
# Bytes that a plan takes in addition to its topic, which it holds twice.
_PLAN_BYTES: Final = 600
# Calls of stages that are kept for further topics.
_MOST_SHARED: Final = 1000
# Bytes that the beginning of a packet takes in addition to its own.
_HEAD_BYTES: Final = 150


class TopicPlan:
    """The stages and routes of one topic.

    ``is_reserved`` means that the broker alone publishes there, which ``Pipeline`` checks; ``is_staged`` that there is
    a gate or a tap; ``waits`` that a gate may wait for another process, and then the gates are for ``Pipeline.decide``
    only. ``resolve`` is there where clients that publish to the topic get another plan than this one, by their
    identity: their messages are taken by that one. ``recorder`` chooses messages that are recorded.
    """

    __slots__ = (
        "gates", "is_reserved", "is_staged", "recorder", "resolve", "routes", "taps", "topic", "topic_bytes", "waits",
    )  # fmt: skip

    def __init__(
        self,
        topic: str,
        topic_bytes: bytes,
        gates: tuple[tuple[str, GateCall | WaitingGateCall], ...],
        taps: tuple[tuple[str, TapCall], ...],
        routes: SessionRoutes,
        resolve: Callable[[Client], TopicPlan] | None = None,
        recorder: TopicRecorder | None = None,
    ) -> None:
        self.recorder = recorder
        self.topic = topic
        self.topic_bytes = topic_bytes
        self.gates = gates
        self.taps = taps
        self.routes = routes
        self.resolve = resolve
        self.is_reserved = is_reserved(topic)
        self.is_staged = bool(gates or taps or resolve)
        self.waits = any(isinstance(call, WaitingGateCall) for _, call in gates)

    def after_gates(self) -> TopicPlan:
        """The same for a message that has passed all gates."""
        return TopicPlan(self.topic, self.topic_bytes, (), self.taps, self.routes)


Resolve = Callable[[Client], TopicPlan]
# Routes and size of packets.
Kind = tuple[SessionRoutes, int]


class TopicMeanings(Protocol):
    """Meaning of topics for the clients that publish to them."""

    def for_clients(self, topic: str, final: Callable[[bytes], TopicPlan], /) -> Resolve | None:
        """Function by which clients that publish to a topic get their plan, None for the topic's own; asked once a
        topic. ``final`` is ``Plans.final``."""

    def meaning(self, topic: str, client: Client, /) -> str:
        """The topic on which a message is published that a client publishes to another."""

    def special(self, topic: str, topic_bytes: bytes, /) -> TopicPlan | None:
        """A plan without stages and subscribers, such as that of messages kept to be published later; asked once a
        topic."""


class Plans:
    """The cache of plans; ``broker.core.stage.Plans`` for features. ``by_topic`` is read by the hot path.

    It holds plans for clients that publish: one with ``resolve`` sends them on. ``final`` gives the plan of a topic
    that is no longer checked in this way. ``watched`` gives routes that also show their messages to a watch.
    """

    def __init__(
        self,
        routes: Callable[[str], SessionRoutes],
        forget_routes: Callable[[], None],
        meanings: TopicMeanings,
        clock: Clock,
        max_plans: int,
        max_levels: int,
        max_topic_bytes: int = MAX_TOPIC_BYTES,
        max_bytes: int = 64 * 1024 * 1024,
        watched: Callable[[SessionRoutes, Any], SessionRoutes] = lambda routes, watch: routes,
    ) -> None:
        self._routes = routes
        self._forget_routes = forget_routes
        self._meanings = meanings
        # half for each
        self._max_bytes = max_bytes // 2
        self._plans_bytes = 0
        self._heads_bytes = 0
        self._max_plans = max_plans
        self._max_levels = max_levels
        self._max_topic_bytes = max_topic_bytes
        self._watched, self.tails = watched, Tails(clock, self._forget_all)
        self.recorders = Recorders(self._forget_all)
        self._gates: Sequence[Gate] = ()
        self._taps: Sequence[Tap] = ()
        self._with_parts: list[tuple[str, HasParts]] = []
        self.by_topic: dict[bytes, TopicPlan] = {}
        self.by_head: dict[bytes, Kind] = {}
        """Kind of packet of a QoS 0 PUBLISH whose topic is in ``by_topic`` and has no stages, by its bytes before
        the payload: one look where the hot path needs no more."""
        self._kinds: dict[tuple[int, int], Kind] = {}
        self._acting: dict[int, Callable[[str], tuple[object, ...] | None]] = {}
        """``acting`` of the stages that have it, by the stage's identity."""
        self._shared: dict[tuple[int, ...], tuple[object, object]] = {}
        """The calls of stages by the identities of a stage and of its objects that act on a topic, with these objects.
        A thousand devices with a topic each then run the same few functions, whose data is in the processor's cache."""
        self._final: dict[bytes, TopicPlan] = {}
        """Topics whose plan in ``by_topic`` has ``resolve``; few."""

    def set_stages(self, gates: Sequence[Gate], taps: Sequence[Tap]) -> None:
        """Use these gates and taps, in this order, from the next message on."""
        self._gates, self._taps = tuple(gates), tuple(taps)
        self._with_parts = [(tap.name, tap) for tap in taps if isinstance(tap, HasParts)]
        self._acting = {
            id(stage): stage.acting for stage in (*gates, *taps) if isinstance(stage, ActsByObjects)
        }
        self.invalidate()

    def limit(self, max_levels: int, max_topic_bytes: int) -> None:
        """Change the limits of topics, from the next topic on."""
        self._max_levels = max_levels
        self._max_topic_bytes = max_topic_bytes
        self.invalidate()

    def invalidate(self) -> None:
        """Forget all plans. The dictionary stays the same object: the hot path holds on to it."""
        self._shared.clear()
        self._forget_all()
        self._forget_routes()

    @property
    def size_bytes(self) -> int:
        """About how many bytes what is remembered takes."""
        return self._plans_bytes + self._heads_bytes

    def forget(self, topic_filter: TopicFilter) -> None:
        """Forget the plans of topics that a filter matches."""
        if "+" in topic_filter.levels or "#" in topic_filter.levels:
            self._forget_all()
        else:
            topic_bytes = topic_filter.filter.encode()
            if self._drop(self.by_topic, topic_bytes):
                self._forget_heads()
            self._drop(self._final, topic_bytes)

    def _forget_all(self) -> None:
        self.by_topic.clear()
        self._final.clear()
        self._plans_bytes = 0
        self._forget_heads()

    def _drop(self, cache: dict[bytes, TopicPlan], topic_bytes: bytes) -> bool:
        if cache.pop(topic_bytes, None) is None:
            return False
        self._plans_bytes -= _PLAN_BYTES + 2 * len(topic_bytes)
        return True

    def remember_head(self, head: bytes, routes: SessionRoutes, size: int) -> Kind:
        """QoS 0 packets that begin with these bytes have these routes and this size, and no stages, until something
        changes. Returns their kind: the same object for all that have both alike."""
        if len(head) > MAX_CACHED_TOPIC_BYTES:
            return routes, size
        if len(self.by_head) >= self._max_plans or self._heads_bytes >= self._max_bytes:
            self._forget_heads()
        self._heads_bytes += _HEAD_BYTES + len(head)
        kind = self.by_head[head] = self._kinds.setdefault((id(routes), size), (routes, size))
        return kind

    def _forget_heads(self) -> None:
        self.by_head.clear()
        self._kinds.clear()
        self._heads_bytes = 0

    def plan(self, topic_bytes: bytes) -> TopicPlan:
        """The plan of a topic, made if need be.

        Raises:
            PeerError: 0x81 when the bytes are not UTF-8 text, 0x90 when they are not a valid topic name.
        """
        return self.by_topic.get(topic_bytes) or self._make(topic_bytes)

    def final(self, topic_bytes: bytes) -> TopicPlan:
        """The plan of a topic for messages that no client publishes there: nothing is rewritten or refused.

        Raises:
            PeerError: as ``plan``.
        """
        plan = self.plan(topic_bytes)
        if plan.resolve is None:
            return plan
        return self._final.get(topic_bytes) or self._keep(
            self._final, self._planned(plan.topic, topic_bytes)
        )

    def meant(self, topic_bytes: bytes, client: Client) -> str:
        """The topic on which a client's message is published; nothing is planned.

        Raises:
            PeerError: as ``plan``.
        """
        plan = self.by_topic.get(topic_bytes)
        return self._meanings.meaning(
            self._checked(topic_bytes) if plan is None else plan.topic, client
        )

    def _checked(self, topic_bytes: bytes) -> str:
        topic = decode_text(topic_bytes, "the topic of a PUBLISH")
        check_topic_name(topic, self._max_levels, self._max_topic_bytes)
        return topic

    def _make(self, topic_bytes: bytes) -> TopicPlan:
        topic = self._checked(topic_bytes)
        resolve = self._meanings.for_clients(topic, self.final)
        if resolve is None:
            plan = self._planned(topic, topic_bytes)
        else:
            plan = TopicPlan(topic, topic_bytes, (), (), self._routes(topic), resolve)
        return self._keep(self.by_topic, plan)

    def _planned(self, topic: str, topic_bytes: bytes) -> TopicPlan:
        if (
            topic.startswith("$")
            and (special := self._meanings.special(topic, topic_bytes)) is not None
        ):
            return special
        routes = self._routes(topic)
        if not (self._gates or self._taps or self.tails.is_open or self.recorders.is_on):
            return TopicPlan(topic, topic_bytes, (), (), routes)
        gates: tuple[tuple[str, GateCall | WaitingGateCall], ...]
        gates = tuple(
            (gate.name, call)
            for gate in self._gates
            if (call := self._call(gate, topic)) is not None
        )
        taps = tuple(
            (tap.name, look) for tap in self._taps if (look := self._call(tap, topic)) is not None
        )
        watch: Watch | RecordedWatch | None = None
        if self.tails.is_open and (tails := self.tails.watch(topic)) is not None:
            if gates or taps:
                gates = (("tail", tails.arrives), *gates, ("tail", tails.passes))
            else:
                watch = tails
        recorder = self.recorders.of_topic(topic) if self.recorders.is_on else None
        if recorder is not None and not (gates or taps):
            watch = self.recorders.watch(recorder, watch)
        if watch is not None:
            routes = self._watched(routes, watch)
        return TopicPlan(topic, topic_bytes, gates, taps, routes, None, recorder)

    def parts(self, topic: str) -> Mapping[str, Sequence[tuple[str, RecordedTap]]]:
        """The parts of the taps that consist of some, by name, for a message that is recorded."""
        return {name: tap.parts(topic) for name, tap in self._with_parts}

    def _call(self, stage: Gate | Tap, topic: str) -> Any:
        """Action of a stage on a topic: as on the topics before, where the same of its objects act."""
        ask = self._acting.get(id(stage))
        acting = None if ask is None else ask(topic)
        if acting is None:
            return stage.plan(topic)
        key = (id(stage), *map(id, acting))
        shared = self._shared.get(key)
        if shared is None:
            if len(self._shared) >= _MOST_SHARED:
                self._shared.clear()
            shared = self._shared[key] = (acting, stage.plan(topic))
        return shared[1]

    def _keep(self, cache: dict[bytes, TopicPlan], plan: TopicPlan) -> TopicPlan:
        size = len(plan.topic_bytes)
        if size > MAX_CACHED_TOPIC_BYTES:
            return plan
        if len(cache) >= self._max_plans or self._plans_bytes >= self._max_bytes:
            for full in (self.by_topic, self._final):
                for oldest in list(full)[: -(-len(full) // 4)]:
                    self._drop(full, oldest)
            self._forget_heads()
        self._plans_bytes += _PLAN_BYTES + 2 * size
        cache[plan.topic_bytes] = plan
        return plan
