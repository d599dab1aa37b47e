"""Many clients of MQTT 5 over TLS with sessions of their own, as a process: ``TlsFleet``.

All connect at once, as often as the test asks for it, while their connections of before are open: each takes over its
own session. A client that is referred to another address goes there, and begins there the next time.
"""

from __future__ import annotations

import asyncio
import json
import resource
import ssl
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import uvloop

from broker.codec.encode import encode_packet
from broker.codec.framing import Decoder
from broker.codec.packets import ConnAck, Connect, Disconnect
from broker.core import reason

_AT_ONCE = 400
"""Connects under way, so that queues of listening sockets are enough."""
_ANSWERED_S = 60.0
_KEEP_ALIVE_S = 600
_EXPIRY_S = 600


class _Connection(asyncio.Protocol):
    """One connection. ``answered`` has the CONNACK, ``ended`` the reason of a DISCONNECT, or None."""

    def __init__(self, client_id: str) -> None:
        self._connect = Connect(
            client_id,
            5,
            clean_start=False,
            keep_alive_s=_KEEP_ALIVE_S,
            properties={"Session-Expiry-Interval": _EXPIRY_S},
        )
        self._decoder = Decoder(5)
        loop = asyncio.get_running_loop()
        self.answered: asyncio.Future[ConnAck] = loop.create_future()
        self.ended: asyncio.Future[int | None] = loop.create_future()
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        transport.write(encode_packet(self._connect, 5))

    def data_received(self, data: bytes) -> None:
        for packet in self._decoder.feed(data):
            if isinstance(packet, ConnAck) and not self.answered.done():
                self.answered.set_result(packet)
            elif isinstance(packet, Disconnect) and not self.ended.done():
                self.ended.set_result(packet.reason_code)

    def connection_lost(self, _error: Exception | None) -> None:
        if not self.answered.done():
            self.answered.cancel()
        if not self.ended.done():
            self.ended.set_result(None)


class _Fleet:
    """The clients in this process."""

    def __init__(self, addresses: Sequence[tuple[str, int]], count: int, authority: str) -> None:
        self._at = {
            f"device-{number}": addresses[number % len(addresses)] for number in range(count)
        }
        self._context = ssl.create_default_context(cafile=authority)
        self._context.check_hostname = False
        self._open: dict[str, _Connection] = {}

    async def connect(self) -> dict[str, Any]:
        """Connect all; how that went."""
        before, self._open = self._open, {}
        counts: Counter[str] = Counter()
        room = asyncio.Semaphore(_AT_ONCE)
        slowest_s = 0.0

        async def one(client_id: str) -> None:
            nonlocal slowest_s
            async with room:
                began_s = time.monotonic()
                connack = await self._connected(client_id)
                if connack.reason_code == reason.USE_ANOTHER_SERVER:
                    host, _, port = connack.properties["Server-Reference"].rpartition(":")
                    self._at[client_id] = host, int(port)
                    counts["referred"] += 1
                    connack = await self._connected(client_id)
                slowest_s = max(slowest_s, time.monotonic() - began_s)
            counts[f"connack {connack.reason_code}"] += 1
            counts["session present"] += connack.session_present
            if (older := before.get(client_id)) is not None:
                async with asyncio.timeout(_ANSWERED_S):
                    counts[f"older {await older.ended}"] += 1
                assert older.transport is not None
                older.transport.abort()

        began_s = time.monotonic()
        found = await asyncio.gather(*map(one, self._at), return_exceptions=True)
        counts.update(repr(error) for error in found if error is not None)
        return {
            "took_s": time.monotonic() - began_s,
            "slowest_s": slowest_s,
            "counts": counts,
        }

    async def _connected(self, client_id: str) -> ConnAck:
        async with asyncio.timeout(_ANSWERED_S):
            _, connection = await asyncio.get_running_loop().create_connection(
                lambda: _Connection(client_id), *self._at[client_id], ssl=self._context
            )
            connack = await connection.answered
        if connack.reason_code == 0:
            self._open[client_id] = connection
        return connack


class TlsFleet:
    """The process, as the test has it."""

    def __init__(
        self,
        around: Sequence[str],
        addresses: Sequence[tuple[str, int]],
        count: int,
        authority: Path,
    ) -> None:
        """``around`` is the command that runs it in a network; clients begin at ``addresses`` in turn."""
        told = json.dumps([addresses, count, str(authority)])
        self._process = subprocess.Popen(
            [*around, sys.executable, "-m", "tests.support.tls_fleet", told],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def connect(self) -> dict[str, Any]:
        """Connect all clients, and wait until they are: ``took_s``, ``slowest_s`` and ``counts`` of outcomes."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("connect\n")
        self._process.stdin.flush()
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        return answer

    def close(self) -> None:
        """End the process, and with it the connections."""
        self._process.kill()
        self._process.communicate()


async def _main(addresses: Sequence[tuple[str, int]], count: int, authority: str) -> None:
    fleet = _Fleet([(host, port) for host, port in addresses], count, authority)
    while await asyncio.to_thread(sys.stdin.readline):
        print(json.dumps(await fleet.connect()), flush=True)


if __name__ == "__main__":
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    uvloop.run(_main(*json.loads(sys.argv[1])))
