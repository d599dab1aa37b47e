"""``sluice listeners``: the addresses on which MQTT clients are taken, while the broker runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from broker.cli import exit_codes
from broker.cli.errors import hinting
from broker.cli.options import DATA_DIR, DataDirOption, JsonOption, OutputOption, UrlOption, api_client
from broker.cli.single import remove_one, show_one

group = typer.Typer(help="List, add, change, start and stop listeners of a running broker.", no_args_is_help=True)

IdArgument = Annotated[str, typer.Argument(metavar="KIND:NAME", help="As tcp:default; kinds are tcp, ssl, ws, wss.")]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="A setting, as max_connections=100; may be given many times."),
]
BindOption = Annotated[str | None, typer.Option("--bind", help="HOST:PORT to listen on.")]
DrainOption = Annotated[bool, typer.Option("--drain", help="Let its connections stay until they end.")]
_COLUMNS = ("id", "state", "address", "zone", "connections", "max_connections", "certificate_expires")
_HINT = "sluice listeners list"


@group.command("ls")
def list_listeners(
    url: UrlOption = None,
    data_dir: DataDirOption = DATA_DIR,
    output: OutputOption = "table",
    as_json: JsonOption = False,
) -> None:
    """List all listeners, and what they do."""
    from broker.cli.output import print_json, print_table

    with api_client(url, data_dir) as client:
        found = client.get("/listeners")
    if as_json or output == "json":
        print_json(found)
    else:
        print_table(_COLUMNS, [[item[column] for column in _COLUMNS] for item in found["items"]])


@group.command("show")
def show_listener(
    id: IdArgument,
    url: UrlOption = None,
    data_dir: DataDirOption = DATA_DIR,
    output: OutputOption = "table",
    as_json: JsonOption = False,
) -> None:
    """Show a listener with its settings."""
    show_one("/listeners", id, hint=_HINT, url=url, data_dir=data_dir, is_json=as_json or output == "json")


@group.command("add")
def add_listener(
    id: IdArgument,
    bind: BindOption = None,
    settings: SetOption = None,
    url: UrlOption = None,
    data_dir: DataDirOption = DATA_DIR,
    output: OutputOption = "table",
    as_json: JsonOption = False,
) -> None:
    """Add a listener and open it."""
    from broker.cli.client import name_path

    with api_client(url, data_dir) as client:
        made = client.post(name_path("/listeners", id), _settings(bind, settings))
    _print(made, is_json=as_json or output == "json")


@group.command("update")
def update_listener(
    id: IdArgument,
    bind: BindOption = None,
    settings: SetOption = None,
    url: UrlOption = None,
    data_dir: DataDirOption = DATA_DIR,
    output: OutputOption = "table",
    as_json: JsonOption = False,
) -> None:
    """Change settings of a listener; its connections live on. KEY=null goes back to the default."""
    from broker.cli.client import name_path

    with api_client(url, data_dir) as client, hinting(exit_codes.NOT_FOUND, _HINT):
        changed = client.patch(name_path("/listeners", id), _settings(bind, settings))
    _print(changed, is_json=as_json or output == "json")


@group.command("rm")
def remove_listener(
    id: IdArgument,
    drain: DrainOption = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    url: UrlOption = None,
    data_dir: DataDirOption = DATA_DIR,
    as_json: JsonOption = False,
) -> None:
    """Close a listener and forget it; its connections are closed, unless they are to drain."""
    question, command = f"Remove listener {id}?", f"sluice listeners remove {id} --yes"
    remove_one(
        "/listeners", id, query=_drain(drain), what="listener", question=question, command=command, hint=_HINT,
        yes=yes, url=url, data_dir=data_dir, as_json=as_json,
    )  # fmt: skip


@group.command("start")
def start_listener(
    id: IdArgument,
    url: UrlOption = None,
    data_dir: DataDirOption = DATA_DIR,
    output: OutputOption = "table",
    as_json: JsonOption = False,
) -> None:
    """Open a listener that was stopped."""
    _switch(id, "start", "", url, data_dir, is_json=as_json or output == "json")


@group.command("stop")
def stop_listener(
    id: IdArgument,
    drain: DrainOption = False,
    url: UrlOption = None,
    data_dir: DataDirOption = DATA_DIR,
    output: OutputOption = "table",
    as_json: JsonOption = False,
) -> None:
    """Close a listener until it, or the broker, is started again."""
    _switch(id, "stop", _drain(drain), url, data_dir, is_json=as_json or output == "json")


@group.command("restart")
def restart_listener(
    id: IdArgument,
    drain: DrainOption = False,
    url: UrlOption = None,
    data_dir: DataDirOption = DATA_DIR,
    output: OutputOption = "table",
    as_json: JsonOption = False,
) -> None:
    """Close a listener and open it again."""
    _switch(id, "restart", _drain(drain), url, data_dir, is_json=as_json or output == "json")


def _switch(id: str, verb: str, query: str, url: str | None, data_dir: Path, *, is_json: bool) -> None:
    from broker.cli.client import name_path

    with api_client(url, data_dir) as client, hinting(exit_codes.NOT_FOUND, _HINT):
        _print(client.post(f"{name_path('/listeners', id)}:{verb}{query}", {}), is_json=is_json)


def _drain(drain: bool) -> str:
    return "?drain=true" if drain else ""


def _print(listener: dict[str, Any], *, is_json: bool) -> None:
    from broker.cli.output import print_json, print_members

    print_json(listener) if is_json else print_members(listener)


def _settings(bind: str | None, settings: list[str] | None) -> dict[str, Any]:
    """``ssl_options.certfile=x`` as ``{"ssl_options": {"certfile": "x"}}``; lists and objects in HOCON."""
    from broker.config.hocon import parse_value

    made: dict[str, Any] = {} if bind is None else {"bind": bind}
    for setting in settings or ():
        key, equals, text = setting.partition("=")
        if not equals or not all(key.split(".")):
            raise typer.BadParameter(f"{setting!r} is not KEY=VALUE, as max_connections=100", param_hint="--set")
        *above, last = key.strip().split(".")
        place = made
        for name in above:
            place = place.setdefault(name, {})
        place[last] = None if text == "null" else parse_value(text, "--set") if text[:1] in ("[", "{") else text
    return made
