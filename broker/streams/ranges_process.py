"""Keeps the range server running as a child: started with the broker, started again when it dies, gone with it."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from math import inf
from pathlib import Path
from typing import Any, Final

import msgspec

from broker.config.allowed import NotAllowed
from broker.core.errors import ConfigError, Unavailable
from broker.core.hosts import address_text
from broker.core.process import environment
from broker.core.signals import Signal
from broker.core.times import rfc3339
from broker.streams import tickets
from broker.streams.certificate import Certificate
from broker.streams.range_client import RangeAccess
from broker.streams.settings import RangeServerSettings
from broker.streams.tier.report import TierReport
from broker.streams.topic_index.report import IndexReport

_START_TIMEOUT_S: Final = 30.0
_STOP_TIMEOUT_S: Final = 5.0
_FIRST_PAUSE_S: Final = 0.2
_LONGEST_PAUSE_S: Final = 10.0
_STABLE_AFTER_S: Final = 30.0
# Maximum length of a report of the child on the topic index: 60 bytes a shard.
_MAX_LINE_BYTES: Final = 16 * 1024 * 1024
# Validity of a ticket; readers ask for positions, and with them a new one, whenever one is refused.
TICKET_LIFE_S: Final = 3600


class RangesProcess:
    """Owner of the range server. ``address`` is where it listens; it keeps its port across restarts."""

    def __init__(
        self,
        data_dir: Path,
        settings: RangeServerSettings | None = None,
        others: Mapping[int, Path] | None = None,
    ) -> None:
        """Take the data directory of this process's store, and those of the other cells whose records are served too,
        by their numbers. The secret stays between the two.

        Raises:
            ConfigError: certificate and key cannot be used.
        """
        self._data_dir, self._secret = data_dir, secrets.token_bytes(32)
        self._others = others or {}
        self._settings = settings or RangeServerSettings()
        self.address = self._settings.address
        if self._settings.certfile is not None and self._settings.keyfile is not None:
            try:
                Certificate(self._settings.certfile, self._settings.keyfile).context()
            except OSError as error:
                raise ConfigError(
                    [f"range_server: certfile and keyfile cannot be used: {error}"]
                ) from error
        self.restarts = 0
        self.index = IndexReport()
        """The state of the topic index, as the range server last reported it."""
        self.stores: Callable[[], Sequence[Mapping[str, Any]]] = tuple
        """The object stores that tiers may be in, with secrets as references; asked when the child is started."""
        self._sent_stores: Sequence[Mapping[str, Any]] | None = None
        self.when_tiered = Signal[TierReport | None]()
        """Reports of the range server on tiers; None when it ended."""
        self._process: Process | None = None
        self._keeper: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int | None:
        """The child's process number, None while there is none."""
        return (
            None
            if self._process is None or self._process.returncode is not None
            else self._process.pid
        )

    async def spawn(self) -> None:
        """Start the child, which imports what it needs and then waits for ``start``: the store need not be open."""
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "broker.streams.server",
            stdin=PIPE,
            stdout=PIPE,
            env=environment(),
            start_new_session=True,
            limit=_MAX_LINE_BYTES,
        )

    async def start(self) -> tuple[str, int]:
        """Start the child, unless it was spawned; its host and port once it listens. The store is open by then.

        Raises:
            Unavailable: it does not start; says why.
        """
        await self._launch()
        self._keeper = asyncio.create_task(self._keep(), name="range server")
        return self.address

    async def stop(self) -> None:
        """End the child."""
        if self._keeper is not None:
            self._keeper.cancel()
            with suppress(asyncio.CancelledError):
                await self._keeper
            self._keeper = None
        if self._process is not None:
            await _end(self._process)
            self._process = None

    @property
    def url(self) -> str:
        """Address at which readers reach it."""
        scheme = "http" if self._settings.certfile is None else "https"
        url = self._settings.advertised_url or f"{scheme}://{address_text(*self.address)}"
        return f"{url[:-1]}{self.address[1]}" if url.endswith(":0") else url

    def access(self, log: int, until_s: float = inf, machine: int | None = None) -> dict[str, str]:
        """Address and credentials for ranges of a log: ``ranges_url`` and ``ticket``, which is good until
        ``expires_at``, at the latest until a Unix time. With the first cell of another ``machine`` the ticket is one of
        that."""
        expires_s = int(min(time.time() + TICKET_LIFE_S, until_s))
        secret = self._secret if machine is None else self.secret_of(machine)
        expires_at = rfc3339(expires_s * 1_000_000_000)
        return {
            "ranges_url": self.url,
            "ticket": tickets.issue(secret, log, expires_s),
            "expires_at": expires_at,
        }

    def secret_of(self, machine: int) -> bytes:
        """The secret of the range server of another machine, by its first cell."""
        return tickets.secret_of(self._secret, machine)

    def use_secret(self, secret: bytes) -> None:
        """Take the secret that the first machine has for the range server of this one."""
        if secret != self._secret:
            self._secret = secret
            self._tell({"secret": secret.hex()})

    def revoke_tickets(self) -> None:
        """End all tickets: a right to read was taken away. Readers that still have one ask for a new ticket."""
        self.use_secret(secrets.token_bytes(32))

    def send_stores(self) -> None:
        """Give the child the object stores again: a secret that they refer to may have changed."""
        with suppress(NotAllowed):  # of a file; the child keeps what it has
            stores = list(self.stores())
            if self._sent_stores not in (None, stores):  # it was started
                self._tell({"stores": stores})
                self._sent_stores = stores

    def _tell(self, order: Mapping[str, Any]) -> None:
        if self.pid is not None and self._process is not None and self._process.stdin is not None:
            self._process.stdin.write(json.dumps(order).encode() + b"\n")

    def own_access(self, log: int) -> RangeAccess:
        """Address and credentials for this process to read ranges of a log."""
        ticket = tickets.issue(self._secret, log, int(time.time()) + TICKET_LIFE_S)
        return RangeAccess(*self.address, ticket, self._settings.certfile)

    async def _launch(self) -> None:
        host, port = self.address
        if self.pid is None:
            await self.spawn()
        self._sent_stores = list(self.stores())
        process = self._process
        assert process is not None
        assert process.stdin is not None
        assert process.stdout is not None
        settings = {
            "directory": str(self._data_dir),
            "others": {str(cell): str(path) for cell, path in self._others.items()},
            "secret": self._secret.hex(),
            "host": host,
            "port": port,
            "parent": os.getpid(),
            "certfile": self._settings.certfile,
            "keyfile": self._settings.keyfile,
            "index_delay": self._settings.index_delay,
            "stores": self._sent_stores,
        }
        try:
            process.stdin.write(json.dumps(settings).encode() + b"\n")
            async with asyncio.timeout(_START_TIMEOUT_S):
                answer = await process.stdout.readline()
            listening = json.loads(answer)
        except (OSError, ValueError, TimeoutError) as error:
            await _end(process)
            raise Unavailable(
                f"the range server did not start on {host}:{port}; its errors are above"
            ) from error
        self.address = listening["host"], listening["port"]

    async def _keep(self) -> None:
        """Start the child again whenever it dies, ever more slowly while it keeps dying."""
        pause_s = _FIRST_PAUSE_S
        while True:
            started_s = time.monotonic()
            assert self._process is not None
            await self._hear(self._process)
            await self._process.wait()
            if time.monotonic() - started_s > _STABLE_AFTER_S:
                pause_s = _FIRST_PAUSE_S
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)
            self.restarts += 1
            with suppress(Unavailable):  # it is dead then, and the next turn tries again
                await self._launch()

    async def _hear(self, process: Process) -> None:
        """Take what the child tells until it ends."""
        assert process.stdout is not None
        while line := await process.stdout.readline():
            told = _TOLD.decode(line)
            if isinstance(told, IndexReport):
                self.index = told
            else:
                self.when_tiered(told)
        self.index = IndexReport()
        self.when_tiered(None)


_TOLD: Final = msgspec.json.Decoder(IndexReport | TierReport)


async def _end(process: Process) -> None:
    if process.stdin is not None:
        process.stdin.close()
    try:
        async with asyncio.timeout(_STOP_TIMEOUT_S):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()
