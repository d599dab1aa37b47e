"""``Idempotency-Key``: a POST that comes again with the same key is answered as before, and not done again.

Answers are kept for a day in the store, the newest of them, within bounds of count and bytes; those of requests that
failed are not, so that they may come again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from hashlib import sha256
from typing import Any, Final

from fastapi import Request
from msgspec import Struct, json
from starlette.responses import Response

from broker.core import jsontext
from broker.core.clock import Clock
from broker.core.objects import Spec
from broker.core.values import Values
from ui.api.problems import ApiProblem

HEADER: Final = "Idempotency-Key"
LIFE_S: Final = 24 * 3600
MOST_KEYS: Final = 1000
MOST_ANSWER_BYTES: Final = 32 * 1024
MOST_BYTES: Final = 8 * 1024 * 1024
_LONGEST_KEY: Final = 255
_PREFIX: Final = "api/idempotency/"
_KEPT_HEADERS: Final = ("location", "etag", "content-type")


class _Kept(Struct):
    """A request that was done, and its answer; ``key`` and ``request`` are digests."""

    number: int
    key: str
    request: str
    until_ns: int
    status: int
    headers: dict[str, str]
    body: str


class IdempotencyKeys:
    """The keys of requests that were done, and of those that run."""

    def __init__(self, values: Values, clock: Clock) -> None:
        self._values = values
        self._clock = clock
        answers = [
            json.decode(data, type=_Kept)
            for name in values.names(_PREFIX)
            if (data := values.get(name))
        ]
        self._kept = {
            answer.key: answer for answer in sorted(answers, key=lambda answer: answer.number)
        }
        self._next = max((answer.number for answer in answers), default=-1) + 1
        self._bytes = sum(len(answer.body) for answer in answers)
        self._running: dict[str, str] = {}

    async def once(
        self, request: Request, sent: Spec, act: Callable[[], Awaitable[Response]]
    ) -> Response:
        """The answer to a request with a key: what ``act`` gives, or what it gave to the same request before.

        Raises:
            ApiProblem: 422, the key came with another request; 409, the first request with it still runs.
        """
        sent_key = request.headers[HEADER]
        if not 0 < len(sent_key) <= _LONGEST_KEY:
            raise ApiProblem(
                422,
                "invalid",
                f"{HEADER}: expected 1 to {_LONGEST_KEY} characters, got {len(sent_key)}.",
            )
        principal = getattr(request.state, "principal", "administrator")
        key = _digest(principal, sent_key)
        wanted = _digest(
            request.method, str(request.url.path), request.url.query, jsontext.encode(sent).decode()
        )
        kept = self._kept.get(key)
        if kept is not None and kept.until_ns <= self._clock.now_ns():
            kept = None
        before = kept.request if kept else self._running.get(key, wanted)
        if before != wanted:
            raise ApiProblem(
                422, "key_reused", f"{HEADER}: expected the request that the key came with first."
            )
        if kept is not None:
            return Response(kept.body, kept.status, {**kept.headers, "Idempotent-Replayed": "true"})
        if key in self._running:
            raise ApiProblem(
                409, "still_running", f"{HEADER}: the first request with this key still runs."
            )
        self._running[key] = wanted
        try:
            answer = await act()
            if answer.status_code < 300 and len(answer.body) <= MOST_ANSWER_BYTES:
                await self._keep(key, wanted, answer)
        finally:
            del self._running[key]
        return answer

    async def _keep(self, key: str, wanted: str, answer: Response) -> None:
        headers = {name: answer.headers[name] for name in _KEPT_HEADERS if name in answer.headers}
        until_ns = self._clock.now_ns() + LIFE_S * 1_000_000_000
        body = bytes(answer.body).decode()
        self._drop(self._kept.get(key))
        self._kept[key] = entry = _Kept(
            self._next, key, wanted, until_ns, answer.status_code, headers, body
        )
        self._next, self._bytes = self._next + 1, self._bytes + len(body)
        while len(self._kept) > MOST_KEYS or self._bytes > MOST_BYTES:
            self._drop(next(iter(self._kept.values())))
        self._values.put(f"{_PREFIX}{entry.number}", json.encode(entry))
        committed = asyncio.get_running_loop().create_future()

        def done(error: BaseException | None) -> None:
            if not committed.done():
                # the write itself is done, even if the key is not stored
                committed.set_result(None)

        self._values.when_committed(done)
        await committed

    def _drop(self, kept: _Kept | None) -> None:
        if kept is not None:
            del self._kept[kept.key]
            self._bytes -= len(kept.body)
            self._values.put(f"{_PREFIX}{kept.number}", None)


def _digest(*parts: Any) -> str:
    return sha256("\0".join(parts).encode()).hexdigest()
