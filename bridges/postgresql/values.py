"""Values of rows as columns of PostgreSQL take them, by the column's type."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime, time
from decimal import Decimal, InvalidOperation
from typing import Any, Final

from broker.core.marks import unmarked
from broker.core.schema import FieldType
from rules.sql.values import json_bytes

Convert = Callable[[Any], Any]

_MS: Final = 1000


def converter(type_name: str) -> Convert | None:
    """Conversion of a value to a type (as ``pg_type.typname`` has it); None if it is sent as text, to be cast
    by the server."""
    if type_name.startswith("_"):
        item = converter(type_name[1:])
        return (
            None
            if item is None
            else lambda value: [None if part is None else item(part) for part in _list(value)]
        )
    return _CONVERTERS.get(type_name)


def as_text(value: Any) -> str:
    """The text of any value: text as it is, bytes where they are UTF-8, everything else as JSON."""
    if isinstance(value, str):
        return value
    if isinstance(value, bytes):
        with contextlib.suppress(UnicodeDecodeError):
            return value.decode()
    return json_bytes(value).decode()


def column_type(kind: FieldType) -> str:
    """The column type for a type of rules."""
    if kind.name == "array" and kind.item is not None and kind.item.name in _SQL_TYPES:
        return f"{_SQL_TYPES[kind.item.name]}[]"
    return _SQL_TYPES.get(kind.name, "jsonb")


def _integer(value: Any) -> int:
    if isinstance(value, float) and not value.is_integer():
        raise ValueError(f"{value!r} is not a whole number")
    return int(value)


def _float(value: Any) -> float:
    value = unmarked(value)
    number = float(value)
    if isinstance(value, int) and number != value:
        raise ValueError(f"{value!r} is not exact as a float")
    return number


def _decimal(value: Any) -> Decimal:
    try:
        return Decimal(str(value)) if not isinstance(value, bool) else Decimal(int(value))
    except InvalidOperation:
        raise ValueError(f"{value!r} is not a number") from None


def _boolean(value: Any) -> bool:
    if value in (True, 1, "true", "TRUE", "True", "1"):
        return True
    if value in (False, 0, "false", "FALSE", "False", "0"):
        return False
    raise ValueError(f"{value!r} is neither true nor false")


def _bytes(value: Any) -> bytes:
    value = unmarked(value)
    return value if isinstance(value, bytes) else as_text(value).encode()


def _json(value: Any) -> str:
    """JSON text as it is; other text as a JSON string."""
    if isinstance(value, (str, bytes)):
        text = as_text(value)
        try:
            json.loads(text)
        except ValueError:
            return json.dumps(text)
        return text
    return json_bytes(value).decode()


def _moment(value: Any) -> datetime:
    """Milliseconds since 1970, as rules have times, or the text of RFC 3339."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return datetime.fromtimestamp(value / _MS, UTC)
    moment = datetime.fromisoformat(as_text(value))
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)


def _local_moment(value: Any) -> datetime:
    return _moment(value).astimezone(UTC).replace(tzinfo=None)


def _date(value: Any) -> date:
    return (
        date.fromisoformat(value)
        if isinstance(value, str) and len(value) == len("2026-01-01")
        else _moment(value).date()
    )


def _time(value: Any) -> time:
    return time.fromisoformat(as_text(value))


def _list(value: Any) -> list[Any]:
    if isinstance(value, str):
        value = json.loads(value)
    if not isinstance(value, (list, tuple)):
        raise ValueError(f"{value!r} is not an array")
    return list(value)


_CONVERTERS: Final[Mapping[str, Convert]] = {
    **dict.fromkeys(("int2", "int4", "int8", "oid"), _integer),
    **dict.fromkeys(("float4", "float8"), _float),
    "numeric": _decimal,
    "bool": _boolean,
    **dict.fromkeys(("text", "varchar", "bpchar", "name", "uuid"), as_text),
    "bytea": _bytes,
    **dict.fromkeys(("json", "jsonb"), _json),
    "timestamptz": _moment,
    "timestamp": _local_moment,
    "date": _date,
    "time": _time,
}
_SQL_TYPES: Final[Mapping[str, str]] = {
    "boolean": "boolean",
    "long": "bigint",
    "double": "double precision",
    "string": "text",
    "binary": "bytea",
    "timestamp": "timestamptz",
}
