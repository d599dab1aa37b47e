"""Copies bytes both ways between two connections."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Final

READ_BYTES: Final = 64 * 1024
"""Bytes read at once; twice as many may wait for each direction of a connection."""


async def carry(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    far_reader: asyncio.StreamReader,
    far_writer: asyncio.StreamWriter,
) -> None:
    """Copy both ways, each as fast as its receiver reads, until one side ends; what that sent before still arrives."""
    ways = {
        asyncio.create_task(_copy(reader, far_writer)),
        asyncio.create_task(_copy(far_reader, writer)),
    }
    try:
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for way in ways:
            way.cancel()
        await asyncio.gather(*ways, return_exceptions=True)


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(READ_BYTES):
            writer.write(data)
            await writer.drain()
        writer.close()
        await writer.wait_closed()
