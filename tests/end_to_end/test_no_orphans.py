"""A broker that is killed takes every process that it started with it."""

from __future__ import annotations

import json
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from tests.end_to_end.clients import Client, publish
from tests.support.node import Node, eventually, running


def _alive(processes: Iterable[psutil.Process]) -> list[str]:
    """Those that still run, by their command lines; a zombie that nobody has waited for does not."""
    left = []
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            if process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
                left.append(f"{process.pid}: {' '.join(process.cmdline())[:200]}")
    return left


def _with_directory(directory: Path) -> list[psutil.Process]:
    """Processes of the whole machine that have the node's directory open, among their arguments or as working place."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            places = [
                *process.cmdline(),
                process.cwd(),
                *(file.path for file in process.open_files()),
            ]
            if any(str(directory) in place for place in places):
                found.append(process)
    return found


def _check_ended(family: list[psutil.Process]) -> None:
    eventually(lambda: not _alive(family), what=f"the end of {_alive(family)}")


def _check_nothing_left(node: Node, family: list[psutil.Process]) -> None:
    _check_ended(family)
    eventually(
        lambda: not _alive(_with_directory(node.data_dir)), what="no process in the directory"
    )


def _commands(node: Node) -> str:
    found = []
    for process in node.children():
        with suppress(psutil.NoSuchProcess):
            found.append(" ".join(process.cmdline()))
    return "\n".join(found)


def test_kill_nine_ends_the_range_server_and_the_node_starts_again_at_once(tmp_path: Path) -> None:
    with running(tmp_path / "node") as node:
        node.call("POST", "/streams", {"name": "s", "topics": ["s"]})
        assert "broker.streams.server" in _commands(node)
        family = node.children()
        node.kill()
        node.start()
        publish(node, "s", "works", "-q", "1")
        _check_ended(family)
        _kill_range_server(node)
        family = node.children()
        node.kill()
        _check_nothing_left(node, family)


def _kill_range_server(node: Node) -> None:
    """It is started again, and serves."""
    (server,) = [
        process
        for process in node.children()
        if "broker.streams.server" in " ".join(process.cmdline())
    ]
    server.kill()

    def is_read() -> bool:
        with node.client(follow_redirects=True) as client:
            return client.get("/streams/s/records", params={"from": 0, "to": 1}).status_code == 200

    eventually(is_read, what="records to be served again")


@pytest.mark.spark
def test_no_spark_no_jvm_and_no_python_worker_outlives_its_broker(tmp_path: Path) -> None:
    with running(tmp_path / "node") as node:
        node.call("POST", "/streams", {"name": "s"})
        node.call("POST", "/rules", {
            "name": "s", "sql": 'SELECT payload.n AS n FROM "s/#"', "actions": [{"type": "stream", "stream": "s"}],
        })  # fmt: skip
        node.call("POST", "/lake/tables", {"name": "s", "stream": "s", "format": "delta"})
        with Client(node) as client:
            client.publish("s/1", json.dumps({"n": 1}))
        eventually(
            lambda: node.call("GET", "/lake/tables/s")["rows"],
            180,
            0.5,
            "the first row in the table",
        )
        assert node.call("GET", "/lake/tables/s/preview")["rows"][0]["n"] == 1
        commands = _commands(node)
        assert "bridges.spark.job" in commands
        assert "java" in commands
        assert "pyspark" in commands
        family = node.children()
        node.kill()
        _check_nothing_left(node, family)
        node.start()
        publish(node, "s/1", '{"n": 2}', "-q", "1")
        eventually(
            lambda: "bridges.spark.job" in _commands(node), what="the job to be started again"
        )
        family = node.children()
        assert node.stop() == 0
        _check_nothing_left(node, family)
