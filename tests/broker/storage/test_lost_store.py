"""A store whose log or folder is gone: the start is refused with one sentence, whose command accepts the loss."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from broker.core.errors import ConfigError
from broker.core.stream import StreamRecord
from broker.storage.rocksdb.store import DATABASE_FOLDER, RocksStore
from broker.storage.rocksdb.wal import Manifest
from broker.storage.store import Batch
from tests.broker.storage.test_damaged_log import COMMITS, FILL, LOG, ROOT, killed
from tests.support.node import Node

__all__ = ["killed"]


def logs_of(directory: Path) -> list[Path]:
    return sorted((directory / DATABASE_FOLDER).glob("*.log"))


def empty_logs(directory: Path) -> None:
    for log in logs_of(directory):
        log.write_bytes(b"")


def blank_logs(directory: Path) -> None:
    """As some file systems leave a file whose size was written and whose content was not."""
    for log in logs_of(directory):
        log.write_bytes(bytes(log.stat().st_size))


def cut_first_record(directory: Path) -> None:
    for log in logs_of(directory):
        os.truncate(log, 20)


def remove_logs(directory: Path) -> None:
    for log in logs_of(directory):
        log.unlink()


def remove_store(directory: Path) -> None:
    shutil.rmtree(directory / DATABASE_FOLDER)


def empty_store(directory: Path) -> None:
    remove_store(directory)
    (directory / DATABASE_FOLDER).mkdir()


def tear_manifest(directory: Path) -> None:
    """As a loss of power may leave a file that was replaced."""
    (directory / "store.json").write_bytes(b"")
    empty_logs(directory)


def tear_manifest_and_remove_store(directory: Path) -> None:
    (directory / "store.json").write_text('{"log": 4, "has_')
    remove_store(directory)


LOSSES = [
    pytest.param(empty_logs, "is empty", id="empty log"),
    pytest.param(blank_logs, "holds no record that can be read", id="log of zeros"),
    pytest.param(
        cut_first_record, "holds no record that can be read", id="part of the first record"
    ),
    pytest.param(remove_logs, "is gone", id="no log"),
    pytest.param(remove_store, "is gone", id="no folder"),
    pytest.param(empty_store, "is gone", id="empty folder"),
    pytest.param(tear_manifest, "cannot be read", id="empty manifest"),
    pytest.param(tear_manifest_and_remove_store, "is gone", id="torn manifest, no folder"),
]


def accept(refused: pytest.ExceptionInfo[ConfigError]) -> None:
    """Run the command that the sentence proposes."""
    text = str(refused.value)
    assert "\n" not in text
    [command] = re.findall("to start without what (?:is|may be) lost, '(.+)'$", text)
    subprocess.run(command, shell=True, check=True)


@pytest.mark.parametrize(("lose", "text"), LOSSES)
def test_commits_that_are_gone_stop_the_start_until_the_loss_is_accepted(
    killed: Path, tmp_path: Path, lose: Callable[[Path], None], text: str
) -> None:
    directory = tmp_path / "the broker's data"  # as the command must quote it
    shutil.copytree(killed, directory)
    lose(directory)
    for _ in range(2):
        with pytest.raises(ConfigError, match=text) as refused:
            RocksStore(directory)
    accept(refused)
    store = RocksStore(directory)
    assert store.range_of(LOG).next_offset == 0
    store.close()
    RocksStore(directory).close()


@pytest.fixture(scope="module")
def killed_with_logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data directory whose process was killed while two logs had commits that no table had."""
    keeping = FILL.replace(
        "RocksStore(Path(sys.argv[1]))", "RocksStore(Path(sys.argv[1]), 'os', Memory(64 * 1024))"
    ).replace("os.kill", "flushed(store._db._db)\nos.kill")
    script = f"""
from broker.storage.rocksdb import options
from broker.storage.rocksdb.options import Memory
usual = options.primary
def primary(memory):
    changed = usual(memory)
    changed.set_min_write_buffer_number_to_merge(3)  # the first of three full buffers waits for the others
    changed.set_max_write_buffer_number(8)
    return changed
options.primary = primary
def flushed(database):  # a kill in the midst would leave all logs needed
    flushes = ("rocksdb.mem-table-flush-pending", "rocksdb.num-running-flushes")
    while any(map(database.property_int_value, flushes)):
        pass
{keeping}"""
    directory = tmp_path_factory.mktemp("logs") / "data"
    done = subprocess.run(
        [sys.executable, "-c", script, str(directory), "110"], cwd=ROOT, check=False
    )
    assert done.returncode == -signal.SIGKILL
    assert len([log for log in logs_of(directory) if log.stat().st_size]) > 1
    return directory


@pytest.mark.parametrize(
    ("state", "lose"), [("is gone", Path.unlink), ("is empty", lambda log: log.write_bytes(b""))]
)
def test_a_log_that_is_needed_beside_the_newest_is_missed(
    killed_with_logs: Path, tmp_path: Path, state: str, lose: Callable[[Path], object]
) -> None:
    directory = tmp_path / "data"
    shutil.copytree(killed_with_logs, directory)
    lost = logs_of(directory)[-2]
    lose(lost)
    with pytest.raises(ConfigError, match=f"{lost.name} {state}") as refused:
        RocksStore(directory)
    accept(refused)
    RocksStore(directory).close()


def test_a_log_whose_commits_are_in_tables_is_not_missed(
    killed_with_logs: Path, tmp_path: Path
) -> None:
    directory = tmp_path / "data"
    shutil.copytree(killed_with_logs, directory)
    file = directory / "store.json"
    noted = json.loads(file.read_text())
    # RocksDB deleted it after the last note
    file.write_text(json.dumps(noted | {"older": [2, *noted["older"]]}))
    store = RocksStore(directory)
    assert store.range_of(LOG).next_offset == 110
    store.close()


@pytest.mark.parametrize("lose", [empty_logs, remove_logs])
def test_after_a_stop_no_commit_is_in_the_log_alone(
    tmp_path: Path, lose: Callable[[Path], None]
) -> None:
    store = RocksStore(tmp_path)
    store.commit(Batch({LOG: [StreamRecord(1, "t", b"x", 1, False, "c")]}))
    store.close()
    lose(tmp_path)
    store = RocksStore(tmp_path)
    assert store.range_of(LOG).next_offset == 1
    store.close()


def test_a_folder_that_is_gone_beside_objects_of_an_older_release_stops_the_start(
    tmp_path: Path,
) -> None:
    directory = tmp_path / "data"
    RocksStore(directory).close()
    (directory / "store.json").unlink()
    (directory / "api.hocon").write_text("")
    remove_store(directory)
    with pytest.raises(ConfigError, match="is gone") as refused:
        RocksStore(directory)
    accept(refused)
    RocksStore(directory).close()


def test_objects_in_a_new_data_directory_are_no_loss(tmp_path: Path) -> None:
    (tmp_path / "api.hocon").write_text("")
    RocksStore(tmp_path).close()


def test_logs_that_rocksdb_has_replaced_are_not_missed(tmp_path: Path, killed: Path) -> None:
    small = FILL.replace(
        "RocksStore(Path(sys.argv[1]))", "RocksStore(Path(sys.argv[1]), 'os', Memory(64 * 1024))"
    )
    script = f"from broker.storage.rocksdb.options import Memory\n{small}"
    subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "small"), "200"], cwd=ROOT, check=False
    )
    assert int(logs_of(tmp_path / "small")[-1].stem) > 4  # the number of the first one
    store = RocksStore(tmp_path / "small")
    assert store.range_of(LOG).next_offset == COMMITS
    store.close()
    shutil.copytree(killed, tmp_path / "twice")
    for _ in range(3):
        RocksStore(tmp_path / "twice").close()  # nothing is written in between
    store = RocksStore(tmp_path / "twice")
    assert store.range_of(LOG).next_offset == COMMITS
    store.close()


def test_a_log_that_rocksdb_deletes_while_logs_are_listed_fails_no_commit(tmp_path: Path) -> None:
    database = tmp_path / DATABASE_FOLDER
    database.mkdir()
    (database / "000007.log").write_bytes(b"commits")
    # listed, and not there when it is asked for its size
    (database / "000008.log").symlink_to("gone")
    Manifest(database).note(has_commits=True)
    assert json.loads((tmp_path / "store.json").read_text()) == {
        "log": 7,
        "has_commits": True,
        "older": [],
    }


def test_a_commit_that_is_on_disk_succeeds_though_its_log_cannot_be_noted(tmp_path: Path) -> None:
    store = RocksStore(tmp_path, "os")
    (tmp_path / "store.json.part").mkdir()
    store.commit(Batch(puts={b"key": b"value"}))
    assert store.get(b"key") == b"value"
    (tmp_path / "store.json.part").rmdir()
    store.commit(Batch(puts={b"other": b"value"}))
    assert json.loads((tmp_path / "store.json").read_text())["has_commits"], (
        "noted with the next commit"
    )
    store.close()


def test_a_broker_does_not_start_without_its_log(killed: Path, tmp_path: Path) -> None:
    directory = tmp_path / "data"
    shutil.copytree(killed, directory)
    empty_logs(directory)
    node = Node(directory)
    with pytest.raises(AssertionError, match="no ready line"):
        node.start()
    assert node.process is not None
    assert node.process.wait(60) == 1
    text = node.log.read_text()
    assert "to start without what is lost" in text
    assert "Traceback" not in text
