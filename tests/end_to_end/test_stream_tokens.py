"""Tokens that read streams: their records in Spark and by HTTP, and nothing else of the API."""

from __future__ import annotations

import re
import ssl
import subprocess
import sys
import time
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import httpx
import pytest

from broker.admin.tokens import Tokens
from broker.core.clock import SystemClock
from broker.core.errors import Invalid
from broker.core.objects import MemorySection
from broker.core.reader_token import reader_token
from broker.core.times import rfc3339
from pyspark_sluice.client import StreamClient
from pyspark_sluice.errors import SourceError, Unreachable
from tests.support.certificates import Authority
from tests.support.network import network
from tests.support.node import TOKEN, Node, eventually, running
from tests.support.plain_http import NO_TLS
from tests.support.processes import free_port
from tests.support.spark_cluster import spark_with_the_wheel_alone

ROOT = Path(__file__).parents[2]
NEVER_BUSY = "overload.enable = false\n"
READING = {
    "/api/v1/streams/{name}",
    "/api/v1/streams/{name}/positions",
    "/api/v1/streams/{name}/records",
}


def status(node: Node, token: str, method: str, path: str) -> int:
    """What the API answers to the bearer of a token."""
    headers = {"Authorization": f"Bearer {token}"}
    with httpx.Client(trust_env=False, verify=NO_TLS, timeout=60) as client:
        return client.request(method, f"{node.url}{path}", headers=headers).status_code


def command(node: Node, *words: str) -> str:
    """Standard output of a command that must succeed."""
    environ = {"SLUICE_URL": node.url, "SLUICE_API_TOKEN": "test-token-0123456789abcdef"}
    full = [sys.executable, "-m", "broker.cli.main", *words]
    return subprocess.run(
        full, env=environ, capture_output=True, text=True, check=True
    ).stdout.strip()


def with_streams(node: Node) -> None:
    for name in ("a", "b"):
        node.call("POST", "/streams", {"name": name, "topics": [f"{name}/#"]})
    for number in range(10):
        node.call("POST", "/messages:publish", {"topic": "a/1", "payload": str(number), "qos": 1})


def test_a_token_reads_its_stream_and_nothing_else(tmp_path: Path) -> None:
    with running(tmp_path / "node", config=NEVER_BUSY) as node:
        with_streams(node)
        token = command(node, "tokens", "add", "spark", "--stream", "a")
        assert token.startswith("sluice_")
        assert_reads_only_a(node, token, "'spark'")


def test_the_token_of_an_executor_reads_its_stream_and_nothing_else(tmp_path: Path) -> None:
    with running(tmp_path / "node", config=NEVER_BUSY) as node:
        with_streams(node)
        token = reader_token(TOKEN, "a")
        assert_reads_only_a(node, token, "of an executor")
        read = ("get", "/api/v1/streams/a/positions")
        *_, proof = reader_token(TOKEN, "b").partition(".")
        of_another = f"{token.partition('.')[0]}.{proof}"
        for wrong in (
            of_another,
            reader_token("another", "a"),
            token[:-1],
            "sluice_read_.",
            "sluice_read_a.a",
        ):
            assert status(node, wrong, *read) == 401
        node.kill()
        node.start()
        assert status(node, token, *read) == 200


SIGNING_IN = {("get", "/api/v1/session"), ("post", "/api/v1/session:oidc")}


def assert_reads_only_a(node: Node, token: str, whose: str) -> None:
    """All operations of the API answer 403, but those that read stream ``a`` and those of signing in."""
    reader = StreamClient(node.url, token, "a")
    rows = [
        row
        for batch in reader.read(reader.positions(), 0, 0, 10)
        for row in batch["payload"].to_pylist()
    ]
    assert rows == [str(number).encode() for number in range(10)]
    with pytest.raises(SourceError, match=f"the token {whose} only reads records of 'a'"):
        StreamClient(node.url, token, "b").positions()
    for path, methods in node.call("GET", "/openapi.json")["paths"].items():
        for method in methods:
            if (method, path) in SIGNING_IN:
                continue
            for stream in ("a", "b"):
                is_read = stream == "a" and method == "get" and path in READING
                request = (method, re.sub(r"\{[a-z_]+\}", stream, path))
                assert status(node, token, *request) == (200 if is_read else 403), request


def test_the_life_of_a_token(tmp_path: Path) -> None:
    with running(tmp_path / "node") as node:
        with_streams(node)
        read = ("get", "/api/v1/streams/b/positions")
        token = node.call("POST", "/tokens", {"name": "t", "streams": ["a"]})["token"]
        shown = node.call("GET", "/tokens/t")
        assert shown == {"name": "t", "streams": ["a"], "description": "", "is_expired": False} | {
            "created_at": shown["created_at"]
        }
        stored = "".join(file.read_text() for file in node.data_dir.glob("*.hocon"))
        assert "sha256" in stored
        assert token not in stored + node.log.read_text()
        assert status(node, token, *read) == 403
        changed = node.call("PUT", "/tokens/t", shown | {"streams": ["a", "b"]})
        assert changed["streams"] == ["a", "b"]
        assert "token" not in changed
        node.kill()
        node.start()
        assert status(node, token, *read) == 200
        node.call(
            "PUT", "/tokens/t", shown | {"streams": ["b"], "expires_at": "2026-01-31T12:00:00Z"}
        )
        assert status(node, token, *read) == 401
        assert [one["is_expired"] for one in node.call("GET", "/tokens")["items"]] == [True]
        node.call("PUT", "/tokens/t", shown | {"streams": ["b"], "expires_at": None})
        assert status(node, token, *read) == 200
        node.call("DELETE", "/tokens/t")
        assert status(node, token, *read) == 401
        assert status(node, token + "x", *read) == 401


READ = """
import importlib.util, sys
assert importlib.util.find_spec("broker") is None
from pyspark.sql import SparkSession
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
rows = spark.read.format("sluice").option("url", sys.argv[1]).option("token", sys.argv[2]).option("stream", "a").load()
print(*sorted(int(row.payload) for row in rows.collect()))
"""
SETTINGS = """
api.allow_clear_text = true
range_server {{ bind = "{host}:0", certfile = "{files.cert}", keyfile = "{files.key}" }}
"""


def test_a_ticket_reads_its_stream_over_tls_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = Authority(tmp_path)
    config = SETTINGS.format(
        host="127.0.0.1", files=authority.sign("ranges", {"CN": "ranges"}, ["127.0.0.1"])
    )
    with running(tmp_path / "node", config=config) as node:
        with_streams(node)
        token = node.call("POST", "/tokens", {"name": "spark", "streams": ["a"]})["token"]
        reader = StreamClient(node.url, token, "a", deadline_s=5)
        with pytest.raises(Unreachable, match=r"CERTIFICATE_VERIFY_FAILED.*Try: SSL_CERT_FILE"):
            reader.check()
        monkeypatch.setenv("SSL_CERT_FILE", str(authority.file))
        reader.check()
        mine = reader.positions()
        assert mine.ranges_url.startswith("https://")
        other = StreamClient(node.url, TOKEN, "b").positions()
        for ticket, log, expected in (
            (mine.ticket, mine.log, 200),
            (mine.ticket, other.log, 401),
            (token, mine.log, 401),
            (other.ticket, other.log, 200),
        ):
            url = f"{mine.ranges_url}/streams/{log}/0?from=0&to=0"
            headers = {"Authorization": f"Bearer {ticket}"}
            trusted = ssl.create_default_context(cafile=authority.file)
            assert (
                httpx.get(url, headers=headers, trust_env=False, verify=trusted).status_code
                == expected
            ), url


@pytest.mark.spark
def test_spark_on_another_host(tmp_path: Path) -> None:
    with network(1) as other:
        authority = Authority(tmp_path)
        files = authority.sign("ranges", {"CN": "ranges"}, [other.outside])
        config = SETTINGS.format(host=other.outside, files=files)
        reading = Node(tmp_path / "node", config=config)
        reading.mqtt, reading.api = ("127.0.0.1", free_port()), (other.outside, free_port())
        environ = {**spark_with_the_wheel_alone(tmp_path), "SSL_CERT_FILE": str(authority.file)}
        environ |= {"SPARK_LOCAL_IP": other.addresses[0]}
        try:
            with_streams(reading.start())
            token = reading.call("POST", "/tokens", {"name": "spark", "streams": ["a"]})["token"]
            read = other.command([environ["PYSPARK_PYTHON"], "-c", READ, reading.url, token])
            done = subprocess.run(
                read, cwd=tmp_path, env=environ, capture_output=True, text=True, check=False
            )
            assert done.stdout.strip() == "0 1 2 3 4 5 6 7 8 9", done.stderr[-3000:]
        finally:
            reading.stop()


@pytest.mark.parametrize(
    ("members", "where"),
    [
        ({"streams": []}, ""),
        ({"streams": ["a"], "expires_at": "tomorrow"}, "/expires_at"),
        ({"streams": ["a"], "expires_at": "2026-01-31T12:00:00"}, "/expires_at"),
        ({"streams": ["a"], "name": "no good"}, "/name"),
        ({"streams": ["a"], "scope": "all"}, "/scope"),
        ({"streams": ["a"], "sha256": "abc"}, "/sha256"),
    ],
)
def test_what_no_token_can_be(members: dict[str, Any], where: str) -> None:
    tokens = Tokens(MemorySection(), SystemClock())
    with pytest.raises(Invalid) as refused:
        tokens.create({"name": "t", **members})
    assert [problem.pointer for problem in refused.value.problems] == [where]
    assert not list(tokens.list())


def test_a_token_of_a_file_has_its_hash_there(tmp_path: Path) -> None:
    hashed = sha256(b"my own token").hexdigest()
    with running(
        tmp_path / "node", config=f'tokens = [{{ name = t, streams = [a], sha256 = "{hashed}" }}]'
    ) as node:
        with_streams(node)
        assert status(node, "my own token", "get", "/api/v1/streams/a/positions") == 200
        node.call(
            "POST",
            "/tokens",
            {"name": "t2", "streams": ["a"], "sha256": sha256(b"another").hexdigest()},
        )
        assert status(node, "another", "get", "/api/v1/streams/a/positions") == 200
        refused = node.call("DELETE", "/tokens/t", expect=409)
        assert "sluice.conf" in refused["detail"]


def test_the_ticket_of_a_token_ends_with_the_token_and_with_the_stream(tmp_path: Path) -> None:
    with running(tmp_path / "node", config=NEVER_BUSY) as node:
        with_streams(node)

        def where(token: str) -> dict[str, Any]:
            with httpx.Client(trust_env=False, timeout=60) as client:
                headers = {"Authorization": f"Bearer {token}"}
                found: dict[str, Any] = client.get(
                    f"{node.url}/api/v1/streams/a/positions", headers=headers
                ).json()
            return found

        def read(place: dict[str, Any]) -> int:
            with httpx.Client(trust_env=False, timeout=60) as client:
                headers = {"Authorization": f"Bearer {place['ticket']}"}
                url = f"{place['ranges_url']}/streams/{place['log']}/0?from=0&to=10"
                return client.get(url, headers=headers).status_code

        def is_over(place: dict[str, Any]) -> Callable[[], bool]:
            return lambda: read(place) == 401

        short = {
            "name": "short",
            "streams": ["a"],
            "expires_at": rfc3339(time.time_ns() + 900 * 10**9),
        }
        place = where(node.call("POST", "/tokens", short)["token"])
        assert place["expires_at"] <= short["expires_at"]
        assert read(place) == 200
        changes: list[tuple[str, dict[str, Any] | None]] = [
            ("PUT", {"name": "short", "streams": ["b"]}),
            ("PUT", {"name": "short", "streams": ["a"], "expires_at": "2026-01-31T12:00:00Z"}),
            ("DELETE", None),
        ]
        other = where(node.call("POST", "/tokens", {"name": "other", "streams": ["a"]})["token"])
        for method, body in changes:
            assert read(other) == 200
            node.call(method, "/tokens/short", body)
            eventually(is_over(other))
            other = where(TOKEN)
        assert read(place) == 401
        node.call("DELETE", "/streams/a")
        eventually(is_over(other))
