// From a running broker to the first rule and the first table.

import { useQuery, useQueryClient } from "@tanstack/react-query";
import { Link } from "@tanstack/react-router";
import { type ReactNode, useDeferredValue, useEffect, useState } from "react";
import { createRule, createStream, createTable, Refused, type RuleOutcome, type Status, type TailedMessage, tryRule } from "./api";
import { count } from "./format";
import { useStatus, useTail } from "./live";
import { Card, Command, CopyButton, Empty, ObjectLink, State, Why } from "./parts";
import { publishing } from "./overview";
import { clock } from "./preferences";
import { useZone } from "./shell";

const SHOWN = 20;

export function Start() {
  const { data: status } = useStatus();
  const [filter, setFilter] = useState("#");
  const { data: { messages } = { messages: [] }, problem } = useTail(filter);
  if (!status) return null;
  return (
    <div className="page start">
      <h1>From a message to a table</h1>
      <div className="columns">
        <div className="stack">
          <Running status={status} />
          <FirstRule status={status} latest={messages.find(({ outcome }) => outcome !== "dropped")} />
          <Keep status={status} />
        </div>
        <div className="stack"><Arriving status={status} filter={filter} setFilter={setFilter} messages={messages.slice(0, SHOWN)} problem={problem?.detail ?? ""} /></div>
      </div>
    </div>
  );
}

function Step({ at, title, isDone, children }: { at: number; title: string; isDone: boolean; children: ReactNode }) {
  return (
    <section className="card" aria-label={title}>
      <div className="head"><h2>{at}. {title}</h2><State state={isDone ? "done" : "idle"}>{isDone ? "Done" : "To do"}</State></div>
      {children}
    </section>
  );
}

const SNIPPETS: [string, (host: string, port: string, topic: string) => string][] = [
  ["mosquitto", (host, port, topic) => `mosquitto_pub -h ${host} -p ${port} -t ${topic} -m '{"temp": 21.5}'`],
  ["Python", (host, port, topic) => `python -c 'import paho.mqtt.publish as mqtt; mqtt.single("${topic}", "{\\"temp\\": 21.5}", hostname="${host}", port=${port})'`],
  ["MQTTX", (host, port, topic) => `mqttx pub -h ${host} -p ${port} -t ${topic} -m '{"temp": 21.5}'`],
];

function Running({ status }: { status: Status }) {
  const [chosen, choose] = useState(0);
  const listener = status.listeners.find(({ protocol }) => protocol === "mqtt") ?? status.listeners[0];
  const [host = "127.0.0.1", port = "1883"] = listener ? listener.address.split(/:(?=\d+$)/) : [];
  const url = listener ? `${listener.protocol}://${listener.address}` : "";
  const snippet = SNIPPETS[chosen]?.[1](host, port, "meters/attic");
  return (
    <Step at={1} title="Your broker is running" isDone={status.counters.received !== undefined && status.counters.received > 0}>
      <p className="address"><code>{url}</code> <CopyButton text={url} /></p>
      <p>{count(status.connections)} clients, {count(status.rates.received)} messages a second, {count(status.counters.received)} so far. <Link to="/overview" search={(known: object) => known}>Overview</Link></p>
      <div className="choice" role="group" aria-label="Publish with">
        {SNIPPETS.map(([name], at) => <button key={name} type="button" aria-pressed={at === chosen} onClick={() => choose(at)}>{name}</button>)}
      </div>
      {snippet && <Command text={snippet} />}
    </Step>
  );
}

interface Message { topic: string; payload: string }
interface Draft { name: string; sql: string; message: Message | null }

const DRAFT = "sluice.draft";

function firstDraft(isDemo: boolean): Draft {
  const topics = isDemo ? "demo/+/telemetry" : "meters/#";
  const fresh = { name: "warm", sql: `SELECT payload.temp AS celsius, clientid\nFROM "${topics}"\nWHERE payload.temp > 20`, message: null };
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

function FirstRule({ status, latest }: { status: Status; latest: TailedMessage | undefined }) {
  const queries = useQueryClient();
  const isDemo = status.rules.some(({ sql }) => sql?.includes('"demo/'));
  const [draft, setDraft] = useState(() => firstDraft(isDemo));
  const [saved, setSaved] = useState<{ done: boolean; text: string } | null>(null);
  const change = (changed: Partial<Draft>) => {
    setSaved(null);
    setDraft({ ...draft, ...changed });
  };
  useEffect(() => sessionStorage.setItem(DRAFT, JSON.stringify(draft)), [draft]);
  const sample = { topic: isDemo ? "demo/attic/telemetry" : "meters/attic", payload: '{"temp": 21.5}' };
  const message = draft.message ?? (latest ? input(latest) : sample);
  const [sql, tried] = [useDeferredValue(draft.sql), useDeferredValue(JSON.stringify(message))];
  const { data, failureReason } = useQuery({
    queryKey: ["try", sql, tried],
    queryFn: ({ signal }) => outcome(sql, { clientid: latest?.client_id ?? "meter-attic", ...JSON.parse(tried) }, signal),
    placeholderData: (known) => known, // also a problem stays until the next answer
    retry: true, // what fails here is the connection, or a node that is overloaded
    retryDelay: 1000,
    staleTime: Infinity,
    gcTime: 10_000,
  });
  const save = async () => {
    try {
      if (!status.streams.some(({ name }) => name === draft.name)) await createStream({ name: draft.name });
      await createRule({ name: draft.name, sql: draft.sql, actions: [{ type: "stream", stream: draft.name }] });
      setSaved({ done: true, text: `Rule ${draft.name} runs; its rows are kept in stream ${draft.name}.` });
      await queries.invalidateQueries();
    } catch (problem) {
      setSaved({ done: false, text: problem instanceof Refused ? problem.message : "The server does not answer; nothing was saved." });
    }
  };
  return (
    <Step at={2} title="Select what matters" isDone={status.rules.length > 0}>
      <p>A rule is SQL over messages. It is tried on the message below while you type; nothing is saved until you save it.</p>
      <div className="try">
        <div>
          <label htmlFor="sql">SQL</label>
          <textarea id="sql" rows={4} spellCheck={false} value={draft.sql} onChange={(event) => change({ sql: event.target.value })} />
          <label htmlFor="topic">Topic</label>
          <input id="topic" spellCheck={false} value={message.topic} onChange={(event) => change({ message: { ...message, topic: event.target.value } })} />
          <label htmlFor="payload">Payload</label>
          <textarea id="payload" rows={3} spellCheck={false} value={message.payload} onChange={(event) => change({ message: { ...message, payload: event.target.value } })} />
          <p className="small muted">
            {draft.message
              ? <>A message of your own. <button type="button" className="quiet" onClick={() => change({ message: null })}>Follow the latest message</button></>
              : latest ? "The latest message that passed." : "An example, until a message arrives."}
          </p>
        </div>
        <div>
          <p className="label">Result</p>
          <div id="result" aria-live="polite">{failureReason instanceof Refused && <p className="muted small">{failureReason.message}; trying again.</p>}{data && <Result {...data} />}</div>
        </div>
      </div>
      <form className="inline" onSubmit={(event) => { event.preventDefault(); void save(); }}>
        <label htmlFor="rule">Name</label>
        <input id="rule" required value={draft.name} onChange={(event) => change({ name: event.target.value })} />
        <button type="submit" className="primary">Save and start</button>
      </form>
      <div role="status">{saved && <State state={saved.done ? "done" : "failed"}>{saved.text}</State>}</div>
    </Step>
  );
}

async function outcome(sql: string, event: Record<string, unknown>, signal: AbortSignal): Promise<RuleOutcome> {
  await new Promise((go) => setTimeout(go, 150)); // a key that is pressed meanwhile makes this one needless
  signal.throwIfAborted();
  try {
    return await tryRule(sql, event);
  } catch (error) {
    if (error instanceof Refused && error.status !== 503) return { outcome: "error", error: { message: error.message } };
    throw error;
  }
}

function Result({ rows = [], error }: RuleOutcome) {
  if (error) return <State state="failed">{error.message}</State>;
  if (!rows.length) return <State state="idle">FROM or WHERE does not match this message</State>;
  return <pre className="source">{rows.map((row) => JSON.stringify(row, null, 2)).join("\n")}</pre>;
}

function Keep({ status }: { status: Status }) {
  const queries = useQueryClient();
  const [problem, setProblem] = useState("");
  const followed = new Set(status.tables.map(({ stream }) => stream));
  const loose = status.streams.filter(({ name, captures }) => captures === "rows" && !followed.has(name));
  const keep = async (stream: string) => {
    try {
      setProblem("");
      await createTable({ name: stream, stream, format: "delta" });
      await queries.invalidateQueries();
    } catch (error) {
      setProblem(error instanceof Refused ? error.message : "The server does not answer; no table was created.");
    }
  };
  return (
    <Step at={3} title="Keep the result" isDone={status.tables.some(({ rows }) => rows)}>
      <ol className="path">
        <li><span className="muted">messages</span><strong>{count(status.rates.received)} /s</strong></li>
        <li><span className="muted">rules</span><strong>{count(status.rates.rules_passed)} rows/s</strong></li>
        <li><span className="muted">tables</span><strong>{status.tables.length ? `${count(status.tables.reduce((sum, { rows }) => sum + (rows ?? 0), 0))} rows` : "none"}</strong></li>
      </ol>
      {status.tables.length > 0 && (
        <ul className="plain">
          {status.tables.map(({ name, rows, state, reason, path }) => (
            <li key={name}><ObjectLink kind="tables" name={name} /> <State state={state} /> {count(rows)} rows<Why>{reason ?? path}</Why></li>
          ))}
        </ul>
      )}
      {loose.map(({ name }) => (
        <p key={name}><button type="button" className="primary" onClick={() => void keep(name)}>Keep stream {name} as a Delta table</button></p>
      ))}
      {!status.tables.length && !loose.length && <Empty>Save a rule first. Its rows go into a stream, and a table follows a stream.</Empty>}
      <div role="alert">{problem && <State state="failed">{problem}</State>}</div>
    </Step>
  );
}

const OUTCOMES: Record<TailedMessage["outcome"], [string, string]> = {
  passed: ["running", "passed"], transformed: ["starting", "transformed"], dropped: ["alarm", "dropped"],
};

function Arriving({ status, filter, setFilter, messages, problem }: {
  status: Status; filter: string; setFilter: (filter: string) => void; messages: TailedMessage[]; problem: string;
}) {
  const zone = useZone();
  return (
    <Card title="Arriving" note="a sample of five a second">
      <form className="inline" onSubmit={(event) => { event.preventDefault(); setFilter(String(new FormData(event.currentTarget).get("filter"))); }}>
        <label htmlFor="filter">Topic filter</label>
        <input id="filter" name="filter" required spellCheck={false} defaultValue={filter} />
        <button type="submit">Follow</button>
      </form>
      {problem && <p role="alert"><State state="failed">{problem}</State></p>}
      {messages.length ? (
        <ul className="messages">
          {messages.map((message) => {
            const [tone, word] = OUTCOMES[message.outcome];
            const { topic, payload } = input(message);
            return (
              <li key={`${message.at} ${message.client_id} ${topic}`}>
                <div><code>{topic}</code> <State state={tone}>{word}</State> <span className="muted small">{clock(Date.parse(message.at), zone)}</span></div>
                <code className="muted">{payload}</code>
                <Why>{message.refusal?.text}</Why>
              </li>
            );
          })}
        </ul>
      ) : <Empty command={publishing(status)}>No message has arrived on {filter} since this page was opened.</Empty>}
    </Card>
  );
}
