"""The event loop that the broker runs on: uvloop where it is installed, else asyncio's own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from importlib import import_module
from typing import Any, Literal

from broker.core.errors import MissingDependency
from broker.observe.log import get_logger

_log = get_logger(__name__)

LoopName = Literal["auto", "uvloop", "asyncio"]
LoopFactory = Callable[[], asyncio.AbstractEventLoop]


def run(main: Coroutine[Any, Any, None], name: LoopName) -> None:
    """Run to the end on the loop of that name; ``auto`` takes uvloop, and says so when it has to do without.

    Raises:
        MissingDependency: uvloop is configured and not installed.
    """
    try:
        factory = loop_factory(name)
    except MissingDependency:
        main.close()
        raise
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(main)


def loop_factory(name: LoopName) -> LoopFactory:
    """What makes the loop of that name; raises ``MissingDependency`` as ``run``."""
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
            "node.without_uvloop", effect="asyncio's own loop is used, which is slower", advice="install uvloop"
        )
        return asyncio.new_event_loop
    return factory
