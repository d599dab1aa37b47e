"""Restore of a backup into a data directory that no broker uses: all of it, or nothing.

Everything is unpacked and checked in a folder in the data directory, and read as a start would read it, then moved to
its place. No broker starts in a directory where the moves were cut off.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import BinaryIO, Final

from broker.admin.backups import FILES, SECRET_FILES
from broker.app.build import section_models
from broker.app.version import product_version
from broker.cluster.directories import CELLS, cell_directory, keep_count
from broker.cluster.positions import StoredPositions
from broker.cluster.supervisor import no_supervisor
from broker.config.assignments import HEADER, line_of
from broker.config.file_names import API_FILE
from broker.config.root import load_config
from broker.config.vault import KEY_FILE, KEY_FILE_VARIABLE, KEY_VARIABLE, Vault
from broker.connection.sessions.log import SESSION_LOG
from broker.core.cells import MAX_CELLS
from broker.core.errors import ConfigError, Conflict, Unavailable
from broker.storage.archive import Archive, BackupUnusable, entries_of
from broker.storage.directory import RESTORING, DirectoryLock
from broker.storage.rocksdb.store import DATABASE_FOLDER, RocksStore, filled
from broker.storage.store import Batch

# Folder that gets what a restore replaces; the time follows.
_BEFORE: Final = "before-restore-"
# Names of a broker's store: its folder, the list of its logs, what follows it, and the stores of other cells.
_OF_STORE: Final = (DATABASE_FOLDER, "store.json", "ranges", "topic-index", "run", CELLS)
# All that a restore may replace.
_OWN: Final = (*FILES, *SECRET_FILES, *_OF_STORE)
# Value of secrets that a backup has no value of.
NO_VALUE: Final = "restored without its value"


def restore(
    archive: Archive, directory: Path, environ: Mapping[str, str], *, replace: bool, dry_run: bool
) -> Path | None:
    """Restore into a data directory, and return the folder with the data from before, if any. A dry run unpacks and
    checks everything, and changes nothing.

    Raises:
        BackupUnusable: the backup is damaged, or of a newer release.
        Conflict: the directory is not empty, and ``replace`` is not set.
        ConfigError: a broker uses the directory, or would not start with the backup.
        Unavailable: the disk is full or fails.
    """
    _check_version(archive)
    cells = archive.manifest.cells
    if not 1 <= cells <= MAX_CELLS:
        raise BackupUnusable(f"the backup is of {cells} cells; there may be 1 to {MAX_CELLS}")
    for part in archive.manifest.parts:
        if part.content == "file":
            _check_path(archive, part.path)
        if not 0 <= part.cell < cells:
            raise BackupUnusable(f"the backup has data of cell {part.cell}, and {cells} cells")
    is_new = not directory.exists()
    lock = DirectoryLock(directory, restores=True)
    try:
        with no_supervisor(directory):
            return _restored(archive, directory, environ, replace=replace, dry_run=dry_run)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise Unavailable(
            f"{directory} cannot be written ({reason}); nothing was changed"
        ) from error
    finally:
        lock.release()
        if dry_run and is_new:
            (directory / "LOCK").unlink(missing_ok=True)
            directory.rmdir()


def _restored(
    archive: Archive, directory: Path, environ: Mapping[str, str], *, replace: bool, dry_run: bool
) -> Path | None:
    _check_room(archive, directory)
    new = {part.path.split("/")[0] for part in archive.manifest.parts if part.path}
    old = [name for name in _OWN if (directory / name).exists()]
    old = [name for name in old if name in new or name in _OF_STORE]
    if old and not replace and not dry_run:
        raise Conflict(
            f"{directory}: expected a data directory without a broker's data, got {', '.join(old[:5])}. Try: "
            f"--replace, which moves it into a folder {_BEFORE}TIME"
        )
    with TemporaryDirectory(prefix="restore-", dir=directory) as folder:
        staging = Path(folder)
        _unpack(archive, staging)
        _add_missing_secrets(archive, staging, directory, environ)
        _check_start(archive, staging, environ)
        return None if dry_run else _put_in_place(staging, directory, old)


def _check_version(archive: Archive) -> None:
    written, own = (_numbers(text) for text in (archive.manifest.version, product_version()))
    if written > own > ():
        raise BackupUnusable(
            f"the backup was made by release {archive.manifest.version}, and this is {product_version()}. Try: install "
            "the newer release"
        )


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:3])


def _check_path(archive: Archive, path: str) -> None:
    parts = path.split("/")
    is_plain = all(part not in ("", ".", "..") and "\0" not in part for part in parts)
    if not is_plain or parts[0] not in (*FILES, *SECRET_FILES):
        raise BackupUnusable(f"the backup has a file {path!r}, which is not of a data directory")


def _check_room(archive: Archive, directory: Path) -> None:
    needed = sum(part.bytes for part in archive.manifest.parts)
    free = shutil.disk_usage(directory).free
    if needed > free:
        raise Unavailable(
            f"{directory}: expected {needed:,} bytes of free disk for the backup, got {free:,}"
        )


def _unpack(archive: Archive, staging: Path) -> None:
    """Write files and stores. Raises ``BackupUnusable`` for entries that are none of a store."""
    cells = archive.manifest.cells
    parts = groupby(archive.data(), lambda named: (named[0].content, named[0].cell, named[0].path))
    try:
        for (content, cell, path), pieces in parts:
            data = (data for _, data in pieces)
            if content == "store":
                directory = cell_directory(staging, cell)
                directory.mkdir(parents=True, exist_ok=True, mode=0o700)
                filled(directory, entries_of(data))
            else:
                with _created(staging / path) as file:
                    file.writelines(data)
        for cell in range(cells):
            if cell_directory(staging, cell).joinpath(DATABASE_FOLDER).is_dir():
                continue
            if cell:
                raise ValueError(f"the store of cell {cell} is missing")
            filled(staging, ())
    except (ValueError, FileExistsError, NotADirectoryError) as error:
        raise BackupUnusable(f"the backup is damaged: {error}") from error
    if cells > 1:
        _align(staging, cells)
        keep_count(staging, cells)


def _align(staging: Path, cells: int) -> None:
    """Let no cell expect more of another one's log than there is: the stores are of different moments, and a cell
    would pass over what it believes to have."""
    with ExitStack() as opened:
        stores = [
            opened.enter_context(closing(RocksStore(cell_directory(staging, cell))))
            for cell in range(cells)
        ]
        for other, log in enumerate(stores):
            following = log.range_of(SESSION_LOG).next_offset
            for store in stores:
                kept = StoredPositions(store).at(other)
                if kept is not None and kept[1] > following:
                    puts = StoredPositions.kept_at(other, kept[0], following)
                    store.commit(Batch(puts=puts))
    for cell in range(cells):
        cell_directory(staging, cell).joinpath("LOCK").unlink()


def _created(file: Path) -> BinaryIO:
    """A new file for the owner only."""
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    return os.fdopen(descriptor, "wb")


def _add_missing_secrets(
    archive: Archive, staging: Path, directory: Path, environ: Mapping[str, str]
) -> None:
    """Add secrets that the backup has no value of, so that objects which refer to them can be used."""
    missing = archive.manifest.missing_secrets
    if not missing:
        return
    is_elsewhere = any(environ.get(name, "").strip() for name in (KEY_VARIABLE, KEY_FILE_VARIABLE))
    has_key = is_elsewhere or (directory / KEY_FILE).exists()
    vault = Vault.of_environment(directory if has_key else staging, environ)
    file = staging / API_FILE
    lines = []
    for secret in missing:
        spec = {
            "name": secret.name,
            "description": secret.description,
            "updated_at": archive.manifest.made_at,
            "encrypted": vault.seal(secret.name, NO_VALUE),
        }
        lines.append(line_of({("secrets", secret.name): spec}))
    vault.keep_key()
    with file.open("a", encoding="utf-8") as opened:
        if not file.stat().st_size:
            opened.write(HEADER)
        opened.writelines(lines)


def _check_start(archive: Archive, staging: Path, environ: Mapping[str, str]) -> None:
    """Raise an error where a broker would not read the configuration that was unpacked."""
    try:
        load_config(section_models(), data_dir=staging, environ=environ)
    except ConfigError as error:
        problems = [problem.replace(f"{staging}/", "") for problem in error.problems]
        raise ConfigError(problems) from error


def _put_in_place(staging: Path, directory: Path, old: Sequence[str]) -> Path | None:
    """Move what was unpacked to its place, and what was there aside; back again where that fails."""
    moved: list[tuple[Path, Path]] = []
    mark = directory / RESTORING
    aside = None
    os.sync()
    mark.touch(mode=0o600)
    try:
        if old:
            aside = directory / f"{_BEFORE}{datetime.now(UTC):%Y%m%dT%H%M%SZ}"
            aside.mkdir(mode=0o700)
        for name in old:
            assert aside is not None
            _move(directory / name, aside / name, moved)
        for entry in sorted(staging.iterdir()):
            _move(entry, directory / entry.name, moved)
    except OSError:
        for source, target in reversed(moved):
            target.rename(source)
        mark.unlink()
        raise
    mark.unlink()
    os.sync()
    return aside


def _move(source: Path, target: Path, moved: list[tuple[Path, Path]]) -> None:
    source.rename(target)
    moved.append((source, target))
