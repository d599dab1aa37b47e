"""Objects and texts from files, or from standard input."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from broker.cli import exit_codes
from broker.cli.errors import CommandError

# Types of schemas by the files that hold their sources.
SOURCE_TYPES = {".avsc": "avro", ".proto": "protobuf", ".json": "json"}
# Members of which a schema, as the API shows it, has one.
_BODIES = {"source", "files", "parameters"}


def read_schemas(file: str, name: str | None, kind: str | None) -> list[dict[str, Any]]:
    """The schemas of a file: objects, or the source of one, which is named as the file where no name is given.

    Raises:
        CommandError: as ``read_objects``.
    """
    source_type = kind or SOURCE_TYPES.get(Path(file).suffix)
    is_source = (
        kind is not None
        or source_type in ("avro", "protobuf")
        or (source_type == "json" and not _holds_schemas(file))
    )
    if not is_source:
        return read_objects(file)
    if file == "-" and name is None:
        raise CommandError("standard input has no name; expected --name NAME", exit_codes.USAGE)
    return [{"name": name or Path(file).stem, "type": source_type, "source": read_text(file)}]


def _holds_schemas(file: str) -> bool:
    """True if a file of JSON has schemas as the API shows them, and not the source of one."""
    value = _parsed(read_text(file), file)
    objects = value if isinstance(value, list) else [value]
    return all(
        isinstance(schema, dict) and schema.keys() >= {"name", "type"} and _BODIES & schema.keys()
        for schema in objects
    )


def read_objects(file: str, *, may_have_any_name: bool = False) -> list[dict[str, Any]]:
    """The objects of a file, each with its name.

    Raises:
        CommandError: the file cannot be read, or holds something else.
    """
    value = _parsed(read_text(file), "standard input" if file == "-" else file)
    objects = value if isinstance(value, list) else [value]
    for number, spec in enumerate(objects, 1):
        if not isinstance(spec, dict) or not isinstance(spec.get("name"), str) or not spec["name"]:
            which = f"object {number} of {file}" if isinstance(value, list) else file
            raise CommandError(
                f"{which}: expected a name, as {{ name = meters, ... }}", exit_codes.USAGE
            )
        if "/" in spec["name"] and not may_have_any_name:  # no path of the API leads to it
            raise CommandError(
                f"{spec['name']!r} is not a name: use letters, digits, '_', '-', '.'",
                exit_codes.USAGE,
            )
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


def pairs(texts: Sequence[str] | None, option: str) -> Iterator[tuple[str, str]]:
    """The names and values of an option that is given as NAME=VALUE, several times.

    Raises:
        CommandError: one is something else.
    """
    for text in texts or ():
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise CommandError(f"{option}: expected NAME=VALUE, got {text!r}", exit_codes.USAGE)
        yield name, value


def duration_s(text: str, option: str) -> float:
    """The seconds of an option that is given as 10m, 2h or 7d.

    Raises:
        CommandError: it is something else.
    """
    from broker.config.units import parse_duration_s

    try:
        return float(str(parse_duration_s(text)))
    except ValueError as error:
        raise CommandError(f"{option}: {error}", exit_codes.USAGE) from None


def read_payload(file: str, exit_code: int = exit_codes.USAGE) -> dict[str, str]:
    """The bytes of a file, or of standard input as ``-``, as the API takes payloads.

    Raises:
        CommandError: with this exit code, when the file cannot be read.
    """
    from base64 import b64encode

    try:
        data = sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise CommandError(f"{file} cannot be read ({reason})", exit_code) from None
    return {"encoding": "base64", "data": b64encode(data).decode()}


def _parsed(text: str, name: str) -> Any:
    """JSON is HOCON, so one reader takes both; a HOCON file may leave out the braces around its one object."""
    from broker.config.hocon import parse_text, parse_value
    from broker.config.hocon_reader import HoconError

    try:
        return (
            parse_value(text, name) if text.lstrip()[:1] == "[" else parse_text(text, name).values
        )
    except HoconError as error:
        raise CommandError(str(error), exit_codes.USAGE) from None
