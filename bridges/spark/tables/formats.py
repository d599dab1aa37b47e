"""Table formats by name."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from bridges.spark.columns import DEAD_LETTER, Column
from bridges.spark.tables.contract import Binding, LakeTable, TableRefused

DEAD_LETTERS_SUFFIX = "__dead_letters"


def dead_letters_dir(directory: str) -> str:
    """Where the dead letters of the table in ``directory`` are: next to it."""
    return directory.rstrip("/") + DEAD_LETTERS_SUFFIX


def _format(name: str) -> type[LakeTable]:
    if name == "delta":
        from bridges.spark.tables.delta import DeltaLakeTable

        return DeltaLakeTable
    from bridges.spark.tables.iceberg import IcebergLakeTable

    return IcebergLakeTable


def open_table(table_format: str, directory: str, binding: Binding) -> LakeTable | None:
    """See ``LakeTable.open``."""
    return _format(table_format).open(directory, binding)


def open_or_create(table_format: str, directory: str, binding: Binding, columns: Sequence[Column]) -> LakeTable:
    """The table in a directory, made with these columns after provenance when there is none.

    Raises:
        TableRefused: the place cannot be used.
    """
    try:
        Path(directory).mkdir(parents=True, exist_ok=True)
        return _format(table_format).open_or_create(directory, binding, columns)
    except OSError as error:
        reason = error.strerror or str(error)
        raise TableRefused(f"table path {directory} cannot be written: {reason}; choose another path") from error


def open_dead_letters(table_format: str, directory: str, binding: Binding, *, create: bool) -> LakeTable | None:
    """The dead-letter table beside the one in ``directory``; None when there is none and ``create`` is false."""
    beside = dead_letters_dir(directory)
    if create:
        return open_or_create(table_format, beside, binding, DEAD_LETTER)
    return open_table(table_format, beside, binding)
