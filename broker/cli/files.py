"""Objects and texts from files, or from standard input."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from broker.cli import exit_codes
from broker.cli.errors import CommandError


def read_objects(file: str) -> list[dict[str, Any]]:
    """The objects of a file, each with its name.

    Raises:
        CommandError: the file cannot be read, or holds something else.
    """
    value = _parsed(read_text(file), "standard input" if file == "-" else file)
    objects = value if isinstance(value, list) else [value]
    for number, spec in enumerate(objects, 1):
        if not isinstance(spec, dict) or not isinstance(spec.get("name"), str) or not spec["name"]:
            which = f"object {number} of {file}" if isinstance(value, list) else file
            raise CommandError(f"{which} needs a name that is a text, as {{ name = meters, ... }}", exit_codes.USAGE)
        if "/" in spec["name"]:  # no path of the API leads to it
            raise CommandError(f"{spec['name']!r} is not a name: use letters, digits, '_', '-', '.'", exit_codes.USAGE)
    if not objects:
        raise CommandError(f"{file} holds no objects", exit_codes.USAGE)
    return objects


def read_text(file: str) -> str:
    """The text of a file, or of standard input as ``-``. Raises ``CommandError``."""
    try:
        return sys.stdin.read() if file == "-" else Path(file).read_text("utf-8-sig")
    except UnicodeDecodeError:
        raise CommandError(f"{file} is not UTF-8 text", exit_codes.USAGE) from None
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise CommandError(f"{file} cannot be read ({reason})", exit_codes.USAGE) from None


def _parsed(text: str, name: str) -> Any:
    """JSON is HOCON, so one reader takes both; a HOCON file may leave out the braces around its one object."""
    from broker.config.hocon import parse_text, parse_value
    from broker.config.hocon_reader import HoconError

    try:
        return parse_value(text, name) if text.lstrip()[:1] == "[" else parse_text(text, name).values
    except HoconError as error:
        raise CommandError(str(error), exit_codes.USAGE) from None
