"""Epochs of streams over the cells of a broker: the first cell writes them to a file, from which the others learn that
a stream was deleted, or deleted and created again, also while they were away."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from broker.config.sections import replace_file
from broker.core import jsontext
from broker.core.errors import Unavailable

FILE: Final = "streams.json"


class Epochs:
    """The file. ``is_first``: whether this process is the first cell, which writes it."""

    def __init__(self, path: Path, *, is_first: bool) -> None:
        self._path = path
        self.is_first = is_first

    def read(self) -> dict[str, str | None]:
        """The epoch of each stream, None for one that was deleted. A stream that it lacks may exist.

        Raises:
            Unavailable: the file cannot be read.
        """
        try:
            epochs: dict[str, str | None] = jsontext.decode(self._path.read_bytes())
        except FileNotFoundError:
            return {}
        except (OSError, jsontext.JsonError) as error:
            raise Unavailable(f"the epochs of streams cannot be read: {error}") from error
        return epochs

    def note(self, changed: Mapping[str, str | None]) -> None:
        """Write the epochs of some streams; None for one that was deleted.

        Raises:
            Unavailable: the file cannot be written.
        """
        epochs = self.read()
        if epochs != (then := {**epochs, **changed}):
            try:
                replace_file(self._path, jsontext.encode(then))
            except OSError as error:
                raise Unavailable(f"the epochs of streams cannot be written: {error}") from error
