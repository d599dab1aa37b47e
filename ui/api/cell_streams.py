"""The streams of the other cells: the first one asks for their positions, and tells what tables have not read."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final

from broker.admin.rights import Actor
from broker.admin.stream_records import StreamRecords
from broker.core import jsontext
from broker.core.cells import Place
from broker.core.errors import Unavailable
from broker.core.objects import Spec
from broker.observe.log import get_logger
from ui.api.cell_calls import ANSWER_S, Away, CellCalls, Reply, there

PATH: Final = "/api/v1/cells:streams"
# Seconds between exchanges, which readers that ask do not wait for.
_STEP_S: Final = 1.0

_log = get_logger(__name__)


class CellStreams:
    """Exchanges what cells know of streams. ``streams`` are those of this cell, the first."""

    def __init__(self, place: Place, calls: CellCalls, streams: StreamRecords) -> None:
        self._place = place
        self._calls = calls
        self._streams = streams
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None
        self._heads: dict[int, int] = {}
        """The cell with the range server of each cell that this one's range server does not read."""
        self._others = streams.show_others(place.others, self._at, self._heads)
        self._find_heads()

    def start(self) -> None:
        """Begin to exchange."""
        self._loop = asyncio.get_running_loop()
        self._task = asyncio.create_task(self._exchange(), name="streams of other cells")

    async def stop(self) -> None:
        """End it. May be called twice."""
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
            self._task = None

    def cell_of(self, name: str, shard: int) -> int:
        """The cell that has a shard of a stream; this one where none has. Raises ``NotFound``."""
        cell = shard // self._streams.shards(name)
        return cell if cell < self._place.count else self._place.number

    def _find_heads(self) -> None:
        place = self._place
        if place.machines:
            self._heads.update((cell, place.head_of(cell)) for cell in place.others)
            for cell in place.near:
                if cell in self._heads and self._heads[cell] == place.number:
                    del self._heads[cell]

    async def look(self, names: Sequence[str] | None = None) -> None:
        """Ask all other cells for their positions now; those of all streams if no names are given."""
        self._find_heads()
        await asyncio.gather(*(self._ask(cell, names) for cell in self._place.others))

    async def _ask(self, cell: int, names: Sequence[str] | None) -> None:
        unread = self._streams.unread() if names is None else None
        body = {"names": names, "unread": unread}
        if self._heads.get(cell) == cell:
            body["secret"] = self._streams.ranges.secret_of(cell).hex()
        answer = await self._call(cell, body)
        if isinstance(answer, Reply) and answer.is_good:
            if self._heads.get(cell) == cell:
                self._others.urls[cell] = answer.value["ranges_url"]
            self._others.note(cell, answer.value["streams"], is_all=names is None)
        else:
            self._others.note_away(cell)

    async def _call(self, cell: int, body: Spec) -> Reply | Away:
        return await self._calls.ask(
            cell, "POST", PATH, actor=Actor("front"), body=jsontext.encode(body)
        )

    def _at(self, cell: int, name: str, at_us: int) -> Spec:
        """See ``StreamRecords.show_others``."""
        assert self._loop is not None
        asking = self._call(cell, {"names": [name], "at_us": at_us})
        answer = asyncio.run_coroutine_threadsafe(asking, self._loop).result(2 * ANSWER_S)
        reply = there(answer)
        shown: Spec | None = reply.value["streams"].get(name) if reply.is_good else None
        if shown is None:
            raise Unavailable(f"cell {cell} does not answer: {reply.detail}", retry_after_s=1)
        return shown

    async def _exchange(self) -> None:
        while True:
            try:
                await self.look()
            except Exception:  # noqa: BLE001 - the next attempt may succeed
                _log.exception("cells.streams_not_exchanged")
            await asyncio.sleep(_STEP_S)


def answered(streams: StreamRecords, asked: Any) -> Spec:
    """The answer of a cell. ``asked`` has the names of streams, or None for all, a time in microseconds since 1970, and
    by stream and shard the first offsets that tables have not read; on another machine than that of the first cell,
    also the secret of tickets for its range server. Blocks where a time is in a tier."""
    if asked.get("unread") is not None:
        streams.note_unread(asked["unread"])
    if "secret" in asked:
        streams.ranges.use_secret(bytes.fromhex(asked["secret"]))
    told = streams.told(asked.get("names"), asked.get("at_us"))
    return {"streams": told, "ranges_url": streams.ranges.url}
