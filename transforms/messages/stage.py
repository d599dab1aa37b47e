"""The gate: transformations that match the topic as published, in configured order, each once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from broker.core import reason
from broker.core.clock import Clock
from broker.core.events import Events, message_columns
from broker.core.message import Message
from broker.core.stage import GateCall, Refusal, WaitingGateCall
from broker.observe.gate_counters import STOPPING, GateCounters, GateStats
from broker.observe.gate_objects import RunningGate
from broker.observe.log import get_logger
from broker.observe.metrics import Metrics
from transforms.messages.failure import TransformationFailed
from transforms.messages.payload import UNTOUCHED, final_bytes
from transforms.messages.transformation import BoundTransformation, Transformation

log = get_logger(__name__)

EVENT = "message.transformation_failed"
REASON = "transformation_failed"


@dataclass(frozen=True, slots=True)
class Failure:
    """A transformation that failed on one message, and the outcome for that message."""

    name: str
    action: str
    error: TransformationFailed

    def refusal(self) -> Refusal:
        """The refusal of a failure whose action is not ``ignore``."""
        error = self.error
        place = "" if error.operation is None else f", operation {error.operation + 1}"
        return Refusal(
            "transformation",
            self.name,
            REASON,
            reason.PAYLOAD_FORMAT_INVALID
            if error.is_payload
            else reason.IMPLEMENTATION_SPECIFIC_ERROR,
            f"transformation '{self.name}'{place}: {error.message}",
            disconnect=self.action == "disconnect",
        )


@dataclass(slots=True)
class Step:
    """A transformation in a topic's plan."""

    bound: BoundTransformation
    book: GateStats
    counters: GateCounters
    name: str
    action: str
    """The effective one."""
    is_shadow: bool


class TransformationGate(RunningGate[Transformation]):
    """A ``broker.core.stage.Gate``."""

    name = "transformation"

    def __init__(self, node: str, clock: Clock, events: Events, metrics: Metrics) -> None:
        super().__init__()
        self._node = node
        self._clock = clock
        self._events = events
        self._metrics = metrics
        self._succeeded = metrics.counter(
            "messages_transformation_succeeded", "messages that all transformations took"
        )
        self._failed = metrics.counter(
            "messages_transformation_failed", "messages that a transformation stopped"
        )

    def plan(self, topic: str) -> GateCall | WaitingGateCall | None:
        """The call for messages published on the topic."""
        if self.schemas is None:
            return None
        steps = tuple(
            self._step(
                BoundTransformation(transformation, self.schemas, self._node, self._clock), book
            )
            for transformation, book in self._running.matching(topic)
        )
        if any(step.bound.transformation.waits for step in steps):
            return self._call_waiting(steps)
        if len(steps) == 1 and not steps[0].is_shadow:
            return self._call_one(steps[0])
        return self._call(steps) if steps else None

    def _step(self, bound: BoundTransformation, book: GateStats) -> Step:
        spec = bound.transformation.spec
        return Step(
            bound, book, book.counters, spec.name, spec.effective_action, spec.mode == "shadow"
        )

    def _call_one(self, step: Step) -> GateCall:
        """Same as ``_call``, for a topic with one transformation: 0.3 µs less."""
        run = step.bound.run
        matched = step.counters.matched
        done = step.counters.succeeded
        succeeded = self._succeeded

        def call(message: Message) -> Message | Refusal:
            matched.value += 1
            try:
                changed, left = run(message, UNTOUCHED, message)
            except Exception as error:  # noqa: BLE001 # an internal error must apply the failure action too
                failure = self._note(step, error, message)
                if failure.action in STOPPING:
                    return self._refuse(None, failure)
                succeeded.value += 1
                return message
            if left is not UNTOUCHED:
                return self._finish(step, changed, left, message)
            done.value += 1
            succeeded.value += 1
            return changed

        return call

    def _call(self, steps: tuple[Step, ...]) -> GateCall:
        def call(message: Message) -> Message | Refusal:
            now = message
            left = UNTOUCHED
            last: Step | None = None
            for step in steps:
                step.counters.matched.value += 1
                try:
                    changed, rest = step.bound.run(now, left, message)
                except Exception as error:  # noqa: BLE001 # an internal error must apply the failure action too
                    failure = self._note(step, error, message)
                    if failure.action in STOPPING:
                        return self._refuse(last, failure)
                    continue
                if step.is_shadow:
                    step.counters.succeeded.value += 1
                    continue
                now = changed
                left = rest
                if last is not None:
                    last.counters.succeeded.value += 1
                last = step
            return self._end(last, now, left, message)

        return call

    def _call_waiting(self, steps: tuple[Step, ...]) -> WaitingGateCall:
        """Same as ``_call``, for payloads that another process decodes or encodes."""

        async def call(message: Message) -> Message | Refusal:
            now = message
            left = UNTOUCHED
            last: Step | None = None
            for step in steps:
                run = step.bound.run_waiting if step.bound.transformation.waits else None
                try:
                    changed, rest = (
                        step.bound.run(now, left, message)
                        if run is None
                        else await run(now, left, message)
                    )
                except Exception as error:  # noqa: BLE001 # an internal error must apply the failure action too
                    step.counters.matched.value += 1
                    failure = self._note(step, error, message)
                    if failure.action in STOPPING:
                        return self._refuse(last, failure)
                    continue
                step.counters.matched.value += 1
                if step.is_shadow:
                    step.counters.succeeded.value += 1
                    continue
                now = changed
                left = rest
                if last is not None:
                    last.counters.succeeded.value += 1
                last = step
            return self._end(last, now, left, message)

        return WaitingGateCall(call)

    def _end(
        self, last: Step | None, now: Message, left: Any, entered: Message
    ) -> Message | Refusal:
        """After all steps: ``last`` is the last one that changed the message."""
        if left is not UNTOUCHED and last is not None:
            return self._finish(last, now, left, entered)
        if last is not None:
            last.counters.succeeded.value += 1
        self._succeeded.value += 1
        return now

    def _refuse(self, last: Step | None, failure: Failure) -> Refusal:
        if last is not None:
            last.counters.succeeded.value += 1
        self._failed.value += 1
        return failure.refusal()

    def _finish(self, last: Step, now: Message, left: Any, entered: Message) -> Message | Refusal:
        """Bytes must leave: what the last transformation left decoded is its failure, unless it is text."""
        try:
            changed = now.changed(now.topic, final_bytes(left), now.qos, now.retain, now.properties)
        except TransformationFailed as error:
            failure = self._note(last, error, entered)
            if failure.action in STOPPING:
                return self._refuse(None, failure)
            changed = entered
        else:
            last.counters.succeeded.value += 1
        self._succeeded.value += 1
        return changed

    def _note(self, step: Step, error: Exception, entered: Message) -> Failure:
        """Count, keep, log and announce a failure; of a flood of them some."""
        failure = Failure(step.name, step.action, as_failure(error))
        if not (EVENT in self._events.wanted or step.book.explains(entered, step.action)):
            step.book.pass_over()
            return failure
        at = failure.error.operation
        key = "" if at is None else step.bound.transformation.operations[at].key
        step.book.failed(
            entered, failure.error.message, key, step.action, kind=failure.error.kind, operation=at
        )
        step.book.log(
            log,
            step.bound.transformation.spec.log_failure.level,
            "transformation.failed",
            entered,
            transformation=failure.name,
            kind=failure.error.kind,
            reason=failure.error.message,
            action=failure.action,
        )
        if EVENT in self._events.wanted:
            self._events.emit(EVENT, _columns(failure, entered), entered)
        return failure


def as_failure(error: Exception) -> TransformationFailed:
    """The error as a failure; any other exception is an internal error."""
    if isinstance(error, TransformationFailed):
        return error
    return TransformationFailed(
        "transformation_eval_operation_exception", f"internal error: {error!r:.200}"
    )


def _columns(failure: Failure, entered: Message) -> dict[str, Any]:
    columns = message_columns(entered)
    del columns["peerhost"]
    return {
        **columns,
        "transformation": failure.name,
        "action": failure.action,
        "kind": failure.error.kind,
        "operation": failure.error.operation,
        "reason": failure.error.message,
    }
