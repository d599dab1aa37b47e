"""A real Iceberg REST catalog for tests, Iceberg's own, and a proxy before it that does what networks do.

The jars are fetched once, into a cache; ``python -m tests.support.iceberg_catalog`` does so ahead of the tests.
"""

from __future__ import annotations

import json
import threading
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from http.client import HTTPConnection, HTTPResponse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self
from urllib.parse import parse_qs, urlsplit

from py4j.java_gateway import JavaGateway

from tests.support.jars import SHORT_LIVED, jars, java, pyspark_jars
from tests.support.processes import ServerProcess, free_port, is_open

VERSION = "1.10.0"
_JARS = f"""
<dependency org="org.apache.iceberg" name="iceberg-core" rev="{VERSION}" conf="default->runtime(*),master(*)">
  <artifact name="iceberg-core" type="jar"/><artifact name="iceberg-core" type="jar" m:classifier="tests"/>
</dependency>
<dependency org="org.apache.iceberg" name="iceberg-open-api" rev="{VERSION}" transitive="false">
  <artifact name="iceberg-open-api" type="jar" m:classifier="test-fixtures"/>
</dependency>
<dependency org="org.xerial" name="sqlite-jdbc" rev="3.50.3.0" conf="default->master(*)"/>
<dependency org="org.eclipse.jetty" name="jetty-server" rev="11.0.26" conf="default->runtime(*),master(*)"/>
<dependency org="org.eclipse.jetty" name="jetty-servlet" rev="11.0.26" conf="default->runtime(*),master(*)"/>
"""
_AWS_JARS = f"""
<dependency org="org.apache.iceberg" name="iceberg-aws-bundle" rev="{VERSION}" conf="default->master(*)"/>
<dependency org="org.apache.iceberg" name="iceberg-aws" rev="{VERSION}" conf="default->master(*)"/>
<dependency org="dev.failsafe" name="failsafe" rev="3.3.2" conf="default->master(*)"/>
"""
_SPARK_JARS = f"""
<dependency org="org.apache.iceberg" name="iceberg-spark-runtime-4.0_2.13" rev="{VERSION}" conf="default->master(*)"/>
"""
_PYSPARK_JARS = ("hadoop-client-api-*.jar", "hadoop-client-runtime-*.jar", "commons-logging-*.jar")


class RestCatalogServer:
    """The server, with its tables in an SQLite file; their files are on this machine, or in the S3 store at an address
    with these keys."""

    def __init__(
        self, directory: Path, s3: str = "", keys: Mapping[str, str] | None = None
    ) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        own = jars(f"iceberg-rest-{VERSION}", _JARS)
        path = [
            f"{own}/*",
            *(str(found) for name in _PYSPARK_JARS for found in pyspark_jars().glob(name)),
        ]
        settings = {
            "CATALOG_REST_PORT": str(self.port),
            "CATALOG_CATALOG__IMPL": "org.apache.iceberg.jdbc.JdbcCatalog",
            "CATALOG_URI": f"jdbc:sqlite:{directory}/rest.db",
            "CATALOG_WAREHOUSE": str(directory),
            "CATALOG_JDBC_SCHEMA__VERSION": "V1",
        }
        if s3:
            path.append(f"{jars(f'iceberg-aws-{VERSION}', _AWS_JARS)}/*")
            settings |= {
                "CATALOG_IO__IMPL": "org.apache.iceberg.aws.s3.S3FileIO",
                "CATALOG_S3_ENDPOINT": s3,
                "CATALOG_S3_PATH__STYLE__ACCESS": "true",
                "CATALOG_CLIENT_REGION": "us-east-1",
                **{
                    f"CATALOG_S3_{name.upper().replace('_', '__')}": value
                    for name, value in (keys or {}).items()
                },
            }
        command = [
            java(),
            "-Xmx256m",
            *SHORT_LIVED,
            "-cp",
            ":".join(path),
            "org.apache.iceberg.rest.RESTCatalogServer",
        ]
        self.process = ServerProcess(
            command, directory, lambda: is_open(self.port), environ=settings
        )

    def __enter__(self) -> Self:
        self.process.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()


class CatalogProxy:
    """Passes requests on to a catalog at ``target``; what is to happen to the next commits is in ``faults``.

    ``lose request``: the commit does not reach the catalog, ``lose answer``: it does, and the answer is lost,
    ``send twice``: it does twice, and the answer is the second one. With ``clients`` (names and secrets), requests need
    a token that the proxy gives by OAuth 2.
    """

    def __init__(self, target: str, clients: dict[str, str] | None = None, port: int = 0) -> None:
        self.faults: deque[str] = deque()
        self.requests: list[tuple[str, str, dict[str, str]]] = []
        """Method, path and headers."""
        proxy, address, granted = self, urlsplit(target).netloc, {"token"} if clients else set()

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                path = urlsplit(self.path).path
                proxy.requests.append((self.command, path, dict(self.headers)))
                if clients and path == "/v1/oauth/tokens":
                    self._grant(clients, body)
                    return
                if granted and self.headers.get("Authorization") not in {
                    f"Bearer {one}" for one in granted
                }:
                    error = {"message": "bad token", "type": "NotAuthorizedException", "code": 401}
                    self._answer(401, json.dumps({"error": error}).encode())
                    return
                is_commit = self.command == "POST" and path.count("/") == 5 and "/tables/" in path
                fault = proxy.faults.popleft() if is_commit and proxy.faults else ""
                if fault == "send twice":
                    self._pass_on(body)
                answer = None if fault == "lose request" else self._pass_on(body)
                if answer is None or fault == "lose answer":
                    self.close_connection = True
                    return
                self._answer(*answer)

            do_GET = do_HEAD = do_DELETE = do_POST

            def _grant(self, clients: dict[str, str], body: bytes) -> None:
                form = {name: values[0] for name, values in parse_qs(body.decode()).items()}
                if clients.get(form.get("client_id", "")) == form.get("client_secret"):
                    self._answer(
                        200, json.dumps({"access_token": "token", "token_type": "bearer"}).encode()
                    )
                else:
                    self._answer(401, json.dumps({"error": "invalid_client"}).encode())

            def _pass_on(self, body: bytes) -> tuple[int, bytes]:
                connection = HTTPConnection(address, timeout=30)
                try:
                    dropped = ("host", "accept-encoding")
                    headers = {
                        name: value
                        for name, value in self.headers.items()
                        if name.lower() not in dropped
                    }
                    connection.request(self.command, self.path, body, headers)
                    answer: HTTPResponse = connection.getresponse()
                    return answer.status, answer.read()
                finally:
                    connection.close()

            def _answer(self, status: int, body: bytes) -> None:
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                """Requests are in ``requests``."""

        self._server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Self:
        serve = partial(self._server.serve_forever, poll_interval=0.02)
        threading.Thread(target=serve, name="catalog proxy", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()


@contextmanager
def java_catalog(url: str) -> Iterator[Any]:
    """Iceberg's own Java library in a JVM, connected to the catalog at ``url``: its ``RESTCatalog``, and the JVM."""
    path = [f"{jars(f'iceberg-spark-{VERSION}', _SPARK_JARS)}/*"]
    others = (*_PYSPARK_JARS, "slf4j-api-*.jar", "zstd-jni-*.jar", "snappy-java-*.jar")
    path += [str(found) for name in others for found in pyspark_jars().glob(name)]
    [py4j] = pyspark_jars().glob("py4j-*.jar")
    gateway = JavaGateway.launch_gateway(
        jarpath=str(py4j),
        classpath=":".join(path),
        java_path=java(),
        javaopts=["-Xmx512m", *SHORT_LIVED],
        die_on_exit=True,
    )
    try:
        jvm = gateway.jvm
        settings = jvm.java.util.HashMap()
        settings.put("uri", url)
        settings.put("io-impl", "org.apache.iceberg.hadoop.HadoopFileIO")
        catalog = jvm.org.apache.iceberg.rest.RESTCatalog()
        catalog.setConf(jvm.org.apache.hadoop.conf.Configuration())
        catalog.initialize("java", settings)
        yield catalog, jvm
    finally:
        gateway.shutdown()


if __name__ == "__main__":
    for name, wanted in (("rest", _JARS), ("aws", _AWS_JARS), ("spark", _SPARK_JARS)):
        jars(f"iceberg-{name}-{VERSION}", wanted)
