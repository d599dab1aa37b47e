"""Actions of a rule held against the bridges there are: one that is not there yet is a warning."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from typing import Any

from broker.core.action import Sinks
from broker.core.errors import Problem
from rules.actions.spec import BridgeAction


def missing_bridges(actions: Sequence[Any], sinks: Sinks) -> Iterator[Problem]:
    """The bridges that actions and their fallbacks name, and nobody has made."""
    for position, action in enumerate(actions):
        pointer = f"/actions/{position}"
        yield from _missing(action, pointer, sinks)
        for number, fallback in enumerate(getattr(action, "fallback_actions", ())):
            yield from _missing(fallback, f"{pointer}/fallback_actions/{number}", sinks)


def _missing(action: Any, pointer: str, sinks: Sinks) -> Iterator[Problem]:
    if not isinstance(action, BridgeAction) or sinks.find(action.bridge) is not None:
        return
    close = get_close_matches(action.bridge, [sink.name for sink in sinks], 1)
    hint = f"did you mean '{close[0]}'?" if close else "rows are discarded until it is made"
    yield Problem(f"there is no action '{action.bridge}' yet", f"{pointer}/bridge", suggestion=hint)
