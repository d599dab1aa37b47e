"""``sluice listeners``: the addresses that clients connect to, while the broker runs."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from broker.cli.client import name_path
from broker.cli.command import Call, command
from broker.cli.files import pairs
from broker.cli.objects import add_list, add_show, remove

group = typer.Typer(help="List, add, change, start and stop listeners of a running broker.", no_args_is_help=True)

IdArgument = Annotated[str, typer.Argument(metavar="KIND:NAME", help="As tcp:default; kinds are tcp, ssl, ws, wss.")]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="A setting, as max_connections=100; may be given many times."),
]
BindOption = Annotated[str | None, typer.Option("--bind", help="HOST:PORT to listen on.")]
DrainOption = Annotated[bool, typer.Option("--drain", help="Let its connections stay until they end.")]
_PATH = "/listeners"
_COLUMNS = ("id", "state", "address", "zone", "connections", "max_connections", "certificate_expires")
_KNOWN = "sluice listeners ls"

add_list(group, _PATH, _COLUMNS, "List all listeners with their state.")
add_show(group, _PATH, IdArgument, help="Show a listener with its settings.", known=_KNOWN)


@command(group, "add")
def add_listener(call: Call, id: IdArgument, bind: BindOption = None, settings: SetOption = None) -> None:
    """Add a listener and open it."""
    call.show(call.api.post(name_path(_PATH, id), _settings(bind, settings)))


@command(group, "update", known=_KNOWN)
def update_listener(call: Call, id: IdArgument, bind: BindOption = None, settings: SetOption = None) -> None:
    """Change settings of a listener; its connections stay. KEY=null goes back to the default."""
    call.show(call.api.patch(name_path(_PATH, id), _settings(bind, settings)))


@command(group, "rm", known=_KNOWN, confirms=True)
def remove_listener(call: Call, id: IdArgument, drain: DrainOption = False) -> None:
    """Close a listener and remove it; its connections are closed, unless they are to drain."""
    remove(call, _PATH, id, what="listener", query=_drain(drain))


@command(group, "start", known=_KNOWN)
def start_listener(call: Call, id: IdArgument) -> None:
    """Open a listener that was stopped."""
    _switch(call, id, "start")


@command(group, "stop", known=_KNOWN)
def stop_listener(call: Call, id: IdArgument, drain: DrainOption = False) -> None:
    """Close a listener until it, or the broker, is started again."""
    _switch(call, id, "stop", drain)


@command(group, "restart", known=_KNOWN)
def restart_listener(call: Call, id: IdArgument, drain: DrainOption = False) -> None:
    """Close a listener and open it again."""
    _switch(call, id, "restart", drain)


def _switch(call: Call, id: str, verb: str, drain: bool = False) -> None:
    call.show(call.api.post(f"{name_path(_PATH, id)}:{verb}{_drain(drain)}", {}))


def _drain(drain: bool) -> str:
    return "?drain=true" if drain else ""


def _settings(bind: str | None, settings: list[str] | None) -> dict[str, Any]:
    """``ssl_options.certfile=x`` as ``{"ssl_options": {"certfile": "x"}}``; lists and objects in HOCON."""
    from broker.config.hocon import parse_value

    found: dict[str, Any] = {} if bind is None else {"bind": bind}
    for key, text in pairs(settings, "--set"):
        *above, last = key.strip().split(".")
        place = found
        for name in above:
            place = place.setdefault(name, {})
        place[last] = None if text == "null" else parse_value(text, "--set") if text[:1] in ("[", "{") else text
    return found
