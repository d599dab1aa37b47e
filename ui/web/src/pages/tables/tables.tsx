// Tables: how they are doing and what their own log says, their rows and the messages these come from, replay and
// audit.

import { keepPreviousData, useQuery } from "@tanstack/react-query";
import { Link, useNavigate, useSearch } from "@tanstack/react-router";
import { type ReactNode, useState } from "react";
import { call, getAny, type Job, sentence } from "../../api/client";
import { useObject } from "../../api/live";
import type { components } from "../../api/openapi";
import { inAddress, recordsFrom } from "../../parts/address";
import { Card, Empty, Failure, LoadFailure, ObjectLink, State, Why } from "../../parts/card";
import { Command, CopyAs, download, word } from "../../parts/copy";
import { bytes, cell, count, counted, duration, exact } from "../../parts/format";
import { JobView } from "../../parts/job";
import type { KindPage, ObjectProps } from "../../parts/kind-page";
import { Choice, useNames } from "../../parts/select";
import { type Members, SpecForm } from "../../parts/spec-form";
import { Stats } from "../../parts/stats";
import { Table, useSelection } from "../../parts/table";
import { DateTime, RelativeTime } from "../../parts/time";
import { ShadowCard } from "./shadow";

type Schemas = components["schemas"];
type LakeTable = Schemas["TableObject"] & { stream: string };
type History = Schemas["TableHistory"];
type Preview = Schemas["TablePreview"];
type Audit = Schemas["TableAudit"];
type Shard = Schemas["AuditedShard"];
type Plan = Schemas["ReplayReport"];
type Member = Schemas["MemberTable"];
type Props = ObjectProps<LakeTable>;

export const page: KindPage<LakeTable> = {
  columns: [
    { title: "Stream", show: ({ stream }) => <ObjectLink kind="streams" name={stream} /> },
    { title: "Format", show: ({ format }) => format },
    { title: "Rows", kind: "num", show: ({ rows }) => count(rows), exact: ({ rows }) => exact(rows) },
    {
      title: "Behind",
      kind: "num",
      show: ({ lag_records }) => count(lag_records),
      exact: ({ lag_records }) => exact(lag_records),
    },
    {
      title: "Dead letters",
      kind: "num",
      show: ({ name, dead_letters }) =>
        dead_letters ? (
          <Link to="/$kind/$name" params={{ kind: "tables", name }} search={{ tab: "rows", letters: true } as never}>
            {count(dead_letters)}
          </Link>
        ) : (
          count(dead_letters)
        ),
    },
    { title: "Last commit", kind: "fit", show: ({ report }) => <RelativeTime at={report?.last_commit_at} /> },
  ],
  tabs: [
    { title: "Health", show: Health },
    { title: "Rows", show: Rows },
    { title: "Replay", show: Replay },
    { title: "Audit", show: AuditTab },
    { title: "Maintain", show: Maintain },
    {
      title: "Settings",
      show: ({ name, object, etag }) => (
        <SpecForm kind="tables" schema="TableSpec" name={name} object={object} etag={etag} />
      ),
    },
  ],
  create: () => <NewTable />,
};

const place = (name: string) => `lake/tables/${encodeURIComponent(name)}`;

/** What the table's files say; blocking reads of the server, so not asked often. */
function useTable<T>(
  name: string,
  what: string,
  query: Record<string, string | number | boolean | undefined>,
  version: unknown,
) {
  return useQuery({
    queryKey: [what, name, query, version],
    queryFn: ({ signal }) => getAny<T>(`${place(name)}/${what}`, { query, signal }),
    placeholderData: keepPreviousData,
    retry: 3,
  });
}

function Health({ name, object }: Props) {
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

const tab = (title: string, more: object = {}) => (({ tz }: { tz?: string }) => ({ tz, tab: title, ...more })) as never;

function Offsets({ stream, shard, start, end }: Schemas["ShardOffsetRange"] & { stream: string }) {
  return (
    <div>
      <Link to="/$kind/$name" params={{ kind: "streams", name: stream }} search={recordsFrom(shard, start)}>
        {end - start > 1 ? `${start} to ${end - 1}` : start}
      </Link>
      {shard > 0 && ` of shard ${shard}`}
    </div>
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

interface RowsPlace {
  letters?: boolean;
  limit?: number;
  find?: string | number;
  member?: string;
}

const LIMITS = [20, 100, 1000];

function Rows({ name, object }: Props) {
  const navigate = useNavigate();
  const { letters, limit = 20, find: found, member } = useSearch({ strict: false }) as RowsPlace;
  const find = String(found ?? "").toLowerCase();
  const query = { limit, dead_letters: letters || undefined, member: letters ? undefined : member };
  const { data, error } = useTable<Preview>(
    name,
    "preview",
    query,
    `${object.report?.table_version} ${object.dead_letters}`,
  );
  const set = (changed: RowsPlace) =>
    void navigate({ to: ".", search: ((known: object) => ({ ...known, ...changed })) as never, replace: true });
  const shown =
    data?.rows.filter((row) => !find || Object.values(row).some((value) => cell(value).toLowerCase().includes(find))) ??
    [];
  // What a row says comes first, where it comes from after it; what is the same in all rows is in the heading.
  const ours = (column: string) => column.startsWith("_") && !column.startsWith("_error");
  const [chosen, select] = useSelection(shown, recordOf);
  const columns = [...(data?.columns ?? [])]
    .filter((one) => one !== "_stream" && one !== "_offset")
    .sort((a, b) => Number(ours(a)) - Number(ours(b)));
  const kept = letters
    ? { query: "&dead_letters=true", option: " --dead-letters" }
    : member
      ? { query: `&member=${member}`, option: ` --member ${member}` }
      : { query: "", option: "" };
  return (
    <Card
      title={letters ? "Dead letters" : "Rows"}
      note={
        data &&
        `the newest ${exact(data.rows.length)} of ` +
          `${member && !letters ? member : count(letters ? object.dead_letters : object.rows)}, ` +
          `from stream ${object.stream}`
      }>
      <div className="inline filters" role="search" aria-label="Filter">
        <div className="choice" role="group" aria-label="Show">
          <button type="button" aria-pressed={!letters} onClick={() => set({ letters: undefined })}>
            Rows
          </button>
          <button type="button" aria-pressed={Boolean(letters)} onClick={() => set({ letters: true })}>
            Dead letters
          </button>
        </div>
        <label>
          Find in these
          <input
            type="search"
            spellCheck={false}
            value={String(found ?? "")}
            onChange={(event) => set({ find: event.target.value || undefined })}
          />
        </label>
        {Boolean(object.report?.tables?.length) && !letters && (
          <label>
            Of table
            <select value={member ?? ""} onChange={(event) => set({ member: event.target.value || undefined })}>
              <option value="">the last written</option>
              {object.report!.tables!.map((one) => (
                <option key={one.name}>{one.name}</option>
              ))}
            </select>
          </label>
        )}
        <label>
          Newest
          <select value={limit} onChange={(event) => set({ limit: Number(event.target.value) })}>
            {LIMITS.map((one) => (
              <option key={one}>{one}</option>
            ))}
          </select>
        </label>
        <CopyAs
          path={`${place(name)}/preview?limit=${limit}${kept.query}`}
          cli={`sluice lake tables preview ${name} --limit ${limit}${kept.option}`}
        />
      </div>
      <LoadFailure error={error} />
      {data && !data.rows.length && (
        <Empty>
          {letters
            ? "No record was dead-lettered: all of them fit the columns."
            : object.state === "running"
              ? "The stream has given no row yet."
              : "No row has been written yet; Spark takes some seconds to start."}
        </Empty>
      )}
      {data && data.rows.length > 0 && !shown.length && (
        <Empty>
          None of these rows contains “{String(found)}”.{" "}
          <button type="button" className="quiet" onClick={() => set({ find: undefined })}>
            Show all
          </button>
        </Empty>
      )}
      {letters && shown.length > 0 && (
        <div className="buttons">
          {chosen.length > 0 && (
            <Link className="button primary" to="." search={tab("replay", { records: chosen.map(recordOf) })}>
              Replay {chosen.length} selected…
            </Link>
          )}
          <button
            type="button"
            onClick={() =>
              download(
                `${name}-dead-letters`,
                "ndjson",
                new Blob(
                  (chosen.length ? chosen : shown).map((one) => `${JSON.stringify(one)}\n`),
                  { type: "application/x-ndjson" },
                ),
              )
            }>
            Export {chosen.length ? `${chosen.length} selected` : `the ${shown.length} shown`}
          </button>
        </div>
      )}
      {shown.length > 0 && (
        <Table
          label={letters ? "Dead letters of the table" : "Rows of the table"}
          kind="rows tall"
          rows={shown}
          keyOf={(row, at) => `${recordOf(row)} ${at}`}
          columns={[
            ...(letters ? [select] : []),
            { title: "Message", kind: "fit", show: (row) => <ToMessage stream={object.stream} row={row} /> },
            ...columns.map((title) => ({
              title,
              kind: title === "_error" ? ("why" as const) : ours(title) ? ("ours" as const) : undefined,
              show: (row: Members) => cell(row[title]),
              exact: (row: Members) => cell(row[title]),
            })),
          ]}
        />
      )}
    </Card>
  );
}

const recordOf = ({ _shard, _offset }: Members) => `${Number(_shard ?? 0)}/${String(_offset ?? "")}`;

/** The record that a row comes from. */
function ToMessage({ stream, row }: { stream: string; row: Members }) {
  const [shard, offset] = [Number(row._shard ?? 0), String(row._offset ?? "")];
  return (
    <Link
      to="/$kind/$name"
      params={{ kind: "streams", name: stream }}
      search={recordsFrom(shard, offset, offset)}
      aria-label={`Message ${offset} of shard ${shard}`}>
      {offset}
    </Link>
  );
}

interface Range {
  from?: string | number;
  to?: string | number;
  records?: string[];
  rule?: string;
  into?: "shadow" | undefined;
  rate?: string | number;
}

function Replay({ name, object }: Props) {
  const search = useSearch({ strict: false }) as Range & { job?: string };
  const navigate = useNavigate();
  const [plan, setPlan] = useState<{ for: string; plan: Plan } | null>(null);
  const [says, setSays] = useState("");
  const [isBusy, setBusy] = useState(false);
  const set = (changed: Range & { job?: string }) =>
    void navigate({ to: ".", search: ((known: object) => ({ ...known, ...changed })) as never, replace: true });
  const rules = useNames("rules");
  const isPart = search.from !== undefined || search.to !== undefined;
  const texts = [
    ["from", search.from],
    ["to", search.to],
    ["rule", search.rule],
    ["into", search.into],
  ].flatMap(([key, value]) => (value === undefined || value === "" ? [] : [[key!, String(value)]]));
  const records = Array.isArray(search.records) ? search.records.map(String) : undefined;
  const rate = search.rate === undefined || search.rate === "" ? undefined : Number(search.rate);
  const body = { ...Object.fromEntries(texts), ...(records && { records }), ...(rate !== undefined && { rate }) };
  const text = JSON.stringify(body);
  const ask = async (question: () => Promise<void>) => {
    setSays("");
    setBusy(true);
    await question().catch((error) => setSays(sentence(error)));
    setBusy(false);
  };
  const look = () =>
    ask(async () =>
      setPlan({
        for: text,
        plan: (await call<Plan>("POST", `${place(name)}:replay`, { body, query: { dry_run: true } })).body,
      }),
    );
  const start = () =>
    ask(async () => {
      const started = await call<Job>("POST", `${place(name)}:replay`, { body, isAsync: true });
      setPlan(null);
      set({ job: started.body.id });
    });
  const job = object.replay?.id ?? search.job;
  const planned = plan?.for === text ? plan.plan : null;
  const options = [
    ...texts,
    ...(rate === undefined ? [] : [["rate", rate]]),
    ...(records ?? []).map((one) => ["record", one]),
  ]
    .map(([key, value]) => ` --${key} ${word(String(value))}`)
    .join("");
  return (
    <>
      <Card title="Replay" note="reads records of the stream again and replaces their rows">
        <Meaning object={object} />
        <form
          onSubmit={(event) => {
            event.preventDefault();
            void look();
          }}
          aria-label="What to replay">
          <div className="choice" role="group" aria-label="Range">
            <button type="button" aria-pressed={!isPart && !records} onClick={() => set({ ...NO_RANGE })}>
              The whole table
            </button>
            <button
              type="button"
              aria-pressed={isPart}
              onClick={() => set({ from: search.from ?? "", to: search.to ?? "", records: undefined })}>
              A part
            </button>
            {records && (
              <button type="button" aria-pressed="true">
                {counted(records.length, "selected record")}
              </button>
            )}
          </div>
          {isPart && (
            <div className="try">
              <label>
                From, an offset or a time
                <input
                  spellCheck={false}
                  value={search.from ?? ""}
                  placeholder="the first record that the stream still has"
                  onChange={(event) => set({ from: inAddress(event.target.value) })}
                />
              </label>
              <label>
                To, not included
                <input
                  spellCheck={false}
                  value={search.to ?? ""}
                  placeholder="the end of the table"
                  onChange={(event) => set({ to: inAddress(event.target.value) })}
                />
              </label>
            </div>
          )}
          {object.rule && (
            <Choice
              label="Rule"
              value={search.rule ?? ""}
              none={`${object.rule}, the table’s own`}
              onChange={(rule) => set({ rule: rule || undefined })}
              options={rules.filter((one) => one !== object.rule).map((one) => [one, one])}
            />
          )}
          {!object.key?.length && (
            <Choice
              label="Into"
              value={search.into ?? ""}
              none="The table, whose rows are replaced"
              onChange={(into) => set({ into: into === "shadow" ? into : undefined })}
              options={[["shadow", "A shadow beside it, to be compared and swapped"]]}
            />
          )}
          <div className="try">
            <label>
              Records per second, at most
              <input
                inputMode="numeric"
                value={search.rate ?? ""}
                placeholder="as fast as it goes"
                onChange={(event) => set({ rate: inAddress(event.target.value) })}
              />
            </label>
          </div>
          <div className="buttons">
            <button type="submit" className={planned ? "" : "primary"} disabled={isBusy}>
              Show the plan
            </button>
            {planned && (planned.records > 0 || planned.recreates) && (
              <button
                type="button"
                className="primary"
                disabled={isBusy || Boolean(object.replay)}
                onClick={() => void start()}>
                Replay {exact(planned.records)} {planned.records === 1 ? "record" : "records"}
              </button>
            )}
            <CopyAs path={`${place(name)}:replay`} method="POST" body={body} cli={`sluice replay ${name}${options}`} />
          </div>
        </form>
        <Failure>{says}</Failure>
        {planned && <Planned plan={planned} stream={object.stream} />}
      </Card>
      {job && (
        <Card title="Progress" note={<code>sluice jobs watch {job}</code>}>
          <JobView id={job}>
            {({ kind, result }) =>
              kind === "replay" &&
              result &&
              "rows_after" in result && <Outcome plan={result as unknown as Plan} name={name} />
            }
          </JobView>
        </Card>
      )}
      <ShadowCard key={name} name={name} isBusy={Boolean(object.replay)} replay={job} />
    </>
  );
}

const MOST_RANGES = 20;
const NO_RANGE = { from: undefined, to: undefined, records: undefined };

/** What a replay does to this table, and what it cannot do. */
function Meaning({ object }: { object: LakeTable }) {
  const { data } = useObject<Schemas["StreamObject"]>("streams", object.stream);
  if (object.tables)
    return (
      <p className="muted">
        A table with <code>tables</code> is not replayed.{" "}
        <Link to="/new/$kind" params={{ kind: "tables" }}>
          Create a new one
        </Link>{" "}
        of the stream, with a start.
      </p>
    );
  if (object.key?.length)
    return (
      <p className="muted">
        A table with a key is replayed to its end: rows after the start are replaced, and a later record replaces or
        deletes what an earlier one gives. The table is not filled meanwhile.
      </p>
    );
  const always = "The same range twice leaves the same table. New rows go on arriving meanwhile.";
  if (object.rule)
    return (
      <p className="muted">
        Rule <ObjectLink kind="rules" name={object.rule} /> runs again as it is now, so a corrected rule rebuilds its
        rows. {always}
      </p>
    );
  if (data?.object?.kind !== "rows")
    return <p className="muted">The messages of the stream are converted again; no rule runs. {always}</p>;
  return (
    <div className="fields">
      <p className="muted">The rows of the stream are converted again. {always}</p>
      <p className="note">
        This table follows the <strong>rows</strong> that rules wrote to stream{" "}
        <ObjectLink kind="streams" name={object.stream} />, not the messages: a replay does not run a rule, so it cannot
        apply a corrected one to older messages. For that,{" "}
        <Link to="/new/$kind" params={{ kind: "tables" }}>
          create a table
        </Link>{" "}
        of a stream that captures the messages and choose the rule there; its replay runs the rule again.
      </p>
    </div>
  );
}

function Planned({ plan, stream }: { plan: Plan; stream: string }) {
  if (!plan.records && !plan.recreates)
    return (
      <p className="note" role="status">
        There is nothing to replay: the table has no record of this range that the stream still holds.
      </p>
    );
  return (
    <dl className="members effect" role="status" aria-label="Plan">
      <div>
        <dt>Reads</dt>
        <dd>
          {counted(plan.records, "record", exact)}:{" "}
          {plan.ranges.slice(0, MOST_RANGES).map((one) => (
            <Offsets key={`${one.shard} ${one.start}`} stream={stream} {...one} />
          ))}
          {plan.ranges.length > MOST_RANGES && <div>and {plan.ranges.length - MOST_RANGES} more ranges</div>}
        </dd>
      </div>
      {plan.recreates && (
        <div>
          <dt>Makes again</dt>
          <dd>
            what is gone of the table; what is there stays.{" "}
            {plan.missing.length > 0 && (
              <>
                The stream no longer has{" "}
                {plan.missing.map((one) => `[${one.start}, ${one.end}) of shard ${one.shard}`).join(", ")}.
              </>
            )}
          </dd>
        </div>
      )}
      <div>
        <dt>Published</dt>
        <dd>
          {plan.published_from ? (
            <>
              <DateTime at={plan.published_from} /> to <DateTime at={plan.published_to} />
            </>
          ) : (
            "the table has no row of them now"
          )}
        </dd>
      </div>
      <div>
        <dt>Replaces</dt>
        <dd>
          {counted(plan.rows_before, "row", exact)} and {counted(plan.dead_letters_before, "dead letter", exact)} of
          table {plan.table}, each in one commit
        </dd>
      </div>
      <div>
        <dt>Runs</dt>
        <dd>
          {plan.rule ? (
            <>
              rule <ObjectLink kind="rules" name={plan.rule} />
            </>
          ) : (
            "no rule"
          )}
        </dd>
      </div>
    </dl>
  );
}

function Outcome({ plan, name }: { plan: Plan; name: string }) {
  return (
    <p role="status">
      <State state="ok">{counted(plan.records, "record", exact)} read</State>: {counted(plan.rows_after, "row", exact)}{" "}
      and {counted(plan.dead_letters_after, "dead letter", exact)} in place of {exact(plan.rows_before)} and{" "}
      {exact(plan.dead_letters_before)}
      {plan.rule && `, ${exact(plan.filtered_after)} filtered`}. Version {exact(plan.version)} of{" "}
      <ObjectLink kind="tables" name={name} />.{" "}
      <Link to="." search={tab("rows")}>
        See the rows
      </Link>{" "}
      or{" "}
      <Link to="." search={tab("audit")}>
        audit the table
      </Link>
      .
    </p>
  );
}

type Upkeep = {
  dry_run: boolean;
  files: number;
  bytes: number;
  files_after?: number;
  snapshots?: number;
  rows?: number;
};

/** Compaction, expiry and removal of old rows, each with what it would do before it is started. */
function Maintain({ name, object }: Props) {
  const [age, setAge] = useState("7d");
  const [rowAge, setRowAge] = useState("400d");
  return (
    <>
      <Card title="Compact" note="joins small files of the same partition; rows stay as they are">
        <p className="muted">
          {object.partition_by?.length ? (
            <>
              Partitions: <code>{object.partition_by.join(", ")}</code>.{" "}
            </>
          ) : (
            ""
          )}
          The lake job does it by itself once 100 files can be joined.
        </p>
        <Upkeeping
          name={name}
          verb="compact"
          body={{}}
          cli=""
          says={({ files, bytes: size, files_after }) =>
            files
              ? `${counted(files, "file", exact)}, ${bytes(size)}, become ${exact(files_after)}`
              : "No file can be joined with another."
          }
        />
      </Card>
      <Card title="Remove old versions" note="and the files that only they have">
        <p className="muted">
          Readers that began with such a version may fail. The newest version stays, and so do tags and branches.
        </p>
        <div className="try">
          <label>
            Older than
            <input spellCheck={false} value={age} onChange={(event) => setAge(event.target.value)} />
          </label>
        </div>
        <Upkeeping
          key={age}
          name={name}
          verb="expire"
          body={{ older_than: age }}
          cli={` --older-than ${word(age)}`}
          says={({ files, bytes: size, snapshots }) =>
            files || snapshots
              ? (snapshots ? `${counted(snapshots, "snapshot")} and ` : "") +
                `${counted(files, "file")}, ${bytes(size)}, go`
              : "No version is older."
          }
        />
      </Card>
      {!object.key?.length && (
        <Card title="Remove old rows" note="and dead letters, by the time of publishing">
          <p className="muted">
            The lake job does it about once an hour in a table with <code>retention</code>. The audit counts these rows
            as removed.
          </p>
          <div className="try">
            <label>
              Published longer ago than
              <input spellCheck={false} value={rowAge} onChange={(event) => setRowAge(event.target.value)} />
            </label>
          </div>
          <Upkeeping
            key={`rows ${rowAge}`}
            name={name}
            verb="retain"
            body={{ older_than: rowAge }}
            cli={` --older-than ${word(rowAge)}`}
            says={({ rows }) => (rows ? `${counted(rows, "row", exact)} and dead letters go` : "No row is older.")}
          />
        </Card>
      )}
    </>
  );
}

function Upkeeping({
  name,
  verb,
  body,
  cli,
  says,
}: {
  name: string;
  verb: string;
  body: object;
  cli: string;
  says: (report: Upkeep) => string;
}) {
  const [plan, setPlan] = useState<Upkeep | null>(null);
  const [job, setJob] = useState("");
  const [problem, setProblem] = useState("");
  const path = `${place(name)}:${verb}`;
  const ask = (question: Promise<void>) => {
    setProblem("");
    void question.catch((error) => setProblem(sentence(error)));
  };
  const look = () =>
    ask(call<Upkeep>("POST", path, { body, query: { dry_run: true } }).then(({ body }) => setPlan(body)));
  const start = () =>
    ask(
      call<Job>("POST", path, { body, isAsync: true }).then(({ body }) => {
        setPlan(null);
        setJob(body.id);
      }),
    );
  return (
    <>
      <div className="buttons">
        <button type="button" className={plan ? "" : "primary"} onClick={look}>
          Preview
        </button>
        {plan && Boolean(plan.files || plan.snapshots || plan.rows) && (
          <button type="button" className="primary" onClick={start}>
            {verb === "compact" ? "Join them" : "Remove them"}
          </button>
        )}
        <CopyAs path={path} method="POST" body={body} cli={`sluice lake tables ${verb} ${word(name)}${cli}`} />
      </div>
      <Failure>{problem}</Failure>
      {plan && <p role="status">{says(plan)}</p>}
      {job && (
        <JobView id={job}>
          {(done) => (
            <p role="status">
              <State state="ok">{says(done.result as unknown as Upkeep)}</State>
            </p>
          )}
        </JobView>
      )}
    </>
  );
}

function AuditTab({ name, object }: Props) {
  const [says, setSays] = useState("");
  const [started, setStarted] = useState("");
  const [depth, setDepth] = useState(object.audit_depth ?? "offsets");
  const path = `${place(name)}:audit?depth=${depth}`;
  const run = async () => {
    setSays("");
    await call<Job>("POST", `${place(name)}:audit`, { query: { depth }, isAsync: true }).then(
      ({ body }) => setStarted(body.id),
      (error) => setSays(sentence(error)),
    );
  };
  const { last_audit: last, audit_interval: interval, replay } = object;
  const job = (replay?.audit && replay.id) || started;
  return (
    <Card title="Audit" note="every record of the stream is a row, was filtered, or is a dead letter, once">
      {!object.key?.length && (
        <div className="choice" role="group" aria-label="What is compared">
          {DEPTHS.filter(([one]) => one !== "deep" || !object.tables).map(([one, title]) => (
            <button key={one} type="button" aria-pressed={depth === one} onClick={() => setDepth(one)}>
              {title}
            </button>
          ))}
        </div>
      )}
      <div className="buttons">
        <button type="button" className="primary" disabled={Boolean(replay)} onClick={() => void run()}>
          {replay?.audit ? "Reading the table…" : started ? "Audit again" : "Audit"}
        </button>
        <CopyAs path={path} body={{}} cli={`sluice audit ${name}${depth === "offsets" ? "" : ` --${depth}`}`} />
      </div>
      <Failure>{says}</Failure>
      {last && !job && (
        <>
          <p>
            Last audit, <RelativeTime at={last.at} />:{" "}
            <State state={last.ok ? "ok" : "failed"}>
              {last.ok ? "every record was accounted for, once" : counted(last.problem_count, "problem")}
            </State>
          </p>
          {last.problems.length > 0 && (
            <ul className="findings">
              {last.problems.map((one) => (
                <li key={one}>
                  <State state="failed">{one}</State>
                </li>
              ))}
            </ul>
          )}
        </>
      )}
      {interval ? (
        <p className="muted small">
          The lake job audits the table every {duration(Number(interval))}, with an alarm while the last audit found a
          problem.
        </p>
      ) : (
        <p className="muted small">
          With <code>audit_interval</code> in the settings, the lake job audits the table by itself.
        </p>
      )}
      {job && (
        <JobView key={job} id={job}>
          {({ kind, result }) =>
            kind === "audit" && result && <AuditReport report={result as unknown as Audit} object={object} />
          }
        </JobView>
      )}
    </Card>
  );
}

function AuditReport({ report, object }: { report: Audit; object: LakeTable }) {
  return (
    <div className="stack audit">
      <p role="status">
        <State state={report.ok ? "ok" : "failed"}>
          {report.ok
            ? "Every record is accounted for, once." +
              (report.shards.some((one) => one.rows > 0) ? "" : " The table has no rows yet.")
            : counted(report.problems.length, "problem")}
        </State>{" "}
        <span className="muted">version {report.version}</span>
      </p>
      {report.problems.length > 0 && (
        <ul className="findings">
          {report.problems.map((one) => (
            <li key={one}>
              <State state="failed">{one}</State>
            </li>
          ))}
        </ul>
      )}
      {report.shards.map((one) => (
        <ShardPicture
          key={one.shard}
          stream={object.stream}
          shard={one}
          hasRule={Boolean(object.rule)}
          hasKey={report.key.length > 0}
        />
      ))}
      {report.key.length > 0 && (
        <p className="muted small">
          Rows that later records of their key ({report.key.join(", ")}) replaced are gone: they are counted by the
          batches. No key has two rows.
        </p>
      )}
      <p className="legend">
        {LEGEND.map(([kind, word]) => (
          <span key={kind}>
            <svg viewBox="0 0 16 12" aria-hidden="true">
              <rect className={`audit-${kind}`} width="16" height="12" />
            </svg>
            {word}
          </span>
        ))}
      </p>
    </div>
  );
}

const DEPTHS = [
  ["offsets", "Offsets"],
  ["values", "Offsets and values"],
  ["deep", "All, with the stream"],
] as const;

const LEGEND = [
  ["ok", "accounted for"],
  ["missing", "missing"],
  ["doubled", "more than once"],
  ["expired", "removed before the table had them"],
  ["lag", "waiting in the stream"],
];

const WIDTH = 1000;
const THINNEST = 4;

/** The offsets of a shard as a strip: green, with the places where they are wrong, and what is to come. */
function ShardPicture({
  stream,
  shard: one,
  hasRule,
  hasKey,
}: {
  stream: string;
  shard: Shard;
  hasRule: boolean;
  hasKey: boolean;
}) {
  const end = one.next + one.expired + one.lag;
  const span = Math.max(1, end - one.first);
  const x = (offset: number) => ((offset - one.first) / span) * WIDTH;
  const rect = (kind: string, start: number, stop: number) =>
    stop > start && (
      <rect
        key={`${kind} ${start}`}
        className={`audit-${kind}`}
        x={Math.min(x(start), WIDTH - THINNEST)}
        width={Math.max(THINNEST, x(stop) - x(start))}
        height="28">
        <title>{`${start} to ${stop - 1}`}</title>
      </rect>
    );
  const records = one.next - one.first;
  const bad: [string, Schemas["OffsetRange"][]][] = [
    ["missing", one.missing_at],
    ["doubled", one.doubled_at],
  ];
  const says =
    `Shard ${one.shard}: ${counted(records, "record", exact)}, ${exact(one.missing)} missing, ` +
    `${exact(one.doubled)} more than once`;
  return (
    <figure className="strip-of-shard">
      <figcaption>
        <strong>Shard {one.shard}</strong>{" "}
        {records ? (
          <>
            offsets {one.first} to {one.next - 1}: {counted(records, "record", exact)} are{" "}
            {counted(one.rows, "row", exact)}, {hasKey && <>{exact(one.superseded)} superseded or deleted, </>}
            {exact(one.filtered)} filtered{one.removed > 0 && <>, {exact(one.removed)} removed by their age</>} and{" "}
            {counted(one.dead_letters, "dead letter", exact)}
          </>
        ) : (
          "nothing was written yet"
        )}
        {one.lag > 0 && <>; {exact(one.lag)} more wait in the stream</>}
        {typeof one.compared === "number" && <>; the values of {counted(one.compared, "row", exact)} were compared</>}
      </figcaption>
      <svg viewBox={`0 0 ${WIDTH} 28`} preserveAspectRatio="none" role="img" aria-label={says}>
        {rect("lag", one.next + one.expired, end)}
        {rect("expired", one.next, one.next + one.expired)}
        {rect("ok", one.first, one.next)}
        {bad.map(([kind, ranges]) => ranges.map(({ start, end }) => rect(kind, start, end)))}
      </svg>
      {hasRule && one.missing > 0 && (
        <p className="muted small">
          Of these some may be filtered: a rule table keeps how many records its rule filtered, not which.
        </p>
      )}
      {bad.map(
        ([kind, ranges]) =>
          ranges.length > 0 && (
            <p key={kind}>
              {kind === "missing" ? "Missing" : "More than once"}:{" "}
              {ranges.map((range) => (
                <span key={range.start} className="column">
                  <Offsets stream={stream} shard={one.shard} {...range} />
                </span>
              ))}
            </p>
          ),
      )}
    </figure>
  );
}

function NewTable() {
  const search = useSearch({ strict: false }) as { stream?: string; rule?: string };
  const { data } = useQuery({
    queryKey: ["all", "streams"],
    queryFn: () => getAny<{ items: Schemas["StreamObject"][] }>("streams", { query: { limit: 1000 } }),
  });
  const [streams, rules] = [data?.items ?? [], useNames("rules")];
  const initial = {
    name: search.rule ?? search.stream ?? "",
    stream: search.stream ?? "",
    format: "delta",
    ...(search.rule && { rule: search.rule }),
  };
  if (data && !streams.length)
    return (
      <Card title="The table">
        <Empty command={`printf '%s' '{"name": "readings", "topics": ["meters/#"]}' | sluice streams apply -f -`}>
          A table follows a stream, and there is none yet.{" "}
          <Link to="/new/$kind" params={{ kind: "streams" }}>
            Create a stream
          </Link>
        </Empty>
      </Card>
    );
  const fields = (
    value: Members,
    change: (changed: Members) => void,
    problemAt: (pointer: string) => string | undefined,
  ): ReactNode => {
    const chosen = streams.find(({ name }) => name === value.stream);
    return (
      <div className="fields">
        <Choice
          label="Stream"
          value={String(value.stream ?? "")}
          problem={problemAt("/stream")}
          onChange={(stream) => change({ stream, ...(!value.name && { name: stream }) })}
          options={streams.map(({ name, topics }) => [
            name,
            `${name}: ${topics?.length ? `messages on ${topics.join(", ")}` : "rows that rules write"}`,
          ])}
          help={
            chosen &&
            `${counted(chosen.records, "record")}, ${bytes(chosen.bytes)}. The table begins with the oldest of them.`
          }
        />
        {chosen?.kind === "topics" && (
          <Choice
            label="Rule"
            value={String(value.rule ?? "")}
            problem={problemAt("/rule")}
            none="none: the messages themselves"
            onChange={(rule) => change({ rule: rule || undefined })}
            options={rules.map((one) => [one, one])}
            help="Spark runs the rule on each message, and its rows are the table’s. A corrected rule can rebuild them."
          />
        )}
      </div>
    );
  };
  return <SpecForm kind="tables" schema="TableSpec" object={initial} skip={["stream", "rule"]} fields={fields} />;
}
