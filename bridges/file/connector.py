"""The connector type ``file``: rows as lines of a file, which is EMQX's disk log."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

from pydantic import Field, field_validator

from bridges.resource.contract import (
    ALL_DONE,
    Answers,
    Connector,
    ConnectorType,
    Context,
    ProbeStep,
    Sink,
)
from bridges.resource.errors import BadSettings, BridgeError, ReconnectFirst, TryAgain
from bridges.resource.templates import bytes_template
from broker.config.allowed import NotAllowed, allowed
from broker.config.model import Settings
from broker.config.units import Size
from broker.core.action import Row
from broker.core.clock import Clock
from broker.core.message import Message
from broker.observe.rotating_file import RotatingFile

_LINE_BREAKS = bytes.maketrans(b"\n\r", b"  ")


class FileSettings(Settings):
    """One file, and those that were rotated away."""

    filepath: Path = Field(
        description="The file; a path in `files` in the data directory, where a relative one starts, or in one of "
        "`allowed.directories`. Its folder must be there."
    )
    max_file_size: Size = Field(
        default=50 * 1024 * 1024,
        ge=1024,
        le=1024**4,
        description="Maximum size of the file; it is rotated before it grows larger.",
    )
    max_file_number: int = Field(
        default=10,
        ge=0,
        le=100_000,
        description="Number of rotated files that are kept, the newest. 0 keeps none.",
    )
    rotation: Literal["none", "hour", "day"] = Field(
        default="none", description="Additional rotation at each full hour or at midnight, UTC."
    )

    @field_validator("filepath")
    @classmethod
    def _allowed(cls, value: Path) -> Path:
        try:
            allowed().file(value)
        except NotAllowed as error:
            raise ValueError(str(error)) from None
        return value


class FileActionSettings(Settings):
    """Format of a row's line."""

    template: str = Field(
        default="${.}",
        description="The line; a template over the row. Default: the whole row as JSON.",
    )
    write_mode: Literal["sync", "async"] = Field(
        default="async",
        description="sync confirms a batch once it is on the disk, async once the operating system has it.",
    )


class FileConnector(Connector):
    """One file, written by one thread at a time."""

    def __init__(self, settings: FileSettings, context: Context) -> None:
        try:
            self._path = allowed().file(settings.filepath)
            allowed().make_files()
        except NotAllowed as error:
            raise BadSettings(str(error)) from None
        self._file = RotatingFile(
            self._path,
            max_bytes=settings.max_file_size,
            max_files=settings.max_file_number,
            rotation=settings.rotation,
        )
        self._one_at_a_time = asyncio.Lock()
        self._clock: Clock = context.services.node.clock

    async def open(self) -> None:
        """Open the file; it is created if missing."""
        await self.do(self._file.open)

    async def close(self) -> None:
        """Close it."""
        await self.do(self._file.close)

    async def check(self) -> None:
        """Raise an error unless the file may be written to."""
        await self.do(self._file.check)

    def probe(self) -> Sequence[ProbeStep]:
        """Folder, then permission."""

        async def folder() -> str:
            if not await asyncio.to_thread(self._path.parent.is_dir):
                raise ReconnectFirst(f"the folder {self._path.parent} does not exist; create it")
            return f"{self._path.parent} is a folder"

        async def permission() -> str:
            await self.open()
            return f"{self._path} is writable"

        return [ProbeStep("folder", folder), ProbeStep("permission", permission)]

    def sink(self, settings: FileActionSettings, context: Context) -> Sink:
        """Lines of an action."""
        return FileSink(self, settings)

    async def append(self, data: bytes, *, sync: bool) -> None:
        """Add lines. Raises what ``bridges.resource.errors`` has."""
        await self.do(lambda: self._file.append(data, self._clock.now_ns() / 1e9, sync=sync))

    async def do(self, work: Callable[[], None]) -> None:
        """Work on the file, on a thread; errors of the system as those of bridges."""
        async with self._one_at_a_time:
            try:
                await asyncio.to_thread(work)
            except OSError as error:
                raise _meant(error, self._path) from error


class FileSink(Sink):
    """Rows of one action as lines."""

    def __init__(self, connector: FileConnector, settings: FileActionSettings) -> None:
        self._connector = connector
        self._text_of = bytes_template(settings.template)
        self._sync = settings.write_mode == "sync"

    def record(self, row: Row, message: Message) -> bytes:
        """The line, without line breaks in it."""
        line = self._text_of(row) or b""
        return line.translate(_LINE_BREAKS) if b"\n" in line or b"\r" in line else line

    async def send(self, records: Sequence[bytes]) -> Answers:
        """All lines, or none."""
        await self._connector.append(b"\n".join(records) + b"\n", sync=self._sync)
        return ALL_DONE


def _meant(error: OSError, path: Path) -> BridgeError:
    reason = (error.strerror or str(error)).lower()
    if error.errno in (errno.ENOENT, errno.ENOTDIR):
        return ReconnectFirst(f"the folder {path.parent} does not exist; create it")
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS, errno.EISDIR):
        return BadSettings(f"{path} cannot be written: {reason}")
    return TryAgain(f"{path} cannot be written: {reason}")


FILE = ConnectorType(
    name="file",
    title="File",
    summary="Appends each row as a line to a file on the broker's machine, with rotation by size and time.",
    connector=FileSettings,
    make=FileConnector,
    action=FileActionSettings,
    batch_size=1000,
    batch_time_s=0.1,
    lanes=1,
)
