"""Views of lake tables in the API: figures, audits, reports of jobs, history."""

from __future__ import annotations

from typing import Any, Literal, NotRequired

from typing_extensions import TypedDict

AuditDepth = Literal["offsets", "values", "deep"]
TableState = Literal["starting", "running", "degraded", "failed", "stopped"]


class TablePreview(TypedDict):
    """The newest rows of a table, newest first, and the version of the table that was read, left out where there is no
    table yet."""

    columns: list[str]
    rows: list[dict[str, Any]]
    version: NotRequired[int]


class OffsetRange(TypedDict):
    """Offsets ``start`` up to, not including, ``end``."""

    start: int
    end: int


class ShardOffsetRange(OffsetRange):
    """Offsets of a shard."""

    shard: int


class AuditedShard(TypedDict):
    """A shard of a table's stream: the records from offset ``first`` up to, not including, ``next``, and their outcome.
    ``lag`` records wait in the stream; ``expired`` ones were removed from it before the table had them, ``removed``
    ones from the table by its own ``retention``. ``missing_at`` and ``doubled_at`` are the first of the offsets that
    are missing, or there more than once. In a table with a key, the rows of ``superseded`` records were replaced or
    deleted by later ones. ``compared`` is the number of rows whose values were audited; null if values were not."""

    shard: int
    first: int
    next: int
    rows: int
    dead_letters: int
    filtered: int
    missing: int
    doubled: int
    outside: int
    lag: int
    superseded: int
    expired: int
    removed: int
    missing_at: list[OffsetRange]
    doubled_at: list[OffsetRange]
    compared: NotRequired[int | None]


class TableAudit(TypedDict):
    """A proof by offset: ``ok`` where every record is accounted for, once; ``problems`` are sentences. ``tables`` are
    the names of those that rows go into, where the table has none of its own."""

    ok: bool
    table: str
    stream: str
    version: int
    shards: list[AuditedShard]
    problems: list[str]
    key: list[str]
    tables: list[str]


class LastAudit(TypedDict):
    """The last audit that ended: ``ok`` where it found nothing; else the first of its ``problems``, or why the table
    could not be read."""

    at: str
    ok: bool
    problem_count: int
    problems: list[str]


class JobError(TypedDict):
    """The last failure of the job, in words, and when."""

    message: str
    at: NotRequired[str]


class TableColumn(TypedDict):
    """A column of a table."""

    name: str
    type: str


class HeldColumn(TableColumn):
    """A column whose type would be ``wanted`` by the schema or the rule as it is now. That cannot be done in place, so
    it waits for a retype; ``effect`` says so in a sentence."""

    wanted: str
    effect: str


class MemberTable(TypedDict):
    """A table that rows of a table with `tables` go into; `last_commit_at` is null until one since the job started."""

    name: str
    path: str
    rows: int
    files: int
    bytes: int
    last_commit_at: str | None


class TablePart(TypedDict):
    """A table as its job wrote it last: its identifier in its format, and its version."""

    id: str | None
    version: int


class TableProgress(TypedDict):
    """Last report of the job of a table; null is what it did not report. ``offsets`` are those after the last record of
    each shard that the table has. ``bytes`` is the size of its ``files``, ``partitions`` the number of partitions.
    ``commit_s`` is the duration of the last commit. ``tables`` are those that rows go into, if the table has no rows of
    its own; ``over_max_tables`` rows since the job started are dead letters, as there would be too many such tables.
    ``held`` are changes of columns that wait for a retype. ``parts`` are the tables that it writes, by the ends of
    their paths: its own, that of dead letters and those that rows go into. ``begins`` are the first offsets that it
    has. ``is_lost`` if one of them is gone or was put back to an older version: use ``recreate`` or replay the
    table."""

    state: TableState
    job: str | None
    at: str | None
    last_batch: int | None
    last_commit_at: str | None
    last_commit_rows: int | None
    offsets: dict[str, str] | None
    rows: int | None
    dead_letters: int | None
    rows_per_s: float | None
    files: int | None
    bytes: int | None
    partitions: int | None
    commit_s: float | None
    table_version: int | None
    last_error: JobError | None
    columns: list[TableColumn] | None
    tables: NotRequired[list[MemberTable] | None]
    over_max_tables: NotRequired[int | None]
    held: NotRequired[list[HeldColumn] | None]
    parts: NotRequired[dict[str, TablePart] | None]
    begins: NotRequired[dict[str, str] | None]
    is_lost: NotRequired[bool | None]


class TableRule(TypedDict):
    """The rule that a table's job runs, or the ``problem`` that keeps it from running."""

    name: str
    sql: NotRequired[str]
    node: NotRequired[str]
    problem: NotRequired[str]


class ReplayReport(TypedDict):
    """Report of a replay, or of its dry run: the rows and dead letters of ``records`` offsets, published between two
    times, are replaced. ``rule`` is the one that runs again; it filtered ``filtered_after`` messages. A lost table is
    created again (``recreates``); if it is gone or ends earlier, its job fills it (``fills``). ``missing`` are the
    records that it lacks, as the stream no longer has them."""

    table: str
    dry_run: bool
    ranges: list[ShardOffsetRange]
    records: int
    rows_before: int
    dead_letters_before: int
    published_from: str | None
    published_to: str | None
    rows_after: int | None
    dead_letters_after: int | None
    version: int | None
    replay: str | None
    rule: str | None
    filtered_after: int | None
    missing: list[ShardOffsetRange]
    recreates: bool
    fills: bool


class RecreateReport(TypedDict):
    """A table that is created at ``path`` again, if it is not there."""

    table: str
    path: str


class FoundShadow(TypedDict):
    """The shadow of a table, if it has one."""

    shadow: TableShadow | None


class TableShadow(TypedDict):
    """The shadow of a table: ``done`` of the ``records`` in its ranges are in it, as rows or dead letters, or were
    filtered. ``replay`` identifies the replay."""

    table: str
    replay: str
    started_at: str
    ranges: list[ShardOffsetRange]
    records: int
    done: int
    rows: int
    dead_letters: int
    filtered: int
    is_complete: bool


class SwapReport(TableShadow):
    """The shadow that took the place of the rows of its ranges, and the version that the table has since."""

    version: int


class DiscardReport(TypedDict):
    """Report of the removal of a shadow; ``discarded`` is false if there was none."""

    table: str
    discarded: bool


class DiffSample(TypedDict):
    """A row that a swap would change, add (``only_shadow``) or remove (``only_table``), with the values of the columns
    that differ as text, cut to 200 characters."""

    kind: Literal["changed", "only_table", "only_shadow"]
    shard: int
    offset: int
    table: dict[str, str | None] | None
    shadow: dict[str, str | None] | None


class RowDiff(TypedDict):
    """Rows by the effect of a swap on them, the number of changes of each column, and the first of the rows."""

    same: int
    changed: int
    only_table: int
    only_shadow: int
    columns: dict[str, int]
    samples: list[DiffSample]


class TableDiff(TypedDict):
    """A table compared with its shadow, over the ``records`` that the shadow has."""

    table: str
    replay: str
    records: int
    is_complete: bool
    rows: RowDiff
    dead_letters: RowDiff


class Retype(TypedDict):
    """A column by its name, and the type that it is to have."""

    column: str
    type: str


class RetypeReport(Retype):
    """Report of a retype: rows and dead letters were converted again with the new type of the column."""

    table: str
    rows_before: int
    dead_letters_before: int
    rows_after: int
    dead_letters_after: int
    version: int


class GapReport(TypedDict):
    """The ``records`` that retention removed before the table had them, and that it is now known to lack."""

    table: str
    ranges: list[ShardOffsetRange]
    records: int
    version: int


class Clean(TypedDict):
    """Files that no version of a table refers to are removed, or with ``dry_run`` counted, where they are older."""

    older_than_s: float
    dry_run: bool


class CleanReport(TypedDict):
    """Number of files that no version refers to and that were removed, or with ``dry_run`` would be: of the table and
    of its dead letters."""

    table: str
    dry_run: bool
    files: int
    dead_letter_files: int


class CompactReport(TypedDict):
    """Report of a compaction, or with ``dry_run`` its plan: ``files`` small ones of ``bytes`` together become
    ``files_after``, those of the dead letters included."""

    table: str
    dry_run: bool
    files: int
    bytes: int
    files_after: int


class Expire(TypedDict):
    """Versions that are older are removed."""

    older_than_s: float


class ExpireReport(TypedDict):
    """Report of the removal of old versions, or with ``dry_run`` its plan: Iceberg's ``snapshots``, and ``files`` of
    ``bytes`` that only old versions have, those of the dead letters included."""

    table: str
    dry_run: bool
    snapshots: int
    files: int
    bytes: int


class RetainReport(TypedDict):
    """Number of rows and dead letters, together, that were removed for their age, or with ``dry_run`` would be."""

    table: str
    dry_run: bool
    rows: int


class TableReplay(TypedDict):
    """A replay that the lake job is to run, with the rule and the columns to run it with, ``into`` a shadow or the
    table, at most ``rate`` records a second; or a retype, the acceptance of a gap, a cleaning, a compaction, an expiry,
    a removal of old rows, what is done with a shadow, or an audit in its place. ``id`` is that of the job; ``pause``
    asks it to wait, ``cancel`` to end."""

    id: str
    ranges: list[ShardOffsetRange]
    columns: list[TableColumn]
    rule_text: TableRule | None
    retype: Retype | None
    accept_gap: bool
    clean: NotRequired[Clean | None]
    compact: NotRequired[bool]
    expire: NotRequired[Expire | None]
    retain: NotRequired[Expire | None]
    replay: NotRequired[str | None]
    into: NotRequired[Literal["shadow"] | None]
    rate: NotRequired[int | None]
    diff: NotRequired[bool]
    swap: NotRequired[bool]
    discard: NotRequired[bool]
    audit: NotRequired[AuditDepth | None]
    pause: NotRequired[bool]
    cancel: bool


TableResult = (
    ReplayReport
    | RetypeReport
    | GapReport
    | CleanReport
    | CompactReport
    | ExpireReport
    | RetainReport
    | SwapReport
    | TableShadow
    | DiscardReport
    | TableDiff
    | TableAudit
)


class ReplayProgress(TypedDict):
    """Progress of the lake job with a replay."""

    id: str
    state: Literal["running", "done", "failed", "cancelled"]
    done: int
    at: str | None
    error: str | None
    result: TableResult | None


class TableVersion(TypedDict):
    """A version of a table: what was done, when, and for a batch or a ``replay`` the offsets and their outcome."""

    version: int
    at: str
    operation: str
    ranges: list[ShardOffsetRange]
    rows: int
    dead_letters: int
    filtered: int
    replay: str | None


class TableSchema(TypedDict):
    """The columns of a table from a version on; version and time are null where its log no longer has them."""

    version: int | None
    at: str | None
    columns: list[TableColumn]


class TableHistory(TypedDict):
    """Files, versions and schemas of a table, from its own log, newest first. ``small_files`` have less than 64 MiB."""

    version: int | None
    rows: int
    files: int
    bytes: int
    small_files: int
    versions: list[TableVersion]
    schemas: list[TableSchema]


class TableStore(TypedDict):
    """The object store that a table is in, as ``lake.stores`` has it; secrets are references."""

    url: str
    endpoint: NotRequired[str]
    region: NotRequired[str]
    access_key_id: NotRequired[str]
    secret_access_key: NotRequired[str]
    session_token: NotRequired[str]
    account_key: NotRequired[str]
    sas_token: NotRequired[str]
    tenant_id: NotRequired[str]
    client_id: NotRequired[str]
    client_secret: NotRequired[str]
    anonymous: NotRequired[bool]


class TableCatalog(TypedDict):
    """The catalog that a table is in, as ``lake.catalogs`` has it; secrets are references."""

    name: str
    type: NotRequired[str]
    uri: str
    warehouse: NotRequired[str]
    token: NotRequired[str]
    client_id: NotRequired[str]
    client_secret: NotRequired[str]
    oauth_uri: NotRequired[str]
    scope: NotRequired[str]
    signing_region: NotRequired[str]
    signing_name: NotRequired[str]
    password: NotRequired[str]


class TablesForJob(TypedDict):
    """All tables, each as `GET /lake/tables` has it, but with named secrets encrypted for the lake job."""

    tables: list[dict[str, Any]]


class TableReadOnly(TypedDict):
    """Status of a table: the state of its job and why, ``advice`` on its layout, its figures, and the last report of
    its job. ``lag_s`` is the age of the oldest record that the table does not have yet, ``valid_through`` the time of
    publishing up to which every record is in the table. ``is_expected`` where its job has written it: if it is gone,
    the job does not create it. ``expected`` are the tables that it has written, as in the report; ``begins`` are the
    offsets at which a table that was lost is to begin again. ``last_audit`` is null until an audit ended."""

    columns: list[TableColumn]
    rule_text: NotRequired[TableRule]
    is_expected: bool
    expected: dict[str, TablePart]
    begins: dict[str, str] | None
    store: TableStore | None
    catalog_settings: TableCatalog | None
    state: str
    reason: str | None
    advice: list[str]
    lag_records: int | None
    lag_s: float | None
    valid_through: str | None
    rows: int | None
    dead_letters: int | None
    report: TableProgress | None
    replay: TableReplay | None
    last_audit: LastAudit | None
