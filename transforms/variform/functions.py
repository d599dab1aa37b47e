"""All families of functions, gathered. Import this module, not the families, to have them all."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

from broker.core.errors import did_you_mean
from broker.core.examples import FunctionView, examples_in
from transforms.variform import (  # noqa: F401 # importing a family registers it
    functions_collections,
    functions_compare,
    functions_encoding,
    functions_other,
    functions_regex,
    functions_text,
)
from transforms.variform.registry import FUNCTIONS, Function


class Lazy(NamedTuple):
    """A function whose arguments are not all evaluated first; ``least`` and ``most`` count them."""

    least: int
    most: int
    help: str
    signature: str
    returns: str = "boolean"
    category: str = "conditions"


# Functions that the compiler implements.
LAZY: Mapping[str, Lazy] = {
    "and": Lazy(
        2,
        1024,
        "True if all are true; stops at the first that is not. An absent value counts as false.",
        "and(a, b, ...)",
    ),
    "coalesce": Lazy(
        1,
        1024,
        'The first that is not empty ("", null, []); what is not there counts as empty. Also of the items of a list.',
        "coalesce(a, ...)",
        "any",
    ),
    "iif": Lazy(
        3,
        3,
        "The second when the first is true or, being no boolean, not empty; else the third.",
        "iif(condition, then, otherwise)",
        "any",
    ),
    "is_empty": Lazy(1, 1, 'True if the value is "", null, [], or not there.', "is_empty(value)"),
    "or": Lazy(
        2,
        1024,
        "True if one is true; stops at the first that is. An absent value counts as false.",
        "or(a, b, ...)",
    ),
}

# Modules that may be called, as ``maps.get(...)``.
MODULES = frozenset({"maps", "lists"})


EXAMPLES: Final = Path(__file__).with_name("examples.txt")


def catalogue() -> list[FunctionView]:
    """Every function, as the API shows it."""
    functions: dict[str, Function | Lazy] = {**FUNCTIONS, **LAZY}
    return [
        {
            "name": name,
            "language": "variform",
            "category": function.category,
            "signature": function.signature,
            "returns": function.returns,
            "documentation": function.help,
            "origin": "sluice",
            "examples": examples_in(EXAMPLES)[name],
        }
        for name, function in sorted(functions.items())
    ]


def find(name: str, *, in_transformations: bool) -> Function | None:
    """The function of that name, or None."""
    function = FUNCTIONS.get(name)
    if function is not None and function.only_in_transformations and not in_transformations:
        return None
    return function


def suggestion(name: str, *, in_transformations: bool) -> str | None:
    """``did you mean 'upper'?`` when a name comes close."""
    names = [
        f.name for f in FUNCTIONS.values() if in_transformations or not f.only_in_transformations
    ]
    return did_you_mean(name, [*names, *LAZY])
