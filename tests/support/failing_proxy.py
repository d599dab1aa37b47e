"""A way to an HTTP server, such as a store or a catalog, on which requests fail as they do in networks."""

from __future__ import annotations

import contextlib
import http.client
import json
import sys
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Literal, Self

from tests.support.processes import ServerProcess, free_port, is_open

_CONTROL = "/-/"
_REFUSED = (
    "<Error><Code>InvalidAccessKeyId</Code><Message>The key does not exist.</Message></Error>"
)
_DENIED = "<Error><Code>AccessDenied</Code><Message>Access Denied.</Message></Error>"


@dataclass
class Fault:
    """Fails requests of a ``method`` whose path has these ``parts`` and this ``end``, each ``every``th and so many
    ``times``: with an answer, or with none after the server has done it.

    A request that is held waits for the end of the fault, before or after the server has done it; one that is dropped
    too never gets to the server.
    """

    method: str = ""
    parts: list[str] = field(default_factory=list)
    end: str = ""
    every: int = 1
    times: int = 1_000_000
    status: int = 0
    body: str = ""
    is_lost: bool = False
    is_dropped: bool = False
    holds: Literal["", "before", "after"] = ""
    seen: int = 0
    met: int = 0
    over: threading.Event = field(default_factory=threading.Event)

    def meets(self, method: str, path: str) -> bool:
        """Whether it is this request's turn."""
        fits = (
            method.startswith(self.method)
            and all(part in path for part in self.parts)
            and path.endswith(self.end)
        )
        if self.over.is_set() or not fits:
            return False
        self.seen += 1
        if self.seen % self.every or self.met >= self.times:
            return False
        self.met += 1
        return True


class FailingProxy:
    """A way to the server at a port, on a port of its own, in a process of its own: clients may hold the interpreter's
    lock."""

    module = "tests.support.failing_proxy"

    def __init__(self, target: int, directory: Path, host: str = "127.0.0.1") -> None:
        self.port, self._host = free_port(), host
        command = [sys.executable, "-m", self.module, host, str(self.port), str(target)]
        root = {"PYTHONPATH": str(Path(__file__).parents[2])}
        self._process = ServerProcess(
            command, directory, lambda: is_open(self.port, host), environ=root
        )

    def __enter__(self) -> Self:
        self._process.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._process.stop()

    def down(self) -> None:
        """Refuse connections; what was to fail is forgotten."""
        self._process.kill()

    def up(self) -> None:
        """Listen again after ``down``."""
        if not is_open(self.port, self._host):
            self._process.start()

    @property
    def endpoint(self) -> str:
        return f"http://{self._host}:{self.port}"

    def fail(self, **given: Any) -> int:
        """Fail requests from now on, see ``Fault``; the number of the fault. The first that fits counts."""
        number: int = self._ask("faults", given)
        return number

    def refuse_keys(self) -> None:
        """Answer as a store that does not know the access key."""
        self.fail(status=403, body=_REFUSED)

    def deny_writes(self) -> None:
        """Answer as a store whose policy allows reading alone."""
        self.fail(method="P", status=403, body=_DENIED)

    def drop(self, header: str) -> None:
        """Do not pass this header on."""
        self._ask("drops", header)

    def heal(self, number: int | None = None) -> None:
        """End a fault, or all."""
        self._ask("heal", number)

    @property
    def met(self) -> int:
        """How many requests have failed."""
        return sum(self._ask("met", None))

    def met_by(self, number: int) -> int:
        """How many requests a fault has failed."""
        found: int = self._ask("met", None)[number]
        return found

    def _ask(self, what: str, given: Any) -> Any:
        near = http.client.HTTPConnection(self._host, self.port, timeout=30)
        with contextlib.closing(near):
            near.request("POST", f"{_CONTROL}{what}", json.dumps(given))
            return json.loads(near.getresponse().read())


@dataclass
class Way:
    """What the proxy's process knows, and how it passes requests on."""

    host: str
    target: int
    faults: list[Fault] = field(default_factory=list)
    drops: set[str] = field(default_factory=set)

    def ask(
        self, method: str, path: str, body: bytes, headers: dict[str, str]
    ) -> tuple[int, dict[str, str], bytes]:
        """The server's answer to a request."""
        far = http.client.HTTPConnection(self.host, self.target, timeout=60)
        with contextlib.closing(far):
            far.request(method, path, body, headers, encode_chunked=False)
            found = far.getresponse()
            return found.status, dict(found.headers.items()), found.read()

    def control(self, what: str, given: Any) -> Any:
        if what == "faults":
            self.faults.append(Fault(**given))
            return len(self.faults) - 1
        if what == "drops":
            self.drops.add(given)
        elif what == "heal":
            for fault in self.faults if given is None else [self.faults[given]]:
                fault.over.set()
        return [fault.met for fault in self.faults]


def _handler(proxy: Way) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = (
            True  # head and content are two writes: the second would wait 40 ms
        )

        def _pass_on(self) -> None:
            given = {name.lower(): value for name, value in self.headers.items()}
            body = self._read_body(given)
            if self.path.startswith(_CONTROL):
                answer = proxy.control(self.path.removeprefix(_CONTROL), json.loads(body))
                self._answer(200, {}, json.dumps(answer).encode())
                return
            fault = next((one for one in proxy.faults if one.meets(self.command, self.path)), None)
            if fault is not None and fault.holds == "before":
                fault.over.wait()
            if fault is not None and fault.is_dropped:
                self.close_connection = True
                return
            if fault is not None and fault.status:
                self._answer(fault.status, {"content-type": "application/xml"}, fault.body.encode())
                return
            headers = {name: value for name, value in given.items() if name not in proxy.drops}
            status, found, content = proxy.ask(self.command, self.path, body, headers)
            if fault is not None and fault.holds == "after":
                fault.over.wait()
            if fault is not None and fault.is_lost:
                self.close_connection = True
                return
            self._answer(status, found, content)

        def _read_body(self, headers: dict[str, str]) -> bytes:
            if headers.get("transfer-encoding") != "chunked":
                return self.rfile.read(int(headers.get("content-length") or 0))
            whole = b""
            while size := int(self.rfile.readline().split(b";")[0], 16):
                whole += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
            del headers["transfer-encoding"]
            headers["content-length"] = str(len(whole))
            return whole

        def _answer(self, status: int, headers: dict[str, str], content: bytes) -> None:
            lower = {name.lower(): value for name, value in headers.items()}
            kept = {name: value for name, value in lower.items() if name not in _HOP_BY_HOP}
            self.send_response_only(status)
            length = kept.get("content-length") if self.command == "HEAD" else None
            for name, value in {**kept, "content-length": length or str(len(content))}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(content)

        do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _pass_on

        def log_message(self, format: str, *args: Any) -> None:
            """Nothing."""

    return Handler


_HOP_BY_HOP = frozenset({"connection", "transfer-encoding", "keep-alive", "server", "date"})


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = (
        128  # with 5, the system drops what many clients send to connections not accepted yet
    )


def serve(way: type[Way]) -> None:
    """Pass requests on until the process ends; the arguments are those that ``FailingProxy`` gives."""
    host, port, target = sys.argv[1], *map(int, sys.argv[2:])
    _Server((host, port), _handler(way(host, target))).serve_forever()


if __name__ == "__main__":
    serve(Way)
