"""The condition under which a record removes its key: an expression of the rule language, as in WHERE."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from bridges.spark.tasks.rule_run import RuleRun
from bridges.spark.tasks.rule_text import RuleText
from broker.core.errors import Invalid, Problem


class Condition(RuleRun):
    """A condition compiled for batches of records.

    Raises:
        Invalid: it does not compile, or calls what only the broker can do.
    """

    def __init__(self, text: str, node: str = "") -> None:
        # On a line of its own, so that a comment ends there.
        super().__init__(
            RuleText("delete_when", f'SELECT 1 AS found FROM "#" WHERE (\n{text}\n)', node)
        )

    def holds(self, batch: pa.RecordBatch) -> tuple[list[int], dict[int, str]]:
        """The indexes of the records for which it holds, and by index why it failed."""
        ran = self.run(batch)
        return ran.places, ran.errors

    def reads(self, topic: str) -> bool:
        return True

    def _sentence(self, error: BaseException) -> str:
        return (
            super()
            ._sentence(error)
            .replace(f"rule {self.rule.name!r}, line 2", f"{self.rule.name}", 1)
        )


def condition_problem(text: str) -> Problem | None:
    """The problem with a condition that cannot be used, or None."""
    try:
        # Without brackets too: a condition that closes ours is not valid.
        RuleRun(RuleText("delete_when", f'SELECT 1 AS found FROM "#" WHERE\n{text}'))
        Condition(text)
    except Invalid as error:
        problem: Any = error.problems[0]
        return Problem(problem.message, "/delete_when", suggestion=problem.suggestion)
    return None
