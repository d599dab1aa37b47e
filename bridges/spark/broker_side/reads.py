"""Reads of lake tables: the newest rows, the history, the shadow."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable
from datetime import date, datetime
from decimal import Decimal
from functools import wraps
from typing import Any, Concatenate, Final, ParamSpec, TypeVar

from bridges.spark.broker_side.service import LakeTableService, lake_module
from bridges.spark.broker_side.table_spec import LakeTableSpec
from bridges.spark.broker_side.views import FoundShadow, TableHistory, TablePreview
from bridges.spark.columns.store import place_of
from bridges.spark.driver.spark_errors import sentence_of
from broker.config.secret_text import SecretUnreadable, with_references
from broker.core.errors import NotFound, SluiceError, Unavailable, Unreadable
from broker.core.marks import marked
from broker.core.times import rfc3339_of

log = logging.getLogger("sluice.lake")
P = ParamSpec("P")
T = TypeVar("T")
F = TypeVar("F", bound="TableFiles")
# Member tables that a preview of the table reads.
_PREVIEWED: Final = 20


def reads_files(read: Callable[Concatenate[F, str, P], T]) -> Callable[Concatenate[F, str, P], T]:
    """Say in a sentence why the files of a table cannot be read, whichever library finds out."""

    @wraps(read)
    def reading(self: F, name: str, *args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return read(self, name, *args, **kwargs)
        except SecretUnreadable as error:
            raise Unavailable(f"table {name!r} cannot be read: {error}") from error
        except SluiceError:
            raise
        except Exception as error:
            log.exception("lake.not_read", extra={"table": name})
            reason = sentence_of(
                "".join(traceback.format_exception(error)), self._tables.spec(name).path
            )
            kind = Unreadable if isinstance(error, FileNotFoundError) else Unavailable
            raise kind(f"table {name!r} cannot be read: {reason}") from error

    return reading  # type: ignore[return-value]  # the name may be a keyword too


class TableFiles:
    """Access to the files of tables, by their specs."""

    def __init__(self, tables: LakeTableService) -> None:
        self._tables = tables
        self._states = tables.states

    def _table_spec(self, name: str) -> Any:
        spec = self._tables.job_spec(self._tables.spec(name))
        return lake_module("bridges.spark.driver.batch").TableSpec.of_api(
            spec, self._tables.positions_at(spec["stream"], None)
        )

    def _open(
        self, spec: LakeTableSpec, *, dead_letters: bool = False, member: str | None = None
    ) -> Any:
        formats = lake_module("bridges.spark.tables.formats")
        binding = lake_module("bridges.spark.tables.contract").Binding
        place = place_of(
            {
                **spec.model_dump(mode="json"),
                **self._tables.places.settings_of(spec, with_references),
            }
        )
        members = lake_module("bridges.spark.driver.member_places")
        part = ""
        if member is not None:
            if not spec.tables or not members.is_name(member):
                raise NotFound("member table", member, f"see sluice lake tables show {spec.name}")
            part = members.part_of(member)
        elif dead_letters:
            part = formats.DEAD_LETTERS_SUFFIX
        place = members.part_place(place, part)
        opened = formats.open_table(
            spec.format, place, binding(spec.stream, self._tables.positions(spec.stream)["epoch"])
        )
        if opened is None and part in self._states.expected(spec):
            with formats.of_part(spec.name, part):
                raise lake_module("bridges.spark.tables.contract").TableLost.gone(place)
        return opened


class TableReads(TableFiles):
    """Reads of tables for users. They block on files: call them on a thread."""

    @reads_files
    def preview(
        self, name: str, limit: int, dead_letters: bool = False, member: str | None = None
    ) -> TablePreview:
        """The newest rows or dead letters of a table, newest first; without ``member`` those of the members that were
        written last. Blocks on files: call it on a thread."""
        spec = self._tables.spec(name)
        opened = self._open(
            spec, dead_letters=dead_letters, member=None if dead_letters else member
        )
        if opened is None:
            return {"columns": [], "rows": []}
        if not spec.tables or dead_letters or member is not None:
            rows = opened.newest(limit)
        else:
            members = [
                self._open(spec, member=member_name) for member_name in self._written_last(name)
            ]
            parts = [part.newest(limit) for part in members if part is not None]
            rows = lake_module("bridges.spark.driver.member_places").newest_of(
                [opened.newest(limit), *parts], limit
            )
        shown = [
            {key: _plain(value) for key, value in row.items()}
            for row in rows.to_pylist(maps_as_pydicts="strict")
        ]
        return {"columns": rows.column_names, "rows": shown, "version": opened.version()}

    def _written_last(self, name: str) -> list[str]:
        """The members of a table that the job wrote last, as far as it reported."""
        members = (self._states.reports.get(name) or {}).get("tables") or []
        members = sorted(members, key=lambda member: member["last_commit_at"] or "", reverse=True)
        return [member["name"] for member in members[:_PREVIEWED]]

    @reads_files
    def history(self, name: str, limit: int, member: str | None = None) -> TableHistory:
        """Files, versions and schemas of a table or of a member, newest first. Blocks on files: call it on a thread."""
        opened = self._open(self._tables.spec(name), member=member)
        history: TableHistory = lake_module("bridges.spark.driver.history").history_of(
            opened, limit
        )
        return history

    @reads_files
    def shadow(self, name: str) -> FoundShadow:
        """Progress of the shadow of a table, if it has one. Blocks on files: call it on a thread."""
        shadow = lake_module("bridges.spark.driver.shadow").Shadow.find(self._table_spec(name))
        return {"shadow": None if shadow is None else shadow.as_dict(name)}


def _plain(value: Any) -> Any:
    """A value as JSON can say it."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, Decimal):
        return str(value)
    if isinstance(value, datetime):
        return rfc3339_of(value)
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return marked(value)
    return marked(value)
