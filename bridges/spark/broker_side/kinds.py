"""Tables of the lakehouse, and the upkeep of one."""

from __future__ import annotations

from dataclasses import replace

from broker.core.kinds import Kind
from broker.core.resources import LONG_S, Command, Job, Parameter, Resource, Verb

KINDS = (
    Kind(
        name="lake table",
        path="lake/tables",
        section="lake.tables",
        models=("bridges.spark.broker_side.table_spec:LakeTableSpec",),
        read_only="bridges.spark.broker_side.views:TableReadOnly",
        about="A Delta or Iceberg table that follows a stream.",
        tag="Lake",
        columns={"name": "name", "stream": "stream", "format": "format", "path": "path", "state": "state"},
        word="table",
        command="lake tables",
    ),
)

_TABLE = Parameter(name="name", type="name", is_required=True, is_argument=True, option="TABLE")
_AGE = Parameter(
    name="older_than", type="broker.config.units:Duration", default=7 * 86400.0, least=0, keyword="older_than_s"
)
_ID = ("id", "advance")
RESOURCES = (
    Resource(
        name="table",
        path="/lake/tables/{name}",
        tag="Lake",
        service="lake",
        commands="lake tables",
        verbs=(
            Verb(
                id="recreateTable",
                text="Create a table again that is gone. A table that was removed, replaced by another one or put back "
                "to an older version is `failed`: its job does not create it again without an order, as records may be "
                "gone from the stream. The same holds for its dead-letter table and the tables that its rows go into. "
                "This lets it continue: missing tables are created again and filled with the records that the stream "
                "still has; existing ones stay as they are.",
                call="recreate",
                method="POST",
                path=":recreate",
                takes=(_TABLE,),
                answer="bridges.spark.broker_side.views:RecreateReport",
                does="change",
                command=Command(
                    name="recreate",
                    help="Continue a table that was removed, replaced or put back to an older version.\n\nMissing "
                    "tables are created again and filled with the records that the stream still has; existing ones "
                    "stay as they are. "
                    "The same holds for its dead-letter table and the tables that rows go into. To do the same, "
                    "wait until the table is filled and see which records are missing: sluice replay TABLE.",
                    done="table {table} at {path} continues, and its missing tables are created again",
                    known="sluice lake tables ls",
                ),
            ),
            Verb(
                id="discardTableShadow",
                text="Remove the shadow of a table. Removes the shadow with its files; the table stays as it is. It is "
                "no error when there is none. It is a job: `Prefer: respond-async` does not wait for its end.",
                call="discard",
                method="POST",
                path=":discard",
                takes=(_TABLE,),
                answer="bridges.spark.broker_side.views:DiscardReport",
                takes_key=True,
                does="change",
                job=Job(kind="discard", unit="files", passes=_ID),
                command=Command(
                    name="discard",
                    help="Remove the shadow of a table; the table stays as it is.",
                    follows="discard",
                    show="broker.cli.lake:discarded",
                    known="sluice lake tables ls",
                    timeout_s=LONG_S,
                ),
            ),
            Verb(
                id="retypeTable",
                text="Give a column of a table another type. Converts all rows and dead letters again: dead letters "
                "that fit become rows, rows that do not fit become dead letters. The table is not filled while it "
                "runs. It is a job: `Prefer: respond-async` does not wait for its end.",
                call="retype",
                method="POST",
                path=":retype",
                takes=(_TABLE,),
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
                takes_key=True,
                does="change",
                job=Job(kind="retype", unit="rows", plan="plan_retype", blocks=True, passes=_ID),
                command=Command(
                    name="retype",
                    help="Give a column another type; dead letters that fit then become rows.\n\nIt also approves a "
                    "change of the schema or the rule that could not be made in place: the table says which command "
                    "does so. Rows that do not fit the new type become dead letters. It is a job of the broker, run "
                    "by the lake job.",
                    follows="retype",
                    show="broker.cli.lake:retyped",
                    known="sluice lake tables ls",
                    timeout_s=LONG_S,
                ),
            ),
            Verb(
                id="cleanTable",
                text="Remove files that no version of a table refers to. Removes what tasks that were killed and "
                "commits that were refused left, and files that were joined. With `dry_run` returns how many. The "
                "table is not filled while it runs. It is a job: `Prefer: respond-async` does not wait for its end.",
                call="clean",
                method="POST",
                path=":clean",
                takes=(
                    _TABLE,
                    Parameter(
                        name="dry_run",
                        text="Check the request, and return its effect; nothing is changed.",
                        type=bool,
                        default=False,
                        help="Count the files; change nothing.",
                    ),
                ),
                body=(replace(_AGE, help="Minimum age of a file, longer than a batch takes. Default: 7d."),),
                body_text="How old files must be. A file of a commit in progress elsewhere is such a file until it is "
                "committed.",
                model="CleanRequest",
                answer="bridges.spark.broker_side.views:CleanReport",
                takes_key=True,
                does="change",
                job=Job(kind="clean", unit="files", passes=_ID),
                command=Command(
                    name="clean",
                    help="Remove files that no version of a table refers to.\n\nTasks that were killed and commits "
                    "that were refused leave such files. It is a job of the broker, run by the lake job; the table "
                    "is not filled while it runs.",
                    follows="cleaning",
                    show="broker.cli.lake:cleaned",
                    known="sluice lake tables ls",
                    timeout_s=LONG_S,
                ),
            ),
            Verb(
                id="compactTable",
                text="Join the small files of a table. Joins the small files of each partition, of the table and of "
                "its dead letters; rows stay as they are, and the table is filled while it runs. With `dry_run` "
                "returns what would be joined. It is a job: `Prefer: respond-async` does not wait for its end.",
                call="compact",
                method="POST",
                path=":compact",
                takes=(_TABLE,),
                answer="bridges.spark.broker_side.views:CompactReport",
                takes_key=True,
                does="change",
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
                    name="compact",
                    help="Join the small files of a table.\n\nFiles of less than 64 MiB in the same partition become "
                    "files of about 128 MiB. Rows stay as they are, and the table is filled while it runs. It is a job "
                    "of the broker, run by the lake job.",
                    follows="compaction",
                    show="broker.cli.lake:compacted",
                    known="sluice lake tables ls",
                    timeout_s=LONG_S,
                ),
            ),
            Verb(
                id="expireTable",
                text="Remove old versions of a table. Removes versions that are older, and the files that only they "
                "have, of the table and of its dead letters. The newest version stays, and so do Iceberg's branches "
                "and tags; a time shorter than a Delta table promises by its `delta.deletedFileRetentionDuration` is "
                "refused. With `dry_run` returns what would go. It is a job: `Prefer: respond-async` does not wait for "
                "its end.",
                call="expire",
                method="POST",
                path=":expire",
                takes=(_TABLE,),
                body=(replace(_AGE, help="Minimum age of a version that goes. Default: 7d."),),
                body_text="How old versions must be. A reader that began with one of them may fail afterwards.",
                model="ExpireRequest",
                answer="bridges.spark.broker_side.views:ExpireReport",
                takes_key=True,
                does="change",
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
                    name="expire",
                    help="Remove old versions of a table, and the files that only they have.\n\nReaders that began "
                    "with such a version may fail. The newest version stays, and so do Iceberg's branches and tags. "
                    "It is a job of the broker, run by the lake job.",
                    follows="expiry",
                    show="broker.cli.lake:expired",
                    known="sluice lake tables ls",
                    timeout_s=LONG_S,
                ),
            ),
            Verb(
                id="retainTable",
                text="Remove old rows of a table. Removes rows and dead letters that were published longer ago, as the "
                "lake job does about once an hour in tables with `retention`; of a table with partitions by "
                "`_published_at` whole partitions. With `dry_run` returns how many. It is a job: "
                "`Prefer: respond-async` does not wait for its end.",
                call="retain",
                method="POST",
                path=":retain",
                takes=(_TABLE,),
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
                takes_key=True,
                does="change",
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
                    name="retain",
                    help="Remove the rows and dead letters of a table that were published longer ago.\n\nThe lake "
                    "job does so about once an hour for a table with 'retention'. It is a job of the broker, run by "
                    "the lake job.",
                    follows="removal of rows",
                    show="broker.cli.lake:retained",
                    known="sluice lake tables ls",
                    timeout_s=LONG_S,
                ),
            ),
            Verb(
                id="acceptTableGap",
                text="Continue a table after records that retention removed. Continues with the first record that the "
                "stream has; the ledger records which ones the table lacks. It is a job: `Prefer: respond-async` does "
                "not wait for its end.",
                call="accept_gap",
                method="POST",
                path=":accept-gap",
                takes=(_TABLE,),
                answer="bridges.spark.broker_side.views:GapReport",
                takes_key=True,
                does="change",
                job=Job(kind="accept-gap", unit="records", passes=_ID),
                command=Command(
                    name="accept-gap",
                    help="Continue a table that fell behind retention, without the records that were removed.\n\nThe "
                    "ledger records which ones the table lacks. It is a job of the broker, run by the lake job.",
                    follows="acceptance",
                    show="broker.cli.lake:accepted",
                    known="sluice lake tables ls",
                    timeout_s=LONG_S,
                ),
            ),
        ),
    ),
)
