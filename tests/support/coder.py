"""A server that codes payloads for schemas of type ``external_http``, which can be made slow, wrong or mute."""

from __future__ import annotations

import base64
import json
import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit


class Coder:
    """Decoding reverses the bytes and puts ``d:`` in front, encoding reverses and puts ``e:`` there.

    By what a payload holds: ``bad`` is refused with 422, ``slow`` waits until ``release`` is called, ``break`` has its
    connection cut, ``garbage`` is answered with what is no base64, ``huge`` with far too much, ``away`` with a
    redirect.
    """

    def __init__(self, port: int = 0) -> None:
        self.requests: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.breaks_left = 0
        self._released = threading.Event()
        self._is_gone = False
        coder = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                coder._answer(self, json.loads(body), base64.b64decode)

            def do_GET(self) -> None:
                query = {
                    name: values[0] for name, values in parse_qs(urlsplit(self.path).query).items()
                }
                coder._answer(
                    self,
                    query,
                    lambda text: base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)),
                )

            def log_message(self, *arguments: Any) -> None:
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 128

            def handle_error(self, *arguments: Any) -> None:
                pass

        self._server = Server(("127.0.0.1", port), Handler)
        self.port = int(self._server.server_address[1])
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True
        )
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/code"

    def payloads(self, verb: str = "decode") -> list[bytes]:
        """What was asked for, in the order in which it came."""
        return [request["data"] for request in self.requests if request["type"] == verb]

    def release(self) -> None:
        """Answer what is slow."""
        self._released.set()

    def stop(self) -> None:
        """Go away, cutting off who waits."""
        self._is_gone = True
        self._released.set()
        self._server.shutdown()
        self._server.server_close()

    def _answer(self, handler: BaseHTTPRequestHandler, asked: dict[str, Any], decode: Any) -> None:
        data = decode(asked["payload"])
        self.requests.append({**asked, "data": data})
        self.headers.append({name.lower(): value for name, value in handler.headers.items()})
        if b"slow" in data:
            self._released.wait(60)
        if b"break" in data or self.breaks_left or self._is_gone:
            self.breaks_left = max(self.breaks_left - 1, 0)
            handler.connection.shutdown(socket.SHUT_RDWR)
            handler.close_connection = True
            return
        status, body, headers = self._made(asked["type"], data)
        handler.send_response(status)
        for name, value in {**headers, "content-length": str(len(body))}.items():
            handler.send_header(name, value)
        handler.end_headers()
        handler.wfile.write(body)

    def _made(self, verb: str, data: bytes) -> tuple[int, bytes, dict[str, str]]:
        if b"bad" in data:
            return 422, b"not a frame", {}
        if b"garbage" in data:
            return 200, b"?? no base64 ??", {}
        if b"huge" in data:
            return 200, b"A" * (5 * 1024 * 1024), {}
        if b"away" in data:
            return 302, b"", {"location": self.url}
        return 200, base64.b64encode(verb[:1].encode() + b":" + data[::-1]), {}
