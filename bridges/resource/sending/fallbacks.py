"""Fallbacks for rows that an action discards, before they become dead letters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from pydantic import ValidationError

from bridges.resource.specs import ActionSpec, ReferenceFallback
from broker.config.spec_problems import spec_problems
from broker.core.action import Row
from broker.core.errors import Invalid, Problem, SluiceError
from broker.core.feature import Services
from broker.core.message import Message
from rules.actions.republish import republish
from rules.actions.spec import RepublishAction

FallbackCall = Callable[[Row, Message], object]

# Rules and fallbacks that publish one after another, at most.
_MAX_DEPTH = 8


def fallback_calls(spec: ActionSpec, services: Services) -> Sequence[FallbackCall]:
    """The calls of an action's fallbacks.

    Raises:
        Invalid: one cannot be used.
    """
    calls: list[FallbackCall] = []
    problems: list[Problem] = []
    for position, fallback in enumerate(spec.fallback_actions):
        pointer = f"/fallback_actions/{position}"
        if isinstance(fallback, ReferenceFallback):
            if fallback.name == spec.name:
                problems.append(Problem("an action is not its own fallback", pointer))
            calls.append(_to_action(f"{fallback.type}:{fallback.name}", services))
            continue
        try:
            checked = RepublishAction.model_validate({"type": "republish", **fallback.args})
            calls.append(
                republish(
                    checked,
                    spec.id,
                    services.messaging.publisher,
                    _MAX_DEPTH,
                    services.node.clock.now_ns,
                )
            )
        except ValidationError as error:
            problems += spec_problems(error, RepublishAction, (), f"{pointer}/args")
        except Invalid as error:
            problems += [
                Problem(problem.message, f"{pointer}/args{problem.pointer}")
                for problem in error.problems
            ]
    if problems:
        raise Invalid("the action cannot be saved", problems)
    return calls


class _Ignored:
    """Ignores the outcome of a fallback's row, which does not matter to the rule."""

    def succeeded(self, rows: int) -> None:
        """See ``Settlement``."""

    def failed(self, row: Row, message: Message, error: Exception) -> None:
        """See ``Settlement``."""


_IGNORED: Final = _Ignored()


def _to_action(name: str, services: Services) -> FallbackCall:
    def hand_over(row: Row, message: Message) -> None:
        sink = services.endpoints.sinks.find(name)
        if sink is None:
            raise SluiceError(f"there is no action '{name}'")
        write = getattr(sink, "write_fallback", None)
        if write is None:
            sink.write(row, message, _IGNORED)
        else:
            write(row, message)

    return hand_over
