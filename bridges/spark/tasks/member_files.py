"""A task's rows of a table with members: files of each member's own directory. Imports nothing of the broker."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

import numpy as np
import pyarrow as pa

from bridges.spark.columns.column import PROVENANCE, arrow_schema
from bridges.spark.columns.layout import Layout, PartitionField, check_partitions
from bridges.spark.columns.place import Place
from bridges.spark.tasks.split import Split, render, unsafe
from bridges.spark.tasks.task import (
    DataFile,
    PartitionWriter,
    Plan,
    ShardCount,
    TableFiles,
    TaskResult,
    provenance_of,
    write_rows,
)

# The column with the name of each row's member, which no file has; no column of a row is called so.
_NAME: Final = " table"
_BY_NAME: Final = Layout("delta", (PartitionField("identity", _NAME, "string"),))


class MemberWriter(PartitionWriter):
    """Turns record batches of the source into files of member tables, and files of dead letters."""

    def __init__(self, plan: Plan, split: Split) -> None:
        super().__init__(plan)
        self._split = split
        self._members = _MemberFiles(plan.table, plan.layout, split)
        self._rows = self._members

    def finish(self) -> TaskResult:
        result = super().finish()
        result.members = self._members.rows
        return result

    def _keep(
        self, batch: pa.RecordBatch, arrays: Mapping[str, pa.Array], count: ShardCount, records: int | None = None
    ) -> None:
        """Take rows that have a member; a record of which one row has none gives none, and is a dead letter."""
        if batch.num_rows == 0:
            return
        named = {column.name: arrays[column.key] for column in self._columns if column.key in arrays}
        named = {**provenance_of(self._plan.stream, batch), **named}
        rendered = render(self._split.parts, named, batch.num_rows)
        offsets = batch.column("offset").to_numpy()
        why = self._why(rendered.texts, rendered.places, batch)
        bad = {
            int(offsets[row]): f"column {column!r} names the table, and the row has no value for it"
            for row, column in rendered.lacking.items()
        }
        for at, sentence in why.items():
            for row in np.flatnonzero(rendered.places == at).tolist():
                bad.setdefault(int(offsets[row]), sentence)
        names = pa.array([text.lower() for text in rendered.texts], pa.string())
        # A row without a name is left out with its record.
        mine = names.take(pa.array(rendered.places, mask=rendered.places < 0))
        batch, arrays, records, kept = self._without(bad, "lake.tables", batch, arrays, count, records)
        if batch.num_rows:
            self._members.names.append(mine.filter(kept))
            super()._keep(batch, arrays, count, records)

    def _why(self, texts: list[str], places: Any, batch: pa.RecordBatch) -> dict[int, str]:
        """By the index of a rendered name, why rows with it have no member."""
        found: dict[int, str] = {}
        used, first = np.unique(places, return_index=True)
        for at, row in sorted(zip(used.tolist(), first.tolist(), strict=True), key=lambda one: one[1]):
            if at < 0:
                continue
            name = texts[at].lower()
            split = self._split
            fresh = self._result.tables
            sentence = unsafe(texts[at]) or split.refused.get(name)
            if sentence is None and name not in split.names and name not in fresh:
                if len(fresh) < split.room:
                    fresh[name] = (batch.column("offset")[row].as_py(), batch.column("shard")[row].as_py())
                else:
                    sentence = split.too_many(name)
                    self._result.over += int((places == at).sum())
            if sentence is not None:
                found[at] = sentence
        return found


class _MemberFiles(TableFiles):
    """Writes files of members. ``names`` are those of the rows of each part, given before the part."""

    def __init__(self, place: Place, layout: Layout, split: Split) -> None:
        super().__init__(place, layout)
        self._split = split
        self.names: list[pa.Array] = []
        self.rows: dict[str, dict[int, int]] = {}
        """By member and shard, how many were written."""

    def _write(self, rows: pa.Table) -> list[DataFile]:
        rows = rows.append_column(_NAME, pa.chunked_array(self.names, pa.string()))
        rows = self._split.without_known(rows, _NAME)
        self.names = []
        if rows.num_rows == 0:
            return []
        found: list[DataFile] = []
        for [name], part in _BY_NAME.split(rows):
            counts = np.bincount(part.column("_shard").to_numpy())
            mine = self.rows.setdefault(name, {})
            for shard in np.flatnonzero(counts).tolist():
                mine[shard] = mine.get(shard, 0) + int(counts[shard])
            place = self._place.child(name)
            if place.is_local:
                place.files.create_dir(place.path)
            part = part.drop_columns([_NAME])
            own = arrow_schema((*PROVENANCE, *self._split.columns.get(name, ())))
            if own.equals(part.schema):
                part = pa.table(part.columns, schema=own)
            written = write_rows(place, part, self._layout)
            found += [replace(one, path=f"{name}/{one.path}") for one in written]
            check_partitions(len(found), self._layout)
        return found
