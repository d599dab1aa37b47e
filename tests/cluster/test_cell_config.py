"""Changes of the configuration while cells are away, come back, or refuse."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from starlette.responses import Response

from broker.core import jsontext
from broker.core.cells import Place
from broker.core.errors import Conflict
from broker.core.objects import SavedObject
from broker.core.signals import Signal
from tests.support.mqtt_server import on_loop
from tests.support.waiting import until
from ui.api import cell_config
from ui.api.cell_calls import Away, Reply


class Front:
    """What the front saves, and what the other cells of it took over: each file is the number of its last change."""

    def __init__(self) -> None:
        self.file = 0
        self.taken = {1: 0, 2: 0}
        self.away: set[int] = set()
        self.refusing: set[int] = set()
        self.on_change: Signal[SavedObject] = Signal()
        self.files_digest = ""
        self.looks: list[Mapping[int, int]] = []
        self.reads_slowly: asyncio.Event | None = None
        self.fails = 0
        self.alarms: dict[int, str | None] = {}
        self.versions = {1: "2.0.0", 2: "2.0.0"}
        self.ignoring: set[int] = set()
        self.adopted: dict[int, int] = {}
        self.config = self.new_config()

    def new_config(self) -> cell_config.ConfigOfCells:
        """That of a process which has just started."""
        calls: Any = self
        return cell_config.ConfigOfCells(
            Place(0, 3, Path()), calls, self, self, calls, self.raised, "2.0.0"
        )

    def raised(self, cell: int, is_raised: bool, why: str) -> None:
        """An alarm begins or ends."""
        self.alarms[cell] = why if is_raised else None

    async def digest(self) -> str:
        """That of the front."""
        return str(self.file)

    @contextmanager
    def noting(self) -> Iterator[list[int]]:
        noted: list[int] = []
        before = self.file
        yield noted
        noted.append(before)

    def put_back(self, replaced: list[int]) -> None:
        (self.file,) = replaced

    def changes_of(self, replaced: list[int]) -> Mapping[str, Any]:
        return {"after": replaced[0]}

    async def adopt(self) -> None:
        """The front itself takes the file over."""

    async def committed(self) -> None:
        """What the front itself has changed is in its store before others have it."""
        assert all(taken < self.file for taken in self.taken.values())

    async def look(self) -> None:
        """Streams ask for the positions of all cells."""
        self.looks.append(dict(self.taken))

    async def ask(
        self, cell: int, _method: str, target: str, *, body: bytes = b"", **_: Any
    ) -> Reply | Away:
        if target == "/api/v1/cells:digest" and cell not in self.away:
            shown = {"digest": str(self.taken[cell]), "version": self.versions[cell]}
            return Reply(cell, 200, jsontext.encode(shown))
        if self.fails:
            self.fails -= 1
            raise RuntimeError("a bug")
        if cell in self.away:
            return Away(cell, "no answer")
        read = self.file
        if cell in self.refusing:
            return Reply(cell, 422, jsontext.encode({"detail": "there is no such file"}))
        changes = jsontext.decode(body)["changes"]
        if self.reads_slowly is not None and changes is None:
            wait, self.reads_slowly = self.reads_slowly, None
            await wait.wait()
        self.adopted[cell] = self.adopted.get(cell, 0) + 1
        if cell not in self.ignoring:
            self.taken[cell] = read
        return Reply(cell, 200, b"{}")

    async def change(self) -> None:
        async def act() -> Response:
            self.file += 1
            return Response()

        await self.config.changed(act)


@pytest.fixture
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cell_config, "_AGAIN_S", 0.01)
    monkeypatch.setattr(cell_config, "_COMPARE_S", 0.01)


@on_loop
async def test_streams_know_a_cell_that_is_back_once_the_next_change_is_answered() -> None:
    front = Front()
    front.away = {1}
    await front.change()
    assert (front.taken, front.looks) == ({1: 0, 2: 1}, [])
    front.away.clear()
    await front.change()
    assert front.looks == [{1: 2, 2: 2}]
    front.config.stop()


@on_loop
async def test_a_cell_that_was_behind_forgets_a_change_that_another_one_refused(
    short_waits: None,
) -> None:
    front = Front()
    front.away = {1}
    await front.change()
    # it comes back, and reads the file while the refused change is in it
    front.away.clear()
    front.refusing = {2}
    front.reads_slowly = reads = asyncio.Event()

    async def act() -> Response:
        front.file += 1
        await until(lambda: front.reads_slowly is None)
        return Response()

    with pytest.raises(Conflict, match="cell 2 refused"):
        await front.config.changed(act)
    assert front.file == 1
    reads.set()
    await until(lambda: not front.config._behind)
    assert front.taken == {1: 1, 2: 1}


@on_loop
async def test_a_change_reaches_all_cells_when_the_front_ended_before_they_had_it() -> None:
    front = Front()
    front.file = 1  # saved, and then it was killed
    config = front.new_config()
    config.start()
    await until(lambda: front.taken == {1: 1, 2: 1})
    config.stop()


@on_loop
async def test_a_cell_is_asked_again_after_an_error(short_waits: None) -> None:
    front = Front()
    front.file, front.fails = 1, 3
    front.config.start()
    await until(lambda: front.taken == {1: 1, 2: 1})
    await until(lambda: not front.config._behind)
    front.config.stop()


@on_loop
async def test_a_cell_that_differs_three_times_is_an_alarm_until_it_has_the_same(
    short_waits: None,
) -> None:
    front = Front()
    front.ignoring = {2}  # a file of its own machine has something else
    front.file = 1
    front.config.start()
    await until(lambda: front.alarms.get(2))
    assert front.alarms[2] == "a configuration file of its machine has other settings or objects"
    assert front.alarms[1] is None
    front.ignoring.clear()
    await until(lambda: front.alarms[2] is None)
    front.refusing = {1}
    front.file = 2
    await until(lambda: front.alarms[1])
    assert front.alarms[1] == "there is no such file"
    front.refusing.clear()
    await until(lambda: front.alarms[1] is None)
    front.config.stop()


@on_loop
async def test_cells_of_another_release_and_those_that_are_away_are_not_compared(
    short_waits: None,
) -> None:
    front = Front()
    front.ignoring = {1, 2}
    front.versions[1] = "1.9.0"
    front.file = 1
    front.config.start()
    await until(lambda: front.alarms.get(2))
    assert front.alarms[1] is None
    front.away = {2}
    front.ignoring.clear()
    before = front.alarms[2]
    front.versions[1] = "2.0.0"
    await until(lambda: front.taken[1] == 1)
    assert front.alarms == {1: None, 2: before}
    front.config.stop()


@on_loop
async def test_a_cell_that_keeps_differing_takes_over_all_again_now_and_then(
    short_waits: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each time it reads all files."""
    monkeypatch.setattr(cell_config, "_RARELY", 10)
    front = Front()
    front.ignoring = {2}
    front.file = 1
    front.config.start()
    await until(lambda: front.alarms.get(2))
    adopted = front.adopted[2]
    await until(lambda: front.config._differ[2] >= 25)
    assert front.adopted[2] <= adopted + 2
    front.config.stop()
