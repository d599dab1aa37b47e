"""Spark reads Sluice streams: ``spark.readStream.format("sluice")`` and ``spark.read.format("sluice")``.

Spark finds the source by this module's name and its ``DefaultSource``; nothing has to be registered. The package
needs pyspark and pyarrow and nothing else of Sluice, so it can be installed alone on a cluster's machines.
"""

from __future__ import annotations

from typing import Any


def __getattr__(name: str) -> Any:
    """``DefaultSource`` on demand: the client and the record schema are usable without importing pyspark."""
    if name == "DefaultSource":
        from pyspark_sluice.source import SluiceSource

        return SluiceSource
    raise AttributeError(f"module 'pyspark_sluice' has no attribute {name!r}")
