"""Clients that mean harm, as a process of its own: ``python -m tests.end_to_end.hostile TCP WS PROXY PACKETS SEED``.

Sends so many packets, or pieces of what should be packets, over as many connections as that takes, and prints how many
of each kind as JSON. The kinds are the functions named in ``ATTACKS``: each takes one connection as far as it goes and
returns how many packets it sent.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from random import Random
from typing import Final

from tests.support.raw import ack, connect, packet, publish, subscribe, text, unsubscribe
from tests.support.waiting import within

AT_ONCE: Final = 8
"""Attacks that run beside each other."""
HALF_OPEN: Final = 100
"""Connections that are held open and say nothing whole; the oldest goes for the next."""
PATIENCE_S: Final = 2.0
PINGREQ: Final = b"\xc0\0"
_GONE: Final = (OSError, asyncio.IncompleteReadError, TimeoutError)
_UPGRADE: Final = (
    b"GET /mqtt HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Protocol: mqtt\r\n\r\n"
)
_PROXY_V2: Final = b"\r\n\r\n\0\r\nQUIT\n"


class Attacker:
    """The ports of a broker, and chance."""

    def __init__(self, tcp: int, websocket: int, proxy: int, chance: Random) -> None:
        self.tcp, self.websocket, self.proxy, self.chance = tcp, websocket, proxy, chance
        self._half_open: list[asyncio.StreamWriter] = []
        self._numbers = 0

    # -- pieces --

    async def pour(self, port: int, *pieces: bytes) -> bytes:
        """Send pieces over a connection of their own, hear a little of the answer, and cut it off."""
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        heard = b""
        try:
            for piece in pieces:
                writer.write(piece)
                await within(writer.drain(), PATIENCE_S)
            with suppress(TimeoutError):
                heard = await within(reader.read(65_536), 0.02)
        finally:
            writer.transport.abort()
        return heard

    async def as_client(self, version: int, *pieces: bytes) -> None:
        """The same behind a CONNECT that is in order."""
        await self.pour(self.tcp, connect(version, self.name()), *pieces)

    def name(self) -> str:
        """A client identifier, one of a few hundred: what is kept by identifier stays bounded."""
        return f"h{self.chance.randrange(300)}"

    def noise(self, most: int = 200) -> bytes:
        return self.chance.randbytes(self.chance.randint(1, most))

    def damaged(self, data: bytes) -> bytes:
        """A packet with some bytes changed or cut off."""
        changed = bytearray(data)
        for _ in range(self.chance.randint(1, 3)):
            changed[self.chance.randrange(len(changed))] = self.chance.randrange(256)
        return bytes(changed[: self.chance.randint(1, len(changed))])

    # -- attacks --

    async def garbage(self) -> int:
        await self.pour(self.tcp, self.noise())
        return 1

    async def broken_tails(self) -> int:
        version, count = self.chance.choice((4, 5)), self.chance.randint(1, 100)
        good = publish(version, f"h/{self.chance.randrange(50)}", self.noise())
        await self.as_client(
            version, good * count, self.damaged(publish(version, "h/t", self.noise(), qos=1))
        )
        return count + 2

    async def half_open(self) -> int:
        _, writer = await asyncio.open_connection("127.0.0.1", self.tcp)
        whole = connect(5, self.name())
        writer.write(whole[: self.chance.randrange(len(whole))])
        self._half_open.append(writer)
        if len(self._half_open) > HALF_OPEN:
            self._half_open.pop(0).transport.abort()
        return 1

    async def slow_loris(self) -> int:
        _, writer = await asyncio.open_connection("127.0.0.1", self.tcp)
        for byte in connect(4, self.name()) + publish(4, "h/slow", self.noise(20)):
            writer.write(bytes((byte,)))
            await asyncio.sleep(0.002)
        writer.transport.abort()
        return 2

    async def huge_lengths(self) -> int:
        head = self.chance.choice((b"\x10", b"\x30", b"\x82", b"\xa2")) + b"\xff\xff\xff\x7f"
        if self.chance.random() < 0.5:
            await self.pour(self.tcp, head + self.noise())
            return 1
        await self.as_client(5, head + self.noise(5000))
        return 2

    async def connect_storm(self) -> int:
        await self.pour(self.tcp, connect(self.chance.choice((3, 4, 5)), "h-the-same", clean=False))
        await self.as_client(4, connect(4, "again"))
        return 3

    async def damaged_connects(self) -> int:
        will = text("h/will") + text(self.noise())
        whole = connect(self.chance.choice((4, 5)), self.name(), flags=0x04, rest=will)
        await self.pour(self.tcp, self.damaged(whole))
        return 1

    async def subscribe_flood(self) -> int:
        filters = [self._filter() for _ in range(40)]
        taken = [subscribe(4, number + 1, (name, 2)) for number, name in enumerate(filters)]
        left = [unsubscribe(4, number + 1, name) for number, name in enumerate(filters)]
        await self.as_client(4, b"".join(taken), b"".join(left))
        return 81

    async def long_lists(self) -> int:
        """Single packets that are a lot of work: of thousands of filters, and of 100,000 user properties."""
        ends = self.chance.choice(("", "/+", "/#"))
        names = [f"h/{number}{ends}" for number in range(self.chance.randint(1000, 10_000))]
        taken = subscribe(5, 1, *((name, 1) for name in names))
        await self.as_client(5, taken, unsubscribe(5, 2, *names[::2]), PINGREQ)
        await self.as_client(5, publish(5, "h/p", b"x", b"\x26\0\0\0\0" * 100_000))
        return 6

    def _filter(self) -> str:
        levels = [
            self.chance.choice(("+", "a", "b", "h")) for _ in range(self.chance.randint(1, 12))
        ]
        return "/".join([*levels, "#"] if self.chance.random() < 0.3 else levels)

    async def alias_abuse(self) -> int:
        pieces = []
        for _ in range(50):
            alias = self.chance.randint(1, 64)
            pieces.append(
                publish(5, f"h/{self.chance.randrange(9)}", b"x", b"\x23" + alias.to_bytes(2))
            )
        wrong = self.chance.choice((0, 65, 65_535))
        await self.as_client(5, b"".join(pieces), publish(5, "", b"x", b"\x23" + wrong.to_bytes(2)))
        return 52

    async def properties(self) -> int:
        pair = b"\x26" + text("k") + text(self.noise(30))
        await self.as_client(
            5, publish(5, "h/p", b"x", *[pair] * self.chance.choice((50, 99, 101, 2000)))
        )
        return 2

    async def open_exchanges(self) -> int:
        await self.as_client(
            5, b"".join(publish(5, "h/q", b"x", qos=2, packet_id=n) for n in range(1, 51))
        )
        return 51

    async def stray_acknowledgements(self) -> int:
        kinds = (0x40, 0x50, 0x62, 0x70)
        strays = [ack(self.chance.choice(kinds), self.chance.randint(1, 65_535)) for _ in range(50)]
        await self.as_client(4, b"".join(strays))
        return 51

    async def pings_without_reading(self) -> int:
        await self.as_client(4, PINGREQ * 100)
        return 101

    async def many_topics(self) -> int:
        pieces = []
        for _ in range(60):
            levels = "/".join(
                self.chance.choice("abcdefgh") for _ in range(self.chance.randint(1, 120))
            )
            pieces.append(publish(4, levels, b"x"))
        await self.as_client(4, b"".join(pieces))
        return 61

    async def retained_and_wild(self) -> int:
        kept = b"".join(publish(4, f"h/r/{n}", b"x" * 50, retain=True) for n in range(100))
        await self.as_client(
            4, kept, subscribe(4, 1, ("h/#", 1), ("+/r/+", 0)), unsubscribe(4, 2, "h/#")
        )
        return 103

    async def websocket_garbage(self) -> int:
        match self.chance.randrange(3):
            case 0:
                await self.pour(self.websocket, self.noise(500))
            case 1:
                await self.pour(self.websocket, b"GET " + self.noise(3000) + b"\r\n\r\n")
            case _:
                await self.pour(self.websocket, _UPGRADE, self.noise(500), self.noise(500))
        return 1

    async def proxy_garbage(self) -> int:
        match self.chance.randrange(4):
            case 0:
                await self.pour(self.proxy, self.noise(300))
            case 1:
                await self.pour(self.proxy, b"PROXY TCP4 " + self.noise(300))
            case 2:
                await self.pour(
                    self.proxy, _PROXY_V2 + b"\x21\x11" + self.noise(2) + self.noise(300)
                )
            case _:
                header = b"PROXY TCP4 10.0.0.1 10.0.0.2 1 2\r\n"
                await self.pour(self.proxy, header + packet(0x10, self.noise()))
        return 1

    def close(self) -> None:
        """Let go of what is half open."""
        for writer in self._half_open:
            writer.transport.abort()


Attack = Callable[[Attacker], Awaitable[int]]
ATTACKS: Final[list[tuple[Attack, int]]] = [
    (Attacker.garbage, 4),
    (Attacker.broken_tails, 4),
    (Attacker.half_open, 2),
    (Attacker.slow_loris, 1),
    (Attacker.huge_lengths, 3),
    (Attacker.connect_storm, 3),
    (Attacker.damaged_connects, 4),
    (Attacker.subscribe_flood, 2),
    (Attacker.long_lists, 1),
    (Attacker.alias_abuse, 3),
    (Attacker.properties, 2),
    (Attacker.open_exchanges, 3),
    (Attacker.stray_acknowledgements, 3),
    (Attacker.pings_without_reading, 2),
    (Attacker.many_topics, 2),
    (Attacker.retained_and_wild, 2),
    (Attacker.websocket_garbage, 4),
    (Attacker.proxy_garbage, 4),
]
"""What is done, and how often in proportion."""


async def attack(attacker: Attacker, packets: int) -> Counter[str]:
    """Send at least so many packets; how many of each kind."""
    sent: Counter[str] = Counter()
    kinds, weights = zip(*ATTACKS, strict=True)

    async def one_after_the_other() -> None:
        while sent.total() < packets:
            kind = attacker.chance.choices(kinds, weights)[0]
            with suppress(*_GONE):  # cut off in the middle, as it should be
                sent[kind.__name__] += await kind(attacker)
                continue
            sent[kind.__name__] += 1

    async with asyncio.TaskGroup() as group:
        for number in range(AT_ONCE):
            group.create_task(one_after_the_other(), name=f"attacker {number}")
    attacker.close()
    return sent


def main() -> None:
    """Play hostile clients, as the command line says."""
    tcp, websocket, proxy, packets, seed = map(int, sys.argv[1:])
    sent = asyncio.run(attack(Attacker(tcp, websocket, proxy, Random(seed)), packets))
    print(json.dumps(sent))


if __name__ == "__main__":
    main()
