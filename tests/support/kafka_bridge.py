"""A whole broker whose rule writes numbers to a Kafka, and what a test of outages asks of it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.kafka_topic import Topic
from tests.support.node import Node, eventually, running
from tests.support.numbered import Numbers, firsts_in_order

CAUSE_S = 10.0
CONFIG = "lake.run_spark = false\noverload.enable = false\n"
"""Machines that run tests may be so busy that a broker would take no clients."""
RULE = {"name": "all", "sql": 'SELECT payload.n AS n, topic FROM "n/#"', "actions": ["kafka:out"]}
RECORD = {"key": "${topic}", "value": "${n}"}


class KafkaBridge:
    """A connector, an action with its buffer on disk, a rule, and a client that publishes numbers."""

    def __init__(
        self, node: Node, topic: Topic, hosts: str, login: dict[str, Any], **parameters: Any
    ) -> None:
        self.node, self.topic, self.numbers = node, topic, Numbers()
        opts = {"health_check_interval": "1s", "reconnect_interval": "100ms"}
        connector = {
            "name": "plant",
            "type": "kafka",
            "bootstrap_hosts": hosts,
            "resource_opts": opts,
            **login,
        }
        node.call("POST", "/connectors", connector)
        action = {
            "name": "out",
            "type": "kafka",
            "connector": "plant",
            "parameters": {"topic": topic.name, "message": RECORD, **parameters},
            "resource_opts": {
                "buffer_mode": "disk",
                "health_check_interval": "1s",
                "request_timeout": "5s",
            },
        }
        node.call("POST", "/actions", action)
        node.call("POST", "/rules", RULE)

    def shown(self) -> dict[str, Any]:
        """The action; its counters add up whenever it is looked at."""
        shown: dict[str, Any] = self.node.call("GET", "/actions/out")
        counts = shown["metrics"]
        reasons = sum(number for name, number in counts.items() if name.startswith("dropped."))
        assert counts["dropped"] == reasons, counts
        ends = (
            counts["success"] + counts["failed"] + reasons + counts["queuing"] + counts["inflight"]
        )
        assert counts["matched"] == ends, counts
        return shown

    def count(self, what: str) -> int:
        """One of the counters."""
        number: int = self.shown()["metrics"][what]
        return number

    @property
    def waiting(self) -> int:
        """Rows that are not confirmed."""
        counts = self.shown()["metrics"]
        number: int = counts["queuing"] + counts["inflight"]
        return number

    def await_more(self, rows: int = 100) -> None:
        """Until so many more rows are confirmed."""
        before = self.count("success")
        eventually(
            lambda: self.count("success") >= before + rows, timeout_s=60, what=f"{rows} more rows"
        )

    def await_cause(self, *causes: str) -> str:
        """Until the state is not connected and names one of the causes, within ten seconds; the reason it gives.

        The failure lists every state and reason that the action showed meanwhile.
        """
        started_s = time.monotonic()
        shown: list[tuple[str, str]] = []
        log: list[str] = []

        def named() -> bool:
            action = self.shown()
            state = action["status"], action["status_reason"]
            if shown[-1:] != [state]:
                shown.append(state)
                log.append(f"after {time.monotonic() - started_s:.1f} s {state[0]}: {state[1]!r}")
            return state[0] != "connected" and any(cause in state[1] for cause in causes)

        try:
            eventually(named, timeout_s=CAUSE_S, what=f"one of {causes} as the reason")
        except AssertionError as error:
            raise AssertionError("\n".join([str(error), *log])) from None
        assert time.monotonic() - started_s <= CAUSE_S + 1, log
        return shown[-1][1]

    def await_drained(self) -> None:
        """Until everything published is confirmed and the state is well; nothing was given up."""
        self.numbers.stop()
        eventually(lambda: not self.waiting, timeout_s=60, what="all rows sent")
        eventually(
            lambda: self.shown()["status"] == "connected" and not self.shown()["status_reason"]
        )
        counts = self.shown()["metrics"]
        assert (counts["failed"], counts["dropped"]) == (0, 0)

    def assert_all_there(self, *, but: set[int] = frozenset()) -> None:  # type: ignore[assignment]  # never changed
        """Every number that was acknowledged is in the topic, ``but`` some, in the order of its key."""
        found = self.found()
        assert {number for _, number in found} >= self.numbers.acknowledged - but
        assert firsts_in_order(found)

    def found(self, *, committed: bool = False) -> list[tuple[str, int]]:
        """Key and number of every record, in order."""
        records = asyncio.run(self.topic.records(committed=committed))
        return [(record.key.decode(), int(record.value)) for record in records]

    def remove(self) -> None:
        """Take the objects away."""
        for path in ("/rules/all", "/actions/out", "/connectors/plant"):
            self.node.call("DELETE", path)


@contextmanager
def sending(
    node: Node,
    topic: Topic,
    hosts: str = "",
    login: dict[str, Any] | None = None,
    **parameters: Any,
) -> Iterator[KafkaBridge]:
    """A bridge of a broker that runs; rows go through it."""
    bridge = KafkaBridge(node, topic, hosts or topic.kafka.bootstrap, login or {}, **parameters)
    bridge.numbers.start(node.mqtt)
    try:
        bridge.await_more()
        yield bridge
    finally:
        bridge.numbers.stop()
        bridge.remove()


@contextmanager
def bridging(directory: Path, topic: Topic, **parameters: Any) -> Iterator[KafkaBridge]:
    """The same with a broker of its own."""
    with (
        running(directory / "node", config=CONFIG) as node,
        sending(node, topic, **parameters) as bridge,
    ):
        yield bridge
