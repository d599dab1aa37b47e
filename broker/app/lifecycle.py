"""Start of the node in order and stop in reverse, with its run file and the administrator's token."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import signal
import sys
from collections.abc import Callable, Coroutine, Mapping
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any, Final

from broker.app.api import TOKEN_FILE, Api, files_of_front, saved_files
from broker.app.build import Node, section_models
from broker.app.cell_command import become_supervisor
from broker.app.loops import end_without_blocked_threads, run
from broker.app.reload import ConfigReload, overrides_of
from broker.app.settings import NodeSettings
from broker.cluster.arrival import arrived, leave
from broker.cluster.directories import cell_directory, check_count, directory_of
from broker.cluster.replication import Replication, replication_of
from broker.cluster.settings import ClusterSettings
from broker.cluster.steering import Steering
from broker.config.options import ServeOptions
from broker.config.root import Config, load_config
from broker.core.errors import ConfigError, SluiceError, did_you_mean
from broker.core.hosts import address_text
from broker.core.process import keep_files_private
from broker.observe.log import get_logger, setup
from broker.observe.settings import LogSettings
from broker.storage.rocksdb.options import Memory
from broker.storage.settings import StoreSettings
from broker.storage.without_pandas import keep_pandas_out
from broker.streams.ranges_process import RangesProcess
from broker.streams.settings import RangeServerSettings

_log = get_logger(__name__)

_API_AFTER_S: Final = 3.0

# Companion of a started node, given the node and a link that signs in to its page: the demo.
Companion = Callable[[Node, str], Coroutine[Any, Any, None]]


def serve(options: ServeOptions, companion: Companion | None = None) -> int:
    """Run a broker until SIGTERM or SIGINT; the exit status. Prints one line on standard output when it is ready."""
    keep_pandas_out()
    keep_files_private()
    try:
        check_profile(os.environ)
        if options.place is not None and 0 not in options.place.near:
            asyncio.run(files_of_front(options.place, options.data_dir).fetch_first())
        config = configuration(options)
        if options.place is None:
            if (cluster := config.get("cluster", ClusterSettings)).machine:
                become_supervisor(options, cluster.machines[cluster.machine].cells)
            check_count(options.data_dir, 1)
        run(_serve(config, options, companion), config.get("node", NodeSettings).event_loop)
    except ConfigError as error:
        for problem in error.problems:
            print(problem, file=sys.stderr)
        return 1
    except SluiceError as error:
        print(error, file=sys.stderr)
        return 1
    end_without_blocked_threads()
    return 0


def configuration(options: ServeOptions) -> Config:
    """Make the data directory, read the configuration and set up the log.

    Raises:
        ConfigError: one of them is not possible.
    """
    _make_data_dir(options)
    config = load_config(
        section_models(),
        data_dir=options.data_dir,
        config_files=options.config_files,
        environ=os.environ,
        overrides=overrides_of(options),
    )
    log = config.get("log", LogSettings)
    file = log.rotating_file()
    try:
        if file is not None:
            file.open()
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise ConfigError(
            [f"log.file: expected a file that can be written, got {log.file!r}: {reason}"]
        ) from error
    setup(log.level, log.format, file=file)
    if cut_off := config.api_layer.cut_off:
        _log.warning(
            "config.line_cut",
            file=str(config.api_file),
            dropped_bytes=len(cut_off.encode()),
            effect="the last change was written in part, and is taken as not made",
        )
    return config


def _make_data_dir(options: ServeOptions) -> None:
    directory = options.data_dir
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise ConfigError(
            [
                f"the data directory {directory} cannot be made ({reason}); name one that can be, with --data-dir"
            ]
        ) from error


async def _serve(config: Config, options: ServeOptions, companion: Companion | None) -> None:
    """Everything that was started is stopped in reverse, also when a later part does not start."""
    stopped = _on_signal()
    cluster = config.get("cluster", ClusterSettings)
    replication = replication_of(options.place, cluster, own_directory(options))
    if replication is not None:
        storing = config.get("store", StoreSettings)
        memory = Memory(storing.write_buffer, storing.block_cache)
        if await replication.opened(storing.durability, memory, stopped) is None:
            return
        assert options.place is not None
        if options.place.number == 0 and replication.bring_files(saved_files(options.data_dir)):
            config = configuration(options)
    async with AsyncExitStack() as started:
        node, api, reload = await start(config, options, started, replication)
        _reload_on_signal(reload, started)
        if node.steering is None:
            print(f"sluice ready mqtt={node.mqtt_address} api={node.api_address}", flush=True)
        else:
            node.steering.control.ready(node.mqtt_address, node.api_address)
        api.begin().add_done_callback(lambda making: stopped.set() if making.exception() else None)
        if companion is not None:
            task = asyncio.create_task(_accompany(node, api, companion), name="companion")
            task.add_done_callback(lambda _: stopped.set())
            started.push_async_callback(_end, task)
        await stopped.wait()
        _log.info("node.stopping")


async def _accompany(node: Node, api: Api, companion: Companion) -> None:
    await companion(node, await api.sign_in_link())


def own_directory(options: ServeOptions) -> Path:
    """Directory that the process alone writes to."""
    data_dir = options.data_dir.resolve()
    return data_dir if options.place is None else directory_of(data_dir, options.place)


async def start(
    config: Config,
    options: ServeOptions,
    started: AsyncExitStack,
    replication: Replication | None = None,
) -> tuple[Node, Api, ConfigReload]:
    """Start the node's parts in their order; ``started`` stops them in reverse. Any thread's event loop will do."""
    data_dir = options.data_dir.resolve()
    own_dir = own_directory(options)
    steering = None
    if options.place is not None:
        steering = Steering(options.place)
        await steering.start()
    # A process of its own takes a while to begin; the rest is imported and built in that time.
    others = {}
    if options.place is not None and options.place.index == 0:
        others = {
            cell: cell_directory(data_dir, cell - options.place.near.start)
            for cell in options.place.near
            if cell != options.place.number
        }
    range_server = config.get("range_server", RangeServerSettings)
    if options.place is not None and options.place.is_guest:
        range_server = range_server.for_guest()
    ranges = RangesProcess(own_dir, range_server, others)
    await ranges.spawn()
    started.push_async_callback(ranges.stop)
    token = administrator_token(data_dir, os.environ)
    store = None if replication is None else replication.store
    node = Node(config, data_dir, token, store=store, ranges=ranges, steering=steering)
    started.callback(node.store.close)
    started.push_async_callback(node.writer.close)
    if replication is not None:
        await replication.start(node.writer, node.alarms, node.metrics)
        node.copies_of_cell = replication.shown
        assert options.place is not None
        if options.place.number == 0:
            replication.keep_files(node.writer, saved_files(data_dir))
        started.push_async_callback(replication.stop)
    started.push_async_callback(ranges.stop)
    ranges_start = asyncio.create_task(ranges.start(), name="range server start")
    started.push_async_callback(_end, ranges_start)
    started.callback(node.tracing.stop)
    node.captures.start()
    started.push_async_callback(node.captures.stop)
    node.access.start()
    started.callback(node.access.stop)
    started.push_async_callback(node.streams.stop)
    started.callback(node.alarm_receivers.stop)
    for service in node.started_objects:
        service.start()
    for feature in node.features:
        started.push_async_callback(feature.close)
        feature.start()
    for feature in node.features:
        feature.open()
    node.history.start()
    started.callback(node.history.stop)
    reload = ConfigReload(node, options, os.environ)
    api = Api(node, reload, options.place)
    started.push_async_callback(api.stop)
    api_address = address_text(*api.address)
    local_address = address_text(*api.local_address)
    # If restoring sessions takes long, the API reports until then that the node is not ready.
    late = asyncio.get_running_loop().call_later(_API_AFTER_S, api.begin)
    started.callback(late.cancel)
    links = node.links
    if links is not None:
        started.push_async_callback(links.stop)
    bound = await node.server.start(None if links is None else links.join)
    late.cancel()
    if steering is not None and steering.place.owners is not None:
        values = node.services.storage.values
        here = steering.place.here
        node.arrival = arrived(values, node.server, here)
        started.callback(leave, values, node.server, here)
    mqtt_address = address_text(*bound[0]) if bound else "none"
    own = config.get("node", NodeSettings)
    if steering is not None:
        started.push_async_callback(steering.stop, own.shutdown_timeout)
        steering.begin(node.server.listeners)
    started.push_async_callback(
        node.server.stop, own.shutdown_timeout, publishes_wills=own.wills_on_shutdown
    )
    if steering is not None and steering.place.owners is not None:
        rate = config.get("cluster", ClusterSettings).disconnect_rate
        started.push_async_callback(node.server.part, rate, publishes_wills=own.wills_on_shutdown)
        started.callback(steering.part)
    # clients need not wait for it: it imports for ten times as long as all of the above takes in a cell
    await ranges_start
    node.store_health.start()
    started.callback(node.store_health.stop)
    node.saturation.start()
    started.callback(node.saturation.stop)
    node.overload.start()
    started.callback(node.overload.stop)
    node.listening(mqtt_address, api_address)
    for feature in node.features:
        await feature.connect(f"http://{local_address}", node.token)
        started.push_async_callback(feature.disconnect)
    node.replays.start_all()
    started.push_async_callback(node.replays.stop)
    started.callback(node.alarms.stop)
    run_file = RunFile(own_dir)
    run_file.write(mqtt_address, local_address)
    started.callback(run_file.remove)
    _log.info(
        "node.ready",
        mqtt=mqtt_address,
        api=api_address,
        data_dir=str(data_dir),
        security_profile=_SECURITY_PROFILE,
    )
    return node, api, reload


def _on_signal() -> asyncio.Event:
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    return stopped


def _reload_on_signal(reload: ConfigReload, started: AsyncExitStack) -> None:
    """Read the configuration again on SIGHUP, unless that signal says that the terminal we run in is gone."""
    if sys.stdin is not None and sys.stdin.isatty():
        return
    loop = asyncio.get_running_loop()
    under_way: set[asyncio.Task[None]] = set()

    def begin() -> None:
        task = loop.create_task(_reload(reload), name="configuration reload")
        under_way.add(task)
        task.add_done_callback(under_way.discard)

    loop.add_signal_handler(signal.SIGHUP, begin)
    started.callback(loop.remove_signal_handler, signal.SIGHUP)


async def _reload(reload: ConfigReload) -> None:
    try:
        await reload.reload()
    except ConfigError as error:
        for problem in error.problems:
            _log.error("config.not_reloaded", reason=problem)
    except SluiceError as error:
        _log.error("config.not_reloaded", reason=str(error))


async def _end(task: asyncio.Task[Any]) -> None:
    """Cancel a task and wait for it; its error is raised."""
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


class RunFile:
    """``DIR/run/node.json``, by which commands of the same machine find a running node. Written when the node is ready,
    removed when it stops; a file that a kill left behind names a dead process."""

    def __init__(self, data_dir: Path) -> None:
        self._file = data_dir / "run" / "node.json"

    def write(self, mqtt: str, api: str) -> None:
        """Say where the node listens, by ``host:port``."""
        self._file.parent.mkdir(exist_ok=True)
        temporary = self._file.with_suffix(".new")
        temporary.write_text(json.dumps({"pid": os.getpid(), "mqtt": mqtt, "api": api}) + "\n")
        temporary.replace(self._file)

    def remove(self) -> None:
        """Forget it."""
        with suppress(FileNotFoundError):
            self._file.unlink()


PROFILE_VARIABLE: Final = "SLUICE_SECURITY_PROFILE"
# The only profile: what others relax by a profile has settings of its own here.
_SECURITY_PROFILE: Final = "hardened"


def check_profile(environ: Mapping[str, str]) -> None:
    """Check the security profile that the environment asks for.

    Raises:
        ConfigError: it is not one that this broker has.
    """
    profile = environ.get(PROFILE_VARIABLE, _SECURITY_PROFILE)
    if profile != _SECURITY_PROFILE:
        rename = did_you_mean(profile, [_SECURITY_PROFILE])
        advice = (
            f"; {rename}"
            if rename
            else ". To accept clients without credentials: access.allow_anonymous = true"
        )
        raise ConfigError(
            [f"{PROFILE_VARIABLE}: expected {_SECURITY_PROFILE}, got {profile!r}{advice}"]
        )


TOKEN_VARIABLE: Final = "SLUICE_API_TOKEN"
MIN_TOKEN_LENGTH: Final = 12


def administrator_token(data_dir: Path, environ: Mapping[str, str]) -> str:
    """The token from the environment, else the one kept in the data directory, created at the first start.

    The file is readable by its owner only. A token from the environment is never written.

    Raises:
        ConfigError: the token is too short, or the file cannot be read or created.
    """
    if token := environ.get(TOKEN_VARIABLE, "").strip():
        return _checked(token, TOKEN_VARIABLE)
    file = data_dir / TOKEN_FILE
    try:
        return _checked(_kept_or_new(file), str(file))
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        advice = "make the data directory writable for this user, or choose another with --data-dir"
        raise ConfigError(
            [f"the administrator's token cannot be kept in {file} ({reason}); {advice}"]
        ) from error


def _checked(token: str, place: str) -> str:
    if len(token) < MIN_TOKEN_LENGTH:
        problem = f"expected a token of at least {MIN_TOKEN_LENGTH} characters, got {len(token)}"
        raise ConfigError([f"{place}: {problem}. Try: openssl rand -base64 32"])
    return token


def _kept_or_new(file: Path) -> str:
    if file.exists() and (kept := file.read_text().strip()):
        return kept
    token = secrets.token_urlsafe(32)
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "w") as opened:
        opened.write(token + "\n")
    return token
