"""A small HTTP server that stands for the management API: it keeps objects, and answers as the API does."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

TOKEN = "token-of-the-administrator"


class ApiServer(ThreadingHTTPServer):
    """``objects`` are those there are, by path and name; ``answers`` are fixed answers by method and path."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.objects: dict[str, dict[str, Any]] = {}
        self.answers: dict[tuple[str, str], tuple[int, Any]] = {}
        self.requests: list[tuple[str, str, Any]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    server: ApiServer

    def do_GET(self) -> None:
        self._handle()

    def do_PUT(self) -> None:
        self._handle()

    def do_POST(self) -> None:
        self._handle()

    def do_DELETE(self) -> None:
        self._handle()

    def log_message(self, *_: Any) -> None:
        """Say nothing."""

    def _handle(self) -> None:
        path, _, query = self.path.removeprefix("/api/v1").partition("?")
        length = int(self.headers.get("Content-Length") or 0)
        body = json.loads(self.rfile.read(length)) if length else None
        self.server.requests.append((self.command, self.path.removeprefix("/api/v1"), body))
        if self.headers.get("Authorization") != f"Bearer {TOKEN}":
            self._problem(401, "unauthorized", "the token is wrong")
        elif (fixed := self.server.answers.get((self.command, path))) is not None:
            self._answer(*fixed)
        else:
            self._objects(path, query, body)

    def _objects(self, path: str, query: str, body: Any) -> None:
        if self.command == "GET" and path in ("/rules", "/streams", "/lake/tables"):
            kept = [
                spec for key, spec in self.server.objects.items() if key.rpartition("/")[0] == path
            ]
            start = int(dict(pair.split("=") for pair in query.split("&") if pair).get("cursor", 0))
            # pages of two, whatever was asked
            following = str(start + 2) if start + 2 < len(kept) else None
            self._answer(
                200, {"items": kept[start : start + 2], "next": following, "total": len(kept)}
            )
        elif self.command == "PUT":
            status = 200 if path in self.server.objects else 201
            self.server.objects[path] = body
            self._answer(status, {**body, "state": "running"})
        elif path not in self.server.objects:
            self._problem(404, "not_found", f"there is no rule {path.rpartition('/')[2]!r}")
        elif self.command == "DELETE":
            del self.server.objects[path]
            self._answer(204, None)
        else:
            self._answer(200, self.server.objects[path])

    def _problem(self, status: int, code: str, detail: str) -> None:
        self._answer(
            status, {"title": code, "status": status, "code": code, "detail": detail, "errors": []}
        )

    def _answer(self, status: int, body: Any) -> None:
        data = (
            b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
        )
        self.send_response(status)
        self.send_header(
            "Content-Type", "application/problem+json" if status >= 400 else "application/json"
        )
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


@contextmanager
def serving() -> Iterator[ApiServer]:
    """A server on a free port."""
    server = ApiServer()
    thread = threading.Thread(
        target=server.serve_forever, kwargs={"poll_interval": 0.02}, name="api server"
    )
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
