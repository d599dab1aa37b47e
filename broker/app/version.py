"""Version of the product."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version


def product_version() -> str:
    """The installed version, ``unknown`` when it runs from a tree that is not installed."""
    try:
        return version("sluicemq")
    except PackageNotFoundError:
        return "unknown"
