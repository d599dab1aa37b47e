"""Everything that acts on a topic, in the order a message meets it, and a trial of all of it on one message."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NotRequired

from typing_extensions import TypedDict

from broker.core import json_values
from broker.core.clock import Clock
from broker.core.contributor import Contributor, TopicStage, TrialStep
from broker.core.errors import Invalid, PeerError, Problem
from broker.core.topic import check_topic_name


class TopicPipeline(TypedDict):
    """The stages that act on messages published on a topic, in order."""

    topic: str
    stages: list[TopicStage]


class StageName(TypedDict):
    """A stage: what it is, and its name."""

    stage: str
    name: str


class PipelineTrial(TypedDict):
    """Outcome for a message: ``passed``, ``drop`` or ``disconnect``, step by step. ``message`` is what subscribers
    get of one that passes, ``ended_by`` the stage that stops one that does not."""

    outcome: str
    steps: list[TrialStep]
    message: NotRequired[json_values.WireMessage]
    ended_by: NotRequired[StageName]


class PipelineView:
    """Shows what acts on a topic, and tries it on one message.

    ``parts`` are asked in order; ``ends`` describes what takes messages at the end of the path.
    """

    def __init__(
        self,
        parts: Sequence[Contributor],
        ends: Callable[[str], Sequence[TopicStage]],
        clock: Clock,
    ) -> None:
        self._parts = parts
        self._ends = ends
        self._clock = clock

    def of_topic(self, topic: str) -> TopicPipeline:
        """List the stages that act on messages published on a topic.

        A transformation may write another topic: rules and subscribers then see that one, which is shown by
        asking for it.

        Raises:
            Invalid: it is not a valid topic name.
        """
        try:
            check_topic_name(topic)
        except PeerError as error:
            raise Invalid("this is not a valid topic", [Problem(str(error), "/topic")]) from None
        return {"topic": topic, "stages": self.stages(topic)}

    def stages(self, topic: str) -> list[TopicStage]:
        """The same for a string that may not be a topic."""
        return [
            *(stage for part in self._parts for stage in part.on_topic(topic)),
            *self._ends(topic),
        ]

    def preview(self, body: Mapping[str, Any]) -> PipelineTrial:
        """Show how the stages would change ``body["message"]``, step by step, through everything that is configured,
        with the ``validations`` and ``transformations`` of the body in place of saved ones of the same name.

        Nothing is counted, stored or sent.

        Raises:
            Invalid: the message or a draft cannot be used.
        """
        message = json_values.message_from_wire(body.get("message"), self._clock.now_ns())
        steps: list[TrialStep] = []
        for part in self._parts:
            trial = part.try_on(message, body)
            steps += trial.steps
            if trial.message is None:
                last = steps[-1]
                ended_by: StageName = {"stage": last["stage"], "name": last["name"]}
                return {"outcome": last["outcome"], "steps": steps, "ended_by": ended_by}
            message = trial.message
        return {
            "outcome": "passed",
            "steps": steps,
            "message": json_values.message_to_wire(message),
        }
