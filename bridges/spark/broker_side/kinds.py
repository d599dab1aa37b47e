"""Tables of the lakehouse, and the upkeep of one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from broker.core.kinds import Kind
from broker.core.resources import LONG_S, Command, Job, Parameter, Resource, Verb, limit

KINDS = (
    Kind(
        name="lake table",
        topics="named",
        area="authoring",
        path="lake/tables",
        section="lake.tables",
        models=("bridges.spark.broker_side.table_spec:LakeTableSpec",),
        read_only="bridges.spark.broker_side.views:TableReadOnly",
        about="A Delta or Iceberg table that follows a stream.",
        tag="Lake",
        columns={
            "name": "name",
            "stream": "stream",
            "format": "format",
            "path": "path",
            "state": "state",
        },
        menu="Delivery",
        page_columns={
            "Stream": "stream",
            "Format": "format",
            "Rows": "rows",
            "Behind": "lag_records",
            "Dead letters": "dead_letters",
            "Last commit": "report/last_commit_at",
        },
        word="table",
        command="lake tables",
    ),
)

_TABLE = Parameter(name="name", type="name", is_required=True, is_argument=True, option="TABLE")
_AGE = Parameter(
    name="older_than",
    type="broker.config.units:Duration",
    default=7 * 86400.0,
    least=0,
    keyword="older_than_s",
)
_MEMBER = Parameter(
    name="member", text="One of the tables that the rows of a table with `tables` go into.", option="--member NAME",
    help="One of the tables that rows go into, for a table with 'tables'.",
)  # fmt: skip
_ID = ("id", "advance")
_ORDER = ("id", "order", "advance", "is_paused")


def _job(
    *,
    text: str,
    job: Job,
    command: Command | None = None,
    takes: Sequence[Parameter] = (),
    **verb: Any,
) -> Verb:
    """A verb that is a job on a table."""
    lasts = ", which can be paused and" if "is_paused" in job.passes else ", which"
    how = f"{lasts} continues when the broker starts again" if job.order else ""
    return Verb(
        text=f"{text} It is a job{how}: `Prefer: respond-async` does not wait for its end.",
        method="POST",
        path=f":{job.kind}",
        takes=(_TABLE, *takes),
        takes_key=True,
        job=job,
        command=command and replace(command, known="sluice lake tables ls", timeout_s=LONG_S),
        **verb,
    )


RESOURCES = (
    Resource(
        name="table",
        topics="named",
        path="/lake/tables",
        tag="Lake",
        service="lake_tables",
        at="here",
        commands="lake tables",
        verbs=(
            Verb(
                id="openTables",
                text="Get all tables for the lake job. The lake job calls this. Named secrets of stores and catalogs "
                "are encrypted; the job needs their key.",
                call="for_job",
                path=":open",
                answer="bridges.spark.broker_side.views:TablesForJob",
                does="change",
            ),
        ),
    ),
    Resource(
        name="table",
        topics="named",
        path="/lake/tables/{name}",
        tag="Lake",
        service="lake_states",
        at="here",
        commands="lake tables",
        verbs=(
            Verb(
                id="reportTable",
                text="Report the progress of a table's job. The lake job calls this to report its progress. The "
                "dashboard and the table show what was reported last.",
                call="report",
                method="PUT",
                path="/report",
                takes=(_TABLE,),
                body="ui.api.models.streams:TableReport",
                body_key="report",
                does="change",
            ),
        ),
    ),
    Resource(
        name="table",
        topics="named",
        path="/lake/tables/{name}",
        tag="Lake",
        service="lake_reads",
        at="here",
        commands="lake tables",
        verbs=(
            Verb(
                id="previewTable",
                topics="any",
                text="Show the newest rows of a table. Reads the newest rows from the files of the table, newest "
                "first. Of a table with `tables` those of the 20 that were written last, or of one `member`.",
                call="preview",
                path="/preview",
                takes=(
                    _TABLE,
                    limit(20),
                    Parameter(
                        name="dead_letters",
                        text="Show dead letters instead.",
                        type=bool,
                        default=False,
                    ),
                    _MEMBER,
                ),
                answer="bridges.spark.broker_side.views:TablePreview",
                problems=(409,),
                reads="shared",
                command=Command(
                    name="preview",
                    help="Show the newest rows of a table.",
                    show="broker.cli.lake:print_preview",
                    known="sluice lake tables ls",
                ),
            ),
            Verb(
                id="getTableHistory",
                text="Show the history of a table. Reads the table's own log, or that of a `member`: files, the last "
                "versions with the offsets that each covers, schemas.",
                call="history",
                path="/history",
                takes=(_TABLE, limit(50, offered=20), _MEMBER),
                answer="bridges.spark.broker_side.views:TableHistory",
                problems=(409,),
                reads="shared",
                command=Command(
                    name="history",
                    help="Show the files and the last versions of a table, from its own log.",
                    show="broker.cli.lake:print_history",
                    known="sluice lake tables ls",
                ),
            ),
            Verb(
                id="getTableShadow",
                topics="any",
                text="Show the shadow of a table. Reads from the shadow how far its replay is. It is `null` where the "
                "table has none.",
                call="shadow",
                path="/shadow",
                takes=(_TABLE,),
                answer="bridges.spark.broker_side.views:FoundShadow",
                problems=(409,),
                reads="thread",  # one that began before the end of a job would not show it to those who ask later
            ),
        ),
    ),
    Resource(
        name="table",
        topics="named",
        path="/lake/tables/{name}",
        tag="Lake",
        service="lake",
        at="here",
        commands="lake tables",
        verbs=(
            _job(
                id="diffTable",
                topics="any",
                text="Compare a table with its shadow. Compares the rows and dead letters of the ranges that "
                "the shadow has, by shard, offset and number of the row.",
                call="diff",
                answer="bridges.spark.broker_side.views:TableDiff",
                does="job",
                job=Job(
                    kind="diff",
                    has_messages=True,
                    unit="records",
                    plan="plan_diff",
                    total="done",
                    blocks=True,
                    passes=_ID,
                ),
                command=Command(
                    help="Compare a table with its shadow, as far as that is filled.\n\nRows are compared by shard, "
                    "offset and their number where a record gives several. It is a job of the broker; the table is "
                    "filled while it runs.",
                    follows="comparison",
                    show="broker.cli.lake:compared",
                ),
            ),
            _job(
                id="swapTable",
                text="Put the shadow in the place of a table's rows. Replaces the rows of the replayed ranges "
                "by those of the shadow in one commit, then the dead letters, and removes the shadow. Other "
                "rows stay, and so do records that arrived in the meantime. With `dry_run` returns the "
                "shadow.",
                call="swap",
                answer="bridges.spark.broker_side.views:SwapReport",
                does="job",
                job=Job(
                    kind="swap",
                    unit="records",
                    plan="plan_swap",
                    total="records",
                    blocks=True,
                    shows_plan=True,
                    order="swap_order",
                    passes=_ID,
                ),
                command=Command(
                    help="Put the shadow of a table in the place of the rows that were replayed.\n\nOne commit "
                    "replaces the rows of the replayed ranges, another one their dead letters; all other rows stay. "
                    "Then the shadow is removed. It is a job of the broker, which a restart does not stop.",
                    follows="swap",
                    show="broker.cli.lake:swapped",
                ),
            ),
            _job(
                id="auditTable",
                text="Audit a table. Proves by offset that every record of the stream is a row, was filtered, "
                "or is a dead letter. The lake job reads the table by ranges of offsets; the table is filled "
                "while it runs.",
                call="audit",
                takes=(
                    Parameter(
                        name="depth",
                        text="`values`: also compares values with the sums that commits keep. `deep`: also with the "
                        "records read from the stream again. Default: the table's `audit_depth`.",
                        type=("offsets", "values", "deep"),
                    ),
                ),
                answer="bridges.spark.broker_side.views:TableAudit",
                does="job",
                job=Job(
                    kind="audit",
                    unit="records",
                    plan="plan_audit",
                    blocks=True,
                    order="audit_order",
                    passes=_ORDER,
                ),
            ),
            Verb(
                id="recreateTable",
                text="Create a table again that is gone. A table that was removed, replaced by another one or put back "
                "to an older version is `failed`: its job does not create it again without an order, as records may be "
                "gone from the stream. The same holds for its dead-letter table and the tables that its rows go into. "
                "This lets it continue: missing tables are created again and filled with the records that the stream "
                "still has; existing ones stay as they are.",
                call="recreate",
                path=":recreate",
                takes=(_TABLE,),
                answer="bridges.spark.broker_side.views:RecreateReport",
                does="change",
                command=Command(
                    help="Continue a table that was removed, replaced or put back to an older version.\n\nMissing "
                    "tables are created again and filled with the records that the stream still has; existing ones "
                    "stay as they are. "
                    "The same holds for its dead-letter table and the tables that rows go into. To do the same, "
                    "wait until the table is filled and see which records are missing: sluice replay TABLE.",
                    done="table {table} at {path} continues, and its missing tables are created again",
                    known="sluice lake tables ls",
                ),
            ),
            _job(
                id="discardTableShadow",
                text="Remove the shadow of a table. Removes the shadow with its files; the table stays as it "
                "is. Without a shadow it does nothing.",
                call="discard",
                answer="bridges.spark.broker_side.views:DiscardReport",
                does="job",
                job=Job(kind="discard", unit="files", passes=_ID),
                command=Command(
                    help="Remove the shadow of a table; the table stays as it is.",
                    follows="discard",
                    show="broker.cli.lake:discarded",
                ),
            ),
            _job(
                id="retypeTable",
                text="Give a column of a table another type. Converts all rows and dead letters again: dead "
                "letters that fit become rows, rows that do not fit become dead letters. The table is not "
                "filled while it runs.",
                call="retype",
                body=(
                    Parameter(name="column", is_required=True, is_argument=True, option="COLUMN"),
                    Parameter(
                        name="type",
                        keyword="kind",
                        is_required=True,
                        is_argument=True,
                        option="TYPE",
                        text="Such as `double`, `timestamp`, `decimal(10, 2)`, `array<long>`, `map<string, double>` or "
                        "`struct<lat: double, lon: double>`.",
                        help="Such as double, timestamp, json or 'struct<lat: double>'.",
                    ),
                ),
                body_text="A column by its name, and the type that it is to have.",
                model="RetypeRequest",
                answer="bridges.spark.broker_side.views:RetypeReport",
                does="job",
                job=Job(kind="retype", unit="rows", plan="plan_retype", blocks=True, passes=_ID),
                command=Command(
                    help="Give a column another type; dead letters that fit then become rows.\n\nIt also approves a "
                    "change of the schema or the rule that could not be made in place: the table says which command "
                    "does so. Rows that do not fit the new type become dead letters. It is a job of the broker, run "
                    "by the lake job.",
                    follows="retype",
                    show="broker.cli.lake:retyped",
                ),
            ),
            _job(
                id="cleanTable",
                text="Remove files that no version of a table refers to. Removes what tasks that were killed "
                "and commits that were refused left, and files that were joined. With `dry_run` returns how "
                "many. The table is not filled while it runs.",
                call="clean",
                takes=(
                    Parameter(
                        name="dry_run",
                        text="Check the request, and return its effect; nothing is changed.",
                        type=bool,
                        default=False,
                        help="Count the files; change nothing.",
                    ),
                ),
                body=(
                    replace(
                        _AGE, help="Minimum age of a file, longer than a batch takes. Default: 7d."
                    ),
                ),
                body_text="How old files must be. A file of a commit in progress elsewhere is such a file until it is "
                "committed.",
                model="CleanRequest",
                answer="bridges.spark.broker_side.views:CleanReport",
                does="job",
                job=Job(kind="clean", unit="files", passes=_ID),
                command=Command(
                    help="Remove files that no version of a table refers to.\n\nTasks that were killed and commits "
                    "that were refused leave such files. It is a job of the broker, run by the lake job; the table "
                    "is not filled while it runs.",
                    follows="cleaning",
                    show="broker.cli.lake:cleaned",
                ),
            ),
            _job(
                id="compactTable",
                text="Join the small files of a table. Joins the small files of each partition, of the table "
                "and of its dead letters; rows stay as they are, and the table is filled while it runs. With "
                "`dry_run` returns what would be joined.",
                call="compact",
                answer="bridges.spark.broker_side.views:CompactReport",
                does="job",
                job=Job(
                    kind="compact",
                    unit="files",
                    plan="plan_compact",
                    total="files",
                    blocks=True,
                    shows_plan=True,
                    passes=_ID,
                ),
                command=Command(
                    help="Join the small files of a table.\n\nFiles of less than 64 MiB in the same partition become "
                    "files of about 128 MiB. Rows stay as they are, and the table is filled while it runs. It is a job "
                    "of the broker, run by the lake job.",
                    follows="compaction",
                    show="broker.cli.lake:compacted",
                ),
            ),
            _job(
                id="expireTable",
                text="Remove old versions of a table. Removes versions that are older, and the files that "
                "only they have, of the table and of its dead letters. The newest version stays, and so do "
                "Iceberg's branches and tags; a time shorter than a Delta table promises by its "
                "`delta.deletedFileRetentionDuration` is refused. With `dry_run` returns what would go.",
                call="expire",
                body=(replace(_AGE, help="Minimum age of a version that goes. Default: 7d."),),
                body_text="How old versions must be. A reader that began with one of them may fail afterwards.",
                model="ExpireRequest",
                answer="bridges.spark.broker_side.views:ExpireReport",
                does="job",
                job=Job(
                    kind="expire",
                    unit="files",
                    plan="plan_expire",
                    total="files",
                    blocks=True,
                    shows_plan=True,
                    passes=_ID,
                ),
                command=Command(
                    help="Remove old versions of a table, and the files that only they have.\n\nReaders that began "
                    "with such a version may fail. The newest version stays, and so do Iceberg's branches and tags. "
                    "It is a job of the broker, run by the lake job.",
                    follows="expiry",
                    show="broker.cli.lake:expired",
                ),
            ),
            _job(
                id="retainTable",
                text="Remove old rows of a table. Removes rows and dead letters that were published longer "
                "ago, as the lake job does about once an hour in tables with `retention`; of a table with "
                "partitions by `_published_at` whole partitions. With `dry_run` returns how many.",
                call="retain",
                body=(
                    replace(
                        _AGE,
                        default=None,
                        text="Default: the table's `retention`.",
                        help="Minimum age of a row. Default: the table's retention.",
                    ),
                ),
                body_text="How long ago rows were published that go.",
                model="RetainRequest",
                answer="bridges.spark.broker_side.views:RetainReport",
                does="job",
                job=Job(
                    kind="retain",
                    unit="rows",
                    plan="plan_retain",
                    total="rows",
                    blocks=True,
                    shows_plan=True,
                    passes=_ID,
                ),
                command=Command(
                    help="Remove the rows and dead letters of a table that were published longer ago.\n\nThe lake "
                    "job does so about once an hour for a table with 'retention'. It is a job of the broker, run by "
                    "the lake job.",
                    follows="removal of rows",
                    show="broker.cli.lake:retained",
                ),
            ),
            _job(
                id="acceptTableGap",
                text="Continue a table after records that retention removed. Continues with the first record "
                "that the stream has; the ledger records which ones the table lacks.",
                call="accept_gap",
                answer="bridges.spark.broker_side.views:GapReport",
                does="job",
                job=Job(kind="accept-gap", unit="records", passes=_ID),
                command=Command(
                    help="Continue a table that fell behind retention, without the records that were removed.\n\nThe "
                    "ledger records which ones the table lacks. It is a job of the broker, run by the lake job.",
                    follows="acceptance",
                    show="broker.cli.lake:accepted",
                ),
            ),
        ),
    ),
    Resource(
        name="table",
        topics="named",
        path="/lake/tables/{name}",
        tag="Lake",
        service="lake",
        at="here",
        commands="",
        verbs=(
            _job(
                id="replayTable",
                text="Replay a range of a stream into a table. Reads the range again and replaces its rows "
                "and dead letters; the rule of a table runs again as it is now. Without a range or `records` "
                "the table is rebuilt from all that the stream still has of it. A table that was lost is made "
                "again, as by `recreate`, and filled; `missing` are the records that the stream no longer "
                "has. With `dry_run` returns what would be replaced. Into a shadow, the table stays as it is "
                "until the shadow is swapped.",
                call="replay",
                body=(
                    Parameter(
                        name="from",
                        type="broker.config.places:Place",
                        keyword="start",
                        help="First offset, by shard as 0:100,1:200, or a time, 2026-01-31T12:00Z. Default: the first.",
                    ),
                    Parameter(
                        name="to",
                        type="broker.config.places:Place",
                        keyword="end",
                        help="The offset after the last, by shard as well, or a time. Default: the table's end.",
                    ),
                    Parameter(
                        name="records",
                        type="record",
                        many=True,
                        shortest=1,
                        longest=200,
                        option="--record",
                        help="Only this record; may be repeated.",
                    ),
                    Parameter(
                        name="rule",
                        option="--rule NAME",
                        help="Run this rule, not the one that the table has.",
                    ),
                    Parameter(
                        name="into",
                        type=("shadow",),
                        text="`shadow`: into a separate table, to be compared and swapped. Default: into the table.",
                        help="A shadow next to the table, to be compared and swapped.",
                    ),
                    Parameter(
                        name="rate",
                        type=int,
                        least=1,
                        most=1_000_000,
                        text="Maximum records per second. Null means no limit.",
                        help="Maximum records per second.",
                    ),
                ),
                body_text="The range to replay, and a rule other than the table's own to run on it. ``from`` is the "
                "first offset or a time, ``to`` the offset after the last or a time; times are cut to the range that "
                'the table has. Offsets may be given by shard, as ``{"0": 100}`` or ``0:100``; other shards are left '
                "out. In place of a range, ``records`` are replayed singly, each named as ``SHARD/OFFSET``.",
                model="ReplayRequest",
                answer="bridges.spark.broker_side.views:ReplayReport",
                does="job",
                job=Job(
                    kind="replay",
                    unit="records",
                    plan="plan_replay",
                    total="records",
                    blocks=True,
                    shows_plan=True,
                    order="replay_order",
                    passes=_ORDER,
                ),
                command=Command(
                    help="Read a range of a stream again into its table; without a range, all of the table that the "
                    "stream still has.\n\nThe rows of the range are replaced; the same range twice leaves the same "
                    "table. With --record, only those of single records, such as dead letters. For a table with a "
                    "rule, the rule as it is now runs again on the messages of the range. With --into shadow the table "
                    "stays as it is: compare them with 'sluice lake tables diff', then swap or discard the shadow. It "
                    "is a job of the broker, run by the lake job; it can be paused, and continues after a restart.\n\n"
                    "A table that was removed, or put back to an older version, is made again and filled with all that "
                    "the stream still has; the command says which records are missing.",
                    follows="replay",
                    show="broker.cli.lake:replayed",
                ),
            ),
        ),
    ),
)
