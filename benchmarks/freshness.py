"""Publish to row: how long until a published message is visible in the Delta table: `python -m benchmarks.freshness`.

`sluice serve` with a rule, a stream and a table; one MQTT client publishes QoS 1 at a steady rate, each message with
the time it was sent. Meanwhile another engine (delta-rs) looks at the table again and again, and a row's delay is
from its sending until the first look that found it. Spark's start is not counted: measuring begins with the first row.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import threading
import time
from pathlib import Path

import paho.mqtt.client as paho
from deltalake import DeltaTable
from paho.mqtt.enums import CallbackAPIVersion

from benchmarks.pipeline import create, serving

WANTED_P95_S = 5.0
LOOK_EVERY_S = 0.1
PATIENCE_S = 120.0
OBJECTS = (
    ("streams", {"name": "fresh"}),
    (
        "rules",
        {
            "name": "fresh",
            "sql": 'SELECT payload.sent AS sent, payload.seq AS seq, clientid FROM "fresh/#"',
            "actions": [{"type": "stream", "stream": "fresh"}],
        },
    ),
    ("lake/tables", {"name": "fresh", "stream": "fresh", "format": "delta", "commit_interval": "1s"}),
)


def main() -> None:
    """Measure once and print; the exit status tells whether the wanted delay was kept."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", type=float, default=1000.0, help="messages a second")
    parser.add_argument("--seconds", type=float, default=60.0, help="how long to publish")
    options = parser.parse_args()
    with serving() as (ready, folder):
        for path, spec in OBJECTS:
            create(ready["api"], path, spec)
        delays = measure(ready["mqtt"], Path(folder) / "lake" / "fresh", options.rate, options.seconds)
    p50, p95 = statistics.median(delays), statistics.quantiles(delays, n=20)[-1]
    verdict = "ok" if p95 <= WANTED_P95_S else "TOO SLOW"
    print(
        f"publish to row at {options.rate:,.0f} messages/s: {len(delays):,} rows, p50 {p50:.2f} s, p95 {p95:.2f} s, "
        f"max {max(delays):.2f} s (wanted p95 {WANTED_P95_S:g} s, {verdict})"
    )
    sys.exit(0 if p95 <= WANTED_P95_S else 1)


def measure(mqtt: str, table: Path, rate: float, seconds: float) -> list[float]:
    """Publish for some seconds once the first row is there; the delay of each row in seconds."""
    host, _, port = mqtt.rpartition(":")
    client = paho.Client(CallbackAPIVersion.VERSION2, "fresh")
    client.max_inflight_messages_set(1000)
    client.connect(host, int(port))
    client.loop_start()
    _publish(client, 0)
    _until(lambda: DeltaTable.is_deltatable(str(table)) and DeltaTable(str(table)).file_uris(), "the first row")
    seen, delays = DeltaTable(str(table)), dict[int, float]()
    total = int(rate * seconds)
    publisher = threading.Thread(target=_publish_steadily, args=(client, total, rate))
    publisher.start()
    known = set(seen.file_uris())
    ends_at = time.monotonic() + seconds + PATIENCE_S
    while len(delays) < total and time.monotonic() < ends_at:
        seen.update_incremental()
        found_at, files = time.time(), set(seen.file_uris())
        for file in files - known:
            for sequence, sent in _rows(file):
                # The job joins small files now and then: a row that moved to another file was visible before.
                delays.setdefault(sequence, found_at - sent)
        known = files
        time.sleep(LOOK_EVERY_S)
    publisher.join()
    client.disconnect()
    client.loop_stop()
    if len(delays) < total:
        raise SystemExit(f"only {len(delays)} of {total} rows came within {PATIENCE_S:g} s")
    return list(delays.values())


def _rows(file: str) -> list[tuple[int, float]]:
    """Number and time of sending of each row in a file."""
    import pyarrow.parquet as pq

    rows = pq.read_table(file, columns=["seq", "sent"])
    return list(zip(map(int, rows["seq"].to_pylist()), rows["sent"].to_pylist(), strict=True))


def _publish_steadily(client: paho.Client, total: int, rate: float) -> None:
    began = time.monotonic()
    for sequence in range(1, total + 1):
        _publish(client, sequence)
        ahead = began + sequence / rate - time.monotonic()
        if ahead > 0.005:
            time.sleep(ahead)


def _publish(client: paho.Client, sequence: int) -> None:
    payload = {"sent": time.time(), "seq": sequence, "pad": "x" * 60}
    client.publish(f"fresh/{sequence % 10}", json.dumps(payload), 1)


def _until(condition: object, what: str) -> None:
    ends_at = time.monotonic() + PATIENCE_S
    while not condition():  # type: ignore[operator]  # a callable without arguments
        if time.monotonic() > ends_at:
            raise SystemExit(f"{what} did not come within {PATIENCE_S:g} s")
        time.sleep(0.2)


if __name__ == "__main__":
    main()
