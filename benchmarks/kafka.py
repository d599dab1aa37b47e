"""To Kafka and from it, a real one on the same machine: `python -m benchmarks.kafka`.

Kafka and the load generator share the cores with the broker, so besides records per second the processor time that
the broker takes for one is shown. `--outage 600` makes the outage of the last case ten minutes long.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

from benchmarks.bare import ROOT
from benchmarks.load import connect, cpu_s, publish, resident_bytes, subscribe
from benchmarks.pipeline import TOKEN, create, serving
from tests.support.kafka_server import Kafka
from tests.support.kafka_topic import Topic

TO_KAFKA = 60_000
"""Records a second, at least, of 128 bytes."""
FROM_KAFKA = 40_000
ADDED_P99_MS = 20.0
LATENCY_RATE = INFLOW = 5000
DRAIN_TIMES = 5.0
GROWTH_MB = 50.0
_PARTITIONS = 6
_WARM_S = 45
"""The store fills its buffers before memory is looked at."""


def main() -> None:
    """Run the cases and print a line for each; the exit status tells whether all that is wanted was reached."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=300_000, help="records of the throughput cases")
    parser.add_argument("--outage", type=int, default=60, help="seconds that Kafka is away")
    parser.add_argument("--only", default="", help="cases whose name contains this")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, Kafka(Path(folder) / "kafka") as kafka:
        cases: dict[str, Callable[[], tuple[bool, str]]] = {
            "to Kafka, buffer in memory": lambda: to_kafka(kafka, options.count, "memory_only"),
            "to Kafka, buffer on disk": lambda: to_kafka(kafka, options.count, "disk"),
            "the same, QoS 1": lambda: to_kafka(kafka, options.count, "disk", qos=1),
            "the same, exactly once": lambda: to_kafka(kafka, options.count, "disk", qos=1, exactly_once=True),
            "added latency": lambda: added_latency(kafka),
            "from Kafka": lambda: from_kafka(kafka, options.count),
            "outage": lambda: outage(kafka, options.outage),
        }
        reached = []
        for name, run in cases.items():
            if options.only in name:
                is_reached, text = run()
                print(f"{name:28} {text}  {'reached' if is_reached else 'MISSED'}", flush=True)
                reached.append(is_reached)
    sys.exit(0 if all(reached) else 1)


# To Kafka


def to_kafka(kafka: Kafka, count: int, buffer: str, *, qos: int = 0, exactly_once: bool = False) -> tuple[bool, str]:
    """Ten publishers at full speed; the clock stops when Kafka has confirmed everything. QoS 1 costs the connections
    as much again, and nothing is demanded of it."""
    with serving() as (ready, _):
        action = _write_to(kafka, ready["api"], buffer, exactly_once=exactly_once)
        pid = _pid(ready)
        before_s = cpu_s(pid)
        load = ("--pubs", "10", "--subs", "0", "--topics", "10", "--window", "200")
        amount = ("--count", str(count), "--qos", str(qos))
        with _loading(ready, "throughput", *load, *amount):
            while not action.count("matched"):
                time.sleep(0.01)
            started = time.perf_counter()
            action.wait_for(count)
        taken_s, used_us = time.perf_counter() - started, (cpu_s(pid) - before_s) / count * 1e6
        assert action.topic_size() >= count
    rate = count / taken_s
    return rate >= TO_KAFKA or qos == 1, f"{rate:9,.0f} records/s  {used_us:5.1f} µs of the broker each"


def added_latency(kafka: Kafka) -> tuple[bool, str]:
    """From the publish to Kafka's time of the append, at a steady rate."""
    with serving() as (ready, _):
        action = _write_to(kafka, ready["api"], "memory_only", message_timestamp_type="LogAppendTime")
        pump = Pump(ready["mqtt"], LATENCY_RATE, qos=0, with_stamp=True)
        pump.run_for(15)
        action.wait_for(pump.sent)
        records = action.records()
    taken_ms = np.array([record.timestamp - json.loads(record.value)["at"] for record in records[LATENCY_RATE:]])
    p50, p99 = np.percentile(taken_ms, [50, 99])
    return bool(p99 <= ADDED_P99_MS), f"p50 {p50:.1f} ms, p99 {p99:.1f} ms at {LATENCY_RATE} a second"


def outage(kafka: Kafka, seconds: int) -> tuple[bool, str]:
    """Kafka is away while messages come in; then what waits is sent while more come."""
    with serving() as (ready, _):
        action = _write_to(kafka, ready["api"], "disk")
        pump, pid = Pump(ready["mqtt"], INFLOW, qos=1), _pid(ready)
        pump.run_for(_WARM_S)
        action.wait_for(pump.sent)
        before = resident_bytes(pid)
        kafka.kill()
        pump.run_for(seconds)
        growth = (resident_bytes(pid) - before) / 1e6
        waiting, confirmed = pump.sent - action.count("success"), action.count("success")
        kafka.start()
        while action.count("success") == confirmed:
            time.sleep(0.05)
        background = threading.Thread(target=pump.run_for, args=(5,))
        started = time.perf_counter()
        background.start()
        action.wait_for(pump.sent)
        drained_s = time.perf_counter() - started
        background.join()
        action.wait_for(pump.sent)
        lost = max(0, pump.sent - action.topic_size())
    times = waiting / drained_s / INFLOW
    is_reached = not lost and times >= DRAIN_TIMES and growth <= GROWTH_MB
    text = f"{waiting:,} rows waited, {lost} lost, drained at {times:.1f} times the inflow, grew by {growth:.0f} MB"
    return is_reached, text


class Action:
    """The action ``kafka:out`` of a broker and its topic."""

    def __init__(self, api: str, topic: Topic) -> None:
        self._api, self._topic = api, topic

    def count(self, what: str) -> int:
        """One of its counters."""
        request = urllib.request.Request(
            f"http://{self._api}/api/v1/actions/out/metrics", headers={"Authorization": f"Bearer {TOKEN}"}
        )
        with urllib.request.urlopen(request) as answer:
            number: int = json.load(answer)[what]
        return number

    def wait_for(self, count: int) -> None:
        """Until so many rows are confirmed."""
        until = time.monotonic() + 600
        while self.count("success") < count:
            if time.monotonic() > until:
                raise SystemExit(f"only {self.count('success')} of {count} records arrive")
            time.sleep(0.05)

    def records(self) -> list[Any]:
        """All records of the topic."""
        return asyncio.run(self._topic.records())

    def topic_size(self) -> int:
        """Records that are in the topic; with transactions, their markers too."""

        async def ask() -> int:
            consumer = AIOKafkaConsumer(bootstrap_servers=self._topic.kafka.bootstrap)
            await consumer.start()
            try:
                places = [TopicPartition(self._topic.name, number) for number in range(_PARTITIONS)]
                return sum((await consumer.end_offsets(places)).values())
            finally:
                await consumer.stop()

        return asyncio.run(ask())


def _write_to(kafka: Kafka, api: str, buffer: str, *, exactly_once: bool = False, **config: str) -> Action:
    topic = asyncio.run(Topic(kafka, _PARTITIONS).make(**config))
    create(api, "connectors", {"name": "k", "type": "kafka", "bootstrap_hosts": kafka.bootstrap})
    parameters = {"topic": topic.name, "message": {"key": "${clientid}", "value": "${payload}"}}
    options = {"buffer_mode": buffer, "max_buffer_bytes": "4GB"}
    spec = {"name": "out", "type": "kafka", "connector": "k", "resource_opts": options}
    create(api, "actions", {**spec, "parameters": {**parameters, "exactly_once": exactly_once}})
    rule = {"name": "out", "sql": 'SELECT clientid, payload FROM "bench/#"', "actions": ["kafka:out"]}
    create(api, "rules", rule)
    return Action(api, topic)


class Pump:
    """A publisher at a steady rate, in steps of five milliseconds."""

    def __init__(self, address: str, rate: int, *, qos: int, with_stamp: bool = False) -> None:
        host, _, port = address.rpartition(":")
        options = argparse.Namespace(host=host, port=int(port), username=None, password=None)
        self._link: socket.socket = connect(options, "pump")
        self._each, self._qos, self._with_stamp = rate // 200, qos, with_stamp
        self.sent = 0

    def run_for(self, seconds: float) -> None:
        """Publish, and wait for what is to be acknowledged."""
        started = time.perf_counter()
        for step in range(int(seconds * 200)):
            wait_s = started + step / 200 - time.perf_counter()
            if wait_s > 0:
                time.sleep(wait_s)
            at = round(time.time() * 1000, 3) if self._with_stamp else 0
            payload = json.dumps({"at": at}).encode().ljust(128)
            packets = [publish("bench/0/0", payload, self._qos, number + 1) for number in range(self._each)]
            self._link.sendall(b"".join(packets))
            self.sent += self._each
            left = 4 * self._each * self._qos
            while left:
                left -= len(self._link.recv(left))


# From Kafka


def from_kafka(kafka: Kafka, count: int) -> tuple[bool, str]:
    """A topic that is full is read, and every record published to one subscriber."""
    topic = asyncio.run(_filled(kafka, count))
    with serving() as (ready, _):
        host, _, port = ready["mqtt"].rpartition(":")
        pid = _pid(ready)
        before_s = cpu_s(pid)
        link = _subscribed(host, int(port))
        create(ready["api"], "connectors", {"name": "k", "type": "kafka", "bootstrap_hosts": kafka.bootstrap})
        parameters = {
            "topics": [topic.name],
            "offset_reset_policy": "earliest",
            "publish": {"topic": "out/t", "qos": 0},
        }
        create(ready["api"], "sources", {"name": "in", "type": "kafka", "connector": "k", "parameters": parameters})
        size, received, first = len(publish("out/t", bytes(128), 0)), 0, 0.0
        while received < count * size:
            received += len(link.recv(1 << 20))
            first = first or time.perf_counter()
        rate = count / (time.perf_counter() - first)
        used_us = (cpu_s(pid) - before_s) / count * 1e6
    return rate >= FROM_KAFKA, f"{rate:9,.0f} messages/s  {used_us:5.1f} µs of the broker each"


async def _filled(kafka: Kafka, count: int) -> Topic:
    topic = await Topic(kafka, _PARTITIONS).make()
    producer = AIOKafkaProducer(bootstrap_servers=kafka.bootstrap, max_batch_size=1 << 19, linger_ms=5)
    await producer.start()
    for number in range(count):
        await producer.send(topic.name, b"x" * 128, partition=number % _PARTITIONS)
    await producer.stop()
    return topic


def _subscribed(host: str, port: int) -> socket.socket:
    link = connect(argparse.Namespace(host=host, port=port, username=None, password=None), "reader")
    subscribe(link, "out/#", 0)
    return link


def _pid(ready: dict[str, str]) -> int:
    """The process that listens on the port of MQTT."""
    port = int(ready["mqtt"].rpartition(":")[2])
    for one in psutil.net_connections("tcp"):
        if one.status == psutil.CONN_LISTEN and one.laddr.port == port and one.pid:
            return int(one.pid)
    raise SystemExit(f"nobody listens on port {port}")


@contextmanager
def _loading(ready: dict[str, str], mode: str, *arguments: str) -> Iterator[None]:
    port = ready["mqtt"].rpartition(":")[2]
    command = [sys.executable, "-m", "benchmarks.load", mode, "--port", port, "--timeout", "300", *arguments]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL):
        yield


if __name__ == "__main__":
    main()
