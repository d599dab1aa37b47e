"""Names and other strings in objects: the name of an object, and strings that must differ."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Annotated, Final

from pydantic import AfterValidator

from broker.core.ordered import name_problem


def _checked(value: str) -> str:
    if problem := name_problem(value):
        raise ValueError(problem)
    return value


# Repeated strings that an error names.
MOST_REPEATED: Final = 20


def repeated(values: Iterable[str]) -> list[str]:
    """Return the first strings that occur more than once, in order."""
    return sorted(value for value, count in Counter(values).items() if count > 1)[:MOST_REPEATED]


# Letters, digits, ``-`` and ``_``, see ``broker.core.ordered``.
ObjectName = Annotated[str, AfterValidator(_checked)]
