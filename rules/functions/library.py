"""All families together."""

from __future__ import annotations

from rules.functions import (  # noqa: F401  (importing a family registers its functions)
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
)
from rules.functions.registry import STANDARD, Functions
from rules.functions.state import Memory, state_functions


def standard(memory: Memory | None = None) -> Functions:
    """A set of functions of its own with all standard ones, to which features may add.

    ``memory`` is what ``kv_store_*`` and ``proc_dict_*`` keep their values in; a new one if none is given.
    """
    kept = memory or Memory()
    functions = Functions(
        [*STANDARD.values(), *state_functions(kept), *hashes.secret_functions(is_trial=False)]
    )
    functions.when_tried(
        lambda: [*state_functions(kept.copy()), *hashes.secret_functions(is_trial=True)]
    )
    return functions
