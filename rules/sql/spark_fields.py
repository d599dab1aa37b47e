"""The fields of the payload that a rule reads, decoded by Spark once a record, and where that may not be trusted."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from rules.sql.spark_values import NotInSpark, quoted, quoted_name
from rules.sql.tree import Path, Tree

RECORDS: Final = "records"
"""What the statement reads: a view with the columns of the source ``sluice``."""
_NONCE: Final = "sluice:2f8c1d0ab7"
"""A key that no payload has: one that holds this text is irregular."""
MAX_LENGTH: Final = 100_000
FIELD_TYPES: Final = {"boolean": "BOOLEAN", "long": "BIGINT", "double": "DOUBLE", "string": "VARIANT"}
_BEYOND_JSON: Final = r"[0-9.][eE][+]?[0-9]{3}|[0-9]{200}|\\u[dD][89a-fA-F]"
"""Where a number might overflow or a surrogate stand alone, which makes a text no JSON to the broker."""


@dataclass(slots=True)
class Fields:
    """The fields of the payload that a rule reads, as a tree of names; leaves are types of Spark."""

    tree: dict[str, Any] = field(default_factory=dict)

    def read(self, path: Path, kind: str, node: Tree) -> str:
        """Spark SQL of the field."""
        members, names = self.tree, path.steps
        for name in names[:-1]:
            members = _member(members, name, {}, path, node)
        _member(members, names[-1], FIELD_TYPES[kind], path, node)
        return ".".join(["_payload", *map(quoted_name, names)])

    def decoded(self) -> str:
        """The query that reads them.

        The payload is put into an array, before an element whose key no payload has: only when the array has those
        two elements was the payload one JSON value, with nothing after it.
        """
        text = f"SELECT *, CAST(payload AS STRING) AS _text FROM {RECORDS}"
        if not self.tree:
            return f"    {text}"
        items = f"_json.{quoted_name(_NONCE)}"
        whole = (
            f"_json._corrupt IS NULL AND size({items}) = 2 AND get({items}, 0) IS NOT NULL"
            f" AND get({items}, 1).{quoted_name(_NONCE)} = 1"
        )
        return (
            f"    SELECT *, get({items}, 0) AS _payload,\n      coalesce({whole}, FALSE) AS _is_json\n"
            f"    FROM (\n      SELECT *, {self._from_json()} AS _json\n      FROM ({text})\n    )"
        )

    def _from_json(self) -> str:
        members = ", ".join([_ddl(self.tree), f"{quoted_name(_NONCE)}: INT"])
        schema = f"{quoted_name(_NONCE)} ARRAY<STRUCT<{members}>>, _corrupt STRING"
        options = {
            "mode": "PERMISSIVE", "columnNameOfCorruptRecord": "_corrupt", "allowSingleQuotes": "false",
            "allowNonNumericNumbers": "false",
        }  # fmt: skip
        listed = ", ".join(quoted(text) for pair in options.items() for text in pair)
        begin, end = quoted(f'{{"{_NONCE}":['), quoted(f',{{"{_NONCE}":1}}]}}')
        return f"from_json(concat({begin}, _text, {end}),\n        {quoted(schema)},\n        map({listed}))"

    def doubts(self) -> list[str]:
        """Where the payload is not JSON of the schema's types, or Spark and the broker might read it differently."""
        if not self.tree:
            return []
        depth = "length(_text) - length(translate(_text, '[{', ''))"
        return [
            "NOT _is_json",
            "NOT is_valid_utf8(_text)",
            f"contains(_text, {quoted(_NONCE)})",
            f"_text RLIKE {quoted(_BEYOND_JSON)}",
            f"(length(_text) > 256 AND {depth} > 100)",
        ]


def _member(members: dict[str, Any], name: str, new: Any, path: Path, node: Tree) -> Any:
    for other in members:
        if other != name and other.lower() == name.lower():
            raise NotInSpark(f"{path.text}: Spark does not tell {name} from {other}", node)
    found = members.setdefault(name, new)
    if isinstance(found, dict) != isinstance(new, dict):
        raise NotInSpark(f"{path.text} is read as a value and as a map", node)
    return found


def _ddl(members: dict[str, Any]) -> str:
    return ", ".join(
        f"{quoted_name(name)}: {f'STRUCT<{_ddl(kind)}>' if isinstance(kind, dict) else kind}"
        for name, kind in members.items()
    )
