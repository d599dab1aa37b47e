"""Expressions of Spark SQL with their kind, whether they may be NULL, and where their meaning may differ."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from sqlglot import exp

from broker.core.errors import Problem
from rules.functions.spark_form import EXACT
from rules.sql.syntax.printer import text_of_tree
from rules.sql.syntax.tree import Path, Tree, bare, place_of

NUMERIC: Final = ("long", "float", "number")


class NotInSpark(Exception):
    """The rule has no Spark SQL. The text names the expression and says why."""

    def __init__(self, text: str, node: Tree | None = None) -> None:
        super().__init__(text)
        self.place = (1, 1) if node is None else place_of(node)

    @property
    def problem(self) -> Problem:
        """The same with its place in the SQL."""
        return Problem(str(self), "/sql", *self.place)


@dataclass(frozen=True, slots=True)
class Value:
    """An expression of Spark SQL.

    ``kind`` is ``string``, ``boolean``, ``long``, ``float``, ``number`` (JSON numbers of either kind, as double) or
    ``undefined``. ``unsure`` are conditions under which ``sql`` may not be the value; ``unsure_null`` those under which
    its NULL may stand for JSON null and not for undefined.
    """

    sql: str
    kind: str
    may_be_null: bool = False
    unsure: tuple[str, ...] = ()
    unsure_null: tuple[str, ...] = ()

    @property
    def doubts(self) -> tuple[str, ...]:
        """All of them, where null and undefined must be distinguished."""
        return self.unsure + self.unsure_null

    @property
    def doubts_unless_there(self) -> tuple[str, ...]:
        """Doubts for operations that fail on absent values."""
        return (*self.unsure, f"{self.sql} IS NULL") if self.may_be_null else self.unsure


UNDEFINED: Final = Value("NULL", "undefined", may_be_null=True)


def literal(node: exp.Literal) -> Value:
    if node.is_string:
        return Value(quoted(node.name), "string")
    if not node.name.isdigit():
        return Value(f"double('{float(node.name)!r}')", "float")
    number = int(node.name) if len(node.name) < 20 else 2**63
    if number >= 2**63:
        raise NotInSpark(f"{node.name} has more than 64 bits", node)
    return Value(f"{number}L", "long")


def fits(takes: str, value: Value, node: Tree | Value) -> bool:
    if takes.startswith("'"):
        literal = bare(node) if not isinstance(node, Value) else None
        return (
            isinstance(literal, exp.Literal) and literal.is_string and literal.name == takes[1:-1]
        )
    if takes == "printable":
        return value.kind in ("string", "long", "boolean")
    return value.kind == takes or (takes == "double" and value.kind in NUMERIC)


def no_string(*values: Value) -> tuple[str, ...]:
    """Conditions under which ``+`` finds no string on either side, since possible ones are absent."""
    strings = [value for value in values if value.kind == "string"]
    if not all(value.may_be_null for value in strings):
        return ()
    return (f"({' AND '.join(f'{value.sql} IS NULL' for value in strings)})",)


def need_numbers(node: Tree, *values: Value) -> None:
    for value in values:
        if value.kind not in NUMERIC:
            raise NotInSpark(f"{shown(node)} fails for a value that is {value.kind}", node)


def double(value: Value) -> str:
    return f"CAST({value.sql} AS DOUBLE)" if value.kind == "long" else value.sql


def inexact(value: Value) -> tuple[str, ...]:
    """Conditions under which an integer is not exact as double. Literals are checked here."""
    if value.kind != "long" or (
        value.sql.removesuffix("L").isdigit() and int(value.sql[:-1]) < 2**53
    ):
        return ()
    return (f"NOT ({value.sql} {EXACT})",)


def comparable(left: Value, right: Value, node: Tree) -> tuple[Value, Value, tuple[str, ...]]:
    """Both sides as one type of Spark, and where that is not exact."""
    kinds = {left.kind, right.kind}
    if len(kinds) == 1 or "undefined" in kinds:
        return left, right, ()
    if kinds <= {*NUMERIC}:
        return as_double(left), as_double(right), inexact(left) + inexact(right)
    if kinds == {"boolean", "string"}:
        return as_text(left), as_text(right), ()
    raise NotInSpark(f"{shown(node)} compares a {left.kind} with a {right.kind}", node)


def as_double(value: Value) -> Value:
    return Value(double(value), "float", value.may_be_null, value.unsure, value.unsure_null)


def as_text(value: Value) -> Value:
    sql = value.sql if value.kind == "string" else f"CAST({value.sql} AS STRING)"
    return Value(sql, "string", value.may_be_null, value.unsure, value.unsure_null)


def common_kind(node: Tree, values: Sequence[Value]) -> str:
    kinds = {value.kind for value in values} - {"undefined"}
    if len(kinds) <= 1:
        return kinds.pop() if kinds else "undefined"
    if kinds <= {*NUMERIC}:
        if "long" in kinds:
            raise NotInSpark("CASE gives integers and floats, which have one type in Spark", node)
        return "number"
    raise NotInSpark(f"CASE gives values of different types: {', '.join(sorted(kinds))}", node)


def shown(node: Tree) -> str:
    text = text_of_tree(node)
    return text if len(text) <= 60 else text[:60] + "..."


def quoted(text: str) -> str:
    return exp.Literal.string(text).sql("spark")


def quoted_name(name: str) -> str:
    return exp.to_identifier(name, quoted=True).sql("spark")


def literal_pattern(text: str) -> str:
    return re.sub(r"[^0-9A-Za-z_ ]", lambda match: f"\\x{{{ord(match[0]):x}}}", text)


# The fields of the payload that a rule reads, decoded by Spark once a record, and where that may not be trusted.


# Source of the statement: a view with the columns of the source ``sluice``.
RECORDS: Final = "records"
# A key that no payload has: one that holds this text is irregular.
_NONCE: Final = "sluice:2f8c1d0ab7"
MAX_LENGTH: Final = 100_000
FIELD_TYPES: Final = {
    "boolean": "BOOLEAN",
    "long": "BIGINT",
    "double": "DOUBLE",
    "string": "VARIANT",
}
# Condition under which a number might overflow or a surrogate be unpaired, which the broker does not accept as JSON.
_BEYOND_JSON: Final = r"[0-9.][eE][+]?[0-9]{3}|[0-9]{200}|\\u[dD][89a-fA-F]"


@dataclass(slots=True)
class Fields:
    """The fields of the payload that a rule reads, as a tree of names; leaves are types of Spark."""

    tree: dict[str, Any] = field(default_factory=dict)

    def read(self, path: Path, kind: str, node: Tree) -> str:
        """Spark SQL of the field."""
        members = self.tree
        names = path.steps
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
        begin = quoted(f'{{"{_NONCE}":[')
        end = quoted(f',{{"{_NONCE}":1}}]}}')
        return f"from_json(concat({begin}, _text, {end}),\n        {quoted(schema)},\n        map({listed}))"

    def doubts(self) -> list[str]:
        """Condition under which the payload is not JSON of the schema's types, or Spark and the broker might read it
        differently."""
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
            raise NotInSpark(f"{path.text}: Spark does not distinguish {name} from {other}", node)
    member = members.setdefault(name, new)
    if isinstance(member, dict) != isinstance(new, dict):
        raise NotInSpark(f"{path.text} is read as a value and as a map", node)
    return member


def _ddl(members: dict[str, Any]) -> str:
    return ", ".join(
        f"{quoted_name(name)}: {f'STRUCT<{_ddl(kind)}>' if isinstance(kind, dict) else kind}"
        for name, kind in members.items()
    )
