"""The data directory: there, writable, and this process's alone."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import Final

from broker.core.errors import ConfigError

# Exists while a restore moves its files to their place.
RESTORING: Final = "restoring"


class DirectoryLock:
    """Holds ``DIR/LOCK`` until released or until the process ends, however it ends. The file names the process."""

    def __init__(self, directory: Path, *, restores: bool = False) -> None:
        """Make the directory if need be and lock it. ``restores``: for a restore.

        Raises:
            ConfigError: it cannot be made or written, another process holds it, or a restore into it was cut off.
        """
        self.was_used = (directory / "LOCK").exists()
        """True if a broker has used the directory before."""
        try:
            directory.mkdir(parents=True, exist_ok=True)
            self._descriptor = os.open(
                directory / "LOCK", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644
            )
        except OSError as error:
            raise _refused(
                f"the data directory {directory} cannot be used: {error.strerror}; make it writable for this user"
            ) from error
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = (
                os.pread(self._descriptor, 20, 0).decode("ascii", "replace").strip() or "unknown"
            )
            os.close(self._descriptor)
            raise _refused(
                f"the data directory {directory} is in use by another sluice (process {holder}); stop that one"
            ) from error
        if not restores and (directory / RESTORING).exists():
            os.close(self._descriptor)
            raise _refused(
                f"a restore into the data directory {directory} was cut off; run 'sluice restore --replace' again,"
            )
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, f"{os.getpid()}\n".encode(), 0)

    def release(self) -> None:
        """Let another process have the directory."""
        os.close(self._descriptor)


def _refused(what: str) -> ConfigError:
    return ConfigError([f"{what} or choose another directory with --data-dir"])
