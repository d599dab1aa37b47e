"""Table formats by name."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator, Sequence
from typing import Final

import pyarrow.fs as fs

from bridges.spark.columns.column import DEAD_LETTER, Column
from bridges.spark.columns.layout import Layout
from bridges.spark.columns.place import Place
from bridges.spark.tables.contract import (
    AS_THEY_COME,
    Binding,
    LakeTable,
    Part,
    TableLost,
    TableRefused,
)

DEAD_LETTERS_SUFFIX: Final = "__dead_letters"


def dead_letters_place(place: Place) -> Place:
    """The place of the dead letters of a table: next to it."""
    return place.beside(DEAD_LETTERS_SUFFIX)


def _format(name: str) -> type[LakeTable]:
    if name == "delta":
        from bridges.spark.tables.delta import DeltaLakeTable

        return DeltaLakeTable
    from bridges.spark.tables.iceberg import IcebergLakeTable

    return IcebergLakeTable


def open_table(table_format: str, place: Place, binding: Binding) -> LakeTable | None:
    """See ``LakeTable.open``."""
    return _format(table_format).open(place, binding)


def exists(table_format: str, place: Place) -> bool:
    """True if there is a table at a place, as far as that is known without opening it."""
    if place.entry is None:
        log = place.path_of("_delta_log" if table_format == "delta" else "metadata")
        return bool(place.files.get_file_info(log).type is not fs.FileType.NotFound)
    from bridges.spark.tables.catalogs import answered, catalog_of

    with answered(place):
        return bool(catalog_of(place).table_exists(place.entry.identifier))


def lost(name: str, part: str, error: TableLost) -> TableLost:
    """Say of which table a part is lost, and what to do. The parts are named by ``part_of``."""
    table_text = f"table {name!r}"
    if part == DEAD_LETTERS_SUFFIX:
        table_text = f"the dead-letter table of {table_text}"
    elif part:
        table_text = f"member table {part.partition('/')[2]!r} of {table_text}"
    text = f"{table_text} {error.why}"
    if "Try: " not in text:
        text += f". Try: put its files back, or sluice lake tables recreate {name}, or sluice replay {name}."
    return TableLost(error.why, text)


@contextlib.contextmanager
def of_part(name: str, part: str = "") -> Iterator[None]:
    """Say in errors of the block which table is lost, and what to do."""
    try:
        yield
    except TableLost as error:
        raise lost(name, part, error) from error


def open_expected(table_format: str, place: Place, binding: Binding, was: Part) -> LakeTable:
    """The table that a job has written.

    Raises:
        TableLost: it is not there, or not as it was written.
    """
    try:
        table = open_table(table_format, place, binding)
    except TableRefused as error:
        raise TableLost(f"cannot be opened: {error}") from error
    if table is None:
        raise TableLost.gone(place)
    table.check_is(was)
    return table


def open_or_create(
    table_format: str,
    place: Place,
    binding: Binding,
    columns: Sequence[Column],
    layout: Layout = AS_THEY_COME,
) -> LakeTable:
    """The table at a place, made with these columns after provenance when there is none.

    Raises:
        TableRefused: the place cannot be used.
    """
    if not place.is_local:
        table = open_table(table_format, place, binding)
        if table is None:
            _check_store(place)
        return table or _format(table_format).open_or_create(place, binding, columns, layout)
    try:
        place.files.create_dir(place.path)
        return _format(table_format).open_or_create(place, binding, columns, layout)
    except OSError as error:
        reason = error.strerror or str(error)
        raise TableRefused(
            f"table path {place} cannot be written: {reason}; choose another path"
        ) from error


def open_dead_letters(
    table_format: str, place: Place, binding: Binding, *, create: bool
) -> LakeTable | None:
    """The dead-letter table of the table at a place; None when there is none and ``create`` is false."""
    letters_place = dead_letters_place(place)
    if create:
        return open_or_create(table_format, letters_place, binding, DEAD_LETTER)
    return open_table(table_format, letters_place, binding)


def _check_store(place: Place) -> None:
    """Refuse a store that lets a second driver replace what the first one has put.

    Raises:
        TableRefused: it does.
    """
    name = f"_probe-{uuid.uuid4().hex}"
    try:
        place.put_new(name, b"first")
        if place.put_new(name, b"second"):
            raise TableRefused(
                f"{place}: expected a store with conditional puts (If-None-Match), got one that lets a second driver "
                f"replace a version. Try: a newer release of the store."
            )
    finally:
        with contextlib.suppress(Exception):  # what kept it from being put is the error
            place.remove([place.path_of(name)])
