"""Certificates, keys and files of rules that objects name, held to the directories that objects may read.

Who sends an object to the API may have no account on this machine. A file that such an object names must be in
``secrets`` in the data directory or in one of ``allowed.secret_directories``; those that ``sluice.conf`` names may be
anywhere.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from broker.config.allowed import NotAllowed, allowed
from broker.core.errors import Invalid, Problem
from broker.core.objects import Spec

_TLS: Final = ("ssl", "ssl_options")
_OF_TLS: Final = ("cacertfile", "certfile", "keyfile", "crlfile")


def check_files(spec: Spec) -> None:
    """Check that the files that a spec names may be read.

    Raises:
        Invalid: with each that may not.
    """
    problems = []
    for pointer, path in _files(spec, "", in_tls=False):
        problems += file_problems(Path(path), pointer)
    if problems:
        raise Invalid("the object cannot be saved", problems)


def file_problems(path: Path, pointer: str) -> list[Problem]:
    """A problem where a file that an object names at this place may not be read."""
    try:
        allowed().readable(path)
    except NotAllowed as error:
        return [Problem(str(error), pointer, suggestion="move it there, or add its directory")]
    return []


def _files(value: Any, pointer: str, *, in_tls: bool) -> Iterator[tuple[str, str]]:
    """Every path of a certificate or key, with its place."""
    if isinstance(value, list):
        for at, item in enumerate(value):
            yield from _files(item, f"{pointer}/{at}", in_tls=in_tls)
    elif isinstance(value, Mapping):
        for name, item in value.items():
            place = f"{pointer}/{name}"
            if isinstance(item, str):
                if (in_tls and name in _OF_TLS) or (
                    place == "/public_key" and "-----BEGIN" not in item
                ):
                    yield place, item
            else:
                yield from _files(item, place, in_tls=in_tls or name in _TLS)
