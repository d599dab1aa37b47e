"""To Kafka and from it, a real one on the same machine: `python -m benchmarks.kafka`.

Kafka and the load generator share the cores with the broker, so besides records per second the processor time that
the broker takes for one is shown, of all its threads: the least of several turns says most where other programs run.
`--outage 600` makes the outage of the last case ten minutes long. `--json` prints an object for each figure.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
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
_PER_RECORD = "processor time of a record"
_PATIENCE_S = 600
_WARM_S = 45
"""The store fills its buffers before memory is looked at."""


@dataclass(frozen=True, slots=True)
class Figure:
    """One line of the table. ``wanted`` is a lower bound, or with ``at_most`` an upper one; None for none."""

    what: str
    value: float
    unit: str
    wanted: float | None = None
    at_most: bool = False

    @property
    def is_reached(self) -> bool:
        """Whether it is as wanted."""
        if self.wanted is None:
            return True
        return self.value <= self.wanted if self.at_most else self.value >= self.wanted

    def line(self, case: str) -> str:
        """Of the table."""
        wanted = (
            ""
            if self.wanted is None
            else f"at {'most' if self.at_most else 'least'} {self.wanted:,g}"
        )
        verdict = "" if self.wanted is None else "reached" if self.is_reached else "MISSED"
        value = (
            f"{self.value:,.0f}"
            if self.value >= 1000 or self.value == int(self.value)
            else f"{self.value:.1f}"
        )
        return f"{case:28} {self.what:36} {value:>10} {self.unit:13} {wanted:16} {verdict}".rstrip()

    def as_json(self, case: str) -> str:
        """An object for programs."""
        return json.dumps({"case": case, **asdict(self), "is_reached": self.is_reached})


def main() -> None:
    """Run the cases and print their figures; the exit status tells whether all that is wanted was reached."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--count", type=int, default=200_000, help="records of one turn of the throughput cases"
    )
    parser.add_argument("--turns", type=int, default=3, help="turns of the cases to Kafka")
    parser.add_argument("--outage", type=int, default=60, help="seconds that Kafka is away")
    parser.add_argument("--only", default="", help="cases whose name contains this")
    parser.add_argument(
        "--json", action="store_true", help="print an object for each figure, one a line"
    )
    options = parser.parse_args()
    count, turns = options.count, options.turns
    with tempfile.TemporaryDirectory() as folder, Kafka(Path(folder) / "kafka") as kafka:
        cases: dict[str, Callable[[], list[Figure]]] = {
            "to Kafka, buffer in memory": lambda: to_kafka(
                kafka, count, turns, "memory_only", wanted=TO_KAFKA
            ),
            "to Kafka, buffer on disk": lambda: to_kafka(kafka, count, turns, "disk"),
            "the same, QoS 1": lambda: to_kafka(kafka, count, turns, "disk", qos=1),
            "the same, exactly once": lambda: to_kafka(
                kafka, count, turns, "disk", qos=1, exactly_once=True
            ),
            "added latency": lambda: added_latency(kafka),
            "from Kafka": lambda: from_kafka(kafka, count),
            "outage": lambda: outage(kafka, options.outage),
        }
        reached = []
        for name, run in cases.items():
            for figure in run() if options.only in name else ():
                print(figure.as_json(name) if options.json else figure.line(name), flush=True)
                reached.append(figure.is_reached)
    sys.exit(0 if all(reached) else 1)


# To Kafka


def to_kafka(
    kafka: Kafka,
    count: int,
    turns: int,
    buffer: str,
    *,
    qos: int = 0,
    exactly_once: bool = False,
    wanted: float | None = None,
) -> list[Figure]:
    """Ten publishers at full speed; the clock stops when Kafka has confirmed everything. A first turn, of a quarter, is
    not counted."""
    with serving() as (ready, _):
        action = _write_to(kafka, ready["api"], buffer, exactly_once=exactly_once)
        _to_kafka_once(ready, action, count // 4, qos)
        rates, used_us = zip(
            *(_to_kafka_once(ready, action, count, qos) for _ in range(turns)), strict=True
        )
        assert action.topic_size() >= action.count("success")
    return [
        Figure("records", statistics.median(rates), "a second", wanted),
        Figure(f"{_PER_RECORD}, least", min(used_us), "µs"),
        Figure(f"{_PER_RECORD}, median", statistics.median(used_us), "µs"),
    ]


def _to_kafka_once(
    ready: dict[str, str], action: Action, count: int, qos: int
) -> tuple[float, float]:
    """Records a second, and microseconds of the broker for each."""
    pid, before = _pid(ready), action.count("matched")
    load = ("--pubs", "10", "--subs", "0", "--topics", "10", "--window", "200")
    with _loading(ready, "throughput", *load, "--count", str(count), "--qos", str(qos)):
        while action.count("matched") == before:
            time.sleep(0.02)
        started, used_s = time.perf_counter(), cpu_s(pid)
        action.wait_for(before + count // 10 * 10)
        taken_s = time.perf_counter() - started
    return count / taken_s, (cpu_s(pid) - used_s) / count * 1e6


def added_latency(kafka: Kafka) -> list[Figure]:
    """From the publish to Kafka's time of the append, at a steady rate."""
    with serving() as (ready, _):
        action = _write_to(
            kafka, ready["api"], "memory_only", message_timestamp_type="LogAppendTime"
        )
        pump = Pump(ready["mqtt"], LATENCY_RATE, qos=0, with_stamp=True)
        pump.run_for(15)
        action.wait_for(pump.sent)
        records = action.records()
    taken_ms = np.array(
        [record.timestamp - json.loads(record.value)["at"] for record in records[LATENCY_RATE:]]
    )
    p50, p99 = np.percentile(taken_ms, [50, 99])
    return [
        Figure(f"p50 at {LATENCY_RATE:,} a second", p50, "ms"),
        Figure(f"p99 at {LATENCY_RATE:,} a second", p99, "ms", ADDED_P99_MS, at_most=True),
    ]


def outage(kafka: Kafka, seconds: int) -> list[Figure]:
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
    return [
        Figure("rows that waited", waiting, "rows"),
        Figure("lost", lost, "rows", 0, at_most=True),
        Figure(
            f"drained, of {INFLOW:,} a second", waiting / drained_s / INFLOW, "times", DRAIN_TIMES
        ),
        Figure("memory that it took", growth, "MB", GROWTH_MB, at_most=True),
    ]


class Action:
    """The action ``kafka:out`` of a broker and its topic."""

    def __init__(self, api: str, topic: Topic) -> None:
        self._api, self._topic = api, topic

    def count(self, what: str) -> int:
        """One of its counters."""
        request = urllib.request.Request(
            f"http://{self._api}/api/v1/actions/out/metrics",
            headers={"Authorization": f"Bearer {TOKEN}"},
        )
        with urllib.request.urlopen(request) as answer:
            number: int = json.load(answer)[what]
        return number

    def wait_for(self, count: int) -> None:
        """Until so many rows are confirmed. Seldom asked, and more often towards the end: each answer takes the broker
        a millisecond or two."""
        started, first = time.monotonic(), self.count("success")
        while (done := self.count("success")) < count:
            passed_s = time.monotonic() - started
            if passed_s > _PATIENCE_S:
                raise SystemExit(f"only {done} of {count} records arrive")
            left_s = (count - done) * passed_s / (done - first) if done > first else 0.1
            time.sleep(min(max(left_s / 2, 0.01), 0.5))

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


def _write_to(
    kafka: Kafka, api: str, buffer: str, *, exactly_once: bool = False, **config: str
) -> Action:
    topic = asyncio.run(Topic(kafka, _PARTITIONS).make(**config))
    create(api, "connectors", {"name": "k", "type": "kafka", "bootstrap_hosts": kafka.bootstrap})
    parameters = {"topic": topic.name, "message": {"key": "${clientid}", "value": "${payload}"}}
    options = {"buffer_mode": buffer, "max_buffer_bytes": "4GB"}
    spec = {"name": "out", "type": "kafka", "connector": "k", "resource_opts": options}
    create(api, "actions", {**spec, "parameters": {**parameters, "exactly_once": exactly_once}})
    rule = {
        "name": "out",
        "sql": 'SELECT clientid, payload FROM "bench/#"',
        "actions": ["kafka:out"],
    }
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
            packets = [
                publish("bench/0/0", payload, self._qos, number + 1) for number in range(self._each)
            ]
            self._link.sendall(b"".join(packets))
            self.sent += self._each
            left = 4 * self._each * self._qos
            while left:
                left -= len(self._link.recv(left))


# From Kafka


def from_kafka(kafka: Kafka, count: int) -> list[Figure]:
    """A topic that is full is read, and every record published to one subscriber."""
    topic = asyncio.run(_filled(kafka, count))
    with serving() as (ready, _):
        host, _, port = ready["mqtt"].rpartition(":")
        pid = _pid(ready)
        before_s = cpu_s(pid)
        link = _subscribed(host, int(port))
        create(
            ready["api"],
            "connectors",
            {"name": "k", "type": "kafka", "bootstrap_hosts": kafka.bootstrap},
        )
        parameters = {
            "topics": [topic.name],
            "offset_reset_policy": "earliest",
            "publish": {"topic": "out/t", "qos": 0},
        }
        create(
            ready["api"],
            "sources",
            {"name": "in", "type": "kafka", "connector": "k", "parameters": parameters},
        )
        size, received, first = len(publish("out/t", bytes(128), 0)), 0, 0.0
        while received < count * size:
            received += len(link.recv(1 << 20))
            first = first or time.perf_counter()
        rate = count / (time.perf_counter() - first)
        used_us = (cpu_s(pid) - before_s) / count * 1e6
    return [Figure("messages", rate, "a second", FROM_KAFKA), Figure(_PER_RECORD, used_us, "µs")]


async def _filled(kafka: Kafka, count: int) -> Topic:
    topic = await Topic(kafka, _PARTITIONS).make()
    producer = AIOKafkaProducer(
        bootstrap_servers=kafka.bootstrap, max_batch_size=1 << 19, linger_ms=5
    )
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
    command = [
        sys.executable,
        "-m",
        "benchmarks.load",
        mode,
        "--port",
        port,
        "--timeout",
        "300",
        *arguments,
    ]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL):
        yield


if __name__ == "__main__":
    main()
