"""Routes on one object that hand its name to a method of a service and answer with what the method returns."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fastapi import APIRouter
from starlette.responses import Response

from ui.api.models.shapes import Anything
from ui.api.operation import described
from ui.api.parameters import NamePath, checked_name
from ui.api.wire import answer


class ObjectRoutes:
    """Adds routes under ``path``, which has ``{name}`` in it. A method gets the checked name, on the event loop."""

    def __init__(self, router: APIRouter, path: str, tag: str) -> None:
        self._router, self._path = router, path
        self._tags: list[Any] = [tag]

    def show(
        self,
        suffix: str,
        operation_id: str,
        summary: str,
        text: str,
        method: Callable[[str], Any],
        model: type[Any] = Anything,
    ) -> None:
        """``GET``: what the method returns, which OpenAPI describes by ``model``."""

        @self._router.get(
            f"{self._path}{suffix}",
            operation_id=operation_id,
            tags=self._tags,
            summary=summary,
            description=text,
            **described(answer=model, problems=(404, 422)),
        )
        async def shown(name: NamePath) -> Response:
            return answer(method(checked_name(name)))

    def act(self, suffix: str, operation_id: str, summary: str, text: str, method: Callable[[str], None]) -> None:
        """``POST``: done, and nothing to show."""

        @self._router.post(
            f"{self._path}{suffix}",
            operation_id=operation_id,
            tags=self._tags,
            summary=summary,
            description=text,
            **described(status=204, problems=(404, 422)),
        )
        async def done(name: NamePath) -> Response:
            method(checked_name(name))
            return Response(status_code=204)
