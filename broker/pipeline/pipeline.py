"""The way of a message through its stages: gates, taps, retained store, router.

Every publish passes it, from a client, a will, a rule's republish or the API.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from logging import getLogger
from typing import Any, Final, Protocol

from broker.core import reason
from broker.core.client import BROKER, Client
from broker.core.errors import PeerError
from broker.core.events import Events, message_columns
from broker.core.message import DEAD_LETTER, Message
from broker.core.receipt import Receipt
from broker.core.signals import Signal
from broker.core.stage import GateCall, Outcome, Refusal, TapCall, WaitingGateCall, WithRoom
from broker.core.topic import is_bridge_state, reserved_topic
from broker.observe.metrics import Counter, Metrics
from broker.pipeline.lanes import LaneBounds, Lanes
from broker.pipeline.plan import Plans, SessionRoutes, TopicPlan
from broker.pipeline.recording import (
    Endings,
    RecordedRoutes,
    Recording,
    recorded_gate,
    recorded_tap,
    recorded_waiting_gate,
)
from broker.pipeline.stage_times import TIMED_EVERY_NS, StageTimes
from broker.pipeline.topic_counts import TopicCounts
from broker.routing.retained_store import Retained
from broker.storage.writer import Writer

_log = getLogger(__name__)

_PASSED_ON: Final = Outcome(1)
_STORED: Final = Outcome(1, is_stored=True)
_FAILED: Final = Outcome(0)
# Calls a function after some seconds; in the next turn of the loop for 0.
Later = Callable[[float, Callable[[], None]], object]
DROPPED_HELP: Final = "messages not passed on, by reason"


class Pipeline:
    """Runs the stages; a ``broker.core.stage.Publisher`` for messages made inside the broker.

    ``on_unwanted`` gets messages without subscribers, except those forwarded as received bytes. A stage that raises
    affects its own message only: a gate then refuses it (fail closed), a tap is skipped.
    """

    def __init__(
        self,
        plans: Plans,
        retained: Retained,
        metrics: Metrics,
        events: Events,
        bounds: LaneBounds,
        on_unwanted: Callable[[Message], None],
        topic_counts: TopicCounts,
        with_room: WithRoom,
        crowds: Crowds,
        writer: Writer,
        later: Later,
    ) -> None:
        self._writer = writer
        self._later = later
        self._with_room = with_room
        self._plans = plans
        self._retained = retained
        self._metrics = metrics
        self._events = events
        self._passed = metrics.counter("messages_passed", "messages that passed all gates")
        self._internal = metrics.counter(
            "messages_internal", "messages made inside the broker: rules, API, bridges"
        )
        self._dropped: dict[str, Counter] = {}
        self._refused_by: dict[str, Counter] = {}
        self._on_unwanted = on_unwanted
        self._topic_counts = topic_counts
        self._stage_times = StageTimes(metrics)
        self._timed_ns = 0
        self.on_refusal = Signal[Message, Refusal, Message]()
        """With every message that a stage stopped, and the message as it was published."""
        metrics.gauge(
            "cached_plan_bytes",
            lambda: plans.size_bytes,
            "memory of the plans that are kept by topic",
        )
        self.together = Together(self._deliver, crowds)
        """Messages that passed their stages, gathered to be delivered."""
        self.lanes = Lanes(self._decide_and_conclude, self._not_taken, bounds, metrics)

    def publish(self, message: Message) -> Outcome:
        """Take a message that no client's connection brought."""
        self._internal.value += 1
        plan = self._plan_of(message)
        if isinstance(plan, Outcome):
            return plan
        self._count_topic(message)
        return self._take(message, plan)

    def _count_topic(self, message: Message) -> None:
        """Count a message on its topic whose packet no connection read there."""
        if self._topic_counts.is_on:
            self._topic_counts.count(message.topic, len(message.payload), message.received_ns)

    def _take(self, message: Message, plan: TopicPlan) -> Outcome:
        if plan.waits or message.topic in self.lanes.topics:
            return self.lanes.put(message)
        return self.process(message, plan)

    async def publish_and_wait(self, message: Message) -> Outcome:
        """Publish, and return the outcome of the message where a gate has to wait; once slow subscribers have room."""
        outcome, room = self._with_room(self.publish, message)
        refusal = None if room is None else await room
        if refusal is not None:
            return Outcome(0, refusal)
        return await self.lanes.outcome_of_last(message.topic) if outcome.is_waiting else outcome

    def decided(self, topic: str) -> Awaitable[Outcome]:
        """Future outcome of the message that was published last to a topic, and waits."""
        return self.lanes.outcome_of_last(topic)

    def publish_for_client(self, message: Message) -> Outcome:
        """Publish a message that a client left to be published, its will: where its topic leads a client."""
        self._internal.value += 1
        try:
            plan = self._plans.plan(message.topic.encode())
            if plan.resolve is not None:
                plan = plan.resolve(message.client)
        except (PeerError, UnicodeEncodeError) as error:
            return self._bad_topic(message, error)
        if plan.topic != message.topic:
            message = message.changed(
                plan.topic, message.payload, message.qos, message.retain, message.properties
            )
        self._count_topic(message)
        return self._take(message, plan)

    def dispatch(self, message: Message) -> Outcome:
        """Hand a message made inside the broker to its subscribers and to no one else."""
        self._internal.value += 1
        plan = self._plan_of(message)
        if isinstance(plan, Outcome):
            return plan
        self._passed.value += 1
        self.together.deliver()
        receivers = plan.routes.deliver(message, plan.topic_bytes)
        if not receivers:
            self._unwanted(message)
        return Outcome(receivers)

    def _plan_of(self, message: Message) -> TopicPlan | Outcome:
        """The plan of a message that no connection brought, or whose topic a gate changed; or its outcome, where the
        topic is not valid or only the broker publishes there."""
        try:
            plan = self._plans.final(message.topic.encode())
        except (PeerError, UnicodeEncodeError) as error:
            return self._bad_topic(message, error)
        if plan.is_reserved and not (
            message.client is BROKER or message.via[-1:] == (DEAD_LETTER,)
        ):
            if message.client.is_bridge and is_bridge_state(message.topic):
                return plan
            return self._bad_topic(message, reserved_topic(message.topic))
        return plan

    def _bad_topic(self, message: Message, error: PeerError | UnicodeEncodeError) -> Outcome:
        reason_name = "topic_name_invalid"
        code = reason.TOPIC_NAME_INVALID
        if isinstance(error, PeerError) and error.reason_code == reason.NOT_AUTHORIZED:
            reason_name = "reserved_topic"
            code = error.reason_code
        return Outcome(
            0, self._refused(message, Refusal("topic", "topic", reason_name, code, str(error)))
        )

    def process(
        self, message: Message, plan: TopicPlan, recording: Recording | None = None
    ) -> Outcome:
        """Take a message through the stages of its topic's plan, which does not wait, and deliver it. ``recording`` is
        that of its gates, where they had to wait."""
        if self.together.run:
            self.together.deliver()
        began = self._writer.appended
        passed: Message | Outcome
        if recording is None:
            passed = self._pass_stages(message, plan)
        else:
            passed = self._pass_recorded(recording, message, plan)
        outcome = self._deliver(passed, plan) if isinstance(passed, Message) else passed
        receipt = message.receipt
        if self._writer.appended != began or (receipt is not None and receipt.full_queues):
            return self._waiting(outcome, receipt, is_stored=self._writer.appended != began)
        return outcome

    def gather(self, publisher: object, message: Message, plan: TopicPlan) -> Outcome:
        """Process a message, but gather its delivery with the messages that follow (``Together``)."""
        began = self._writer.appended
        passed = self._pass_stages(message, plan)
        outcome = (
            self.together.add(publisher, passed, plan) if isinstance(passed, Message) else passed
        )
        receipt = message.receipt
        if self._writer.appended != began or (receipt is not None and receipt.full_queues):
            return self._waiting(outcome, receipt, is_stored=self._writer.appended != began)
        return outcome

    def gather_run(
        self,
        publisher: object,
        client: Client,
        payloads: Sequence[bytes],
        plan: TopicPlan,
        now_ns: int,
    ) -> tuple[int, Outcome]:
        """Gather QoS 0 messages of one client that are on one topic.

        Returns:
            How many were taken, and the outcome of the last; it is stored where any was. None is taken behind one whose
            refusal disconnects.
        """
        began = self._writer.appended
        pass_stages = self._pass_stages
        add = self.together.add
        topic = plan.topic
        outcome = _PASSED_ON
        count = 0
        for payload in payloads:
            count += 1
            passed = pass_stages(Message(topic, payload, 0, False, client, now_ns), plan)
            outcome = add(publisher, passed, plan) if isinstance(passed, Message) else passed
            if outcome.refusal is not None and outcome.refusal.disconnect:
                break
        if self._writer.appended != began:
            outcome = self._waiting(outcome, None, is_stored=True)
        return count, outcome

    @staticmethod
    def _waiting(outcome: Outcome, receipt: Receipt | None, *, is_stored: bool) -> Outcome:
        """The outcome with the reasons for which an acknowledgement of the message waits: the present commit group,
        where any stage or delivery left something there, and full queues."""
        full_queues = () if receipt is None else receipt.full_queues
        if outcome is _PASSED_ON and not full_queues:
            return _STORED
        return Outcome(
            outcome.receivers, outcome.refusal, outcome.is_waiting, is_stored, full_queues
        )

    def _pass_recorded(self, recording: Recording, message: Message, plan: TopicPlan) -> Outcome:
        """Take a message through its stages, each of which notes what it does, and deliver it."""
        began = self._writer.appended
        endings = Endings(recording, self._writer.when_committed, self._later)
        outcome = _FAILED
        self.together.deliver()
        try:
            passed = self._pass_stages(message, plan, recording, endings)
            outcome = self._deliver(passed, plan) if isinstance(passed, Message) else passed
        finally:
            endings.end(outcome, is_stored=self._writer.appended != began)
        return outcome

    def deliver_further(self, message: Message, topic: bytes, routes: Any) -> None:
        """Hand a message whose stages ran in another cell to subscribers of this one; its trace continues here."""
        recording = self._plans.recorders.follow(message) if message.via else None
        if recording is None:
            routes.deliver(message, topic)
            return
        endings = Endings(recording, self._writer.when_committed, self._later)
        began = self._writer.appended
        RecordedRoutes(recording, routes, endings).deliver(message, topic)
        endings.end(_PASSED_ON, is_stored=self._writer.appended != began)

    def _recorded_plan(
        self, recording: Recording, endings: Endings, plan: TopicPlan, *, has_gates: bool = True
    ) -> TopicPlan:
        gates: tuple[tuple[str, GateCall], ...] = ()
        taps: tuple[tuple[str, TapCall], ...] = ()
        if plan.gates and has_gates:
            gates = tuple(
                (name, gate if name == "tail" else recorded_gate(recording, name, gate))
                for name, gate in plan.gates
                if not isinstance(gate, WaitingGateCall)
            )
        if plan.taps:
            parts = self._plans.parts(plan.topic)
            taps = tuple(
                (name, recorded_tap(recording, name, tap, parts.get(name, ())))
                for name, tap in plan.taps
            )
        routes: Any = RecordedRoutes(recording, plan.routes, endings)
        return TopicPlan(plan.topic, plan.topic_bytes, gates, taps, routes, plan.resolve)

    def _pass_stages(
        self,
        message: Message,
        plan: TopicPlan,
        recording: Recording | None = None,
        endings: Endings | None = None,
    ) -> Message | Outcome:
        """Take a message through the stages of its topic, which do not wait; with a ``recording`` these note what they
        do. Most messages pass here: a further call would be 1 % of the work.

        Returns:
            The message for delivery by this plan, or the outcome: it was refused, or delivered already since
            it is on another topic now or was measured.
        """
        recorder = plan.recorder
        if recorder is not None and recording is None:
            if recorder.left > 0 and not (message.properties or message.via):
                recorder.left -= 1
            elif (chosen := recorder.begin(message)) is not None:
                return self._pass_recorded(chosen, chosen.entered, plan)
        published = message
        is_alone = False
        if recording is not None and endings is not None:
            plan = self._recorded_plan(recording, endings, plan)
            is_alone = True
        elif plan.is_staged and not 0 <= message.received_ns - self._timed_ns < TIMED_EVERY_NS:
            self._timed_ns = message.received_ns
            plan = self._stage_times.timed(plan)
            is_alone = True
        if plan.gates:
            for name, gate in plan.gates:
                try:
                    result = gate(message)  # type: ignore[operator]  # a plain call, since the plan does not wait
                except Exception:  # noqa: BLE001  one stage must not stop the others
                    result = self._failed_closed(name, message)
                if type(result) is Refusal:
                    return Outcome(0, self._refused(message, result, published))
                message = result  # type: ignore[assignment]  # a gate gives a Refusal or a Message
            if message.topic != plan.topic:
                changed = self._plan_of(message)
                if isinstance(changed, Outcome):
                    return changed
                self._count_topic(message)
                if self._plans.tails.is_open:
                    self._plans.tails.moved(message, plan.topic)
                plan = changed
                if recording is not None and endings is not None:
                    plan = self._recorded_plan(recording, endings, plan, has_gates=False)
                is_alone = True
        if message.retain and (full := self._retained.refusal(message)) is not None:
            return self._stopped(message, full, published)
        for name, tap in plan.taps:
            try:
                refusal = tap(message)
            except Exception:  # noqa: BLE001  one stage must not stop the others
                self._count_error(name, message)
            else:
                if refusal is not None:
                    return self._stopped(message, refusal, published)
        self._passed.value += 1
        if message.retain:
            self._retained.retain(message)
        if not is_alone:
            return message
        self.together.deliver()
        return self._deliver(message, plan)

    def _deliver(self, message: Message, plan: TopicPlan) -> Outcome:
        receivers = plan.routes.deliver(message, plan.topic_bytes)
        if receivers or plan.taps:
            return _PASSED_ON if receivers <= 1 else Outcome(receivers)
        self._unwanted(message)
        return Outcome(0)

    async def decide(self, message: Message, plan: TopicPlan) -> Message | Refusal:
        """Result of the gates for a message, waiting for those that must. Hand it to ``conclude``."""
        recording = None if plan.recorder is None else plan.recorder.begin(message)
        if recording is not None:
            self._plans.recorders.wait(message, recording)
            message = recording.entered
        for name, gate in plan.gates if recording is None else _recorded_gates(recording, plan):
            try:
                result = (
                    await gate.call(message) if isinstance(gate, WaitingGateCall) else gate(message)
                )
            except Exception:  # noqa: BLE001  one stage must not stop the others
                result = self._failed_closed(name, message)
            if isinstance(result, Refusal):
                return result
            message = result
        return message

    def conclude(self, message: Message, decided: Message | Refusal) -> Outcome:
        """Outcome of a message that the gates have decided on, by the plan of this moment."""
        recording = self._plans.recorders.resume(message)
        if isinstance(decided, Refusal):
            began = self._writer.appended
            outcome = Outcome(0, self._refused(message, decided))
            if recording is not None:
                Endings(recording, self._writer.when_committed, self._later).end(
                    outcome, is_stored=False
                )
            return self._waiting(outcome, message.receipt, is_stored=self._writer.appended != began)
        plan = self._plan_of(decided)
        if isinstance(plan, Outcome):
            return plan
        return self.process(decided, plan.after_gates(), recording)

    async def _decide_and_conclude(self, message: Message) -> Outcome:
        decided = await self.decide(message, self._plans.final(message.topic.encode()))
        return self.conclude(message, decided)

    def _not_taken(self, message: Message, why: str, text: str) -> Outcome:
        """A lane is full, or was abandoned."""
        return self.refuse(message, Refusal("waiting", "waiting", why, reason.QUOTA_EXCEEDED, text))

    def refuse(self, message: Message, refusal: Refusal) -> Outcome:
        """Stop a message that was made inside the broker before any stage has it."""
        return Outcome(0, self._refused(message, refusal))

    def _unwanted(self, message: Message) -> None:
        self.no_subscribers(1)
        self._on_unwanted(message)
        self._emit_dropped(message, "no_subscribers")

    def not_retained(self, message: Message, refusal: Refusal) -> None:
        """Count a message that was passed on and that the cell of its topic could not retain."""
        self._stopped(message, refusal, message)

    def _stopped(self, message: Message, refusal: Refusal, published: Message) -> Outcome:
        """A tap stopped the message, as its action says."""
        self._refused(message, refusal, published)
        self._emit_dropped(message, refusal.reason)
        return Outcome(0, refusal)

    def _emit_dropped(self, message: Message, why: str) -> None:
        if "message.dropped" in self._events.wanted:
            self._events.emit(
                "message.dropped", {**message_columns(message), "reason": why}, message
            )

    def no_subscribers(self, count: int) -> None:
        """Count messages that passed and that no one wanted."""
        self.dropped("no_subscribers").value += count

    def dropped(self, why: str) -> Counter:
        """The counter of messages dropped for a reason."""
        counter = self._dropped.get(why)
        if counter is None:
            counter = self._dropped[why] = self._metrics.counter(
                "messages_dropped", DROPPED_HELP, reason=why
            )
        return counter

    def _count_error(self, name: str, message: Message) -> None:
        """While the error is being handled."""
        _log.exception("stage.failed stage=%s topic=%s", name, message.topic)
        self._metrics.counter("stage_errors", "stages that raised", stage=name).value += 1

    def _failed_closed(self, name: str, message: Message) -> Refusal:
        self._count_error(name, message)
        return Refusal(
            name,
            name,
            "internal_error",
            reason.UNSPECIFIED_ERROR,
            f"stage {name} failed; see the log",
        )

    def _refused(
        self, message: Message, refusal: Refusal, published: Message | None = None
    ) -> Refusal:
        """Count a message that a stage stopped, and was ``published`` as another where stages before changed it."""
        reason_name = refusal.reason
        counter = self._refused_by.get(reason_name)
        if counter is None:
            counter = self._metrics.counter(
                "messages_refused", "messages that a gate stopped, by reason", reason=reason_name
            )
            self._refused_by[reason_name] = counter
        counter.value += 1
        self.dropped(reason_name).value += 1
        self.on_refusal(message, refusal, published or message)
        if self._plans.tails.is_open:
            self._plans.tails.decided(message, refusal)
        return refusal


def _recorded_gates(
    recording: Recording, plan: TopicPlan
) -> Sequence[tuple[str, GateCall | WaitingGateCall]]:
    return [
        (name, recorded_waiting_gate(recording, name, gate))
        if isinstance(gate, WaitingGateCall)
        else (name, recorded_gate(recording, name, gate))
        for name, gate in plan.gates
    ]


class Crowds(Protocol):
    """Holds publishers back for subscribers that have too much to take (``broker.connection.backpressure``)."""

    @property
    def fresh(self) -> Sequence[object]:
        """The subscribers that were crowded since the last call of ``hold``."""

    def hold(self, *publishers: Any) -> None:
        """Make these wait for them."""


class Together:
    """Gathers messages that passed their stages and go to the same subscribers, to deliver them at once.

    ``deliver`` is called before any other message is delivered, so that messages keep the order in which they passed
    their stages. ``crowds`` holds back the publishers of messages that crowd a subscriber.
    """

    __slots__ = ("_crowds", "_deliver_one", "_publishers", "_routes", "run")

    def __init__(
        self, deliver_one: Callable[[Message, TopicPlan], Outcome], crowds: Crowds
    ) -> None:
        self._deliver_one = deliver_one
        self._crowds = crowds
        self._routes: SessionRoutes | None = None
        self._publishers: list[object] = []
        self.run: list[tuple[Message, bytes]] = []
        """Waiting messages, with the bytes of the topics."""

    def add(self, publisher: object, message: Message, plan: TopicPlan) -> Outcome:
        """Deliver this with others; at once where subscribers must be checked one by one."""
        routes = plan.routes
        is_alone = message.properties or message.retain or message.qos > routes.plain_qos
        if is_alone or routes is not self._routes:
            if self.run:
                self.deliver()
            is_shown = routes.watch is not None and routes.watch.is_shown
            if is_alone or routes.is_empty or is_shown:
                outcome = self._deliver_one(message, plan)
                if self._crowds.fresh:
                    self._crowds.hold(publisher)
                return outcome
            self._routes = routes
        self.run.append((message, plan.topic_bytes))
        self._publishers.append(publisher)
        return _PASSED_ON

    def deliver(self) -> None:
        """Deliver what waits."""
        routes = self._routes
        if routes is None:
            return
        run = self.run
        publishers = self._publishers
        crowds = self._crowds
        self._routes = None
        self.run = []
        self._publishers = []
        # by the current message, whose publisher is not among these
        was_crowded = bool(crowds.fresh)
        routes.deliver_run(run)
        if crowds.fresh and not was_crowded:
            crowds.hold(*publishers)
