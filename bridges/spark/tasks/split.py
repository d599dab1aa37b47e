"""Assignment of rows to member tables. Runs in tasks: imports nothing of the broker."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bridges.spark.columns.column import Column

# Characters of a table's name.
LONGEST: Final = 128
_SAFE: Final = re.compile(r"[A-Za-z0-9_-]+")
_SHOWN: Final = 60


@dataclass(frozen=True, slots=True)
class Split:
    """The plan for tasks of a table with members. ``names`` are the existing ones; ``room`` is the number of further
    ones. Rows for ``refused`` names are dead letters, with the sentence. Rows below ``floors``, by member and
    shard, are in the member already. ``columns`` are of members with other identifiers of columns than the plan."""

    parts: tuple[str, ...]
    most: int
    names: frozenset[str] = frozenset()
    room: int = 0
    refused: Mapping[str, str] = field(default_factory=dict)
    floors: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
    columns: Mapping[str, tuple[Column, ...]] = field(default_factory=dict)

    def too_many(self, name: str) -> str:
        """The sentence for a row of a further table, which is a dead letter."""
        return f"table {name!r} would be one more than max_tables, which is {self.most}"

    def without_known(self, rows: pa.Table, names: str) -> pa.Table:
        """The rows that members do not have; ``names`` is the column with the name of each row's member."""
        if not self.floors:
            return rows
        member = rows.column(names)
        shards = rows.column("_shard").to_numpy()
        offsets = rows.column("_offset").to_numpy()
        is_known = np.zeros(rows.num_rows, bool)
        for name, ends in self.floors.items():
            is_mine = pc.equal(member, name).to_numpy()
            for shard, end in ends.items():
                is_known |= is_mine & (shards == shard) & (offsets < end)
        return rows.filter(pa.array(~is_known))


@dataclass(frozen=True, slots=True)
class Rendered:
    """The template for each row: ``texts`` without repetition, ``places`` the index in them, -1 where a row has no
    value in a column of the template, of which ``lacking`` is the name."""

    texts: list[str]
    places: Any
    lacking: dict[int, str]


def render(parts: Sequence[str], columns: Mapping[str, pa.Array], rows: int) -> Rendered:
    """Render the template for rows, given as columns by their names; an empty value is none."""
    values: list[Any] = []
    lacking: dict[int, str] = {}
    for at, part in enumerate(parts):
        if at % 2 == 0:
            values.append(pa.scalar(part))
            continue
        texts = _texts(columns.get(part), rows)
        for row in np.flatnonzero(pc.is_null(texts).to_numpy(zero_copy_only=False)).tolist():
            lacking.setdefault(row, part)
        values.append(texts)
    joined = pc.binary_join_element_wise(*values, pa.scalar(""))
    encoded = pc.dictionary_encode(joined)
    return Rendered(
        encoded.dictionary.to_pylist(), encoded.indices.fill_null(-1).to_numpy(), lacking
    )


def _texts(column: pa.Array | None, rows: int) -> pa.Array:
    if column is None or pa.types.is_nested(column.type) or pa.types.is_binary(column.type):
        return pa.nulls(rows, pa.string())
    texts = column.cast(pa.string())
    return pc.if_else(pc.equal(texts, ""), pa.scalar(None, pa.string()), texts)


def unsafe(text: str) -> str | None:
    """The problem with a string that is not a table's name, or None."""
    shown = text if len(text) <= _SHOWN else text[:_SHOWN] + "..."
    if characters := _SAFE.sub("", text):
        return f"table name {shown!r}: expected letters, digits, '_' and '-', got {characters[0]!r}"
    if len(text) > LONGEST:
        return f"table name {shown!r}: expected at most {LONGEST} characters, got {len(text)}"
    return None
