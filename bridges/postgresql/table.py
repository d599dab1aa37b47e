"""A table as an action sees it: its columns, the statements that write to it, the values of a row for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from bridges.postgresql.settings import PostgresActionSettings
from bridges.postgresql.values import Convert, as_text, column_type, converter
from bridges.resource.errors import NeverAgain, TargetUnusable
from broker.core.schema import FieldType

# Columns of a table, quoted; no rows if it does not exist.
COLUMNS: Final = """
SELECT a.attname AS name, t.typname AS type, format_type(a.atttypid, a.atttypmod) AS shown,
       coalesce(a.attnum = ANY(i.indkey), false) AS is_key
FROM pg_attribute a
JOIN pg_type t ON t.oid = a.atttypid
LEFT JOIN pg_index i ON i.indrelid = a.attrelid AND i.indisprimary
WHERE a.attrelid = to_regclass($1) AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated = ''
ORDER BY a.attnum
"""
RIGHTS: Final = "SELECT has_table_privilege(to_regclass($1), $2)"

# Names of columns and what goes there.
Values = tuple[tuple[str, ...], tuple[Any, ...]]


@dataclass(frozen=True, slots=True)
class Column:
    """One column. ``convert`` is None where values go over as text and the server casts them."""

    name: str
    shown: str
    convert: Convert | None


@dataclass(slots=True)
class Table:
    """Columns of a table in the database, and statements by the columns that rows have."""

    settings: PostgresActionSettings
    columns: Mapping[str, Column]
    key: Sequence[str]
    statements: dict[tuple[str, ...], str] = field(default_factory=dict)

    def values(self, row: Mapping[str, Any]) -> Values:
        """The values of a row by column; the settings decide about members without a column.

        Raises:
            NeverAgain: a value does not fit its column, or there is no such column.
        """
        names = []
        values = []
        for name, value in row.items():
            column = self.columns.get(name)
            if column is None:
                if self.settings.unknown_columns == "refuse" or self.settings.columns:
                    raise NeverAgain(f"the table {self.settings.table} has no column {name!r}")
                continue
            names.append(name)
            values.append(None if value is None else _converted(column, value))
        if not names:
            raise NeverAgain(f"the row has nothing for the table {self.settings.table}")
        return tuple(names), tuple(values)

    def statement(self, names: tuple[str, ...]) -> str:
        """The statement that writes rows with these columns.

        Raises:
            NeverAgain: a row that replaces another lacks a column of the key.
        """
        text = self.statements.get(names)
        if text is None:
            text = self.statements[names] = self._made(names)
        return text

    def _made(self, names: tuple[str, ...]) -> str:
        places = ", ".join(self._place(number, name) for number, name in enumerate(names, 1))
        text = f"INSERT INTO {quoted_table(self.settings.table)} ({_list(names)}) VALUES ({places})"
        if self.settings.mode == "insert":
            return text
        if absent := [name for name in self.key if name not in names]:
            raise NeverAgain(
                f"the row has no {absent[0]!r}, a column of the key of {self.settings.table}"
            )
        others = [name for name in names if name not in self.key]
        if not others:
            return f"{text} ON CONFLICT ({_list(self.key)}) DO NOTHING"
        changes = ", ".join(f"{quoted(name)} = EXCLUDED.{quoted(name)}" for name in others)
        return f"{text} ON CONFLICT ({_list(self.key)}) DO UPDATE SET {changes}"

    def _place(self, number: int, name: str) -> str:
        column = self.columns[name]
        return f"${number}" if column.convert is not None else f"${number}::text::{column.shown}"


def described(settings: PostgresActionSettings, rows: Sequence[Mapping[str, Any]]) -> Table:
    """The table with the columns that ``COLUMNS`` returned.

    Raises:
        TargetUnusable: columns that the settings name are not there, or there is no key.
    """
    columns = {
        row["name"]: Column(row["name"], row["shown"], converter(row["type"])) for row in rows
    }
    key = settings.key or [row["name"] for row in rows if row["is_key"]]
    for name in (*settings.columns, *settings.key):
        if name not in columns:
            raise TargetUnusable(
                f"the table {settings.table} has no column {name!r}; it has {', '.join(columns)}"
            )
    if settings.mode == "upsert" and not key:
        raise TargetUnusable(
            f"the table {settings.table} has no primary key; name the columns of a unique key in 'key'"
        )
    return Table(settings, columns, key)


def creation(settings: PostgresActionSettings, columns: Mapping[str, FieldType]) -> str:
    """The statement that creates a table for the columns of rules.

    Raises:
        TargetUnusable: no rule gives columns yet, or none gives one of the key.
    """
    kinds = {name: columns.get(name, FieldType("string")) for name in settings.columns} or dict(
        columns
    )
    if not kinds:
        raise TargetUnusable(
            f"the table {settings.table} does not exist and cannot be created: no rule sends rows to this action yet"
        )
    if absent := [name for name in settings.key if name not in kinds]:
        raise TargetUnusable(
            f"the table {settings.table} cannot be created: no rule gives {absent[0]!r}, a column of its key"
        )
    parts = [f"{quoted(name)} {column_type(kind)}" for name, kind in kinds.items()]
    if settings.key:
        parts.append(f"PRIMARY KEY ({_list(settings.key)})")
    return f"CREATE TABLE IF NOT EXISTS {quoted_table(settings.table)} ({', '.join(parts)})"


def quoted(name: str) -> str:
    """An identifier of SQL."""
    return '"' + name.replace('"', '""') + '"'


def quoted_table(name: str) -> str:
    """A table's, with its schema where there is one."""
    return ".".join(quoted(part) for part in name.split("."))


def _list(names: Sequence[str]) -> str:
    return ", ".join(quoted(name) for name in names)


def _converted(column: Column, value: Any) -> Any:
    try:
        return as_text(value) if column.convert is None else column.convert(value)
    except (ValueError, TypeError, OverflowError) as error:
        raise NeverAgain(f"column {column.name!r} is {column.shown}: {error}") from None
