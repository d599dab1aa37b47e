"""Processes that say what cells say to their supervisor, and are no brokers: ``python -m tests.support.bare_cell``.

After the number of cells and the run directory comes what keeps them from being ready: the word ``fails``, or the path
of a file that exists.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path

from broker.cluster.control import Control
from broker.cluster.supervisor import cell_lock, lock
from broker.cluster.zygote import serve_forks
from broker.core.cells import Place


def _is_so(word: str) -> bool:
    return word == "fails" or Path(word).exists()


async def be(number: int) -> None:
    """Be a cell."""
    count, run, *what = sys.argv[1:]
    place = Place(number, int(count), Path(run))
    lock(place.run, cell_lock(place.number))
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    control = Control(place)
    await control.start()
    if any(map(_is_so, what)):
        sys.exit(3)
    control.ready(f"mqtt:{number}", f"api:{number}")
    await stopped.wait()
    control.stop()


if __name__ == "__main__":
    if (request := serve_forks()) is not None:
        asyncio.run(be(request["cell"]))
