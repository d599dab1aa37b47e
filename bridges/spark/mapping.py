"""The function that Spark runs over the partitions of a batch, with the writer that the table's plan asks for."""

from __future__ import annotations

import json
import pickle
import traceback
from collections.abc import Callable, Iterator

import pyarrow as pa

from bridges.spark.layout import LayoutError
from bridges.spark.task import PartitionWriter, Plan
from bridges.spark.upsert.staged import StagedWriter


def writer(plan: Plan) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """The function for ``mapInArrow``.

    A package that is missing, or a disk that cannot be written, fails each time. That is a result, since Spark would
    try again after an exception. Nothing of this module is imported before, so the plan is in bytes.
    """
    pickled = pickle.dumps(plan)

    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        try:
            from bridges.spark.mapping import partition_writer

            task = partition_writer(pickle.loads(pickled))
            for batch in batches:
                task.add(batch)
            result = task.finish().to_json()
        except (ImportError, OSError, LayoutError):
            result = json.dumps({"failure": traceback.format_exc()})
        yield pa.RecordBatch.from_pydict({"result": [result]})

    return write


def partition_writer(plan: Plan) -> PartitionWriter:
    """What writes a task's files with this plan."""
    if plan.upsert is None:
        return PartitionWriter(plan)
    return StagedWriter(plan, plan.upsert)
