"""The action ``console``: log the row."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from broker.core import reason
from broker.core.action import Row, Settlement, SinkDisabled, Sinks
from broker.core.message import Message
from broker.core.stage import Refusal
from broker.core.stream import Append, stream_record
from broker.observe.log import get_logger
from rules.actions.action import Action, Discarded, SinkAction
from rules.sql.values import UNDEFINED, json_bytes, json_text

_log = get_logger(__name__)


def console(rule: str) -> Action:
    """Rows of the rule as log lines of level info, each with where the row came from."""

    def log_row(row: Row, message: Message) -> None:
        _log.info(
            "rule.row",
            rule=rule,
            topic=message.topic,
            client_id=message.client.client_id,
            qos=message.qos,
            row=json_text(row),
        )

    return log_row


# The actions ``drop`` and ``disconnect``: the message that the rule runs on is stopped.


# Messages are counted as dropped under this word, a colon, and the name of the rule.
REASON: Final = "dropped_by_rule"


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


# The action ``bridge``: hand the row to a sink by name, whatever is registered under it at that moment.


def hand_to_sink(sinks: Sinks, name: str) -> SinkAction:
    """Rows to the sink of that name; discarded while there is none, or it is disabled."""
    find = sinks.find

    def hand_over(row: Row, message: Message, settle: Settlement) -> None:
        sink = find(name)
        if sink is None:
            raise Discarded(f"there is no bridge '{name}'")
        try:
            sink.write(row, message, settle)
        except SinkDisabled:
            raise Discarded(f"bridge '{name}' is disabled") from None

    return hand_over


# The action ``stream``: append the row to a durable stream.


def append_to_stream(append: Append, rule: str, trace: Callable[[Message], None]) -> Action:
    """Rows as records of a stream: compact JSON with undefined columns left out, and where the message came from.
    ``trace`` is called with messages that may be traced."""

    def append_row(row: Row, message: Message) -> None:
        if UNDEFINED in row.values():  # sorted out here: the encoder would raise, which costs more
            row = {name: value for name, value in row.items() if value is not UNDEFINED}
        client = message.client
        append(stream_record((
            message.received_ns // 1000, message.topic, json_bytes(row), message.qos, message.retain,
            client.client_id, client.username, None, rule,
        )))  # fmt: skip
        if message.via:
            trace(message)

    return append_row
