"""Quarantine: what waits there, and taking it again."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from ui.api.context import Quarantine
from ui.api.models.gates import TakeAgain
from ui.api.models.shapes import Anything, ObjectList
from ui.api.objects import whole_list
from ui.api.operation import described
from ui.api.parameters import NamePath, checked_name
from ui.api.wire import answer, read_model


def add_quarantine(router: APIRouter, quarantine: Quarantine) -> None:
    """Add ``/quarantine`` and its verbs."""

    @router.get(
        "/quarantine",
        operation_id="listQuarantines",
        tags=["Quarantine"],
        summary="List quarantines",
        **described(answer=ObjectList),
    )
    async def list_quarantines() -> Response:
        """Returns the streams that keep messages stopped by validations and transformations."""
        return answer(whole_list(quarantine.overview()))

    @router.get(
        "/quarantine/{name}",
        operation_id="getQuarantine",
        tags=["Quarantine"],
        summary="List the messages of a quarantine",
        **described(answer=Anything, problems=(404, 422)),
    )
    async def show(name: NamePath, limit: Annotated[int, Query(ge=1, le=1000)] = 20) -> Response:
        """Returns the stopped messages, oldest first, each with the reason."""
        return answer(quarantine.show(checked_name(name), limit))

    @router.post(
        "/quarantine/{name}:take-again",
        operation_id="takeQuarantineAgain",
        tags=["Quarantine"],
        summary="Publish quarantined messages again",
        **described(body=TakeAgain, answer=Anything, problems=(404,)),
    )
    async def take_again(name: NamePath, request: Request) -> Response:
        """Publishes stopped messages again through all stages. One that fails again is stopped again, with its new
        reason.
        """
        return answer(await quarantine.take_again(checked_name(name), (await read_model(request, TakeAgain)).limit))
