"""The command ``sluice``: how a command line is run, and how errors become sentences and exit codes."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Any

import typer

from broker.cli import exit_codes
from broker.cli.application import part_with
from broker.cli.completion import completed_words
from broker.cli.errors import CommandError, from_sluice_error, show_error
from broker.core.errors import SluiceError

_UsageError: type[Any] = typer.BadParameter.__bases__[0]  # of click, or of the copy in typer


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line; the exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    chosen: dict[str, Any] = {"words": words}
    try:
        code = part_with(words or completed_words())(
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
    """``sluice ... | head`` is not a failure; the rest must not be written at exit either."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return exit_codes.DONE


if __name__ == "__main__":
    sys.exit(main())
