"""Certificates, keys and files of rules that objects name, held to the directories that objects may read.

Who sends an object to the API may have no account on this machine. A file that such an object names must be in
``secrets`` in the data directory or in one of ``allowed.secret_directories``; those that ``sluice.conf`` names may be
anywhere.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from broker.config.allowed import NotAllowed, allowed
from broker.core.errors import Invalid, Problem
from broker.core.objects import Spec

_Place = tuple[Any, ...]
"""Position of a value: that of its object or list, and its name or index there; empty at the top."""
_WALKED: Final = (list, dict)
_TLS: Final = ("ssl", "ssl_options")
_OF_TLS: Final = ("cacertfile", "certfile", "keyfile", "crlfile")
_NAMES: Final = (b"file", b"public_key", rb"\u")
"""In the JSON of each spec that names a file; a member may be written with escapes."""


def check_files(spec: Spec) -> None:
    """Check that the files that a spec names may be read.

    Raises:
        Invalid: with each that may not.
    """
    problems = []
    for pointer, path in _files(spec):
        problems += file_problems(Path(path), pointer)
    if problems:
        raise Invalid("the object cannot be saved", problems)


def names_files(text: bytes) -> bool:
    """True if a spec in JSON may name files: most do not, and need not be walked."""
    return any(name in text for name in _NAMES)


def file_problems(path: Path, pointer: str) -> list[Problem]:
    """A problem where a file that an object names at this place may not be read."""
    try:
        allowed().readable(path)
    except NotAllowed as error:
        return [Problem(str(error), pointer, suggestion="move it there, or add its directory")]
    return []


def _files(spec: Spec) -> Iterator[tuple[str, str]]:
    """Every path of a certificate or key, with its place.

    Only lists and objects are walked, and places put together where there is a path: a body may have 100,000 values.
    """
    left: list[tuple[Any, _Place, bool]] = [(spec, (), False)]
    while left:
        value, place, in_tls = left.pop()
        if isinstance(value, list):
            left += [
                (item, (place, at), in_tls)
                for at, item in enumerate(value)
                if type(item) in _WALKED
            ]
            continue
        for name, item in value.items():
            if type(item) in _WALKED:
                left.append((item, (place, name), in_tls or name in _TLS))
            elif (name in _OF_TLS if in_tls else name == "public_key" and not place) and (
                isinstance(item, str) and (in_tls or "-----BEGIN" not in item)
            ):
                yield _pointer((place, name)), item


def _pointer(place: _Place) -> str:
    parts = []
    while place:
        place, name = place
        parts.append(f"/{name}")
    return "".join(reversed(parts))
