"""Location of member tables: in a directory next to the table, and in its catalog under its namespace."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Final, TypeVar

import pyarrow as pa
import pyarrow.fs as fs

from bridges.spark.columns.place import Place
from bridges.spark.tables.contract import Binding, LakeTable
from bridges.spark.tables.formats import open_table
from bridges.spark.tasks.split import unsafe

T = TypeVar("T")
SUFFIX: Final = "__tables"
# The folder in a table's directory that its format keeps versions in.
_LOGS: Final = {"delta": "_delta_log", "iceberg": "metadata"}
# Member tables that are opened or committed at once: in a store, each takes requests that wait.
_AT_ONCE: Final = 8


def members_place(place: Place) -> Place:
    """The directory of the members of the table at a place."""
    return place.directory.beside(SUFFIX)


def member_place(place: Place, name: str) -> Place:
    """The place of a member of the table at a place."""
    located = members_place(place).child(name)
    entry = place.entry
    return (
        located
        if entry is None
        else replace(located, entry=replace(entry, identifier=(*entry.identifier[:-1], name)))
    )


def part_of(name: str) -> str:
    """The end of a member's path behind that of the table (``TableSpec.expected``)."""
    return f"{SUFFIX}/{name}"


def member_of(part: str) -> str | None:
    """The member that a part of a table is; None where it is none."""
    return part.removeprefix(f"{SUFFIX}/") if part.startswith(f"{SUFFIX}/") else None


def part_place(place: Place, part: str) -> Place:
    """The place of a part of the table at a place (``TableSpec.expected``)."""
    name = member_of(part)
    return member_place(place, name) if name is not None else place.beside(part) if part else place


def member_folders(place: Place) -> set[str]:
    """The names of the directories that members of the table at a place may be in."""
    return {folder.base_name for folder in _folders(members_place(place))}


def open_members(table_format: str, place: Place, binding: Binding) -> dict[str, LakeTable]:
    """The members of the table at a place by their names, in order.

    Raises:
        TableRefused: one cannot be used.
    """
    directory = members_place(place)
    folders = [folder.base_name for folder in _folders(directory)]
    # In others are files for tables that were not created.
    logs = directory.files.get_file_info(
        [directory.path_of(f"{name}/{_LOGS[table_format]}") for name in folders]
    )
    names = sorted(
        name
        for name, log in zip(folders, logs, strict=True)
        if log.type is not fs.FileType.NotFound
    )
    opened = at_once(
        lambda name: open_table(table_format, member_place(place, name), binding), names
    )
    return {name: table for name, table in zip(names, opened, strict=True) if table is not None}


def clean_unused(
    place: Place, tables: Sequence[LakeTable], older_than_s: float, *, dry_run: bool
) -> int:
    """Remove older data files in directories for members that were never created, or count them; how many."""
    directory = members_place(place)
    used = {table.place.path for table in tables}
    before = time.time() - older_than_s
    unused = []
    for folder in _folders(directory):
        if folder.path in used:
            continue
        files = directory.files.get_file_info(fs.FileSelector(folder.path))
        old = [
            file.path
            for file in files
            if file.extension == "parquet" and file.mtime.timestamp() < before
        ]
        unused += old
    if not dry_run:
        directory.remove(unused)
    return len(unused)


def is_name(text: str) -> bool:
    """Return whether a member may have this name."""
    return text == text.lower() and unsafe(text) is None


def newest_of(parts: Sequence[pa.Table], limit: int) -> pa.Table:
    """The last rows of several tables by time, of which some have columns that others do not."""
    order = [("_published_at", "descending"), ("_offset", "descending")]
    return pa.concat_tables(parts, promote_options="default").sort_by(order).slice(0, limit)


def _folders(directory: Place) -> list[fs.FileInfo]:
    there = directory.files.get_file_info(fs.FileSelector(directory.path, allow_not_found=True))
    return [folder for folder in there if folder.type is fs.FileType.Directory]


def at_once(work: Callable[[str], T], names: Iterable[str]) -> list[T]:
    """Do something for members, a few at a time; the first failure is raised when all are over."""
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return list(pool.map(work, names))
