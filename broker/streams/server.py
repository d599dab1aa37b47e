"""The range server: a process of its own that serves offset ranges of streams as Arrow over HTTP.

It reads the store as a RocksDB secondary, so that a cluster that reads a stream takes nothing from the broker's
process. Started by ``broker.streams.ranges_process`` with one line of JSON on standard input; answers with one line of
JSON on standard output when it listens; ends when its input does, or when its parent dies.
"""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final

import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import iterate_in_threadpool, run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from broker.core.errors import SluiceError
from broker.storage import frames
from broker.storage.rocksdb.follower import Follower, RangeMissing
from broker.storage.store import LogShard
from broker.streams import tickets

MEDIA_TYPE: Final = "application/vnd.apache.arrow.stream"
WAIT_S: Final = 5.0
"""How long a request waits for offsets that are not there yet."""
_CHUNK_BYTES: Final = 1024 * 1024
_PR_SET_PDEATHSIG: Final = 1


class Ranges:
    """Answers requests for ranges."""

    def __init__(self, follower: Follower, secret: bytes) -> None:
        self._follower, self._secret = follower, secret

    def application(self) -> Starlette:
        """The routes."""
        return Starlette(routes=[Route("/streams/{log:int}/{shard:int}", self._serve)])

    async def _serve(self, request: Request) -> Response:
        shard = LogShard(request.path_params["log"], request.path_params["shard"])
        if not self._may_read(request, shard.log):
            return _problem(
                HTTPStatus.UNAUTHORIZED, "the ticket is missing, expired or for another stream; ask for positions anew"
            )
        try:
            start, end = _offset(request, "from"), _offset(request, "to")
        except ValueError as error:
            return _problem(HTTPStatus.BAD_REQUEST, str(error))
        if end < start:
            return _problem(HTTPStatus.BAD_REQUEST, f"the range ends at {end}, before it begins at {start}")
        try:
            await run_in_threadpool(self._follower.wait_for, shard, start, end, WAIT_S)
            body = iterate_in_threadpool(self._chunks(shard, start, end))
            first = await anext(body)
        except RangeMissing as missing:
            return _missing(missing, start, end)
        except SluiceError as error:
            return _problem(HTTPStatus.SERVICE_UNAVAILABLE, str(error))
        return StreamingResponse(_chain(first, body), media_type=MEDIA_TYPE)

    def _may_read(self, request: Request, log: int) -> bool:
        scheme, _, ticket = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer":
            ticket = request.query_params.get("ticket", "")
        return tickets.is_good(self._secret, ticket.strip(), log, time.time())

    def _chunks(self, shard: LogShard, start: int, end: int) -> Iterator[bytes]:
        """The range as an Arrow IPC stream, in pieces of about a megabyte; one frame at most is held at a time."""
        waiting: list[bytes | memoryview] = [frames.SCHEMA_MESSAGE]
        size = len(frames.SCHEMA_MESSAGE)
        for message in self._follower.messages(shard, start, end):
            waiting.append(message)
            size += len(message)
            if size >= _CHUNK_BYTES:
                yield b"".join(waiting)
                waiting, size = [], 0
        waiting.append(frames.END_MESSAGE)
        yield b"".join(waiting)


def main() -> None:
    """Serve until standard input ends."""
    settings = json.loads(sys.stdin.readline())
    _die_with_parent(settings["parent"])
    listener = _listen(settings["host"], settings["port"])
    host, port = listener.getsockname()[:2]
    directory = Path(settings["directory"])
    follower = Follower(directory, directory / "ranges")
    ranges = Ranges(follower, bytes.fromhex(settings["secret"]))
    server = uvicorn.Server(
        uvicorn.Config(ranges.application(), log_config=None, access_log=False, lifespan="off", timeout_keep_alive=60)
    )
    print(json.dumps({"host": host, "port": port}), flush=True)
    threading.Thread(target=_end_with_input, name="parent watch", daemon=True).start()
    asyncio.run(server.serve(sockets=[listener]))


def _die_with_parent(parent: int) -> None:
    """Ask Linux for SIGKILL when the parent dies, which covers ``kill -9`` of it; elsewhere the end of input does."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)  # it died before the request took effect


def _end_with_input() -> None:
    while sys.stdin.readline():
        pass
    os._exit(0)  # nothing to save; requests in flight are asked for again


def _listen(host: str, port: int) -> socket.socket:
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    listener = socket.socket(family, kind, protocol)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(address)
    listener.listen(512)
    return listener


async def _chain(first: bytes, rest: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    yield first
    async for chunk in rest:
        yield chunk


def _offset(request: Request, name: str) -> int:
    text = request.query_params.get(name, "")
    if not (text.isascii() and text.isdigit() and len(text) <= 19):
        raise ValueError(f"the parameter {name!r} must be an offset, a whole number from 0 on, not {text!r}")
    return int(text)


def _missing(missing: RangeMissing, start: int, end: int) -> Response:
    held = missing.held
    why = "trimmed by retention" if start < held.first_offset else "not appended yet"
    return _problem(
        HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE,
        f"offsets [{start}, {end}) are not all there: the shard holds [{held.first_offset}, {held.next_offset}), "
        f"the others are {why}",
        first_offset=str(held.first_offset),
        next_offset=str(held.next_offset),
    )


def _problem(status: HTTPStatus, detail: str, **members: Any) -> Response:
    body = {"type": "about:blank", "title": status.phrase, "status": status.value, "detail": detail, **members}
    return JSONResponse(body, status.value, media_type="application/problem+json")


if __name__ == "__main__":
    main()
