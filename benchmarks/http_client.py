"""CPU of a request: aiohttp, which the HTTP connector uses, beside httpx, one at a time and sixteen at once.

``python -m benchmarks.http_client``. The service answers in the same process and costs both the same.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Final

import aiohttp
import httpx
import uvloop

_REQUESTS: Final = 2000
_BODY: Final = (
    b'{"clientid": "meter-7", "temp": 21.5, "topic": "meters/attic", "timestamp": 1795291753986}'
)
_ANSWER: Final = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Type: application/json\r\n\r\n{}"


class _Service(asyncio.Protocol):
    """Answers whenever a request is complete."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport, self._data = transport, b""

    def data_received(self, data: bytes) -> None:
        self._data += data
        while (end := self._data.find(b"\r\n\r\n")) >= 0 and len(self._data) >= end + 4 + len(
            _BODY
        ):
            self._data = self._data[end + 4 + len(_BODY) :]
            self._transport.write(_ANSWER)  # type: ignore[attr-defined]  # a stream's


async def _cpu_us(ask: Callable[[], Awaitable[None]], at_once: int) -> float:
    async def worker() -> None:
        for _ in range(_REQUESTS // at_once):
            await ask()

    await ask()
    started = time.process_time()
    await asyncio.gather(*(worker() for _ in range(at_once)))
    return (time.process_time() - started) / (_REQUESTS // at_once * at_once) * 1e6


async def _measure() -> None:
    server = await asyncio.get_running_loop().create_server(_Service, "127.0.0.1", 0)
    url, kind = (
        f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/rows",
        {"Content-Type": "application/json"},
    )
    limits = httpx.Limits(max_connections=16)
    async with (
        aiohttp.ClientSession() as kept,
        httpx.AsyncClient(limits=limits, trust_env=False) as client,
    ):

        async def ours() -> None:
            async with kept.post(url, data=_BODY, headers=kind) as response:
                assert response.status == 200
                await response.read()

        async def other() -> None:
            assert (await client.post(url, content=_BODY, headers=kind)).status_code == 200

        for at_once in (1, 16):
            used, theirs = await _cpu_us(ours, at_once), await _cpu_us(other, at_once)
            print(
                f"{at_once:2} at once: aiohttp {used:.0f} µs, httpx {theirs:.0f} µs, {theirs / used:.1f} times"
            )
    server.close()


if __name__ == "__main__":
    uvloop.run(_measure())
