"""Commands that features bring, by name, as plugins would: the broker imports no feature."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from broker.cli.errors import CommandError

COMMANDS = {
    "audit": ("bridges.spark.audit:audit_table", "spark"),
    "lake run": ("bridges.spark.job:main", "spark"),
    "replay": ("bridges.spark.replay:run", "spark"),
    "java": ("bridges.spark.java:find_java", "spark"),
}
"""What a command calls, and the extra that it needs."""


def load(command: str) -> Any:
    """The function that a command calls.

    Raises:
        CommandError: a package is missing; says what to install.
    """
    name, extra = COMMANDS[command]
    module, _, attribute = name.partition(":")
    try:
        return getattr(import_module(module), attribute)
    except ModuleNotFoundError as error:
        raise CommandError(
            f"'sluice {command}' needs the package {error.name!r}, which is not installed",
            hint=f"pip install 'sluicemq[{extra}]'",
        ) from error
