// How a table is: rows, lag, files, versions, schemas, and how other programs read it.

import { Link } from "@tanstack/react-router";
import { useState } from "react";
import { call, type Job, sentence } from "../../api/client";
import { Card, Empty, Failure, LoadFailure, ObjectLink, State, Why } from "../../parts/card";
import { Command, word } from "../../parts/copy";
import { CopyAs } from "../../parts/copy-as";
import { bytes, count, counted, duration, exact } from "../../parts/format";
import { JobView } from "../../parts/job";
import { Permitted } from "../../parts/permitted";
import { Stats } from "../../parts/stats";
import { Table } from "../../parts/table";
import { DateTime, RelativeTime } from "../../parts/time";
import { type LakeTable, Offsets, place, type Props, type Schemas, tab, useTable } from "./shared";

type History = Schemas["TableHistory"];
type Member = Schemas["MemberTable"];

export function Health({ name, object }: Props) {
  const { report } = object;
  const { data, error } = useTable<History>(name, "history", { limit: 50 }, report?.table_version);
  return (
    <>
      <Stats
        label="Health"
        stats={[
          {
            label: "Rows",
            value: count(object.rows),
            under: report?.rows_per_s ? (
              `${count(report.rows_per_s)} /s in the last batch`
            ) : (
              <Link to="." search={tab("rows")}>
                see them
              </Link>
            ),
          },
          {
            label: "Behind",
            value: count(object.lag_records),
            unit: "records",
            under: (
              <>
                {object.lag_s ? `${duration(object.lag_s)}, ` : ""}of <ObjectLink kind="streams" name={object.stream} />
              </>
            ),
          },
          {
            label: "Valid through",
            value: <RelativeTime at={object.valid_through} />,
            under: "every record until then is in the table",
          },
          {
            label: "Dead letters",
            value: count(object.dead_letters),
            under: object.dead_letters ? (
              <Link to="." search={tab("rows", { letters: true })}>
                why
              </Link>
            ) : (
              "every record fits"
            ),
          },
          ...(object.key?.length
            ? [{ label: "Key", value: object.key.join(", "), under: "one row each, of the last record" }]
            : []),
          { label: "Files", value: count(data?.files), under: bytes(data?.bytes) },
          { label: "Version", value: data?.version === null ? "none" : count(data?.version), under: object.format },
          {
            label: "Last commit",
            value: <RelativeTime at={report?.last_commit_at} />,
            under: report?.last_commit_rows ? counted(report.last_commit_rows, "row") : "",
          },
        ]}
      />
      <LoadFailure error={error} />
      {data && data.small_files > 100 && (
        <p className="note">
          {exact(data.small_files)} of {counted(data.files, "file", exact)} have less than 64 MiB. Readers open each of
          them.{" "}
          <Link to="." search={tab("maintain")}>
            Compact the table
          </Link>
        </p>
      )}
      {object.advice?.map((text) => (
        <p key={text} className="note">
          {text}{" "}
          <Link to="." search={tab("maintain")}>
            Maintain
          </Link>
        </p>
      ))}
      {object.replay && (
        <p className="note" role="status">
          A job works on the table.{" "}
          <Link to="." search={tab("replay")}>
            See how far it is
          </Link>
        </p>
      )}
      {report?.last_error && (
        <p className="note">
          Last failure, <RelativeTime at={report.last_error.at} />: {report.last_error.message}
        </p>
      )}
      {object.rule && (
        <Card title="Rule" note={<ObjectLink kind="rules" name={object.rule} />}>
          {object.rule_text?.problem ? (
            <State state="failed">{object.rule_text.problem}</State>
          ) : (
            <pre className="source">{object.rule_text?.sql}</pre>
          )}
          <p className="muted small">
            Spark runs it on the messages of <ObjectLink kind="streams" name={object.stream} />. After a change new rows
            are those of the new rule; a{" "}
            <Link to="." search={tab("replay")}>
              replay
            </Link>{" "}
            rebuilds the ones before.
          </p>
        </Card>
      )}
      {Boolean(report?.held?.length) && <Held name={name} held={report!.held!} />}
      {Boolean(object.tables) && (
        <Card
          title="Tables"
          note={
            <>
              rows go into <code>{object.tables}</code>, at most {exact(object.max_tables)} tables
            </>
          }>
          {report?.tables?.length ? (
            <Table
              label="Tables"
              rows={report.tables}
              keyOf={(one) => one.name}
              columns={[
                {
                  title: "Name",
                  show: (one) => (
                    <Link to="." search={tab("rows", { member: one.name })}>
                      {one.name}
                    </Link>
                  ),
                },
                { title: "Rows", kind: "num", show: (one) => count(one.rows), exact: (one) => exact(one.rows) },
                { title: "Files", kind: "num", show: ({ files }) => count(files) },
                { title: "Size", kind: "num", show: (one) => bytes(one.bytes) },
                {
                  title: "Last commit",
                  kind: "fit",
                  show: ({ last_commit_at }) => <RelativeTime at={last_commit_at} />,
                },
                { title: "Path", kind: "why", show: ({ path }) => <code>{path}</code> },
              ]}
            />
          ) : (
            <Empty>No row has been written yet.</Empty>
          )}
        </Card>
      )}
      <Card title="Versions" note="from the table’s own log, newest first">
        {data?.versions.length ? (
          <Table
            label="Versions"
            kind="log"
            rows={data.versions}
            keyOf={(one) => one.version}
            columns={[
              { title: "Version", kind: "num", show: ({ version }) => version },
              { title: "Time", kind: "fit", show: ({ at }) => <DateTime at={at} /> },
              {
                title: "What was done",
                show: ({ operation, replay }) => (
                  <>
                    {operation}
                    {replay && <Why>{replay.slice(0, 8)}</Why>}
                  </>
                ),
              },
              {
                title: "Offsets",
                show: ({ ranges }) => ranges.map((one) => <Offsets key={one.shard} stream={object.stream} {...one} />),
              },
              { title: "Rows", kind: "num", show: ({ rows, ranges }) => (ranges.length ? count(rows) : "") },
              {
                title: "Filtered",
                kind: "num",
                show: ({ filtered, ranges }) => (ranges.length ? count(filtered) : ""),
              },
              {
                title: "Dead",
                kind: "num",
                show: ({ dead_letters, ranges }) => (ranges.length ? count(dead_letters) : ""),
              },
            ]}
          />
        ) : (
          <Empty>{data ? "Nothing has been written yet." : "Reading the log…"}</Empty>
        )}
      </Card>
      <Card title="Schema" note={data && data.schemas.length > 1 ? `${data.schemas.length} versions` : undefined}>
        <ol className="plain">
          {data?.schemas.map((one, at) => (
            <Columns key={at} schema={one} before={data.schemas[at + 1]} />
          ))}
        </ol>
      </Card>
      <Card title="Read it elsewhere">
        <Snippets table={object} />
      </Card>
    </>
  );
}

/** Changes of columns that cannot be made in place, each with a button that has the column converted. */
function Held({ name, held }: { name: string; held: Schemas["HeldColumn"][] }) {
  const [job, setJob] = useState("");
  const [says, setSays] = useState("");
  const convert = async (column: string, type: string) => {
    setSays("");
    await call<Job>("POST", `${place(name)}:retype`, { body: { column, type }, isAsync: true }).then(
      ({ body }) => setJob(body.id),
      (error) => setSays(sentence(error)),
    );
  };
  return (
    <Card title="Changes that wait for approval" note="the schema or the rule gives these columns another type">
      <dl className="members effect">
        {held.map((one) => (
          <div key={one.name}>
            <dt>
              <code>{one.name}</code>
            </dt>
            <dd>
              <code>{one.type}</code> would be <code>{one.wanted}</code>. All rows and dead letters are converted again;
              the table is not filled meanwhile. Rows that do not fit become dead letters.
              <Permitted right="tables" does="job" to="convert columns">
                <div className="buttons">
                  <button
                    type="button"
                    aria-label={`Convert column ${one.name}`}
                    onClick={() => void convert(one.name, one.wanted)}>
                    Convert the column
                  </button>
                  <CopyAs
                    path={`${place(name)}:retype`}
                    method="POST"
                    body={{ column: one.name, type: one.wanted }}
                    cli={`sluice lake tables retype ${word(name)} ${word(one.name)} ${word(one.wanted)}`}
                  />
                </div>
              </Permitted>
            </dd>
          </div>
        ))}
      </dl>
      <Failure>{says}</Failure>
      {job && (
        <JobView id={job}>
          {() => (
            <p role="status">
              <State state="ok">The column is converted.</State>
            </p>
          )}
        </JobView>
      )}
    </Card>
  );
}

function Columns({
  schema: { version, at, columns },
  before,
}: {
  schema: Schemas["TableSchema"];
  before?: Schemas["TableSchema"];
}) {
  const known = new Set(before?.columns.map((one) => `${one.name} ${one.type}`));
  const fresh = columns.filter((one) => !known.has(`${one.name} ${one.type}`));
  return (
    <li>
      <p>
        {version === null ? "Now" : `Version ${version}`}{" "}
        <span className="muted small">
          <DateTime at={at} />
        </span>
      </p>
      <p>
        {fresh.length ? (
          fresh.map(({ name, type }) => (
            <span key={name} className="column">
              {before && "+ "}
              <code>{name}</code> <span className="muted">{type}</span>
            </span>
          ))
        ) : (
          <span className="muted">no columns beside those of provenance</span>
        )}
      </p>
    </li>
  );
}

const SNIPPETS: Record<"delta" | "iceberg", [string, (path: string) => string][]> = {
  delta: [
    ["DuckDB", (path) => `duckdb -c "select * from delta_scan('${path}') order by _offset desc limit 20"`],
    [
      "Python",
      (path) => `python -c "from deltalake import DeltaTable; print(DeltaTable('${path}').to_pyarrow_table())"`,
    ],
    ["Spark", (path) => `spark.read.format("delta").load("${path}")`],
  ],
  iceberg: [
    ["DuckDB", (path) => `duckdb -c "select * from iceberg_scan('${path}') order by _offset desc limit 20"`],
    [
      "Python",
      (path) =>
        `python -c "from pyiceberg.table import StaticTable; ` +
        `print(StaticTable.from_metadata('${path}').scan().to_arrow())"`,
    ],
    ["Spark", (path) => `spark.read.format("iceberg").load("${path}")`],
  ],
};

/** The same for a table that others find in a catalog. */
function snippetsOf(
  { name, catalog, catalog_table, catalog_settings }: LakeTable,
  member?: Member,
): [string, string][] {
  const own = catalog_table || `sluice.${name}`;
  const [identifier, { type = "rest", uri = "" }] = [
    member ? `${own.replace(/[^.]*$/, "")}${member.name}` : own,
    catalog_settings ?? {},
  ];
  return [
    [
      "Python",
      `python -c "from pyiceberg.catalog import load_catalog; print(load_catalog('${catalog}', type='${type}', ` +
        `uri='${uri}').load_table('${identifier}').scan().to_arrow())"`,
    ],
    ["Spark, Trino and others", `select * from ${catalog}.${identifier}`],
  ];
}

function Snippets({ table }: { table: LakeTable }) {
  const member = table.report?.tables?.[0];
  const snippets = table.catalog
    ? snippetsOf(table, member)
    : SNIPPETS[table.format ?? "delta"].map(([title, text]) => [title, text(member?.path ?? table.path ?? "")]);
  return (
    <div className="fields">
      {snippets.map(([title, text]) => (
        <div key={title}>
          <h3>{title}</h3>
          <Command text={text ?? ""} />
        </div>
      ))}
    </div>
  );
}
