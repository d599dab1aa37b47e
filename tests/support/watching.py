"""What one input costs a running broker: how late another client's messages were, and how much memory it took."""

from __future__ import annotations

import os
import threading
from pathlib import Path

from tests.end_to_end.clients import Client
from tests.support.node import Node, eventually
from tests.support.processor import Stopwatch, is_within

MAX_LATENESS_S = 0.1
MAX_MEMORY_BYTES = 64 * 1024 * 1024


class Watch:
    """A client beside that publishes to itself and keeps the longest time that a message took.

    What it and the broker waited for a processor is left out of account.
    """

    def __init__(self, node: Node) -> None:
        # a broker that is ready imports 100 MB of libraries, which are none of an input's memory
        eventually(lambda: "node.complete" in node.log.read_text())
        self._pid = node.pid
        self._client = Client(node, "watch")
        self._client.subscribe("watch", 1)
        self._is_over = threading.Event()
        self._worst_s, self._before_bytes = 0.0, 0
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)
        self._thread.start()
        self.begin()

    def begin(self) -> None:
        """Forget what was, the peak of the broker's memory included."""
        Path(f"/proc/{self._pid}/clear_refs").write_text("5")
        self._before_bytes, self._worst_s = _memory(self._pid, "VmHWM"), 0.0

    def check(self) -> None:
        """Since ``begin`` no message was late, and the memory has not grown by much."""
        grown = _memory(self._pid, "VmHWM") - self._before_bytes
        self.check_lateness()
        assert grown < MAX_MEMORY_BYTES, f"the broker's memory grew by {grown / 2**20:.0f} MiB"

    def check_lateness(self) -> None:
        """Since ``begin`` no message was late."""
        assert self._error is None, repr(self._error)
        assert is_within(self._worst_s, MAX_LATENESS_S), (
            f"another client's message took {self._worst_s * 1000:.0f} ms"
        )

    def close(self) -> None:
        self._is_over.set()
        self._thread.join(20)
        self._client.close()

    def _run(self) -> None:
        try:
            while not self._is_over.wait(0.005):
                watch = Stopwatch(os.getpid(), self._pid)
                self._client.publish("watch", "x")
                self._client.take()
                self._worst_s = max(self._worst_s, watch.elapsed_s())
        except Exception as error:  # noqa: BLE001 - raised by check(), on the test's own thread
            self._error = error


def _memory(pid: int, name: str) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name))
