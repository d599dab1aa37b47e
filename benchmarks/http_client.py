"""CPU of a request: the connector's own HTTP client beside httpx, one at a time and sixteen at once.

``python -m benchmarks.http_client``. The service answers in the same process and costs both the same.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Final

import httpx
import uvloop

from bridges.http.connection import Request
from bridges.http.pool import Dialer, Origin, Pool
from broker.config.ssrf import AddressGuard, SsrfSettings

_REQUESTS: Final = 2000
_BODY: Final = b'{"clientid": "meter-7", "temp": 21.5, "topic": "meters/attic", "timestamp": 1795291753986}'
_ANSWER: Final = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Type: application/json\r\n\r\n{}"


class _Service(asyncio.Protocol):
    """Answers whenever a request is complete."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport, self._data = transport, b""

    def data_received(self, data: bytes) -> None:
        self._data += data
        while (end := self._data.find(b"\r\n\r\n")) >= 0 and len(self._data) >= end + 4 + len(_BODY):
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
    port = server.sockets[0].getsockname()[1]
    dialer = Dialer(AddressGuard(SsrfSettings()), "127.0.0.1", None, None, 5.0)
    pool = Pool(Origin(False, "127.0.0.1", port), dialer, 16, 60.0, time.monotonic)
    headers = [(b"Host", b"127.0.0.1"), (b"Content-Length", b"%d" % len(_BODY)), (b"Content-Type", b"application/json")]
    request = Request(b"POST", b"/rows", headers, _BODY)

    async def own() -> None:
        connection = await pool.take(10.0)
        try:
            assert (await connection.exchange(request, 1024)).status == 200
        finally:
            pool.give_back(connection)

    async with httpx.AsyncClient(limits=httpx.Limits(max_connections=16), trust_env=False) as client:
        url, kind = f"http://127.0.0.1:{port}/rows", {"Content-Type": "application/json"}

        async def other() -> None:
            assert (await client.post(url, content=_BODY, headers=kind)).status_code == 200

        for at_once in (1, 16):
            ours, theirs = await _cpu_us(own, at_once), await _cpu_us(other, at_once)
            print(f"{at_once:2} at once: own {ours:.0f} µs, httpx {theirs:.0f} µs, {theirs / ours:.1f} times")
    pool.close()
    server.close()


if __name__ == "__main__":
    uvloop.run(_measure())
