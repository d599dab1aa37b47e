"""All families together."""

from __future__ import annotations

from rules.functions import (  # noqa: F401  (importing a family registers its functions)
    arrays,
    bits,
    compression,
    conversions,
    events,
    hashes,
    json,
    maps,
    numbers,
    regexes,
    sprintf,
    state,
    strings,
    times,
    topics,
)
from rules.functions.registry import STANDARD, Functions


def standard() -> Functions:
    """A set of functions of its own with all standard ones, to which features may add."""
    return Functions(tuple(STANDARD.values()))
