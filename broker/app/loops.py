"""The broker's event loop (uvloop where it is installed, else asyncio's own), and the settings of the allocator."""

from __future__ import annotations

import asyncio
import ctypes
import logging
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from typing import Any, Final, Literal

from broker.core.errors import MissingDependency
from broker.observe.log import get_logger

_log = get_logger(__name__)

LoopName = Literal["auto", "uvloop", "asyncio"]
LoopFactory = Callable[[], asyncio.AbstractEventLoop]

# Maximum seconds that the end of the loop waits for calls that block, such as reads from a file system that is gone.
_THREADS_END_S: Final = 5.0
_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
# Bytes of freed memory at the end of the heap that are not given back to the system.
_KEPT: Final = 16 * 1024 * 1024
# Bytes from which a block is mapped on its own; one read of a socket has up to 256 KiB.
_OWN_MAPPING: Final = 1024 * 1024


def run(main: Coroutine[Any, Any, None], name: LoopName) -> None:
    """Run to the end on the loop of that name; ``auto`` takes uvloop, and says so when it has to do without.

    Raises:
        MissingDependency: uvloop is configured and not installed.
    """
    keep_freed_memory()
    try:
        factory = loop_factory(name)
    except MissingDependency:
        main.close()
        raise
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(main)


def loop_factory(name: LoopName) -> LoopFactory:
    """Factory of the loop of that name; raises ``MissingDependency`` as ``run``."""
    new_loop = _new_loop(name)

    def new_loop_with_threads() -> asyncio.AbstractEventLoop:
        loop = new_loop()
        loop.set_default_executor(StoppableThreads())
        return loop

    return new_loop_with_threads


def _new_loop(name: LoopName) -> LoopFactory:
    if name == "asyncio":
        return asyncio.new_event_loop
    try:
        factory: LoopFactory = import_module("uvloop").new_event_loop
    except ImportError as error:
        if name == "uvloop":
            raise MissingDependency(
                "node.event_loop = uvloop needs the package uvloop: pip install uvloop, or set it to auto"
            ) from error
        _log.warning(
            "node.without_uvloop",
            effect="asyncio's own loop is used, which is slower",
            advice="install uvloop",
        )
        return asyncio.new_event_loop
    return factory


class StoppableThreads(ThreadPoolExecutor):
    """Threads of a loop for calls that block. A call that never returns does not hold up the end of the loop."""

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = True) -> None:
        """Take no more calls, drop those that have not begun, and wait a while for the others."""
        super().shutdown(wait=False, cancel_futures=True)
        ends_s = time.monotonic() + (_THREADS_END_S if wait else 0)
        for thread in self._threads:
            thread.join(max(0.0, ends_s - time.monotonic()))
            frame = sys._current_frames().get(thread.ident or 0)
            if wait and frame is not None and thread.is_alive():
                call = traceback.extract_stack(frame)[-1]
                _log.warning(
                    "node.thread_blocked",
                    at=f"{call.name} ({call.filename}:{call.lineno})",
                    effect="the broker stops without it",
                )


def end_without_blocked_threads() -> None:
    """End the process with status 0 if a thread still blocks: the interpreter would wait for it without a limit."""
    others = (thread for thread in threading.enumerate() if thread is not threading.main_thread())
    if any(not thread.daemon for thread in others):
        logging.shutdown()
        os._exit(0)


def keep_freed_memory() -> None:
    """Let glibc keep what the loop frees for its next read.

    By default, a process whose read buffers happen to end the heap returns them to the system after each
    read and asks for them before the next: 34 page faults per 1,000 messages of QoS 0, and a third more processor
    time. Other C libraries are left as they are. Source: mallopt(3).
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _OWN_MAPPING)
        mallopt(_M_TRIM_THRESHOLD, _KEPT)
