"""Calls from the front to other cells: the same routes, on a unix socket of each that only this user may open.

A request there shows in a header who asked the front: rights are checked with it.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
import os
import socket
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Any, Final, get_args

import httpx
from starlette.requests import HTTPConnection
from starlette.responses import Response

from broker.admin.rights import Actor, Role
from broker.core import jsontext
from broker.core.cells import Place
from broker.core.errors import Unavailable
from broker.core.objects import Spec
from ui.api.cell_sockets import CellSocket

# Seconds in which a cell has to answer.
ANSWER_S: Final = 2.0
# And the next piece of a long answer.
_PIECE_S: Final = 10.0
# Requests under way to one cell; more wait for their turn within the time.
_AT_ONCE: Final = 32
_BACKLOG: Final = 128
# The header with the actor, and the mark of a request that came through the socket of a cell, in its state.
ACTOR_HEADER: Final = "sluice-actor"
OF_CELL: Final = "of_cell"
# Path of the entries of a cell's store for a backup; only other cells may ask.
STORE_PATH: Final = "/api/v1/cells:store"
# Path of the files that the first cell saves; only cells of other machines ask.
FILES_PATH: Final = "/api/v1/cells:files"
# Member of the answer with the name of the machine where the first cell runs.
MACHINE: Final = "machine"
_ANSWERED: Final = ("content-type", "etag", "location", "retry-after", "content-disposition")


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
        """The JSON of its body; None where it is empty."""
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

    @property
    def code(self) -> str:
        """The code of a problem; empty if there is none."""
        with contextlib.suppress(jsontext.JsonError):
            if isinstance(value := self.value, dict):
                return str(value.get("code", ""))
        return ""

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


def is_of_cell(request: HTTPConnection) -> bool:
    """True if a request came through the socket that only cells use."""
    return getattr(request.state, OF_CELL, False) is True


def socket_name(number: int) -> str:
    """The socket of a cell's API, in the run directory."""
    return f"api-{number}.sock"


def bind_socket(place: Place, name: str = "") -> socket.socket:
    """The socket on which a cell serves its API to the others, or one of another name; replaces what an earlier process
    left."""
    place.run.mkdir(mode=0o700, parents=True, exist_ok=True)
    directory = os.open(place.run, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        path = f"/proc/self/fd/{directory}/{name or socket_name(place.number)}"
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


class CellCalls:
    """Asks the other cells over connections that are kept."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._directory: int | None = None
        self._clients: dict[int, httpx.AsyncClient] = {}

    def start(self) -> None:
        """Be ready to ask; connections are opened when they are needed."""
        self._directory = os.open(self._place.run, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        for number in self._place.others:
            # short, however long the path of the directory is
            path = f"/proc/self/fd/{self._directory}/{socket_name(number)}"
            transport = CellSocket(path, _AT_ONCE)
            self._clients[number] = httpx.AsyncClient(transport=transport, trust_env=False)

    async def stop(self) -> None:
        """Close all connections. May be called twice."""
        for client in self._clients.values():
            await client.aclose()
        self._clients.clear()
        if self._directory is not None:
            os.close(self._directory)
            self._directory = None

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
        sent = {**(headers or {}), **_identity(actor)}
        try:
            async with asyncio.timeout(within_s):
                response = await client.request(
                    method, _url(target), content=body, headers=sent, timeout=None
                )
        except TimeoutError:
            return Away(cell, f"no answer in {within_s:g} s")
        except (httpx.HTTPError, OSError):
            return Away(cell, "it does not run")
        return Reply(cell, response.status_code, response.content, dict(response.headers))

    async def pieces(
        self, cell: int, method: str, target: str, actor: Actor
    ) -> AsyncGenerator[bytes]:
        """An answer as it comes. Raises ``Unavailable`` where the cell does not give all of it."""
        client = self._clients.get(cell)
        if client is None:
            raise not_there(Away(cell, "this process is stopping"))
        sent = _identity(actor)
        wait = httpx.Timeout(ANSWER_S, read=_PIECE_S)
        try:
            async with client.stream(method, _url(target), headers=sent, timeout=wait) as response:
                if not response.is_success:
                    body = await response.aread()
                    raise not_there(Away(cell, Reply(cell, response.status_code, body).detail))
                async for chunk in response.aiter_raw():
                    yield chunk
        except httpx.TimeoutException as error:
            raise not_there(Away(cell, f"nothing came for {_PIECE_S:g} s")) from error
        except (httpx.HTTPError, OSError) as error:
            raise not_there(Away(cell, "it does not run")) from error

    async def lines(
        self, cell: int, method: str, target: str, actor: Actor
    ) -> AsyncIterator[bytes]:
        """The lines of an answer as they come, whole ones at a time; none where the cell does not answer."""
        client = self._clients.get(cell)
        if client is None:
            return
        sent = _identity(actor)
        with contextlib.suppress(httpx.HTTPError, OSError):
            async with client.stream(method, _url(target), headers=sent, timeout=None) as response:
                rest = b""
                async for chunk in response.aiter_raw():
                    if not response.is_success:
                        return
                    whole, end, rest = (rest + chunk).rpartition(b"\n")
                    if end:
                        yield whole + end


def _identity(actor: Actor) -> dict[str, str]:
    return {"Accept-Encoding": "identity", ACTOR_HEADER: header_of_actor(actor)}


def store_path(*, messages: bool, is_encrypted: bool) -> str:
    """``STORE_PATH`` with its query."""
    return f"{STORE_PATH}?messages={int(messages)}&encrypted={int(is_encrypted)}"


def _url(target: str) -> httpx.URL:
    return httpx.URL(scheme="http", host="localhost", raw_path=target.encode("ascii"))


def reply_of(cell: int, response: Response) -> Reply:
    """The answer of this cell."""
    return Reply(cell, response.status_code, bytes(response.body), dict(response.headers))


def there(answer: Reply | Away) -> Reply:
    """The answer of a cell; raises if it has not answered."""
    if isinstance(answer, Away):
        raise not_there(answer)
    return answer


def not_there(away: Away) -> Unavailable:
    """The answer where an operation needs a cell that does not answer."""
    return Unavailable(f"cell {away.cell} does not answer: {away.why}", retry_after_s=1)
