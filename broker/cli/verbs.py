"""Groups of commands: synonyms of their verbs, and completion of names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Final

from typer.core import TyperGroup

from broker.cli.completion import Names, is_completing

# Other words for ``ls``, ``show``, ``create``, ``add`` and ``rm``.
SAME: Final = {
    "list": "ls",
    "get": "show",
    "create": "add",
    "add": "create",
    "delete": "rm",
    "remove": "rm",
}


class Verbs(TyperGroup):
    """A group of commands."""

    names: ClassVar[dict[str, Names]] = {}
    """Names that the first argument of a group's commands takes, by the group."""

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command of this name, or the one that the name is another word for."""
        command = super().get_command(ctx, cmd_name) or super().get_command(
            ctx, SAME.get(cmd_name, "")
        )
        if (
            is_completing()
            and command is not None
            and (names := self.names.get(self.name or "")) is not None
        ):
            arguments = [
                parameter for parameter in command.params if parameter.param_type_name == "argument"
            ]
            for argument in arguments[:1]:
                argument._custom_shell_complete = (
                    names  # typer has no other way to give it from outside
                )
        return command


def complete(names: Mapping[str, Names]) -> None:
    """Enable completion of names in these groups."""
    Verbs.names.update(names)
