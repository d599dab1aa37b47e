"""What work beside the publish path costs it: `python -m benchmarks.beside [index|replay]`.

`sluice serve` with a stream that holds many records. A client publishes to it with QoS 1 at a fixed rate, in turns
without the work and beside it: the topic index of all the records is built, or a replay sends them to other topics, as
fast as it can or at ``--replay-rate``. Printed are medians of the turns: milliseconds from a publish to its
acknowledgement, the processor time of the broker's process for a message, replayed ones included, and the longest that
the event loop was held by its own work.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from select import select
from typing import Any, NamedTuple

import httpx
import numpy as np

from benchmarks.load import connect, cpu_s, link_to, payload_of, publish
from benchmarks.pipeline import TOKEN, serving

STREAM: dict[str, Any] = {"name": "bench", "topics": ["bench/#"]}
LOOK_EVERY_S = 0.5
PATIENCE_S = 120.0
LAG = "sluice_event_loop_own_lag_seconds"
WATCHED = {"INTERVAL": "0.5", "REFUSE_CONNECTIONS": "false", "DEFER_WORK": "false"}
"""The broker looks at its loop often, and does nothing about a busy machine."""


class Turn(NamedTuple):
    """The figures of one turn, and the records that the work beside it got through in a second."""

    p50_ms: float
    p99_ms: float
    cpu_us: float
    lag_ms: float
    work_per_s: float


class Broker:
    """A broker and its API."""

    def __init__(self, ready: dict[str, str]) -> None:
        self.mqtt, self.pid = ready["mqtt"], int(ready["pid"])
        headers = {"Authorization": f"Bearer {TOKEN}", "Prefer": "respond-async"}
        self._api = httpx.Client(
            base_url=f"http://{ready['api']}", headers=headers, timeout=60, trust_env=False
        )

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        """The answer of the API."""
        answer = self._api.request(method, f"/api/v1/{path}", json=body)
        answer.raise_for_status()
        return answer.json() if answer.content else None

    def lag_s(self) -> float:
        """The longest that the loop was held by its own work, lately."""
        lines = self._api.get("/metrics").text.splitlines()
        return max(float(line.rpartition(" ")[2]) for line in lines if line.startswith(LAG))


def main() -> int:
    """Print the medians of turns without the work and beside it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "work", nargs="?", choices=sorted(WORK), help="default: both, one after the other"
    )
    parser.add_argument("--records", type=int, default=2_000_000, help="of the stream")
    parser.add_argument("--rate", type=float, default=2_000.0, help="messages a second")
    parser.add_argument("--seconds", type=float, default=8.0, help="of a turn")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--replay-rate", type=int, help="records a second; default: no limit")
    options = parser.parse_args()
    os.environ |= {f"SLUICE_OVERLOAD__{name}": value for name, value in WATCHED.items()}
    for work in [options.work] if options.work else sorted(WORK):
        _compare(work, options)
    return 0


def _compare(work: str, options: argparse.Namespace) -> None:
    turns: dict[str, list[Turn]] = {"without": [], "beside": []}
    with serving() as (ready, _):
        broker = Broker(ready)
        broker.ask("POST", "streams", STREAM)
        _fill(broker.mqtt, options.records)
        for _ in range(options.rounds):
            turns["without"].append(_turn(broker, options))
            with WORK[work](broker, options) as done:
                turns["beside"].append(_turn(broker, options, done, counts=work == "replay"))
    for name, found in turns.items():
        p50, p99, cpu, lag, other_per_s = (
            statistics.median(values) for values in zip(*found, strict=True)
        )
        longest = max(turn.lag_ms for turn in found)
        print(
            f"{name:8} the {work}: acknowledged after {p50:.1f} ms (p99 {p99:.1f}), {cpu:.1f} us a message, "
            f"loop held {lag:.0f} ms (at most {longest:.0f}); {other_per_s:,.0f} records/s beside"
        )
    pairs = zip(turns["beside"], turns["without"], strict=True)
    print(
        f"processor time a message: {statistics.median(one.cpu_us / other.cpu_us for one, other in pairs):.2f} times"
    )


def _fill(mqtt: str, records: int) -> None:
    command = [
        *(
            sys.executable,
            "-m",
            "benchmarks.load",
            "throughput",
            "--port",
            mqtt.rpartition(":")[2],
            "--subs",
            "0",
        ),
        *(
            "--pubs",
            "4",
            "--topics",
            "2500",
            "--block",
            "2500",
            "--window",
            "2500",
            "--count",
            str(records),
        ),
        *("--qos", "1", "--timeout", "600"),
    ]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def _nothing() -> int:
    return 0


def _turn(
    broker: Broker, options: argparse.Namespace, done: Any = _nothing, *, counts: bool = False
) -> Turn:
    """One turn; ``counts``: the broker publishes what the work beside it gets through."""
    lags, over = [0.0], threading.Event()

    def look() -> None:
        while not over.wait(LOOK_EVERY_S):
            lags.append(broker.lag_s())

    time.sleep(2)  # what an earlier turn has left is no longer the latest
    looking = threading.Thread(target=look)
    looking.start()
    used_s, before, began = cpu_s(broker.pid), done(), time.monotonic()
    taken_ms = np.array(_acknowledged(broker.mqtt, options.rate, options.seconds)) * 1e3
    work, took_s = done() - before, time.monotonic() - began
    used_s = cpu_s(broker.pid) - used_s
    over.set()
    looking.join()
    messages = len(taken_ms) + (work if counts else 0)
    p50, p99 = np.percentile(taken_ms, [50, 99])
    return Turn(float(p50), float(p99), used_s * 1e6 / messages, max(lags) * 1e3, work / took_s)


def _acknowledged(mqtt: str, rate: float, seconds: float) -> list[float]:
    """Publish at a rate; the seconds until each acknowledgement."""
    link, total, sent = connect(link_to(mqtt), "beside"), int(rate * seconds), 0
    packets = [
        publish(f"bench/0000/{number:04d}", payload_of(128), 1, number + 1)
        for number in range(1000)
    ]
    waiting, taken, rest = deque[float](), list[float](), b""
    began = time.perf_counter()
    while len(taken) < total:
        due = min(total, int(rate * (time.perf_counter() - began)))
        now = time.perf_counter()
        if due > sent:
            link.sendall(b"".join(packets[number % 1000] for number in range(sent, due)))
            waiting.extend([now] * (due - sent))
            sent = due
        while select([link], [], [], 0.001 if sent == due else 0)[0]:
            rest += link.recv(1 << 16)
            now = time.perf_counter()
            taken += [now - waiting.popleft() for _ in range(len(rest) // 4)]
            rest = rest[len(rest) // 4 * 4 :]
            if due < total or len(taken) == total:
                break
        if now - began > seconds + PATIENCE_S:
            raise SystemExit(f"only {len(taken)} of {total} messages were acknowledged")
    link.close()
    return taken


@contextmanager
def _index(broker: Broker, options: argparse.Namespace) -> Iterator[Any]:
    """The index of all records is built; how many it has."""
    broker.ask("PUT", "streams/bench", {"topics": STREAM["topics"], "index": "topic"})

    def done() -> int:
        stream = broker.ask("GET", "streams/bench")
        state = stream["index_state"]
        if state["state"] == "failing":
            raise SystemExit(f"the index is failing: {state['problem']}")
        return int(stream["records"]) - int(state["records_waiting"])

    yield done
    broker.ask("PUT", "streams/bench", {"topics": STREAM["topics"]})


@contextmanager
def _replay(broker: Broker, options: argparse.Namespace) -> Iterator[Any]:
    """The records are sent to other topics; how many were."""
    order = {"to": "mqtt", "topic": "again/${topic}", "rate": options.replay_rate}
    job = broker.ask("POST", "streams/bench:replay", order)["id"]
    yield lambda: int(broker.ask("GET", f"jobs/{job}")["progress"]["done"])
    broker.ask("POST", f"jobs/{job}:cancel")


WORK = {"index": _index, "replay": _replay}

if __name__ == "__main__":
    sys.exit(main())
