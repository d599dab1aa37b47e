"""The command of the processes of ``broker.app.cells``, and what it tells them."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from typing import Final, NoReturn

from broker.config.options import ServeOptions
from broker.core.cells import Machine

ANY: Final = "any"
"""In place of a cell's number: the zygote that becomes any."""
CHECK: Final = "check"
"""The process that checks the configuration and its addresses."""
READ: Final = "read"
"""The one that only reads the configuration."""
MOVE: Final = "move"
"""The one that moves sessions to their cells."""
COPY: Final = "copy"
"""The one that keeps copies of the stores of other machines' cells."""
SUPERVISE: Final = "supervise"
"""The supervisor itself."""


def command_of(
    options: ServeOptions,
    what: str,
    count: int,
    machines: Sequence[Machine] = (),
    *,
    redirects: bool = False,
    machine: str = "",
    moves: bool = False,
) -> list[str]:
    """The command for ``count`` cells in all, those of ``machines`` in a cluster on one of them. ``moves``: where cells
    may be taken over by other machines."""
    told = {
        "data_dir": str(options.data_dir),
        "mqtt": options.mqtt,
        "api": options.api,
        "config_files": [str(file.absolute()) for file in options.config_files],
        "overrides": dict(options.overrides),
        "cell": what,
        "count": count,
        "machines": machines,
        "redirects": redirects,
        "machine": machine,
        "moves": moves,
    }
    return [sys.executable, "-m", "broker.app.cells", json.dumps(told)]


def become_supervisor(options: ServeOptions, count: int) -> NoReturn:
    """Be the supervisor of these cells in place of this process, without what it has imported."""
    command = command_of(options, SUPERVISE, count)
    os.execv(command[0], command)
