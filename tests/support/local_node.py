"""A whole Sluice in the test's process, on a thread with a loop of its own.

It has every feature of ``sluice serve`` and starts in a second; probes of coverage count what it runs. Signals, kills
and limits of the system need a process: ``tests.support.node``.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import io
import logging
import os
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from contextlib import AsyncExitStack, ExitStack, contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from threading import Thread
from typing import Any
from unittest.mock import patch

from broker.app.lifecycle import configuration, start
from broker.app.loops import loop_factory
from broker.app.reload import ConfigReload
from broker.app.settings import NodeSettings
from broker.cli.main import main
from broker.config.options import ServeOptions
from broker.core.cells import Place
from broker.observe.log import TextFormatter, Throttle
from tests.support.node import TOKEN, Reachable, in_this_process, text_of
from tests.support.waiting import threads_shown

_DEADLINE_S = 60.0
_ALL_AFTER = 50
"""Brokers after which the collector looks at all there is."""
_STOPPED = count(1)


class Node(Reachable):
    """One broker. ``start`` may be called again after ``stop``: it takes the same ports."""

    def __init__(
        self,
        data_dir: Path,
        *,
        config: str = "",
        environ: dict[str, str] | None = None,
        place: Place | None = None,
    ) -> None:
        """``place`` is the cell that it is, where the broker has several."""
        super().__init__(data_dir, config, environ)
        self.place = place
        if place is not None:
            self.log = data_dir.parent / f"{data_dir.name}-{place.number}.log"
        self._thread: Thread | None = None

    def start(self) -> Node:
        """Start, and wait until it is ready."""
        self._around = ExitStack()
        self._around.enter_context(_process_as_before())
        self._around.enter_context(_environment(self.prepare()))
        self._around.enter_context(_logged(self.log))
        in_this_process.add(self)
        self._around.callback(in_this_process.discard, self)
        ready: Future[None] = Future()
        self._thread = Thread(target=self._run, args=(ready,), name="broker under test")
        self._thread.start()
        try:
            ready.result(_DEADLINE_S)
        except BaseException:
            self._around.close()
            raise
        return self

    def _run(self, ready: Future[None]) -> None:
        try:
            options = ServeOptions(
                self.data_dir, text_of(self.mqtt), text_of(self.api), place=self.place
            )
            config = configuration(options)
            loop = config.get("node", NodeSettings).event_loop
            with asyncio.Runner(loop_factory=loop_factory(loop)) as runner:
                runner.run(self._serve(config, options, ready))
        except BaseException as error:
            if ready.done():
                raise
            ready.set_exception(error)

    async def _serve(self, config: Any, options: ServeOptions, ready: Future[None]) -> None:
        self._loop, self._stopped = asyncio.get_running_loop(), asyncio.Event()
        async with AsyncExitStack() as started:
            _, api, self._reload = await start(config, options, started)
            await api.begin()
            ready.set_result(None)
            await self._stopped.wait()

    def reload(self) -> Any:
        """Read the configuration again, as on SIGHUP."""
        reload: ConfigReload = self._reload
        return asyncio.run_coroutine_threadsafe(reload.reload(), self._loop).result(_DEADLINE_S)

    @property
    def is_running(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def stop(self, timeout_s: float = _DEADLINE_S) -> int:
        """Stop as on SIGTERM; 0 as the exit status. May be called twice."""
        assert self._thread is not None
        if self.is_running:
            self._loop.call_soon_threadsafe(self._stopped.set)
        self._thread.join(timeout_s)
        assert not self.is_running, f"not stopped in {timeout_s:g} s:\n{threads_shown()}"
        self._around.close()
        return 0


@contextmanager
def running(data_dir: Path, **options: Any) -> Iterator[Node]:
    """A started node that is stopped at the end, whatever happened."""
    node = Node(data_dir, **options).start()
    try:
        yield node
    finally:
        node.stop()


@dataclass(frozen=True)
class Done:
    """What a command wrote, and its exit code."""

    returncode: int
    stdout: str
    stderr: str


def sluice(node: Reachable, *arguments: str, text: str = "", **environ: str) -> Done:
    """A command of the CLI, on a broker."""
    return command(
        *arguments, text=text, **{"SLUICE_API_TOKEN": TOKEN, "SLUICE_URL": node.url, **environ}
    )


def command(*arguments: str, text: str = "", **environ: str) -> Done:
    """A command of the CLI, with ``text`` as its standard input."""
    written, told = io.BytesIO(), io.BytesIO()
    out, errors = io.TextIOWrapper(written), io.TextIOWrapper(told)
    with (
        _environment(environ),
        patch.object(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode()))),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(errors),
    ):
        code = main(arguments)
        out.flush()
        errors.flush()
    return Done(code, written.getvalue().decode(), told.getvalue().decode())


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    with patch.dict(os.environ, variables):
        yield


@contextmanager
def _process_as_before() -> Iterator[None]:
    """Undo what a broker changes of its process: the log, and the collector of garbage, which sets nothing aside
    meanwhile: what the broker leaves is collected without a look at all there was before it."""
    root = logging.getLogger()
    handlers, level, raises, threshold = (
        list(root.handlers),
        root.level,
        logging.raiseExceptions,
        gc.get_threshold(),
    )
    with patch.object(gc, "freeze", lambda: None):
        yield
    root.handlers[:] = handlers
    root.setLevel(level)
    logging.raiseExceptions = raises
    gc.set_threshold(*threshold)
    if next(_STOPPED) % _ALL_AFTER == 0:
        gc.unfreeze()
    gc.collect()
    gc.freeze()


@contextmanager
def _logged(file: Path) -> Iterator[None]:
    handler = logging.FileHandler(file)
    handler.setFormatter(TextFormatter())
    handler.addFilter(Throttle())
    logging.getLogger().addHandler(handler)
    try:
        yield
    finally:
        logging.getLogger().removeHandler(handler)
        handler.close()
