"""Errors as the command line prints them: one sentence, the next thing to try, an exit code."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TextIO

from broker.cli import exit_codes
from broker.core.errors import ConfigError, Conflict, Invalid, NotFound, ReadOnly, SluiceError
from broker.core.kinds import counted


class CommandError(Exception):
    """A command that failed. ``document`` is the problem document, when the API sent one."""

    def __init__(
        self,
        message: str,
        exit_code: int = exit_codes.FAILED,
        *,
        hint: str | None = None,
        details: Sequence[str] = (),
        document: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(message)
        self.exit_code, self.hint, self.details, self.document = (
            exit_code,
            hint,
            tuple(details),
            document,
        )

    def as_document(self) -> dict[str, Any]:
        """A problem document: the API's own, or one that says the same."""
        return self.document or {"title": str(self), "detail": str(self), "hint": self.hint}


def from_sluice_error(error: SluiceError) -> CommandError:
    """An error raised in this process, as the command line prints it."""
    codes = (
        (NotFound, exit_codes.NOT_FOUND),
        (Conflict, exit_codes.CONFLICT),
        (ReadOnly, exit_codes.CONFLICT),
    )
    exit_code = next((code for kind, code in codes if isinstance(error, kind)), exit_codes.FAILED)
    if isinstance(error, ConfigError):
        message = f"the configuration has {counted(len(error.problems), 'problem')}"
        return CommandError(message, exit_code, details=error.problems)
    if isinstance(error, Invalid) and len(error.problems) > 1:
        return CommandError(
            error.what, exit_code, details=[str(problem) for problem in error.problems]
        )
    return CommandError(str(error), exit_code)


@contextmanager
def no_heading() -> Iterator[None]:
    """Print the problems of a ``ConfigError`` as they are: the command is not about a whole configuration."""
    try:
        yield
    except ConfigError as error:
        raise CommandError("\n".join(error.problems)) from error


def show_error(error: CommandError, *, as_json: bool = False, stream: TextIO | None = None) -> None:
    """Write an error to standard error."""
    stream = stream or sys.stderr
    if as_json:
        print(json.dumps(error.as_document(), ensure_ascii=False), file=stream)
        return
    print(f"Error: {error}", file=stream)
    for detail in error.details:
        print(f"  {detail}", file=stream)
    if error.hint:
        print(f"Try: {error.hint}", file=stream)


@contextmanager
def checking() -> Iterator[None]:
    """Treat a refusal by the broker as the answer of a check, not as a failure of the command."""
    try:
        yield
    except CommandError as error:
        if (
            error.exit_code == exit_codes.FAILED
            and error.document is not None
            and error.document.get("errors")
        ):
            error.exit_code = exit_codes.CHECK_SAID_NO
        raise


@contextmanager
def hinting(exit_code: int, hint: str, *, instead: bool = False) -> Iterator[None]:
    """Adds the next thing to try to errors of one exit code, or puts it in place of another."""
    try:
        yield
    except CommandError as error:
        if error.exit_code == exit_code and (instead or error.hint is None):
            error.hint = hint
        raise
