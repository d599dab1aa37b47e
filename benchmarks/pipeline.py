"""The whole pipeline against mosquitto bare: `python -m benchmarks.pipeline`.

Sluice runs as users run it (`sluice serve`, RocksDB, `durability = os`) with a JSON Schema validation, a transformation
that writes into the payload, and an SQL rule whose rows go into a stream, for every message. Mosquitto just forwards.
Both are loaded in turns; the figure to look at is the ratio.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.bare import MOSQUITTO, ROOT, Case, compare, mosquitto

TOKEN = "benchmark-token"
CASES = (
    Case("pipeline on, QoS 0, 1 to 1", {MOSQUITTO: 1}, "deliver_per_s", ("--count", "300000")),
    # A publisher that waits for 20 acknowledgements at a time waits for a commit each time; mosquitto stores nothing.
    # Shown, and nothing is demanded of them.
    Case(
        "pipeline on, QoS 1, 1 to 1",
        {MOSQUITTO: 0},
        "deliver_per_s",
        ("--qos", "1", "--subqos", "1", "--count", "60000"),
    ),
    Case(
        "pipeline on, QoS 1, 10 to 0",
        {MOSQUITTO: 0},
        "pub_per_s",
        ("--qos", "1", "--pubs", "10", "--subs", "0"),
    ),
)
SCHEMA = {
    "type": "object",
    "properties": {
        "temp": {"type": "number", "minimum": -60, "maximum": 200},
        "hum": {"type": "integer", "minimum": 0, "maximum": 100},
        "id": {"type": "string", "maxLength": 32},
        "pad": {"type": "string"},
    },
    "required": ["temp", "hum", "id"],
}
OBJECTS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("schemas", {"name": "reading", "type": "json", "source": json.dumps(SCHEMA)}),
    (
        "validations",
        {
            "name": "readings",
            "topics": ["bench/#"],
            "strategy": "all_pass",
            "failure_action": "drop",
            "checks": [{"type": "json", "schema": "reading"}],
        },
    ),
    (
        "transforms",
        {
            "name": "upper",
            "topics": ["bench/#"],
            "failure_action": "drop",
            "payload_decoder": {"type": "json"},
            "payload_encoder": {"type": "json"},
            "operations": [{"key": "payload.id", "value": "upper(payload.id)"}],
        },
    ),
    ("streams", {"name": "hot"}),
    (
        "rules",
        {
            "name": "hot",
            "sql": "SELECT payload.temp AS t, payload.temp * 1.8 + 32 AS f, clientid "
            'FROM "bench/#" WHERE payload.temp > 20',
            "actions": [{"type": "stream", "stream": "hot"}],
        },
    ),
)
"""What every message passes; all readings of the load generator are above 20 and become rows."""


def main() -> None:
    """Run the cases and print a table; the exit status tells whether every wanted ratio was reached."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="turns per broker and case")
    options = parser.parse_args()
    with sluice() as ours, mosquitto() as theirs:
        reached = [compare(case, ours, {MOSQUITTO: theirs}, options.rounds) for case in CASES]
    sys.exit(0 if all(reached) else 1)


@contextmanager
def sluice() -> Iterator[int]:
    """``sluice serve`` with the objects above; the port of MQTT."""
    with serving() as (ready, _):
        for path, spec in OBJECTS:
            create(ready["api"], path, spec)
        yield int(ready["mqtt"].rpartition(":")[2])


@contextmanager
def serving(
    *settings: str,
    tree: Path = ROOT,
    workers: int = 1,
    program: Sequence[str] = ("-m", "broker.cli.main"),
    counts_to: int | None = None,
) -> Iterator[tuple[dict[str, str], str]]:
    """``sluice serve`` of a work tree on free ports, with ``settings`` as in ``a.b=value``: the addresses of ``mqtt``
    and ``api``, its ``pid``, and the data directory. ``program`` are
    the interpreter's arguments in place of the broker's module, ``counts_to`` is for ``benchmarks/counting.py``."""
    with tempfile.TemporaryDirectory() as folder:
        command = [
            *(sys.executable, *program, "serve", "--data-dir", folder),
            *("--mqtt", "127.0.0.1:0", "--api", "127.0.0.1:0"),
            *(("--workers", str(workers)) if workers > 1 else ()),
            *(
                part
                for setting in ("store.durability=os", *settings)
                for part in ("--set", setting)
            ),
        ]
        environ = {**os.environ, "SLUICE_API_TOKEN": TOKEN}
        if counts_to is not None:
            environ |= {"COUNTS_TO": str(counts_to), "PYTHONHASHSEED": "0"}
        process = subprocess.Popen(
            command,
            cwd=tree,
            env=environ,
            pass_fds=() if counts_to is None else (counts_to,),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        try:
            assert process.stdout is not None
            ready = dict(
                word.split("=") for word in process.stdout.readline().split() if "=" in word
            )
            yield {**ready, "pid": str(process.pid)}, folder
        finally:
            process.terminate()
            process.wait(30)


def create(api: str, path: str, spec: dict[str, Any]) -> None:
    """Make an object through the API at ``host:port``."""
    _ask(api, path, json.dumps(spec).encode())


def tables(api: str) -> list[dict[str, Any]]:
    """How each table is doing."""
    found: list[dict[str, Any]] = _ask(api, "status")["tables"]
    return found


def _ask(api: str, path: str, body: bytes | None = None) -> Any:
    headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"}
    with urllib.request.urlopen(
        urllib.request.Request(f"http://{api}/api/v1/{path}", body, headers)
    ) as answer:
        return json.load(answer)


if __name__ == "__main__":
    main()
