"""A search for the cluster that is cut short leaves no connection."""

from __future__ import annotations

import asyncio
import struct

import pytest
from aiokafka.client import AIOKafkaClient

import bridges.kafka.clients  # noqa: F401  # what is tested is what it changes in aiokafka

_VERSIONS = ((3, 0, 5), (18, 0, 0))
"""Metadata and ApiVersions, with their lowest and highest versions."""


def test_a_search_that_is_cancelled_closes_its_connection() -> None:
    asyncio.run(_search_cut_short())


async def _search_cut_short() -> None:
    is_asked, is_closed = asyncio.Event(), asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = await reader.readexactly(struct.unpack(">i", await reader.readexactly(4))[0])
        listed = struct.pack(">hi", 0, len(_VERSIONS)) + b"".join(
            struct.pack(">hhh", *one) for one in _VERSIONS
        )
        answer = request[4:8] + listed
        writer.write(struct.pack(">i", len(answer)) + answer)
        await reader.readexactly(struct.unpack(">i", await reader.readexactly(4))[0])
        is_asked.set()
        assert await reader.read() == b""
        is_closed.set()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    client = AIOKafkaClient(bootstrap_servers=f"127.0.0.1:{port}")
    search = asyncio.ensure_future(client.bootstrap())
    async with asyncio.timeout(20):
        await is_asked.wait()
        search.cancel()
        with pytest.raises(asyncio.CancelledError):
            await search
        await is_closed.wait()
    await client.close()
    server.close()
    await server.wait_closed()
