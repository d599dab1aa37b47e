"""Quarantine: what waits there, and publishing it again."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from broker.admin.quarantine import QuarantineService
from broker.core.objects import Spec
from ui.api.models.gates import TakeAgain
from ui.api.models.shapes import Anything, ObjectList
from ui.api.objects import Cursor, Limit, page_of
from ui.api.operation import Operations
from ui.api.parameters import NamePath


def add_quarantine(router: APIRouter, quarantine: QuarantineService) -> None:
    """Add ``/quarantine`` and its verbs."""
    ops = Operations(router, "Quarantine")

    @ops.get("/quarantine", "listQuarantines", "List quarantines", answer=ObjectList, problems=(422,))
    def list_quarantines(limit: Limit = 100, cursor: Cursor = None) -> Spec:
        """Returns the streams that keep messages stopped by validations and transformations."""
        return page_of(quarantine.overview(), limit, cursor, "stream")

    @ops.get(
        "/quarantine/{name}", "getQuarantine", "List the messages of a quarantine", answer=Anything, problems=(404, 422)
    )
    def show(name: NamePath, limit: Annotated[int, Query(ge=1, le=1000)] = 20) -> Spec:
        """Returns the stopped messages, oldest first, each with the reason."""
        return quarantine.get(name, limit)

    @ops.post(
        "/quarantine/{name}:take-again",
        "takeQuarantineAgain",
        "Publish quarantined messages again",
        answer=Anything,
        problems=(404,),
        takes_key=True,
    )
    async def take_again(name: NamePath, body: TakeAgain) -> Spec:
        """Publishes stopped messages again through all stages. One that fails again is stopped again, with its new
        reason.
        """
        return await quarantine.take_again(name, body.limit)
