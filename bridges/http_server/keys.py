"""Keys of requests that were taken, so that one that comes again is not reprocessed. Kept with what it led to."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from broker.core import jsontext
from broker.core.receivers import PostRefused
from broker.core.values import Values


@dataclass(frozen=True, slots=True)
class Taken:
    """A request that was taken: its number, what was in it, and what was answered."""

    number: int
    body: str
    answer: Mapping[str, Any]


class RememberedKeys:
    """The newest ``most`` keys of one source, on disk in a ring of places below ``prefix``."""

    def __init__(self, values: Values, prefix: str, most: int) -> None:
        self._values = values
        self._prefix = prefix
        self._most = most
        self._taken: dict[str, Taken] = {}
        self._by_number: dict[int, str] = {}
        self._next = 0
        self._under_way: dict[str, asyncio.Future[None]] = {}
        self._load()

    async def begin(self, key: str, body: bytes) -> Mapping[str, Any] | None:
        """What was answered to a request with this key; None where there was none, and then ``end`` must be called.

        Waits while one with the same key is being taken.

        Raises:
            PostRefused: 422, the key came with another body.
        """
        name = _digest(key.encode())
        while (before := self._under_way.get(name)) is not None:
            await asyncio.wait((before,))
        found = self._taken.get(name)
        if found is None:
            self._under_way[name] = asyncio.get_running_loop().create_future()
            return None
        if found.body != _digest(body):
            raise PostRefused(422, "key_reused", "the idempotency key was used for another body; use a new one")
        return found.answer

    def remember(self, key: str, body: bytes, answer: Mapping[str, Any]) -> None:
        """Keep a key, in the commit that is gathering."""
        if not self._most:
            return
        name = _digest(key.encode())
        taken = Taken(self._next, _digest(body), answer)
        self._next += 1
        self._put(name, taken)
        kept = {"key": name, "number": taken.number, "body": taken.body, "answer": dict(answer)}
        self._values.put(f"{self._prefix}{taken.number % self._most}", jsontext.encode(kept))

    def end(self, key: str, *, is_taken: bool) -> None:
        """The request is over; one that failed is forgotten, so that it may come again."""
        name = _digest(key.encode())
        waiting = self._under_way.pop(name, None)
        if not is_taken and (taken := self._taken.pop(name, None)) is not None:
            self._by_number.pop(taken.number, None)
            self._values.put(f"{self._prefix}{taken.number % self._most}", None)
        if waiting is not None and not waiting.done():
            waiting.set_result(None)

    def _put(self, name: str, taken: Taken) -> None:
        oldest = self._by_number.pop(taken.number - self._most, None)
        if oldest is not None:
            self._taken.pop(oldest, None)
        self._taken[name], self._by_number[taken.number] = taken, name

    def _load(self) -> None:
        """What is on disk; places that a smaller ring does not have are emptied."""
        found = []
        for place in self._values.names(self._prefix):
            data = self._values.get(place)
            if data is not None:
                kept = jsontext.decode(data)
                found.append((kept["number"], kept))
                if place != f"{self._prefix}{kept['number'] % max(self._most, 1)}":
                    self._values.put(place, None)
        for number, kept in sorted(found, key=lambda pair: pair[0])[-self._most :] if self._most else ():
            self._put(kept["key"], Taken(number, kept["body"], kept["answer"]))
            self._next = number + 1


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
