"""What an action is: made once when a rule is saved, called once per row."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from broker.core.errors import SluiceError
from broker.core.message import Message

Row = dict[str, Any]

Action = Callable[[Row, Message], None]
"""``action(row, message)``: takes the row that the rule made of the message (or of the event, given as a message).

Runs on the event loop, never waits. Raises ``ActionFailed`` or ``broker.core.errors.Unavailable``.
"""


class ActionFailed(SluiceError):
    """An action did not do its work on one row; the text says why."""

    code = "action_failed"
