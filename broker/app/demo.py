"""``sluice demo``: a broker with five simulated meters whose readings arrive in a Delta table."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
import time
import webbrowser
from collections.abc import Mapping
from typing import Any, Final

from broker.app.build import Node
from broker.app.fleet import METERS, run_fleet
from broker.app.lifecycle import serve
from broker.config.options import DemoOptions, ServeOptions
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
    ("lake/tables", {"name": "telemetry", "stream": "telemetry", "format": "delta", "commit_interval": "1s"}),
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

    return serve(ServeOptions(options.data_dir, options.mqtt, options.api, overrides=options.overrides), beside)


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
    print(f"{len(METERS)} meters publish to mqtt://{node.mqtt_address}, topics demo/<room>/telemetry")
    print(f"open {link}", flush=True)
    if opens_browser and sys.stdout.isatty():
        webbrowser.open(link)


async def _announce_first_row(node: Node, began_s: float) -> None:
    # The job reports over HTTP; there is nothing else to wait on.
    while not any(table.get("rows") for table in node.lake.service.statuses()):  # noqa: ASYNC110
        await asyncio.sleep(_LOOK_EVERY_S)
    table = node.lake.service.statuses()[0]
    took_s = time.time() - began_s
    print(f"the first rows are in the table {table['path']} after {took_s:.1f} s; Ctrl-C stops the demo", flush=True)
    await asyncio.Event().wait()
