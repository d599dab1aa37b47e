"""Declarations of resources: what they name exists, and they are data that loads nothing."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from broker.core.kinds import kind_named, load
from broker.core.resources import Command, Verb, resources

VERBS = [pytest.param(verb, id=verb.id) for resource in resources() for verb in resource.verbs]
COMMANDS = [
    pytest.param(verb.command, id=verb.id)
    for one in resources()
    for verb in one.verbs
    if verb.command
]


@pytest.mark.parametrize("verb", VERBS)
def test_types_that_a_verb_names_exist(verb: Verb) -> None:
    named: list[Any] = [verb.answer, verb.row, verb.body if isinstance(verb.body, str) else ""]
    named += [
        one.type
        for one in (*verb.takes, *verb.members)
        if isinstance(one.type, str) and ":" in one.type
    ]
    for name in filter(None, named):
        if ":" in name:
            load(name)
        else:
            assert kind_named(name).spec_models()


@pytest.mark.parametrize("command", COMMANDS)
def test_functions_that_a_command_names_exist(command: Command) -> None:
    for name in filter(None, (command.show, command.check)):
        assert callable(load(name))


def test_identifiers_of_operations_are_unique() -> None:
    ids = [verb.id for resource in resources() for verb in resource.verbs]
    assert len(ids) == len(set(ids))


@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_that_changes_something_says_so(verb: Verb) -> None:
    assert (verb.does == "read") == (verb.method == "GET")


def test_declarations_are_read_without_what_they_name() -> None:
    heavy = ("fastapi", "pydantic", "pyarrow", "broker.connection.hub", "ui.api.context", "typer")
    code = f"import sys, broker.core.resources as r; r.resources(); print([m for m in {heavy} if m in sys.modules])"
    assert (
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        ).stdout
        == "[]\n"
    )


@pytest.mark.parametrize("verb", VERBS)
def test_parameters_have_names_that_commands_and_routes_do_not_use(verb: Verb) -> None:
    taken = {
        "call",
        "context",
        "url",
        "data_dir",
        "output",
        "as_json",
        "yes",
        "is_dry",
        "plan_only",
        "detach",
    }
    taken |= {"request", "body", "cursor", "verb"} | ({"limit"} if verb.is_paged else set())
    assert not taken.intersection(one.key for one in (*verb.takes, *verb.members))
