"""Commands of the supervisor and the zygote (``broker.app.cells``), and requests to the zygote."""

from __future__ import annotations

import json
import os
import sys
from typing import Final, NoReturn

from broker.config.options import ServeOptions

CHECK: Final = "check"
"""A fork of the zygote that checks the configuration and its addresses."""
READ: Final = "read"
"""One that only reads the configuration."""
MOVE: Final = "move"
"""One that moves sessions to their cells."""
COPY: Final = "copy"
"""One that keeps copies of the stores of other machines' cells."""
SUPERVISE: Final = "supervise"
"""The supervisor itself."""


def command_of(options: ServeOptions, what: str, count: int) -> list[str]:
    """The command of the supervisor of ``count`` cells, or of the zygote."""
    told = {
        "data_dir": str(options.data_dir),
        "mqtt": options.mqtt,
        "api": options.api,
        "config_files": [str(file.absolute()) for file in options.config_files],
        "overrides": dict(options.overrides),
        "cell": what,
        "count": count,
    }
    return [sys.executable, "-m", "broker.app.cells", json.dumps(told)]


def become_supervisor(options: ServeOptions, count: int) -> NoReturn:
    """Be the supervisor of these cells in place of this process, without what it has imported."""
    command = command_of(options, SUPERVISE, count)
    os.execv(command[0], command)
