"""A rule as Spark SQL."""

from __future__ import annotations

from typing import Protocol

from fastapi import APIRouter
from starlette.responses import Response

from broker.core.objects import Spec
from ui.api import models
from ui.api.operation import described
from ui.api.parameters import NamePath, checked_name
from ui.api.wire import answer


class InSpark(Protocol):
    """A service of objects that may have Spark SQL."""

    def spark_form(self, name: str) -> Spec: ...


def add_spark(router: APIRouter, service: InSpark) -> None:
    """Add the route, of which ``service`` knows the answer."""

    @router.get(
        "/rules/{name}/spark",
        operation_id="getRuleSparkSql",
        tags=["Rules"],
        summary="The Spark SQL that a rule is the same as, or why it runs compiled in Spark",
        **described(answer=models.Anything, problems=(404, 422)),
    )
    async def get_spark(name: NamePath) -> Response:
        form = service.spark_form(checked_name(name))
        return answer({"language": "spark-sql", "source": form["sql"] or _comment(form["problem"]), **form})


def _comment(problem: Spec) -> str:
    where = f"line {problem['line']}, column {problem['column']}: " if problem.get("line") else ""
    return f"-- In Spark the compiled rule runs. Why it is not Spark SQL:\n-- {where}{problem['message']}"
