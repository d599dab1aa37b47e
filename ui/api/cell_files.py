"""Brings what the first cell has saved to the cells of another machine, which have a data directory of their own."""

from __future__ import annotations

import asyncio
import fcntl
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from broker.admin.rights import Actor
from broker.config.sections import replace_file
from broker.core.cells import Place
from broker.core.errors import Unavailable
from broker.observe.log import get_logger
from ui.api.cell_calls import FILES_PATH, MACHINE, Away, CellCalls, not_there, there

_FRONT: Final = 0
# Exists once the files were brought.
_BROUGHT: Final = "brought"
# Seconds between attempts, and for which a start waits for newer files than those it has.
_AGAIN_S: Final = 1.0
_LOCKED_AGAIN_S: Final = 0.01
_NEWER_S: Final = 5.0

_log = get_logger(__name__)


class FilesOfFront:
    """The files of the first cell, by their content, and their copies here. ``directory`` has the mark of that."""

    def __init__(self, place: Place, files: Mapping[str, Path], directory: Path) -> None:
        self._calls = CellCalls(place)
        self._here = place.here
        self._files = files
        self._directory = directory
        self._brought = directory / _BROUGHT

    def start(self) -> None:
        """Be ready to ask."""
        self._calls.start()

    async def stop(self) -> None:
        """Ask no more."""
        await self._calls.stop()

    async def fetch(self) -> None:
        """Replace the files here by those of the first cell, unless that writes them itself: while it runs on this
        machine.

        Raises:
            Unavailable: it does not answer, or a file cannot be written.
        """
        # one cell at a time, so that no older answer replaces a newer one
        lock = await self._lock()
        try:
            answer = there(await self._calls.ask(_FRONT, "GET", FILES_PATH, actor=Actor("front")))
            if not answer.is_good:
                raise not_there(Away(_FRONT, answer.detail))
            await asyncio.to_thread(self._write, answer.value)
        finally:
            os.close(lock)

    async def _lock(self) -> int:
        """The directory, locked; asked again and again, since a thread that waits cannot be stopped."""
        directory = os.open(self._directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            while True:
                try:
                    fcntl.flock(directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    await asyncio.sleep(_LOCKED_AGAIN_S)
                else:
                    return directory
        except BaseException:
            os.close(directory)
            raise

    async def fetch_first(self) -> None:
        """The same before a start: until they were brought once, no user or right is known here, so it waits; later it
        continues with those of before where the first cell does not answer."""
        self.start()
        loop = asyncio.get_running_loop()
        ends_s = loop.time() + _NEWER_S
        said = ""
        try:
            while True:
                try:
                    return await self.fetch()
                except Unavailable as error:
                    if self._brought.exists() and loop.time() > ends_s:
                        return _log.warning("cells.configuration_of_before", reason=str(error))
                    if said != (said := str(error)):
                        _log.info("cells.configuration_awaited", reason=said)
                await asyncio.sleep(_AGAIN_S)
        finally:
            await self.stop()

    def _write(self, texts: Mapping[str, str]) -> None:
        try:
            is_first_here = texts.get(MACHINE) == self._here
            for name, path in self._files.items():
                if name in texts and not is_first_here:
                    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
                    replace_file(path, texts[name].encode())
            self._brought.touch(mode=0o600)
        except OSError as error:
            raise Unavailable(f"the files of the first cell cannot be written: {error}") from error
