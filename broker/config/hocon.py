"""HOCON files as plain data, with the place of each key.

Bounded in size, nesting and in the growth by substitutions. Includes take files by relative names only, below the
directory of the file that includes them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from broker.config.hocon_reader import HoconError, Reader
from broker.config.hocon_resolver import Resolver, places
from broker.config.hocon_tree import Object, Place

# Largest file read, and largest sum of a file and what it includes.
MAX_FILE_BYTES = 8 * 1024 * 1024
MAX_INCLUDE_DEPTH = 10


@dataclass(frozen=True, slots=True)
class Document:
    """Content of a file: ``values``, and the place of each key by its path (items of lists by number)."""

    values: dict[str, Any]
    places: Mapping[tuple[str, ...], Place] = field(default_factory=dict)

    def place(self, path: tuple[str, ...]) -> Place | None:
        """Place of a key, or of the nearest key above it."""
        for length in range(len(path), 0, -1):
            if place := self.places.get(path[:length]):
                return place
        return None


def parse_file(file: Path, environ: Mapping[str, str]) -> Document:
    """Read a file and what it includes.

    Raises:
        HoconError: it cannot be read or is not HOCON; one sentence with file, line and column.
    """
    loader = _Loader()
    with _within_the_stack(str(file)):
        return _document(loader.load(file, f"{file}: "), environ)


def parse_text(text: str, file: str = "text", environ: Mapping[str, str] | None = None) -> Document:
    """Read a string that is in no file; it may include nothing.

    Raises:
        HoconError: it is not HOCON.
    """
    with _within_the_stack(file):
        return _document(Reader(text, file, _no_include).read(), environ or {})


def parse_value(text: str, name: str) -> Any:
    """The value of a string such as ``[a, b]`` or ``{x = 1}``; ``name`` is used in messages.

    Raises:
        HoconError: it is not a HOCON value.
    """
    with _within_the_stack(name):
        return Resolver(Object(Place(name, 1, 1)), {}).value(
            Reader(text, name, _no_include).read_value()
        )


@contextmanager
def _within_the_stack(name: str) -> Iterator[None]:
    """Includes inside includes and substitutions of substitutions may nest deeper than any one text."""
    try:
        yield
    except RecursionError:
        raise HoconError(f"{name}: its substitutions or includes nest too deeply") from None


def _document(root: Object, environ: Mapping[str, str]) -> Document:
    return Document(Resolver(root, environ).resolve(), places(root))


def _no_include(name: str, place: Place) -> Object:
    raise HoconError(f"{place}: {name!r} cannot be included from here")


class _Loader:
    """Reads a file with its includes, within bounds."""

    def __init__(self) -> None:
        self._bytes_left = MAX_FILE_BYTES
        self._open: list[Path] = []

    def load(self, file: Path, context: str) -> Object:
        text = self._text(file, context)
        self._open.append(file)
        try:
            return Reader(
                text, str(file), lambda name, place: self._include(file, name, place)
            ).read()
        finally:
            self._open.pop()

    def _include(self, including: Path, name: str, place: Place) -> Object:
        relative = PurePosixPath(name)
        if "://" in name or relative.is_absolute() or ".." in relative.parts or not name:
            raise HoconError(
                f"{place}: {name!r} cannot be included; include files by a relative name, below {including.parent}"
            )
        file = including.parent / relative
        if file in self._open:
            raise HoconError(f"{place}: {name!r} includes itself")
        if len(self._open) >= MAX_INCLUDE_DEPTH:
            raise HoconError(f"{place}: files are included more than {MAX_INCLUDE_DEPTH} deep")
        return self.load(file, f"{place}: cannot include ")

    def _text(self, file: Path, context: str) -> str:
        subject = context if context.startswith(str(file)) else f"{context}{file}: "
        try:
            with file.open("rb") as opened:
                data = opened.read(self._bytes_left + 1)
        except OSError as error:
            raise HoconError(f"{subject}{(error.strerror or str(error)).lower()}") from None
        if len(data) > self._bytes_left:
            raise HoconError(
                f"{subject}larger than {MAX_FILE_BYTES // 1024**2} MB, includes counted"
            )
        self._bytes_left -= len(data)
        try:
            return data.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            line = data.count(b"\n", 0, error.start) + 1
            raise HoconError(f"{subject}line {line} is not UTF-8 text") from None
