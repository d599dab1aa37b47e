"""The first half of a batch of a table with a key: rows as files that the merge reads, the last of each key.

The files are in the table's directory, do not belong to the table, and are removed after the commit. Their rows are in
groups by the first bits of the key's hash, one row group each.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from bridges.spark.columns.column import PROVENANCE, Column, arrow_schema
from bridges.spark.columns.place import Place
from bridges.spark.tasks.keys import DELETED, HASH_BITS, Upsert, hashes_of, last_of_each
from bridges.spark.tasks.leaves import GROUP_BITS
from bridges.spark.tasks.task import (
    DataFile,
    FileWriter,
    PartitionWriter,
    Plan,
    ShardCount,
    provenance_of,
    whole_array,
)

if TYPE_CHECKING:
    from bridges.spark.tasks.condition import Condition


class StagedWriter(PartitionWriter):
    """Turns record batches of the source into files for the merge, and files of dead letters."""

    def __init__(self, plan: Plan, upsert: Upsert) -> None:
        super().__init__(plan)
        self._upsert = upsert
        self._staged = _StagedFiles(plan.table, upsert)
        self._rows = self._staged
        self._deleting = np.empty(0, np.int64)
        """Offsets, of the records that are taken now, that remove their key."""
        self._condition: Condition | None = None
        if upsert.delete_when:
            from bridges.spark.tasks.condition import Condition

            self._condition = Condition(upsert.delete_when, plan.rule.node if plan.rule else "")

    def reconvert(self, batch: pa.RecordBatch) -> None:
        self._deleting = np.empty(0, np.int64)
        for shard, part in _by_shard(batch):
            self._convert(part, shard, self._count_again(shard))

    def retry(self, letters: pa.RecordBatch) -> None:
        for shard, part in _by_shard(letters):
            self._add_fresh(shard, part, self._count_again(shard))

    def _add_fresh(self, shard: int, batch: pa.RecordBatch, count: ShardCount) -> None:
        self._deleting = np.empty(0, np.int64)
        is_read = np.ones(batch.num_rows, bool)
        if self._rule is not None:
            is_read = np.array(
                [self._rule.reads(topic) for topic in batch.column("topic").to_pylist()], bool
            )
        if self._upsert.has_tombstones:
            empty = pc.equal(pc.binary_length(batch.column("payload")), 0).fill_null(True)
            tombstones = is_read & empty.to_numpy(zero_copy_only=False)
            if tombstones.any():
                self._delete(batch.filter(pa.array(tombstones)), shard, count)
                batch = batch.filter(pa.array(~tombstones))
                is_read = is_read[~tombstones]
        if self._condition is not None and is_read.any():
            at = np.flatnonzero(is_read)
            is_deletion, errors = self._condition.holds(batch.take(pa.array(at)))
            self._deleting = batch.column("offset").to_numpy()[at[is_deletion]]
            if errors:
                failed = np.zeros(batch.num_rows, bool)
                failed[at[sorted(errors)]] = True
                bad = batch.filter(pa.array(failed))
                sentences = [errors[row] for row in sorted(errors)]
                self._bury(bad, sentences, ["lake.delete_when"] * len(errors), shard, count)
                batch = batch.filter(pa.array(~failed))
        if batch.num_rows:
            super()._add_fresh(shard, batch, count)

    def _delete(self, batch: pa.RecordBatch, shard: int, count: ShardCount) -> None:
        """Take records without a payload: each removes its key."""
        self._deleting = batch.column("offset").to_numpy()
        self._keep(batch, {}, count)

    def _keep(
        self,
        batch: pa.RecordBatch,
        arrays: Mapping[str, pa.Array],
        count: ShardCount,
        records: int | None = None,
    ) -> None:
        """Take rows that have their whole key; a record of which one row lacks it gives none, and is a dead letter."""
        if batch.num_rows == 0:
            return
        offsets = batch.column("offset").to_numpy()
        lacking = self._lacking(batch, arrays)
        bad: dict[int, str] = {}
        for name, is_null in lacking.items():
            for offset in offsets[is_null].tolist():
                bad.setdefault(
                    offset, f"column {name!r} is part of the key, and the row has no value for it"
                )
        batch, arrays, records, _ = self._without(bad, "lake.key", batch, arrays, count, records)
        if batch.num_rows == 0:
            return
        offsets = batch.column("offset").to_numpy()
        self._staged.deleted.append(pa.array(np.isin(offsets, self._deleting)))
        super()._keep(batch, arrays, count, records)

    def _lacking(self, batch: pa.RecordBatch, arrays: Mapping[str, pa.Array]) -> dict[str, Any]:
        """Masks of the rows without a value, by column of the key."""
        named = {
            column.name: arrays[column.key] for column in self._columns if column.key in arrays
        }
        named |= {
            name: array
            for name, array in provenance_of(self._plan.stream, batch).items()
            if name not in named
        }
        masks = {}
        for name in self._upsert.key:
            values = named.get(name)
            has_none = values is None or pa.types.is_nested(values.type)
            mask = np.ones(batch.num_rows, bool) if has_none else pc.is_null(values).to_numpy(False)
            if mask.any():
                masks[name] = mask
        return masks


def _by_shard(batch: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
    """The records of each shard, by offset."""
    batch = batch.take(pc.sort_indices(batch, [("shard", "ascending"), ("offset", "ascending")]))
    for shard in pc.unique(batch.column("shard")).to_pylist():
        yield shard, batch.filter(pc.equal(batch.column("shard"), shard))


class _StagedFiles(FileWriter):
    """Writes files for the merge. ``deleted`` is a mask for each part, given before the part."""

    def __init__(self, place: Place, upsert: Upsert) -> None:
        super().__init__(place)
        self._upsert = upsert
        self.deleted: list[pa.Array] = []

    def _written(self, columns: Sequence[Column]) -> list[DataFile]:
        schema = staged_schema(columns)
        batches = []
        for arrays, deleted in zip(self._parts, self.deleted, strict=True):
            named = {**arrays, DELETED: deleted}
            whole = [
                whole_array(named.get(column.name), column.type, len(deleted)) for column in schema
            ]
            batches.append(pa.RecordBatch.from_arrays(whole, schema=schema))
        rows = pa.Table.from_batches(batches, schema)
        is_last, keys = last_of_each(rows, self._upsert)
        superseded = Counter(rows.column("_shard").filter(pa.array(~is_last)).to_pylist())
        kept = pa.array(is_last)
        rows = rows.filter(kept)
        groups = hashes_of(keys.filter(kept)) >> np.uint32(HASH_BITS - GROUP_BITS)
        rows = rows.take(pa.array(np.argsort(groups, kind="stable")))
        sizes = np.bincount(groups, minlength=1 << GROUP_BITS)
        name = f"staged-{uuid.uuid4().hex}.parquet"
        files = self._place.files
        path = self._place.path_of(name)
        if self._place.is_local:
            files.create_dir(self._place.path)
        with pq.ParquetWriter(path, schema, filesystem=files, compression="lz4") as file:
            start = 0
            for size in sizes[sizes > 0].tolist():
                file.write_table(rows.slice(start, size), row_group_size=size)
                start += size
        stats = {"groups": np.flatnonzero(sizes).tolist(), "superseded": dict(superseded)}
        self.deleted = []
        return [DataFile(name, files.get_file_info(path).size, rows.num_rows, stats)]


def staged_schema(columns: Sequence[Column]) -> pa.Schema:
    """The columns of a file for the merge."""
    return arrow_schema((*PROVENANCE, *columns)).append(pa.field(DELETED, pa.bool_()))
