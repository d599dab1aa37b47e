"""``sluice listeners``: the commands of listeners in addition to the verbs of every kind."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from broker.cli.client import name_path
from broker.cli.command import Call, command
from broker.cli.files import pairs
from broker.cli.objects import DrainOption, query_of, remove

IdArgument = Annotated[
    str, typer.Argument(metavar="KIND:NAME", help="As tcp:default; kinds are tcp, ssl, ws, wss.")
]
SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="A setting, as max_connections=100; may be given many times.",
    ),
]
BindOption = Annotated[str | None, typer.Option("--bind", help="HOST:PORT to listen on.")]
_PATH = "/listeners"
_KNOWN = "sluice listeners ls"


def add_to(group: typer.Typer) -> None:
    """Add creating and changing one by its settings, and removing one."""

    @command(group, "add", writes=True)
    def add_listener(
        call: Call, id: IdArgument, bind: BindOption = None, settings: SetOption = None
    ) -> None:
        """Add a listener and open it."""
        call.show(call.api.post(name_path(_PATH, id), _settings(bind, settings)))

    @command(group, "update", known=_KNOWN, writes=True)
    def update_listener(
        call: Call, id: IdArgument, bind: BindOption = None, settings: SetOption = None
    ) -> None:
        """Change settings of a listener; its connections stay. KEY=null restores the default."""
        call.show(call.api.patch(name_path(_PATH, id), _settings(bind, settings)))

    @command(group, "rm", known=_KNOWN, confirms=True, writes=True)
    def remove_listener(call: Call, id: IdArgument, drain: DrainOption = False) -> None:
        """Close a listener and remove it; its connections are closed, unless they are to drain."""
        remove(call, _PATH, [id], what="listener", query=query_of(drain=drain))


def _settings(bind: str | None, settings: list[str] | None) -> dict[str, Any]:
    """``ssl_options.certfile=x`` as ``{"ssl_options": {"certfile": "x"}}``; lists and objects in HOCON."""
    from broker.config.hocon import parse_value

    spec: dict[str, Any] = {} if bind is None else {"bind": bind}
    for key, text in pairs(settings, "--set"):
        *above, last = key.strip().split(".")
        place = spec
        for name in above:
            place = place.setdefault(name, {})
        place[last] = (
            None
            if text == "null"
            else parse_value(text, "--set")
            if text[:1] in ("[", "{")
            else text
        )
    return spec
