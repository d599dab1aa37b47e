"""The end of the broker's loop while a call blocks in a thread."""

from __future__ import annotations

import asyncio
import threading

import pytest

from broker.app import loops
from broker.app.loops import LoopName, loop_factory


@pytest.mark.parametrize("name", ["uvloop", "asyncio"])
def test_a_call_that_never_returns_is_waited_for_a_while_and_named(
    name: LoopName, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(loops, "_THREADS_END_S", 0.01)
    released = threading.Event()

    async def main() -> None:
        loop, is_blocked = asyncio.get_running_loop(), asyncio.Event()

        def block() -> None:
            loop.call_soon_threadsafe(is_blocked.set)
            released.wait()

        loop.run_in_executor(None, block)
        await is_blocked.wait()

    try:
        with asyncio.Runner(loop_factory=loop_factory(name)) as runner:
            runner.run(main())  # would not return, as nothing releases the thread
    finally:
        released.set()
    [record] = [record for record in caplog.records if record.message == "node.thread_blocked"]
    assert "threading.py" in record.__dict__["fields"]["at"]
