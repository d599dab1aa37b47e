"""Commands that features bring, by name, as plugins would: the broker imports no feature."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

from broker.cli.errors import CommandError
from broker.core.errors import SluiceError

# The function that a command calls, and the extra that it needs.
COMMANDS = {
    "audit": ("bridges.spark.driver.audit:audit_table", "spark"),
    "lake run": ("bridges.spark.job:main", "spark"),
    "java": ("bridges.spark.driver.java:find_java", "spark"),
}
_FEATURE_PACKAGES = ("bridges", "pyspark_sluice")


def load(command: str) -> Callable[..., Any]:
    """The function that a command calls.

    Raises:
        CommandError: a package is missing; says what to install.
    """
    name, extra = COMMANDS[command]
    module, _, attribute = name.partition(":")
    try:
        function: Callable[..., Any] = getattr(import_module(module), attribute)
    except ModuleNotFoundError as error:
        raise CommandError(
            f"'sluice {command}' needs the package {error.name!r}, which is not installed",
            hint=f"pip install 'sluicemq[{extra}]'",
        ) from error
    return function


def call(command: str, *arguments: Any, **options: Any) -> Any:
    """Call the function of a command.

    Raises:
        CommandError: a package is missing, or an error of the feature's own kind.
    """
    function = load(command)
    try:
        return function(*arguments, **options)
    except SluiceError:
        raise
    except Exception as error:
        if type(error).__module__.partition(".")[0] not in _FEATURE_PACKAGES:
            raise
        raise CommandError(str(error)) from error
