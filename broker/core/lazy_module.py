"""Modules that are imported once the broker is ready, or when something of them is first used.

.. code-block:: python

    if TYPE_CHECKING:
        import httpx
    else:
        httpx = LazyModule("httpx")
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

_names: set[str] = set()


class LazyModule:
    """Stands in for a module. What was used once is an attribute, found as fast as a module's own."""

    def __init__(self, name: str, *, is_optional: bool = False) -> None:
        """An optional one may not be installed, and is imported when it is first used."""
        self._name = name
        if not is_optional:
            _names.add(name)

    def __getattr__(self, name: str) -> Any:
        member = getattr(import_module(self._name), name)
        setattr(self, name, member)
        return member


def import_all() -> None:
    """Import what has not been used yet. For a thread: the first schema or token then finds its library there, and the
    event loop does not wait for it."""
    while missing := _names - sys.modules.keys():
        for name in missing:
            import_module(name)
