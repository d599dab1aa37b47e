"""The tap in the pipeline: rules look at messages, in their order; those that are told to may stop one."""

from __future__ import annotations

from broker.core.message import Message
from broker.core.stage import Refusal, TapCall
from rules.engine import RuleEngine


class RulesTap:
    """The rules of a node as a stage."""

    name = "rules"

    def __init__(self, engine: RuleEngine) -> None:
        self._engine = engine

    def plan(self, topic: str) -> TapCall | None:
        """The rules that read this topic as one call; None when there are none, so that they cost nothing."""
        calls = self._engine.calls_for(topic)
        if not calls:
            return None
        if len(calls) == 1:
            return calls[0]

        def run_all(message: Message) -> Refusal | None:
            for call in calls:
                refusal = call(message)
                if refusal is not None:
                    return refusal
            return None

        return run_all
