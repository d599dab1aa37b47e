"""Modules that are imported when something of them is first used, so that a broker starts without what it does not use.

.. code-block:: python

    if TYPE_CHECKING:
        import httpx
    else:
        httpx = Later("httpx")
"""

from __future__ import annotations

from importlib import import_module
from typing import Any


class Later:
    """Stands in for a module. What was used once is an attribute, found as fast as a module's own."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        found = getattr(import_module(self._name), name)
        setattr(self, name, found)
        return found
