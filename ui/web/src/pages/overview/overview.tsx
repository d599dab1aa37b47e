// What the node does: figures, ledger, charts of five minutes to seven days, and every part of the path with its state.

import { useQuery } from "@tanstack/react-query";
import { Link, useNavigate, useSearch } from "@tanstack/react-router";
import { Fragment, type ReactNode } from "react";
import { type Action, getRows, type Status } from "../../api/client";
import { useActions, useAlarms, useHistory, useStatus } from "../../api/live";
import { Card, Empty, ObjectLink, State, Why } from "../../parts/card";
import { dash } from "../../parts/chart";
import { Command, CopyButton, curl, publishCommand } from "../../parts/copy";
import { ExplainButton, refusedOriginal } from "../../parts/explaining";
import { ago, byReason, bytes, cell, count, counted, diskOutlook, duration, exact, UNKNOWN } from "../../parts/format";
import { type ChartOf, Charts, perSecond, wordsOf } from "../../parts/history-charts";
import type { OverviewSearch } from "../../parts/ranges";
import { type Stat, Stats } from "../../parts/stats";
import { Table } from "../../parts/table";
import { keepTimeZone } from "../../parts/time";
import { useTroubles } from "../../parts/troubles";
import { Value } from "../../parts/value";

const ROWS_SHOWN = 20;

/** Charts that are always shown; the others are behind a tab. */
const FIRST_CHARTS = ["messages", "p99", "waiting", "clients"];
const TABS = { "": "Pipeline", charts: "More charts", node: "This node" };

export function Overview() {
  const { data: status } = useStatus();
  const { tab = "" } = useSearch({ strict: false }) as OverviewSearch;
  if (!status) return null;
  const nowMs = Date.parse(status.started_at) + status.uptime_s * 1000; // the server's clock
  const isFirst = ({ id }: ChartOf) => FIRST_CHARTS.includes(id);
  const charts = [...CHARTS.filter(isFirst), ...(tab === "charts" ? CHARTS.filter((chart) => !isFirst(chart)) : [])];
  return (
    <div className="page" id="status">
      <h1 className="hidden">Overview</h1>
      <Health status={status} nowMs={nowMs} />
      <Figures status={status} />
      <Ledger status={status} />
      <Charts key={charts.length} charts={charts} />
      <nav className="tabs" aria-label="Parts of the overview">
        {Object.entries(TABS).map(([key, title]) => (
          <Link
            key={key}
            to="."
            search={((known: object) => ({ ...known, tab: key || undefined })) as never}
            resetScroll={false}
            activeOptions={{ exact: true, includeSearch: true }}
            aria-current={key === tab ? "page" : undefined}>
            {title}
          </Link>
        ))}
      </nav>
      {tab === "node" && (
        <div className="columns">
          <div className="stack">
            <Addresses status={status} />
            <TryNext status={status} />
          </div>
          <Disk status={status} />
        </div>
      )}
      {tab === "" && (
        <div className="columns">
          <div className="stack">
            <Rules status={status} nowMs={nowMs} />
            <Bridges />
            <Tables status={status} nowMs={nowMs} />
            <Rows status={status} />
          </div>
          <div className="stack">
            <Refusals status={status} nowMs={nowMs} />
            <Streams status={status} />
          </div>
        </div>
      )}
    </div>
  );
}

/** One sentence about the node, and each trouble with a link to its list. */
function Health({ status, nowMs }: { status: Status; nowMs: number }) {
  const { data: alarms } = useAlarms();
  const troubles = useTroubles();
  const { connections, rates } = status;
  const active = Object.entries(alarms ?? {});
  return (
    <Card title="Health" id="alarms">
      <p>
        {troubles.length ? (
          <State state="failed">
            {troubles.length === 1 ? "One thing is wrong: " : `${troubles.length} things are wrong: `}
            {troubles.map(({ path, query, text }, at) => (
              <Fragment key={text}>
                {at > 0 && "; "}
                <Link
                  to={`/${path}` as never}
                  search={((known: { tz?: string }) => ({ ...keepTimeZone(known), ...query })) as never}>
                  {text}
                </Link>
              </Fragment>
            ))}
            .
          </State>
        ) : (
          <State state="ok">
            All is well: {counted(connections, "client")} connected, {perSecond(rates.received)} messages a second
            received, {perSecond(rates.delivered)} delivered.
          </State>
        )}
      </p>
      {active.length ? (
        <ul className="plain">
          {active.map(([name, { message, advice, page, activated_at: at, acknowledged_by: by }]) => (
            <li key={name}>
              <State state="alarm">
                <ObjectLink kind="alarms" name={name} />
              </State>
              <Why>
                {message} · {ago(at, nowMs)}
                {by && ` · acknowledged by ${by}`}
              </Why>
              <p className="muted small">
                {advice} <Value member="page" value={page} />
              </p>
            </li>
          ))}
        </ul>
      ) : (
        <p className="muted small">{alarms ? "No alarm is active" : UNKNOWN}</p>
      )}
    </Card>
  );
}

/** A number that leads to the list that it counts. */
function Counted({ kind, state, children }: { kind: string; state?: string; children: ReactNode }) {
  return (
    <Link
      to="/$kind"
      params={{ kind }}
      search={((known: { tz?: string }) => ({ ...keepTimeZone(known), state })) as never}>
      {children}
    </Link>
  );
}

function Figures({ status: { counters, rates, connections, sessions, subscriptions, tables } }: { status: Status }) {
  const lag = tables.reduce((most, table) => Math.max(most, table.lag_records ?? 0), 0);
  const rows = tables.reduce((sum, table) => sum + (table.rows ?? 0), 0);
  const stat = (label: string, value: number | null | undefined, unit: string, under: string, kind?: string): Stat => ({
    label,
    head: kind && <Counted kind={kind}>{label}</Counted>,
    value: count(value),
    unit,
    under,
    exact: exact(value),
  });
  return (
    <Stats
      label="Now"
      id="figures"
      stats={[
        stat(
          "Received",
          rates.received,
          "/s",
          `${count(counters.received)} in all · ${bytes(counters.bytes_received)}`,
        ),
        stat("Delivered", rates.delivered, "/s", `${count(counters.delivered)} in all · ${bytes(counters.bytes_sent)}`),
        stat("Dropped", rates.dropped, "/s", `${count(counters.dropped)} in all`),
        stat(
          "Rules",
          rates.rules_matched,
          "/s",
          `${count(counters.rules_passed)} passed · ${count(counters.rules_failed)} failed`,
          "rules",
        ),
        stat(
          "In tables",
          tables.length ? rows : null,
          "",
          tables.length ? `rows · ${counted(lag, "record")} behind` : "no table yet",
          "tables",
        ),
        stat(
          "Connections",
          connections,
          "",
          `${counted(sessions, "session")} · ${counted(subscriptions, "subscription")}`,
        ),
      ]}
    />
  );
}

function Ledger({ status: { ledger, dropped, lost_rows: lost } }: { status: Status }) {
  const named = byReason(dropped);
  const isWhole = ledger.residual === 0;
  return (
    <section className="card ledger" aria-label="Ledger">
      <h2>Ledger</h2>
      <p>
        <strong title={exact(ledger.received)}>{count(ledger.received)}</strong> received ={" "}
        <strong title={exact(ledger.accepted)}>{count(ledger.accepted)}</strong> accepted +{" "}
        <strong title={exact(ledger.dropped)}>{count(ledger.dropped)}</strong> dropped{named && ` (${named})`}
      </p>
      <p>
        <State state={isWhole ? "ok" : "failed"}>
          {isWhole ? "every message is accounted for" : `${count(ledger.residual)} not accounted for`}
        </State>
      </p>
      {ledger.lost_rows > 0 && (
        <p>
          <State state="failed">
            {counted(ledger.lost_rows, "row")} lost by actions ({byReason(lost)})
          </State>
        </p>
      )}
    </section>
  );
}

const CHARTS: ChartOf[] = [
  {
    id: "messages",
    title: "Messages",
    note: "per second",
    show: perSecond,
    parts: [
      { label: "received", names: ["messages_received", "messages_internal"] },
      { label: "delivered", names: ["messages_sent"] },
      { label: "dropped", names: ["messages_dropped", "messages_resent_already_taken"] },
    ],
  },
  {
    id: "rules",
    title: "Rules and gates",
    note: "per second",
    show: perSecond,
    parts: [
      { label: "matched by rules", names: ["rules_matched"] },
      { label: "rows to actions", names: ["actions_messages"] },
      { label: "failed in rules", names: ["rule_failed_exception"] },
      { label: "refused by gates", names: ["schema_validation_failed", "message_transformation_failed"] },
    ],
  },
  {
    id: "p99",
    title: "Latency by stage",
    note: "99th percentile",
    show: dash(duration),
    parts: [],
    spread: { name: "stage_p99_seconds", label: "stage" },
  },
  {
    id: "p50",
    title: "Latency by stage, median",
    show: dash(duration),
    parts: [],
    spread: { name: "stage_p50_seconds", label: "stage" },
  },
  {
    id: "latency",
    title: "Commits and event loop",
    show: dash(duration),
    parts: [
      { label: "commit, mean", names: ["store_commit_average_seconds"] },
      { label: "event loop, lag", names: ["event_loop_lag_seconds"] },
    ],
  },
  {
    id: "waiting",
    title: "Backlog",
    note: "messages and rows",
    show: dash(count),
    parts: [
      { label: "in sessions", names: ["queued_messages"] },
      { label: "in bridges", names: ["action_queuing"] },
      { label: "behind in tables", names: ["table_lag_records"] },
    ],
  },
  {
    id: "bytes",
    title: "Network and store",
    note: "per second",
    show: dash(bytes),
    parts: [
      { label: "received", names: ["bytes_received"] },
      { label: "sent", names: ["bytes_sent"] },
      { label: "stored", names: ["store_bytes"] },
    ],
  },
  {
    id: "clients",
    title: "Clients",
    show: dash(count),
    parts: [
      { label: "connections", names: ["connections"] },
      { label: "sessions", names: ["sessions"] },
      { label: "subscriptions", names: ["subscriptions"] },
    ],
  },
  { id: "cpu", title: "Processors in use", show: perSecond, parts: [{ label: "CPU", names: ["cpu_seconds"] }] },
  { id: "memory", title: "Memory", show: dash(bytes), parts: [{ label: "of the process", names: ["memory_bytes"] }] },
];

function Rules({ status: { rules, rule_states: states }, nowMs }: { status: Status; nowMs: number }) {
  const total = Object.values(states).reduce((sum, one) => sum + one, 0);
  return (
    <Card
      title="Rules"
      note={
        rules.length > 0 && (
          <>
            <Counted kind="rules">{counted(total, "rule")}</Counted>
            {states.failed && (
              <>
                ,{" "}
                <Counted kind="rules" state="failed">
                  {count(states.failed)} failed
                </Counted>
              </>
            )}
            {rules.length > 1 && ", failing first, then the busiest"}
          </>
        )
      }>
      {rules.length ? (
        <Table
          label="Rules"
          rows={rules}
          keyOf={({ name }) => name}
          columns={[
            {
              title: "Rule",
              show: ({ name, last_error: error }) => (
                <>
                  <ObjectLink kind="rules" name={name} />
                  {error && (
                    <Why>
                      {error.text} · {ago(new Date(error.time_ms).toISOString(), nowMs)}
                    </Why>
                  )}
                </>
              ),
              exact: ({ sql }) => sql,
            },
            { title: "State", kind: "fit", show: ({ state }) => <State state={state} /> },
            { title: "Matched/s", kind: "num", show: ({ matched_per_s: rate }) => perSecond(rate) },
            {
              title: "Matched",
              kind: "num",
              show: ({ matched }) => count(matched),
              exact: ({ matched }) => exact(matched),
            },
            { title: "Passed", kind: "num", show: ({ passed }) => count(passed), exact: ({ passed }) => exact(passed) },
            { title: "Failed", kind: "num", show: ({ failed }) => count(failed), exact: ({ failed }) => exact(failed) },
          ]}
        />
      ) : (
        <Empty
          command={curl("rules", {
            name: "warm",
            sql: 'SELECT payload.t AS t, clientid FROM "meters/#" WHERE payload.t > 20',
            actions: [{ type: "console" }],
          })}>
          No rule yet. A rule selects from topics and hands its rows to a stream, a bridge or another topic.
        </Empty>
      )}
    </Card>
  );
}

function Bridges() {
  const actions = useActions();
  if (!actions?.items.length) return null;
  const sorted = [...actions.items].sort((a, b) => waiting(b) - waiting(a));
  return (
    <Card
      title="Bridges"
      note={
        <>
          <Counted kind="actions">{counted(actions.total, "action")}</Counted>, longest backlog first
        </>
      }>
      <Table
        label="Bridges"
        rows={sorted}
        keyOf={({ name }) => name}
        columns={[
          {
            title: "Action",
            show: ({ name, type }) => (
              <>
                <ObjectLink kind="actions" name={name} />
                <Why>{type}</Why>
              </>
            ),
          },
          {
            title: "State",
            kind: "fit",
            show: ({ status, status_reason: reason }) => (
              <>
                <State state={status ?? UNKNOWN} />
                <Why>{reason}</Why>
              </>
            ),
          },
          {
            title: "Waiting",
            kind: "num",
            show: (action) => count(waiting(action)),
            exact: (action) => exact(waiting(action)),
          },
          { title: "Behind", kind: "num", show: ({ metrics }) => duration(metrics?.lag_s) },
          { title: "Size", kind: "num", show: ({ metrics }) => bytes(metrics?.queuing_bytes) },
          { title: "In flight", kind: "num", show: ({ metrics }) => count(metrics?.inflight) },
          { title: "Sent", kind: "num", show: ({ metrics }) => count(metrics?.success) },
          { title: "Failed", kind: "num", show: ({ metrics }) => count(metrics?.failed) },
          { title: "Dropped", kind: "num", show: ({ metrics }) => count(metrics?.dropped) },
        ]}
      />
    </Card>
  );
}

const waiting = ({ metrics }: Action) => metrics?.queuing ?? 0;

function Tables({ status: { tables }, nowMs }: { status: Status; nowMs: number }) {
  return (
    <Card title="Tables" note={tables.length > 0 && <Counted kind="tables">{counted(tables.length, "table")}</Counted>}>
      {tables.length ? (
        <Table
          label="Tables"
          rows={tables}
          keyOf={({ name }) => name}
          columns={[
            {
              title: "Table",
              show: ({ name, format, stream }) => (
                <>
                  <ObjectLink kind="tables" name={name} />
                  <Why>
                    {format} · from {stream}
                  </Why>
                </>
              ),
            },
            {
              title: "State",
              kind: "fit",
              show: ({ state, reason }) => (
                <>
                  <State state={state} />
                  <Why>{reason}</Why>
                </>
              ),
            },
            {
              title: "Rows",
              kind: "num",
              show: ({ rows, dead_letters: dead }) => (
                <>
                  {count(rows)}
                  {dead ? <Why>{counted(dead, "dead letter")}</Why> : null}
                </>
              ),
              exact: ({ rows }) => exact(rows),
            },
            {
              title: "Behind",
              kind: "num",
              show: ({ lag_records: lag, lag_s: s }) => (
                <>
                  {count(lag)}
                  {s !== null && s !== undefined && <Why>{duration(s)}</Why>}
                </>
              ),
              exact: ({ lag_records: lag }) => exact(lag),
            },
            {
              title: "Last commit",
              kind: "num",
              show: ({ last_commit_at: at, last_commit_rows: rows }) => (
                <>
                  {ago(at, nowMs)}
                  {rows ? <Why>{counted(rows, "row")}</Why> : null}
                </>
              ),
              exact: ({ last_commit_at: at }) => at ?? undefined,
            },
          ]}
        />
      ) : (
        <Empty command={curl("lake/tables", { name: "readings", stream: "readings", format: "delta" })}>
          No table yet. A table follows a stream; Spark writes its rows.
        </Empty>
      )}
    </Card>
  );
}

function Rows({ status: { tables } }: { status: Status }) {
  const navigate = useNavigate();
  const { rows: asked } = useSearch({ strict: false }) as OverviewSearch;
  const chosen = tables.find(({ name }) => name === asked) ?? tables[0];
  const { data, error } = useQuery({
    queryKey: ["rows", chosen?.name, chosen?.rows, chosen?.last_commit_at],
    queryFn: () => getRows(chosen?.name ?? "", ROWS_SHOWN),
    enabled: chosen !== undefined,
    placeholderData: (known, last) => (last?.queryKey[1] === chosen?.name ? known : undefined),
  });
  const choose = (name: string) =>
    void navigate({ to: ".", search: (known: object) => ({ ...known, rows: name }), replace: true } as never);
  const picker = tables.length > 1 && (
    <label>
      of{" "}
      <select value={chosen?.name} onChange={(event) => choose(event.target.value)}>
        {tables.map(({ name }) => (
          <option key={name}>{name}</option>
        ))}
      </select>
    </label>
  );
  return (
    <Card title="Newest rows" note={picker || (chosen && `${chosen.name}, read from the table itself`)}>
      {!chosen ? (
        <Empty>The newest rows of a table appear here.</Empty>
      ) : error ? (
        <Empty>{error.message}</Empty>
      ) : (
        data &&
        (data.rows.length ? (
          <RowsTable name={chosen.name} columns={data.columns} rows={data.rows} />
        ) : (
          <Empty>No rows yet. The first appear a few seconds after the first message that matches.</Empty>
        ))
      )}
    </Card>
  );
}

function RowsTable({ name, columns, rows }: { name: string; columns: string[]; rows: Record<string, unknown>[] }) {
  const ours = (column: string) => column.startsWith("_");
  const ordered = [...columns.filter((column) => !ours(column)), ...columns.filter(ours)];
  const isNumber = (column: string) =>
    rows.every((row) => row[column] === null || row[column] === undefined || typeof row[column] === "number");
  return (
    <Table<Record<string, unknown>>
      label={`Newest rows of ${name}`}
      kind="rows"
      rows={rows}
      keyOf={(_, at) => at}
      columns={ordered.map((column) => ({
        title: column,
        kind: ours(column) ? (isNumber(column) ? "num ours" : "ours") : isNumber(column) ? "num" : undefined,
        show: (row) => cell(row[column]),
        exact: (row) =>
          typeof row[column] === "number" || cell(row[column]).length > 30 ? String(row[column]) : undefined,
      }))}
    />
  );
}

const DAY_S = 86_400;

function Disk({ status: { health } }: { status: Status }) {
  const { data } = useHistory(["data_directory_bytes", "disk_free_bytes"], DAY_S, null);
  if (!health) return null;
  const { disk_free_bytes: free, disk_total_bytes: total } = health;
  return (
    <Card title="Disk" note="of the data directory">
      <p>
        <strong title={exact(free)}>{bytes(free)}</strong> free of {bytes(total)}
      </p>
      <meter
        aria-label="Disk in use"
        min={0}
        max={total}
        low={total * 0.8}
        high={total * 0.9}
        optimum={0}
        value={total - free}
      />
      <p className="small muted">{diskOutlook(data, free, total)}</p>
    </Card>
  );
}

function Refusals({ status: { refusals }, nowMs }: { status: Status; nowMs: number }) {
  return (
    <Card title="Refused messages" note={refusals.length > 0 && <Counted kind="refused">the newest</Counted>}>
      {refusals.length ? (
        <Table
          label="Refused messages"
          rows={refusals.slice(0, 5)}
          keyOf={(_, at) => at}
          columns={[
            { title: "When", kind: "fit", show: ({ at }) => ago(at, nowMs), exact: ({ at }) => at },
            {
              title: "Topic",
              kind: "why",
              show: ({ topic, clientid: client }) => (
                <>
                  <code>{topic}</code>
                  <Why>{client}</Why>
                </>
              ),
            },
            {
              title: "Why",
              kind: "why",
              show: ({ text, stage, name, reason }) => (
                <>
                  {text}
                  <Why>
                    {stage} <ObjectLink kind={stage === "validation" ? "validations" : "transforms"} name={name} />
                    {` · ${wordsOf(reason)}`}
                  </Why>
                </>
              ),
            },
            {
              title: "Do",
              head: <span className="hidden">Do</span>,
              kind: "num verbs",
              show: ({ id, topic, text }) => (
                <ExplainButton
                  topic={topic}
                  of={() => refusedOriginal(id)}
                  then={`When it was published, it was stopped: ${text}`}
                />
              ),
            },
          ]}
        />
      ) : (
        <Empty>
          Nothing refused so far. When a validation or a transformation stops a message, the reason is shown here.
        </Empty>
      )}
    </Card>
  );
}

function Streams({ status: { streams } }: { status: Status }) {
  return (
    <Card
      title="Streams"
      note={streams.length > 0 && <Counted kind="streams">{counted(streams.length, "stream")}</Counted>}>
      {streams.length ? (
        <Table
          label="Streams"
          rows={streams}
          keyOf={({ name }) => name}
          columns={[
            {
              title: "Stream",
              show: ({ name, captures }) => (
                <>
                  <ObjectLink kind="streams" name={name} />
                  <Why>{captures && `captures ${captures}`}</Why>
                </>
              ),
            },
            {
              title: "Holds",
              kind: "num",
              show: (stream) => (
                <>
                  {count(held(stream))}
                  <Why>{stream.size_bytes !== undefined && bytes(stream.size_bytes)}</Why>
                </>
              ),
              exact: (stream) => String(held(stream)),
            },
            {
              title: "Offsets",
              kind: "num",
              show: ({ shards: [first, ...more] }) =>
                more.length ? `${more.length + 1} shards` : first && `${first.first_offset} – ${first.next_offset}`,
              exact: ({ shards }) => shards.map((shard) => `${shard.first_offset} – ${shard.next_offset}`).join("\n"),
            },
          ]}
        />
      ) : (
        <Empty command={curl("streams", { name: "readings", topics: ["meters/#"] })}>
          No stream yet. A stream keeps messages or rows until Spark, a replay or you read them.
        </Empty>
      )}
    </Card>
  );
}

// Offsets are strings, since they may be larger than JavaScript's numbers are exact.
function held({ shards }: Status["streams"][number]): bigint {
  return shards.reduce((sum, shard) => sum + BigInt(shard.next_offset) - BigInt(shard.first_offset), 0n);
}

function Addresses({ status: { listeners } }: { status: Status }) {
  return (
    <Card title="Addresses">
      {listeners.length ? (
        <div className="pairs">
          {listeners.map(({ name, protocol, address, connections }): ReactNode => {
            const url = `${protocol}://${address}`;
            return [
              <span key={`${name} name`} className="muted">
                {name}
                {connections !== undefined && <Why>{count(connections)} connected</Why>}
              </span>,
              <code key={url}>{url}</code>,
              <CopyButton key={`${url} copy`} text={url} />,
            ];
          })}
        </div>
      ) : (
        <p className="empty">{UNKNOWN}</p>
      )}
    </Card>
  );
}

function TryNext({ status }: { status: Status }) {
  const steps = status.next_steps.length
    ? status.next_steps
    : [{ label: "Publish a message", command: publishCommand(status) }];
  return (
    <Card title="Try next">
      <ol className="steps">
        {steps.map(({ label, command }) => (
          <li key={label} className="step">
            <p>{label}</p>
            <Command text={command} />
          </li>
        ))}
      </ol>
    </Card>
  );
}
