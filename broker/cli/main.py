"""The command ``sluice``: what it can do, and how errors become sentences and exit codes.

Each command imports what it needs when it runs, so that ``sluice --help`` does not wait for the rest.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from copy import copy
from typing import Annotated, Any

import typer

from broker.cli import (
    access,
    alarms,
    bans,
    bridges,
    clients,
    config,
    delayed,
    doctor,
    exit_codes,
    gate_tries,
    gates,
    groups,
    lake,
    listeners,
    objects,
    publish,
    quarantine,
    retained,
    rewrites,
    rule_backtest,
    rule_functions,
    rule_tries,
    rule_types,
    rules,
    run,
    schemas,
    sessions,
    status,
    subscriptions,
    users,
)
from broker.cli.errors import CommandError, from_sluice_error, show_error
from broker.core.errors import SluiceError

_UsageError: type[Any] = typer.BadParameter.__bases__[0]  # of click, or of what typer brings in its place


_GATES = ("validations", "transforms")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line; the exit code."""
    chosen: dict[str, Any] = {}
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        code = _part_with(words[0] if words else "")(
            words,
            prog_name="sluice",
            standalone_mode=False,
            obj=chosen,
        )
        sys.stdout.flush()
    except _UsageError as error:
        error.show()
        return exit_codes.USAGE
    except CommandError as error:
        return _failed(error, chosen)
    except SluiceError as error:
        return _failed(from_sluice_error(error), chosen)
    except (typer.Abort, KeyboardInterrupt):
        return exit_codes.INTERRUPTED
    except BrokenPipeError:
        return _nobody_reads()
    return code if isinstance(code, int) else exit_codes.DONE


def _failed(error: CommandError, chosen: dict[str, Any]) -> int:
    show_error(error, as_json=chosen.get("format") == "json")
    return error.exit_code


def _nobody_reads() -> int:
    """``sluice ... | head`` is no failure; what is left must not be written at exit either."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return exit_codes.DONE


def version(as_json: Annotated[bool, typer.Option("--json", help="As JSON, with Python's version.")] = False) -> None:
    """Print the version."""
    found = _version()
    print(json.dumps({"version": found, "python": sys.version.split()[0]}) if as_json else f"sluice {found}")


def _version() -> str:
    from importlib.metadata import PackageNotFoundError
    from importlib.metadata import version as version_of

    try:
        return version_of("sluicemq")
    except PackageNotFoundError:
        return "unknown (not installed)"


def _application() -> typer.Typer:
    application = typer.Typer(
        name="sluice",
        help="An MQTT broker with a gate in it: schemas, transforms, SQL rules, streams, lakehouse tables.",
        no_args_is_help=True,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    for command in (
        run.serve,
        run.demo,
        status.status,
        publish.publish,
        alarms.alarms,
        gate_tries.pipeline,
        gate_tries.variform,
        lake.audit,
        lake.replay,
        doctor.doctor,
        version,
    ):
        application.command()(command)
    application.add_typer(config.group, name="config")
    for noun in objects.NOUNS:
        group = objects.group_for(noun, f"sluice {noun.plural}")
        if noun.plural in _GATES:
            gates.add_gate_commands(group, noun, f"sluice {noun.plural}")
        if noun.plural == "rules":
            rules.add_to(group)
            rule_tries.add_to(group)
            rule_backtest.add_to(group)
            rule_types.add_to(group)
            rule_functions.add_to(group)
        if noun.plural == "rewrites":
            rewrites.add_to(group)
        if noun.plural == "schemas":
            schemas.add_to(group)
        application.add_typer(group, name=noun.plural)
        application.add_typer(group, name=noun.singular, hidden=True)
    for noun in bridges.NOUNS:
        group = objects.group_for(noun, f"sluice {noun.plural}")
        bridges.add_to(group, noun, f"sluice {noun.plural}")
        application.add_typer(group, name=noun.plural)
        application.add_typer(group, name=noun.singular, hidden=True)
    application.add_typer(bridges.group, name="bridges")
    application.add_typer(quarantine.group, name="quarantine")
    for module, name, hidden_name in (
        (clients, "clients", "client"),
        (sessions, "sessions", "session"),
        (subscriptions, "subscriptions", "subs"),
        (retained, "retained", ""),
    ):
        application.add_typer(module.group, name=name)
        if hidden_name:
            application.add_typer(module.group, name=hidden_name, hidden=True)
    application.add_typer(groups.group, name="groups")
    application.add_typer(users.group, name="users")
    application.add_typer(access.group, name="access")
    application.add_typer(bans.group, name="bans")
    application.add_typer(delayed.group, name="delayed")
    application.add_typer(listeners.group, name="listeners")
    application.add_typer(lake.group, name="lake")
    return application


app = _application()


def _part_with(word: str) -> typer.Typer:
    """The commands that begin with a word, or all: to build all of them takes longer than to run most of them."""
    part = copy(app)
    part.registered_groups = [group for group in app.registered_groups if group.name == word]
    if part.registered_groups:
        part.registered_commands = []
        return part
    names = {command.callback.__name__ for command in app.registered_commands if command.callback is not None}
    return part if word in names else app


if __name__ == "__main__":
    sys.exit(main())
