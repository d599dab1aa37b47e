"""One API for all cells: the front asks the others, and joins their answers as each operation declares.

A cell that does not answer in time is named in ``incomplete``; where an operation needs it, the answer is 503.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Callable,
    Coroutine,
    Generator,
    Mapping,
    Sequence,
)
from contextlib import aclosing
from functools import reduce
from typing import Any, Final
from urllib.parse import urlencode

from starlette.responses import Response, StreamingResponse

from broker.admin.backups import Backups
from broker.admin.cells import CellRow
from broker.admin.rights import Actor
from broker.admin.stream_records import StreamRecords
from broker.core import jsontext
from broker.core.cells import Place
from broker.core.errors import Conflict, Invalid, NotFound, Problem
from broker.core.objects import Spec
from ui.api.cell_calls import (
    Away,
    CellCalls,
    Reply,
    not_there,
    reply_of,
    store_path,
    there,
)
from ui.api.cell_config import Act, Adopts, Alarm, ConfigOfCells, SavedFile, no_alarm
from ui.api.cell_figures import FIGURES_HEADER, joined_by_name
from ui.api.cell_jobs import JobsOfCells
from ui.api.cell_joins import (
    SHOWS_PLACES,
    added,
    interleaved,
    is_place,
    labelled_metrics,
    labelled_series,
    merged_pages,
    sort_key,
    summed,
)
from ui.api.cell_requests import Asked, CellRequests, with_missing
from ui.api.cell_streams import CellStreams
from ui.api.cell_tails import TailsOfCells
from ui.api.effects import in_all_cells
from ui.api.json_bodies import Json
from ui.api.parameters import encode_cursor

_NOT_FOUND: Final = 404


class Faces:
    """The other cells, as the front asks them. ``file`` is what the front saves in, and ``reload`` takes over what is
    in it."""

    def __init__(
        self,
        place: Place,
        file: SavedFile,
        reload: Adopts,
        streams: StreamRecords | None = None,
        backups: Backups | None = None,
        alarm: Alarm = no_alarm,
        version: str = "",
    ) -> None:
        self.place = place
        self._calls = CellCalls(place)
        self._requests = CellRequests(place, self._calls)
        self._jobs = JobsOfCells(place, self._calls, self._requests)
        self._streams = None if streams is None else CellStreams(place, self._calls, streams)
        self._loop: asyncio.AbstractEventLoop | None = None
        if backups is not None:
            backups.read_others(place.others, self._read_store)
        self._config = ConfigOfCells(
            place, self._calls, file, reload, self._streams, alarm, version
        )

    def start(self) -> None:
        """Be ready to ask; connections are opened when they are needed."""
        self._loop = asyncio.get_running_loop()
        self._calls.start()
        self._config.start()
        if self._streams is not None:
            self._streams.start()

    async def stop(self) -> None:
        """Close all connections. May be called twice."""
        self._config.stop()
        if self._streams is not None:
            await self._streams.stop()
        await self._calls.stop()

    async def rows_of(
        self, own: Callable[[], Sequence[CellRow]], cells: Sequence[int]
    ) -> list[CellRow | None]:
        """The rows of cells; None for each that does not answer."""

        async def row_of(cell: int) -> CellRow | None:
            if cell == self.place.number:
                return own()[0]
            answer = await self._calls.ask(cell, "GET", "/api/v1/cells", actor=Actor("front"))
            if not (isinstance(answer, Reply) and answer.is_good):
                return None
            row: CellRow = answer.value["items"][0]
            return row

        return await asyncio.gather(*map(row_of, cells))

    async def metrics(self, own: str) -> str:
        """The metrics of all cells as Prometheus reads them, each with its cell; ``own`` are those of this one."""
        front = Actor("front")
        answers = await asyncio.gather(
            *(self._calls.ask(cell, "GET", "/metrics", actor=front) for cell in self.place.others)
        )
        texts = {self.place.number: own}
        for answer in answers:
            if isinstance(answer, Reply) and answer.is_good:
                texts[answer.cell] = answer.body.decode()
        return await labelled_metrics(texts, self.place.count)

    def watched(
        self, target: str, sums: Sequence[str], own: Callable[[], Any]
    ) -> Callable[[], Spec]:
        """A function that adds the latest answers of the other cells to ``own``, and asks them again."""
        others = self.latest(lambda: target)

        def look() -> Spec:
            total = dict(own())
            for _, answer in sorted(others().items()):
                total |= added(total, answer, sums)
            return total

        return look

    def latest(self, target_now: Callable[[], str]) -> Callable[[], Mapping[int, Any]]:
        """A function that gives the latest answers of the other cells that have one, and asks them again."""
        latest: dict[int, Any] = {}
        asking: set[asyncio.Task[None]] = set()

        async def ask(cell: int, target: str) -> None:
            answer = await self._calls.ask(
                cell, "GET", target, actor=Actor("front"), headers={FIGURES_HEADER: "1"}
            )
            if isinstance(answer, Reply) and answer.is_good:
                latest[cell] = answer.value
            else:
                latest.pop(cell, None)

        def look() -> Mapping[int, Any]:
            if not asking:
                target = target_now()
                for cell in self.place.others:
                    task = asyncio.create_task(ask(cell, target), name=f"{target} of cell {cell}")
                    asking.add(task)
                    task.add_done_callback(asking.discard)
            return latest

        return look

    def tailed(self, parameters: Mapping[str, Any]) -> TailsOfCells:
        """The messages of a tail with these parameters in the other cells."""
        sent = {name: value for name, value in parameters.items() if value is not None}
        target = f"/api/v1/topics/tail?{urlencode({**sent, 'seconds': 86_400})}"
        front = Actor("front")
        return TailsOfCells(
            self.place.others, lambda cell: self._calls.lines(cell, "GET", target, front)
        )

    def _read_store(self, cell: int, messages: bool, is_encrypted: bool) -> Generator[bytes]:
        """See ``broker.admin.backups.ReadStore``."""
        assert self._loop is not None
        target = store_path(messages=messages, is_encrypted=is_encrypted)
        pieces = self._calls.pieces(cell, "GET", target, Actor("front"))

        def wait(coroutine: Coroutine[Any, Any, Any]) -> Any:
            assert self._loop is not None
            return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

        try:
            while (piece := wait(anext(pieces, None))) is not None:
                yield piece
        finally:
            # without waiting: the loop itself drops this where the client has left
            asyncio.run_coroutine_threadsafe(pieces.aclose(), self._loop)

    # -- operations --

    async def answer(self, asked: Asked, act: Act) -> Response:
        """The answer of all cells to a request. ``act`` gives that of this cell, with other parameters if need be."""
        if asked.is_dry and asked.at in ("config", "each", "jobs", "sum"):
            return await self._dry(asked, act)
        match asked.at:
            case "client":
                return await self._of_client(asked, act)
            case "lines":
                return await self._lines(asked, act)
            case "list":
                return await self._merged(asked, act)
            case "sum":
                return await self._summed(asked, act)
            case "first":
                return await self._first(asked, act)
            case "each":
                return await self._each(asked, act)
            case "config":
                return await self._config.changed(act)
            case "jobs":
                return await self._jobs.answer(asked, act)
            case "shards":
                return await self._of_shards(asked, act)
            case "parts":
                return await self._of_parts(asked, act)
            case "home" | "running":
                return await self._of_objects(asked, act)
            case "together":
                await self._requests.require_all(asked)
                return await act()
            case _:
                return await act()

    async def _dry(self, asked: Asked, act: Act) -> Response:
        """Find out the effect of a request in all cells. Where it has none on clients, this cell's answer is all."""
        try:
            response = await act()
        except NotFound:
            return await self._first(asked, act)
        own = reply_of(self.place.number, response)
        has_effect = isinstance(own.value, dict) and "consequences" in own.value
        if not has_effect and asked.at not in ("sum", "jobs"):
            return response
        answers = await asyncio.gather(
            *(self._requests.to_cell(asked, cell) for cell in self.place.others)
        )
        replies = [own, *(answer for answer in answers if isinstance(answer, Reply))]
        away = [answer for answer in answers if isinstance(answer, Away)]
        if not has_effect:
            return _summed_up(asked, replies, away)
        effects = {reply.cell: reply.value for reply in replies if reply.is_good}
        return with_missing(in_all_cells(effects), away)

    async def _of_client(self, asked: Asked, act: Act) -> Response:
        sent = asked.sent or {}
        if isinstance(names := sent.get("clientids"), list):
            return await self._of_clients(asked, act, names)
        client_id = asked.request.path_params.get("clientid") or sent.get("clientid") or ""
        cell = self.place.cell_of(str(client_id))
        if cell == self.place.number:
            return await act()
        asked.note(str(client_id))
        return there(await self._requests.to_cell(asked, cell)).response()

    async def _of_parts(self, asked: Asked, act: Act) -> Response:
        """The body goes to all cells, this one first, which finds what is wrong with it. All must take their part: a
        client sends it again where one has not."""
        await self._requests.require_all(asked)
        own = reply_of(self.place.number, await act())
        total = own.value
        for cell in self.place.others:
            reply = there(await self._requests.to_cell(asked, cell))
            if not reply.is_good:
                return reply.response()
            total |= added(total, reply.value, asked.joining.sums)
        return Json(jsontext.encode(total))

    async def _of_shards(self, asked: Asked, act: Act) -> Response:
        """A request with a shard, but without an end, is for the cell of the shard."""
        assert self._streams is not None
        name = asked.request.path_params.get("name")
        shard = asked.values.get("shard")
        if name is not None and shard is not None and asked.values.get("to") is None:
            cell = self._streams.cell_of(name, shard)
            if cell != self.place.number:
                return there(await self._requests.to_cell(asked, cell)).response()
        await self._streams.look(None if name is None else [name])
        return await act()

    async def _of_clients(self, asked: Asked, act: Act, names: Sequence[Any]) -> Response:
        """Every cell gets the request for its own clients; their answers are added up."""
        by_cell: dict[int, list[str]] = {}
        for name in names:
            by_cell.setdefault(self.place.cell_of(str(name)), []).append(name)
        by_cell = by_cell or {self.place.number: []}
        if by_cell.keys() == {self.place.number}:
            return await act()
        asked.note(", ".join(map(str, names)))
        parameters = asked.parameters()
        answers: dict[int, Any] = {}
        for cell, own in sorted(by_cell.items()):
            members = {**(asked.sent or {}), "clientids": own}
            if cell == self.place.number:
                body = asked.values["body"].model_copy(update={"client_ids": own})
                reply = reply_of(cell, await act(body=body))
            else:
                reply = there(await self._requests.send(asked, cell, members, parameters))
            if not reply.is_good:
                return reply.response()
            answers[cell] = reply.value
        if all("consequences" in answer for answer in answers.values()):
            return Json(jsontext.encode(in_all_cells(answers)))
        return Json(jsontext.encode(reduce(summed, answers.values())))

    async def _summed(self, asked: Asked, act: Act) -> Response:
        try:
            replies, away = await self._requests.to_all(asked, act)
        except NotFound:
            return await self._first(asked, act)
        return _summed_up(asked, replies, away)

    async def _of_objects(self, asked: Asked, act: Act) -> Response:
        """One object or a page of them: each as its home has it, or with the figures of all cells."""
        response = await act()
        own = reply_of(self.place.number, response)
        if not own.is_good or not isinstance(own.value, dict):
            return response
        items = own.value.get("items", [own.value])
        elsewhere = {item["cell"] for item in items if "cell" in item} - {self.place.number}
        if asked.at == "running" and items:
            elsewhere = set(self.place.others)
        if not elsewhere:
            return response
        headers = {FIGURES_HEADER: "1"}
        answers = await asyncio.gather(
            *(
                self._requests.send(asked, cell, asked.sent, asked.parameters(), headers)
                for cell in sorted(elsewhere)
            )
        )
        away = [answer for answer in answers if isinstance(answer, Away)]
        good = [answer for answer in answers if isinstance(answer, Reply) and answer.is_good]
        items = joined_by_name(items, {answer.cell: answer.value for answer in good})
        value = {**own.value, "items": items} if "items" in own.value else items[0]
        answered = with_missing(value, away)
        if "etag" in response.headers:
            answered.headers["etag"] = response.headers["etag"]
        return answered

    async def _first(self, asked: Asked, act: Act) -> Response:
        try:
            return await act()
        except NotFound:
            answers = await asyncio.gather(
                *(self._requests.to_cell(asked, cell) for cell in self.place.others)
            )
            replies = [reply for reply in answers if isinstance(reply, Reply)]
            for reply in replies:
                if reply.status != _NOT_FOUND:
                    return reply.response()
            away = [answer for answer in answers if isinstance(answer, Away)]
            if away:
                raise not_there(away[0]) from None
            raise

    async def _each(self, asked: Asked, act: Act) -> Response:
        """Every cell does it, or has nothing of that name. All must be there before the first one begins. The answer is
        that of the first, with sums of some members."""
        await self._requests.require_all(asked)
        missing: NotFound | None = None
        done: Response | None = None
        try:
            done = await act()
        except NotFound as error:
            missing = error
        for cell in self.place.others:
            reply = there(await self._requests.to_cell(asked, cell))
            if reply.status == _NOT_FOUND:
                continue
            if not reply.is_good:
                detail = f"cell {cell} refused it: {reply.detail}"
                raise Conflict(f"{detail} Others may have done it. Try: the same again")
            if done is None:
                done = reply.response()
            elif sums := asked.joining.sums:
                value = reply_of(self.place.number, done).value
                done = Json(jsontext.encode({**value, **added(value, reply.value, sums)}))
        if done is None:
            assert missing is not None  # this cell has either done it, or nothing of that name
            raise missing
        return done

    async def _lines(self, asked: Asked, act: Act) -> Response:
        """Lines of all cells as they come, each whole; they end with the last cell. What a cell away would have sent
        is missing."""
        own = await act()
        assert isinstance(own, StreamingResponse)
        target = self._requests.target(asked, asked.parameters())
        actor = asked.request.state.identity
        sources = [
            own.body_iterator,
            *(self._calls.lines(cell, asked.method, target, actor) for cell in self.place.others),
        ]
        lines = interleaved(sources)
        most: int | None = asked.values.get("count")
        own.body_iterator = lines if most is None else _first_messages(lines, most)
        return own

    # -- lists --

    async def _merged(self, asked: Asked, act: Act) -> Response:
        SHOWS_PLACES.set(True)
        joining = asked.joining
        if not joining.is_paged:
            replies, missing = await self._requests.to_all(asked, act)
            page = self._whole(asked, [reply for reply in replies if reply.is_good])
            missing += [Away(reply.cell, reply.detail) for reply in replies if not reply.is_good]
            if joining.absent is not None:
                nothing = dict.fromkeys(page["items"][0])
                page["items"] += [
                    {**nothing, **joining.absent, "number": cell.cell} for cell in missing
                ]
                page["items"].sort(key=lambda row: row["number"])
                page["total"] = len(page["items"])
            return with_missing(page, missing)
        limit: int = asked.values["limit"]
        starts = self._starts(asked.values.get("cursor"))
        own = self.place.number
        going = [cell for cell, start in enumerate(starts) if start is not False]
        cursors = {
            cell: None if starts[cell] is None else encode_cursor(*starts[cell]) for cell in going
        }
        others = [
            asyncio.ensure_future(self._requests.to_cell(asked, cell, cursor=cursors[cell]))
            for cell in going
            if cell != own
        ]
        pages: dict[int, Spec] = {}
        try:
            if own in going:
                pages[own] = reply_of(own, await act(cursor=cursors[own])).value
        except BaseException:
            for other in others:
                other.cancel()
            raise
        away: list[Away] = []
        for answer in await asyncio.gather(*others):
            if isinstance(answer, Away):
                away.append(answer)
            elif not answer.is_good:
                if own not in going:
                    return answer.response()
                away.append(Away(answer.cell, answer.detail))
            else:
                pages[answer.cell] = answer.value
        merged = merged_pages(pages, starts, limit, joining, _ordered_by(asked))
        if joining.join is not None:
            merged = joining.join(merged, list(pages.values()), asked.values)
        return with_missing(merged, away)

    def _whole(self, asked: Asked, replies: Sequence[Reply]) -> Spec:
        """Lists that are not cut into pages, as one."""
        page: Spec = replies[0].value
        items = [
            item if asked.joining.absent else {**item, "cell": reply.cell}
            for reply in replies
            for item in reply.value["items"]
        ]
        by = _ordered_by(asked)
        if by:
            items.sort(key=lambda item: sort_key(item, by))
        most = asked.values.get("limit") or asked.values.get("count") or len(items)
        page["items"] = items[:most]
        if "total" in page:
            page["total"] = len(page["items"])
        return page

    def _starts(self, cursor: str | None) -> list[Any]:
        """For each cell the place after which the page begins, None for the beginning, and False at its end."""
        if cursor is None:
            return [None] * self.place.count
        try:
            starts = jsontext.decode(base64.urlsafe_b64decode(cursor.encode()))
        except (binascii.Error, ValueError, TypeError):
            starts = None
        if (
            not isinstance(starts, list)
            or len(starts) != self.place.count
            or all(start is False for start in starts)
            or not all(start is None or start is False or is_place(start) for start in starts)
        ):
            problem = Problem("expected `next` of an earlier answer", "/query/cursor")
            raise Invalid("the parameter 'cursor' cannot be used", [problem])
        return starts


async def _first_messages(chunks: AsyncGenerator[Any, None], most: int) -> AsyncIterator[bytes]:
    """The lines of a tail up to its last message."""
    left = most
    async with aclosing(chunks):
        async for chunk in chunks:
            for line in bytes(chunk).splitlines(keepends=True):
                left -= "matched" not in jsontext.decode(line)
                yield line
                if left == 0:
                    return


def _summed_up(asked: Asked, replies: Sequence[Reply], away: Sequence[Away]) -> Response:
    """The sum of the answers of cells."""
    sums = asked.joining.sums
    total = replies[0].value
    missing = [*away, *(Away(reply.cell, reply.detail) for reply in replies if not reply.is_good)]
    if "series" in sums:
        total = labelled_series(total, replies[0].cell)
    for reply in replies[1:]:
        if not reply.is_good:
            continue
        value = reply.value
        if "series" in sums:
            value = labelled_series(value, reply.cell)
        total |= added(total, value, sums or list(value))
    return with_missing(total, missing)


def _ordered_by(asked: Asked) -> str:
    by = asked.joining.merged_by
    return by if isinstance(by, str) else by[asked.values["by"]]
