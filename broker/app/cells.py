"""``sluice serve --workers N``: the supervisor of the cells of one machine, and each cell as a process."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from broker.cluster.directories import (
    change_under_way,
    check_count,
    check_room,
    kept_count,
    make_directories,
)
from broker.cluster.supervisor import cell_lock, is_running, lock, supervise
from broker.cluster.zygote import fork_cells
from broker.config.options import ServeOptions
from broker.core import lazy_module
from broker.core.cells import Place
from broker.core.errors import ConfigError, SluiceError
from broker.core.process import environment, keep_files_private
from broker.observe.log import get_logger, mark_lines, setup
from broker.observe.rotating_file import RotatingFile

_log = get_logger(__name__)

_RUN: Final = "run"
# Settings of the cells other than the first, which readers and users connect to.
_OF_OTHERS: Final = {"range_server.bind": "127.0.0.1:0"}
# In place of a cell's number: the process that moves sessions to their cells.
_MOVE: Final = "move"
_ANY_PORT: Final = "127.0.0.1:0"


def serve(options: ServeOptions, count: int) -> int:
    """Run a broker of several cells until SIGTERM or SIGINT; the exit status. Prints one line on standard output when
    all are ready."""
    keep_files_private()
    mark_lines(cell="supervisor")
    try:
        if sys.platform != "linux":
            raise ConfigError(
                [f"--workers: expected 1 on {sys.platform}, got {count}: it needs Linux"]
            )
        check_count(options.data_dir, count, may_grow=True)
        data_dir = options.data_dir.absolute()
        options = replace(options, data_dir=data_dir)
        run = data_dir / _RUN
        if not any(is_running(run, cell) for cell in range(count) if run.exists()):
            _check(options, count)
            _share_out(options, count)
        make_directories(data_dir, count)
        run.mkdir(exist_ok=True)
        run.chmod(0o700)
        return supervise(run, count, _command(options, "any", count))
    except SluiceError as error:
        problems = error.problems if isinstance(error, ConfigError) else [str(error)]
        for problem in problems:
            print(problem, file=sys.stderr)
        return 1


def _check(options: ServeOptions, count: int) -> None:
    """Try the configuration and its addresses, in a process of its own: the supervisor stays small.

    Raises:
        ConfigError: a sentence for everything that is wrong; nothing was changed.
    """
    checked = subprocess.run(
        _command(options, None, count),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        env=environment(),
        check=False,
    )
    try:
        answer = json.loads(checked.stdout)
    except ValueError as error:
        raise ConfigError(["the configuration cannot be checked; the reason is above"]) from error
    if answer["problems"]:
        raise ConfigError(answer["problems"])
    check_room(options.data_dir, count)
    file = answer["log"].pop("file")
    setup(
        **answer["log"], file=None if file is None else RotatingFile(Path(file.pop("path")), **file)
    )


def _share_out(options: ServeOptions, count: int) -> None:
    """Move the sessions of a broker of one process to their cells, in a process of its own.

    Raises:
        ConfigError: it failed; the next start continues it.
    """
    data_dir = options.data_dir
    if change_under_way(data_dir) is None and kept_count(data_dir) != 1:
        return
    moved = subprocess.run(
        _command(options, _MOVE, count),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        env=environment(),
        check=False,
    )
    if moved.returncode:
        raise ConfigError(["sessions could not be moved to their cells; the reason is above"])


def _command(options: ServeOptions, cell: str | None, count: int) -> list[str]:
    """Command of the zygote that becomes any cell, of the check if ``cell`` is None, or of the move of sessions."""
    told = {
        "data_dir": str(options.data_dir),
        "mqtt": options.mqtt,
        "api": options.api,
        "config_files": [str(file.absolute()) for file in options.config_files],
        "overrides": dict(options.overrides),
        "cell": cell,
        "count": count,
    }
    return [sys.executable, "-m", "broker.app.cells", json.dumps(told)]


def main() -> int:
    """Be a cell, or check what cells are started with, as the argument says; the exit status."""
    told = json.loads(sys.argv[1])
    options = ServeOptions(
        data_dir=Path(told["data_dir"]),
        mqtt=told["mqtt"],
        api=told["api"],
        config_files=tuple(Path(file) for file in told["config_files"]),
        overrides=told["overrides"],
    )
    if told["cell"] is None:
        json.dump(_checked(options, told["count"]), sys.stdout)
        return 0
    if told["cell"] == _MOVE:
        return _move(options, told["count"])
    _import_all()
    cell = fork_cells()
    if cell is None:
        return 0
    return _be_cell(options, Place(cell, told["count"], options.data_dir / _RUN))


def _import_all() -> None:
    """Import what cells need, so that they share it and are there at once."""
    import broker.app.lifecycle  # noqa: F401  the largest part of it
    from broker.app import features
    from broker.storage.without_pandas import keep_pandas_out

    keep_pandas_out()
    for name in (
        features.SCHEMA_VALIDATION,
        features.TRANSFORMS,
        features.RULES,
        features.BRIDGES,
        features.LAKE,
        features.API_APPLICATION,
        features.API_SERVER,
        features.API_FACES,
        features.API_CELL_LISTENER,
        *features.SETTINGS.values(),
    ):
        features.load(name)
    lazy_module.import_all()


def _be_cell(options: ServeOptions, place: Place) -> int:
    from broker.app import lifecycle

    mark_lines(cell=place.number)
    try:
        lock(place.run, cell_lock(place.number))
    except BlockingIOError:
        print(f"cell {place.number} of {options.data_dir} runs already", file=sys.stderr)
        return 1
    if place.number:
        options = replace(options, api=_ANY_PORT, overrides={**options.overrides, **_OF_OTHERS})
    return lifecycle.serve(replace(options, place=place))


def _move(options: ServeOptions, count: int) -> int:
    """Move sessions to their cells; the exit status."""
    from broker.app.lifecycle import configuration
    from broker.app.resize import homes_of
    from broker.cluster.resize import Resize

    mark_lines(cell="supervisor")
    keep_files_private()
    try:
        config = configuration(options)
        with Resize(options.data_dir, count, homes_of(config), _note) as resize:
            resize.run()
    except SluiceError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def _note(text: str) -> None:
    _log.info("cells.moved", what=text)


def _checked(options: ServeOptions, count: int) -> Mapping[str, Any]:
    """Problems of the configuration and its addresses, and the settings of the log."""
    from broker.app.lifecycle import administrator_token, check_profile, configuration
    from broker.app.resize import homes_of
    from broker.cluster.resize import Resize
    from broker.connection.settings import MqttSettings
    from broker.observe.settings import LogSettings

    keep_files_private()
    try:
        check_profile(os.environ)
        config = configuration(options)
        problems = asyncio.run(_address_problems(config))
        if not problems and kept_count(options.data_dir) == 1:
            with Resize(options.data_dir, count, homes_of(config)) as resize:
                resize.plan(config.get("mqtt", MqttSettings).max_session_log_bytes)
        if not problems:
            administrator_token(options.data_dir, os.environ)
    except ConfigError as error:
        return {"problems": error.problems}
    log = config.get("log", LogSettings)
    file = None
    if log.file is not None:
        file = {
            "path": log.file,
            "max_bytes": log.rotation_size,
            "max_files": log.rotation_count,
            "rotation": "none",
        }
    return {"problems": problems, "log": {"level": log.level, "format": log.format, "file": file}}


async def _address_problems(config: Any) -> list[str]:
    from broker.admin.api_settings import ApiSettings
    from broker.app import features
    from broker.app.build import named_of
    from broker.net.accept import listening_sockets
    from broker.net.listener import unavailable

    problems = []
    for named in named_of(config):
        try:
            sockets = await listening_sockets(asyncio.get_running_loop(), named.settings)
        except OSError as error:
            problems.append(str(unavailable(named.settings, error)))
        else:
            for listening in sockets:
                listening.close()
    try:
        features.load(features.API_LISTENER)(*config.get("api", ApiSettings).address).close()
    except ConfigError as error:
        problems += error.problems
    return problems


if __name__ == "__main__":
    sys.exit(main())
