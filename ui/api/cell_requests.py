"""Requests at the front, as it sends them to the other cells."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import httpx
from starlette.requests import Request
from starlette.responses import Response

from broker.core import jsontext
from broker.core.cells import Place
from broker.core.kinds import At
from ui.api.cell_calls import Away, CellCalls, Reply, reply_of, there
from ui.api.cell_config import Act
from ui.api.cell_joins import Joining
from ui.api.json_bodies import Json, read_bytes

# Headers of a request that go along.
_SENT: Final = ("if-match", "prefer", "accept", "content-type")


@dataclass(frozen=True, slots=True)
class Asked:
    """A request at the front: its checked parameters, and its body where it has one. ``note`` tells the audit log the
    clients that it changes."""

    request: Request
    method: str
    at: At
    values: Mapping[str, Any]
    sent: Mapping[str, Any] | None
    joining: Joining
    note: Callable[[str], None]

    @property
    def is_dry(self) -> bool:
        """True if it only asks what would happen."""
        return bool(self.request.state.is_dry)

    def default(self, name: str) -> Any:
        """The value of a member of the body, where it was not sent; None without such a member."""
        return getattr(self.values.get("body"), name, None)

    def parameters(self, **others: Any) -> list[tuple[str, str]]:
        """The parameters of its query with other values, without those that are None."""
        kept = [pair for pair in self.request.query_params.multi_items() if pair[0] not in others]
        return [*kept, *((name, str(value)) for name, value in others.items() if value is not None)]


class CellRequests:
    """Sends requests of the front to other cells."""

    def __init__(self, place: Place, calls: CellCalls) -> None:
        self._place = place
        self._calls = calls

    @staticmethod
    def target(asked: Asked, parameters: Sequence[tuple[str, str]]) -> str:
        """The path of a request as it came, with these parameters."""
        path: bytes = asked.request.scope["raw_path"]
        query = str(httpx.QueryParams(list(parameters))) if parameters else ""
        return path.decode("ascii") + (f"?{query}" if query else "")

    async def to_cell(self, asked: Asked, cell: int, **others: Any) -> Reply | Away:
        """The answer of a cell to the request as it is, but for other parameters."""
        return await self.send(asked, cell, asked.sent, asked.parameters(**others))

    async def send(
        self,
        asked: Asked,
        cell: int,
        sent: Mapping[str, Any] | None,
        parameters: Sequence[tuple[str, str]],
        others: Mapping[str, str] | None = None,
    ) -> Reply | Away:
        """The answer of a cell to it with another body, and with other headers."""
        request = asked.request
        headers = {name: request.headers[name] for name in _SENT if name in request.headers}
        headers |= others or {}
        headers["X-Request-Id"] = request.state.request_id
        return await self._calls.ask(
            cell,
            asked.method,
            self.target(asked, parameters),
            actor=request.state.identity,
            body=await _body(asked, sent),
            headers=headers,
        )

    async def to_all(self, asked: Asked, act: Act) -> tuple[list[Reply], list[Away]]:
        """The answers of all cells, this one's first. What this one raises is raised."""
        others = [asyncio.ensure_future(self.to_cell(asked, cell)) for cell in self._place.others]
        try:
            replies = [reply_of(self._place.number, await act())]
        except BaseException:
            for other in others:
                other.cancel()
            raise
        answered = await asyncio.gather(*others)
        replies += [reply for reply in answered if isinstance(reply, Reply)]
        return replies, [away for away in answered if isinstance(away, Away)]

    async def require_all(self, asked: Asked) -> None:
        """Raise ``Unavailable`` where a cell does not answer."""
        actor = asked.request.state.identity
        answers = await asyncio.gather(
            *(self._calls.ask(cell, "GET", "/livez", actor=actor) for cell in self._place.others)
        )
        for answer in answers:
            there(answer)


async def _body(asked: Asked, sent: Mapping[str, Any] | None) -> bytes | None:
    """The body of a call: the object, or the bytes of a request that has them."""
    if sent is not None:
        return jsontext.encode(sent)
    return await read_bytes(asked.request) if asked.at == "parts" else None


def with_missing(value: Any, away: Iterable[Away]) -> Response:
    """An answer that says which cells are not in it."""
    missing = [cell.shown() for cell in sorted(away, key=lambda cell: cell.cell)]
    return Json(jsontext.encode({**value, "incomplete": missing} if missing else value))
