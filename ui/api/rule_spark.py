"""A rule as Spark SQL."""

from __future__ import annotations

from typing import Protocol

from broker.core.objects import Spec
from ui.api.object_routes import ObjectRoutes


class InSpark(Protocol):
    """A service of objects that may have Spark SQL."""

    def spark_form(self, name: str) -> Spec: ...


def add_spark(one: ObjectRoutes, service: InSpark) -> None:
    """Add the route, of which ``service`` knows the answer."""

    def shown(name: str) -> Spec:
        form = service.spark_form(name)
        return {"language": "spark-sql", "source": form["sql"] or _comment(form["problem"]), **form}

    one.show(
        "/spark",
        "getRuleSparkSql",
        "Show a rule as Spark SQL",
        "Where no equal Spark SQL is known, the answer says why; Spark then runs the compiled rule.",
        shown,
    )


def _comment(problem: Spec) -> str:
    where = f"line {problem['line']}, column {problem['column']}: " if problem.get("line") else ""
    return f"-- In Spark the compiled rule runs. Why it is not Spark SQL:\n-- {where}{problem['message']}"
