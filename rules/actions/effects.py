"""The actions ``drop`` and ``disconnect``: the message that the rule runs on goes no further."""

from __future__ import annotations

from typing import Final

from broker.core import reason
from broker.core.action import Row
from broker.core.message import Message
from broker.core.stage import Refusal
from rules.actions.action import Action

REASON: Final = "dropped_by_rule"
"""Messages are counted as dropped under this word, a colon, and the name of the rule."""


def stop_message(rule: str, *, disconnect: bool) -> Action:
    """Refuse the message; ``disconnect`` also closes the connection of its publisher."""
    refusal = Refusal(
        stage="rules",
        name=rule,
        reason=f"{REASON}:{rule}",
        reason_code=reason.IMPLEMENTATION_SPECIFIC_ERROR,
        text=f"rule '{rule}' dropped the message",
        disconnect=disconnect,
    )

    def stop(_row: Row, _message: Message) -> Refusal:
        return refusal

    return stop
