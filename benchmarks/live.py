"""What ten open tabs of the dashboard cost the publish path: processor time of the broker per message, and messages per
second, with and without them.

python -m benchmarks.live

A broker with 100 rules, five of which match, gets messages at QoS 1 as fast as it takes them. Each tab shows the
Overview: a connection with the channels that it subscribes to, and its requests for the history of metrics; another
process reads what comes. Turns without tabs, with ten, and without again alternate; figures are
medians, the costs those of the ratios of each round. The exit status is 1 if a message costs over 5 % more with ten
tabs.
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
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import random
from typing import Any

import httpx
import psutil
from websockets.asyncio.client import ClientConnection, connect

TOKEN = "token-of-the-benchmark"
PAGES = 10
MOST = 0.05
CHANNELS: dict[str, dict[str, Any]] = {
    "status": {},
    "alarms": {},
    "lists": {"kind": "actions", "limit": 200},
}
NAMES = (
    "messages_received messages_internal messages_sent messages_dropped messages_resent_already_taken "
    "rules_matched actions_messages rule_failed_exception schema_validation_failed "
    "message_transformation_failed stage_p99_seconds stage_p50_seconds store_commit_average_seconds "
    "event_loop_lag_seconds queued_messages action_queuing table_lag_records bytes_received bytes_sent "
    "store_bytes connections sessions subscriptions cpu_seconds memory_bytes "
)
QUERY = "&names=".join(NAMES.split())
POLLS = {f"metrics/history?from=FROM&step=1&names={QUERY}": 10.0}
"""What the Overview asks for, and how many seconds pass between two requests."""


def main() -> int:
    """Run turns and print the medians."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=14)
    parser.add_argument("--count", type=int, default=300_000, help="messages of a turn")
    parser.add_argument("--watch", metavar="URL", help="only be the tabs")
    options = parser.parse_args()
    if options.watch:
        asyncio.run(_watch(options.watch))
        return 0
    with tempfile.TemporaryDirectory() as folder, _broker(Path(folder)) as (process, mqtt, url):
        _fill(url)
        turns: dict[str, list[tuple[float, float]]] = {"none": [], "ten": [], "after": []}
        _turn(process, mqtt, options.count)
        for _ in range(options.rounds):
            turns["none"].append(_turn(process, mqtt, options.count))
            with _tabs(url):
                turns["ten"].append(_turn(process, mqtt, options.count))
            turns["after"].append(_turn(process, mqtt, options.count))
    for name, found in turns.items():
        cpu_us, rate = (statistics.median(one[at] for one in found) for at in (0, 1))
        print(
            f"{name:6} tabs: {cpu_us:.1f} us of processor time per message, {rate:,.0f} messages/s",
            flush=True,
        )
    ten, after = (
        statistics.median(
            one[0] / without[0] - 1 for one, without in zip(turns[name], turns["none"], strict=True)
        )
        for name in ("ten", "after")
    )
    print(f"ten tabs: {ten:+.1%} per message (at most {MOST:.0%}); after they left: {after:+.1%}")
    return int(ten > MOST)


def _turn(process: psutil.Process, mqtt: str, count: int) -> tuple[float, float]:
    """Processor time of the broker per message in microseconds, and messages per second."""
    command = [
        sys.executable, "-m", "benchmarks.load", "throughput", "--port", mqtt.rpartition(":")[2], "--pubs", "4",
        "--count", str(count), "--qos", "1", "--subqos", "0", "--idle", "0.5",
    ]  # fmt: skip
    before = process.cpu_times()
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    after = process.cpu_times()
    used_s = after.user + after.system - before.user - before.system
    return used_s * 1e6 / count, json.loads(done.stdout)["pub_per_s"]


@contextmanager
def _broker(folder: Path) -> Iterator[tuple[psutil.Process, str, str]]:
    command = [
        sys.executable, "-m", "broker.cli.main", "serve", "--data-dir", str(folder / "data"),
        "--mqtt", "127.0.0.1:0", "--api", "127.0.0.1:0",
    ]  # fmt: skip
    environ = os.environ | {"SLUICE_API_TOKEN": TOKEN, "SLUICE_OVERLOAD__ENABLE": "false"}
    with subprocess.Popen(
        command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as started:
        assert started.stdout is not None
        fields = dict(
            word.split("=", 1) for word in started.stdout.readline().split() if "=" in word
        )
        try:
            yield psutil.Process(started.pid), fields["mqtt"], f"http://{fields['api']}"
        finally:
            started.terminate()


def _fill(url: str) -> None:
    headers = {"Authorization": f"Bearer {TOKEN}"}
    with httpx.Client(
        base_url=f"{url}/api/v1", headers=headers, timeout=60, trust_env=False
    ) as api:
        for number in range(100):
            topic = "bench/#" if number < 5 else f"other/{number}"
            rule = {"name": f"rule-{number}", "sql": f'SELECT topic, qos FROM "{topic}"'}
            api.post("/rules", json=rule).raise_for_status()


@contextmanager
def _tabs(url: str) -> Iterator[None]:
    command = [sys.executable, "-m", "benchmarks.live", "--watch", url]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as started:
        assert started.stdin is not None
        assert started.stdout is not None
        assert started.stdout.readline() == "ready\n"
        yield
        started.stdin.close()
        print(started.stdout.readline(), end="", flush=True)


async def _watch(url: str) -> None:
    """Ten tabs that read what they get, until standard input ends."""
    address, headers = (
        f"{url.replace('http', 'ws', 1)}/api/v1/live",
        {"Authorization": f"Bearer {TOKEN}"},
    )
    opened = [
        await connect(address, additional_headers=headers, max_size=None) for _ in range(PAGES)
    ]
    readers = [asyncio.create_task(_read(page)) for page in opened]
    for page in opened:
        for channel, parameters in CHANNELS.items():
            sent = {
                "kind": "subscribe",
                "id": channel,
                "channel": channel,
                "parameters": parameters,
            }
            await page.send(json.dumps(sent))
    api = httpx.AsyncClient(base_url=f"{url}/api/v1", headers=headers, timeout=60, trust_env=False)
    polls = [
        asyncio.create_task(_poll(api, path, every_s))
        for path, every_s in POLLS.items()
        for _ in opened
    ]
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.read)
    for poll in polls:
        poll.cancel()
    for page in opened:
        await page.close()
    counts = await asyncio.gather(*readers)
    print(f"  a tab got {statistics.median(counts):.0f} frames", flush=True)


async def _poll(api: httpx.AsyncClient, path: str, every_s: float) -> None:
    await asyncio.sleep(random() * every_s)  # tabs were not opened at one instant
    while True:
        from_ms = round((time.time() - 300) * 1000)
        (await api.get(path.replace("FROM", str(from_ms)))).raise_for_status()
        await asyncio.sleep(every_s)


async def _read(page: ClientConnection) -> int:
    count = 0
    async for _ in page:
        count += 1
    return count


if __name__ == "__main__":
    sys.exit(main())
