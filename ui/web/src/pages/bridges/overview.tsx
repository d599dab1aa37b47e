// The overview of a bridge: its figures, its buffer, and what uses it.

import { Link } from "@tanstack/react-router";
import type { ReactNode } from "react";
import { useHistory, useList } from "../../api/live";
import { Card, Empty, ObjectLink, State, stateOf, Why } from "../../parts/card";
import { ago, byReason, bytes, count, counted, duration, exact } from "../../parts/format";
import { perSecond } from "../../parts/history-charts";
import type { ObjectProps } from "../../parts/kind-page";
import { type Stat, Stats } from "../../parts/stats";
import { Table } from "../../parts/table";
import { clock, keepTimeZone, useTimeZone } from "../../parts/time";
import { Now } from "./now";
import { type Action, type Connector, oneOf, type Source, useServerMs, useTypes } from "./shared";

export function ConnectorNow({ object }: ObjectProps<Connector>) {
  const types = useTypes();
  const actions = useList<Action>("actions").list?.items.filter(({ connector }) => connector === object.name);
  const sources = useList<Source>("sources").list?.items.filter(({ connector }) => connector === object.name);
  const type = types.find(({ name }) => name === object.type);
  const users = [
    ...(actions ?? []).map((one) => ({ ...one, path: "actions" as const })),
    ...(sources ?? []).map((one) => ({ ...one, path: "sources" as const })),
  ];
  return (
    <div className="columns">
      <Now path="connectors" object={object} />
      <Card title="Used by" note={type?.title}>
        {users.length ? (
          <Table
            label="Used by"
            rows={users}
            keyOf={({ path, name }) => `${path} ${name}`}
            columns={[
              {
                title: "Name",
                show: ({ path, name }) => (
                  <>
                    <ObjectLink kind={path} name={name} />
                    <Why>{oneOf(path)}</Why>
                  </>
                ),
              },
              { title: "State", kind: "fit", show: (one) => <State state={stateOf(one as never)} /> },
              { title: "Rate", kind: "num", show: ({ metrics }) => `${perSecond(metrics.rate)} /s` },
            ]}
          />
        ) : (
          <Empty>Nothing uses it yet.</Empty>
        )}
        <div className="buttons">
          {(["actions", "sources"] as const).map(
            (path) =>
              type &&
              path.slice(0, -1) in type.parameters && (
                <Link
                  key={path}
                  className="button"
                  to="/new/$kind"
                  params={{ kind: path }}
                  search={((known: object) => ({ ...keepTimeZone(known), connector: object.name })) as never}>
                  New {oneOf(path)}
                </Link>
              ),
          )}
        </div>
      </Card>
    </div>
  );
}

// Actions

const FULL = {
  drop_oldest: "the oldest rows are dropped, counted, and kept as dead letters only if the settings say so.",
  refuse: "the publish is refused: the publisher gets reason code 0x83 and keeps its message.",
};

function Buffer({ action }: { action: Action }) {
  const { metrics: m, resource_opts: options, status, id } = action;
  const { data } = useHistory(["action_success", "action_matched"], 10, null, [`action=${id}`]);
  const rateOf = (name: string) =>
    data?.series.find((one) => one.name === name)?.mean.findLast((value) => value !== null) ?? 0;
  const [records, size] = [Number(options.max_buffer_records), Number(options.max_buffer_bytes)];
  const rows = m.queuing + m.inflight;
  const growth = rateOf("action_matched") - (status === "connected" && !action.paused ? rateOf("action_success") : 0);
  const left = Math.min(records - rows, rows ? (size - m.queuing_bytes) / (m.queuing_bytes / rows) : Infinity);
  const outlook = !rows
    ? ""
    : growth > 0
      ? `At the present rate it is full in ${duration(left / growth)}.`
      : growth < 0
        ? `At the present rate it is empty in ${duration(rows / -growth)}.`
        : "";
  return (
    <Card
      title="Buffer"
      note={options.buffer_mode === "disk" ? "on disk: it outlives a restart" : "in memory: lost at a crash"}>
      <progress
        aria-label="Share of the buffer in use"
        value={Math.max(rows / records, m.queuing_bytes / size)}
        max={1}
      />
      <p>
        {count(rows)} of {counted(records, "row")}, {bytes(m.queuing_bytes)} of {bytes(size)}. {outlook}
      </p>
      <p className="muted small">When it is full, {FULL[options.overflow as keyof typeof FULL]}</p>
    </Card>
  );
}

const stat = (label: string, value: number | null | undefined, shown: string, under: string): Stat => ({
  label,
  value: shown,
  under,
  exact: exact(value),
  isLong: shown.length > 7,
});

function Rules({ rules, empty }: { rules: string[]; empty: ReactNode }) {
  return (
    <Card title="Used by">
      {rules.length ? (
        <ul className="plain">
          {rules.map((name) => (
            <li key={name}>
              rule <ObjectLink kind="rules" name={name} />
            </li>
          ))}
        </ul>
      ) : (
        <p className="empty">{empty}</p>
      )}
    </Card>
  );
}

/** Where rows go to, or records come from: the parameter that says so. */
function targetOf(parameters: unknown): string {
  const { topic, topics, table, path } = parameters as {
    topic?: string;
    topics?: unknown[];
    table?: string;
    path?: string;
  };
  return (
    topic ||
    table ||
    path ||
    (topics?.length
      ? topics.map((one) => (typeof one === "string" ? one : (one as { topic: string }).topic)).join(", ")
      : "")
  );
}

function About({ object }: { object: Action | Source }) {
  const target = targetOf(object.parameters);
  const types = useTypes();
  const nowMs = useServerMs();
  const failure = object.last_error;
  return (
    <Card title="About" note={types.find(({ name }) => name === object.type)?.title}>
      <dl className="keys">
        <div>
          <dt>Connector</dt>
          <dd>
            <ObjectLink kind="connectors" name={object.connector} />
          </dd>
        </div>
        {target && (
          <div>
            <dt>{"metrics" in object && "queuing" in object.metrics ? "Target" : "Reads"}</dt>
            <dd>
              <code>{target}</code>
            </dd>
          </div>
        )}
        <div>
          <dt>In rules</dt>
          <dd>
            <code>{"dead_letters_waiting" in object ? object.id : `FROM "$bridges/${object.id}"`}</code>
          </dd>
        </div>
        <div>
          <dt>Last error</dt>
          <dd>
            {failure ? (
              <>
                {failure.text}{" "}
                <span className="muted small">{ago(new Date(failure.time_ms).toISOString(), nowMs)}</span>
              </>
            ) : (
              "none since it started"
            )}
          </dd>
        </div>
      </dl>
    </Card>
  );
}

export function ActionNow({ object }: ObjectProps<Action>) {
  const { metrics: m, dead_letters_waiting: letters } = object;
  const drops = Object.fromEntries(
    Object.entries(m).flatMap(([name, value]) => (name.startsWith("dropped.") ? [[name.slice(8), Number(value)]] : [])),
  );
  const sum = m.success + m.failed + m.dropped + m.queuing + m.inflight;
  return (
    <>
      <Stats
        label="Figures"
        stats={[
          stat(
            "Rate",
            m.rate,
            `${perSecond(m.rate)} /s`,
            `${perSecond(m.rate_last5m)} /s over 5 min, ${perSecond(m.rate_max)} at most`,
          ),
          stat("Waiting", m.queuing, count(m.queuing), bytes(m.queuing_bytes)),
          stat("Oldest waits", m.lag_s, m.queuing + m.inflight ? duration(m.lag_s) : "none", "not confirmed yet"),
          stat("In flight", m.inflight, count(m.inflight), "rows without an answer"),
          stat("Confirmed", m.success, count(m.success), `${count(m.retried)} needed a retry`),
          stat(
            "Given up",
            m.failed + m.dropped,
            count(m.failed + m.dropped),
            `${counted(letters, "dead letter")} kept`,
          ),
        ]}
      />
      <section className="card ledger" aria-label="Ledger">
        <h2>Ledger</h2>
        <p>
          <strong title={exact(m.matched)}>{count(m.matched)}</strong> rows = {count(m.success)} confirmed +{" "}
          {count(m.failed)} failed + {count(m.dropped)} dropped{m.dropped ? ` (${byReason(drops)})` : ""} +{" "}
          {count(m.queuing)} waiting + {count(m.inflight)} in flight
        </p>
        <p>
          <State state={sum === m.matched && !m.lost ? "ok" : "failed"}>
            {sum !== m.matched
              ? `${count(m.matched - sum)} not accounted for`
              : m.lost
                ? `${count(m.lost)} lost`
                : "every row is accounted for"}
          </State>
        </p>
      </section>
      <div className="columns">
        <div className="stack">
          <Now path="actions" object={object} />
          <Buffer action={object} />
        </div>
        <div className="stack">
          <About object={object} />
          <Rules
            rules={object.rules}
            empty={
              <>
                No rule sends rows to it yet. Add <code>{object.id}</code> to the actions of a{" "}
                <Link to="/$kind" params={{ kind: "rules" }} search={keepTimeZone as never}>
                  rule
                </Link>
                .
              </>
            }
          />
        </div>
      </div>
    </>
  );
}

export function SourceNow({ object }: ObjectProps<Source>) {
  const timeZone = useTimeZone();
  const { metrics: m } = object;
  return (
    <>
      <Stats
        label="Figures"
        stats={[
          stat(
            "Rate",
            m.rate,
            `${perSecond(m.rate)} /s`,
            `${perSecond(m.rate_last5m)} /s over 5 min, ${perSecond(m.rate_max)} at most`,
          ),
          stat(
            "Not read yet",
            m.lag_records,
            count(m.lag_records),
            m.lag_as_of
              ? `records in the other system at ${clock(Date.parse(m.lag_as_of), timeZone)}`
              : "not known now",
          ),
          stat("Read", m.received, count(m.received), `${count(m.duplicates)} came again`),
          stat("Committed", m.success, count(m.success), "acknowledged to the other system"),
          stat("Refused", m.refused, count(m.refused), "by validations and transformations"),
          stat("Failed", m.failed, count(m.failed), "handed over again"),
        ]}
      />
      <div className="columns">
        <Now path="sources" object={object} />
        <div className="stack">
          <About object={object} />
          <Rules
            rules={object.rules}
            empty={
              <>
                No rule reads it yet. A{" "}
                <Link to="/$kind" params={{ kind: "rules" }} search={keepTimeZone as never}>
                  rule
                </Link>{" "}
                does with <code>FROM "$bridges/{object.id}"</code>.
              </>
            }
          />
        </div>
      </div>
    </>
  );
}
