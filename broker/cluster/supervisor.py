"""Runs the cells of one machine: starts them, starts those again that die, and stops them together. It takes no message
in its hands.

A supervisor that is killed leaves its cells running: the next one knows them by their locks, and gets their sockets
back from them.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from broker.cluster.channel import Ready
from broker.cluster.switchboard import Switchboard
from broker.cluster.zygote import Zygote
from broker.core.cells import MAX_CELLS
from broker.core.errors import ConfigError
from broker.core.process import environment
from broker.observe.log import get_logger

_log = get_logger(__name__)

_SUPERVISOR_LOCK: Final = "supervisor.lock"
_FIRST_PAUSE_S: Final = 0.2
_LONGEST_PAUSE_S: Final = 10.0
_STABLE_AFTER_S: Final = 30.0
_ADOPT_AGAIN_S: Final = 0.5
# Seconds for which a process that only looks at a lock has it.
_LOOKED_AT_S: Final = 0.001
_MOST_SAID: Final = 4096
# Exit status of a cell that has another owner, or is to get one: its store takes nothing more.
FENCED: Final = 70
_KEEPER: Final = "keeper"
_NO_ADDRESS: Final = ":0"

# Function that starts a process, with descriptors for its standard input and output. It calls its first argument with
# the number of the process, or with None if there is none.
Launch = Callable[[Callable[[int | None], None], Sequence[int]], None]


def program(command: list[str]) -> Launch:
    """Function that starts a command."""

    def launch(on_started: Callable[[int | None], None], descriptors: Sequence[int]) -> None:
        actions = [
            (os.POSIX_SPAWN_DUP2, descriptor, number)
            for number, descriptor in enumerate(descriptors)
        ]
        pid = None
        try:
            # of a session of its own: Ctrl-C is for the supervisor
            pid = os.posix_spawn(
                command[0], command, environment(), file_actions=actions, setsid=True
            )
        except OSError as error:
            _log.error("process.not_started", command=command[:3], reason=str(error))
        on_started(pid)

    return launch


def lock(run: Path, name: str) -> int:
    """Descriptor of a file that is locked until this process ends, with the number of the process in it.

    Raises:
        BlockingIOError: another process has it.
    """
    descriptor = os.open(run / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        while True:
            with suppress(BlockingIOError):
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            # not refused where others only look (``is_running``)
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
            time.sleep(_LOOKED_AT_S)
        with suppress(OSError):  # a full disk
            os.pwrite(descriptor, b"%-10d\n" % os.getpid(), 0)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


@contextmanager
def no_supervisor(data_dir: Path) -> Iterator[None]:
    """Keep a supervisor from starting in a data directory.

    Raises:
        ConfigError: one runs.
    """
    run = data_dir / "run"
    with ExitStack() as held:
        if run.is_dir():
            try:
                held.callback(os.close, lock(run, _SUPERVISOR_LOCK))
            except BlockingIOError as error:
                text = f"the data directory {data_dir} is in use by another sluice; stop that one"
                raise ConfigError([text]) from error
        yield


def cell_lock(cell: int) -> str:
    """Name of the file that a cell locks while it runs."""
    return f"cell-{cell}.lock"


def is_running(run: Path, cell: int) -> bool:
    """True if a process is this cell."""
    try:
        descriptor = os.open(run / cell_lock(cell), os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def _process_of(run: Path, cell: int) -> int:
    """Number of the process that is this cell; 0 where it is not known, as for one of an earlier release."""
    file = run / cell_lock(cell)
    with suppress(OSError, ValueError):
        pid = int(file.read_text())
        # the number may be another process's by now
        if any(link.samefile(file) for link in Path(f"/proc/{pid}/fd").iterdir()):
            return pid
    return 0


class _Cell:
    """One cell as a process."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.is_asked = False
        """True while the zygote is to fork it."""
        self.pid = 0
        self.descriptor: int | None = None
        """Tells when the process has ended."""
        self.ready: Ready | None = None
        self.was_ready = False
        """True if any of its processes was ready."""
        self.started_s = 0.0
        self.pause_s = _FIRST_PAUSE_S
        self.is_wanted = True
        """False where another machine runs it, or shall."""


class _Helper:
    """A process beside the cells, as the one that carries sockets to other machines. It ends by itself when this one
    does."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        name: str,
        launch: Launch,
        changed: Callable[[], None],
    ) -> None:
        self._loop = loop
        self._name = name
        self._launch = launch
        self._changed = changed
        self.pid: int | None = None
        """Number of the process; None while there is none."""
        self._input: int | None = None
        self._output: int | None = None
        self._is_stopping = False
        self._started_s = 0.0
        self._pause_s = _FIRST_PAUSE_S
        self.is_ready = False
        self._data = b""
        self.on_line: Callable[[str], None] = lambda _line: None
        """Called with each line that it says after the first."""
        self.on_ready: Callable[[], None] = lambda: None

    def start(self) -> None:
        """Start it, unless this process is stopping."""
        if self._is_stopping:
            return
        self._started_s = time.monotonic()
        with ExitStack() as theirs:
            try:
                theirs_in, self._input = os.pipe()
                theirs.callback(os.close, theirs_in)
                self._output, theirs_out = os.pipe()
                theirs.callback(os.close, theirs_out)
            except OSError as error:
                _log.error("process.not_started", process=self._name, reason=str(error))
                self.ended(None)
                return
            self._loop.add_reader(self._output, self._said, self._output)
            self._launch(self._started, (theirs_in, theirs_out))

    def _started(self, pid: int | None) -> None:
        if self._is_stopping:
            return
        self.pid = pid
        try:
            if pid is not None:
                os.kill(pid, 0)
        except ProcessLookupError:  # its end was heard before its number
            pid = None
        if pid is None:
            self.ended(None)

    def _said(self, output: int) -> None:
        data = os.read(output, _MOST_SAID)
        if not data:
            self._loop.remove_reader(output)
            return
        *lines, self._data = (self._data + data).split(b"\n")
        for line in lines:
            if self.is_ready:
                self.on_line(line.decode())
            else:
                self.is_ready = True
                self.on_ready()
        self._changed()

    def tell(self, line: str) -> None:
        """Give it a line, if it runs."""
        if self._input is not None:
            with suppress(OSError):  # it has ended
                os.write(self._input, line.encode() + b"\n")

    def ended(self, status: int | None) -> None:
        """It has ended, and is started again: the later, the more often that happens."""
        self._close()
        if self._is_stopping:
            return
        if time.monotonic() - self._started_s > _STABLE_AFTER_S:
            self._pause_s = _FIRST_PAUSE_S
        _log.error(f"{self._name}.ended", reason=_reason(status), again_in_s=self._pause_s)
        self._loop.call_later(self._pause_s, self.start)
        self._pause_s = min(self._pause_s * 2, _LONGEST_PAUSE_S)

    def stop(self) -> None:
        """End it, and wait until it has. Its input ends, too, where this process is killed, but without that line."""
        self._is_stopping = True
        pid = self.pid
        self.tell("stop 0")
        self._close()
        if pid is not None:
            os.waitpid(pid, 0)

    def _close(self) -> None:
        self.pid = None
        self.is_ready = False
        self._data = b""
        if self._output is not None:
            self._loop.remove_reader(self._output)
        for descriptor in (self._input, self._output):
            if descriptor is not None:
                os.close(descriptor)
        self._input = self._output = None


class Supervisor:
    """The cells of one data directory, from the first start to the end of all. On the event loop."""

    def __init__(
        self,
        run: Path,
        cells: Sequence[int],
        zygote: Zygote,
        place: Mapping[str, Any],
        helpers: Mapping[str, Launch] | None = None,
    ) -> None:
        """Cells are forks of ``zygote``, asked for with ``place`` and the number of the cell. ``helpers`` are processes
        beside them, by their names in the log.

        Raises:
            ConfigError: another supervisor has the directory.
        """
        self._run = run
        self._zygote = zygote
        self._place = place
        try:
            self._lock = lock(run, _SUPERVISOR_LOCK)
        except BlockingIOError as error:
            text = (
                f"the data directory {run.parent} is in use by another sluice; stop that one or choose another "
                "directory with --data-dir"
            )
            raise ConfigError([text]) from error
        self._loop = asyncio.get_running_loop()
        self._cells = {number: _Cell(number) for number in cells}
        self._switchboard = Switchboard(run, self)
        self._is_stopping = False
        self._status = 0
        self._changed = asyncio.Event()
        self._statuses: dict[int, int] = {}
        """How processes of cells ended."""
        self._helpers = [
            _Helper(self._loop, name, helper, self._changed.set)
            for name, helper in (helpers or {}).items()
        ]
        self._home = tuple(cells)
        self._expected: tuple[int, ...] | None = self._home or None
        """The cells that are to run here; this is ready when they do. None while a machine without cells of its own
        does not know yet."""
        self._keeper: _Helper | None = None
        """Says which cells run here, where others may take them over."""
        if _KEEPER in (helpers or {}):
            self._keeper = self._helpers[list(helpers or {}).index(_KEEPER)]
            self._keeper.on_line = self._ordered
            self._keeper.on_ready = self._begin_keeper
            for cell in self._cells.values():
                cell.is_wanted = False

    async def serve(self) -> int:
        """Run the cells until they are told to stop; the exit status."""
        self._on_signals()
        self._zygote.listen(self._loop)
        for helper in self._helpers:
            helper.start()
        for number in range(MAX_CELLS):  # also guests of an earlier supervisor
            if is_running(self._run, number):
                self._cells.setdefault(number, _Cell(number))
        for cell in self._cells.values():
            if not is_running(self._run, cell.number):  # else it has its pass socket
                self._switchboard.prepare(cell.number)
        for cell in self._cells.values():
            cell.is_wanted = cell.is_wanted or is_running(self._run, cell.number)
            self._begin(cell)
        await self._until(lambda: self._is_ready() or self._expected == ())
        if not self._expected and not self._is_stopping:
            print(
                "drained: no cell runs here until the machine is resumed, or gets one", flush=True
            )
            await self._until(self._is_ready)
        if (
            not self._is_stopping
            and self._expected
            and (front := self._cells[self._expected[0]].ready) is not None
        ):
            _log.info("cells.ready", cells=len(self._cells))
            # a cell of another machine has no API here
            api = "" if front.api == _NO_ADDRESS else f" api={front.api}"
            print(f"sluice ready mqtt={front.mqtt}{api}", flush=True)
        await self._until(
            lambda: self._is_stopping and not any(c.pid or c.is_asked for c in self._cells.values())
        )
        self._zygote.close()
        for helper in self._helpers:
            helper.stop()
        self._switchboard.close()
        self._loop.remove_signal_handler(signal.SIGCHLD)
        os.close(self._lock)
        return self._status

    def _is_ready(self) -> bool:
        expected = self._expected or ()
        return self._is_stopping or (
            bool(expected)
            and all(one in self._cells and self._cells[one].ready for one in expected)
            and all(helper.is_ready for helper in self._helpers)
        )

    # -- from cells --

    def greeted(self, cell: int, pid: int) -> None:
        """A cell has made its line: one of an earlier supervisor is this one's from now on."""
        process = self._cells.setdefault(cell, _Cell(cell))
        if process.is_asked:
            self._forked(process, pid)
        elif process.pid != pid:
            _log.info("cell.adopted", cell=cell, process=pid)
            self._watch(process, pid)
            process.is_wanted = True
        if self._keeper is not None and process.is_wanted:
            self._keeper.tell(f"runs {cell}")
        if self._is_stopping:
            self._tell(signal.SIGTERM)

    def is_ready(self, cell: int, ready: Ready) -> None:
        """A cell serves clients."""
        process = self._cells[cell]
        process.ready = ready
        process.was_ready = True
        self._changed.set()

    def _ordered(self, line: str) -> None:
        """The keeper wants a cell to run here, or no longer to, or says which cells are to."""
        verb, number = line.split()
        if verb == "expects":
            self._expected = () if number == "none" else tuple(map(int, number.split(",")))
            self._changed.set()
            return
        cell = self._cells.setdefault(int(number), _Cell(int(number)))
        cell.is_wanted = verb == "start"
        if cell.is_wanted:
            self._begin(cell)
        else:
            self._end(cell)

    def _end(self, cell: _Cell) -> None:
        """End the process of a cell that is to run elsewhere, and report its end to the keeper. A process that the
        zygote is still to fork is ended once it is there."""
        if cell.descriptor is not None:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(cell.descriptor, signal.SIGTERM)
        elif not cell.is_asked and not is_running(self._run, cell.number):
            self._tell_ended(cell)

    def _begin_keeper(self) -> None:
        """Tell the keeper, which has just started, what runs here."""
        assert self._keeper is not None
        for cell in self._cells.values():
            if cell.is_wanted:
                self._keeper.tell(f"runs {cell.number}")
        self._keeper.tell("begin 0")

    def _tell_ended(self, cell: _Cell, *, has_failed: bool = False) -> None:
        if self._keeper is not None:
            self._keeper.tell(f"{'failed' if has_failed else 'ended'} {cell.number}")

    async def _until(self, is_so: Callable[[], object]) -> None:
        while not is_so():
            self._changed.clear()
            await self._changed.wait()

    # -- processes --

    def _begin(self, cell: _Cell) -> None:
        """Start a cell, or wait for the one that an earlier supervisor has started."""
        if self._is_stopping or cell.pid or cell.is_asked or not cell.is_wanted:
            return
        try:
            if is_running(self._run, cell.number):
                self._adopt(cell)
                return
            self._switchboard.prepare(cell.number)
        except OSError as error:
            _log.error("process.not_started", process=f"cell {cell.number}", reason=str(error))
            self._over(cell, None)
            return
        cell.started_s = time.monotonic()
        cell.is_asked = True
        request = {**self._place, "cell": cell.number}
        self._zygote.fork(request, lambda pid: self._forked(cell, pid))

    def _adopt(self, cell: _Cell) -> None:
        """Watch the process of an earlier supervisor, which may have no line to this one yet."""
        cell.was_ready = True
        if pid := _process_of(self._run, cell.number):
            _log.info("cell.adopted", cell=cell.number, process=pid)
            self._watch(cell, pid)
        else:
            self._loop.call_later(_ADOPT_AGAIN_S, self._begin, cell)

    def _forked(self, cell: _Cell, pid: int | None) -> None:
        """The process of a cell is there, or cannot be."""
        if not cell.is_asked:  # it has made its line already
            return
        cell.is_asked = False
        if pid is None:
            self._over(cell, None)
            return
        self._watch(cell, pid)
        if self._is_stopping:
            self._tell(signal.SIGTERM)
        elif not cell.is_wanted:
            self._end(cell)

    def _reap(self) -> None:
        """Note how processes ended. Those that a cell left behind are this one's children, too."""
        with suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                for helper in self._helpers:
                    if helper.pid == ended[0]:
                        helper.ended(os.waitstatus_to_exitcode(ended[1]))
                if any(cell.pid == ended[0] for cell in self._cells.values()):
                    self._statuses[ended[0]] = os.waitstatus_to_exitcode(ended[1])

    def _watch(self, cell: _Cell, pid: int) -> None:
        try:
            cell.descriptor = os.pidfd_open(pid)
        except ProcessLookupError:  # it has ended meanwhile
            self._loop.call_soon(self._over, cell, None)
            return
        cell.pid = pid
        self._loop.add_reader(cell.descriptor, self._ended, cell)

    def _ended(self, cell: _Cell) -> None:
        assert cell.descriptor is not None
        self._loop.remove_reader(cell.descriptor)
        os.close(cell.descriptor)
        self._reap()
        cell.descriptor = None
        self._over(cell, self._statuses.pop(cell.pid, None))

    def _over(self, cell: _Cell, status: int | None) -> None:
        pid = cell.pid
        cannot_run = status == FENCED or cell.ready is None
        # a first start that fails has reported what is wrong with the machine
        is_first = cell.number in self._home and not cell.was_ready
        cell.pid = 0
        cell.ready = None
        self._changed.set()
        if self._keeper is not None and (
            status in (FENCED, None) or not cell.is_wanted or (cannot_run and not is_first)
        ):
            _log.info("cell.given_away", cell=cell.number, reason=_reason(status))
            has_failed = status == FENCED or (cannot_run and cell.is_wanted)
            cell.is_wanted = False
            self._tell_ended(cell, has_failed=has_failed)
        if self._is_stopping:
            # one that has just been forked ends by the signal itself
            in_order = (0, None, FENCED, -signal.SIGTERM)
            self._status = self._status or int(status not in in_order)
            self._tell_ended(cell)
        elif not cell.is_wanted:
            pass
        elif is_first:
            self._status = 1
            self._stop()
        else:
            self._start_again(cell, pid, status)

    def _start_again(self, cell: _Cell, pid: int, status: int | None) -> None:
        if time.monotonic() - cell.started_s > _STABLE_AFTER_S:
            cell.pause_s = _FIRST_PAUSE_S
        _log.error(
            "cell.ended",
            cell=cell.number,
            process=pid,
            reason=_reason(status),
            again_in_s=cell.pause_s,
        )
        self._loop.call_later(cell.pause_s, self._begin, cell)
        cell.pause_s = min(cell.pause_s * 2, _LONGEST_PAUSE_S)

    def _on_signals(self) -> None:
        self._loop.add_signal_handler(signal.SIGCHLD, self._reap)
        for number in (signal.SIGTERM, signal.SIGINT):
            self._loop.add_signal_handler(number, self._stop)
        if sys.stdin is None or not sys.stdin.isatty():
            self._loop.add_signal_handler(signal.SIGHUP, self._tell, signal.SIGHUP)

    def _stop(self) -> None:
        """Stop all cells together, since clients of one are relayed by others; at once the second time."""
        _log.info("cells.stopping", at_once=self._is_stopping)
        if self._keeper is not None:
            self._keeper.tell("stop 0")
        self._tell(signal.SIGKILL if self._is_stopping else signal.SIGTERM)
        self._is_stopping = True
        self._changed.set()

    def _tell(self, number: signal.Signals) -> None:
        for cell in self._cells.values():
            if cell.descriptor is not None:
                with suppress(ProcessLookupError):
                    signal.pidfd_send_signal(cell.descriptor, number)


def _reason(status: int | None) -> str:
    """Why a process has ended, in words."""
    if status is None:
        return "unknown"
    if status >= 0:
        return f"exit status {status}"
    return f"signal {signal.Signals(-status).name}"


def supervise(
    run: Path,
    cells: Sequence[int],
    zygote: Zygote,
    place: Mapping[str, Any],
    helpers: Mapping[str, Launch],
) -> int:
    """Run cells until SIGTERM or SIGINT; the exit status.

    Raises:
        ConfigError: another supervisor has the directory.
    """

    async def serve() -> int:
        return await Supervisor(run, cells, zygote, place, helpers).serve()

    return asyncio.run(serve())
