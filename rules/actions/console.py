"""The action ``console``: log the row."""

from __future__ import annotations

from broker.core.action import Row
from broker.core.message import Message
from broker.observe.log import get_logger
from rules.actions.action import Action
from rules.sql.values import json_text

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
