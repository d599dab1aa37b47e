"""Machines of a cluster are upgraded one after the other: old and new ones work together until the last one is new."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Final

import pytest

from broker.app.version import product_version
from broker.cluster.frames import PROTOCOL
from tests.cluster.acknowledged import Acknowledged
from tests.end_to_end.clients import Client
from tests.support.machines import Cluster, Machine, machines
from tests.support.node import eventually
from tests.support.releases import VERSION, later_release

NAMES: Final = ("a", "b", "c")


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """Three machines of this release, with NATS."""
    with machines(tmp_path / "cluster", dict.fromkeys(NAMES, 1), with_nats=True) as cluster:
        cluster.start()
        eventually(lambda: _is_home(cluster["a"], NAMES), 60)
        yield cluster
        cluster.stop()


def _is_home(asked: Machine, names: tuple[str, ...]) -> bool:
    rows = {row["name"]: row for row in asked.call("GET", "/cluster/machines")["items"]}
    return all(rows[name]["cells"] == rows[name]["home_cells"] for name in names)


def _speaks(machine: Machine, peer: int, protocol: int) -> bool:
    """Whether the last link of the machine's cell to another one has this protocol."""
    lines = machine.log.read_text().splitlines()
    last = [line for line in lines if f"link.up peer={peer} " in line][-1]
    return f" protocol={protocol} " in last


def _alarm(asked: Machine, name: str) -> str | None:
    rows = asked.call("GET", "/alarms")["items"]
    return next((row["message"] for row in rows if row["name"] == name), None)


def _says(asked: Machine, text: str | None) -> bool:
    return _alarm(asked, "releases_differ") == text


def test_a_cluster_is_upgraded_one_machine_after_the_other(
    cluster: Cluster, tmp_path_factory: pytest.TempPathFactory
) -> None:
    tree = later_release(tmp_path_factory.mktemp("later"))
    messages = Acknowledged(cluster, 2, at="c")
    publish, take = messages.publish, messages.take
    for at, name in enumerate(NAMES):
        machine, other = cluster[name], NAMES[(at + 1) % 3]
        publish(name)
        machine.stop()
        eventually(partial(publish, other))
        machine.root = tree
        machine.start()
        eventually(partial(_is_home, machine, NAMES), 60)
        publish(name)
        publish(other)
        take("c")
        for peer in range(len(NAMES)):
            if peer != at:
                spoken = PROTOCOL + (peer < at)
                eventually(partial(_speaks, machine, peer, spoken))
        if name != "c":
            new, old = ", ".join(NAMES[: at + 1]), ", ".join(NAMES[at + 1 :])
            expected = (
                f"machines run several releases: {VERSION} on {new}; {product_version()} on {old}"
            )
            eventually(partial(_says, cluster["a"], expected), 60)
    eventually(partial(_says, cluster["a"], None), 60)
    for machine in cluster.machines.values():
        assert "weather.heard" in machine.log.read_text()
        assert "link.bad_frame" not in machine.log.read_text()


def test_a_release_without_a_protocol_in_common_says_so_and_nothing_is_lost(
    cluster: Cluster, tmp_path_factory: pytest.TempPathFactory
) -> None:
    later = later_release(tmp_path_factory.mktemp("too-late"), oldest=PROTOCOL + 1)
    client_id = cluster.client_of(1)
    with Client(cluster["b"], client_id, is_clean=False, expiry_s=600) as subscriber:
        subscriber.subscribe("up/#", 1)
    old = cluster["c"].root
    cluster["c"].stop()
    cluster["c"].root = later
    cluster["c"].start()
    too_new = "this release is too old for that of cell 2; upgrade this machine"
    eventually(lambda: too_new in cluster["a"].log.read_text())
    too_old = "is too old for this one; upgrade its machine"
    eventually(lambda: too_old in cluster["c"].log.read_text())
    eventually(lambda: too_new in str(_alarm(cluster["a"], "cell_away:2")))
    with Client(cluster["c"], cluster.client_of(2)) as publisher:
        publisher.publish("up/t", b"kept for cell 1", 1)
    with Client(cluster["a"], cluster.client_of(0)) as publisher:
        publisher.publish("up/t", b"at once", 1)
    with Client(cluster["b"], client_id, is_clean=False, expiry_s=600) as subscriber:
        assert subscriber.take().payload == b"at once"
        cluster["c"].stop()
        cluster["c"].root = old
        cluster["c"].start()
        assert subscriber.take().payload == b"kept for cell 1"
