"""The commit log of a cell is kept short, and what belongs to its store is saved with it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from broker.cluster.keeping import State
from broker.cluster.nats.line import Servers
from broker.cluster.nats.log import NatsLog, StreamSettings
from broker.cluster.replication import CopyRow, Replication
from broker.cluster.settings import ClusterSettings
from broker.core.cells import Place
from broker.core.clock import SystemClock
from broker.core.errors import Unavailable
from broker.core.events import Events
from broker.observe.alarms import Alarms
from broker.observe.metrics import Metrics
from broker.storage.rocksdb.options import USUAL_MEMORY
from broker.storage.rocksdb.store import RocksStore
from broker.storage.store import Batch, Committed
from broker.storage.writer import Writer
from tests.support.jetstream_model import ModelLine, Stream

CELL = 1
SECTION = {
    "machine": "b",
    "machines": {name: {"address": f"{name}:7946"} for name in "abc"},
    "tls": dict.fromkeys(("certfile", "keyfile", "cacertfile"), "none.pem"),
    "nats": {"servers": ["127.0.0.1:1"]},
}
CLUSTER = ClusterSettings.model_validate(SECTION)
FIRST, LAST = 1000, 5000
"""The log has the entries between them."""


class _Looks(NatsLog):
    """A log that has so many bytes."""

    def __init__(self, log_bytes: int) -> None:
        self._bytes = log_bytes

    def state(self) -> Mapping[str, Any]:
        return {"state": {"bytes": self._bytes, "first_seq": FIRST, "last_seq": LAST}}

    def leads_elsewhere(self, state: Mapping[str, Any]) -> str:
        return ""


class _Replication(Replication):
    """Of a cell whose keeper is away. Its copies are as the test sets them."""

    trimmed_to = 0

    async def _ask(self, copy: CopyRow) -> None: ...

    async def _trim(self, writer: Writer, position: int, end: int) -> None:
        self.trimmed_to = position


@pytest.mark.parametrize(
    ("share", "positions", "trimmed_to", "following"),
    [
        (0.6, (4990, FIRST), 4990, 1),  # its disk hangs
        (0.6, (4990, 4200), 4200, 2),
        (0.4, (4990, FIRST), FIRST, 2),
        (0.6, (1100, FIRST), FIRST, 2),  # the other one is no better
    ],
)
def test_a_log_waits_for_a_slow_copy_until_it_is_half_full(
    share: float, positions: Sequence[int], trimmed_to: int, following: int, tmp_path: Path
) -> None:
    replication = _Replication(Place(CELL, 3, tmp_path), CLUSTER, tmp_path)
    replication.copies = [
        CopyRow(name, position, "") for name, position in zip("ac", positions, strict=True)
    ]
    replication._looks = _Looks(int(CLUSTER.nats.max_log_bytes * share))
    alarms = Alarms(SystemClock(), Events(), Metrics())
    asyncio.run(replication._look_once(cast(Writer, None), alarms))
    assert (replication.trimmed_to, replication.shown().copies) == (trimmed_to, following)


class _Store(RocksStore):
    """Its first commit fails."""

    failures = 1

    def commit(self, batch: Batch) -> Committed:
        if self.failures:
            self.failures -= 1
            raise Unavailable("the log has confirmed nothing")
        return super().commit(batch)


def test_files_whose_commit_failed_are_saved_with_a_later_one(tmp_path: Path) -> None:
    (tmp_path / "rules").write_text("1")
    files = {"rules": tmp_path / "rules", "new": tmp_path / "new"}

    async def test() -> None:
        store = _Store(tmp_path)
        writer = Writer(store, asyncio.get_running_loop())
        replication = Replication(Place(0, 3, tmp_path), CLUSTER, tmp_path)
        replication.store = store
        replication.keep_files(writer, files)
        with pytest.raises(Unavailable):
            await writer.committed()
        writer.touch()
        await writer.committed()
        (tmp_path / "rules").unlink()
        assert replication.bring_files(files)
        assert (tmp_path / "rules").read_text() == "1"
        await writer.close()
        store.close()

    asyncio.run(test())


def test_a_file_that_cannot_be_read_is_reported_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    files = {"rules": tmp_path / "rules"}
    files["rules"].mkdir()

    async def test() -> None:
        store = RocksStore(tmp_path)
        writer = Writer(store, asyncio.get_running_loop())
        Replication(Place(0, 3, tmp_path), CLUSTER, tmp_path).keep_files(writer, files)
        for _ in range(3):
            writer.touch()
            await writer.committed()
        await writer.close()
        store.close()

    asyncio.run(test())
    assert caplog.messages.count("cell.files_not_saved") == 1


class _Trimmed(NatsLog):
    """A log that has nothing of what was in it."""

    def __init__(self) -> None:
        super().__init__(Servers([]), "plant", CELL, "b", 0.0)
        stream = Stream()
        stream.messages += [b""] * 4
        stream.first = 5
        self._line = ModelLine(stream, lambda: "none", lambda: stream.last, 5000)  # type: ignore[assignment]

    def make(self, settings: StreamSettings) -> None: ...


class _Opening(Replication):
    """Of a cell whose store lacks what the log no longer has; no machine has a copy."""

    def _machines_with_copies(self) -> Mapping[str, State]:
        return {}

    def _log(self) -> NatsLog:
        return _Trimmed()


def test_a_cell_that_waits_for_a_copy_says_so_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    replication = _Opening(Place(CELL, 3, tmp_path), CLUSTER, tmp_path)
    for _ in range(3):
        with pytest.raises(Unavailable, match="no copy is given at copy-1"):
            replication.open("fsync", USUAL_MEMORY)
    assert caplog.messages == ["cell.copy_needed"]


def test_the_connection_of_looks_is_closed_with_them(tmp_path: Path) -> None:
    closed: list[str] = []

    class Looks(_Looks):
        def close(self) -> None:
            closed.append("looks")

    replication = _Replication(Place(CELL, 3, tmp_path), CLUSTER, tmp_path)
    replication._looks = Looks(0)
    asyncio.run(replication.stop())
    assert closed == ["looks"]


class _Refusing(ModelLine):
    """A server without a leader of the stream."""

    def _answer(self, operation: str, asked: Mapping[str, Any]) -> dict[str, Any]:
        if operation == "PURGE":
            return {"error": {"err_code": 10008, "description": "JetStream system unavailable"}}
        return super()._answer(operation, asked)


def test_a_log_that_nats_did_not_trim_is_trimmed_later(tmp_path: Path) -> None:
    stream = Stream()
    log = NatsLog(Servers([]), "plant", CELL, "b", 0.0)
    log._line = _Refusing(stream, lambda: "none", lambda: stream.last, 5000)  # type: ignore[assignment]

    async def test() -> None:
        replication = Replication(Place(CELL, 3, tmp_path), CLUSTER, tmp_path)
        replication.store = RocksStore(tmp_path, log=log)
        writer = Writer(replication.store, asyncio.get_running_loop())
        with pytest.raises(Unavailable, match="JetStream system unavailable"):
            await replication._trim(writer, 1, 1)
        log._line = ModelLine(stream, lambda: "none", lambda: stream.last, 5000)  # type: ignore[assignment]
        await replication._trim(writer, 1, 1)
        assert replication._trimmed == 1
        await writer.close()
        replication.store.close()

    asyncio.run(test())
