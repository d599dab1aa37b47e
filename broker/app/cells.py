"""``sluice serve --workers N``: the supervisor of the cells of one machine, and each cell as a process."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec

from broker.app.cell_command import CHECK, COPY, MOVE, READ, SUPERVISE, command_of
from broker.app.version import product_version
from broker.cluster.directories import (
    change_under_way,
    check_count,
    check_machine,
    check_room,
    keep_machine,
    kept_count,
    make_directories,
)
from broker.cluster.owners import make_owners, owners_in
from broker.cluster.settings import ClusterSettings, ClusterTlsSettings
from broker.cluster.supervisor import cell_lock, is_running, lock, program, supervise
from broker.cluster.zygote import ZYGOTE, Zygote, serve_forks
from broker.config.options import ServeOptions
from broker.core import lazy_module
from broker.core.cells import MAX_CELLS, Machine, Place
from broker.core.errors import ConfigError, SluiceError
from broker.core.hosts import address_text
from broker.core.process import keep_files_private
from broker.observe.log import get_logger, mark_lines, setup
from broker.observe.rotating_file import RotatingFile

_log = get_logger(__name__)

_RUN: Final = "run"
# Settings of the cells other than the first, which readers and users connect to.
_OF_OTHERS: Final = {"range_server.bind": "127.0.0.1:0"}
_FILES: Final = ("certfile", "keyfile", "cacertfile")
_ANY_PORT: Final = "127.0.0.1:0"


def serve(options: ServeOptions, count: int) -> int:
    """Run a broker of several cells until SIGTERM or SIGINT; the exit status. Prints one line on standard output when
    all are ready."""
    keep_files_private()
    mark_lines(cell="supervisor")
    try:
        if sys.platform != "linux":
            raise ConfigError(
                [
                    f"several cells need Linux: expected --workers 1 and no section cluster, got {count} cells"
                ]
            )
        check_count(options.data_dir, count, may_grow=True)
        data_dir = options.data_dir.absolute()
        options = replace(options, data_dir=data_dir)
        run = data_dir / _RUN
        with closing(Zygote(command_of(options, ZYGOTE, count))) as zygote:
            return _serve(options, count, run, zygote)
    except SluiceError as error:
        problems = error.problems if isinstance(error, ConfigError) else [str(error)]
        for problem in problems:
            print(problem, file=sys.stderr)
        return 1


def _serve(options: ServeOptions, count: int, run: Path, zygote: Zygote) -> int:
    is_first = not any(is_running(run, cell) for cell in range(MAX_CELLS))
    cluster = _check(options, count, zygote, has_addresses=is_first)
    keep_machine(options.data_dir, cluster.digest, cluster.machine)
    if is_first and not cluster.machine:
        _share_out(options.data_dir, count, zygote)
    make_directories(options.data_dir, count)
    run.mkdir(exist_ok=True)
    run.chmod(0o700)
    if cluster.moves:
        make_owners(run, cluster.machines)
    helpers = {}
    if len(cluster.machines) > 1:
        helpers["tunnel"] = program(_tunnel(run, cluster))
    if cluster.moves:
        helpers["keeper"] = partial(zygote.fork, {"cell": COPY})
    if cluster.nats_port:
        helpers["nats"] = program(_nats(options.data_dir, cluster))  # ends last
    cells = cluster.own.cells if cluster.machine else range(count)
    place = {
        "count": cluster.count if cluster.machine else count,
        "machines": cluster.machines,
        "redirects": cluster.redirect,
        "machine": cluster.machine if cluster.moves else "",
        "moves": cluster.moves,
    }
    return supervise(run, cells, zygote, place, helpers)


class _Cluster(msgspec.Struct):
    """The cluster that the configuration describes; without machines for a broker on one."""

    digest: str = ""
    machine: str = ""
    machines: list[Machine] = []
    certfile: str = ""
    keyfile: str = ""
    cacertfile: str = ""
    redirect: bool = False
    moves: bool = False
    name: str = ""
    nats_port: int = 0
    nats_route_port: int = 0

    @property
    def own(self) -> Machine:
        """This machine."""
        return next(machine for machine in self.machines if machine.name == self.machine)

    @property
    def count(self) -> int:
        """Number of all cells."""
        return sum(machine.size for machine in self.machines)


def _tunnel(run: Path, cluster: _Cluster) -> list[str]:
    """Command of the process that carries sockets to other machines."""
    told = {
        "run": str(run),
        "cluster": cluster.digest,
        **{name: getattr(cluster, name) for name in ("machine", "machines", "moves", *_FILES)},
    }
    return [sys.executable, "-m", "broker.cluster.tunnel", msgspec.json.encode(told).decode()]


def _nats(data_dir: Path, cluster: _Cluster) -> list[str]:
    """Command of the process that runs the machine's server of NATS."""
    told = {
        "directory": str(data_dir / "nats"),
        "cluster": cluster.name,
        "machine": cluster.machine,
        "host": cluster.own.host,
        "port": cluster.nats_port,
        "route_port": cluster.nats_route_port,
        "hosts": [machine.host for machine in cluster.machines],
        **{name: getattr(cluster, name) for name in _FILES},
    }
    return [sys.executable, "-m", "broker.cluster.nats.server", msgspec.json.encode(told).decode()]


def _check(options: ServeOptions, count: int, zygote: Zygote, *, has_addresses: bool) -> _Cluster:
    """Try the configuration, and its addresses where they are not in use by cells that run, in a process of its own:
    the supervisor stays small.

    Raises:
        ConfigError: a sentence for everything that is wrong; nothing was changed.
    """
    try:
        _, written = zygote.run({"cell": CHECK if has_addresses else READ})
        answer = json.loads(written)
    except (ChildProcessError, ValueError) as error:
        raise ConfigError(["the configuration cannot be checked; the reason is above"]) from error
    if answer["problems"]:
        raise ConfigError(answer["problems"])
    check_room(options.data_dir, count)
    file = answer["log"].pop("file")
    setup(
        **answer["log"], file=None if file is None else RotatingFile(Path(file.pop("path")), **file)
    )
    cluster = msgspec.convert(answer["cluster"], _Cluster)
    if cluster.machine and cluster.own.size != count:
        text = f"--workers: expected {cluster.own.size}, as cluster.machines.{cluster.machine} has it, got {count}"
        raise ConfigError([text])
    return cluster


def _share_out(data_dir: Path, count: int, zygote: Zygote) -> None:
    """Move the sessions of a broker of one process to their cells, in a process of its own.

    Raises:
        ConfigError: it failed; the next start continues it.
    """
    if change_under_way(data_dir) is None and kept_count(data_dir) != 1:
        return
    try:
        status, _ = zygote.run({"cell": MOVE})
    except ChildProcessError:
        status = 1
    if status:
        raise ConfigError(["sessions could not be moved to their cells; the reason is above"])


def main() -> int:
    """Be the supervisor, or the zygote and then what a request says; the exit status."""
    told = json.loads(sys.argv[1])
    options = ServeOptions(
        data_dir=Path(told["data_dir"]),
        mqtt=told["mqtt"],
        api=told["api"],
        config_files=tuple(Path(file) for file in told["config_files"]),
        overrides=told["overrides"],
    )
    if told["cell"] == SUPERVISE:
        return serve(options, told["count"])
    import_all()
    request = serve_forks()
    if request is None:
        return 0
    cell = request["cell"]
    if cell in (CHECK, READ):
        json.dump(_checked(options, told["count"], has_addresses=cell == CHECK), sys.stdout)
        return 0
    if cell == COPY:
        return _copy(options)
    if cell == MOVE:
        return _move(options, told["count"])
    run = options.data_dir / _RUN
    machines = tuple(Machine(*machine) for machine in request["machines"])
    owners = owners_in(run) if request["moves"] else None
    place = Place(
        cell, request["count"], run, machines, request["redirects"], request["machine"], owners
    )
    return _be_cell(options, place)


def import_all() -> None:
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
        features.API_FILES_OF_FRONT,
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
    if place.index > 0:
        options = replace(options, api=_ANY_PORT, overrides={**options.overrides, **_OF_OTHERS})
    return lifecycle.serve(replace(options, place=place))


def _copy(options: ServeOptions) -> int:
    """Keep copies of the stores of other machines' cells, and take them over; the exit status."""
    from broker.admin.api_settings import ApiSettings
    from broker.app.idle_api import IdleApi
    from broker.app.lifecycle import configuration
    from broker.cluster.keeper import keep

    mark_lines(cell="keeper")
    keep_files_private()
    try:
        config = configuration(options)
        cluster = config.get("cluster", ClusterSettings)
        api = IdleApi(options.data_dir, cluster, config.get("api", ApiSettings))
        return keep(options.data_dir, cluster, product_version(), api)
    except SluiceError as error:
        print(error, file=sys.stderr)
        return 1


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


def _checked(options: ServeOptions, count: int, *, has_addresses: bool) -> Mapping[str, Any]:
    """Problems of the configuration and its addresses, the settings of the log, and the cluster."""
    from broker.app.lifecycle import administrator_token, check_profile, configuration
    from broker.app.resize import homes_of
    from broker.cluster.resize import Resize
    from broker.connection.settings import MqttSettings
    from broker.observe.settings import LogSettings

    keep_files_private()
    try:
        check_profile(os.environ)
        config = configuration(options)
        cluster = config.get("cluster", ClusterSettings)
        check_machine(options.data_dir, cluster.digest if cluster.machine else "", cluster.machine)
        problems = asyncio.run(_address_problems(config, cluster)) if has_addresses else []
        if (
            has_addresses
            and not problems
            and not cluster.machine
            and kept_count(options.data_dir) == 1
        ):
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
    return {
        "problems": problems,
        "log": {"level": log.level, "format": log.format, "file": file},
        "cluster": {
            "digest": cluster.digest if cluster.machine else "",
            "machine": cluster.machine,
            "machines": list(cluster.layout),
            "redirect": cluster.redirect,
            "moves": cluster.moves,
            "name": cluster.name,
            "nats_port": cluster.nats.port if cluster.machine and cluster.nats.run else 0,
            "nats_route_port": cluster.nats.route_port,
            **{name: getattr(cluster.tls, name) for name in _FILES},
        },
    }


async def _address_problems(config: Any, cluster: ClusterSettings) -> list[str]:
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
    for machine in cluster.layout:
        if machine.name == cluster.machine:
            problems += _tunnel_problems(machine, cluster.tls)
    if cluster.machine and (cluster.nats.run or cluster.nats.servers):
        problems += _nats_problems(cluster)
    try:
        features.load(features.API_LISTENER)(*config.get("api", ApiSettings).address).close()
    except ConfigError as error:
        problems += error.problems
    return problems


def _nats_problems(cluster: ClusterSettings) -> list[str]:
    """Problems of the servers of NATS, where one answers."""
    from broker.cluster.nats.check import (
        problems_of,
        problems_of_name,
        problems_of_own,
        problems_of_sync,
    )

    try:
        places = cluster.nats_places
        if places.tls is not None:
            places.tls.context()
    except (OSError, SluiceError) as error:
        return [f"cluster.nats: {error}"]
    if cluster.nats.run:
        return problems_of_own(places.addresses[0][0], cluster.tls.certfile)
    nats = cluster.nats
    return [
        *problems_of(places, len(nats.servers)),
        *problems_of_name(places, cluster.name, cluster.digest),
        *problems_of_sync(nats.monitors),
    ]


def _tunnel_problems(machine: Machine, tls: ClusterTlsSettings) -> list[str]:
    """Problems of the address for other machines, and of the certificates."""
    from broker.cluster.certificates import context_of

    problems = []
    try:
        socket.create_server((machine.host, machine.port)).close()
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        where = f"cluster.machines.{machine.name}.address"
        problems.append(
            f"{where}: {address_text(machine.host, machine.port)} cannot be used: {reason}"
        )
    try:
        context_of(tls.certfile, tls.keyfile, tls.cacertfile, is_server=True)
    except OSError as error:
        problems.append(f"cluster.tls: the files cannot be used: {error}")
    return problems


if __name__ == "__main__":
    sys.exit(main())
