"""A small file system of its own, for tests of what happens when it is full."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


class SmallDisk:
    """Mounted at ``path``."""

    def __init__(self, path: Path, size_mb: int) -> None:
        self.path, self._size_mb = path, size_mb

    def fill(self, *, left_bytes: int = 0) -> None:
        """Take all the room but a little, or what others leave of it."""
        with suppress(OSError):
            self._ballast.write_bytes(bytes(max(0, self.free_bytes - left_bytes)))

    def free(self) -> None:
        """Give back what ``fill`` took."""
        self._ballast.unlink()

    @property
    def _ballast(self) -> Path:
        return self.path / "ballast"

    @property
    def free_bytes(self) -> int:
        """What is left."""
        return shutil.disk_usage(self.path).free

    def grow(self) -> None:
        """Make it twice as large, in place."""
        self._size_mb *= 2
        subprocess.run(
            ["mount", "-o", f"remount,size={self._size_mb}m", str(self.path)], check=True
        )


@contextmanager
def small_disk(path: Path, size_mb: int) -> Iterator[SmallDisk]:
    """Mount one, which needs the right to; it is gone at the end, with all that it holds."""
    path.mkdir(parents=True)
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size_mb}m", "tmpfs", str(path)]
    done = subprocess.run(mount, capture_output=True, text=True, check=False)
    assert done.returncode == 0, (
        f"a small file system cannot be mounted; run this as root: {done.stderr}"
    )
    try:
        yield SmallDisk(path, size_mb)
    finally:
        subprocess.run(["umount", "-l", str(path)], check=True)
