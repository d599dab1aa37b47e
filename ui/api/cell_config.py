"""The configuration over cells: the front saves it, and the others take over what changed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from typing import Any, Final, Protocol

from starlette.responses import Response

from broker.admin.rights import Actor
from broker.core import jsontext
from broker.core.cells import Place
from broker.core.errors import Conflict, Unavailable
from broker.core.objects import SavedObject
from broker.core.signals import Signal
from broker.observe.log import get_logger
from ui.api.cell_calls import Away, CellCalls, Reply
from ui.api.cell_streams import CellStreams
from ui.api.json_bodies import MAX_JSON_BYTES

# Seconds in which a cell has to take a changed configuration over, and between attempts to reach one that missed it.
_CONFIG_S: Final = 10.0
_AGAIN_S: Final = 1.0
# Seconds between two comparisons of active configurations, and those in a row that differ until that is an alarm.
_COMPARE_S: Final = 2.0
_DIFFERING: Final = 3
# Interval, in comparisons after those, at which a cell takes over again what is saved: that reads all of it.
_RARELY: Final = 30
_ADOPT: Final = "/api/v1/cells:adopt"
_DIGEST: Final = "/api/v1/cells:digest"

_log = get_logger(__name__)

Act = Callable[..., Awaitable[Response]]
# Raises the alarm that a cell has another configuration, with the reason, or ends it.
Alarm = Callable[[int, bool, str], None]


def no_alarm(_cell: int, _is_raised: bool, _reason: str) -> None:
    """Raise none."""


class SavedFile(Protocol):
    """The file in which the front saves (``broker.config.sections.ApiFile``)."""

    on_change: Signal[SavedObject]

    def noting(self) -> AbstractContextManager[Any]: ...

    def put_back(self, replaced: Any) -> None: ...

    def changes_of(self, replaced: Any) -> Mapping[str, Any] | None: ...


class Adopts(Protocol):
    """Takes over the content of that file (``broker.app.reload``)."""

    @property
    def files_digest(self) -> str: ...

    async def adopt(self) -> None: ...

    async def digest(self) -> str: ...

    async def committed(self) -> None: ...


class ConfigOfCells:
    """Changes of saved values, in all cells or in none. ``file`` is the front's, and ``reload`` takes over its content.
    A cell that is away takes it over when it is back, and every cell does when the front starts: it may have ended
    before all had a change."""

    def __init__(
        self,
        place: Place,
        calls: CellCalls,
        file: SavedFile,
        reload: Adopts,
        streams: CellStreams | None,
        alarm: Alarm = no_alarm,
        version: str = "",
    ) -> None:
        self._others = place.others
        self._calls = calls
        self._file = file
        self._reload = reload
        self._streams = streams
        self._alarm = alarm
        self._version = version
        self._comparing: asyncio.Task[None] | None = None
        self._refusals: dict[int, str] = {}
        """Reasons for which cells have not taken over all."""
        self._differ: dict[int, int] = {}
        """Comparisons in a row in which a cell differed."""
        self._missed: set[int] = set()
        """Cells that lack a change."""
        self._behind: dict[int, asyncio.Task[None]] = {}
        """Cells that have missed one, and the task that asks them until they have all."""
        self._changing = asyncio.Lock()

    def start(self) -> None:
        """Follow the file, and let others take over what it holds."""
        self._file.on_change.connect(self._saved_otherwise)
        self._follow(self._others)
        self._comparing = asyncio.create_task(self._compare(), name="configuration of cells")

    def stop(self) -> None:
        """Ask no more. May be called twice."""
        if self._comparing is not None:
            self._comparing.cancel()
        for task in self._behind.values():
            task.cancel()

    async def changed(self, act: Act) -> Response:
        """The answer of ``act``, which changes what is saved.

        Raises:
            Conflict: a cell refused the change, so that no cell has it.
        """
        async with self._changing:
            with self._file.noting() as replaced:
                try:
                    response = await act()
                except BaseException:
                    if replaced:  # what was saved before it failed
                        self._follow(self._others)
                    raise
            if not replaced:
                return response
            # else others could have a stream that the front, when it was killed, does not know
            with suppress(Unavailable):
                await self._reload.committed()
            behind = list(self._behind)
            there = [cell for cell in self._others if cell not in behind]
            changes = self._file.changes_of(replaced)
            answers = await asyncio.gather(*(self._adopt(cell, changes) for cell in there))
            refusals = [
                answer for answer in answers if isinstance(answer, Reply) and not answer.is_good
            ]
            if refusals:
                self._file.put_back(replaced)
                self._follow(behind)  # they may have read the file before it was put back
                await self._reload.adopt()
                self._follow_away(await asyncio.gather(*map(self._adopt, there)))
                text = f"cell {refusals[0].cell} refused the change, so no cell has it"
                raise Conflict(f"{text}: {refusals[0].detail}")
            self._follow_away(answers)
            answers += await asyncio.gather(*map(self._hurry, behind))
            # before a retention deletes what a new table is to get; a cell that is away deletes nothing
            if self._streams is not None and not any(
                isinstance(answer, Away) for answer in answers
            ):
                await self._streams.look()
            return response

    def _saved_otherwise(self, _saved: SavedObject) -> None:
        """Something was saved by no operation, as by the API of the schema registry: others take it over soon."""
        if not self._changing.locked():
            self._follow(self._others)

    async def _hurry(self, cell: int) -> Reply | Away:
        """Let a cell that was away take over everything now if it is back, and again later: what it is taking over
        may be older."""
        self._follow([cell])
        return await self._adopt(cell, within_s=_AGAIN_S)

    async def _adopt(
        self, cell: int, changes: Mapping[str, Any] | None = None, within_s: float = _CONFIG_S
    ) -> Reply | Away:
        """Let a cell take over these changes, or all that the file holds."""
        body = jsontext.encode({"changes": changes, "files": self._reload.files_digest})
        if len(body) > MAX_JSON_BYTES:
            body = jsontext.encode({"changes": None, "files": self._reload.files_digest})
        return await self._calls.ask(
            cell, "POST", _ADOPT, actor=Actor("front"), body=body, within_s=within_s
        )

    def _follow_away(self, answers: Sequence[Reply | Away]) -> None:
        self._follow(answer.cell for answer in answers if isinstance(answer, Away))

    def _follow(self, cells: Iterable[int]) -> None:
        """Let cells take over the configuration as soon as they answer."""
        for cell in cells:
            self._missed.add(cell)
            if cell not in self._behind:
                task = asyncio.create_task(self._until_adopted(cell), name=f"files of cell {cell}")
                self._behind[cell] = task

    async def _until_adopted(self, cell: int) -> None:
        while cell in self._missed:
            self._missed.discard(cell)
            try:
                answer = await self._adopt(cell)
            except Exception as error:  # noqa: BLE001  a bug: the cell is asked again all the same
                _log.exception("cells.configuration_not_sent", cell=cell)
                answer = Away(cell, str(error))
            if isinstance(answer, Away):
                self._missed.add(cell)
                await asyncio.sleep(_AGAIN_S)
            elif answer.is_good:
                self._refusals.pop(cell, None)
            elif self._refusals.get(cell) != answer.detail:
                self._refusals[cell] = answer.detail
                _log.error("cells.configuration_differs", cell=cell, reason=answer.detail)
        del self._behind[cell]

    async def _compare(self) -> None:
        """Compare the active configurations of the cells, now and then. One that differs takes over again what is
        saved."""
        while True:
            await asyncio.sleep(_COMPARE_S)
            try:
                own = await self._reload.digest()
                there = [cell for cell in self._others if cell not in self._behind]
                await asyncio.gather(*(self._compare_with(cell, own) for cell in there))
            except Exception:  # noqa: BLE001  a bug: they are compared again all the same
                _log.exception("cells.configuration_not_compared")

    async def _compare_with(self, cell: int, own: str) -> None:
        answer = await self._calls.ask(cell, "GET", _DIGEST, actor=Actor("front"))
        if isinstance(answer, Away) or not answer.is_good:
            return
        # one of another release has other settings
        is_other = answer.value["version"] == self._version and (
            cell in self._refusals or answer.value["digest"] != own
        )
        times = self._differ[cell] = self._differ.get(cell, 0) + 1 if is_other else 0
        if 0 < times < _DIFFERING or (times and times % _RARELY == 0):
            self._follow([cell])
        reason = (
            self._refusals.get(cell)
            or "a configuration file of its machine has other settings or objects"
        )
        self._alarm(cell, times >= _DIFFERING, reason)
