"""Transformations tried on a message, without saving, counting or publishing anything."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NotRequired

from typing_extensions import TypedDict

from broker.core.contributor import TransformFailure, Trial, TrialStep, WrittenValue
from broker.core.feature import Services
from broker.core.json_values import WireMessage, message_to_wire
from broker.core.marks import marked
from broker.core.message import Message
from broker.core.schema import SchemaLookup
from transforms.messages.failure import TransformationFailed
from transforms.messages.operations import PROPERTY_NAMES, Run
from transforms.messages.payload import UNTOUCHED, final_bytes
from transforms.messages.stage import Failure, as_failure
from transforms.messages.transformation import BoundTransformation, Transformation


class TransformStep(WrittenValue):
    """Value written by an operation of a transformation; ``operation`` counts from 0."""

    name: str
    operation: int


class TransformsTrial(TypedDict):
    """Result of transformations for a message: the ``message`` that comes out, or the action that stops it.

    ``failed`` are the names of those that fail, ``steps`` what each operation writes.
    """

    outcome: str
    failed: list[str]
    failures: list[TransformFailure]
    steps: list[TransformStep]
    message: NotRequired[WireMessage]


def preview(
    transformations: Sequence[Transformation],
    schemas: SchemaLookup,
    message: Message,
    services: Services,
) -> TransformsTrial:
    """Result of the transformations for a message, step by step."""
    return _trial(transformations, message, schemas, services).answer()


def try_on(
    transformations: Sequence[Transformation], message: Message, services: Services
) -> Trial:
    """Result of the transformations for a message, a step for each of them that matches."""
    trial = _trial(transformations, message, services.schemas, services)
    answer = trial.answer()
    stopped = answer["outcome"] != "message"
    failed = {failure["name"]: failure for failure in answer["failures"]}
    steps: list[TrialStep] = []
    for name in trial.ran:
        wrote: list[WrittenValue] = [
            {"key": step["key"], "value": step["value"]}
            for step in answer["steps"]
            if step["name"] == name
        ]
        failure = failed.get(name)
        outcome = "changed" if failure is None else failure["action"]
        steps.append(
            {
                "stage": "transformation",
                "name": name,
                "outcome": outcome,
                "wrote": wrote,
                "failure": failure,
            }
        )
    return Trial(steps, None if stopped else trial.message)


def _trial(
    transformations: Sequence[Transformation],
    message: Message,
    schemas: SchemaLookup,
    services: Services,
) -> _Trial:
    trial = _Trial(message)
    matching = [
        item for item in transformations if item.spec.enable and item.matches(message.topic)
    ]
    trial.run(
        [
            BoundTransformation(item, schemas, services.node.name, services.node.clock)
            for item in matching
        ]
    )
    return trial


class _Trial:
    """One message on its way through transformations, with notes on what happened."""

    def __init__(self, message: Message) -> None:
        self._entered = self._now = message
        self._left: Any = UNTOUCHED
        self._stopped: Failure | None = None
        self._failures: list[Failure] = []
        self._steps: list[TransformStep] = []
        self.ran: list[str] = []
        """The transformations that ran, in order."""

    @property
    def message(self) -> Message:
        """The message as it is now."""
        return self._now

    def run(self, steps: Sequence[BoundTransformation]) -> None:
        last: BoundTransformation | None = None
        for step in steps:
            self.ran.append(step.transformation.name)
            try:
                now, left = self._one(step)
            except Exception as error:  # noqa: BLE001 # whatever goes wrong is what the preview is to show
                self._fail(step, error)
                if self._stopped:
                    return
                continue
            if step.transformation.spec.mode != "shadow":
                self._now = now
                self._left = left
                last = step
        if self._left is not UNTOUCHED and last is not None:
            self._finish(last)

    def _one(self, step: BoundTransformation) -> tuple[Message, Any]:
        run = step.begin(self._now, self._left, self._entered)
        step.operate(run, lambda at: self._steps.append(_step(step.transformation, at, run)))
        return step.finish(run, self._now, self._left)

    def _finish(self, last: BoundTransformation) -> None:
        now = self._now
        try:
            self._now = now.changed(
                now.topic, final_bytes(self._left), now.qos, now.retain, now.properties
            )
        except TransformationFailed as error:
            self._fail(last, error)
            self._now = self._entered

    def _fail(self, step: BoundTransformation, error: Exception) -> None:
        spec = step.transformation.spec
        failure = Failure(spec.name, spec.effective_action, as_failure(error))
        self._failures.append(failure)
        if spec.stops:
            self._stopped = failure

    def answer(self) -> TransformsTrial:
        answer: TransformsTrial = {
            "outcome": self._stopped.action if self._stopped else "message",
            "failed": [failure.name for failure in self._failures],
            "failures": [_failure(failure) for failure in self._failures],
            "steps": self._steps,
        }
        if not self._stopped:
            answer["message"] = message_to_wire(self._now)
        return answer


def _failure(failure: Failure) -> TransformFailure:
    error = failure.error
    shown: TransformFailure = {
        "name": failure.name,
        "kind": error.kind,
        "operation": error.operation,
        "reason": error.message,
        "action": failure.action,
    }
    if error.details:
        shown["details"] = marked(error.details)
    return shown


def _step(transformation: Transformation, at: int, run: Run) -> TransformStep:
    """Value written by an operation."""
    operation = transformation.operations[at]
    root, _, rest = operation.key.partition(".")
    value: Any = {
        "topic": run.topic,
        "qos": run.qos,
        "retain": run.retain,
        "payload": run.payload,
    }.get(root)
    if root == "user_property":
        value = (run.user or {}).get(rest)
    elif root in PROPERTY_NAMES:
        value = run.properties.get(PROPERTY_NAMES[root])
    elif rest:
        for key in rest.split("."):
            value = value[key]
    return {
        "name": transformation.name,
        "operation": at,
        "key": operation.key,
        "value": marked(value),
    }
