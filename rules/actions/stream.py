"""The action ``stream``: append the row to a durable stream."""

from __future__ import annotations

from broker.core.action import Row
from broker.core.message import Message
from broker.core.stream import Append, stream_record
from rules.actions.action import Action
from rules.sql.values import UNDEFINED, json_bytes


def append_to_stream(append: Append, rule: str) -> Action:
    """Rows as records of a stream: compact JSON with undefined columns left out, and where the message came from."""

    def append_row(row: Row, message: Message) -> None:
        if UNDEFINED in row.values():  # sorted out here: the encoder would raise, which costs more
            row = {name: value for name, value in row.items() if value is not UNDEFINED}
        client = message.client
        append(
            stream_record(
                (
                    message.received_ns // 1000,
                    message.topic,
                    json_bytes(row),
                    message.qos,
                    message.retain,
                    client.client_id,
                    client.username,
                    None,
                    rule,
                )
            )
        )

    return append_row
