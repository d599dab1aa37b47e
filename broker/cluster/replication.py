"""The store of a cell in a cluster with NATS: its commit log there, and the copies that other machines keep of it.

The log is trimmed to what all copies have on their disks. A copy that does not answer, or is far behind another one,
holds it up only until it is half full: then the copy is left behind, and is replaced later.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal
from uuid import uuid4

import msgspec

from broker.admin.cells import CopiesOfCell
from broker.cluster.copies import bring
from broker.cluster.copying import (
    CopyState,
    Source,
    remove_store,
    server_of_copies,
    socket_of_copies,
    socket_of_copy,
    state_at,
)
from broker.cluster.keeping import SHOW, State, Told, ask
from broker.cluster.line_server import LineServer
from broker.cluster.nats.log import LOST_END, NatsLog, StreamSettings
from broker.cluster.settings import ClusterSettings
from broker.cluster.supervisor import FENCED
from broker.config.sections import replace_file
from broker.config.stamp import stamp_of
from broker.core.cells import Place
from broker.core.errors import ConfigError, SluiceError, Unavailable
from broker.observe.alarms import Alarms
from broker.observe.log import get_logger
from broker.observe.metrics import Metrics
from broker.storage.commit_log import LogBehind, LogLost, Mark
from broker.storage.rocksdb.options import Memory
from broker.storage.rocksdb.store import DATABASE_FOLDER, RocksStore
from broker.storage.writer import Writer

_log = get_logger(__name__)

_LOOK_S: Final = 2.0
_AGAIN_S: Final = 1.0
_SOON_S: Final = 0.1
# Seconds in which no copy follows until that is an alarm.
_ALONE_S: Final = 60.0
_HALF: Final = 0.5
# Share of a log that is half full by which a copy may be behind another one.
_QUARTER: Final = 0.25
# Seconds that the clocks of two machines may differ.
_CLOCK_S: Final = 3.0
# Looks at which another server leads the log until that of this machine is asked to.
_LED_ELSEWHERE: Final = 3


@dataclass(slots=True)
class CopyRow:
    """A copy of this cell as its machine told it last; ``problem``: why it does not follow, or not fast enough."""

    machine: str
    position: int = 0
    problem: str = "it was not reached yet"


_FILES: Final = b"cluster/files"
_SAVED: Final = msgspec.msgpack.Decoder(dict[str, bytes])


class _NotToldYet(Unavailable):
    """The keeper has begun a moment ago, and has not heard from all machines."""


class Replication:
    """The commit log of one cell, and its copies. On the event loop, but for ``open``."""

    def __init__(self, place: Place, cluster: ClusterSettings, directory: Path) -> None:
        self._place = place
        self._cluster = cluster
        self._directory = directory
        self._cell = place.number
        self._places = cluster.nats_places
        self.store: RocksStore | None = None
        self._looks: NatsLog | None = None
        self._server: LineServer | None = None
        self._task: asyncio.Task[None] | None = None
        self._lacks = ""
        """Why its store is replaced, as reported."""
        self._alone_s = 0.0
        self._trimmed = 0
        self._led_elsewhere = 0
        """Looks at which another server led the log than that of this machine."""
        self.applied = Mark()
        """How far this cell has written its log, on its disk."""
        self.log_bytes = 0
        self.copies = [CopyRow(machine) for machine in cluster.others_with(self._cell)]

    async def opened(
        self, durability: Literal["fsync", "os"], memory: Memory, stopped: asyncio.Event
    ) -> RocksStore | None:
        """The store, open; waits for NATS and for other machines. None when ``stopped`` is set before.

        Raises:
            ConfigError: as ``open``.
        """
        said = ""
        while not stopped.is_set():
            again_s = _AGAIN_S
            try:
                return await asyncio.to_thread(self.open, durability, memory)
            except _NotToldYet as error:
                _log.debug("cell.copies_awaited", reason=str(error))
                again_s = _SOON_S
            # a new leader may report an older end for a moment, and copies may be older than the log
            except (LogBehind, LogLost, Unavailable) as error:
                if said != (said := str(error)):
                    _log.warning("cell.log_awaited", reason=said)
            with suppress(TimeoutError):
                async with asyncio.timeout(again_s):
                    await stopped.wait()
        return None

    def open(self, durability: Literal["fsync", "os"], memory: Memory) -> RocksStore:
        """Open the store as the owner of the log; where it lacks what the log no longer has, as a copy of another
        machine's. Blocks.

        Raises:
            ConfigError: the store cannot be used, or the log cannot be kept as configured.
            Unavailable: too few servers of NATS answer, or no other machine has a copy that is needed.
            LogBehind: the log lacks what this store has, or another machine's copy.
            LogLost: no store here or elsewhere has what the log lacks.
        """
        machines = self._machines_with_copies()
        log = self._log()
        nats = self._cluster.nats
        log.make(StreamSettings(nats.replicas, nats.max_log_bytes, self._cluster.digest))
        if self._cluster.awaits_data and not log.state()["state"]["last_seq"]:
            log.close()
            raise Unavailable(f"machine {self._cluster.data_from!r} has not brought its data yet")
        self._check_copies(log, machines)
        try:
            self.store = RocksStore(self._directory, durability, memory, log)
        except LogLost as error:
            if self._lacks != (lacks := str(error)):
                self._lacks = lacks
                _log.warning("cell.copy_needed", reason=lacks)
            try:
                least = log.trimmed_to()
                bring(self._place.run, self._cluster, self._cell, self._directory, least)
            except Unavailable:
                if (self._directory / DATABASE_FOLDER).exists():
                    raise
                remove_store(self._directory)  # the log may have all of it
            self.store = RocksStore(self._directory, durability, memory, log)
        return self.store

    def _machines_with_copies(self) -> Mapping[str, State]:
        """What machines have told, those with copies of the cell among them.

        Raises:
            _NotToldYet: one of these has not said yet how far its copy is.
            Unavailable: the keeper of this machine is starting.
        """
        if not self._cluster.moves:  # there is no keeper, and are no copies
            return {}
        told = ask(self._place.run, self._cluster.machine, SHOW)
        for name in set(self._cluster.others_with(self._cell)).difference(told.forgotten):
            state = told.machines.get(name)
            if name in told.unheard or (state is not None and self._cell in state.opening):
                raise _NotToldYet(f"machine {name!r} has not said yet how far its copy is")
        return told.machines

    def _check_copies(self, log: NatsLog, machines: Mapping[str, State]) -> None:
        """Check that the log has all that copies on other machines have; else these would be replaced.

        Raises:
            LogBehind: it has not.
            Unavailable: no server answers.
        """
        copies = {name: state.copies.get(self._cell, 0) for name, state in machines.items()}
        name = max(copies, key=copies.__getitem__, default="")
        if name and copies[name] > (end := log.state()["state"]["last_seq"]):
            raise LogBehind(
                f"cell {self._cell}: NATS has lost what it had confirmed: its log ends at {end}, and the copy of "
                f"machine {name} at {copies[name]}; {LOST_END}"
            )

    def _log(self) -> NatsLog:
        who = f"{self._cluster.machine}-{uuid4().hex[:12]}"
        return NatsLog(self._places, self._cluster.name, self._cell, who, on_over=_give_up)

    async def start(self, writer: Writer, alarms: Alarms, metrics: Metrics) -> None:
        """Give copies, and keep the log short."""
        metrics.gauge(
            "cluster_log_bytes", lambda: self.log_bytes, "bytes of the cell's commit log in NATS"
        )
        metrics.gauge(
            "cluster_copies",
            lambda: self.shown().copies,
            "copies of the cell's store on other machines that follow its commit log",
        )
        self._server = server_of_copies(self._place.run, socket_of_copy(self._cell), self._state_of)
        await self._server.start()
        self._task = asyncio.create_task(self._look(writer, alarms), name="copies of the cell")

    def shown(self) -> CopiesOfCell:
        """What users see of it."""
        following = sum(not copy.problem for copy in self.copies)
        return CopiesOfCell(self._cluster.machine, following, self.log_bytes)

    async def stop(self) -> None:
        """Give no copies any more."""
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
        if self._looks is not None:
            self._looks.close()
        if self._server is not None:
            await self._server.stop()

    def bring_files(self, files: Mapping[str, Path]) -> bool:
        """Replace files of the first cell by those that were saved with its store; True if any has changed.

        Raises:
            Unavailable: one cannot be written.
        """
        assert self.store is not None
        value = self.store.get(_FILES)
        saved = {} if value is None else _SAVED.decode(value)
        has_changed = False
        for name, content in saved.items():
            path = files.get(name)
            try:
                if path is not None and not (path.exists() and path.read_bytes() == content):
                    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
                    replace_file(path, content)
                    has_changed = True
            except OSError as error:
                raise Unavailable(f"{path} cannot be written as it was saved: {error}") from error
        return has_changed

    def keep_files(self, writer: Writer, files: Mapping[str, Path]) -> None:
        """Save files of the first cell with its store: a change is in the next commit, and each change of them has an
        entry of the audit log that is committed before its answer."""
        noted: list[object] | None = None
        said = ""

        def look() -> None:
            nonlocal noted, said
            stamps: list[object] = [stamp_of(path) for path in files.values()]
            if stamps == noted:
                return
            try:
                contents = {
                    name: path.read_bytes() for name, path in files.items() if path.exists()
                }
            except OSError as error:  # the next commit tries again
                if said != (said := str(error)):
                    _log.error("cell.files_not_saved", reason=said)
                return
            noted, said = stamps, ""
            writer.put(_FILES, msgspec.msgpack.encode(contents))
            writer.when_committed(done)

        def done(error: BaseException | None) -> None:
            nonlocal noted
            if error is not None:  # the next commit has them again
                noted = None

        writer.before_commit(look)
        writer.touch()

    def _state_of(self, cell: int) -> tuple[CopyState, Source | None]:
        assert self.store is not None
        if cell != self._cell:
            return CopyState(problem="the cell is another one"), None
        return CopyState(self.applied.position, self.applied.epoch), self.store

    async def _look(self, writer: Writer, alarms: Alarms) -> None:
        loop = asyncio.get_running_loop()
        self._alone_s = loop.time()
        self._looks = NatsLog(self._places, self._cluster.name, self._cell, "looks")
        while True:
            try:
                await self._look_once(writer, alarms)
            except SluiceError as error:
                _log.info("cell.log_not_trimmed", reason=str(error))
            except Exception:  # noqa: BLE001  a bug: the log is to stay short all the same
                _log.exception("cell.log_look_failed")
            await asyncio.sleep(_LOOK_S)

    async def _look_once(self, writer: Writer, alarms: Alarms) -> None:
        now_s = asyncio.get_running_loop().time()
        told = await self._told()
        copies = [copy for copy in self.copies if copy.machine not in told.forgotten]
        await asyncio.gather(*map(self._ask, copies))
        if not copies or any(not copy.problem for copy in copies):
            self._alone_s = now_s
        alarms.set(
            f"cell_without_copy:{self._cell}",
            now_s - self._alone_s > _ALONE_S,
            f"no other machine has a copy of cell {self._cell} that follows: "
            + "; ".join(f"{copy.machine}: {copy.problem}" for copy in copies),
            cell=self._cell,
        )
        if self._cell == 0:
            self._look_at_clocks(alarms, told)
            _look_at_releases(alarms, told)
        assert self._looks is not None
        state = await asyncio.to_thread(self._looks.state)
        self.log_bytes = state["state"]["bytes"]
        await asyncio.to_thread(self._lead, self._looks, state)
        is_half_full = self.log_bytes > self._cluster.nats.max_log_bytes * _HALF
        alarms.set(
            f"cell_log_filling:{self._cell}",
            is_half_full,
            f"the commit log of cell {self._cell} in NATS has {self.log_bytes} bytes, more than half of its limit",
            cell=self._cell,
        )
        if is_half_full:
            _leave_behind(copies, state["state"]["last_seq"] - state["state"]["first_seq"])
        waited = [copy for copy in copies if not (is_half_full and copy.problem)]
        least = min((copy.position for copy in waited), default=self.applied.position)
        await self._trim(writer, least, state["state"]["last_seq"])

    async def _told(self) -> Told:
        """What the keeper of this machine says; nothing while it is starting."""
        try:
            return await asyncio.to_thread(ask, self._place.run, self._cluster.machine, SHOW)
        except Unavailable:
            return Told()

    def _look_at_clocks(self, alarms: Alarms, told: Told) -> None:
        """Compare the clocks of other machines with this one's."""
        own = self._cluster.machine
        for machine in self._cluster.machines:
            ahead_s = told.clocks_s.get(machine, 0.0)
            word = "ahead of" if ahead_s > 0 else "behind"
            alarms.set(
                f"clock_differs:{machine}",
                abs(ahead_s) > _CLOCK_S,
                f"the clock of machine {machine} is {abs(ahead_s):.0f} s {word} that of machine {own}",
                machine=machine,
            )

    def _lead(self, log: NatsLog, state: Mapping[str, Any]) -> None:
        """Have the log led by the server of this machine, once another one has done so for a while."""
        server = log.leads_elsewhere(state)
        self._led_elsewhere = self._led_elsewhere + 1 if server else 0
        if self._led_elsewhere == _LED_ELSEWHERE:
            self._led_elsewhere = -_LED_ELSEWHERE
            _log.info("cell.log_led", server=server, before=state["cluster"]["leader"])
            log.have_lead(server)

    async def _ask(self, copy: CopyRow) -> None:
        name = socket_of_copies(copy.machine)
        try:
            state = await asyncio.to_thread(state_at, self._place.run, name, self._cell)
        except Unavailable as error:
            copy.problem = str(error)
        else:
            copy.position = state.position
            copy.problem = state.problem

    async def _trim(self, writer: Writer, position: int, end: int) -> None:
        """Trim the log on the writer's thread, which alone may use it. Where the log had an ``end`` that this process
        has not written, another one is the owner."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def tell(error: BaseException | None) -> None:
            if not done.done():
                done.set_result(None) if error is None else done.set_exception(error)

        def trim() -> None:
            assert self.store is not None
            wanted = position if position > self._trimmed else 0
            self.applied = self.store.trim_log(wanted)
            if end > self.applied.position and self.store.is_settled:
                _give_up(f"another process has claimed cell {self._cell}")
            if wanted:
                self._trimmed = min(wanted, self.applied.position)

        writer.call(trim, tell)
        await done


def _leave_behind(copies: Sequence[CopyRow], entries: int) -> None:
    """Wait no longer for a copy on a slow disk, or one that hangs: it is behind another one by more than a quarter of
    the log, which has that many ``entries``."""
    following = [copy for copy in copies if not copy.problem]
    newest = max((copy.position for copy in following), default=0)
    for copy in following:
        if (behind := newest - copy.position) > entries * _QUARTER:
            copy.problem = (
                f"it is {behind} entries behind another copy, more than a quarter of the log"
            )


def _look_at_releases(alarms: Alarms, told: Told) -> None:
    """Compare the releases that machines run."""
    machines: dict[str, list[str]] = {}
    for name, state in sorted(told.machines.items()):
        machines.setdefault(state.version, []).append(name)
    machines.pop("", None)
    shown = "; ".join(f"{release} on {', '.join(names)}" for release, names in machines.items())
    alarms.set("releases_differ", len(machines) > 1, f"machines run several releases: {shown}")


def _give_up(reason: str) -> None:
    """End this process at once: what it would still send or write belongs to another owner now."""
    _log.error("cell.fenced", reason=reason)
    os._exit(FENCED)


def replication_of(
    place: Place | None, cluster: ClusterSettings, directory: Path
) -> Replication | None:
    """The replication of a cell, where the cluster has any.

    Raises:
        ConfigError: the password of NATS, or its authority, is not there.
    """
    if place is None or not cluster.has_nats:
        return None
    try:
        return Replication(place, cluster, directory)
    except (OSError, SluiceError) as error:
        raise ConfigError([f"cluster.nats: {error}"]) from error
