"""The broker of the work tree in which it is started, counting its work: a part of `python -m benchmarks.counted`.

SIGUSR1 begins to count, SIGUSR2 ends it. Each writes a line to the file descriptor of the environment's `COUNTS_TO`:
instructions of the interpreter and calls of functions on the event loop's thread, and instructions on the others.
"""

from __future__ import annotations

import os
import runpy
import signal
import sys
import threading
from types import FrameType
from typing import Any


class Thread:
    """Counts of a thread."""

    is_counting = False

    def __init__(self) -> None:
        self.instructions = 0
        self.calls = 0

    def enter(self, frame: FrameType, _event: str, _argument: Any) -> Any:
        """For ``sys.settrace``, which calls it with each function that begins."""
        if not Thread.is_counting:
            return None
        frame.f_trace_opcodes = True
        frame.f_trace_lines = False
        return self.step

    def step(self, _frame: FrameType, event: str, _argument: Any) -> Any:
        """An instruction, or an event of no interest."""
        if event == "opcode":
            self.instructions += 1
        return self.step

    def profile(self, _frame: FrameType, event: str, _argument: Any) -> None:
        """For ``sys.setprofile``: functions in Python and in C."""
        if event in ("call", "c_call"):
            self.calls += 1


def main() -> None:
    """Run the broker with this process's arguments."""
    lines = int(os.environ["COUNTS_TO"])
    loop, others = Thread(), list[Thread]()

    def enter_thread(frame: FrameType, event: str, argument: Any) -> Any:
        thread = Thread()
        others.append(thread)
        sys.settrace(thread.enter)
        return thread.enter(frame, event, argument)

    def report() -> None:
        other = sum(thread.instructions for thread in others)
        os.write(lines, b"%d %d %d\n" % (loop.instructions, loop.calls, other))

    def begin(_signal: int, _frame: FrameType | None) -> None:
        Thread.is_counting = True
        report()
        sys.setprofile(loop.profile)
        sys.settrace(loop.enter)

    def end(_signal: int, _frame: FrameType | None) -> None:
        sys.settrace(None)
        sys.setprofile(None)
        Thread.is_counting = False
        report()

    signal.signal(signal.SIGUSR1, begin)
    signal.signal(signal.SIGUSR2, end)
    threading.settrace(enter_thread)
    sys.path[0] = os.getcwd()
    runpy.run_module("broker.cli.main", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
