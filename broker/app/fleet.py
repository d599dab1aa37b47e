"""Simulated meters on real MQTT connections, for the demo: each publishes readings, and now and then a bad one."""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress

from broker.codec.encode import encode_packet
from broker.codec.framing import Decoder
from broker.codec.packets import ConnAck, Connect, Disconnect, PubAck, Publish
from broker.core import jsontext

# Client identifiers are ``meter-<name>``, topics ``demo/<name>/telemetry``.
METERS = ("attic", "cellar", "garden", "kitchen", "office")

_VERSIONS = (4, 5)
_ONE_BAD_IN = 25
_RECONNECT_S = 1.0
_MAX_PACKET_ID = 65_535


class Meter:
    """One meter: connects, publishes QoS 1 readings at a fixed rate, connects again when the broker goes away."""

    def __init__(self, name: str, address: tuple[str, int], interval_s: float, chance: random.Random) -> None:
        self.name = name
        self._address = address
        self._interval_s = interval_s
        self._chance = chance
        self._version = _VERSIONS[sum(name.encode()) % len(_VERSIONS)]
        self._temperature = 18.0 + chance.random() * 6
        self._sequence = 0
        self.acknowledged = 0

    async def run(self) -> None:
        """Publish until cancelled."""
        while True:
            with suppress(OSError, asyncio.IncompleteReadError):
                await self._connected()
            await asyncio.sleep(_RECONNECT_S)

    async def _connected(self) -> None:
        reader, writer = await asyncio.open_connection(*self._address)
        try:
            writer.write(encode_packet(Connect(f"meter-{self.name}", self._version, keep_alive_s=30), self._version))
            acknowledgements = asyncio.create_task(self._listen(reader), name=f"meter {self.name}")
            try:
                while not acknowledgements.done():
                    writer.write(encode_packet(self._reading(), self._version))
                    await writer.drain()
                    await asyncio.sleep(self._interval_s)
            finally:
                acknowledgements.cancel()
            writer.write(encode_packet(Disconnect(), self._version))
        finally:
            writer.close()

    async def _listen(self, reader: asyncio.StreamReader) -> None:
        decoder = Decoder(self._version)
        while data := await reader.read(65_536):
            for packet in decoder.feed(data):
                if isinstance(packet, ConnAck) and packet.reason_code:
                    raise ConnectionRefusedError(f"the broker refused meter {self.name}: {packet.reason_code}")
                if isinstance(packet, PubAck):
                    self.acknowledged += 1

    def _reading(self) -> Publish:
        self._sequence += 1
        self._temperature += self._chance.uniform(-0.3, 0.3)
        reading: dict[str, object] = {
            "seq": self._sequence,
            "temp": round(self._temperature, 2),
            "humidity": self._chance.randint(35, 60),
        }
        if self._chance.randrange(_ONE_BAD_IN) == 0:
            reading["temp"] = "out of range"
        return Publish(
            f"demo/{self.name}/telemetry",
            jsontext.encode(reading),
            qos=1,
            packet_id=self._sequence % _MAX_PACKET_ID + 1,
        )


async def run_fleet(address: tuple[str, int], messages_per_s: float = 10.0) -> None:
    """Run all meters until cancelled; together they publish ``messages_per_s``."""
    interval_s = len(METERS) / messages_per_s
    async with asyncio.TaskGroup() as tasks:
        for name in METERS:
            meter = Meter(name, address, interval_s, random.Random(name))
            tasks.create_task(meter.run(), name=f"meter {name}")
