"""Field types as the text that types of lake columns are: ``struct<at: timestamp, n: long>``.

``bridges.spark.columns.types`` reads it.
"""

from __future__ import annotations

from typing import Final

from broker.core.schema import FieldType

_NESTED: Final = frozenset({"array", "map", "struct"})
# Levels of arrays, maps and structs; what is deeper is JSON text.
_DEEPEST: Final = 16


def column_text(kind: FieldType) -> str:
    """The type of a column with such values; ``unknown`` or ``null`` where nothing is known of them.

    Inside of a column, what is not known is JSON text.
    """
    if kind.logical or kind.name not in _NESTED:
        return kind.logical or kind.name
    return _inner(kind, _DEEPEST)


def _inner(kind: FieldType, levels: int) -> str:
    if kind.logical:
        return kind.logical
    if kind.name in ("unknown", "null"):
        return "json"
    if kind.name not in _NESTED:
        return kind.name
    if levels == 0:
        return "json"
    if kind.name == "array":
        return "json" if kind.item is None else f"array<{_inner(kind.item, levels - 1)}>"
    if kind.name == "map":
        return "json" if kind.item is None else f"map<string, {_inner(kind.item, levels - 1)}>"
    members = ", ".join(
        f"{_quoted(name)}: {_inner(item, levels - 1)}" for name, item in kind.fields.items()
    )
    return f"struct<{members}>" if members else "json"


def _quoted(name: str) -> str:
    return name if name.isidentifier() and name.isascii() else f"`{name.replace('`', '``')}`"
