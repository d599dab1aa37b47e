"""Connections that tests open; what a test leaves open is cut off when it ends."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from pathlib import Path
from typing import Any

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]

_opened: ContextVar[list[asyncio.StreamWriter] | None] = ContextVar("opened", default=None)


hosts: dict[int, str] = {}
"""Hosts of ports that are not of 127.0.0.1, as in a network of its own."""
tls_ports: dict[int, Path] = {}
"""Ports of 127.0.0.1 that are reached with TLS, where a test that says nothing of it is run so: files with the
authority of their certificates."""


@cache
def _trusting(authority: Path) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=authority)


async def dial(port: int, **options: Any) -> Streams:
    """A connection to a port of 127.0.0.1, or of the host that has it."""
    if port in tls_ports:
        options.setdefault("ssl", _trusting(tls_ports[port]))
    reader, writer = await asyncio.open_connection(hosts.get(port, "127.0.0.1"), port, **options)
    opened = _opened.get()
    if opened is not None:
        opened.append(writer)
    return reader, writer


@contextmanager
def cut_off_at_the_end() -> Iterator[None]:
    """Cut off what is opened in this context, and in the tasks that start in it, unless it is closed before."""
    opened: list[asyncio.StreamWriter] = []
    before = _opened.set(opened)
    try:
        yield
    finally:
        _opened.reset(before)
        for writer in opened:
            writer.transport.abort()
