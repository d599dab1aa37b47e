"""Wills of clients whose connection was cut by ``kill -9`` of the broker."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.end_to_end.clients import MosquittoSub, publish
from tests.support.node import running


@pytest.mark.parametrize("version", ["mqttv311", "mqttv5"])
def test_wills_of_clean_sessions_are_published_when_the_broker_is_back(
    tmp_path: Path, version: str
) -> None:
    durable = ["-V", "mqttv311", "-c", "-i", "watcher", "-q", "1", "-t", "wills/#"]
    with running(tmp_path / "node") as node:
        MosquittoSub(node, *durable).close()
        clients = []
        for number in range(3):
            topic = f"wills/{number}"
            will = ["--will-topic", topic, "--will-qos", "1", "--will-payload", "was cut"]
            clients.append(
                MosquittoSub(node, "-V", version, "-i", f"c{number}", "-t", "elsewhere", *will)
            )
        node.kill()
        for client in clients:
            client.close()
        node.start()
        with MosquittoSub(node, *durable) as watcher:
            assert sorted(watcher.take(3)) == [f"wills/{number} was cut" for number in range(3)]
            publish(node, "wills/last", "alive", "-q", "1")
            assert watcher.take(1) == ["wills/last alive"]
        assert node.stop() == 0
