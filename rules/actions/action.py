"""Actions, and their runs for a rule: counted, with fallbacks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NotRequired, cast

from typing_extensions import TypedDict

from broker.core import reason
from broker.core.action import PushedBack, Row, Settlement
from broker.core.errors import SluiceError, Unavailable
from broker.core.json_values import LastErrorView
from broker.core.message import Message
from broker.core.stage import Refusal
from broker.observe.metrics import Counter, Metrics

# ``action(row, message)``: takes the row that the rule made of the message (or of the event, given as a message).
#
# Runs on the event loop, never waits. Gives None, or a refusal of the message that the rule runs on. Raises
# ``ActionFailed``, ``Discarded`` or ``broker.core.errors.Unavailable``.
Action = Callable[[Row, Message], Refusal | None]

# An action that reports its outcome to ``settle``, now or later. Raises as an ``Action``; then it reports nothing.
SinkAction = Callable[[Row, Message, Settlement], None]


class ActionFailed(SluiceError):
    """An action did not do its work on one row; the text says why."""

    code = "action_failed"


class Discarded(SluiceError):
    """An action was not done, which is not a failure: its sink is disabled or missing, or the row was left out."""

    code = "action_discarded"


_COUNTERS: Final = {
    "total": "Actions started, one per row and action.",
    "success": "Actions that did their work.",
    "failed_out_of_service": "Actions whose target could not be reached.",
    "failed_unknown": "Actions that failed otherwise.",
    "discarded": "Actions not done because their target is disabled or missing.",
}


def _pushed_back(error: PushedBack) -> Refusal:
    """The message goes no further, and its publisher hears of it."""
    return Refusal("rules", "", "action_full", reason.IMPLEMENTATION_SPECIFIC_ERROR, str(error))


class CounterSet:
    """Counters with labels in common, each an attribute; ``parts`` are shown and reset with it."""

    __slots__ = ("_names", "parts")

    def __init__(self, prefix: str, texts: Mapping[str, str], labels: Mapping[str, str]) -> None:
        self._names = tuple(texts)
        self.parts: list[ActionCounts] = []
        for name, text in texts.items():
            setattr(self, name, Counter(prefix + name, text, labels))

    def register(self, metrics: Metrics) -> None:
        """Show them with the node's metrics."""
        for name in self._names:
            metrics.add(getattr(self, name))
        for part in self.parts:
            part.register(metrics)

    def reset(self) -> None:
        """Back to zero."""
        for name in self._names:
            getattr(self, name).value = 0
        for part in self.parts:
            part.reset()


RuleActionCounts = TypedDict(
    "RuleActionCounts",
    {
        "total": int,
        "success": int,
        "failed": int,
        "failed.out_of_service": int,
        "failed.unknown": int,
        "discarded": int,
    },
)
RuleActionCounts.__doc__ = """What an action of a rule did: total = success + failed + discarded + what is under way. It
fails because its target is out of service, or for other (unknown) reasons."""


class RuleActionView(TypedDict):
    """An action of a rule: its type, the name and the state of its target, what it did, and its fallbacks."""

    type: str
    name: str
    status: str
    metrics: RuleActionCounts
    last_error: LastErrorView | None
    fallback_actions: NotRequired[list[RuleActionView]]


class ActionCounts(CounterSet):
    """Counts of one action since its rule was saved. All that was started = success + failed + discarded + under way.

    ``parts`` are the counts of its fallbacks.
    """

    __slots__ = (*_COUNTERS,)

    SHOWN: Final = (
        "total",
        "success",
        "failed",
        "failed.out_of_service",
        "failed.unknown",
        "discarded",
    )
    """The names of the counters as the API shows them; ``failed`` is a sum."""

    total: Counter
    success: Counter
    failed_out_of_service: Counter
    failed_unknown: Counter
    discarded: Counter

    def __init__(
        self, rule: str, action: str, type: str, fallbacks: Sequence[ActionCounts] = ()
    ) -> None:
        super().__init__("rule_actions_", _COUNTERS, {"rule": rule, "action": action, "type": type})
        self.parts += fallbacks

    def as_dict(self) -> RuleActionCounts:
        """Present values by their public names."""
        out_of_service = self.failed_out_of_service.value
        unknown = self.failed_unknown.value
        failed = out_of_service + unknown
        values = (
            self.total.value,
            self.success.value,
            failed,
            out_of_service,
            unknown,
            self.discarded.value,
        )
        return cast(RuleActionCounts, dict(zip(self.SHOWN, values, strict=True)))


@dataclass(slots=True)
class LastError:
    """The last failure: text and wall clock."""

    text: str
    time_ns: int

    def view(self) -> LastErrorView:
        """View for the API."""
        return {"text": self.text, "time_ms": self.time_ns // 1_000_000}


# Receives every failure of an action, to keep and log it: the rule's.
Failures = Callable[["Step", Exception], LastError]


class Step:
    """One action of one rule: ``run(row, message)`` does it and never raises.

    When it fails, its fallbacks run in order, each of them, regardless of the outcome of the previous one; they are
    counted like any action, and have no fallbacks of their own. ``kind`` and ``target`` say what it is (``stream``,
    ``hot``), ``state`` gives what its target is in now."""

    __slots__ = (
        "counts",
        "fallbacks",
        "kind",
        "last_error",
        "on_failure",
        "run",
        "state",
        "target",
    )

    run: Callable[[Row, Message], Refusal | None]

    def __init__(
        self,
        kind: str,
        target: str,
        counts: ActionCounts,
        fallbacks: Sequence[Step] = (),
        *,
        state: Callable[[], str] = lambda: "ready",
    ) -> None:
        self.kind, self.target, self.counts, self.fallbacks, self.state = (
            kind,
            target,
            counts,
            tuple(fallbacks),
            state,
        )
        self.last_error: LastError | None = None
        self.on_failure: Failures | None = None

    def does(self, action: Action) -> Step:
        """Bind it to an action that is over when it returns."""
        total = self.counts.total
        success = self.counts.success
        failed = self.failed

        def run(row: Row, message: Message) -> Refusal | None:
            total.value += 1
            try:
                refusal = action(row, message)
            except Exception as error:  # noqa: BLE001  a failing action stops neither the next one nor the message
                failed(row, message, error)
                return None
            success.value += 1
            return refusal

        self.run = run
        return self

    def hands_to(self, action: SinkAction) -> Step:
        """Bind it to an action whose outcome may come later."""
        total = self.counts.total
        failed = self.failed

        def run(row: Row, message: Message) -> Refusal | None:
            total.value += 1
            try:
                action(row, message, self)
            except Exception as error:  # noqa: BLE001  as above
                failed(row, message, error)
                return _pushed_back(error) if isinstance(error, PushedBack) else None
            return None

        self.run = run
        return self

    def succeeded(self, rows: int) -> None:
        """Count rows that are where they should be."""
        self.counts.success.value += rows

    def failed(self, row: Row, message: Message, error: Exception) -> None:
        """Count a failure and run the fallbacks."""
        counts = self.counts
        if isinstance(error, Discarded):
            counts.discarded.value += 1
            return
        if isinstance(error, Unavailable):
            counts.failed_out_of_service.value += 1
        else:
            counts.failed_unknown.value += 1
        if self.on_failure is not None:
            self.last_error = self.on_failure(self, error)
        for fallback in self.fallbacks:
            fallback.run(row, message)

    def view(self) -> RuleActionView:
        """View for the API, among the details of a rule."""
        shown: RuleActionView = {
            "type": self.kind,
            "name": self.target,
            "status": self.state(),
            "metrics": self.counts.as_dict(),
            "last_error": None if self.last_error is None else self.last_error.view(),
        }
        if self.fallbacks:
            shown["fallback_actions"] = [fallback.view() for fallback in self.fallbacks]
        return shown
