"""Microseconds a message for SQL rules: bytes in, row out, JSON decoding included.

python -m benchmarks.rules
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from broker.core.client import Client
from broker.core.message import Message
from rules.functions.library import standard
from rules.sql.compiler import Surroundings, compile_for_messages
from rules.sql.parser import parse
from rules.sql.values import json_bytes

SMALL = b'{"temp":25.5,"humidity":40.25,"device":"meter-0042"}'
LARGE = (
    b'{"device":"meter-0042","ts":1700000000123,"temp":25.5,"humidity":48.25,'
    b'"voltage":229.9,"state":"ok","seq":12345,"fw":"1.4","tags":[{"k":"a","v":1},{"k":"b","v":2}]}'
)
CANONICAL = 'SELECT payload.temp AS t, payload.temp * 1.8 + 32 AS f, clientid FROM "bench/#" WHERE payload.temp > 20'
RULES = {
    "canonical": CANONICAL,
    "one column": 'SELECT payload.temp FROM "bench/#"',
    "every column": 'SELECT * FROM "bench/#"',
    "WHERE fails": 'SELECT payload.temp AS t FROM "bench/#" WHERE payload.temp > 90',
    "strings": "SELECT upper(payload.device) AS d, concat(topic, '/x') AS t FROM \"bench/#\" "
    "WHERE payload.device != 'x' AND topic =~ 'bench/+'",
    "case": "SELECT CASE WHEN payload.temp < 0 THEN 'cold' WHEN payload.temp < 30 THEN 'mild' ELSE 'hot' END AS c "
    'FROM "bench/#"',
    "foreach": 'FOREACH payload.tags AS x DO x.k AS k, x.v + 1 AS v INCASE x.v > 0 FROM "bench/#"',
}
MESSAGES, ROUNDS = 2_000, 20
WANTED_PER_S = 500_000


def messages(payload: bytes) -> list[Message]:
    """Messages that nobody has decoded yet."""
    client = Client("c1", "u1", "127.0.0.1", 1883)
    return [Message("bench/1", payload, 0, False, client, time.time_ns()) for _ in range(MESSAGES)]


def microseconds(run: Callable[[Message], Any], payload: bytes) -> float:
    """The least time of a message over all rounds."""
    least = float("inf")
    for _ in range(ROUNDS):
        batch = messages(payload)
        start = time.perf_counter()
        for message in batch:
            run(message)
        least = min(least, time.perf_counter() - start)
    return least / MESSAGES * 1e6


def main() -> None:
    """Print a line a rule."""
    functions, surroundings = standard(), Surroundings("bench", {}, lambda: 0)
    programs: dict[str, Callable[[Message], Any]] = {
        name: compile_for_messages(parse(sql), functions, surroundings).run for name, sql in RULES.items()
    }
    canonical = programs["canonical"]
    programs["canonical to JSON"] = lambda message: json_bytes(canonical(message))
    print(f"{'rule':20}{'µs':>8}{'per s':>12}")
    print(f"{'JSON decode alone':20}{microseconds(Message.json, SMALL):8.2f}")
    for name, run in programs.items():
        took = microseconds(run, LARGE if name == "foreach" else SMALL)
        print(f"{name:20}{took:8.2f}{1e6 / took:12,.0f}")
    took = microseconds(canonical, SMALL)
    verdict = "reached" if 1e6 / took >= WANTED_PER_S else "missed"
    print(f"canonical: {1e6 / took:,.0f} a second; {WANTED_PER_S:,} {verdict}")


if __name__ == "__main__":
    main()
