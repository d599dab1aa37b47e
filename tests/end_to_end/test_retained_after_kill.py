"""Retained messages after ``kill -9``: the last acknowledged change of each topic, and nothing that was deleted."""

from __future__ import annotations

from pathlib import Path
from random import Random

from tests.support.node import Node, running


def _retain(node: Node, topic: str, payload: str) -> None:
    body = {"topic": topic, "payload": payload, "qos": 1, "retain": True}
    node.call("POST", "/messages:publish", body)


def _held(node: Node) -> dict[str, str]:
    items = node.call("GET", "/retained?filter=r/%23&limit=1000")["items"]
    return {item["topic"]: item["payload"]["data"] for item in items}


def test_what_was_acknowledged_is_there_and_what_was_deleted_never_comes_back(
    tmp_path: Path,
) -> None:
    random, expected = Random(7), dict[str, str]()
    with running(tmp_path / "data") as node:
        for _ in range(3):
            for number in range(60):
                topic = f"r/{random.randrange(20)}"
                payload = "" if random.random() < 0.4 else f"v{number}"
                _retain(node, topic, payload)
                if payload:
                    expected[topic] = payload
                else:
                    expected.pop(topic, None)
            node.kill()
            node.start()
            assert _held(node) == expected
            assert node.call("GET", "/retained:count")["messages"] >= len(expected)
