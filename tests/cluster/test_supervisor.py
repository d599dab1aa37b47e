"""The supervisor starts cells, starts those again that die, and stops all together."""

from __future__ import annotations

import asyncio
import fcntl
import os
import resource
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from threading import Timer
from typing import Any

import pytest

from broker.cluster.directories import (
    CHANGE_FILE,
    cell_directory,
    check_count,
    check_room,
    kept_count,
    make_directories,
    origin_file,
)
from broker.cluster.supervisor import (
    Supervisor,
    _Helper,
    cell_lock,
    is_running,
    lock,
    program,
)
from broker.cluster.zygote import Zygote
from broker.core.cells import MAX_CELLS, SLOTS, Place
from broker.core.errors import ConfigError
from broker.core.origin import origin_of
from broker.core.values import Values
from tests.support.waiting import until


class Keeper:
    """Hears what the supervisor tells the process that decides which cells run."""

    def __init__(self, heard: list[str]) -> None:
        self.tell = heard.append


@asynccontextmanager
async def supervised(run: Path, count: int = 2, *what: str) -> AsyncIterator[Supervisor]:
    """A supervisor of bare cells, which are told to stop at the end."""

    command = (sys.executable, "-m", "tests.support.bare_cell", str(count), str(run), *what)
    supervisor = Supervisor(run, range(count), Zygote(command), {})
    serving = asyncio.create_task(supervisor.serve())
    try:
        yield supervisor
    finally:
        if not serving.done():
            os.kill(os.getpid(), signal.SIGTERM)
        await serving


@contextmanager
def _descriptors(count: int) -> Iterator[None]:
    """No more than so many descriptors for this process."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
    taken = []
    try:
        with suppress(OSError):
            while True:
                taken.append(os.open(os.devnull, os.O_RDONLY))
        for _ in range(count):
            os.close(taken.pop())
        yield
    finally:
        for descriptor in taken:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_it_says_ready_once_all_are(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async def test() -> None:
        async with supervised(tmp_path) as supervisor:
            await until(lambda: all(cell.ready for cell in supervisor._cells.values()))
            await until(lambda: capsys.readouterr().out == "sluice ready mqtt=mqtt:0 api=api:0\n")
            assert is_running(tmp_path, 0)
            assert is_running(tmp_path, 1)
            with pytest.raises(ConfigError, match="in use by another sluice"):
                Supervisor(tmp_path, range(2), Zygote(()), {})
        assert supervisor._status == 0
        assert not is_running(tmp_path, 0)
        assert not (tmp_path / "control.sock").exists()

    asyncio.run(test())


def test_a_cell_that_dies_is_started_again_and_its_socket_stays(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def test() -> None:
        async with supervised(tmp_path) as supervisor:
            await until(lambda: all(cell.ready for cell in supervisor._cells.values()))
            socket_file = (tmp_path / "pass-1.sock").stat().st_ino
            first = supervisor._cells[1].pid
            other = supervisor._cells[0].pid
            os.kill(first, signal.SIGKILL)
            await until(lambda: supervisor._cells[1].pid not in (0, first))
            await until(lambda: supervisor._cells[1].ready)
            assert supervisor._cells[0].pid == other
            assert (tmp_path / "pass-1.sock").stat().st_ino == socket_file
            assert supervisor._cells[1].pause_s > 0.2

    asyncio.run(test())
    [ended] = [record for record in caplog.records if record.getMessage() == "cell.ended"]
    assert ended.__dict__["fields"]["reason"] == "signal SIGKILL"


def test_cells_outlive_the_zygote_and_are_started_again_without_it(tmp_path: Path) -> None:
    async def test() -> None:
        async with supervised(tmp_path) as supervisor:
            await until(lambda: all(cell.ready for cell in supervisor._cells.values()))
            first, other = (cell.pid for cell in supervisor._cells.values())
            zygote = supervisor._zygote.pid
            assert zygote is not None
            os.kill(zygote, signal.SIGKILL)
            await until(lambda: supervisor._zygote.pid is None)
            os.kill(first, signal.SIGKILL)
            await until(lambda: supervisor._cells[0].pid not in (0, first))
            await until(lambda: supervisor._cells[0].ready)
            assert supervisor._cells[1].pid == other
        assert supervisor._status == 0

    asyncio.run(test())


def test_a_cell_that_is_no_longer_wanted_when_its_process_is_there_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever ordered the end hears of it once the process has ended, and not before it was forked."""
    heard: list[str] = []

    async def test() -> None:
        async with supervised(tmp_path) as supervisor:
            await until(lambda: all(cell.ready for cell in supervisor._cells.values()))
            monkeypatch.setattr(supervisor, "_keeper", Keeper(heard))
            fork = supervisor._zygote.fork

            def fork_and_stop(*arguments: Any) -> None:
                fork(*arguments)
                supervisor._ordered("stop 1")
                heard.append("ordered")

            monkeypatch.setattr(supervisor._zygote, "fork", fork_and_stop)
            os.kill(supervisor._cells[1].pid, signal.SIGKILL)
            await until(lambda: heard == ["ordered", "ended 1"])
            assert not supervisor._cells[1].pid
            assert not is_running(tmp_path, 1)
            monkeypatch.undo()

    asyncio.run(test())


def _keep(monkeypatch: pytest.MonkeyPatch, supervisor: Supervisor) -> list[str]:
    """What a supervisor tells the keeper from now on."""
    heard: list[str] = []
    monkeypatch.setattr(supervisor, "_keeper", Keeper(heard))
    return heard


@pytest.mark.parametrize("cell", [0, 2])  # of this machine, and a guest
def test_a_cell_that_cannot_start_here_is_left_to_other_machines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cell: int
) -> None:
    async def test() -> None:
        async with supervised(tmp_path, 2, str(tmp_path / "full")) as supervisor:
            await until(lambda: all(cell.ready for cell in supervisor._cells.values()))
            heard = _keep(monkeypatch, supervisor)
            supervisor._ordered(f"start {cell}")
            await until(lambda: supervisor._cells[cell].ready)
            heard.clear()
            (tmp_path / "full").touch()
            os.kill(supervisor._cells[cell].pid, signal.SIGKILL)
            await until(lambda: f"failed {cell}" in heard)
            assert heard == [f"runs {cell}", f"failed {cell}"]
            assert not supervisor._cells[cell].is_wanted
            zygote = supervisor._zygote
            monkeypatch.setattr(zygote, "fork", lambda _, on_forked: on_forked(None))
            supervisor._ordered(f"start {cell}")
            with _descriptors(0):
                supervisor._ordered(f"start {cell}")
            assert heard[2:] == [f"failed {cell}"] * 2
            assert not supervisor._cells[cell].is_wanted

    asyncio.run(test())


@contextmanager
def _silent_cell(run: Path, cell: int) -> Iterator[None]:
    """A process of an earlier supervisor that is a cell and has no line to this one, as while it waits for NATS."""
    program = (
        "import signal, sys\n"
        "from pathlib import Path\n"
        "from broker.cluster.supervisor import cell_lock, lock\n"
        "lock(Path(sys.argv[1]), cell_lock(int(sys.argv[2])))\n"
        "print(flush=True)\n"
        "signal.pause()\n"
    )
    command = [sys.executable, "-c", program, str(run), str(cell)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        try:
            yield
        finally:
            process.kill()


@pytest.mark.parametrize("cell", [0, 5])  # of this machine, and a guest
def test_cells_of_an_earlier_supervisor_end_before_they_greet(tmp_path: Path, cell: int) -> None:
    async def test() -> None:
        async with supervised(tmp_path, 1) as supervisor:
            await asyncio.sleep(0)  # it serves by now
        assert not is_running(tmp_path, cell)
        assert supervisor._status == 0

    with _silent_cell(tmp_path, cell):
        asyncio.run(test())


def test_a_cell_that_has_not_greeted_has_ended_when_its_process_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test() -> None:
        async with supervised(tmp_path, 1) as supervisor:
            await until(lambda: supervisor._cells[0].ready)
            heard = _keep(monkeypatch, supervisor)
            with _silent_cell(tmp_path, 5):
                supervisor._ordered("start 5")
                supervisor._ordered("stop 5")
                assert heard == []
                await until(lambda: heard == ["ended 5"])
                assert not is_running(tmp_path, 5)

    asyncio.run(test())


def test_a_process_that_ended_before_its_number_was_heard_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test() -> None:
        async with supervised(tmp_path) as supervisor:
            await until(lambda: all(cell.ready for cell in supervisor._cells.values()))
            heard = _keep(monkeypatch, supervisor)
            process = supervisor._cells[1]
            reaped = process.pid
            monkeypatch.setattr(supervisor._zygote, "fork", lambda *_: None)
            os.kill(reaped, signal.SIGKILL)
            await until(lambda: process.is_asked)
            supervisor._forked(process, reaped)
            await until(lambda: heard == ["failed 1"])
            supervisor._ordered("start 1")
            os.kill(os.getpid(), signal.SIGTERM)
            await until(lambda: not supervisor._cells[0].pid)
            supervisor._forked(process, reaped)
            await until(lambda: not (tmp_path / "control.sock").exists(), timeout_s=10)

    asyncio.run(test())


def test_who_looks_at_a_lock_keeps_no_cell_from_it(tmp_path: Path) -> None:
    file = tmp_path / cell_lock(0)
    file.touch()
    looking = os.open(file, os.O_RDONLY)
    fcntl.flock(looking, fcntl.LOCK_SH)
    assert not is_running(tmp_path, 0)  # two may look
    Timer(0.05, os.close, [looking]).start()
    locked = lock(tmp_path, cell_lock(0))
    assert is_running(tmp_path, 0)
    with pytest.raises(BlockingIOError):
        lock(tmp_path, cell_lock(0))
    os.close(locked)


def test_a_cell_that_never_was_ready_ends_all(tmp_path: Path) -> None:
    async def test() -> None:
        async with supervised(tmp_path, 2, "fails") as supervisor:
            await until(lambda: supervisor._is_stopping)
        assert supervisor._status == 1

    asyncio.run(test())


def test_a_directory_keeps_its_number_of_cells(tmp_path: Path) -> None:
    data = tmp_path / "data"
    assert kept_count(data) is None
    check_count(data, 3)
    make_directories(data, 3)
    check_count(data, 2)  # a start that made no store binds nobody
    for cell in range(3):
        (cell_directory(data, cell) / "rocksdb").mkdir()
    assert kept_count(data) == 3
    check_count(data, 3)
    with pytest.raises(ConfigError, match="expected 3, the number of cells"):
        check_count(data, 1)
    (cell_directory(data, 2)).rename(tmp_path / "away")
    with pytest.raises(ConfigError, match=r"cells/2: expected the data of a cell"):
        check_count(data, 3)
    (data / "cells" / "count").write_text("many")
    with pytest.raises(ConfigError, match="expected the number of cells"):
        check_count(data, 3)


def test_cells_of_a_directory_have_one_origin(tmp_path: Path) -> None:
    make_directories(tmp_path, 2)
    origin = origin_of("n", Values(), origin_file(tmp_path))
    make_directories(tmp_path, 3)
    assert origin_of("n", Values(), origin_file(tmp_path)) == origin
    first = Values()
    of_one = origin_of("n", first)
    assert of_one != origin
    assert origin_of("n", first, origin_file(tmp_path)) == of_one, "that of a single process stays"


def test_data_of_one_process_is_not_taken_by_several(tmp_path: Path) -> None:
    (tmp_path / "rocksdb").mkdir()
    check_count(tmp_path, 1)
    check_count(tmp_path, 2, may_grow=True)
    with pytest.raises(ConfigError, match="Try: --workers 1, or sluice cells resize 2"):
        check_count(tmp_path, 2)


def test_a_change_of_the_number_that_was_cut_off_is_named(tmp_path: Path) -> None:
    make_directories(tmp_path, 2)
    (tmp_path / CHANGE_FILE).write_text('{"id": "x", "before": 2, "after": 3, "step": "copy"}')
    check_count(tmp_path, 3, may_grow=True)
    for count, may_grow in ((2, True), (3, False), (1, False)):
        with pytest.raises(ConfigError, match=r"cut off\. Try: sluice cells resize 3"):
            check_count(tmp_path, count, may_grow=may_grow)
    (tmp_path / CHANGE_FILE).write_text("{")
    with pytest.raises(ConfigError, match="got none that can be read"):
        check_count(tmp_path, 2)


def test_a_full_disk_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("broker.cluster.directories._ROOM_BYTES", 1 << 60)
    with pytest.raises(ConfigError, match="MiB free for the stores of 2 new cells"):
        check_room(tmp_path, 2)


def test_every_slot_has_a_cell_and_cells_have_equal_shares() -> None:
    for count in (1, 2, 3, 5, MAX_CELLS):
        place = Place(0, count, Path())
        shares = [0] * count
        for slot in range(SLOTS):
            shares[slot * count // SLOTS] += 1
        assert max(shares) - min(shares) <= 1
        assert place.part_of(0) == 0
        assert place.part_of(10) * count >= 10


def test_a_helper_that_cannot_be_started_is_tried_again(tmp_path: Path) -> None:
    async def test() -> None:
        file = tmp_path / "helper"
        loop = asyncio.get_running_loop()
        helper = _Helper(loop, "helper", program([str(file)]), lambda: None)
        helper.start()
        assert helper.pid is None
        file.write_text("#!/bin/sh\necho ready\ncat > /dev/null\n")
        file.chmod(0o700)
        await until(lambda: helper.is_ready)
        helper.stop()

    asyncio.run(test())


def test_a_request_that_the_zygote_does_not_read_is_answered() -> None:
    async def test() -> None:
        zygote = Zygote(("sleep", "1000"))
        zygote.listen(asyncio.get_running_loop())
        answers: list[int | None] = []
        try:
            for _ in range(100):  # more than its socket holds
                zygote.fork({"cell": 0, "arguments": "x" * 50_000}, answers.append)
            await until(lambda: bool(answers))
        finally:
            zygote.close()
        assert set(answers) == {None}

    asyncio.run(test())


def test_a_zygote_that_cannot_be_started_is_tried_again() -> None:
    async def test() -> None:
        zygote = Zygote(("/no/such",))
        zygote.listen(asyncio.get_running_loop())
        answers: list[int | None] = []
        zygote.fork({"cell": 0}, answers.append)
        await until(lambda: answers == [None])
        assert zygote.pid is None
        zygote._command = ("false",)
        zygote.fork({"cell": 0}, answers.append)
        await until(lambda: answers == [None, None])  # it has ended, which is heard
        with pytest.raises(ChildProcessError, match="no/such"):
            Zygote(("/no/such",)).run({"cell": 0})

    asyncio.run(test())


@pytest.mark.parametrize("left", [0, 2])
def test_a_helper_without_descriptors_is_tried_again(left: int) -> None:
    async def test() -> None:
        launched: list[int] = []

        def launch(_: Any, descriptors: Sequence[int]) -> None:
            launched.extend(descriptors)

        helper = _Helper(asyncio.get_running_loop(), "helper", launch, lambda: None)
        before = set(os.listdir("/proc/self/fd"))
        with _descriptors(left):
            helper.start()
        assert not launched
        assert set(os.listdir("/proc/self/fd")) == before
        await until(lambda: bool(launched))
        helper.stop()

    asyncio.run(test())
