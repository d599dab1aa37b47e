"""A broker on one machine becomes a cluster of three: what it had is there, wherever that was cut off."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Mapping
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from queue import Empty
from threading import Event
from typing import Any

import pytest

from broker.cluster.adopting import adopt, adopts
from broker.cluster.directories import (
    cell_directory,
    copied,
    copy_directory,
    keep_count,
    keep_machine,
    kept_count,
    kept_machine,
)
from broker.cluster.resize import Resize
from broker.cluster.settings import ClusterSettings
from broker.core.errors import ConfigError
from broker.core.stream import StreamRecord
from broker.storage.commit_log import BASE
from broker.storage.rocksdb.database import Database
from broker.storage.rocksdb.options import USUAL_MEMORY
from broker.storage.rocksdb.store import DATABASE_FOLDER, RocksStore
from broker.storage.store import Batch, LogShard
from tests.cluster.founded import CONFIG, Founded, founded, sluice, start_all
from tests.end_to_end.clients import Client
from tests.support.node import Node, eventually, running

CLIENTS = [f"device-{number}" for number in range(18)]
SILENT_S = 20.0


def _fill(node: Node) -> None:
    """Sessions with what waits for them, retained messages, a stream with records, a ban."""
    node.call("POST", "/streams", {"name": "all", "topics": ["m/#"], "shards": 2})
    node.call("POST", "/bans", {"as": "clientid", "who": "villain"})
    for name in CLIENTS:
        with Client(node, name, is_clean=False, expiry_s=3600) as client:
            client.subscribe(f"m/{name}/#", 1)
            client.subscribe("all/#", 2)
    with Client(node, "publisher") as publisher:
        for name in CLIENTS:
            for number in range(3):
                publisher.publish(f"m/{name}/{number}", b"%d" % number, 1, retain=True)
        publisher.publish("all/x", b"once", 2)


def _messages(node: Node, name: str) -> list[tuple[str, bytes]]:
    """What waits for a session."""
    with Client(node, name, is_clean=False, expiry_s=3600) as client:
        assert client.flags.session_present
        taken = [client.take() for _ in range(4)]
    return sorted((message.topic, bytes(message.payload)) for message in taken)


def _retained(node: Node) -> Counter[str]:
    """What a subscriber gets at once; while a cell moves, its part may be missing."""
    found: Counter[str] = Counter()
    with Client(node, "reader") as client, suppress(Empty):
        client.subscribe("m/#", 1)
        for _ in range(3 * len(CLIENTS)):
            found[client.messages.get(timeout=SILENT_S).topic] += 1
    return found


def _records(node: Node) -> Counter[str]:
    """Topics of the records of the stream, of all shards."""
    found: Counter[str] = Counter()
    for shard in node.call("GET", "/streams/all/positions")["shards"]:
        page = node.call("GET", f"/streams/all/records?shard={shard['shard']}&limit=1000")
        found.update(item["topic"] for item in page["items"])
    return found


def _has_all(node: Node) -> bool:
    """Every machine runs its own cells, and keeps copies of the others'."""
    rows: list[dict[str, Any]] = node.call("GET", "/cluster/machines")["items"]
    return all(
        row["state"] == "running"
        and row["cells"] == row["home_cells"]
        and len(row["cells"]) == 2
        and len(row["copies"]) == 4
        for row in rows
    )


def _since(node: Node, cell: int) -> str:
    """When a cell began that runs."""
    [row] = [row for row in node.call("GET", "/cells")["items"] if row["number"] == cell]
    assert row["state"] == "running"
    return str(row["since"])


def _begin_cut_off(machines: Mapping[str, Founded]) -> None:
    """The machine with the data is killed as soon as it has taken cells of others."""
    first = machines["a"]
    for machine in machines.values():
        machine.begin()
    eventually(lambda: "cell.taken" in first.log.read_text(), 120, 0.005)
    first.kill()
    assert first.process is not None
    first.begin()
    for machine in machines.values():
        assert machine.first_line(120).startswith("sluice ready"), machine.log.read_text()


@pytest.mark.parametrize("is_cut_off", [False, True])
def test_what_a_broker_had_is_in_the_cluster(tmp_path: Path, *, is_cut_off: bool) -> None:
    with running(tmp_path / "a", config=CONFIG) as node:
        _fill(node)
        records = _records(node)
    with founded(tmp_path, cells=2, options=["--data-from=a"]) as machines:
        if is_cut_off:
            _begin_cut_off(machines)
        else:
            start_all(machines)
        eventually(partial(_has_all, machines["b"]), 120)
        expected = Counter(f"m/{name}/{number}" for name in CLIENTS for number in range(3))
        for machine in machines.values():
            assert _retained(machine) == expected
        assert _records(machines["c"]) == records == expected
        bans = machines["c"].call("GET", "/bans")["items"]
        assert [ban["who"] for ban in bans] == ["villain"]
        machines["a"].kill()
        eventually(lambda: _retained(machines["b"]) == expected)
        for name, machine in zip(CLIENTS, [*"bcc"] * 6, strict=True):
            assert _messages(machines[machine], name) == [
                ("all/x", b"once"),
                *((f"m/{name}/{number}", b"%d" % number) for number in range(3)),
            ]
        machines["a"].start()
        eventually(partial(_has_all, machines["b"]), 120)
        # the second cell of the first machine is no face of the cluster, also where it has begun last
        before = eventually(partial(_since, machines["b"], 1))
        machines["a"].cell(1).kill()
        eventually(lambda: _since(machines["b"], 1) != before, 120)
        assert _has_all(machines["b"])


def _settings() -> ClusterSettings:
    return ClusterSettings.model_validate(
        {
            "name": "plant",
            "machine": "a",
            "machines": {name: {"address": f"{name}:7946", "cells": 2} for name in "abc"},
            "tls": dict.fromkeys(("certfile", "keyfile", "cacertfile"), "none.pem"),
            "nats": {"servers": ["a:4222"]},
            "data_from": "a",
        }
    )


@pytest.mark.parametrize("moved", [None, 0, 1, 3])
def test_joining_that_was_cut_off_is_continued(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moved: int | None
) -> None:
    """``moved``: stores that are where copies are by then; None: the resize was cut off."""
    with closing(RocksStore(tmp_path)) as store:
        store.commit(Batch({LogShard(7): [StreamRecord(1, "t", b"x", 1, False, "c")]}))
    cluster = _settings()

    def resize(count: int) -> None:
        with Resize(tmp_path, count) as change:
            change.run()
        if moved is None and not cut.is_set():
            cut.set()
            raise ConfigError(["cut off"])

    def rename(self: Path, target: Path) -> Path:
        if target.parent.name == "copies" and not cut.is_set() and int(target.name) == 2 + moved:  # type: ignore[operator]
            cut.set()
            raise OSError("cut off")
        return renamed(self, target)

    cut = Event()
    renamed = Path.rename
    monkeypatch.setattr(Path, "rename", rename)
    with pytest.raises((ConfigError, OSError), match="cut off"):
        adopt(tmp_path, cluster, resize)
    for machine_file in (None, b"", b"0123"):  # also what a power failure left of the last step
        assert adopts(tmp_path, cluster)
        adopt(tmp_path, cluster, resize)
        if machine_file is not None:
            (tmp_path / "cells" / "machine").write_bytes(machine_file)
    keep_machine(tmp_path, cluster.digest, "a")
    assert not adopts(tmp_path, cluster)
    assert kept_machine(tmp_path) == "a"
    assert kept_count(tmp_path) == 2
    assert sorted(copied(tmp_path)) == [2, 3, 4, 5]
    places = [cell_directory(tmp_path, cell) for cell in (0, 1)]
    for place in (*places, *(copy_directory(tmp_path, cell) for cell in range(2, 6))):
        with closing(Database(place / DATABASE_FOLDER, USUAL_MEMORY)) as database:
            assert database.applied == BASE
    with closing(RocksStore(tmp_path)) as store:
        assert [record.payload for _, record in store.read(LogShard(7), 0, 9)] == [b"x"]


@pytest.mark.parametrize("stores", [1, 2])
def test_copies_of_before_are_not_taken_for_the_data(tmp_path: Path, stores: int) -> None:
    for cell in range(stores):
        RocksStore(cell_directory(tmp_path, cell)).close()
    keep_count(tmp_path, stores)
    for cell in range(2, 6):
        with closing(Database(copy_directory(tmp_path, cell) / DATABASE_FOLDER, USUAL_MEMORY)):
            pass
    resized: list[int] = []
    with pytest.raises(ConfigError, match="expected no copies in the data of a broker"):
        adopt(tmp_path, _settings(), resized.append)
    assert resized == []


def test_wrong_input_is_one_sentence(tmp_path: Path) -> None:
    three = [f"--machine={name}=127.0.0.{at}" for at, name in enumerate("abc", 1)]
    init = partial(sluice, "init", "plant", *three, "--directory", tmp_path)
    said = init("--data-from=b", status=1)
    assert said == "Error: cluster: data_from: expected 'a', the machine with cell 0, got 'b'\n"
    init("--data-from=a")
    join = partial(sluice, "join", tmp_path / "a.machine.json", "--data-dir")
    none = join(tmp_path / "a", status=1)
    assert "expected the data of a broker, with which the cluster plant begins, got none" in none
    with running(tmp_path / "a", config=CONFIG) as node:
        assert "is in use" in join(tmp_path / "a", status=1)
        node.call("GET", "/status")
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    other = sluice("join", tmp_path / "b.machine.json", "--data-dir", tmp_path / "b", status=1)
    assert "Try: another directory; a new cluster begins with such data with" in other
    assert "a of the cluster plant, which begins with this data\n" in join(tmp_path / "a")
    assert join(tmp_path / "a").endswith("machine a of the cluster plant\n")
