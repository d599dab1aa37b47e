"""A machine comes to a cluster that runs, gets a cell, and leaves it: nothing that was acknowledged is lost."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import httpx
import pytest

from tests.cluster.acknowledged import Acknowledged
from tests.support.machines import Cluster, Machine, machines
from tests.support.node import eventually, sluice

BEFORE = ("a", "b", "c")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Three machines that know of no fourth one."""
    with machines(
        tmp_path_factory.mktemp("cluster"), {"a": 1, "b": 1, "c": 2, "d": 0}, with_nats=True
    ) as cluster:
        cluster.know("d", of=BEFORE, is_known=False)
        assert cluster.nats is not None
        cluster.nats.start()
        for name in BEFORE:
            cluster[name].start()
        yield cluster
        for machine in cluster.machines.values():
            machine.begin_to_stop()
        for machine in cluster.machines.values():
            machine.stopped()


def _rows(machine: Machine) -> dict[str, dict[str, Any]]:
    return {row["name"]: row for row in machine.call("GET", "/cluster/machines")["items"]}


def _follow(machine: Machine, copies: dict[str, list[int]]) -> bool:
    rows = _rows(machine)
    return {name: rows[name]["copies"] for name in copies} == copies


def _runs(machine: Machine, cell: int) -> str:
    return next(name for name, row in _rows(machine).items() if cell in row["cells"])


def _is_home(machine: Machine) -> bool:
    return _runs(machine, machine.cells[0]) == machine.name


def test_a_machine_comes_gets_a_cell_and_is_lost(cluster: Cluster) -> None:
    messages = Acknowledged(cluster, 3, at="b")
    publish, take = messages.publish, messages.take
    publish("a")
    for name, other in zip(BEFORE, "bca", strict=True):
        cluster.know("d", of=[name], is_known=True)
        cluster[name].stop()
        eventually(partial(publish, other))
        cluster[name].start()
        eventually(partial(_is_home, cluster[name]))
    # until the new one has its copies, those that had them follow
    eventually(lambda: _follow(cluster["a"], {"a": [1, 2, 3], "b": [0, 2, 3], "c": [0, 1]}), 120)
    cluster["d"].begin()
    assert cluster["d"].first_line(60).startswith("drained: no cell runs here until")
    # of the machines before it; those that had them have them no more
    eventually(
        lambda: _follow(cluster["a"], {"a": [2, 3], "b": [0], "c": [0, 1], "d": [1, 2, 3]}), 120
    )
    eventually(lambda: not (cluster["b"].data_dir / "copies" / "3").exists())
    assert _rows(cluster["a"])["d"] | {"version": ""} == {
        "name": "d", "state": "running", "version": "", "cells": [], "home_cells": [], "copies": [1, 2, 3],
        "first_cell": None, "last_cell": None, "address": f"{cluster['d'].network.addresses[0]}:7946",
        "mqtt": f"{cluster['d'].network.addresses[0]}:1887",
    }  # fmt: skip
    eventually(lambda: sluice(cluster["a"], "cluster", "status").returncode == 0)

    moved = sluice(cluster["a"], "cluster", "move", "3", "d")
    assert moved.stdout.startswith("1 cell moved (3 to d); "), moved
    assert cluster["d"].first_line(60).startswith("sluice ready")
    # its API is that of no cell, and load balancers send clients there
    health = httpx.get(f"{cluster['d'].url}/readyz", trust_env=False)
    assert (health.status_code, health.text) == (200, "ok\n")
    publish("b")
    take("d")

    cluster["d"].kill()
    eventually(lambda: _runs(cluster["a"], 3) != "d", 60)
    eventually(lambda: publish("b"))
    take("c")
    cluster["d"].begin()
    assert cluster["d"].first_line(60) == "sluice ready mqtt={}:{}\n".format(*cluster["d"].mqtt)
    eventually(lambda: _runs(cluster["a"], 3) == "d", 60)
    rebalanced = sluice(cluster["a"], "cluster", "rebalance")
    assert rebalanced.stdout.startswith("1 cell moved (3 to "), rebalanced
    eventually(lambda: _runs(cluster["a"], 3) == "c")
    assert _rows(cluster["a"])["d"]["state"] == "running"
