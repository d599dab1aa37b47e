"""The name of an object, as a member of what people write."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator

from broker.core.ordered import name_problem


def _checked(value: str) -> str:
    if problem := name_problem(value):
        raise ValueError(problem)
    return value


ObjectName = Annotated[str, AfterValidator(_checked)]
"""Letters, digits, ``-`` and ``_``, see ``broker.core.ordered``."""
