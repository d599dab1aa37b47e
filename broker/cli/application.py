"""All commands of ``sluice``, in the order in which its help lists them.

Each command imports what it needs when it runs, so that ``sluice --help`` does not wait for the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from typing import Annotated, Final, NamedTuple

import typer
from typer.models import CommandInfo, TyperInfo

from broker.cli import (
    access,
    apply,
    backup,
    bridges,
    catalogues,
    cells,
    cluster,
    config,
    doctor,
    gates,
    imports,
    jobs,
    lake,
    listeners,
    live,
    metrics,
    node,
    objects,
    rule_backtest,
    rule_tries,
    rules,
    run,
    schemas,
    streams,
    topics,
    traffic,
)
from broker.cli.completion import Names
from broker.cli.resources import add_commands
from broker.cli.verbs import Verbs, complete
from broker.cli.version import show_version, version
from broker.core.kinds import kinds
from broker.core.resources import resources

_COMMANDS: Final[Sequence[Callable[..., None]]] = (
    run.serve,
    run.demo,
    node.status,
    live.live,
    traffic.publish,
    topics.tail,
    gates.pipeline,
    gates.variform,
    catalogues.events,
    catalogues.functions,
    lake.audit,
    apply.apply,
    apply.export,
    backup.backup,
    backup.restore,
    doctor.doctor,
    version,
)


class _Group(NamedTuple):
    """Commands that begin with the same word. ``alias`` is another word for it that the help does not show."""

    commands: typer.Typer
    name: str
    alias: str = ""


_GROUPS: Final = (
    _Group(bridges.group, "bridges"),
    _Group(access.access, "access"),
    _Group(metrics.group, "metrics"),
    _Group(lake.group, "lake"),
    _Group(imports.group, "import"),
)
# Commands in addition to those that declarations name, by the path of a kind or resource.
_BEYOND: Final[Mapping[str, Sequence[Callable[[typer.Typer], None]]]] = {
    "rules": (rules.add_to, rule_tries.add_to, rule_backtest.add_to),
    "rewrites": (gates.add_rewrites,),
    "schemas": (schemas.add_to,),
    "validations": (gates.add_validations,),
    "transforms": (gates.add_transforms,),
    "actions": (bridges.add_actions,),
    "streams": (streams.add_to,),
    "lake/tables": (lake.add_to,),
    "accounts": (access.add_accounts,),
    "tokens": (access.add_tokens,),
    "users": (access.add_users,),
    "bans": (access.add_bans,),
    "groups": (traffic.add_groups,),
    "listeners": (listeners.add_to,),
    "config": (config.add_to,),
    "jobs": (jobs.add_to,),
    "topics": (topics.add_to,),
    "captures": (topics.add_captures,),
    "cells": (cells.add_to,),
    "cluster/machines": (cluster.add_to,),
    "clients": (traffic.add_clients,),
    "sessions": (traffic.add_sessions,),
    "subscriptions": (traffic.add_subscriptions,),
    "audit-log": (traffic.add_audit_log,),
}
# Groups that have the commands of kinds in them.
_ABOVE: Final = {"access": access.access, "lake": lake.group}


def _application() -> typer.Typer:
    application = typer.Typer(
        name="sluice",
        help="An MQTT broker with a gate in it: schemas, transforms, SQL rules, streams, lakehouse tables.",
        no_args_is_help=True,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    application.callback()(_options)
    for command in _COMMANDS:
        application.command()(command)
    for resource in resources():
        if not resource.commands:
            add_commands(application, resource)
    groups = [*_of_objects(), *_GROUPS]
    groups += _of_resources({group.name: group.commands for group in groups})
    for commands, name, alias in groups:
        application.add_typer(commands, name=name, cls=Verbs)
        if alias:
            application.add_typer(commands, name=alias, hidden=True, cls=Verbs)
    return application


def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", "-V", is_eager=True, callback=show_version, help="Print the version."
        ),
    ] = False,
) -> None:
    """An MQTT broker with a gate in it: schemas, transforms, SQL rules, streams, lakehouse tables."""


def _of_objects() -> Iterator[_Group]:
    for kind in kinds():
        commands = objects.group_for(kind)
        for add in _BEYOND.get(kind.path, ()):
            add(commands)
        if kind.abilities.has_probe:
            bridges.add_test(commands, kind)
        *above, name = kind.commands
        alias = kind.short.replace(" ", "-")
        if not above:
            yield _Group(commands, name, alias)
            continue
        _ABOVE[above[0]].add_typer(commands, name=name)
        if alias != name:
            _ABOVE[above[0]].add_typer(commands, name=alias, hidden=True)


def _of_resources(groups: dict[str, typer.Typer]) -> Iterator[_Group]:
    """The groups of resources that are not among these; those of others get their commands."""
    for resource in resources():
        if not resource.commands:
            continue
        *above, name = resource.commands.split()
        parent = groups[above[0]] if above else None
        below = (
            {group.name: group.typer_instance for group in parent.registered_groups}
            if parent
            else groups
        )
        if (commands := below.get(name)) is not None:
            add_commands(commands, resource)
            continue
        commands = typer.Typer(help=resource.about, no_args_is_help=True)
        add_commands(commands, resource)
        for add in _BEYOND.get(resource.path[1:], ()):
            add(commands)
        if parent is not None:
            parent.add_typer(commands, name=name)
        else:
            groups[name] = commands
            yield _Group(commands, name, resource.alias)


app = _application()
complete(
    {
        kind.commands[-1]: Names(objects.path_of(kind), kind.key)
        for kind in kinds()
        if kind.commands[0] != "access"
        and kind.path != "bans"  # whose commands begin with the compared field
    }
)
complete(
    {
        resource.commands: Names(resource.path, resource.named_by)
        for resource in reversed(resources())  # the first one that has the group
        if resource.named_by and resource.commands
    }
)


def part_with(words: Sequence[str]) -> typer.Typer:
    """The part that a command line needs: to build every command takes longer than to run most of them."""
    word = next((word for word in words if not word.startswith("-")), "")
    part = copy(app)
    part.registered_groups = [group for group in app.registered_groups if group.name == word]
    part.registered_commands = (
        []
        if part.registered_groups
        else [command for command in app.registered_commands if _is(command, word)]
    )
    if not part.registered_groups and not part.registered_commands:
        part.registered_commands = app.registered_commands
        part.registered_groups = [_named_only(group) for group in app.registered_groups]
    return part


def _is(command: CommandInfo, word: str) -> bool:
    return command.callback is not None and command.callback.__name__ == word


def _named_only(group: TyperInfo) -> TyperInfo:
    """A group as the list of all groups shows it, without its commands."""
    assert group.typer_instance is not None
    shown = copy(group)
    shown.typer_instance = copy(group.typer_instance)
    shown.typer_instance.registered_commands = []
    shown.typer_instance.registered_groups = []
    return shown
