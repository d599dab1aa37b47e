"""Where the columns of a rule's rows come from."""

from __future__ import annotations

from typing import Protocol

from fastapi import APIRouter
from starlette.responses import Response

from broker.core.objects import Spec
from ui.api import models
from ui.api.operation import described
from ui.api.parameters import NamePath, checked_name
from ui.api.wire import answer


class Traced(Protocol):
    """A service of objects that give rows."""

    def lineage(self, name: str) -> Spec: ...


def add_lineage(router: APIRouter, service: Traced) -> None:
    """Add the route, of which ``service`` knows the answer."""

    @router.get(
        "/rules/{name}/lineage",
        operation_id="getRuleLineage",
        tags=["Rules"],
        summary="What the columns of a rule's rows are made of",
        **described(answer=models.RuleLineage, problems=(404, 422)),
    )
    async def get_lineage(name: NamePath) -> Response:
        return answer(service.lineage(checked_name(name)))
