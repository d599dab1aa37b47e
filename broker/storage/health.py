"""State of the store and of its disk: checked at intervals, reported as alarms."""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress
from math import nan
from pathlib import Path
from typing import Final

from broker.observe.alarms import Alarms
from broker.observe.metrics import Metrics
from broker.observe.settings import AlarmSettings
from broker.storage.writer import Writer

# Unit of ``st_blocks``.
_BLOCK_BYTES: Final = 512
NOT_WRITABLE: Final = "store_not_writable"
DISK_NEARLY_FULL: Final = "disk_nearly_full"
BEHIND: Final = "store_behind"
# Interval in which the files of the data directory are measured, in a thread: there may be 100,000 of tables.
_MEASURE_EVERY_S: Final = 60.0
# Number of checks in a row that must find the backlog above its bound: it is meant for short peaks.
_LOOKS_BEHIND: Final = 3


class StoreHealth:
    """Looks every ``interval`` of the settings, on the event loop."""

    def __init__(
        self,
        writer: Writer,
        data_dir: Path,
        alarms: Alarms,
        settings: AlarmSettings,
        metrics: Metrics,
    ) -> None:
        self._writer = writer
        self._data_dir = data_dir
        self._alarms = alarms
        self._settings = settings
        self._timer: asyncio.TimerHandle | None = None
        self._behind = 0
        self._size_bytes = nan
        self._measuring: asyncio.Task[None] | None = None
        metrics.gauge(
            "disk_free_bytes", self._free_bytes, "free bytes on the disk of the data directory"
        )
        text = "bytes on disk of the files in the data directory, measured once a minute"
        metrics.gauge("data_directory_bytes", lambda: self._size_bytes, text)

    def disk(self) -> dict[str, int]:
        """The free bytes and the size of the disk of the data directory."""
        disk = os.statvfs(self._data_dir)
        return {
            "disk_free_bytes": disk.f_bavail * disk.f_frsize,
            "disk_total_bytes": disk.f_blocks * disk.f_frsize,
        }

    def start(self) -> None:
        """Look now, and again every interval."""
        self.look()
        if self._measuring is None:
            self._measuring = asyncio.create_task(
                self._measure(), name="size of the data directory"
            )
        self._timer = asyncio.get_running_loop().call_later(self._settings.interval, self.start)

    def stop(self) -> None:
        """Look no more."""
        if self._timer is not None:
            self._timer.cancel()
        if self._measuring is not None:
            self._measuring.cancel()
            self._measuring = None

    async def _measure(self) -> None:
        while True:
            self._size_bytes = await asyncio.to_thread(_size_of, self._data_dir)
            await asyncio.sleep(_MEASURE_EVERY_S)

    def look(self) -> None:
        """Activate or deactivate the alarms as things are now."""
        failure = self._writer.failure
        text = f"the store cannot be written, publishes to keep are refused: {failure}"
        self._alarms.set(NOT_WRITABLE, failure is not None, text, reason=str(failure))
        self._look_at_disk()
        self._behind = self._behind + 1 if self._writer.is_congested else 0
        self._alarms.set(
            BEHIND,
            self._behind >= _LOOKS_BEHIND,
            "the store is slower than the publishers, publishers are held back",
            backlog_bytes=self._writer.backlog_bytes,
        )

    def _look_at_disk(self) -> None:
        free = self._free_bytes()
        least = self._settings.disk_free_min
        text = f"the disk of {self._data_dir} has {free:,} bytes left; make room, or give streams less retention"
        self._alarms.set(DISK_NEARLY_FULL, free < least, text, free_bytes=free, least_bytes=least)

    def _free_bytes(self) -> int:
        return self.disk()["disk_free_bytes"]


def _size_of(directory: Path) -> float:
    """The bytes on disk of the files in a directory and those below. Files that disappear while it runs are left
    out."""
    size = 0
    for folder, _, names in os.walk(directory):
        for name in names:
            with suppress(OSError):
                size += os.lstat(os.path.join(folder, name)).st_blocks * _BLOCK_BYTES
    return float(size)
