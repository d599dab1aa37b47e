"""The action ``bridge``: hand the row to a sink by name, whatever is registered under it at that moment."""

from __future__ import annotations

from broker.core.action import DISABLED, Row, Settle, Sinks
from broker.core.message import Message
from rules.actions.action import Discarded, SinkAction


def hand_to_sink(sinks: Sinks, name: str) -> SinkAction:
    """Rows to the sink of that name; discarded while there is none, or it is disabled."""
    find = sinks.find

    def hand_over(row: Row, message: Message, settle: Settle) -> None:
        sink = find(name)
        if sink is None:
            raise Discarded(f"there is no bridge '{name}'")
        if sink.state == DISABLED:
            raise Discarded(f"bridge '{name}' is disabled")
        sink.write(row, message, settle)

    return hand_over
