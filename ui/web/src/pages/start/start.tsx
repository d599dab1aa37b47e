// From a running broker to the first rule and the first table.

import { keepPreviousData, useQuery, useQueryClient } from "@tanstack/react-query";
import { Link } from "@tanstack/react-router";
import { type ReactNode, useDeferredValue, useEffect, useRef, useState } from "react";
import {
  call,
  createRule,
  createStream,
  getAny,
  Refused,
  type RuleOutcome,
  sentence,
  type Status,
  type TailedMessage,
  tryRule,
} from "../../api/client";
import { parseJson } from "../../api/json";
import { kindNamed } from "../../api/kinds";
import { useEvery, useHistory, useStatus, useTail } from "../../api/live";
import { useMay } from "../../api/rights";
import { Card, Empty, ObjectLink, State, Why } from "../../parts/card";
import { Command, CopyButton, publishCommand } from "../../parts/copy";
import { ExplainButton, outcomeThen, shownOriginal } from "../../parts/explaining";
import { ago, count, counted } from "../../parts/format";
import { Permitted } from "../../parts/permitted";
import { prefer, usePreferences } from "../../parts/preferences";
import { RuleTable } from "../../parts/rule-table";
import { Table } from "../../parts/table";
import { clock, useTimeZone } from "../../parts/time";

const SHOWN = 20;

export function Start() {
  const { data: status } = useStatus();
  const [filter, setFilter] = useState("#");
  const { data: { messages } = { messages: [] }, problem } = useTail(filter);
  const { steps } = usePreferences();
  if (!status) return null;
  const passed = messages.filter(({ outcome }) => outcome !== "dropped").slice(0, SHOWN);
  return (
    <div className="page start">
      <div className="title">
        <h1>{steps ? "From a message to a table" : "Start"}</h1>
        <button type="button" className="quiet" onClick={() => prefer({ steps: !steps })}>
          {steps ? "Hide the steps" : "Show the first steps"}
        </button>
      </div>
      <div className="columns">
        <div className="stack">
          {steps ? (
            <>
              <Running status={status} />
              <FirstRule status={status} latest={passed} />
              <Keep status={status} />
            </>
          ) : (
            <Recent nowMs={Date.parse(status.started_at) + status.uptime_s * 1000} />
          )}
        </div>
        <div className="stack">
          <Arriving
            status={status}
            filter={filter}
            setFilter={setFilter}
            messages={messages.slice(0, SHOWN)}
            problem={problem?.detail ?? ""}
          />
        </div>
      </div>
    </div>
  );
}

function Step({ at, title, isDone, children }: { at: number; title: string; isDone: boolean; children: ReactNode }) {
  return (
    <section className="card" aria-label={title}>
      <div className="head">
        <h2>
          {at}. {title}
        </h2>
        <State state={isDone ? "done" : "idle"}>{isDone ? "Done" : "To do"}</State>
      </div>
      {children}
    </section>
  );
}

const SNIPPETS: [string, (host: string, port: string, topic: string) => string][] = [
  ["mosquitto", (host, port, topic) => `mosquitto_pub -h ${host} -p ${port} -t ${topic} -m '{"temp": 21.5}'`],
  [
    "Python",
    (host, port, topic) =>
      `python -c 'import paho.mqtt.publish as mqtt; ` +
      `mqtt.single("${topic}", "{\\"temp\\": 21.5}", hostname="${host}", port=${port})'`,
  ],
  ["MQTTX", (host, port, topic) => `mqttx pub -h ${host} -p ${port} -t ${topic} -m '{"temp": 21.5}'`],
];

function Running({ status }: { status: Status }) {
  const [chosen, choose] = useState(0);
  const listener = status.listeners.find(({ protocol }) => protocol === "mqtt") ?? status.listeners[0];
  const [host = "127.0.0.1", port = "1883"] = listener ? listener.address.split(/:(?=\d+$)/) : [];
  const url = listener ? `${listener.protocol}://${listener.address}` : "";
  const snippet = SNIPPETS[chosen]?.[1](host, port, "meters/attic");
  return (
    <Step
      at={1}
      title="Your broker is running"
      isDone={status.counters.received !== undefined && status.counters.received > 0}>
      <p className="address">
        <code>{url}</code> <CopyButton text={url} />
      </p>
      <p>
        {counted(status.connections, "client")}, {counted(status.rates.received, "message")} a second,{" "}
        {count(status.counters.received)} so far.{" "}
        <Link to="/overview" search={(known: object) => known}>
          Overview
        </Link>
      </p>
      <div className="choice" role="group" aria-label="Publish with">
        {SNIPPETS.map(([name], at) => (
          <button key={name} type="button" aria-pressed={at === chosen} onClick={() => choose(at)}>
            {name}
          </button>
        ))}
      </div>
      {snippet && <Command text={snippet} />}
    </Step>
  );
}

interface Message {
  topic: string;
  payload: string;
}
interface Draft {
  name: string;
  sql: string;
  message: Message | null;
}

const DRAFT = "sluice.draft";

function firstDraft(isDemo: boolean): Draft {
  const topics = isDemo ? "demo/+/telemetry" : "meters/#";
  const fresh = {
    name: "warm",
    sql: `SELECT payload.temp AS celsius, clientid\nFROM "${topics}"\nWHERE payload.temp > 20`,
    message: null,
  };
  try {
    return { ...fresh, ...JSON.parse(sessionStorage.getItem(DRAFT) ?? "{}") };
  } catch {
    return fresh;
  }
}

/** What rules get of a message: what validations and transformations made of it. */
function input(message: TailedMessage): Message {
  const { topic, payload } = message.became ?? message;
  return { topic, payload: typeof payload.data === "string" ? payload.data : JSON.stringify(payload.data) };
}

/** How many of the latest messages the rule has rows for. */
function Matches({ sql, messages }: { sql: string; messages: TailedMessage[] }) {
  const latest = useRef(messages);
  latest.current = messages;
  const { data } = useQuery({
    queryKey: ["matches", sql],
    queryFn: async ({ signal }) => {
      await rest(signal);
      let matching = 0;
      const tried = latest.current;
      for (const message of tried) {
        signal.throwIfAborted();
        const { rows = [] } = await tryRule(sql, { clientid: message.clientid, ...input(message) });
        matching += Number(rows.length > 0);
      }
      return `${matching} of the last ${tried.length} match`;
    },
    enabled: messages.length > 0,
    refetchInterval: useEvery(5000), // not with each message that arrives: every look evaluates twenty
    gcTime: 10_000,
  });
  return data ? (
    <p id="matches" className="small muted">
      {data}
    </p>
  ) : null;
}

function FirstRule({ status, latest: [latest, ...earlier] }: { status: Status; latest: TailedMessage[] }) {
  const isDemo = status.rules.some(({ sql }) => sql?.includes('"demo/'));
  const [draft, setDraft] = useState(() => firstDraft(isDemo));
  const [said, attempt, forget] = useOutcome();
  const mayTry = useMay()("rules", "try");
  const change = (changed: Partial<Draft>) => {
    forget();
    setDraft({ ...draft, ...changed });
  };
  useEffect(() => sessionStorage.setItem(DRAFT, JSON.stringify(draft)), [draft]);
  const sample = { topic: isDemo ? "demo/attic/telemetry" : "meters/attic", payload: '{"temp": 21.5}' };
  const message = draft.message ?? (latest ? input(latest) : sample);
  const [sql, tried] = [useDeferredValue(draft.sql), useDeferredValue(JSON.stringify(message))];
  const { data, failureReason } = useQuery({
    queryKey: ["try", sql, tried],
    queryFn: ({ signal }) =>
      outcome(sql, { clientid: latest?.clientid ?? "meter-attic", ...(parseJson(tried) as object) }, signal),
    placeholderData: (known) => known, // also a problem stays until the next answer
    retry: true, // what fails here is the connection, or a node that is overloaded
    retryDelay: 1000,
    staleTime: Infinity,
    gcTime: 10_000,
    enabled: mayTry,
  });
  const save = () =>
    attempt(async () => {
      if (!status.streams.some(({ name }) => name === draft.name)) await createStream({ name: draft.name });
      await createRule({ name: draft.name, sql: draft.sql, actions: [{ type: "stream", stream: draft.name }] });
    }, `Rule ${draft.name} runs; its rows are kept in stream ${draft.name}.`);
  return (
    <Step at={2} title="Select what matters" isDone={status.rules.length > 0}>
      <p>
        A rule is SQL over messages. It is tried on the message below while you type; nothing is saved until you save
        it.
      </p>
      <Permitted right="rules" does="try" to="test rules">
        <div className="try">
          <div>
            <label htmlFor="sql">SQL</label>
            <textarea
              id="sql"
              rows={4}
              spellCheck={false}
              value={draft.sql}
              onChange={(event) => change({ sql: event.target.value })}
            />
            <label htmlFor="topic">Topic</label>
            <input
              id="topic"
              spellCheck={false}
              value={message.topic}
              onChange={(event) => change({ message: { ...message, topic: event.target.value } })}
            />
            <label htmlFor="payload">Payload</label>
            <textarea
              id="payload"
              rows={3}
              spellCheck={false}
              value={message.payload}
              onChange={(event) => change({ message: { ...message, payload: event.target.value } })}
            />
            <p className="small muted">
              {draft.message ? (
                <>
                  A message of your own.{" "}
                  <button type="button" className="quiet" onClick={() => change({ message: null })}>
                    Follow the latest message
                  </button>
                </>
              ) : latest ? (
                "The latest message that passed."
              ) : (
                "An example, until a message arrives."
              )}
            </p>
          </div>
          <div>
            <p className="label">Result</p>
            <div id="result" aria-live="polite">
              {failureReason instanceof Refused && (
                <p className="muted small">{failureReason.message}; trying again.</p>
              )}
              {data && <Result {...data} />}
            </div>
            {latest && <Matches sql={sql} messages={[latest, ...earlier]} />}
          </div>
        </div>
      </Permitted>
      <Permitted right="rules" does="change" to="create rules">
        <form
          className="inline"
          onSubmit={(event) => {
            event.preventDefault();
            void save();
          }}>
          <label htmlFor="rule">Name</label>
          <input id="rule" required value={draft.name} onChange={(event) => change({ name: event.target.value })} />
          <button type="submit" className="primary">
            Save and start
          </button>
        </form>
      </Permitted>
      {said}
    </Step>
  );
}

/** Waits until the user stops typing. */
async function rest(signal: AbortSignal) {
  await new Promise((go) => setTimeout(go, 150));
  signal.throwIfAborted();
}

async function outcome(sql: string, event: Record<string, unknown>, signal: AbortSignal): Promise<RuleOutcome> {
  await rest(signal);
  try {
    return await tryRule(sql, event);
  } catch (error) {
    if (error instanceof Refused && error.status !== 503)
      return { outcome: "error", error: { message: error.message } };
    throw error;
  }
}

function Result({ rows = [], error }: RuleOutcome) {
  if (error) return <State state="failed">{error.message}</State>;
  if (!rows.length) return <State state="idle">FROM or WHERE does not match this message</State>;
  return <pre className="source">{rows.map((row) => JSON.stringify(row, null, 2)).join("\n")}</pre>;
}

type Target = "table" | "topic" | "kafka";
const TARGETS: [Target, string][] = [
  ["table", "A table"],
  ["topic", "Another topic"],
  ["kafka", "Kafka"],
];
type SavedRule = { name: string; fixed_by: string | null; actions: { type: string; stream?: string }[] };

/** Whether rows of an action leave the broker, or are published again. */
const isDelivery = ({ type }: { type: string }) => !["stream", "console"].includes(type);

function Keep({ status }: { status: Status }) {
  const [target, choose] = useState<Target>("table");
  const { data } = useQuery({
    queryKey: ["rules", status.changes],
    queryFn: () => getAny<{ items: SavedRule[] }>("rules", { query: { limit: 100 } }),
    placeholderData: keepPreviousData,
  });
  const rules = data?.items ?? [];
  const isDone = status.tables.some(({ rows }) => rows) || rules.some(({ actions }) => actions.some(isDelivery));
  return (
    <Step at={3} title="Keep the result" isDone={isDone}>
      <ol className="path">
        <li>
          <span className="muted">messages</span>
          <strong>{count(status.rates.received)} /s</strong>
        </li>
        <li>
          <span className="muted">rules</span>
          <strong>{counted(status.rates.rules_passed, "row")}/s</strong>
        </li>
        <li>
          <span className="muted">tables</span>
          <strong>
            {status.tables.length
              ? counted(
                  status.tables.reduce((sum, { rows }) => sum + (rows ?? 0), 0),
                  "row",
                )
              : "none"}
          </strong>
        </li>
      </ol>
      {!status.rules.length ? (
        <Empty>Save a rule first. Its rows go where you choose then.</Empty>
      ) : (
        <>
          <div className="choice" role="group" aria-label="Send rows to">
            {TARGETS.map(([name, title]) => (
              <button key={name} type="button" aria-pressed={name === target} onClick={() => choose(name)}>
                {title}
              </button>
            ))}
          </div>
          {target === "table" ? (
            <KeepInTable status={status} rules={rules} />
          ) : (
            <Permitted right="rules" does="change" to="change rules">
              <Forward key={target} target={target} rules={rules} />
            </Permitted>
          )}
        </>
      )}
    </Step>
  );
}

/** What came of a request, in a sentence. */
function useOutcome() {
  const queries = useQueryClient();
  const [said, say] = useState<{ done: boolean; text: string } | null>(null);
  const attempt = async (does: () => Promise<unknown>, text: string) => {
    try {
      await does();
      say({ done: true, text });
    } catch (error) {
      say({ done: false, text: sentence(error) });
    }
    await queries.invalidateQueries();
  };
  return [
    <div role="status">{said && <State state={said.done ? "done" : "failed"}>{said.text}</State>}</div>,
    attempt,
    () => say(null),
  ] as const;
}

function KeepInTable({ status: { tables }, rules }: { status: Status; rules: SavedRule[] }) {
  const [chosen, choose] = useState("");
  const known = new Set(tables.flatMap(({ name, stream }) => [name, stream]));
  const loose = rules.filter(
    ({ name, actions }) => !known.has(name) && !actions.some(({ stream }) => stream !== undefined && known.has(stream)),
  );
  const rule = loose.find(({ name }) => name === chosen) ?? loose[0];
  return (
    <div className="fields">
      {tables.length > 0 && (
        <ul className="plain">
          {tables.map(({ name, rows, state, reason, path }) => (
            <li key={name}>
              <ObjectLink kind="tables" name={name} /> <State state={state} /> {counted(rows, "row")}
              <Why>{reason ?? path}</Why>
            </li>
          ))}
        </ul>
      )}
      {rule && (
        <>
          <label>
            Rule{" "}
            <select value={rule.name} onChange={(event) => choose(event.target.value)}>
              {loose.map(({ name }) => (
                <option key={name}>{name}</option>
              ))}
            </select>
          </label>
          <Permitted right="tables" does="change" to="create tables">
            <RuleTable key={rule.name} name={rule.name} />
          </Permitted>
        </>
      )}
      {!tables.length && !rule && <Empty>Save a rule first; a table is filled by it.</Empty>}
    </div>
  );
}

function Forward({ target, rules }: { target: "topic" | "kafka"; rules: SavedRule[] }) {
  const [said, attempt] = useOutcome();
  const send = (form: FormData) => {
    const [rule, topic] = [String(form.get("rule")), String(form.get("topic"))];
    const add = async (action: unknown) => {
      const { body, etag } = await call<SavedRule>("GET", `rules/${encodeURIComponent(rule)}`);
      await call("PATCH", `rules/${encodeURIComponent(rule)}`, { etag, body: { actions: [...body.actions, action] } });
    };
    if (target === "topic")
      return attempt(
        () => add({ type: "republish", topic, payload: "${.}" }),
        `Rule ${rule} publishes its rows on topic ${topic}.`,
      );
    return attempt(async () => {
      await call("POST", "connectors", {
        body: { name: rule, type: "kafka", bootstrap_hosts: String(form.get("servers")) },
      });
      await call("POST", "actions", { body: { name: rule, type: "kafka", connector: rule, parameters: { topic } } });
      await add(`kafka:${rule}`);
    }, `Rule ${rule} sends its rows to topic ${topic} of Kafka.`);
  };
  return (
    <>
      <form
        className="inline"
        onSubmit={(event) => {
          event.preventDefault();
          void send(new FormData(event.currentTarget));
        }}>
        <label htmlFor="forward-rule">Rule</label>
        <select id="forward-rule" name="rule" required>
          {rules.map(({ name, fixed_by }) => (
            <option key={name} value={name} disabled={fixed_by !== null}>
              {fixed_by ? `${name}: read-only, fixed by ${fixed_by}` : name}
            </option>
          ))}
        </select>
        {target === "kafka" && (
          <>
            <label htmlFor="servers">Servers</label>
            <input id="servers" name="servers" required spellCheck={false} defaultValue="127.0.0.1:9092" />
          </>
        )}
        <label htmlFor="forward-topic">Topic</label>
        <input id="forward-topic" name="topic" required spellCheck={false} defaultValue="rows" />
        <button type="submit" className="primary">
          {target === "topic" ? "Publish rows there" : "Send rows to Kafka"}
        </button>
      </form>
      {said}
    </>
  );
}

const WEEK_S = 604_800;
const MOST_RECENT = 20;

/** The objects that were added or changed last. */
function Recent({ nowMs }: { nowMs: number }) {
  const { data, error } = useHistory(["connections"], WEEK_S, null);
  const newest = new Map(
    data?.markers
      .toReversed()
      .flatMap((marker) => {
        const kind = kindNamed(marker.kind);
        return kind
          ? [[`${marker.kind} ${marker.name}`, { ...marker, path: kind.path, title: kind.one }] as const]
          : [];
      })
      .toReversed(),
  );
  const rows = [...newest.values()]
    .filter(({ what }) => what !== "removed")
    .sort((a, b) => b.at.localeCompare(a.at))
    .slice(0, MOST_RECENT);
  return (
    <Card title="Recent objects" note="of the last 7 days">
      {rows.length ? (
        <Table
          label="Recent objects"
          rows={rows}
          keyOf={({ kind, name }) => `${kind} ${name}`}
          columns={[
            {
              title: "Object",
              show: ({ path, name, title }) => (
                <>
                  <ObjectLink kind={path} name={name} />
                  <Why>{title}</Why>
                </>
              ),
            },
            { title: "Change", kind: "fit", show: ({ what }) => what },
            { title: "When", kind: "num", show: ({ at }) => ago(at, nowMs), exact: ({ at }) => at },
          ]}
        />
      ) : (
        <Empty>{error ? sentence(error) : data ? "No object was added or changed." : "Loading"}</Empty>
      )}
    </Card>
  );
}

const OUTCOMES: Record<TailedMessage["outcome"], [string, string]> = {
  passed: ["running", "passed"],
  transformed: ["starting", "transformed"],
  dropped: ["alarm", "dropped"],
};

function Arriving({
  status,
  filter,
  setFilter,
  messages,
  problem,
}: {
  status: Status;
  filter: string;
  setFilter: (filter: string) => void;
  messages: TailedMessage[];
  problem: string;
}) {
  const timeZone = useTimeZone();
  return (
    <Card title="Arriving" note="a sample of five a second">
      <form
        className="inline"
        onSubmit={(event) => {
          event.preventDefault();
          setFilter(String(new FormData(event.currentTarget).get("filter")));
        }}>
        <label htmlFor="filter">Topic filter</label>
        <input id="filter" name="filter" required spellCheck={false} defaultValue={filter} />
        <button type="submit">Follow</button>
      </form>
      {problem && (
        <p role="alert">
          <State state="failed">{problem}</State>
        </p>
      )}
      {messages.length ? (
        <ul className="messages">
          {messages.map((message) => {
            const [tone, word] = OUTCOMES[message.outcome];
            const { topic, payload } = input(message);
            return (
              <li key={`${message.at} ${message.clientid} ${topic}`}>
                <div>
                  <code>{topic}</code> <State state={tone}>{word}</State>{" "}
                  <span className="muted small">{clock(Date.parse(message.at), timeZone)}</span>{" "}
                  <ExplainButton topic={topic} of={shownOriginal(message)} then={outcomeThen(message)} />
                </div>
                <code className="muted">{payload}</code>
                <Why>{message.refusal?.text}</Why>
              </li>
            );
          })}
        </ul>
      ) : (
        <Empty command={publishCommand(status)}>No message has arrived on {filter} since this page was opened.</Empty>
      )}
    </Card>
  );
}
