"""The listener: any port, a port in use, an address that is not there, stopping."""

from __future__ import annotations

import asyncio
import logging
import socket
import sys
from collections.abc import AsyncIterator
from types import FrameType

import httpx
import pytest
from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.routing import Route

from broker.core.errors import ConfigError
from broker.core.message import Message
from broker.core.stage import Outcome
from tests.support.plain_http import NO_TLS
from tests.ui.api_node import TOKEN, Node
from ui.api.application import create_app
from ui.api.server import ApiServer


def test_it_takes_any_port_serves_and_stops() -> None:
    async def scenario() -> None:
        server = ApiServer(create_app(Node().context), "127.0.0.1", 0)
        host, port = await server.start()
        async with httpx.AsyncClient(
            headers={"Authorization": f"Bearer {TOKEN}"}, verify=NO_TLS
        ) as client:
            url = f"http://{host}:{port}/api/v1/status"
            assert (await client.get(url)).status_code == 200
            await server.stop()
            await server.stop()
            with pytest.raises(httpx.TransportError):
                await client.get(url)

    asyncio.run(scenario())


def test_it_starts_again_at_once_on_the_same_port() -> None:
    async def scenario() -> None:
        first = ApiServer(create_app(Node().context), "127.0.0.1", 0)
        host, port = await first.start()
        async with httpx.AsyncClient(verify=NO_TLS) as client:
            await client.get(f"http://{host}:{port}/livez")
        await first.stop()
        second = ApiServer(create_app(Node().context), host, port)
        assert await second.start() == (host, port)
        await second.stop()

    asyncio.run(scenario())


def test_a_stop_answers_requests_that_wait_and_logs_no_traceback(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scenario() -> None:
        node = Node()
        waiting = asyncio.Event()
        never = asyncio.Event()

        async def wait_for_ever(message: Message) -> Outcome:
            waiting.set()
            await never.wait()
            return Outcome(0)

        async def stream_for_ever(_: Request) -> StreamingResponse:
            async def chunks() -> AsyncIterator[bytes]:
                yield b"first"
                await never.wait()

            return StreamingResponse(chunks())

        node.pipeline.publish_and_wait = wait_for_ever  # type: ignore[method-assign]
        app = create_app(node.context)
        app.router.routes.insert(0, Route("/stream", stream_for_ever))
        server = ApiServer(app, "127.0.0.1", 0)
        host, port = await server.start()
        async with httpx.AsyncClient(
            base_url=f"http://{host}:{port}",
            headers={"Authorization": f"Bearer {TOKEN}"},
            verify=NO_TLS,
            timeout=30,
        ) as client:
            message = {"topic": "a", "payload": "x", "qos": 1}
            request = asyncio.create_task(client.post("/api/v1/messages:publish", json=message))
            await waiting.wait()
            async with client.stream("GET", "/stream") as streamed:
                chunks = streamed.aiter_raw()
                assert await anext(chunks) == b"first"
                await server.stop()
                with pytest.raises(httpx.RemoteProtocolError):  # it is cut off, not at its end
                    await anext(chunks)
            answer = await request
        assert (answer.status_code, answer.json()["code"]) == (503, "unavailable")
        assert answer.headers["Retry-After"]

    with caplog.at_level(logging.INFO):
        asyncio.run(scenario())
    assert [record.getMessage() for record in caplog.records if record.exc_info] == []
    # one line says how many requests did not end, and one that the stream was cut off
    lines = [record for record in caplog.records if record.name == "uvicorn.error"]
    assert len([line for line in lines if line.levelno >= logging.ERROR]) == 2


@pytest.mark.parametrize(
    ("host", "words"),
    [
        ("192.0.2.1", ["this machine has no such address"]),
        ("no-such-host.invalid", ["the host is not known"]),
    ],
)
def test_an_address_that_cannot_be_bound_is_one_sentence(host: str, words: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        asyncio.run(ApiServer(create_app(Node().context), host, 18083).start())
    [sentence] = caught.value.problems
    assert f"{host}:18083" in sentence
    assert all(word in sentence for word in words)


def test_a_port_in_use_is_one_sentence_that_says_what_to_do() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError) as caught:
            asyncio.run(ApiServer(create_app(Node().context), "127.0.0.1", port).start())
    assert str(caught.value) == (
        f"the management API cannot listen on 127.0.0.1:{port}: the port is in use; "
        "stop the program that has it, or choose another port (0 takes any)"
    )


def test_the_first_request_works_out_no_routes() -> None:
    """Which would take a fifth of a second of the loop that serves MQTT clients too."""
    app = create_app(Node().context)

    async def calls_of_a_request() -> int:
        calls = 0

        def count(_frame: FrameType, event: str, _argument: object) -> None:
            nonlocal calls
            calls += event == "call"

        async with httpx.AsyncClient(
            transport=httpx.ASGITransport(app), base_url="http://127.0.0.1"
        ) as client:
            sys.setprofile(count)
            try:
                assert (await client.get("/livez")).status_code == 200
            finally:
                sys.setprofile(None)
        return calls

    first, second = asyncio.run(calls_of_a_request()), asyncio.run(calls_of_a_request())
    assert first < 2 * second, (first, second)
