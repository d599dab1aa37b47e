"""RocksDB's write-ahead logs: detection of lost and of damaged ones.

A process that is killed, or a machine that loses power, may leave the last record of the last log in part: it was not
acknowledged, and RocksDB should continue without it. Damage that has whole records behind it is different: to resume
before it would silently lose acknowledged records. RocksDB reports neither place nor kind, so the files are read here.

A log is cut into blocks of 32 KiB, a record into fragments that do not cross them (RocksDB's wiki, "Write Ahead Log
File Format").
"""

from __future__ import annotations

import json
import mmap
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from struct import Struct
from typing import Final, NamedTuple

_BLOCK: Final = 32 * 1024
_HEADER: Final = Struct("<IHB")
_MASK: Final = 0xA282EAD8
_WHOLE = 1
_FIRST = 2
_LAST = 4
_ENDLESS: Final = frozenset((5, 6, 7, 8, 11))
# Types of fragments in recycled logs. RocksDB (9.8) never stops reading at one in a log that is not recycled, as chance
# or old data of the disk behind a torn end may look like.
Data = bytes | mmap.mmap
# Room that the file system was asked for ahead reads as zeros.
_ZEROS: Final = b"\0"


@dataclass(frozen=True, slots=True)
class Damage:
    """The first record that does not read back. ``lost_bytes`` is what there is in its file from ``offset`` on.

    ``is_tail`` means that nothing readable is behind it. ``later`` are the logs after its own that hold something.
    """

    file: Path
    offset: int
    lost_bytes: int
    is_tail: bool
    later: tuple[Path, ...]


class _Logs(NamedTuple):
    """The newest log, whether commits are in it that no table has, and the logs before it."""

    newest: int
    has_commits: bool
    older: tuple[int, ...] = ()


class Manifest:
    """``DIR/store.json``, which names the logs that must be there at the next start, and whether commits are in them.

    RocksDB takes a log that is gone, empty or full of zeros for one without commits, and no database for a new one. The
    file is next to the database, so that it is still there when the database is not. It is written as logs come and go.
    """

    def __init__(self, database: Path, first_needed: Callable[[], int] = lambda: 0) -> None:
        """``first_needed`` returns the number of the first log whose commits are not all in tables."""
        self._database, self._path, self._file = (
            database,
            str(database),
            database.parent / "store.json",
        )
        self._first_needed = first_needed
        self._noted: _Logs | None = None
        self._changed_ns = 0

    def missing(self, *, must_exist: bool) -> str | None:
        """Return the sentence about what is gone, or None. ``must_exist``: there must be a database in any case."""
        noted = None
        is_readable = True
        try:
            entry = json.loads(self._file.read_bytes())
            noted = _Logs(
                int(entry["log"]),
                bool(entry["has_commits"]),
                tuple(map(int, entry.get("older", ()))),
            )
        except FileNotFoundError:
            pass
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            is_readable = False
        if not (self._database / "CURRENT").exists():
            if noted is None and is_readable and (not must_exist or self._database.exists()):
                return None
            folder = quote(self._path)
            accept = f"rm -rf {folder} {quote(str(self._file))}; mkdir {folder}"
            return _gone(f"the store in {self._database} is gone", accept)
        if not is_readable:
            return (
                f"{self._file}, which names the logs that the store needs, cannot be read: put back a copy of the data "
                f"directory; or, to start without what may be lost, '{self._forgetting}'"
            )
        if noted is None:
            return None
        logs = self._logs()
        is_replaced = noted.newest not in logs and any(other > noted.newest for other in logs)
        if (
            noted.has_commits
            and not is_replaced
            and (state := self._state_of_lost(noted.newest, logs))
        ):
            return self._lost(noted.newest, state)
        states = [
            (number, state)
            for number in noted.older
            if (state := self._state_of_lost(number, logs))
        ]
        # RocksDB also deletes logs that it no longer needs
        first = self._first_needed() if states else 0
        return next(
            (self._lost(number, state) for number, state in states if number >= first), None
        )

    def _state_of_lost(self, number: int, logs: dict[int, int]) -> str | None:
        if number not in logs:
            return "is gone"
        if not logs[number]:
            return "is empty"
        return None if _has_record(self._log(number)) else "holds no record that can be read"

    def _log(self, number: int) -> Path:
        return self._database / f"{number:06}.log"

    def _lost(self, number: int, state: str) -> str:
        return _gone(f"the store's log {self._log(number)} {state}", self._forgetting)

    @property
    def _forgetting(self) -> str:
        return f"rm {quote(str(self._file))}"

    def note(self, *, has_commits: bool) -> None:
        """Write which log is the newest one, where that is not what the file says. ``has_commits``: commits are in it
        that no table has."""
        changed_ns = os.stat(self._path).st_mtime_ns
        if (
            changed_ns == self._changed_ns
            and self._noted is not None
            and self._noted[1] is has_commits
        ):
            return
        logs = self._logs()
        newest = max(logs, default=0)
        older = tuple(sorted(number for number, size in logs.items() if size and number != newest))
        entry = _Logs(newest, has_commits and logs.get(newest, 0) > 0, older)
        if entry != self._noted:
            part = self._file.with_suffix(".json.part")
            with part.open("w") as file:
                json.dump({"log": newest, "has_commits": entry.has_commits, "older": older}, file)
                file.flush()
                os.fsync(file.fileno())  # a loss of power must not leave an empty one
            part.replace(self._file)
            self._noted = entry
        self._changed_ns = changed_ns

    def forget(self) -> None:
        """Let the next start decide by the logs alone."""
        self._file.unlink(missing_ok=True)

    def _logs(self) -> dict[int, int]:
        """The bytes of each log by its number."""
        sizes: dict[int, int] = {}
        for log in self._database.glob("*.log"):
            if log.stem.isdigit():
                with suppress(FileNotFoundError):
                    # RocksDB has just deleted it: tables have its commits
                    sizes[int(log.stem)] = log.stat().st_size
        return sizes


def _gone(lost: str, accept: str) -> str:
    return (
        f"{lost}, and with it what was acknowledged: put back a copy of the data directory; or, to start without what "
        f"is lost, '{accept}'"
    )


def _has_record(log: Path) -> bool:
    """True if a log that is not empty has a whole record, at its beginning or behind a damage."""
    with log.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        return _begins_whole(data, 0) or _is_anything_behind(data, 0)


def is_endless(directory: Path) -> bool:
    """True if RocksDB would read a log forever. Reads headers only: 0.1 s for 64 MiB of small records."""
    for log in directory.glob("*.log"):
        if log.stat().st_size:
            with (
                log.open("rb") as file,
                mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data,
            ):
                if _is_endless(data):
                    return True
    return False


def _is_endless(data: Data) -> bool:
    at = 0
    size = len(data)
    header = _HEADER.size
    while at + header <= size:
        left = _BLOCK - at % _BLOCK
        if left < header:
            at += left
            continue
        _, length, kind = _HEADER.unpack_from(data, at)
        if kind in _ENDLESS:
            return True
        if not _WHOLE <= kind <= _LAST or header + length > left:
            break
        at += header + length
    behind = range(at - at % _BLOCK + _BLOCK, size - header, _BLOCK)  # where RocksDB resumes
    return any(data[block + header - 1] in _ENDLESS for block in behind)


def find_damage(directory: Path) -> Damage | None:
    """The first damage in the logs of a database that is not open; None when they read back whole.

    Takes some seconds for 32 MiB: to be called only when RocksDB has reported a corruption.
    """
    logs = sorted(path for path in directory.glob("*.log") if path.stat().st_size)
    for number, file in enumerate(logs):
        data = file.read_bytes()
        offset = _end_of_whole_records(data)
        if offset < len(data.rstrip(_ZEROS)):
            later = tuple(logs[number + 1 :])
            is_tail = not later and not _is_anything_behind(data, offset)
            return Damage(file, offset, len(data) - offset, is_tail, later)
    return None


def _end_of_whole_records(data: bytes) -> int:
    """The offset after the last whole record before anything that is none."""
    end = at = 0
    while (fragment := _fragment(data, at)) is not None:
        kind, at = fragment
        if kind in (_WHOLE, _LAST):
            end = at
    return end


def _fragment(data: Data, at: int) -> tuple[int, int] | None:
    """The type of the fragment at an offset and where it ends; None when there is no whole one."""
    left = _BLOCK - at % _BLOCK
    if left < _HEADER.size:
        # too little for a header: filled with zeros
        at = at + left
        left = _BLOCK
    if at + _HEADER.size > len(data):
        return None
    checksum, length, kind = _HEADER.unpack_from(data, at)
    stop = at + _HEADER.size + length
    if not _WHOLE <= kind <= _LAST or stop - at > left or stop > len(data):
        return None
    if _masked(_crc32c(data[at + _HEADER.size - 1 : stop])) != checksum:
        return None
    return kind, stop


def _is_anything_behind(data: Data, offset: int) -> bool:
    """True if a whole record begins somewhere behind the damage; a lone fragment may be part of the torn record."""
    while (
        fragment := _fragment(data, offset)
    ) is not None:  # the first fragments of a record whose rest is damaged
        offset = fragment[1]
    block = offset - offset % _BLOCK + _BLOCK
    # its length may be what is damaged
    within = range(offset + 1, min(block, len(data) - _HEADER.size))
    return any(_begins_whole(data, start) for start in (*within, *range(block, len(data), _BLOCK)))


def _begins_whole(data: Data, at: int) -> bool:
    """True if a whole record follows from ``at`` on, behind the rest of one that begins before it."""
    has_begun = False
    while (fragment := _fragment(data, at)) is not None:
        kind, at = fragment
        if kind == _WHOLE or (kind == _LAST and has_begun):
            return True
        has_begun = has_begun or kind == _FIRST
    return False


def _masked(checksum: int) -> int:
    return ((checksum >> 15 | checksum << 17) + _MASK) & 0xFFFFFFFF


def _table() -> list[int]:
    table = []
    for value in range(256):
        for _ in range(8):
            value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
        table.append(value)
    return table


_TABLE: Final = _table()


def _crc32c(data: bytes) -> int:
    """CRC-32C; the standard library has none, and here a few MB/s will do."""
    table = _TABLE
    checksum = 0xFFFFFFFF
    for byte in data:
        checksum = table[(checksum ^ byte) & 0xFF] ^ checksum >> 8
    return checksum ^ 0xFFFFFFFF
