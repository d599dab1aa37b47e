"""An S3 store for tests: moto, in an environment of its own; and a proxy before it that fails as stores do.

The environment is made once, in a cache; ``python -m tests.support.s3_server`` makes it ahead of the tests.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import sys
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self

import pyarrow.fs as fs

from tests.support.environments import environment
from tests.support.processes import ServerProcess, free_port, is_open

VERSION = "5.2.5"
_CONTROL = "/-/"
KEYS = {"access_key_id": "AKIATEST", "secret_access_key": "not-a-secret"}
_REFUSED = "<Error><Code>InvalidAccessKeyId</Code><Message>The key does not exist.</Message></Error>"


def moto() -> Path:
    """The program, installed when it is not there."""
    return environment(f"moto[server]=={VERSION}").with_name("moto_server")


class S3Server:
    """A store on loopback, or on another address of this machine; what it holds goes with it."""

    def __init__(self, directory: Path, host: str = "127.0.0.1") -> None:
        self.port, self._host = free_port(), host
        command = [str(moto()), "-H", host, "-p", str(self.port)]
        self._process = ServerProcess(command, directory, lambda: is_open(self.port, host))

    @property
    def endpoint(self) -> str:
        return f"http://{self._host}:{self.port}"

    @property
    def files(self) -> fs.S3FileSystem:
        """What tests look with."""
        return fs.S3FileSystem(
            access_key=KEYS["access_key_id"],
            secret_key=KEYS["secret_access_key"],
            region="us-east-1",
            endpoint_override=self.endpoint,
            allow_bucket_creation=True,
        )

    def make_bucket(self, name: str) -> None:
        self.files.create_dir(name)

    def __enter__(self) -> Self:
        self._process.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._process.stop()


@dataclass
class Fault:
    """Fails requests of a ``method`` whose path has these ``parts``, each ``every``th and so many ``times``: with an
    answer, or with none after the store has done it."""

    method: str = ""
    parts: list[str] = field(default_factory=list)
    every: int = 1
    times: int = 1_000_000
    status: int = 0
    body: str = ""
    is_lost: bool = False
    seen: int = 0
    met: int = 0

    def meets(self, method: str, path: str) -> bool:
        """Whether it is this request's turn."""
        if self.method not in ("", method) or not all(part in path for part in self.parts):
            return False
        self.seen += 1
        if self.seen % self.every or self.met >= self.times:
            return False
        self.met += 1
        return True


class S3Proxy:
    """A way to a store on a port of its own, in a process of its own: clients may hold the interpreter's lock."""

    def __init__(self, target: int, directory: Path) -> None:
        self.port = free_port()
        command = [sys.executable, "-m", "tests.support.s3_server", str(self.port), str(target)]
        root = {"PYTHONPATH": str(Path(__file__).parents[2])}
        self._process = ServerProcess(command, directory, lambda: is_open(self.port), environ=root)

    def __enter__(self) -> Self:
        self._process.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._process.stop()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def fail(self, **given: Any) -> None:
        """Fail requests from now on; see ``Fault``. The first that fits counts."""
        self._ask("faults", given)

    def refuse_keys(self) -> None:
        """Answer as a store that does not know the access key."""
        self.fail(status=403, body=_REFUSED)

    def drop(self, header: str) -> None:
        """Do not pass this header on."""
        self._ask("drops", header)

    def heal(self) -> None:
        """Have no faults from now on."""
        self._ask("heal", None)

    @property
    def met(self) -> int:
        """How many requests have failed."""
        found: int = self._ask("met", None)
        return found

    def _ask(self, what: str, given: Any) -> Any:
        near = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        with contextlib.closing(near):
            near.request("POST", f"{_CONTROL}{what}", json.dumps(given))
            return json.loads(near.getresponse().read())


@dataclass
class _Faults:
    """What the proxy's process knows."""

    target: int
    faults: list[Fault] = field(default_factory=list)
    drops: set[str] = field(default_factory=set)

    def control(self, what: str, given: Any) -> Any:
        if what == "faults":
            self.faults.append(Fault(**given))
        elif what == "drops":
            self.drops.add(given)
        elif what == "heal":
            self.faults.clear()
        return sum(fault.met for fault in self.faults)


def _handler(proxy: _Faults) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _pass_on(self) -> None:
            given = {name.lower(): value for name, value in self.headers.items()}
            body = self._read_body(given)
            if self.path.startswith(_CONTROL):
                answer = proxy.control(self.path.removeprefix(_CONTROL), json.loads(body))
                self._answer(200, {}, json.dumps(answer).encode())
                return
            fault = next((one for one in proxy.faults if one.meets(self.command, self.path)), None)
            if fault is not None and fault.status:
                self._answer(fault.status, {"content-type": "application/xml"}, fault.body.encode())
                return
            headers = {name: value for name, value in given.items() if name not in proxy.drops}
            far = http.client.HTTPConnection("127.0.0.1", proxy.target, timeout=60)
            with contextlib.closing(far):
                far.request(self.command, self.path, body, headers, encode_chunked=False)
                found = far.getresponse()
                content = found.read()
            if fault is not None and fault.is_lost:
                self.close_connection = True
                return
            length = {"content-length": found.headers["content-length"]} if self.command == "HEAD" else {}
            self._answer(found.status, {**dict(found.headers.items()), **length}, content)

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
            for name, value in {"content-length": str(len(content)), **kept}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(content)

        do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _pass_on

        def log_message(self, format: str, *args: Any) -> None:
            """Nothing."""

    return Handler


_HOP_BY_HOP = frozenset({"connection", "transfer-encoding", "keep-alive", "server", "date"})


if __name__ == "__main__":
    if len(sys.argv) == 1:
        print(moto(), file=sys.stderr)
    else:
        port, target = map(int, sys.argv[1:])
        ThreadingHTTPServer(("127.0.0.1", port), _handler(_Faults(target))).serve_forever()
