"""Files of a data directory hold every message: only the user that the broker runs as may read them."""

from __future__ import annotations

import os
from typing import Final

OTHERS: Final = 0o077
"""Rights that no one but the owner has."""


def keep_files_private() -> None:
    """Let this process, and those that it starts, make files and directories for its user only."""
    os.umask(OTHERS)
