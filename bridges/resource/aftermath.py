"""What is done with rows that an action gives up: fallbacks first, then dead letters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from pydantic import ValidationError

from bridges.resource.dead_letters import DeadLetters
from bridges.resource.figures import ActionFigures
from bridges.resource.item import Item
from bridges.resource.specs import ActionSpec, ReferenceFallback
from broker.config.spec_problems import spec_problems
from broker.core.action import Row
from broker.core.errors import Invalid, Problem, SluiceError
from broker.core.feature import Services
from broker.core.message import Message
from broker.observe.log import get_logger
from rules.actions.republish import Republish, republish
from rules.actions.spec import RepublishAction

_log = get_logger(__name__)

FallbackCall = Callable[[Row, Message], object]

_MAX_DEPTH = 8
"""Rules and fallbacks that publish one after another, at most."""


class Fallbacks:
    """Given rows that an action gives up, with the unchanged message; and keeps dead letters."""

    def __init__(self, action: str, letters: DeadLetters) -> None:
        self._action, self._letters = action, letters
        self.calls: Sequence[FallbackCall] = ()
        self.figures: ActionFigures | None = None

    def given_up(self, items: Sequence[Item], cause: str, reason: str) -> int:
        """Run the fallbacks for each row, and keep it where the settings say so. Never raises.

        Returns how many rows are not lost.
        """
        handed_on = [not item.is_fallback and self._fall_back(item) for item in items] if self.calls else []
        kept = self._letters.keep(items, cause, reason)
        if kept and self.figures is not None:
            self.figures.dead_letters[cause].value += kept
        return kept + sum(handed_on[kept:])

    def _fall_back(self, item: Item) -> bool:
        """Whether a fallback took the row."""
        is_taken = False
        for call in self.calls:
            try:
                call(item.row, item.message)
                is_taken = True
            except Exception as error:  # noqa: BLE001 - one fallback must not stop the next one
                _log.warning("bridge.fallback_failed", action=self._action, reason=str(error))
        return is_taken


def fallback_calls(spec: ActionSpec, services: Services) -> Sequence[FallbackCall]:
    """What an action's fallbacks call.

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
            made = Republish(**checked.model_dump(exclude={"type", "fallback_actions"}))
            calls.append(republish(made, spec.id, services.messaging.publisher, _MAX_DEPTH, services.node.clock.now_ns))
        except ValidationError as error:
            problems += spec_problems(error, RepublishAction, (), f"{pointer}/args")
        except Invalid as error:
            problems += [Problem(one.message, f"{pointer}/args{one.pointer}") for one in error.problems]
    if problems:
        raise Invalid("the action cannot be saved", problems)
    return calls


class _Nobody:
    """Nobody waits for what becomes of a fallback's row."""

    def succeeded(self, rows: int) -> None:
        """See ``Settle``."""

    def failed(self, row: Row, message: Message, error: Exception) -> None:
        """See ``Settle``."""


_NOBODY: Final = _Nobody()


def _to_action(name: str, services: Services) -> FallbackCall:
    def hand_over(row: Row, message: Message) -> None:
        sink = services.endpoints.sinks.find(name)
        if sink is None:
            raise SluiceError(f"there is no action '{name}'")
        write = getattr(sink, "write_fallback", None)
        if write is None:
            sink.write(row, message, _NOBODY)
        else:
            write(row, message)

    return hand_over
