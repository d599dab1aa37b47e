"""The action ``console``: log the row."""

from __future__ import annotations

import logging

from broker.core.message import Message
from rules.actions.action import Action, Row
from rules.sql.values import json_text

_log = logging.getLogger("sluice.rules.console")


def console(rule: str) -> Action:
    """Rows of the rule as log lines of level info."""

    def log_row(row: Row, message: Message) -> None:
        _log.info("rule.row rule=%s topic=%s row=%s", rule, message.topic, json_text(row))

    return log_row
