"""Alarms: what is wrong now, and what was wrong lately."""

from __future__ import annotations

from collections.abc import Sequence

from fastapi import APIRouter
from starlette.responses import Response

from broker.core.objects import Spec
from ui.api.context import Alarms
from ui.api.models.node import AlarmList
from ui.api.operation import described
from ui.api.wire import answer


def add_alarms(router: APIRouter, alarms: Alarms) -> None:
    """Add ``/alarms`` and ``/alarms/history``."""

    @router.get(
        "/alarms",
        operation_id="listAlarms",
        tags=["System"],
        summary="List active alarms",
        **described(answer=AlarmList),
    )
    async def list_alarms() -> Response:
        """Returns the alarms that are active, newest first."""
        return _page(alarms.active())

    @router.get(
        "/alarms/history",
        operation_id="listPastAlarms",
        tags=["System"],
        summary="List past alarms",
        **described(answer=AlarmList),
    )
    async def list_past_alarms() -> Response:
        """Returns alarms that ended, newest first, for as long as `alarms` settings keep them."""
        return _page(alarms.history())

    @router.delete(
        "/alarms/history",
        operation_id="forgetPastAlarms",
        tags=["System"],
        summary="Delete past alarms",
        **described(status=204),
    )
    async def forget() -> Response:
        """Deletes the history of alarms that ended. Active alarms stay."""
        alarms.forget_history()
        return Response(status_code=204)


def _page(items: Sequence[Spec]) -> Response:
    return answer({"items": list(items), "next": None, "total": len(items), "total_is_estimate": False})
