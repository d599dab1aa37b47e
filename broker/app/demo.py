"""``sluice demo``: a broker with five simulated meters whose readings arrive in a Delta table."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import sys
import time
import webbrowser
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

from broker.app.build import Node
from broker.app.lifecycle import serve
from broker.codec.encode import encode_packet
from broker.codec.framing import Decoder
from broker.codec.packets import ConnAck, Connect, Disconnect, PubAck, Publish
from broker.config.options import DemoOptions, ServeOptions
from broker.core import jsontext
from broker.core.hosts import split_address
from broker.core.objects import ObjectService
from broker.core.process import keep_files_private

# Seconds since 1970 when the user of the demo began to count; ``make demo`` sets it before it installs anything.
STARTED_VARIABLE: Final = "SLUICE_DEMO_STARTED"
_MARK: Final = ".sluice-demo"
_LOOK_EVERY_S: Final = 0.25

# Objects of the demo, by their path in the API, in an order in which each finds the objects it names.
OBJECTS: Final[tuple[tuple[str, Mapping[str, Any]], ...]] = (
    (
        "schemas",
        {
            "name": "telemetry",
            "type": "json",
            "description": "A reading of a simulated meter",
            "source": {
                "type": "object",
                "properties": {
                    "seq": {"type": "integer"},
                    "temp": {"type": "number"},
                    "humidity": {"type": "integer", "minimum": 0, "maximum": 100},
                },
                "required": ["seq", "temp"],
            },
        },
    ),
    (
        "validations",
        {
            "name": "telemetry",
            "topics": ["demo/+/telemetry"],
            "strategy": "all_pass",
            "failure_action": "drop",
            "checks": [{"type": "json", "schema": "telemetry"}],
        },
    ),
    (
        "transforms",
        {
            "name": "room",
            "topics": ["demo/+/telemetry"],
            "failure_action": "drop",
            "payload_decoder": {"type": "json"},
            "payload_encoder": {"type": "json"},
            "operations": [{"key": "payload.room", "value": "nth(2, topic_split(topic))"}],
        },
    ),
    ("streams", {"name": "telemetry", "description": "Readings of the simulated meters"}),
    (
        "rules",
        {
            "name": "telemetry",
            "sql": "SELECT payload.room AS room, payload.seq AS seq, payload.temp AS celsius,\n"
            "       payload.temp * 1.8 + 32 AS fahrenheit, payload.humidity AS humidity, clientid\n"
            'FROM "demo/+/telemetry"',
            "actions": [{"type": "stream", "stream": "telemetry"}],
        },
    ),
    (
        "lake/tables",
        {"name": "telemetry", "stream": "telemetry", "format": "delta", "commit_interval": "1s"},
    ),
)


def run(options: DemoOptions) -> int:
    """Run the demo until SIGINT or SIGTERM, or remove what an earlier one created; the exit status."""
    if options.is_cleaning:
        return _clean(options)
    began_s = float(os.environ.get(STARTED_VARIABLE) or time.time())
    keep_files_private()
    options.data_dir.mkdir(parents=True, exist_ok=True)
    (options.data_dir / _MARK).touch()

    async def beside(node: Node, link: str) -> None:
        _make_objects(node.object_services)
        _tell(node, link, opens_browser=options.opens_browser)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(run_fleet(split_address(node.mqtt_address)), name="fleet")
            tasks.create_task(_announce_first_row(node, began_s), name="first row")

    return serve(
        ServeOptions(options.data_dir, options.mqtt, options.api, overrides=options.overrides),
        beside,
    )


def _clean(options: DemoOptions) -> int:
    """Only a directory that a demo marked as its own is removed."""
    directory = options.data_dir
    if not (directory / _MARK).exists():
        print(f"there is no demo in {directory}; nothing was removed", file=sys.stderr)
        return 1
    shutil.rmtree(directory)
    print(f"removed {directory} with the demo's configuration, streams and tables")
    return 0


def _make_objects(services: Mapping[str, ObjectService]) -> None:
    """Create the objects of the demo; objects of an earlier run stay as they are, even if they were changed."""
    for path, spec in OBJECTS:
        service = services[path]
        if spec["name"] not in {shown["name"] for shown in service.list()}:
            service.create(dict(spec))


def _tell(node: Node, link: str, *, opens_browser: bool) -> None:
    print(
        f"{len(METERS)} meters publish to mqtt://{node.mqtt_address}, topics demo/<room>/telemetry"
    )
    print(f"open {link}", flush=True)
    if opens_browser and sys.stdout.isatty():
        webbrowser.open(link)


async def _announce_first_row(node: Node, began_s: float) -> None:
    # The job reports over HTTP; there is nothing else to wait on.
    while not any(table.get("rows") for table in node.lake.states.statuses()):  # noqa: ASYNC110
        await asyncio.sleep(_LOOK_EVERY_S)
    table = node.lake.states.statuses()[0]
    took_s = time.time() - began_s
    print(
        f"the first rows are in the table {table['path']} after {took_s:.1f} s; Ctrl-C stops the demo",
        flush=True,
    )
    await asyncio.Event().wait()


# Client identifiers are ``meter-<name>``, topics ``demo/<name>/telemetry``.
METERS = ("attic", "cellar", "garden", "kitchen", "office")

_VERSIONS = (4, 5)
_ONE_BAD_IN = 25
_RECONNECT_S = 1.0
_MAX_PACKET_ID = 65_535


class Meter:
    """One meter: connects, publishes QoS 1 readings at a fixed rate, connects again when the broker goes away."""

    def __init__(
        self, name: str, address: tuple[str, int], interval_s: float, chance: random.Random
    ) -> None:
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
            writer.write(
                encode_packet(
                    Connect(f"meter-{self.name}", self._version, keep_alive_s=30), self._version
                )
            )
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
                    raise ConnectionRefusedError(
                        f"the broker refused meter {self.name}: {packet.reason_code}"
                    )
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
