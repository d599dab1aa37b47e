"""What validations and transformations have beside the five verbs: switching on and off, and their counters."""

from __future__ import annotations

from typing import Any, Protocol

from fastapi import APIRouter
from starlette.responses import Response

from broker.core.objects import ObjectService, Spec
from ui.api import models
from ui.api.objects import Kind
from ui.api.operation import described
from ui.api.parameters import NamePath, checked_name
from ui.api.wire import answer

GATES = ("validations", "transforms")
"""The paths of the kinds that are gates."""


class GateService(ObjectService, Protocol):
    """A service of objects that can be switched off and that count."""

    def enable(self, name: str, enabled: bool) -> Spec: ...

    def metrics(self, name: str) -> Spec: ...

    def reset_metrics(self, name: str) -> None: ...


def add_gate(router: APIRouter, kind: Kind, service: GateService) -> None:
    """Add the routes of one kind."""
    tags: list[Any] = [kind.tag]
    one, word = f"/{kind.path}/{{name}}", kind.singular.lower()

    @router.post(
        f"{one}:enable",
        operation_id=f"enable{kind.singular}",
        tags=tags,
        summary=f"Switch a {word} on",
        **described(answer=models.Object, problems=(404, 409, 422)),
    )
    async def enable(name: NamePath) -> Response:
        return answer(service.enable(checked_name(name), True))

    @router.post(
        f"{one}:disable",
        operation_id=f"disable{kind.singular}",
        tags=tags,
        summary=f"Switch a {word} off",
        **described(answer=models.Object, problems=(404, 409, 422)),
    )
    async def disable(name: NamePath) -> Response:
        return answer(service.enable(checked_name(name), False))

    @router.get(
        f"{one}/metrics",
        operation_id=f"get{kind.singular}Metrics",
        tags=tags,
        summary=f"The counters and rates of a {word}",
        **described(answer=models.Anything, problems=(404, 422)),
    )
    async def metrics(name: NamePath) -> Response:
        return answer(service.metrics(checked_name(name)))

    @router.post(
        f"{one}/metrics:reset",
        operation_id=f"reset{kind.singular}Metrics",
        tags=tags,
        summary=f"Set the counters of a {word} to zero",
        **described(status=204, problems=(404, 422)),
    )
    async def reset_metrics(name: NamePath) -> Response:
        service.reset_metrics(checked_name(name))
        return Response(status_code=204)
