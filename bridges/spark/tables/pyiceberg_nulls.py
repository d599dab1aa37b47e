"""A correction of pyiceberg 0.12: it reads a list or a map of structs that is null as an empty one, and would write it
so where it rewrites files."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.io.pyarrow import ArrowProjectionVisitor

Project = Callable[..., pa.Array | None]


def _keeping_nulls(project: Project) -> Project:
    @wraps(project)
    def projected(self: Any, kind: Any, array: pa.Array | None, *inner: pa.Array | None) -> pa.Array | None:
        result = project(self, kind, array, *inner)
        if array is None or result is None or result.null_count == array.null_count:
            return result
        return pc.if_else(array.is_null(), pa.scalar(None, result.type), result)

    return projected


def keep_nulls() -> None:
    """Correct it, once."""
    for name in ("list", "map"):
        project = getattr(ArrowProjectionVisitor, name)
        if not hasattr(project, "__wrapped__"):
            setattr(ArrowProjectionVisitor, name, _keeping_nulls(project))
