"""Into a secured Kafka: TLS with and without a client's certificate, SASL with passwords and with tokens."""

from __future__ import annotations

import asyncio
import base64
import json
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import pytest

from tests.support.bridges import FAST_CONNECTOR, Bridges
from tests.support.certificates import Authority
from tests.support.kafka_server import Kafka
from tests.support.kafka_topic import Topic
from tests.support.mqtt_server import on_loop

SASL = ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"]
PASSWORD = "wonder:land"


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory, authority: Authority) -> Iterator[Kafka]:
    directory = tmp_path_factory.mktemp("kafka") / "cluster"
    with Kafka(directory, tls=authority, needs_client_certificate=True, sasl=SASL) as started:
        yield started


@asynccontextmanager
async def plant(hosts: str, **members: Any) -> AsyncIterator[Bridges]:
    """A connector ``plant``."""
    bridges = Bridges()
    bridges.begin()
    try:
        bridges.connectors.create(
            {
                "name": "plant",
                "type": "kafka",
                "bootstrap_hosts": hosts,
                "resource_opts": FAST_CONNECTOR,
                **members,
            }
        )
        yield bridges
    finally:
        await bridges.end()


async def assert_goes_through(kafka: Kafka, bridges: Bridges) -> None:
    """A row arrives."""
    topic = await Topic(kafka).make()
    parameters = {"topic": topic.name, "message": {"value": "${n}"}}
    bridges.actions.create(
        {"name": "out", "type": "kafka", "connector": "plant", "parameters": parameters}
    )
    bridges.send({"n": 1}, action="kafka:out")
    await bridges.until_sent(1)
    assert [record.value for record in await topic.records()] == [b"1"]


async def refused(bridges: Bridges) -> str:
    """Why the connector is not connected."""
    await bridges.until(lambda: bridges.connectors.get("plant")["status"] == "disconnected")
    reason: str = bridges.connectors.get("plant")["status_reason"]
    return reason


@on_loop
async def test_a_client_shows_its_certificate(kafka: Kafka, authority: Authority) -> None:
    mine = authority.sign("client", {"CN": "sluice"})
    ssl = {"enable": True, "cacertfile": str(authority.file), **mine.settings}
    async with plant(kafka.secured("SSL"), ssl=ssl) as bridges:
        await assert_goes_through(kafka, bridges)


@on_loop
async def test_a_client_without_a_certificate_is_told(kafka: Kafka, authority: Authority) -> None:
    async with plant(
        kafka.secured("SSL"), ssl={"enable": True, "cacertfile": str(authority.file)}
    ) as bridges:
        assert "certificate" in await refused(bridges)


@on_loop
async def test_a_cluster_whose_certificate_is_of_somebody_else_is_not_trusted(
    kafka: Kafka, tmp_path: Path
) -> None:
    other = Authority(tmp_path, "Others")
    async with plant(
        kafka.secured("SSL"), ssl={"enable": True, "cacertfile": str(other.file)}
    ) as bridges:
        assert "certificate is not accepted" in await refused(bridges)


@pytest.mark.parametrize("listener", ["SASL_PLAINTEXT", "SASL_SSL"])
@pytest.mark.parametrize("mechanism", ["plain", "scram_sha_256", "scram_sha_512"])
def test_passwords_are_shown_by_every_mechanism(
    kafka: Kafka, authority: Authority, mechanism: str, listener: str
) -> None:
    @on_loop
    async def check() -> None:
        ssl = {"enable": listener == "SASL_SSL", "cacertfile": str(authority.file)}
        login = {"mechanism": mechanism, "username": "alice", "password": PASSWORD}
        async with plant(kafka.secured(listener), ssl=ssl, authentication=login) as bridges:
            await assert_goes_through(kafka, bridges)
        wrong = {**login, "password": "not that"}
        async with plant(kafka.secured(listener), ssl=ssl, authentication=wrong) as bridges:
            reason = await refused(bridges)
            assert "uthentication failed" in reason
            assert "not that" not in reason

    check()


# Tokens


class TokenServer:
    """The token endpoint of OAuth 2.0: client credentials in, unsecured JSON Web Tokens out."""

    def __init__(self) -> None:
        self.asked: list[dict[str, str]] = []
        self._server: asyncio.Server | None = None

    @property
    def url(self) -> str:
        assert self._server is not None
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}/token"

    async def __aenter__(self) -> TokenServer:
        self._server = await asyncio.start_server(self._answer, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        length = int(head.partition("content-length:")[2].split("\r\n")[0])
        form = {
            name: values[0]
            for name, values in parse_qs((await reader.readexactly(length)).decode()).items()
        }
        self.asked.append(form)
        is_known = form.get("client_secret", "s3cret") == "s3cret"
        body = json.dumps(
            {"access_token": _token(), "expires_in": 3600}
            if is_known
            else {"error": "invalid_client"}
        )
        status = "200 OK" if is_known else "401 Unauthorized"
        writer.write(
            f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n{body}".encode()
        )
        await writer.drain()
        writer.close()


def _token() -> str:
    now = time.time()
    parts = ({"alg": "none"}, {"sub": "sluice", "iat": now, "exp": now + 3600})
    return (
        ".".join(
            base64.urlsafe_b64encode(json.dumps(one).encode()).decode().rstrip("=") for one in parts
        )
        + "."
    )


@on_loop
async def test_tokens_are_fetched_by_client_credentials(kafka: Kafka) -> None:
    async with TokenServer() as tokens:
        login = {
            "mechanism": "oauth",
            "endpoint_uri": tokens.url,
            "client_id": "sluice",
            "client_secret": "s3cret",
        }
        async with plant(kafka.secured("SASL_PLAINTEXT"), authentication=login) as bridges:
            await assert_goes_through(kafka, bridges)
        assert tokens.asked[0]["grant_type"] == "client_credentials"
        wrong = {**login, "client_secret": "not that"}
        async with plant(kafka.secured("SASL_PLAINTEXT"), authentication=wrong) as bridges:
            reason = await refused(bridges)
            assert "401" in reason or "invalid_client" in reason
            assert "not that" not in reason
