"""One API for all cells: the front asks the others, and joins their answers as each operation declares.

Every other cell serves the same routes on a unix socket that only this user may open. A request there shows the
administrator's token, and in a header who asked the front: rights are checked again with it. A cell that does not
answer in time is named in ``incomplete``; where an operation needs it, the answer is 503.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
import os
import re
import socket
from collections.abc import (
    AsyncIterable,
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Mapping,
    Sequence,
)
from contextlib import AbstractContextManager
from contextvars import ContextVar
from dataclasses import dataclass, field
from math import inf
from typing import Any, Final, Protocol, get_args

import httpx
from starlette.requests import HTTPConnection, Request
from starlette.responses import Response, StreamingResponse

from broker.admin.rights import Actor, Role
from broker.core import jsontext
from broker.core.cells import Place
from broker.core.errors import Conflict, Invalid, NotFound, Problem, Unavailable
from broker.core.kinds import At
from broker.core.objects import Spec
from broker.observe.log import get_logger
from ui.api.json_bodies import Json
from ui.api.parameters import encode_cursor

# Seconds in which a cell has to answer, and in which it has to take a changed configuration over.
ANSWER_S: Final = 2.0
CONFIG_S: Final = 10.0
# Requests under way to one cell; more wait for their turn within the time.
_AT_ONCE: Final = 32
_BACKLOG: Final = 128
# The header with the actor, and the mark of a request that came through the socket of a cell, in its state.
ACTOR_HEADER: Final = "sluice-actor"
OF_CELL: Final = "of_cell"
# Headers of a request and of an answer that go along.
_SENT: Final = ("if-match", "prefer", "accept", "content-type")
_ANSWERED: Final = ("content-type", "etag", "location", "retry-after", "content-disposition")
_NOT_FOUND: Final = 404
# Members of pages that only the front reads: the place of each item for a cursor, its key in the order of the list
# where that is another, and which parts of it fall.
_OF_MERGING: Final = ("places", "keys", "falls")
_ADOPT: Final = "/api/v1/cells:adopt"
# Seconds between attempts to reach a cell that has missed a change of the configuration.
_AGAIN_S: Final = 1.0

_log = get_logger(__name__)

Act = Callable[..., Awaitable[Response]]

SHOWS_PLACES: ContextVar[bool] = ContextVar("shows_places", default=False)
"""True if pages of lists have the members by which the front merges them."""


@dataclass(frozen=True, slots=True)
class Joining:
    """Members by which answers are joined, as ``broker.core.resources.Verb`` describes them."""

    sums: Sequence[str] = ()
    merged_by: str | Mapping[str, str] = ""
    key: str = ""
    absent: Mapping[str, Any] | None = None
    is_paged: bool = False


@dataclass(frozen=True, slots=True)
class Asked:
    """A request at the front: its checked parameters, and its body where it has one."""

    request: Request
    method: str
    at: At
    values: Mapping[str, Any]
    sent: Mapping[str, Any] | None
    joining: Joining

    @property
    def is_dry(self) -> bool:
        """True if it only asks what would happen."""
        return bool(self.request.state.is_dry)

    def parameters(self, **others: Any) -> list[tuple[str, str]]:
        """The parameters of its query with other values, without those that are None."""
        kept = [pair for pair in self.request.query_params.multi_items() if pair[0] not in others]
        return [*kept, *((name, str(value)) for name, value in others.items() if value is not None)]


@dataclass(frozen=True, slots=True)
class Reply:
    """The answer of a cell."""

    cell: int
    status: int
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_good(self) -> bool:
        """True unless it is a problem."""
        return self.status < 400

    @property
    def value(self) -> Any:
        """What its body says; None where it is empty."""
        return jsontext.decode(self.body) if self.body else None

    @property
    def detail(self) -> str:
        """The sentence of a problem."""
        with contextlib.suppress(jsontext.JsonError):
            value = self.value
            if isinstance(value, dict):
                reasons = [str(error.get("message", "")) for error in value.get("errors", ())]
                return "; ".join([str(value.get("detail", "")), *filter(None, reasons)])
        return f"it answered with the status {self.status}"

    def response(self) -> Response:
        """The same answer to the client of the front."""
        kept = {name: text for name, text in self.headers.items() if name in _ANSWERED}
        return Response(self.body, self.status, kept)


@dataclass(frozen=True, slots=True)
class Away:
    """A cell that has not answered, and why."""

    cell: int
    why: str

    def shown(self) -> Spec:
        """The cell as answers name it."""
        return {"cell": self.cell, "why": self.why}


def is_of_cell(request: HTTPConnection) -> bool:
    """True if a request came through the socket that only cells use."""
    return getattr(request.state, OF_CELL, False) is True


def actor_of_header(text: str) -> Actor | None:
    """The actor that a cell names; None if the text is none."""
    try:
        shown = jsontext.decode(base64.urlsafe_b64decode(text.encode()))
        role = shown["role"]
        if role is not None and role not in get_args(Role):
            return None
        return Actor(
            shown["name"],
            role,
            None if shown["kinds"] is None else frozenset(shown["kinds"]),
            None if shown["topics"] is None else tuple(shown["topics"]),
            tuple(shown["streams"]),
            inf if shown["until_s"] is None else float(shown["until_s"]),
        )
    except (binascii.Error, ValueError, TypeError, KeyError):
        return None


def header_of_actor(actor: Actor) -> str:
    """The actor in the form of the header."""
    shown = {
        "name": actor.name,
        "role": actor.role,
        "kinds": None if actor.kinds is None else sorted(actor.kinds),
        "topics": None if actor.topics is None else list(actor.topics),
        "streams": list(actor.streams),
        "until_s": None if actor.until_s == inf else actor.until_s,
    }
    return base64.urlsafe_b64encode(jsontext.encode(shown)).decode()


def without_places(page: Mapping[str, Any]) -> Spec:
    """A page without the members that only the front reads."""
    return {name: value for name, value in page.items() if name not in _OF_MERGING}


def socket_path(directory: int, number: int) -> str:
    """The socket of a cell's API; short, however long the path of the directory is."""
    return f"/proc/self/fd/{directory}/api-{number}.sock"


def bind_socket(place: Place) -> socket.socket:
    """The socket on which a cell serves its API to the others; replaces what an earlier process left."""
    place.run.mkdir(mode=0o700, parents=True, exist_ok=True)
    directory = os.open(place.run, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        path = socket_path(directory, place.number)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        mask = os.umask(0o177)
        try:
            listener.bind(path)
        finally:
            os.umask(mask)
        listener.listen(_BACKLOG)
        listener.setblocking(False)
    except OSError:
        listener.close()
        raise
    finally:
        os.close(directory)
    return listener


class SavedFile(Protocol):
    """The file in which the front saves (``broker.config.sections.ApiFile``)."""

    def noting(self) -> AbstractContextManager[Any]: ...

    def put_back(self, replaced: Any) -> None: ...


class Adopts(Protocol):
    """What takes over the content of that file (``broker.app.reload``)."""

    async def adopt(self) -> None: ...


class Faces:
    """The other cells, as the front asks them. ``file`` is what the front saves in, and ``reload`` takes over what is
    in it."""

    def __init__(self, place: Place, token: str, file: SavedFile, reload: Adopts) -> None:
        self.place = place
        self._token = token
        self._file = file
        self._reload = reload
        self._behind: dict[int, asyncio.Task[None]] = {}
        self._directory: int | None = None
        self._clients: dict[int, httpx.AsyncClient] = {}
        self._changing = asyncio.Lock()

    def start(self) -> None:
        """Be ready to ask; connections are opened when they are needed."""
        self._directory = os.open(self.place.run, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        for number in self.place.others:
            transport = httpx.AsyncHTTPTransport(
                uds=socket_path(self._directory, number),
                limits=httpx.Limits(max_connections=_AT_ONCE, keepalive_expiry=30.0),
            )
            self._clients[number] = httpx.AsyncClient(transport=transport, trust_env=False)

    async def stop(self) -> None:
        """Close all connections. May be called twice."""
        for task in self._behind.values():
            task.cancel()
        for client in self._clients.values():
            await client.aclose()
        self._clients.clear()
        if self._directory is not None:
            os.close(self._directory)
            self._directory = None

    # -- one cell --

    async def ask(
        self,
        cell: int,
        method: str,
        target: str,
        *,
        actor: Actor,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        within_s: float = ANSWER_S,
    ) -> Reply | Away:
        """The answer of a cell. ``target`` is the path, encoded, with the query."""
        client = self._clients.get(cell)
        if client is None:
            return Away(cell, "this process is stopping")
        sent = {
            **(headers or {}),
            "Authorization": f"Bearer {self._token}",
            "Accept-Encoding": "identity",
            ACTOR_HEADER: header_of_actor(actor),
        }
        try:
            async with asyncio.timeout(within_s):
                response = await client.request(
                    method, self._url(target), content=body, headers=sent, timeout=None
                )
        except TimeoutError:
            return Away(cell, f"no answer in {within_s:g} s")
        except (httpx.HTTPError, OSError):
            return Away(cell, "it does not run")
        return Reply(cell, response.status_code, response.content, dict(response.headers))

    @staticmethod
    def _url(target: str) -> httpx.URL:
        return httpx.URL(scheme="http", host="localhost", raw_path=target.encode("ascii"))

    @staticmethod
    def _target(asked: Asked, parameters: Sequence[tuple[str, str]]) -> str:
        """The path of a request as it came, with these parameters."""
        path: bytes = asked.request.scope["raw_path"]
        query = str(httpx.QueryParams(list(parameters))) if parameters else ""
        return path.decode("ascii") + (f"?{query}" if query else "")

    async def _asked(self, asked: Asked, cell: int, **others: Any) -> Reply | Away:
        """The answer of a cell to the request as it is, but for other parameters."""
        return await self._sent(asked, cell, asked.sent, asked.parameters(**others))

    async def _sent(
        self,
        asked: Asked,
        cell: int,
        sent: Mapping[str, Any] | None,
        parameters: Sequence[tuple[str, str]],
    ) -> Reply | Away:
        request = asked.request
        headers = {name: request.headers[name] for name in _SENT if name in request.headers}
        headers["X-Request-Id"] = request.state.request_id
        return await self.ask(
            cell,
            asked.method,
            self._target(asked, parameters),
            actor=request.state.identity,
            body=None if sent is None else jsontext.encode(sent),
            headers=headers,
        )

    async def metrics(self, own: str) -> str:
        """The metrics of all cells as Prometheus reads them, each with its cell; ``own`` are those of this one."""
        front = Actor("front")
        answers = await asyncio.gather(
            *(self.ask(cell, "GET", "/metrics", actor=front) for cell in self.place.others)
        )
        texts = {self.place.number: own}
        for answer in answers:
            if isinstance(answer, Reply) and answer.is_good:
                texts[answer.cell] = answer.body.decode()
        return labelled_metrics(texts, self.place.count)

    # -- operations --

    async def answer(self, asked: Asked, act: Act) -> Response:
        """The answer of all cells to a request. ``act`` gives that of this cell, with other parameters if need be."""
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
                return await act() if asked.is_dry else await self._saved(act)
            case "single":
                raise several(self.place.count)
            case _:
                return await act()

    async def _saved(self, act: Act) -> Response:
        """A change of what is saved: in all cells, or in none. A cell that is away takes it over when it is back."""
        async with self._changing:
            with self._file.noting() as replaced:
                try:
                    response = await act()
                except BaseException:
                    if replaced:  # what was saved before it failed
                        for cell in self.place.others:
                            self._follow(cell)
                    raise
            if not replaced:
                return response
            there = [cell for cell in self.place.others if cell not in self._behind]
            answers = await asyncio.gather(*map(self._adopt, there))
            refusals = [
                answer for answer in answers if isinstance(answer, Reply) and not answer.is_good
            ]
            if not refusals:
                for answer in answers:
                    if isinstance(answer, Away):
                        self._follow(answer.cell)
                return response
            self._file.put_back(replaced)
            await self._reload.adopt()
            for answer in await asyncio.gather(*map(self._adopt, there)):
                if isinstance(answer, Away):
                    self._follow(answer.cell)
            raise Conflict(
                f"cell {refusals[0].cell} refused the change, so no cell has it: {refusals[0].detail}"
            )

    async def _adopt(self, cell: int) -> Reply | Away:
        return await self.ask(cell, "POST", _ADOPT, actor=Actor("front"), within_s=CONFIG_S)

    def _follow(self, cell: int) -> None:
        """Have a cell take over the configuration as soon as it answers."""
        if cell not in self._behind:
            task = asyncio.create_task(
                self._until_adopted(cell), name=f"configuration of cell {cell}"
            )
            self._behind[cell] = task
            task.add_done_callback(lambda _: self._behind.pop(cell, None))

    async def _until_adopted(self, cell: int) -> None:
        while True:
            answer = await self._adopt(cell)
            if isinstance(answer, Reply):
                if not answer.is_good:
                    _log.error("cells.configuration_differs", cell=cell, reason=answer.detail)
                return
            await asyncio.sleep(_AGAIN_S)

    async def _of_client(self, asked: Asked, act: Act) -> Response:
        sent = asked.sent or {}
        if isinstance(names := sent.get("clientids"), list):
            return await self._of_clients(asked, act, names)
        client_id = asked.request.path_params.get("clientid") or sent.get("clientid") or ""
        cell = self.place.cell_of(str(client_id))
        if cell == self.place.number:
            return await act()
        return _there(await self._asked(asked, cell)).response()

    async def _of_clients(self, asked: Asked, act: Act, names: Sequence[Any]) -> Response:
        """Every cell gets the request for its own clients; their answers are added up."""
        by_cell: dict[int, list[str]] = {}
        for name in names:
            by_cell.setdefault(self.place.cell_of(str(name)), []).append(name)
        by_cell = by_cell or {self.place.number: []}
        if by_cell.keys() == {self.place.number}:
            return await act()
        parameters = asked.parameters()
        total: Any = None
        for cell, own in sorted(by_cell.items()):
            members = {**(asked.sent or {}), "clientids": own}
            if cell == self.place.number:
                body = asked.values["body"].model_copy(update={"client_ids": own})
                reply = _reply(cell, await act(body=body))
            else:
                reply = _there(await self._sent(asked, cell, members, parameters))
            if not reply.is_good:
                return reply.response()
            total = summed(total, reply.value)
        return Json(jsontext.encode(total))

    async def _all(self, asked: Asked, act: Act) -> tuple[list[Reply], list[Away]]:
        """The answers of all cells, this one's first. What this one raises is raised."""
        others = [asyncio.ensure_future(self._asked(asked, cell)) for cell in self.place.others]
        try:
            replies = [_reply(self.place.number, await act())]
        except BaseException:
            for other in others:
                other.cancel()
            raise
        answered = await asyncio.gather(*others)
        replies += [reply for reply in answered if isinstance(reply, Reply)]
        return replies, [away for away in answered if isinstance(away, Away)]

    async def _summed(self, asked: Asked, act: Act) -> Response:
        replies, away = await self._all(asked, act)
        total = replies[0].value
        away += [Away(reply.cell, reply.detail) for reply in replies if not reply.is_good]
        if "series" in asked.joining.sums:
            total = _labelled(total, replies[0].cell)
        for reply in replies[1:]:
            if not reply.is_good:
                continue
            value = reply.value
            if "series" in asked.joining.sums:
                value = _labelled(value, reply.cell)
            chosen = asked.joining.sums or (value if isinstance(value, dict) else ())
            total |= {
                name: summed(total.get(name), value[name]) for name in chosen if name in value
            }
        return _with_missing(total, away)

    async def _first(self, asked: Asked, act: Act) -> Response:
        try:
            return await act()
        except NotFound:
            answers = await asyncio.gather(
                *(self._asked(asked, cell) for cell in self.place.others)
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
        """Every cell does it, or has nothing of that name. All must be there before the first one begins."""
        if asked.is_dry:
            return await self._first(asked, act)
        await self._require_all(asked)
        missing: NotFound | None = None
        done: Response | None = None
        try:
            done = await act()
        except NotFound as error:
            missing = error
        for cell in self.place.others:
            reply = _there(await self._asked(asked, cell))
            if reply.status == _NOT_FOUND:
                continue
            if not reply.is_good:
                detail = f"cell {cell} refused it: {reply.detail}"
                raise Conflict(f"{detail} Others may have done it. Try: the same again")
            done = done or reply.response()
        if done is None:
            assert missing is not None  # this cell has either done it, or nothing of that name
            raise missing
        return done

    async def _require_all(self, asked: Asked) -> None:
        actor = asked.request.state.identity
        answers = await asyncio.gather(
            *(self.ask(cell, "GET", "/livez", actor=actor) for cell in self.place.others)
        )
        for answer in answers:
            _there(answer)

    async def _lines(self, asked: Asked, act: Act) -> Response:
        """Lines of all cells as they come, each whole; they end with the last cell. What a cell away would have sent
        is missing."""
        own = await act()
        assert isinstance(own, StreamingResponse)
        sources = [own.body_iterator, *(self._lines_of(asked, cell) for cell in self.place.others)]
        own.body_iterator = _interleaved(sources)
        return own

    async def _lines_of(self, asked: Asked, cell: int) -> AsyncIterator[bytes]:
        client = self._clients.get(cell)
        if client is None:
            return
        request = asked.request
        headers = {
            "Authorization": f"Bearer {self._token}",
            "Accept-Encoding": "identity",
            ACTOR_HEADER: header_of_actor(request.state.identity),
        }
        with contextlib.suppress(httpx.HTTPError, OSError):
            url = self._url(self._target(asked, asked.parameters()))
            async with client.stream(asked.method, url, headers=headers, timeout=None) as response:
                if response.status_code < 400:
                    rest = b""
                    async for chunk in response.aiter_raw():
                        whole, end, rest = (rest + chunk).rpartition(b"\n")
                        if end:
                            yield whole + end

    # -- lists --

    async def _merged(self, asked: Asked, act: Act) -> Response:
        SHOWS_PLACES.set(True)
        joining = asked.joining
        if not joining.is_paged:
            replies, away = await self._all(asked, act)
            page = self._whole(asked, [reply for reply in replies if reply.is_good])
            away += [Away(reply.cell, reply.detail) for reply in replies if not reply.is_good]
            if joining.absent is not None:
                nothing = dict.fromkeys(page["items"][0])
                page["items"] += [
                    {**nothing, **joining.absent, "number": missing.cell, "cell": missing.cell}
                    for missing in away
                ]
                page["items"].sort(key=lambda row: row["cell"])
                page["total"] = len(page["items"])
            return _with_missing(page, away)
        limit: int = asked.values["limit"]
        starts = self._starts(asked.values.get("cursor"))
        own = self.place.number
        going = [cell for cell, start in enumerate(starts) if start is not False]
        cursors = {
            cell: None if starts[cell] is None else encode_cursor(*starts[cell]) for cell in going
        }
        others = [
            asyncio.ensure_future(self._asked(asked, cell, cursor=cursors[cell]))
            for cell in going
            if cell != own
        ]
        pages: dict[int, Spec] = {}
        try:
            if own in going:
                pages[own] = _reply(own, await act(cursor=cursors[own])).value
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
        return _with_missing(_merge(pages, starts, limit, asked), away)

    def _whole(self, asked: Asked, replies: Sequence[Reply]) -> Spec:
        """Lists that are not cut into pages, as one."""
        page: Spec = replies[0].value
        items = [{**item, "cell": reply.cell} for reply in replies for item in reply.value["items"]]
        by = _ordered_by(asked)
        if by:
            items.sort(key=lambda item: _sort_key(item, by))
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
            or not all(start is None or start is False or _is_place(start) for start in starts)
        ):
            problem = Problem("expected `next` of an earlier answer", "/query/cursor")
            raise Invalid("the parameter 'cursor' cannot be used", [problem])
        return starts


_SAMPLE: Final = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})? (\S+)")
_OTHER_CELL: Final = re.compile(r'(^|,)cell="')


def labelled_metrics(texts: Mapping[int, str], count: int) -> str:
    """Metrics of cells as one text: those of one name together, each with the label ``cell``. A label of that name that
    they have already, of another cell, becomes ``peer``."""
    heads: dict[str, dict[str, str]] = {}
    samples: dict[str, list[str]] = {}
    for cell, text in sorted(texts.items()):
        family = ""
        for line in text.splitlines():
            if line.startswith("# "):
                _, word, family, *_ = line.split(" ", 3)
                heads.setdefault(family, {}).setdefault(word, line)
            elif (sample := _SAMPLE.fullmatch(line)) is not None:
                name, labels, value = sample.groups()
                more = _OTHER_CELL.sub(r'\1peer="', labels or "")
                shown = f'cell="{cell}"' + (f",{more}" if more else "")
                samples.setdefault(family, []).append(f"{name}{{{shown}}} {value}")
    lines = ["# HELP sluice_cell_up 1 if the cell answers", "# TYPE sluice_cell_up gauge"]
    lines += [f'sluice_cell_up{{cell="{cell}"}} {int(cell in texts)}' for cell in range(count)]
    for family in sorted(samples):
        lines += [*heads.get(family, {}).values(), *samples[family]]
    return "\n".join(lines) + "\n"


def several(count: int) -> Conflict:
    """The refusal of what a broker of several cells cannot do yet."""
    return Conflict(
        f"a broker of {count} cells cannot do this yet. Try: sluice serve without --workers"
    )


def not_there(away: Away) -> Unavailable:
    """The answer where an operation needs a cell that does not answer."""
    return Unavailable(f"cell {away.cell} does not answer: {away.why}", retry_after_s=1)


def summed(first: Any, second: Any) -> Any:
    """Two answers as one: numbers added, lists one behind the other, members by their names."""
    if first is None or second is None:
        return second if first is None else first
    if isinstance(first, bool) or isinstance(second, bool):
        return first or second
    if isinstance(first, (int, float)) and isinstance(second, (int, float)):
        return first + second
    if isinstance(first, list) and isinstance(second, list):
        return [*first, *second]
    if isinstance(first, dict) and isinstance(second, dict):
        return {
            **first,
            **{name: summed(first.get(name), value) for name, value in second.items()},
        }
    return first


async def _interleaved(sources: Iterable[AsyncIterable[Any]]) -> AsyncIterator[Any]:
    """What any of the sources gives, as it comes."""
    queue: asyncio.Queue[Any] = asyncio.Queue(_AT_ONCE)
    ended = object()

    async def drain(source: AsyncIterable[Any]) -> None:
        try:
            async for chunk in source:
                await queue.put(chunk)
        finally:
            await queue.put(ended)

    tasks = [asyncio.create_task(drain(source), name="lines of cells") for source in sources]
    try:
        going = len(tasks)
        while going:
            chunk = await queue.get()
            if chunk is ended:
                going -= 1
            else:
                yield chunk
    finally:
        for task in tasks:
            task.cancel()
        while not queue.empty():
            queue.get_nowait()


def _labelled(answer: Spec, cell: int) -> Spec:
    """The series of an answer with the label ``cell``."""
    series = [
        {**one, "labels": {**one.get("labels", {}), "cell": str(cell)}} for one in answer["series"]
    ]
    return {**answer, "series": series}


def _reply(cell: int, response: Response) -> Reply:
    """The answer of this cell."""
    return Reply(cell, response.status_code, bytes(response.body), dict(response.headers))


def _there(answer: Reply | Away) -> Reply:
    """The answer of a cell; raises where there is none."""
    if isinstance(answer, Away):
        raise not_there(answer)
    return answer


def _with_missing(value: Any, away: Iterable[Away]) -> Response:
    missing = [cell.shown() for cell in sorted(away, key=lambda cell: cell.cell)]
    return Json(jsontext.encode({**value, "incomplete": missing} if missing else value))


def _is_place(start: Any) -> bool:
    return (
        isinstance(start, list)
        and 0 < len(start) <= 4
        and all(type(value) in (int, str) for value in start)
    )


class _Falling:
    """A value that comes before smaller ones."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __lt__(self, other: _Falling) -> bool:
        return bool(other.value < self.value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Falling) and self.value == other.value

    __hash__ = None  # type: ignore[assignment]  # only compared


def _ordered_by(asked: Asked) -> str:
    by = asked.joining.merged_by
    return by if isinstance(by, str) else by[asked.values["by"]]


def _sort_key(item: Mapping[str, Any], by: str) -> Any:
    value = item[by.lstrip("-")]
    return _Falling(value) if by.startswith("-") else value


def _merge(pages: Mapping[int, Spec], starts: Sequence[Any], limit: int, asked: Asked) -> Spec:
    """The first items of the pages of cells in their common order, and where the following page begins."""
    key = asked.joining.key
    by = _ordered_by(asked)
    rows: list[tuple[Any, int, int]] = []
    places: dict[int, list[Any]] = {}
    for cell, page in sorted(pages.items()):
        items = page["items"]
        if key:
            first = starts[cell][0] + 1 if starts[cell] else 0
            places[cell] = [[first + at, item[key]] for at, item in enumerate(items)]
        elif "places" in page:
            places[cell] = page["places"]
        for at, item in enumerate(items):
            order: Any = ()
            if by:
                order = (_sort_key(item, by),)
            elif "places" in page:
                falls = page.get("falls") or ()
                order = tuple(
                    _Falling(value) if part < len(falls) and falls[part] else value
                    for part, value in enumerate(page.get("keys", page["places"])[at])
                )
            rows.append((order, cell, at))
    is_ordered = bool(by) or all("places" in page for page in pages.values())
    rows.sort(key=lambda row: (row[0], row[1], row[2]) if is_ordered else (row[1], row[2]))
    if not key and not all(cell in places for cell in pages):
        first_cell = next((cell for _, cell, _ in rows), None)
        rows = [row for row in rows if row[1] == first_cell]  # one cell follows the other
    shown = rows[:limit]
    taken = dict.fromkeys(pages, 0)
    for _, cell, _ in shown:
        taken[cell] += 1
    following = list(starts)
    for cell, page in pages.items():
        following[cell] = _after(page, taken[cell], starts[cell], places.get(cell))
    is_over = all(following[cell] is False for cell in pages)
    totals = [page.get("total") for page in pages.values()]
    first_page = pages[min(pages)] if pages else {"items": []}
    extra = without_places(first_page)
    for cell in sorted(pages)[1:]:
        extra = {
            name: summed(value, pages[cell].get(name))
            if name not in ("items", "next", "total", "total_is_estimate")
            else value
            for name, value in extra.items()
        }
    return {
        **extra,
        "items": [{**pages[cell]["items"][at], "cell": cell} for _, cell, at in shown],
        "next": None if is_over else _encoded(following),
        "total": None if None in totals else sum(totals),
        "total_is_estimate": any(page.get("total_is_estimate") for page in pages.values()),
    }


def _encoded(places: Sequence[Any]) -> str:
    """The cursor with the place of each cell."""
    return base64.urlsafe_b64encode(jsontext.encode([*places])).decode()


def _after(page: Spec, taken: int, start: Any, places: Sequence[Any] | None) -> Any:
    """The place of a cell behind the items that are shown: False at its end, the old one where none is shown."""
    if taken == len(page["items"]):
        following = page["next"]
        if following is None:
            return False
        return jsontext.decode(base64.urlsafe_b64decode(following.encode()))
    if taken == 0:
        return start
    assert places is not None  # else a cell's whole page is shown
    return places[taken - 1]
