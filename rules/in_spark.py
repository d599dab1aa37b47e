"""A rule as Spark SQL, or what keeps it from being that."""

from __future__ import annotations

from typing import Any

from broker.core.schema import FieldType
from rules.functions.registry import Functions
from rules.rule import Statement
from rules.sql.spark import to_spark
from rules.sql.spark_values import NotInSpark


def spark_form(
    statement: Statement, payload: FieldType | None, functions: Functions, *, rule: str = "", node: str = ""
) -> dict[str, Any]:
    """``sql``, ``columns`` and ``problem`` of a statement whose payloads have a type.

    ``sql`` reads a view ``records`` of the source ``sluice``; it is None where the rule runs compiled only, and then
    ``problem`` says which expression keeps it from being Spark SQL, with its place.
    """
    try:
        made = to_spark(statement.tree, statement.sources, functions, payload, rule=rule, node=node)
    except NotInSpark as refusal:
        return {"sql": None, "columns": [], "problem": refusal.problem.as_dict()}
    columns = [{"name": name, "type": kind} for name, kind in made.columns]
    return {"sql": made.sql, "columns": columns, "problem": None}
