"""Start check of a configuration: its objects are created, and nothing is written or bound."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path

from broker.app.build import Node, section_models
from broker.config.root import Config, load_config
from broker.core.errors import ConfigError
from broker.observe.log import silenced
from broker.storage.memory import MemoryStore


def object_problems(config: Config, data_dir: Path) -> list[str]:
    """A sentence for each listener and object that a broker would refuse to start with."""
    with silenced():
        return asyncio.run(_object_problems(config, data_dir))


async def _object_problems(config: Config, data_dir: Path) -> list[str]:
    try:
        node = Node(config, data_dir, token="", store=MemoryStore())
    except ConfigError as error:
        return list(error.problems)
    problems: list[str] = []
    for part in (node.access, *node.started_objects, *node.features):
        try:
            part.start()
        except ConfigError as error:
            problems += error.problems
    problems += [sentence for sentence in node.rules.service.failures() if sentence not in problems]
    await node.streams.stop()
    await node.writer.close()
    return problems


def main() -> None:
    """Read ``data_dir``, ``config_files`` and ``overrides`` from standard input, write the problems, both in JSON."""
    asked = json.load(sys.stdin)
    data_dir = Path(asked["data_dir"])
    try:
        config = load_config(
            section_models(),
            data_dir=data_dir,
            config_files=[Path(file) for file in asked["config_files"]],
            environ=os.environ,
            overrides=asked["overrides"],
        )
        problems = object_problems(config, data_dir)
    except ConfigError as error:
        problems = list(error.problems)
    json.dump(problems, sys.stdout)


if __name__ == "__main__":
    main()
