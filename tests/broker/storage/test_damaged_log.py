"""RocksDB's write-ahead log after a kill, cut or damaged: what was torn is cut off, what would lose more is refused."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from broker.core.errors import ConfigError
from broker.storage.rocksdb import wal
from broker.storage.rocksdb.store import DATABASE_FOLDER, RocksStore
from broker.storage.store import LogShard
from tests.support.node import Node

ROOT = Path(__file__).parents[3]
LOG = LogShard(16)
COMMITS = 200
FILL = """
import os, sys
from pathlib import Path
from random import Random
from broker.core.stream import StreamRecord
from broker.storage.rocksdb.store import RocksStore
from broker.storage.store import Batch, LogShard
store, chance = RocksStore(Path(sys.argv[1])), Random(5)
for number in range(int(sys.argv[2])):
    payload = chance.randbytes(60_000 if number % 50 == 30 else 1000)
    store.commit(Batch({LogShard(16): [StreamRecord(number, "t", payload, 1, False, "c")]}, {b"k": b"%d" % number}))
os.kill(os.getpid(), 9)
"""


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data directory whose process was killed after so many commits, which are all in the log."""
    directory = tmp_path_factory.mktemp("killed") / "data"
    done = subprocess.run(
        [sys.executable, "-c", FILL, str(directory), str(COMMITS)], cwd=ROOT, check=False
    )
    assert done.returncode == -signal.SIGKILL
    return directory


def damaged(
    killed: Path, tmp_path: Path, change: Callable[[bytearray], object]
) -> tuple[Path, Path]:
    """A copy with its log changed; the copy and its log."""
    directory = tmp_path / "data"
    shutil.copytree(killed, directory)
    [log] = [path for path in (directory / DATABASE_FOLDER).glob("*.log") if path.stat().st_size]
    data = bytearray(log.read_bytes())
    change(data)
    log.write_bytes(data)
    return directory, log


def cut(data: bytearray) -> None:
    del data[-500:]


def flip_last(data: bytearray) -> None:
    data[-30] ^= 1


def add_noise(data: bytearray) -> None:
    data += os.urandom(300)


def add_fragment(kind: int, length: int) -> Callable[[bytearray], None]:
    """Noise that begins as a fragment of a type would."""

    def add(data: bytearray) -> None:
        data += os.urandom(4) + length.to_bytes(2, "little") + bytes([kind]) + os.urandom(300)

    return add


def add_block(kind: int) -> Callable[[bytearray], None]:
    """Noise over the end of a block, the next of which begins as a fragment of a type would."""

    def add(data: bytearray) -> None:
        data += os.urandom(4) + b"\xff\xff\x01" + os.urandom(40_000)
        data[len(data) // 32768 * 32768 + 6] = kind

    return add


def add_zeros(data: bytearray) -> None:
    data += bytes(300)


@pytest.mark.parametrize(
    ("change", "kept"),
    [
        pytest.param(cut, COMMITS - 1, id="the last record is cut short"),
        pytest.param(flip_last, COMMITS - 1, id="the last record is damaged"),
        pytest.param(add_noise, COMMITS, id="something that is no record follows"),
        *(
            pytest.param(add_fragment(kind, length), COMMITS, id=f"type {kind}, {length} bytes")
            for kind in (0, 1, 4, 5, 6, 7, 8, 9, 11, 12, 130)
            for length in (5, 1123)
        ),
        *(
            pytest.param(add_block(kind), COMMITS, id=f"type {kind} in the next block")
            for kind in (1, 5, 11, 200)
        ),
    ],
)
def test_a_torn_end_of_the_log_is_cut_off_with_a_warning(
    killed: Path,
    tmp_path: Path,
    change: Callable[[bytearray], object],
    kept: int,
    caplog: pytest.LogCaptureFixture,
) -> None:
    directory, _ = damaged(killed, tmp_path, change)
    with caplog.at_level("WARNING"):
        store = RocksStore(directory)
    [warning] = [
        record for record in caplog.records if record.getMessage().startswith("store.log_cut")
    ]
    assert warning.levelname == "WARNING"
    assert store.range_of(LOG).next_offset == kept
    assert store.get(b"k") == b"%d" % (kept - 1)
    assert len(store.read(LOG, 0, COMMITS)) == kept
    store.close()
    caplog.clear()
    RocksStore(directory).close()  # what was cut off stays off
    assert not [record for record in caplog.records if record.levelname == "WARNING"]


def test_room_behind_the_end_of_the_log_is_no_damage(
    killed: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    directory, _ = damaged(killed, tmp_path, add_zeros)
    store = RocksStore(directory)
    assert store.range_of(LOG).next_offset == COMMITS
    assert not [record for record in caplog.records if record.levelname == "WARNING"]
    store.close()


def flip_at(share: float) -> Callable[[bytearray], object]:
    def flip(data: bytearray) -> None:
        data[int(len(data) * share)] ^= 1

    return flip


def blank_middle(data: bytearray) -> None:
    middle = len(data) // 2
    data[middle : middle + 5000] = bytes(5000)


def flip_length_of_last_but_one(data: bytearray) -> None:
    """The fragment's length, in the header of the last record but one, which is in one block with the last."""
    whole = bytes(data)
    starts = [
        at
        for at in range(len(whole) - 6000, len(whole) - 7)
        if wal._fragment(whole, at) is not None
    ]
    data[starts[-2] + 4] ^= 0x40


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(flip_at(0.0001), id="first record"),
        pytest.param(flip_at(0.3), id="one bit"),
        pytest.param(flip_at(0.5), id="one bit of a large record"),
        pytest.param(blank_middle, id="a hole"),
        pytest.param(flip_length_of_last_but_one, id="a length"),
    ],
)
def test_damage_with_commits_behind_it_stops_the_start_and_names_the_place(
    killed: Path, tmp_path: Path, change: Callable[[bytearray], object]
) -> None:
    directory, log = damaged(killed, tmp_path, change)
    before = log.read_bytes()
    with pytest.raises(ConfigError, match="is damaged at byte") as refused:
        RocksStore(directory)
    text = str(refused.value)
    assert str(log) in text
    assert "\n" not in text
    assert log.read_bytes() == before  # refusing changes nothing
    damage = wal.find_damage(directory / DATABASE_FOLDER)
    assert damage is not None
    os.truncate(damage.file, damage.offset)  # what the sentence proposes
    store = RocksStore(directory)
    kept = store.range_of(LOG).next_offset
    assert kept < COMMITS
    assert len(store.read(LOG, 0, COMMITS)) == kept
    store.close()


def test_a_broker_does_not_start_on_a_damaged_log_and_says_where_in_one_sentence(
    killed: Path, tmp_path: Path
) -> None:
    directory, log = damaged(killed, tmp_path, flip_at(0.5))
    node = Node(directory)
    with pytest.raises(AssertionError, match="no ready line"):
        node.start()
    assert node.process is not None
    assert node.process.wait(60) == 1
    said = node.log.read_text()
    assert f"{log} is damaged at byte" in said
    assert "Traceback" not in said
