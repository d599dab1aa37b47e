"""``sluice backup`` of a broker of two cells while messages go from one to the other, and its restore."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from broker.app.restore import restore
from broker.app.version import product_version
from broker.cluster.positions import StoredPositions
from broker.connection.sessions.log import SESSION_LOG
from broker.core.cells import Place
from broker.storage.archive import (
    FORMAT_OF_CELLS,
    Archive,
    ArchiveWriter,
    BackupUnusable,
    Manifest,
    packed_entry,
)
from broker.storage.rocksdb.store import RocksStore
from broker.storage.store import Batch
from tests.end_to_end.clients import Client, publish
from tests.end_to_end.test_backup import KEY, sluice
from tests.support.node import Node, eventually
from tests.support.processes import pause
from tests.support.processor import Stopwatch, family

PLACE = Place(0, 2, Path())


def names_of(cell: int, count: int) -> list[str]:
    """Identifiers of clients of a cell."""
    every = (f"device-{number}" for number in range(1000))
    own = (name for name in every if PLACE.cell_of(name) == cell)
    return [next(own) for _ in range(count)]


READERS = (names_of(0, 1)[0], names_of(1, 1)[0])
"""A durable session of each cell."""
PUBLISHERS = (names_of(0, 2)[1], names_of(1, 2)[1])


@contextmanager
def traffic(node: Node) -> Iterator[None]:
    """A publisher of each cell, whose messages both sessions wait for."""
    ended = threading.Event()

    def run(name: str) -> None:
        with Client(node, name) as client:
            while not ended.is_set():
                client.publish("meters/busy", b"busy", 1)

    threads = [threading.Thread(target=run, args=(name,)) for name in PUBLISHERS]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        ended.set()
        for thread in threads:
            thread.join()


def taken_until(client: Client, last: set[bytes]) -> list[bytes]:
    """Payloads that a client gets, until it has these."""
    payloads: list[bytes] = []
    while not last <= set(payloads):
        payloads.append(bytes(client.take().payload))
    return payloads


@pytest.mark.timeout(180)
def test_a_restore_has_both_cells_and_their_links_go_on(tmp_path: Path) -> None:
    file = tmp_path / "sluice.backup"
    original = Node(tmp_path / "before", workers=2).start()
    try:
        original.call("POST", "/streams", {"name": "meters", "topics": ["meters/#"], "shards": 2})
        for name in READERS:
            with Client(original, name, is_clean=False, expiry_s=3600) as client:
                client.subscribe("meters/#", 1)
        for number in range(20):
            publish(original, f"kept/{number}", f"value {number}", "-r", "-q", "1")
        for name in PUBLISHERS:
            publish(original, "meters/first", f"first of {name}", "-q", "1", "-i", name)
        with traffic(original):
            eventually(lambda: original.call("GET", "/streams/meters")["records"] > 200)
            told = sluice(original.data_dir, "backup", str(file), "--with-messages", key=KEY)
        assert "retained" in told
    finally:
        original.stop()

    target = tmp_path / "after"
    sluice(target, "restore", str(file), key=KEY)
    restored = Node(target, workers=2).start()
    try:
        kept = restored.call("GET", "/retained?filter=kept/%23&limit=100")["items"]
        assert {row["topic"] for row in kept} == {f"kept/{number}" for number in range(20)}
        assert restored.call("GET", "/streams/meters")["records"] > 200
        lasts = {f"last of {name}".encode() for name in PUBLISHERS}
        for name in PUBLISHERS:
            publish(restored, "meters/last", f"last of {name}", "-q", "1", "-i", name)
        for name in READERS:
            with Client(restored, name, is_clean=False, expiry_s=3600) as client:
                payloads = taken_until(client, lasts)
            for publisher in PUBLISHERS:
                assert payloads.count(f"first of {publisher}".encode()) == 1
            assert payloads.count(b"busy") > 100
    finally:
        restored.stop()


def _begins_and_leaves(node: Node) -> bool:
    """Begin a backup and leave in the middle of it; False where another one is not over."""
    with node.client() as http, http.stream("POST", "/backup", json={}) as answer:
        taken = 0
        for piece in answer.iter_raw():
            taken += len(piece)
            if taken > 6_000_000:  # most of it is that of the other cell
                return True
        assert answer.status_code == 503
        return False


def test_a_client_that_leaves_in_the_middle_of_another_cells_store_holds_nobody(
    tmp_path: Path,
) -> None:
    node = Node(tmp_path / "node", workers=2).start()
    try:
        topics = (f"kept/{number}" for number in range(10_000))
        of_the_other = (topic for topic in topics if PLACE.cell_of(topic))
        with Client(node) as client:
            for _ in range(300):
                client.publish(next(of_the_other), secrets.token_bytes(100_000), 1, retain=True)
        for _ in range(3):
            eventually(lambda: _begins_and_leaves(node), what="a backup after one that was left")
            watch = Stopwatch(*family())
            assert node.call("GET", "/status")
            assert watch.elapsed_s() < 5
    finally:
        node.stop()


def test_all_cells_are_needed_and_a_restore_needs_a_broker_that_is_stopped(tmp_path: Path) -> None:
    node = Node(tmp_path / "node", workers=2).start()
    try:
        pause(node.cell(1).pid)
        text = sluice(node.data_dir, "backup", str(tmp_path / "none.backup"), status=1)
        assert "cell 1 does not answer" in text
        assert not list(tmp_path.glob("none*"))
        node.cell(1).resume()
        sluice(node.data_dir, "backup", str(tmp_path / "plain.backup"))
        text = sluice(
            node.data_dir, "restore", str(tmp_path / "plain.backup"), "--replace", status=1
        )
        assert "in use by another sluice" in text
    finally:
        node.stop()
    text = sluice(node.data_dir, "restore", str(tmp_path / "plain.backup"), status=6)
    assert "--replace" in text
    sluice(node.data_dir, "restore", str(tmp_path / "plain.backup"), "--replace")
    again = Node(node.data_dir, workers=2).start()
    again.stop()


def _of_cells(file: Path, cells: int, *stores: int) -> Path:
    """A backup that says to be of so many cells, with these stores, which are empty."""
    archive = ArchiveWriter(None)
    pieces = [archive.part("store", b"", cell=cell) for cell in stores]
    manifest = Manifest(
        format=FORMAT_OF_CELLS, id=archive.id, version=product_version(), node="n", made_at="2026-01-01T00:00:00Z",
        messages=False, holds={}, left_out=[], missing_secrets=[], parts=archive.parts, cells=cells,
    )  # fmt: skip
    file.write_bytes(b"".join((*pieces, archive.end(manifest))))
    return file


@pytest.mark.parametrize(
    ("cells", "stores", "why"),
    [
        (2, (0,), "the store of cell 1 is missing"),
        (2, (0, 2), "data of cell 2"),
        (2, (0, -1), "data of cell -1"),
        (0, (), "of 0 cells"),
        (10**9, (0,), "of 1000000000 cells"),
    ],
)
def test_a_backup_of_other_cells_than_it_says_changes_nothing(
    tmp_path: Path, cells: int, stores: tuple[int, ...], why: str
) -> None:
    file = _of_cells(tmp_path / "bad.backup", cells, *stores)
    with Archive(file, None) as archive, pytest.raises(BackupUnusable, match=why):
        restore(archive, tmp_path / "data", {}, replace=False, dry_run=False)
    assert not list((tmp_path / "data").glob("[!L]*"))


def test_a_cell_that_was_read_later_has_no_more_of_a_log_than_there_is(tmp_path: Path) -> None:
    """Else it would pass over the first records of the log that goes on, which a client was told are kept."""
    archive = ArchiveWriter(None)
    identity = ""
    with (tmp_path / "sluice.backup").open("wb") as file:
        for cell in (0, 1):
            with closing(RocksStore(tmp_path / f"made-{cell}")) as store:
                StoredPositions(store).keep_identity()
                identity = identity or StoredPositions(store).identity
                store.commit(Batch(puts=StoredPositions.kept_at(0, identity, 9) if cell else {}))
                data = b"".join(packed_entry(*entry) for entry in store.entries(messages=True))
            file.write(archive.part("store", data, cell=cell))
        manifest = Manifest(
            format=FORMAT_OF_CELLS, id=archive.id, version=product_version(), node="n", made_at="2026-01-01T00:00:00Z",
            messages=True, holds={}, left_out=[], missing_secrets=[], parts=archive.parts, cells=2,
        )  # fmt: skip
        file.write(archive.end(manifest))
    with Archive(tmp_path / "sluice.backup", None) as opened:
        restore(opened, tmp_path / "data", {}, replace=False, dry_run=False)
    with closing(RocksStore(tmp_path / "data")) as store:
        following = store.range_of(SESSION_LOG).next_offset
    with closing(RocksStore(tmp_path / "data" / "cells" / "1")) as store:
        assert StoredPositions(store).at(0) == (identity, following)
