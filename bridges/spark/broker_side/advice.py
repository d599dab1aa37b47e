"""Advice on a table's layout, from the figures that its job reports."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from broker.core.kinds import counted

_SMALL_FILE_BYTES = 16_000_000
_FEW_FILES = 30
_MANY_PARTITIONS = 100
_SMALL_PARTITION_BYTES = 32_000_000
_LARGE_TABLE_BYTES = 100_000_000_000


def advice_of(name: str, report: Mapping[str, Any], partition_by: Sequence[str]) -> list[str]:
    """Sentences of advice; most tables need none."""
    rows, files, size, partitions = (report.get(key) or 0 for key in ("rows", "files", "bytes", "partitions"))
    if not files or not size:
        return []
    sentences = []
    if partitions >= _MANY_PARTITIONS and size / partitions < _SMALL_PARTITION_BYTES:
        sentences.append(
            f"{counted(partitions, 'partition')} for {counted(rows, 'row')}. Try: partitions that are larger, such as "
            f"day(_published_at), or none."
        )
    elif not partition_by and size > _LARGE_TABLE_BYTES:
        sentences.append(
            f"{size / 1e9:,.0f} GB without partitions: readers of a day look at all files. Try: partition_by = "
            f"[day(_published_at)]."
        )
    if files >= _FEW_FILES and files >= 2 * partitions and size / files < _SMALL_FILE_BYTES:
        sentences.append(
            f"{files:,} files average {size / files / 1e6:,.1f} MB. Try: sluice lake tables compact {name}."
        )
    return sentences
