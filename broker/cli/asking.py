"""Asking before something is changed."""

from __future__ import annotations

import sys

import typer

from broker.cli import exit_codes
from broker.cli.errors import CommandError


def confirm(question: str, *, yes: bool, command: str) -> None:
    """Ask on a terminal; elsewhere refuse unless ``--yes`` was given."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise CommandError("this changes things and nobody is there to be asked", exit_codes.USAGE, hint=command)
    if not typer.confirm(question, err=True):
        raise CommandError("nothing was changed")
