"""Files of rows: rotation by size and time; a full disk, a file that somebody moved, a folder that is not there."""

from __future__ import annotations

import asyncio
import resource
import signal
from pathlib import Path

import pytest
from pydantic import ValidationError

from bridges.file.connector import FileActionSettings, FileConnector, FileSettings, FileSink
from bridges.resource.contract import Context
from bridges.resource.errors import BadSettings, ReconnectFirst, TryAgain
from broker.config.ssrf import AddressGuard, SsrfSettings
from broker.core.client import Client
from broker.core.message import Message
from broker.observe.rotating_file import RotatingFile
from tests.support.features import make_services

NOON_S = 1_700_000_000.0


def rotated(path: Path) -> list[Path]:
    return sorted(path.parent.glob(f"{path.name}.*"))


def test_a_file_that_would_grow_too_large_is_rotated_and_the_newest_are_kept(
    tmp_path: Path,
) -> None:
    path = tmp_path / "rows.log"
    file = RotatingFile(path, max_bytes=1000, max_files=2, rotation="none")
    for number in range(10):
        file.append(b"%d" % number * 400 + b"\n", NOON_S + number, sync=False)
    assert [found.read_bytes()[:1] for found in rotated(path)] == [b"4", b"6"]
    assert path.read_bytes()[:1] == b"8"
    assert path.stat().st_size == 802


def test_a_new_hour_begins_a_new_file(tmp_path: Path) -> None:
    path = tmp_path / "rows.log"
    file = RotatingFile(path, max_bytes=10**6, max_files=9, rotation="hour")
    for passed_s in (0, 60, 3600, 3660, 7200):
        file.append(b"x\n", NOON_S + passed_s, sync=True)
    assert [found.stat().st_size for found in rotated(path)] == [4, 4]


def test_a_file_that_is_moved_away_is_made_anew(tmp_path: Path) -> None:
    path = tmp_path / "rows.log"
    file = RotatingFile(path, max_bytes=10**6, max_files=9, rotation="none")
    file.append(b"one\n", NOON_S, sync=False)
    path.rename(tmp_path / "moved")
    file.append(b"two\n", NOON_S, sync=False)
    assert path.read_bytes() == b"two\n"


def test_a_batch_that_does_not_fit_leaves_nothing_behind(tmp_path: Path) -> None:
    path = tmp_path / "rows.log"
    file = RotatingFile(path, max_bytes=10**9, max_files=9, rotation="none")
    file.append(b"x" * 50_000 + b"\n", NOON_S, sync=False)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, hard))
    try:
        with pytest.raises(OSError, match="too large"):
            file.append(b"y" * 50_000 + b"\n", NOON_S, sync=False)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, before)
    assert path.stat().st_size == 50_001
    file.append(b"z\n", NOON_S, sync=False)
    assert path.read_bytes().endswith(b"x\nz\n")


def connector(path: Path) -> FileConnector:
    context = Context("file:log", make_services(), AddressGuard(SsrfSettings()), 5.0)
    return FileConnector(FileSettings(filepath=path), context)


def test_what_keeps_a_file_from_being_written_is_told(tmp_path: Path) -> None:
    with pytest.raises(ReconnectFirst, match=str(tmp_path)):
        asyncio.run(connector(tmp_path / "none" / "rows.log").open())
    made = connector(tmp_path / "folder")
    (tmp_path / "folder").mkdir()
    with pytest.raises(BadSettings, match=str(tmp_path)):
        asyncio.run(made.open())
    with pytest.raises(ValidationError, match="expected a regular file"):
        connector(tmp_path / "folder")


def test_a_link_put_in_place_of_the_file_is_not_followed(tmp_path: Path) -> None:
    made = connector(tmp_path / "rows.log")
    (tmp_path / "rows.log").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(TryAgain, match="symbolic links"):
        asyncio.run(made.open())
    assert not (tmp_path / "elsewhere").exists()


def test_a_full_disk_is_tried_again(tmp_path: Path) -> None:
    async def check() -> None:
        made = connector(tmp_path / "rows.log")
        made._file.path = Path("/dev/full")
        await made.open()
        with pytest.raises(TryAgain, match="no space left"):
            await made.append(b"x\n", sync=False)
        await made.close()

    asyncio.run(check())


def test_a_row_is_one_line_whatever_is_in_it(tmp_path: Path) -> None:
    sink = FileSink(
        connector(tmp_path / "rows.log"), FileActionSettings(template="${a} and ${b.c}")
    )
    message = Message("t", b"", 0, False, Client("c"), 0)
    assert sink.record({"a": "1\r\n2", "b": {"c": 3}}, message) == b"1  2 and 3"
    assert sink.record({"a": 1}, message) == b"1 and undefined"
