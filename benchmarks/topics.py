"""What looking at topics costs those who publish: nobody, the tree, a tail of everything, ten of them.

python -m benchmarks.topics

Sluice runs as users run it, without stages, and is loaded in turns: while nobody looks, while the tree is read each
second, with one tail of `#`, and with ten tails and the tree. The figure is the processor time of the broker for each
message, which what else the machine does changes least. The exit status is 1 if ten looks cost more than 5 %.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median

from benchmarks.bare import load
from benchmarks.load import cpu_s
from benchmarks.pipeline import TOKEN, serving

WANTED = 1.05
CASES = (
    ("QoS 0, 1 to 1", ("--count", "3000000")),
    ("QoS 0, 1 to 1, 1,000 topics in turn", ("--count", "3000000", "--topics", "1000")),
    ("QoS 1, 1 to 1", ("--qos", "1", "--subqos", "1", "--count", "100000")),
)


def main() -> int:
    """Print the figures; 1 when ten looks cost more than is wanted."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="turns of each way to look")
    rounds, worst = parser.parse_args().rounds, 0.0
    with serving() as (ready, folder):
        api, port = ready["api"], int(ready["mqtt"].rpartition(":")[2])
        pid = json.loads(Path(folder, "run", "node.json").read_text())["pid"]
        looks: dict[str, Callable[[], Iterator[None]]] = {
            "nobody looks": lambda: nothing(),
            "one tail of #": lambda: tails(api, 1),
            "ten tails of #": lambda: tails(api, 10),
            "tree": lambda: tree(api),
            "ten tails and the tree": lambda: both(api),
        }
        load(port, CASES[0][1])
        for name, arguments in CASES:
            count = int(arguments[arguments.index("--count") + 1])
            each: dict[str, list[float]] = {look: [] for look in looks}
            for _ in range(rounds):
                for look, begin in looks.items():
                    with contextmanager(begin)():
                        before = cpu_s(pid)
                        load(port, (*arguments, "--idle", "1"))
                        each[look].append((cpu_s(pid) - before) / count * 1e6)
            base = median(each["nobody looks"])
            for look, figures in each.items():
                ratio = median(figures) / base
                print(f"{name:36} {look:24} {median(figures):7.3f} µs each  {ratio:5.3f} x", flush=True)
                worst = max(worst, ratio)
    return int(worst > WANTED)


def nothing() -> Iterator[None]:
    """Nobody looks."""
    yield


def tree(api: str) -> Iterator[None]:
    """The tree is read each second."""
    ended = threading.Event()

    def look() -> None:
        while not ended.wait(1):
            with _get(api, "/topics?under=bench") as answer:
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
    with ExitStack() as open_ones:
        for _ in range(count):
            answer = open_ones.enter_context(_get(api, f"/topics/tail?filter={urllib.parse.quote('#')}&seconds=600"))
            answer.readline()
            threading.Thread(target=_drain, args=(answer,), daemon=True).start()
        yield
        for _ in range(1):
            time.sleep(0)


def both(api: str) -> Iterator[None]:
    """Ten tails and the tree."""
    with contextmanager(tails)(api, 10), contextmanager(tree)(api):
        yield


def _drain(answer: object) -> None:
    try:
        while answer.read1(1 << 16):  # type: ignore[attr-defined]  # an HTTP response
            pass
    except (OSError, ValueError, AttributeError):
        return


def _get(api: str, path: str):  # noqa: ANN202
    request = urllib.request.Request(f"http://{api}/api/v1{path}", headers={"Authorization": f"Bearer {TOKEN}"})
    return urllib.request.urlopen(request, timeout=600)


if __name__ == "__main__":
    sys.exit(main())
