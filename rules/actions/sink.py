"""The action ``bridge``: hand the row to a sink by name, whatever is registered under it at that moment."""

from __future__ import annotations

from broker.core.action import Row, Settle, SinkDisabled, Sinks
from broker.core.message import Message
from rules.actions.action import Discarded, SinkAction


def hand_to_sink(sinks: Sinks, name: str) -> SinkAction:
    """Rows to the sink of that name; discarded while there is none, or it is disabled."""
    find = sinks.find

    def hand_over(row: Row, message: Message, settle: Settle) -> None:
        sink = find(name)
        if sink is None:
            raise Discarded(f"there is no bridge '{name}'")
        try:
            sink.write(row, message, settle)
        except SinkDisabled:
            raise Discarded(f"bridge '{name}' is disabled") from None

    return hand_over
