"""SQL rules: microseconds a message on one core, bytes in to row out, JSON decoding included.

python -m benchmarks.rules
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from broker.core.client import Client
from broker.core.events import Events
from broker.core.message import Message
from rules.engine import RuleEngine, RulesTap
from rules.functions.library import standard
from rules.metrics import Counts
from rules.rule import Rule, Statement, compile_statement
from rules.sql.compiler.compile import compile_for_messages
from rules.sql.compiler.program import RuleContext
from rules.sql.sources import sources
from rules.sql.syntax.parser import parse
from rules.sql.values import json_bytes

PAYLOAD = (
    b'{"temp":25.5,"humidity":40.25,"device":"meter-0042","ts":1700000000123,"voltage":229.91,"state":"ok",'
    b'"seq":12345,"fw":"1.4.20"}'
)
ITEMS = json.dumps(
    {
        "device": "meter-0042",
        "values": [{"k": f"s{number}", "v": number / 4} for number in range(100)],
    },
    separators=(",", ":"),
).encode()
CANONICAL = 'SELECT payload.temp AS t, payload.temp * 1.8 + 32 AS f, clientid FROM "bench/#" WHERE payload.temp > 20'
FALSE = CANONICAL.replace("> 20", "> 90")
EACH = 'FOREACH payload.values AS x DO x.k AS k, x.v * 2 AS v INCASE x.v >= 0 FROM "bench/#"'
STATEMENTS = {
    "one column": 'SELECT payload.temp FROM "bench/#"',
    "every column": 'SELECT * FROM "bench/#"',
    "strings": "SELECT upper(payload.device) AS d, concat(topic, '/x') AS t FROM \"bench/#\" "
    "WHERE payload.device != 'x' AND topic =~ 'bench/+'",
    "case": "SELECT CASE WHEN payload.temp < 0 THEN 'cold' WHEN payload.temp < 30 THEN 'mild' ELSE 'hot' END AS c "
    'FROM "bench/#"',
    "in, like, between": "SELECT clientid FROM \"bench/#\" WHERE payload.state IN ('ok', 'warn') "
    "AND payload.device LIKE 'meter-%' AND payload.temp BETWEEN 0 AND 50",
}
MESSAGES, ROUNDS = 250, 60
RULES_ON_TOPIC, RULES_ELSEWHERE = 20, 10_000

Run = Callable[[Message], Any]


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a figure must reach: messages a second."""

    name: str
    run: Run
    payload: bytes
    per_s: int


def messages(payload: bytes, count: int) -> list[Message]:
    """Messages that nobody has decoded yet."""
    client = Client("c1", "u1", "127.0.0.1", 1883)
    return [Message("bench/1", payload, 0, False, client, time.time_ns()) for _ in range(count)]


def microseconds(run: Run, payload: bytes) -> float:
    """The least time of a message over all rounds, which are short, so that some are not disturbed."""
    least, count = float("inf"), MESSAGES if len(payload) < 1_000 else MESSAGES // 5
    for _ in range(ROUNDS):
        batch = messages(payload, count)
        start = time.perf_counter()
        for message in batch:
            run(message)
        least = min(least, time.perf_counter() - start)
    return least / count * 1e6


def statement(sql: str) -> Run:
    """The compiled function of a rule alone."""
    return compile_for_messages(parse(sql), standard(), RuleContext("bench", {}, lambda: 0)).run


def rules(*statements: str) -> RulesTap:
    """The stage with rules that have no actions: compiled, counted, found by topic."""
    return tap(
        [
            compile_statement(sql, standard(), RuleContext("bench", {}, lambda: 0))
            for sql in statements
        ]
    )


def tap(compiled: Sequence[Statement]) -> RulesTap:
    """The stage with rules of these statements."""
    engine = RuleEngine("bench", Events(), time.time_ns, ignores_sys_messages=True)
    named = [(f"r{number}", one) for number, one in enumerate(compiled)]
    engine.use([Rule(name, one, (), Counts(name), time.time_ns) for name, one in named])
    return RulesTap(engine)


def stage(*statements: str) -> Run:
    """What the pipeline calls on the topic of the messages here."""
    call = rules(*statements).plan("bench/1")
    assert call is not None
    return call


def compiling_ms(sql: str) -> float:
    """The least time from text to a rule for messages and events."""
    functions, least = standard(), float("inf")
    for _ in range(ROUNDS):
        start = time.perf_counter()
        compile_statement(sql, functions, RuleContext("bench", {}, lambda: 0))
        least = min(least, time.perf_counter() - start)
    return least * 1e3


def wanted() -> list[Wanted]:
    """The figures that are promised."""
    many = [CANONICAL.replace("> 20", f"> {number}") for number in range(RULES_ON_TOPIC)]
    return [
        Wanted("canonical", statement(CANONICAL), PAYLOAD, 500_000),
        Wanted("predicate false", statement(FALSE), PAYLOAD, 700_000),
        Wanted("canonical, as a stage", stage(CANONICAL), PAYLOAD, 500_000),
        Wanted(f"{RULES_ON_TOPIC} rules on the topic", stage(*many), PAYLOAD, 60_000),
        Wanted("FOREACH over 100 items", statement(EACH), ITEMS, 15_000),
    ]


def main() -> int:
    """Print a line a figure; the number of those that are missed."""
    missed = 0
    print(f"{'JSON decode alone':28}{microseconds(Message.json, PAYLOAD):8.2f} µs")
    for one in wanted():
        took = microseconds(one.run, one.payload)
        is_missed = 1e6 / took < one.per_s
        missed += is_missed
        verdict = "missed" if is_missed else "reached"
        print(f"{one.name:28}{took:8.2f} µs {1e6 / took:12,.0f} a second; {one.per_s:,} {verdict}")
    for name, sql in STATEMENTS.items():
        took = microseconds(statement(sql), PAYLOAD)
        print(f"{name:28}{took:8.2f} µs {1e6 / took:12,.0f} a second")
    canonical = statement(CANONICAL)
    print(
        f"{'canonical to JSON':28}{microseconds(lambda m: json_bytes(canonical(m)), PAYLOAD):8.2f} µs"
    )
    missed += _elsewhere() + _compiling()
    return missed


def _elsewhere() -> int:
    """Rules that read other topics: what they add to a message, and to the first one on a topic."""
    canonical = compile_statement(CANONICAL, standard(), RuleContext("bench", {}, lambda: 0))
    others = [f'SELECT clientid FROM "other/{number}/#"' for number in range(RULES_ELSEWHERE)]
    many = tap([canonical, *(replace(canonical, sources=sources(parse(sql))) for sql in others)])
    start = time.perf_counter()
    call = many.plan("bench/1")
    planned_ms = (time.perf_counter() - start) * 1e3
    assert call is not None
    alone, beside = microseconds(stage(CANONICAL), PAYLOAD), microseconds(call, PAYLOAD)
    is_missed = beside > alone * 1.15
    verdict = "missed" if is_missed else "reached"
    print(
        f"beside {RULES_ELSEWHERE:,} rules on other topics: {beside / alone:.2f} times as long; no change {verdict}"
    )
    print(f"  planning a topic among them, once a topic: {planned_ms:.2f} ms")
    return is_missed


def _compiling() -> int:
    slowest = max((compiling_ms(sql), sql) for sql in (CANONICAL, EACH, *STATEMENTS.values()))
    is_missed = slowest[0] > 10
    print(
        f"compile, the slowest of these: {slowest[0]:.2f} ms; at most 10 {'missed' if is_missed else 'reached'}"
    )
    return is_missed


if __name__ == "__main__":
    sys.exit(main())
