"""Trial of objects in a broker without disk and sockets: reports errors and warnings."""

from __future__ import annotations

import asyncio
import json
import os
import re
import tempfile
from collections.abc import Iterable
from copy import deepcopy
from pathlib import Path
from typing import Any, Final, Protocol

from broker.app.build import Node, section_models
from broker.config.allowed import AllowedSettings, confine
from broker.config.root import load_config
from broker.core.errors import ConfigError, Invalid, SluiceError
from broker.observe.log import silenced
from broker.storage.memory import MemoryStore

_UNKNOWN: Final = re.compile(r"\S+ is not known")
_MOST_ROUNDS: Final = 10


class Tried(Protocol):
    """An object to be tried; see ``broker.cli.emqx.Item``."""

    path: str
    spec: dict[str, Any]
    setting: str
    changes: list[str]
    reason: str


def rehearse(items: Iterable[Tried], data_dir: Path) -> None:
    """Try them in order. Members that are not known are left out and noted; what cannot be used gets its reason."""
    with silenced():
        asyncio.run(_rehearse(items, data_dir))


async def _rehearse(items: Iterable[Tried], data_dir: Path) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        node = Node(
            load_config(section_models(), data_dir=Path(scratch), environ={}),
            Path(scratch),
            "",
            MemoryStore(),
        )
        confine(_bounds(data_dir), data_dir)
        node.streams.start()
        node.rewrites.start()
        node.auto_subscriptions.start()
        for feature in node.features:
            feature.start()
        try:
            for item in items:
                if item.path:
                    _try_object(item, node)
                elif not item.reason:
                    _try_setting(item)
        finally:
            for feature in reversed(node.features):
                await feature.close()
            await node.streams.stop()
            await node.writer.close()


def _bounds(data_dir: Path) -> AllowedSettings:
    """Values that objects of that broker may name."""
    try:
        return load_config(section_models(), data_dir=data_dir, environ=os.environ).get(
            "allowed", AllowedSettings
        )
    except ConfigError:
        return AllowedSettings()


def _try_object(item: Tried, node: Node) -> None:
    service = node.object_services[item.path]
    for _ in range(_MOST_ROUNDS):
        if item.reason:
            return
        try:
            service.create(deepcopy(item.spec))
        except Invalid as error:
            unknown = [
                problem.pointer for problem in error.problems if _UNKNOWN.match(problem.message)
            ]
            left_out = [pointer for pointer in unknown if _take_out(item.spec, pointer)]
            item.changes += [f"{pointer[1:].replace('/', '.')} left out" for pointer in left_out]
            if not left_out:
                item.reason = "; ".join(problem.message for problem in error.problems) or str(error)
        except SluiceError as error:
            item.reason = str(error)
        else:
            return


def _take_out(spec: Any, pointer: str) -> bool:
    *above, last = pointer[1:].split("/")
    for part in above:
        spec = (
            spec[int(part)]
            if isinstance(spec, list)
            else spec.get(part)
            if isinstance(spec, dict)
            else None
        )
    if not isinstance(spec, dict) or last not in spec:
        return False
    del spec[last]
    return True


def _try_setting(item: Tried) -> None:
    key = item.spec["key"]
    value = json.dumps(item.spec["value"])
    try:
        load_config(section_models(), data_dir=None, environ={}, overrides={key: value})
    except ConfigError as error:
        item.reason = "; ".join(
            problem.removeprefix("command line: ") for problem in error.problems
        )
    else:
        item.setting = f"{key} = {value}"
