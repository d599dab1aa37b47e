"""``DIR/run/node.json``: where a running node is found by the commands of the same machine."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path


class RunFile:
    """Written when the node is ready, removed when it stops; a file that a kill left behind names a dead process."""

    def __init__(self, data_dir: Path) -> None:
        self._file = data_dir / "run" / "node.json"

    def write(self, mqtt: str, api: str) -> None:
        """Say where the node listens, by ``host:port``."""
        self._file.parent.mkdir(exist_ok=True)
        temporary = self._file.with_suffix(".new")
        temporary.write_text(json.dumps({"pid": os.getpid(), "mqtt": mqtt, "api": api}) + "\n")
        temporary.replace(self._file)

    def remove(self) -> None:
        """Forget it."""
        with suppress(FileNotFoundError):
            self._file.unlink()
