"""A lake table as users specify it, checked."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from pydantic import BaseModel, Field, ValidationError

from bridges.spark.broker_side.settings import LakeSettings
from bridges.spark.columns.catalog import CatalogSettings
from bridges.spark.columns.template import MOST_TABLES, NameTemplate
from broker.config.allowed import NotAllowed, allowed
from broker.config.model import Settings
from broker.config.object_stores import StoreSettings, store_of, url_problem
from broker.config.places import Place
from broker.config.spec_problems import spec_problems
from broker.config.ssrf import AddressDenied, AddressGuard
from broker.config.units import Duration
from broker.core.errors import Invalid, Problem
from broker.core.objects import Spec
from broker.core.ordered import name_problem


class LakeTableSpec(Settings):
    """The saved specification of a table."""

    name: str
    stream: str
    format: Literal["delta", "iceberg"] = "delta"
    path: str = Field(
        "", description="Directory of the table, created with it; or a URL in one of `lake.stores`."
    )
    catalog: str = Field(
        "",
        description="One of `lake.catalogs` that an Iceberg table is registered in. Default: none, its own file.",
    )
    catalog_table: str = Field(
        "",
        description="Namespace and name in the catalog, as `NAMESPACE.NAME`. Default: `sluice.` and the table's name.",
    )
    rule: str = Field(
        "",
        description="A rule that Spark runs on the messages of the stream; its rows are the table's. Default: none.",
    )
    start: Place | None = Field(
        None,
        description="First records of a new table: an offset, a time, or offsets by shard, such as 0:100,1:200; other "
        "shards from their first record. Default: all that the stream has.",
    )
    key: list[str] = Field(
        default_factory=list,
        max_length=16,
        description="Columns of which the table keeps one row for each combination of values: that of the last record, "
        "as `device` or `_client_id`. Default: none, each record is a row.",
    )
    delete_when: str = Field(
        "",
        description="Condition of the rule language on the record, as in WHERE; where it holds, the row of its key is "
        "deleted. Needs a `key`. A record without a payload deletes too where the key is of `_client_id` and `_topic`.",
    )
    tables: str = Field(
        "",
        description="Names of tables that the rows go into, as a template over columns, such as `telemetry_${site}`; "
        "they are created next to the table, which has no rows then. Default: none, the rows are this table's.",
    )
    max_tables: int = Field(
        100,
        ge=1,
        le=MOST_TABLES,
        description="Maximum number of such tables; rows for further ones are dead letters.",
    )
    partition_by: list[str] = Field(
        default_factory=list,
        max_length=4,
        description="Partitions: columns, and transforms of columns such as `day(_published_at)`; with Iceberg also "
        "`hour`, `month`, `year`, `bucket(16, _client_id)` and `truncate(8, _topic)`. Default: none.",
    )
    sort_by: list[str] = Field(
        default_factory=list,
        max_length=4,
        description="Columns that the rows of a file are sorted by, each as `COLUMN` or `COLUMN desc`. Default: none.",
    )
    retention: Duration | None = Field(
        None,
        ge=3600,
        description="Rows that were published longer ago are deleted, about once an hour; of a table with partitions "
        "by `_published_at` whole partitions at a time. Default: rows are kept.",
    )
    commit_interval: Duration = Field(
        10.0, ge=0.1, le=3600, description="Minimum time between commits."
    )
    commit_rows: int = Field(
        100_000,
        ge=1,
        le=50_000_000,
        description="Waiting records that are committed before 'commit_interval' ends.",
    )
    max_lag: Duration = Field(
        900.0,
        ge=1,
        description="Age of the oldest record that the table lacks from which an alarm is active; 'commit_interval' is "
        "added.",
    )
    holds_stream: bool = Field(
        True,
        description="Whether the stream keeps records beyond `retention.age` until this table has them, within "
        "`retention.bytes`.",
    )
    audit_interval: Duration | None = Field(
        None,
        ge=60,
        description="Time between scheduled audits of the lake job, such as `1d`; an alarm is active while the "
        "last one found a problem. Default: audits run when they are ordered.",
    )
    audit_depth: Literal["offsets", "values", "deep"] = Field(
        "offsets",
        description="What these audits compare: the `offsets` of rows; also their `values` with the sums that commits "
        "keep; `deep`: also with the records read from the stream again.",
    )
    description: str = ""


@dataclass(frozen=True, slots=True)
class Places:
    """Places of tables: ``directory`` for those without a path of their own, which may be a URL, ``stores`` and
    ``catalogs``. ``scratch`` is a directory of this machine. ``forbidden`` has the reasons why addresses of stores and
    catalogs must not be called."""

    directory: str
    scratch: Path
    stores: tuple[StoreSettings, ...] = ()
    catalogs: tuple[CatalogSettings, ...] = ()
    forbidden: dict[str, str] = field(default_factory=dict)

    async def look_up(self, guard: AddressGuard) -> None:
        """Find out which addresses must not be called now."""
        catalogs = [address for entry in self.catalogs for address in (entry.uri, entry.oauth_uri)]
        for address in {*(store.endpoint or "" for store in self.stores), *catalogs}:
            try:
                if host := urlsplit(address).hostname:
                    await guard.addresses(host, 0)
            except AddressDenied as error:
                self.forbidden[address] = str(error)
            except (OSError, ValueError):
                continue  # the name is not known: nothing can be called
            else:
                self.forbidden.pop(address, None)

    def forbidden_store(self, path: str) -> str | None:
        """Reason that the store of a path must not be called, or None."""
        store = store_of(path, self.stores)
        return None if store is None else self.forbidden.get(store.endpoint or "")

    def forbidden_catalog(self, name: str) -> str | None:
        """Reason that a catalog must not be called, or None."""
        addresses = [
            address
            for entry in self.catalogs
            if entry.name == name
            for address in (entry.uri, entry.oauth_uri)
        ]
        return next(
            (self.forbidden[address] for address in addresses if address in self.forbidden), None
        )

    @classmethod
    def of_settings(cls, settings: LakeSettings, data_dir: Path) -> Places:
        """The places in the configuration."""
        own = settings.directory or "lake"
        scratch = (data_dir / ("lake" if _is_url(own) else own)).resolve()
        directory = own.rstrip("/") if _is_url(own) else str(scratch)
        return cls(directory, scratch, tuple(settings.stores), tuple(settings.catalogs))

    def path_of(self, spec: LakeTableSpec) -> str:
        """The path or URL of a table."""
        path = spec.path or spec.name
        if _is_url(path):
            return path.rstrip("/")
        return (
            f"{self.directory}/{path}"
            if _is_url(self.directory)
            else str(Path(self.directory) / path)
        )

    def problem(self, path: str) -> str | None:
        """Reason that a table cannot be at a path or URL, or None; creates a directory of this machine."""
        if _is_url(path):
            return url_problem(path, self.stores) or self.forbidden_store(path)
        try:
            allowed().directory(Path(path), self.scratch)
        except NotAllowed as error:
            return str(error)
        reason = unwritable(Path(path))
        return reason and f"table path {path} cannot be written: {reason}; choose another path"

    def catalog_problem(self, spec: LakeTableSpec) -> str | None:
        """Reason that a table cannot be in its catalog, or None."""
        parts = spec.catalog_table.split(".")
        if spec.catalog_table and (len(parts) < 2 or not all(parts)):
            return f"catalog_table: expected NAMESPACE.NAME, got {spec.catalog_table!r}"
        if not spec.catalog:
            return spec.catalog_table and "catalog_table: expected a catalog with it, got none"
        names = [catalog.name for catalog in self.catalogs]
        if spec.catalog not in names:
            return f"expected one of lake.catalogs ({', '.join(names) or 'none'}), got {spec.catalog!r}"
        if spec.format != "iceberg":
            return "expected format 'iceberg' with a catalog, got 'delta'"
        return self.forbidden_catalog(spec.catalog)

    def settings_of(self, spec: LakeTableSpec, written: Callable[[BaseModel], Spec]) -> Spec:
        """The settings of a table's store and catalog; null where it is in none, or in one that must not be called.
        ``written`` is ``with_references``, for the job, or ``as_shown``."""
        store = None if self.forbidden_store(spec.path) else store_of(spec.path, self.stores)
        catalog = next((entry for entry in self.catalogs if entry.name == spec.catalog), None)
        if self.forbidden_catalog(spec.catalog):
            catalog = None
        return {"store": store and written(store), "catalog_settings": catalog and written(catalog)}


def as_shown(settings: BaseModel) -> Spec:
    """Settings for users: secrets as the references that they are written as."""
    shown: Spec = settings.model_dump(mode="json", exclude_defaults=True)
    return shown


def _is_url(path: str) -> bool:
    return "://" in path


def parse_spec(
    spec: Spec, places: Places, streams: Sequence[str], shown_only: frozenset[str]
) -> LakeTableSpec:
    """The spec with its path filled in. Members of ``shown_only`` are left out, as they come back from a GET.

    Raises:
        Invalid: with every problem found.
    """
    writable: dict[str, Any] = {key: value for key, value in spec.items() if key not in shown_only}
    parsed = checked(writable)
    parsed = parsed.model_copy(update={"path": places.path_of(parsed)})
    problems = [
        Problem(text, pointer)
        for text, pointer in (
            (name_problem(parsed.name), "/name"),
            (_stream_problem(parsed.stream, streams), "/stream"),
            (places.catalog_problem(parsed), "/catalog"),
            (_key_problem(parsed.key), "/key"),
            (_layout_problem(parsed), "/key"),
            (_tables_problem(parsed), "/tables"),
            (_audit_problem(parsed), "/audit_depth"),
            (
                parsed.delete_when and not parsed.key and "expected a key with it, got none",
                "/delete_when",
            ),
        )
        if text
    ]
    if not problems and (text := places.problem(parsed.path)):
        problems.append(Problem(text, "/path"))
    if problems:
        raise Invalid(f"lake table {parsed.name!r} cannot be saved", problems)
    return parsed


def checked(spec: Spec) -> LakeTableSpec:
    """The members of a table, each of its type.

    Raises:
        Invalid: with every problem found.
    """
    try:
        return LakeTableSpec.model_validate(spec)
    except ValidationError as error:
        problems = spec_problems(error, LakeTableSpec)
        raise Invalid(f"lake table {spec.get('name')!r} cannot be saved", problems) from None


def unwritable(path: Path) -> str | None:
    """Reason that a table cannot be written in this directory, or None. Creates the directory."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        descriptor, probe = tempfile.mkstemp(dir=path, prefix=".probe-")
        os.close(descriptor)
        os.unlink(probe)
    except OSError as error:
        return (error.strerror or str(error)).lower()
    return None


def _layout_problem(spec: LakeTableSpec) -> str | None:
    layout_settings = [
        name for name in ("partition_by", "sort_by", "retention") if getattr(spec, name)
    ]
    if not spec.key or not layout_settings:
        return None
    return f"expected no {layout_settings[0]} with a key: the files of such a table are arranged by key"


def _tables_problem(spec: LakeTableSpec) -> str | None:
    if not spec.tables:
        return None
    if spec.key:
        return "expected no key with 'tables'. Try: a table with a key for each of them, with a rule that selects it"
    try:
        NameTemplate.parse(spec.tables)
    except ValueError as error:
        return str(error)
    return None


def _audit_problem(spec: LakeTableSpec) -> str | None:
    return audit_problem(spec, spec.audit_depth)


def audit_problem(spec: LakeTableSpec, depth: str) -> str | None:
    """Reason that a table cannot be audited to this depth, or None."""
    if depth != "offsets" and spec.key:
        return f"expected 'offsets' for a table with a key, whose rows replace each other, got {depth!r}"
    if depth == "deep" and spec.tables:
        return "expected 'offsets' or 'values' for a table with 'tables', got 'deep'"
    return None


def _key_problem(key: Sequence[str]) -> str | None:
    twice = [name for at, name in enumerate(key) if name in key[:at]]
    return f"expected each column once, got {twice[0]!r} twice" if twice else None


def _stream_problem(stream: str, streams: Sequence[str]) -> str | None:
    if stream in streams:
        return None
    return f"there is no stream {stream!r}; create it first, or use one of: {', '.join(streams) or 'none'}"
