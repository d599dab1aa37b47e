"""NATS loses what it has confirmed, and the log of a cell is made again from the store that has most."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import msgspec
import pytest

from broker.cluster.directories import cell_directory, copy_directory
from broker.cluster.keeping import State
from broker.cluster.nats.board import Board
from broker.cluster.nats.log import NatsLog, StreamSettings
from broker.cluster.repairing import local_stores, repair
from broker.cluster.settings import ClusterSettings
from broker.core.errors import ConfigError, Conflict, NotFound
from broker.storage.commit_log import LogBehind, LogLost
from broker.storage.rocksdb.store import RocksStore
from broker.storage.store import Batch
from tests.cluster.acknowledged import Acknowledged
from tests.support.machines import Cluster, Machine, machines
from tests.support.nats import Nats, nats
from tests.support.node import eventually, sluice

NUMBERS = count()


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nats]:
    with nats(tmp_path_factory.mktemp("nats"), 1) as servers:
        yield servers


@pytest.fixture
def cluster(servers: Nats) -> ClusterSettings:
    """Machine a of three, with one cell each; no test has the logs of another."""
    return ClusterSettings.model_validate(
        {
            "name": f"plant-{next(NUMBERS)}",
            "machine": "a",
            "machines": {
                name: {"address": f"127.0.0.1:{at}"} for at, name in enumerate("abc", 7001)
            },
            "tls": {"certfile": "a", "keyfile": "a", "cacertfile": "a"},
            "nats": {
                "servers": [f"{server.host}:{server.port}" for server in servers.servers],
                "replicas": 1,
            },
        }
    )


def _log(cluster: ClusterSettings, cell: int, who: str) -> NatsLog:
    log = NatsLog(cluster.nats_places, cluster.name, cell, who, give_up_s=1.0)
    log.make(StreamSettings(1, 64 * 1024 * 1024, cluster.digest))
    return log


def _fill(cluster: ClusterSettings, cell: int, directory: Path, groups: int) -> int:
    """A store with so many groups more; the end of its log."""
    with closing(_log(cluster, cell, f"w{next(NUMBERS)}")) as log:
        store = RocksStore(directory, log=log)
        for number in range(groups):
            store.commit(Batch(puts={b"k%d" % number: b"v"}))
        store.close()
        return int(log.state()["state"]["last_seq"])


def _lose(cluster: ClusterSettings, cell: int) -> None:
    with closing(_log(cluster, cell, "loses")) as log:
        log._api(f"STREAM.DELETE.{log._stream}", {}, 2.0)


def test_a_log_that_is_lost_begins_behind_the_store_and_other_copies_are_behind_it(
    cluster: ClusterSettings, tmp_path: Path
) -> None:
    own = cell_directory(tmp_path, 0)
    end = _fill(cluster, 0, own, 5)
    shutil.copytree(own, tmp_path / "of-b")
    _lose(cluster, 0)
    [store] = local_stores(tmp_path, cluster)
    assert (store.position, store.log_end, store.is_ahead, store.is_copy) == (
        end,
        0,
        True,
        False,
    )
    mark = repair(tmp_path, cluster, 0)
    assert mark.position > end
    with closing(_log(cluster, 0, "b")) as log, pytest.raises(LogLost, match="begins at"):
        RocksStore(tmp_path / "of-b", log=log)
    with closing(_log(cluster, 0, "again")) as log:
        opened = RocksStore(own, log=log)
        assert opened.get(b"k4") == b"v"
        opened.commit(Batch(puts={b"later": b"v"}))
        opened.close()
    with closing(_log(cluster, 0, "b")) as log, pytest.raises(LogLost, match="continues at"):
        RocksStore(tmp_path / "of-b", log=log)
    assert not local_stores(tmp_path, cluster)[0].is_ahead


def test_a_repair_that_was_cut_off_is_continued(
    cluster: ClusterSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _fill(cluster, 0, tmp_path, 3)
    _lose(cluster, 0)

    def fail(_log: NatsLog, _position: int) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as broken:
        broken.setattr(NatsLog, "trim", fail)
        with pytest.raises(KeyboardInterrupt):
            repair(tmp_path, cluster, 0)
    with closing(_log(cluster, 0, "early")) as log, pytest.raises(LogBehind):
        RocksStore(tmp_path, log=log)
    repair(tmp_path, cluster, 0)
    with closing(_log(cluster, 0, "again")) as log:
        opened = RocksStore(tmp_path, log=log)
        assert opened.get(b"k2") == b"v"
        opened.close()


def test_what_is_in_order_or_not_there_is_not_repaired(
    cluster: ClusterSettings, tmp_path: Path
) -> None:
    end = _fill(cluster, 0, tmp_path, 2)
    with pytest.raises(Conflict, match=f"nothing to repair: its log in NATS ends at {end}"):
        repair(tmp_path, cluster, 0)
    with pytest.raises(NotFound, match="no store of cell '2'; this machine has those of 0"):
        repair(tmp_path, cluster, 2)


def test_a_machine_that_is_known_to_have_more_comes_first(
    cluster: ClusterSettings, tmp_path: Path
) -> None:
    copy = copy_directory(tmp_path, 2)
    end = _fill(cluster, 2, copy, 2)
    _lose(cluster, 2)
    board = Board(cluster.nats_places, cluster.name, "b", 1)
    with closing(board):
        board.exchange(msgspec.json.encode(State("life", 1, [], {2: end + 1}, {})))
    with pytest.raises(
        Conflict, match=f"machine b has a copy up to {end + 1}.*. Try: repair it there"
    ):
        repair(tmp_path, cluster, 2)
    assert repair(tmp_path, cluster, 2, force=True).position > end


def test_a_directory_without_a_store_is_said_to_have_none(
    cluster: ClusterSettings, tmp_path: Path
) -> None:
    assert local_stores(tmp_path, cluster) == []
    with pytest.raises(NotFound, match="this machine has those of no cell"):
        repair(tmp_path, cluster, 0)
    _fill(cluster, 0, tmp_path, 1)
    next((tmp_path / "rocksdb").glob("*.sst"), tmp_path / "rocksdb" / "CURRENT").write_bytes(b"x")
    with pytest.raises(ConfigError):
        local_stores(tmp_path, cluster)


# -- on machines --


@pytest.fixture
def plant(tmp_path: Path) -> Iterator[Cluster]:
    with machines(tmp_path / "plant", dict.fromkeys("abc", 1), with_nats=True) as plant:
        plant.start()
        eventually(lambda: _is_home(plant["a"]), 60)
        yield plant


def _is_home(asked: Machine) -> bool:
    rows = asked.call("GET", "/cluster/machines")["items"]
    return all(row["cells"] == row["home_cells"] for row in rows)


def _follows(asked: Machine, cell: int) -> bool:
    rows = asked.call("GET", "/cells")["items"]
    return any(row["number"] == cell and row["copies"] == 2 for row in rows)


def _stores(machine: Machine) -> dict[int, dict[str, Any]]:
    told = _repair(machine, "--json")
    assert told.returncode == 0, told
    return {row["cell"]: row for row in json.loads(told.stdout)["stores"]}


def _repair(machine: Machine, *words: str) -> Any:
    return sluice(machine, "cluster", "repair", *words, "--data-dir", str(machine.data_dir))


def test_logs_of_before_are_rebuilt_on_the_machines_that_have_most(plant: Cluster) -> None:
    """All servers of NATS, and the machine of a cell, are put back to an earlier moment; nothing acknowledged since is
    lost, since other machines have copies of it."""
    servers = plant.nats
    assert servers is not None
    traffic = [Acknowledged(plant, cell, at="a") for cell in range(3)]

    def publish() -> None:
        for messages in traffic:
            messages.publish("a")
        eventually(lambda: all(_follows(plant["a"], cell) for cell in range(3)), 60)

    def stop_all() -> None:
        plant.stop()
        servers.stop()

    publish()
    stop_all()
    places = [server.log.parent / "jetstream" for server in servers.servers]
    places.append(plant["c"].data_dir)
    for place in places:
        before = place.with_name(f"{place.name}-before")
        shutil.copytree(place, before, ignore=shutil.ignore_patterns("run"))
    plant.start()
    eventually(lambda: _is_home(plant["a"]), 60)
    publish()
    stop_all()
    for place in places:
        shutil.rmtree(place)
        place.with_name(f"{place.name}-before").rename(place)

    servers.start()
    # c would wait for the others some seconds, which may be too short beside other programs
    for name in "abc":
        plant[name].begin()
        eventually(partial(_waits, plant[name]), 60)
    assert "and the copy of machine " in plant["c"].log.read_text()
    refused = _repair(plant["a"], "0", "--yes")
    assert refused.returncode == 1
    assert "is in use by another sluice; stop that one" in refused.stderr
    # c is not restarted: its cell waits
    for name, cells in {"a": "02", "b": "1"}.items():
        plant[name].begin_to_stop()
        plant[name].stopped()
        stores = _stores(plant[name])
        assert [stores[cell]["kind"] for cell in range(3)].count("store") == 1
        assert {stores[int(cell)]["state"] for cell in cells} == {"log behind"}
        for cell in cells:
            done = _repair(plant[name], cell, "--yes")
            assert done.stdout.startswith(f"cell {cell}: rebuilt its log from the store"), done
        plant[name].begin()
    for machine in plant.machines.values():
        assert machine.first_line(120).startswith("sluice ready")
    eventually(lambda: _is_home(plant["a"]), 60)
    publish()
    for messages in traffic:
        messages.take("a")


def _waits(machine: Machine) -> bool:
    return "NATS has lost what it had confirmed: its log ends at " in machine.log.read_text()
