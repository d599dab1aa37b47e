"""Publish to row: how long until a published message is visible in the Delta table: `python -m benchmarks.freshness`.

`sluice serve` with a rule and a stream; one MQTT client publishes QoS 1 at a steady rate, each message with the time it
was sent: first without a table, then with one. Meanwhile another engine (delta-rs) looks at the table again and again,
and a row's delay is from its sending until the first look that found it. Spark's start is not counted: measuring begins
with the first row. What the table costs the broker is its processor time for a message, with and without.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from socket import MSG_DONTWAIT

import pyarrow.parquet as pq
from deltalake import DeltaTable

from benchmarks.load import connect, cpu_s, link_to, publish
from benchmarks.pipeline import create, serving

WANTED_S = 3.0
"""Between the table's commit interval and the 99th percentile."""
WANTED_RATIO = 1.15
"""Of the broker's processor time for a message, with a table and without."""
LOOK_EVERY_S = 0.1
SEND_EVERY_S = 0.01
PATIENCE_S = 120.0
RATES = (1000.0, 10_000.0)
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
)


def main() -> int:
    """The number of rates at which a figure was missed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rate", type=float, nargs="*", default=RATES, help="messages a second")
    parser.add_argument("--seconds", type=float, default=60.0, help="how long to publish")
    parser.add_argument(
        "--interval", type=float, default=1.0, help="the table's commit interval in seconds"
    )
    options = parser.parse_args()
    return sum(not measure(rate, options.seconds, options.interval) for rate in options.rate)


def measure(rate: float, seconds: float, interval_s: float) -> bool:
    """Measure once and print; whether the figures are as wanted."""
    with serving() as (ready, folder):
        for path, spec in OBJECTS:
            create(ready["api"], path, spec)
        publisher = Publisher(ready["mqtt"], int(ready["pid"]))
        alone_us = publisher.send(rate, seconds)
        create(
            ready["api"],
            "lake/tables",
            {"name": "fresh", "stream": "fresh", "commit_interval": f"{interval_s * 1000:g}ms"},
        )
        table = Path(folder) / "lake" / "fresh"
        _until(
            lambda: DeltaTable.is_deltatable(str(table)) and DeltaTable(str(table)).file_uris(),
            "the first row",
        )
        delays, beside_us = delays_of(publisher, table, rate, seconds)
    p50, (p95, p99) = (
        statistics.median(delays),
        (statistics.quantiles(delays, n=100)[at] for at in (94, 98)),
    )
    ratio = beside_us / alone_us
    print(
        f"publish to row at {rate:,.0f} messages/s: {len(delays):,} rows, p50 {p50:.2f} s, p95 {p95:.2f} s, "
        f"p99 {p99:.2f} s, max {max(delays):.2f} s (wanted p99 {interval_s + WANTED_S:g} s, "
        f"{'ok' if p99 <= interval_s + WANTED_S else 'TOO SLOW'})"
    )
    print(
        f"broker at {rate:,.0f} messages/s: {alone_us:.0f} µs of processor time each without the table, "
        f"{beside_us:.0f} with it: {ratio:.2f} times "
        f"(wanted {WANTED_RATIO:g}, {'ok' if ratio <= WANTED_RATIO else 'MISSED'})"
    )
    return p99 <= interval_s + WANTED_S and ratio <= WANTED_RATIO


def delays_of(
    publisher: Publisher, table: Path, rate: float, seconds: float
) -> tuple[list[float], float]:
    """The delay of each row in seconds, and the broker's processor time for a message in µs."""
    seen, delays, used_us = DeltaTable(str(table)), dict[int, float](), list[float]()
    first, total = publisher.sent, int(rate * seconds)
    sending = threading.Thread(target=lambda: used_us.append(publisher.send(rate, seconds)))
    sending.start()
    known = set(seen.file_uris())
    ends_at = time.monotonic() + seconds + PATIENCE_S
    while len(delays) < total and time.monotonic() < ends_at:
        seen.update_incremental()
        found_at, files = time.time(), set(seen.file_uris())
        for file in files - known:
            rows = pq.read_table(file, columns=["seq", "sent"])
            for sequence, sent in zip(
                rows["seq"].to_pylist(), rows["sent"].to_pylist(), strict=True
            ):
                if sequence >= first:
                    # The job joins small files now and then: a row that moved to another file was visible before.
                    delays.setdefault(int(sequence), found_at - sent)
        known = files
        time.sleep(LOOK_EVERY_S)
    sending.join()
    if len(delays) < total:
        raise SystemExit(f"only {len(delays)} of {total} rows came within {PATIENCE_S:g} s")
    return list(delays.values()), used_us[0]


class Publisher:
    """A client of a broker that counts what it sends."""

    def __init__(self, address: str, pid: int) -> None:
        self._link, self._pid = connect(link_to(address), "fresh"), pid
        self.sent = 0

    def send(self, rate: float, seconds: float) -> float:
        """Publish at a rate for some seconds; the broker's processor time for a message in µs."""
        used_s, began, total, done = cpu_s(self._pid), time.monotonic(), int(rate * seconds), 0
        while done < total:
            time.sleep(SEND_EVERY_S)
            due = min(total, int(rate * (time.monotonic() - began)))
            self._link.sendall(b"".join(self._next() for _ in range(due - done)))
            done = due
            with suppress(BlockingIOError):
                while self._link.recv(1 << 16, MSG_DONTWAIT):
                    pass
        return (cpu_s(self._pid) - used_s) / total * 1e6

    def _next(self) -> bytes:
        payload = b'{"sent":%.6f,"seq":%d,"pad":"%s"}' % (time.time(), self.sent, b"x" * 60)
        self.sent += 1
        return publish(f"fresh/{self.sent % 10}", payload, 1, self.sent % 65535 + 1)


def _until(condition: Callable[[], object], what: str) -> None:
    ends_at = time.monotonic() + PATIENCE_S
    while not condition():
        if time.monotonic() > ends_at:
            raise SystemExit(f"{what} did not come within {PATIENCE_S:g} s")
        time.sleep(0.2)


if __name__ == "__main__":
    sys.exit(main())
