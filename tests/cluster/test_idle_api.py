"""The API of a machine that runs none of its own cells: it answers probes for the machine."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from errno import EMFILE
from pathlib import Path
from typing import Any

import pytest

from broker.admin.api_settings import ApiSettings
from broker.app.idle_api import IdleApi
from broker.cluster import keeper
from broker.cluster.settings import ClusterSettings
from tests.support.certificates import Authority
from tests.support.processes import free_port

CLUSTER = ClusterSettings.model_validate(
    {
        "machine": "d",
        "machines": {
            name: {"address": f"{name}:7946", "cells": int(name != "d")} for name in "abcd"
        },
        "tls": dict.fromkeys(("certfile", "keyfile", "cacertfile"), "none.pem"),
        "nats": {"servers": ["127.0.0.1:1"]},
    }
)


class Api(IdleApi):
    """Of a machine that has the users of the cluster. ``failures`` sockets without TLS cannot be made."""

    def __init__(self, directory: Path, failures: int = 0) -> None:
        files = Authority(directory).sign("web", {"CN": "localhost"}, ["localhost"])
        settings = ApiSettings(
            bind=f"127.0.0.1:{free_port()}", certfile=str(files.cert), keyfile=str(files.key)
        )
        super().__init__(directory, CLUSTER, settings)
        self._has_files = True
        self._failures = failures

    async def _relay(self, address: tuple[str, int], *others: Any) -> tuple[str, int]:
        if address[1] == 0 and self._failures:
            self._failures -= 1
            raise OSError(EMFILE, "Too many open files")
        return await super()._relay(address, *others)

    async def opened(self, runs_cells: Callable[[], bool]) -> None:
        self.open(runs_cells)
        assert self._opening is not None
        await self._opening


async def _ready(directory: Path) -> bytes:
    """The answer to a probe at the address for commands of this machine."""
    host, _, port = json.loads((directory / "run" / "node.json").read_text())["api"].partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(b"GET /readyz HTTP/1.1\r\nHost: d\r\n\r\n")
    head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    writer.close()
    return head.split(b" ")[1] + b" " + body


@pytest.mark.parametrize(
    ("runs_cells", "answer"), [(True, b"200 ok\n"), (False, b"503 no cell runs here\n")]
)
def test_a_machine_is_ready_while_cells_of_others_run_there(
    runs_cells: bool, answer: bytes, tmp_path: Path
) -> None:
    async def test() -> None:
        api = Api(tmp_path)
        await api.opened(lambda: runs_cells)
        assert await _ready(tmp_path) == answer
        await api.close()

    asyncio.run(test())


def test_an_address_that_could_not_be_opened_is_opened_later(tmp_path: Path) -> None:
    async def test() -> None:
        api = Api(tmp_path, failures=1)
        for _ in range(2):
            await api.opened(lambda: True)
        assert await _ready(tmp_path) == b"200 ok\n"
        await api.close()

    asyncio.run(test())


class _StandIn:
    def __init__(self) -> None:
        self.is_open = asyncio.Event()

    def open(self, runs_cells: Callable[[], bool]) -> None:
        self.is_open.set()

    async def close(self) -> None: ...


def test_a_keeper_that_has_no_descriptor_for_a_moment_opens_it_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(keeper, "_ROUND_S", 0.0)
    failures = [OSError(EMFILE, "Too many open files")]

    def is_needed() -> bool:
        if failures:
            raise failures.pop()
        return True

    async def test() -> None:
        stand_in = _StandIn()
        standing = asyncio.create_task(keeper._stand_in(stand_in, is_needed, lambda: True))
        opened = asyncio.create_task(stand_in.is_open.wait())
        await asyncio.wait({standing, opened}, return_when=asyncio.FIRST_COMPLETED)
        assert stand_in.is_open.is_set()
        standing.cancel()

    asyncio.run(test())
