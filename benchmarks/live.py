"""What ten open pages cost the broker: its processor time at a steady rate of messages, with and without them.

python -m benchmarks.live

A broker with a validation and 100 rules, five of which match, gets 1,000 messages a second at QoS 1. Each page is a
connection of the live channel with six channels, read by another process. Turns without pages, with ten, and without
again alternate; figures are medians. The exit status is 1 if ten pages take more than 5 % of a processor, or those that
have left more than 0.5 %.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil
from websockets.asyncio.client import ClientConnection, connect

TOKEN = "token-of-the-benchmark"
PAGES = 10
MOST_SHARE, MOST_AFTER = 0.05, 0.005
CHANNELS: dict[str, dict[str, Any]] = {
    "status": {},
    "metrics": {},
    "alarms": {},
    "jobs": {},
    "lists": {"kind": "rules"},
    "object": {"kind": "rules", "name": "rule-1"},
}


def main() -> int:
    """Run turns and print the medians."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=int, default=5, help="of a turn")
    parser.add_argument("--watch", metavar="URL", help="only be the pages")
    options = parser.parse_args()
    if options.watch:
        asyncio.run(_watch(options.watch))
        return 0
    with tempfile.TemporaryDirectory() as folder, _broker(Path(folder)) as (process, mqtt, url):
        _fill(url)
        turns: dict[str, list[dict[str, float]]] = {"none": [], "ten": [], "after": []}
        _turn(process, mqtt, options.seconds)
        for _ in range(options.rounds):
            turns["none"].append(_turn(process, mqtt, options.seconds))
            with _pages(url):
                turns["ten"].append(_turn(process, mqtt, options.seconds))
            turns["after"].append(_turn(process, mqtt, options.seconds))
    shares = {name: statistics.median(one["share"] for one in found) for name, found in turns.items()}
    for name, found in turns.items():
        p99 = statistics.median(one["p99_ms"] for one in found)
        print(f"{name:6} pages: {shares[name]:.1%} of a processor, p99 {p99:.2f} ms", flush=True)
    cost, after = shares["ten"] - shares["none"], shares["after"] - shares["none"]
    print(f"ten pages cost {cost:.1%} (at most {MOST_SHARE:.0%})")
    print(f"after they left: {after:.1%} (at most {MOST_AFTER:.1%})")
    return int(cost > MOST_SHARE or after > MOST_AFTER)


def _turn(process: psutil.Process, mqtt: str, seconds: int) -> dict[str, float]:
    """The broker's share of a processor while messages come, and their latency."""
    command = [
        sys.executable, "-m", "benchmarks.load", "latency", "--port", mqtt.rpartition(":")[2], "--rate", "1000",
        "--count", str(1000 * seconds), "--qos", "1", "--subqos", "1",
    ]  # fmt: skip
    before = process.cpu_times()
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    after = process.cpu_times()
    used_s = after.user + after.system - before.user - before.system
    return {"share": used_s / seconds, "p99_ms": json.loads(done.stdout)["p99_ms"]}


@contextmanager
def _broker(folder: Path) -> Iterator[tuple[psutil.Process, str, str]]:
    command = [
        sys.executable, "-m", "broker.cli.main", "serve", "--data-dir", str(folder / "data"),
        "--mqtt", "127.0.0.1:0", "--api", "127.0.0.1:0",
    ]  # fmt: skip
    environ = os.environ | {"SLUICE_API_TOKEN": TOKEN}
    with subprocess.Popen(
        command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as started:
        assert started.stdout is not None
        fields = dict(word.split("=", 1) for word in started.stdout.readline().split() if "=" in word)
        try:
            yield psutil.Process(started.pid), fields["mqtt"], f"http://{fields['api']}"
        finally:
            started.terminate()


def _fill(url: str) -> None:
    headers = {"Authorization": f"Bearer {TOKEN}"}
    with httpx.Client(base_url=f"{url}/api/v1", headers=headers, timeout=60, trust_env=False) as api:
        for number in range(100):
            topic = "lat/#" if number < 5 else f"other/{number}"
            rule = {"name": f"rule-{number}", "sql": f'SELECT topic, qos FROM "{topic}"'}
            api.post("/rules", json=rule).raise_for_status()


@contextmanager
def _pages(url: str) -> Iterator[None]:
    command = [sys.executable, "-m", "benchmarks.live", "--watch", url]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as started:
        assert started.stdin is not None
        assert started.stdout is not None
        assert started.stdout.readline() == "ready\n"
        yield
        started.stdin.close()
        print(started.stdout.readline(), end="", flush=True)


async def _watch(url: str) -> None:
    """Ten pages that read what they get, until standard input ends."""
    address, headers = f"{url.replace('http', 'ws', 1)}/api/v1/live", {"Authorization": f"Bearer {TOKEN}"}
    opened = [await connect(address, additional_headers=headers, max_size=None) for _ in range(PAGES)]
    readers = [asyncio.create_task(_read(page)) for page in opened]
    for page in opened:
        for channel, parameters in CHANNELS.items():
            sent = {"kind": "subscribe", "id": channel, "channel": channel, "parameters": parameters}
            await page.send(json.dumps(sent))
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.read)
    for page in opened:
        await page.close()
    counts = await asyncio.gather(*readers)
    print(f"  a page got {statistics.median(counts):.0f} frames", flush=True)


async def _read(page: ClientConnection) -> int:
    count = 0
    async for _ in page:
        count += 1
    return count


if __name__ == "__main__":
    sys.exit(main())
