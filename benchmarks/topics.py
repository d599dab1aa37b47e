"""What looking at topics costs those who publish: nobody, the tree, a tail of everything, ten of them.

python -m benchmarks.topics

Sluice runs as users run it, without stages, and is loaded in turns: while nobody looks, while the tree is read each
second, with one tail of `#`, with ten, and with both. The figure is the processor time of the broker for each message,
which what else the machine does changes least; that of the requests is in it. Counting for the tree goes on for minutes
after a look, so a second broker has the turns with it. The exit status is 1 if a way to look costs more than 5 % in the
mean of the cases.
"""

from __future__ import annotations

import argparse
import json
import socket
import sys
import threading
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from statistics import mean, median

from benchmarks.bare import load
from benchmarks.load import cpu_s
from benchmarks.pipeline import TOKEN, serving

WANTED = 1.05
_HEADERS = {"Authorization": f"Bearer {TOKEN}"}
Look = Callable[[str], Iterator[None]]
"""Looks while it is iterated over; gets the address of the API."""
CASES = (
    ("QoS 0, 1 to 1", ("--count", "5000000")),
    ("QoS 0, 1 to 1, 1,000 topics in turn", ("--count", "5000000", "--topics", "1000")),
    ("QoS 1, 1 to 1", ("--qos", "1", "--subqos", "1", "--count", "100000")),
)


def main() -> int:
    """Print the figures. The exit status is 1 if the mean cost of a kind of look exceeds its target."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5, help="turns of each way to look")
    rounds = parser.parse_args().rounds
    ratios: dict[str, list[float]] = {}
    with serving() as unlooked, serving() as looked:
        brokers = [_Broker(*unlooked), _Broker(*looked)]
        looks: dict[str, tuple[_Broker, Look]] = {
            "nobody looks": (brokers[0], nothing),
            "one tail of #": (brokers[0], lambda api: tails(api, 1)),
            "ten tails of #": (brokers[0], lambda api: tails(api, 10)),
            "tree": (brokers[1], tree),
            "ten tails and the tree": (brokers[1], both),
        }
        for broker in brokers:
            load(broker.port, CASES[0][1])
        for name, arguments in CASES:
            count = int(arguments[arguments.index("--count") + 1])
            each: dict[str, list[float]] = {look: [] for look in looks}
            for _ in range(rounds):
                for look, (broker, begin) in looks.items():
                    with contextmanager(begin)(broker.api):
                        before = cpu_s(broker.pid)
                        load(broker.port, (*arguments, "--idle", "1"))
                        each[look].append((cpu_s(broker.pid) - before) / count * 1e6)
            base = median(each["nobody looks"])
            for look, figures in each.items():
                ratio = median(figures) / base
                print(
                    f"{name:36} {look:24} {median(figures):7.3f} µs each  {ratio:5.3f} x",
                    flush=True,
                )
                ratios.setdefault(look, []).append(ratio)
    return int(max(map(mean, ratios.values())) > WANTED)


class _Broker:
    """Where a broker listens, and its process."""

    def __init__(self, ready: dict[str, str], folder: str) -> None:
        self.api, self.port = ready["api"], int(ready["mqtt"].rpartition(":")[2])
        self.pid: int = json.loads(Path(folder, "run", "node.json").read_text())["pid"]


def nothing(_api: str) -> Iterator[None]:
    """Nobody looks."""
    yield


def tree(api: str) -> Iterator[None]:
    """The tree is read each second."""
    ended = threading.Event()

    def look() -> None:
        while not ended.wait(1):
            request = urllib.request.Request(
                f"http://{api}/api/v1/topics?under=bench", headers=_HEADERS
            )
            with urllib.request.urlopen(request) as answer:
                answer.read()

    reader = threading.Thread(target=look)
    reader.start()
    try:
        yield
    finally:
        ended.set()
        reader.join()


def tails(api: str, count: int) -> Iterator[None]:
    """So many tails of everything are open, and read."""
    open_ones = [HTTPConnection(api, timeout=600) for _ in range(count)]
    begun = threading.Barrier(count + 1)
    readers = [threading.Thread(target=_follow, args=(one, begun)) for one in open_ones]
    for reader in readers:
        reader.start()
    begun.wait(60)
    try:
        yield
    finally:
        for one in open_ones:
            one.sock.shutdown(socket.SHUT_RDWR)
        for reader in readers:
            reader.join()


def both(api: str) -> Iterator[None]:
    """Ten tails and the tree."""
    with contextmanager(tails)(api, 10), contextmanager(tree)(api):
        yield


def _follow(connection: HTTPConnection, begun: threading.Barrier) -> None:
    """Read a tail of everything until the connection is shut down."""
    connection.request("GET", "/api/v1/topics/tail?filter=%23&seconds=600", headers=_HEADERS)
    with connection.getresponse() as answer, suppress(HTTPException, OSError):
        answer.readline()
        begun.wait(60)
        while answer.read1(1 << 16):
            pass


if __name__ == "__main__":
    sys.exit(main())
