"""The lakehouse's verbs: the job's report, the preview of a table, the audit."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

from fastapi import APIRouter, Query

from bridges.spark.service import TableAudit, TablePreview
from broker.core.objects import Spec
from ui.api.context import Lake
from ui.api.models.streams import TableReport
from ui.api.operation import Operations
from ui.api.parameters import NamePath
from ui.api.wire import Json, answer


class SharedReads:
    """Reads of tables on threads, one at a time for each question: ten open pages read the table once."""

    def __init__(self, lake: Lake) -> None:
        self._lake = lake
        self._running: dict[tuple[Any, ...], asyncio.Task[Json]] = {}

    async def preview(self, table: str, limit: int) -> Json:
        """The newest rows."""
        return await self._share(("preview", table, limit))

    async def audit(self, table: str) -> Json:
        """The proof by offset."""
        return await self._share(("audit", table))

    async def _share(self, question: tuple[Any, ...]) -> Json:
        task = self._running.get(question)
        if task is None:
            task = asyncio.create_task(self._read(question), name=f"{question[0]} of table {question[1]}")
            self._running[question] = task
            task.add_done_callback(lambda done: self._finished(question, done))
        return await asyncio.shield(task)

    async def _read(self, question: tuple[Any, ...]) -> Json:
        verb, *arguments = question
        return await asyncio.to_thread(lambda: answer(getattr(self._lake, verb)(*arguments)))

    def _finished(self, question: tuple[Any, ...], task: asyncio.Task[Json]) -> None:
        del self._running[question]
        if not task.cancelled():
            task.exception()  # retrieved, so that asyncio does not log it when every request for it is gone


def add_lake(router: APIRouter, lake: Lake) -> None:
    """Add the verbs of tables."""
    reads, ops = SharedReads(lake), Operations(router, "Lake")

    @ops.put(
        "/lake/tables/{name}/report",
        "reportTable",
        "Report the progress of a table's job",
        body=TableReport,
    )
    def report(name: NamePath, body: Spec) -> None:
        """The lake job calls this to report its progress. The dashboard and the table show what was reported last."""
        lake.report(name, body)

    @ops.get("/lake/tables/{name}/preview", "previewTable", "Show the newest rows of a table", answer=TablePreview)
    async def preview(name: NamePath, limit: Annotated[int, Query(ge=1, le=1000)] = 20) -> Json:
        """Reads the newest rows from the files of the table, newest first."""
        return await reads.preview(name, limit)

    @ops.post("/lake/tables/{name}:audit", "auditTable", "Audit a table", answer=TableAudit)
    async def audit(name: NamePath) -> Json:
        """Proves by offset that every record of the stream is a row, was filtered, or is a dead letter."""
        return await reads.audit(name)
