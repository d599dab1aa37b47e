// Validations and transformations: what happens to a message on a topic, in order; one gate in a form and as code, tried on
// real messages; what it does or would do; and the messages that it stopped.

import { keepPreviousData, useQuery, useQueryClient } from "@tanstack/react-query";
import { Link, useNavigate, useSearch } from "@tanstack/react-router";
import { type KeyboardEvent, type ReactNode, useDeferredValue, useState } from "react";
import { call, type Effect, getAny, type Job, moved, namesOf, patiently, Refused, sentence } from "./api";
import { CopyAs, CopySpec } from "./copyas";
import { Difference, Editor } from "./editor";
import { SchemaForm } from "./form";
import { cell, count, counted } from "./format";
import { JobView } from "./jobs";
import { type KindPage, type ObjectProps, useParameter } from "./kind";
import { type Kind, KINDS } from "./kinds";
import { Confirm } from "./list";
import { useChanges, useJobs, useObject } from "./live";
import { type Found, type Message, textOf, useMessages } from "./messages";
import { specOf } from "./object";
import type { components } from "./openapi";
import { Card, Empty, ObjectLink, State, Table, useFixed, useSelection } from "./parts";
import { clock } from "./preferences";
import { DraftStrip, EffectView, SaveBar, useDraft, useSave } from "./saving";
import { useZone } from "./shell";

type Schemas = components["schemas"];
type Step = Schemas["TrialStep"];
type Stage = Schemas["TopicStage"];
type Trial = Schemas["PipelineTrial"];
type Spec = Record<string, unknown>;
type Gate = Schemas["GateReadOnly"] & { name: string; topics: string[]; mode: "enforce" | "shadow"; failure_action: string; quarantine?: string | null; enable: boolean };

/** What is different of the two kinds. */
interface Which { path: "validations" | "transforms"; one: "validation" | "transformation"; member: "validations" | "transformations"; model: string; fresh: Spec }

const BOTH: Which[] = [
  {
    path: "validations", one: "validation", member: "validations", model: "ValidationSpec",
    fresh: { name: "", topics: [], mode: "shadow", failure_action: "drop", strategy: "all_pass", checks: [{ type: "json", schema: "" }] },
  },
  {
    path: "transforms", one: "transformation", member: "transformations", model: "TransformationSpec",
    fresh: { name: "", topics: [], mode: "enforce", failure_action: "drop", payload_decoder: { type: "json" }, payload_encoder: { type: "json" }, operations: [{ key: "payload.seen_by", value: "clientid" }] },
  },
];

// What became of a message, in words

const OUTCOMES: Record<string, [string, string]> = {
  passed: ["running", "passes"], changed: ["starting", "changed"], shadow: ["alarm", "would fail; passes, since it is in shadow mode"],
  drop: ["failed", "dropped"], disconnect: ["failed", "dropped, and its client disconnected"], ignore: ["alarm", "fails, and passes as it was"],
  no_result: ["idle", "FROM or WHERE does not match"], error: ["failed", "error"],
};

function Became({ step, isShadow }: { step: Step; isShadow: boolean }) {
  const { outcome, wrote = [], failure, rows, error } = step;
  const [tone, word] = outcome === "rows" ? ["running", counted(rows?.length, "row")] : (OUTCOMES[outcome] ?? ["alarm", outcome]);
  return (
    <div className="became">
      <State state={tone}>{outcome === "changed" && isShadow ? "would be changed; passes as it was, in shadow mode" : word}</State>
      {step.reason !== undefined && (
        <p><code>{step.path || "payload"}</code>: {step.reason} <span className="muted">by check {(step.check ?? 0) + 1}, {step.schema ? <>{step.type} schema <ObjectLink kind="schemas" name={step.schema} /></> : step.type}</span></p>
      )}
      {failure && <p>{failure.operation !== null && failure.operation !== undefined && `operation ${failure.operation + 1}: `}{failure.reason}</p>}
      {wrote.map(({ key, value }, at) => <p key={at}><code>{key}</code> = <code>{cell(value)}</code></p>)}
      {rows?.map((row, at) => <p key={at}><code>{cell(row)}</code></p>)}
      {error && <p>{error.message}</p>}
    </div>
  );
}

const preview = (body: { message: Message; validations?: Spec[]; transformations?: Spec[] }, signal?: AbortSignal) =>
  patiently(() => call<Trial>("POST", "pipeline:preview", { body, signal }), signal).then(({ body: trial }) => trial);

const KIND_OF: Record<string, string> = { validation: "validations", transformation: "transforms", rule: "rules", stream: "streams" };

// The pipeline of a topic

function Pipeline() {
  const [on, setOn] = useParameter("on", "");
  const messages = useMessages(on || "#");
  const [first, setFirst] = useState("");
  if (!first && messages[0]) setFirst(messages[0].message.topic);
  const topic = on || first;
  const known = messages.find(({ message }) => message.topic === topic);
  const { data: stages, error } = useQuery({ queryKey: ["pipeline", topic, useChanges()], queryFn: async () => ({ ...(await getAny<{ stages: Stage[] }>("pipeline", { query: { topic } })), topic }), enabled: topic !== "", placeholderData: keepPreviousData });
  const { data: tried } = useQuery({
    queryKey: ["trial", known?.message], enabled: known !== undefined, placeholderData: keepPreviousData, gcTime: 10_000,
    queryFn: async ({ signal }) => ({ message: known!.message, trial: await preview({ message: known!.message }, signal) }),
  });
  const shown = tried?.message.topic === topic ? tried : undefined;
  return (
    <Card title="What happens to a message" note={known ? (known.source === "live" ? "tried on the latest message, as published; nothing is sent" : "tried on the latest message that is stored; nothing is sent") : "no message of this topic is known"}>
      <form className="inline" onSubmit={(event) => { event.preventDefault(); setOn(String(new FormData(event.currentTarget).get("on"))); }}>
        <label htmlFor="on">On topic</label>
        <input key={topic} id="on" name="on" className="wide" list="seen" required spellCheck={false} placeholder="meters/attic" defaultValue={topic} />
        <datalist id="seen">{[...new Set(messages.map((one) => one.message.topic))].map((one) => <option key={one}>{one}</option>)}</datalist>
        <button type="submit">Show</button>
      </form>
      {error && <p role="alert"><State state="failed">{sentence(error)}</State></p>}
      {!topic && <Empty>Name a topic, and see which validations, transformations and rules a message meets there.</Empty>}
      {shown && <p className="small muted wraps">Payload: <code>{textOf(shown.message)}</code></p>}
      {stages?.topic === topic && <Order topic={topic} stages={stages.stages} trial={shown?.trial} />}
    </Card>
  );
}

/** The kinds whose order on a topic can be changed, by their stage. */
const ORDERED = new Map(KINDS.filter(({ isOrdered }) => isOrdered).map((kind) => [kind.one.toLowerCase(), kind]));

/** The files that fix stages of a topic. */
function useFiles(topic: string): Map<string, string> {
  const { data } = useQuery({
    queryKey: ["files of stages", topic, useChanges()], placeholderData: keepPreviousData,
    queryFn: async () => new Map((await Promise.all([...ORDERED].map(async ([stage, { path, api }]) => {
      const { items } = await getAny<{ items: { name: string; fixed_by: string | null }[] }>(api, { query: { [path === "rules" ? "match_from" : "topic"]: topic, limit: 1000 } });
      return items.flatMap(({ name, fixed_by }) => (fixed_by ? [[`${stage} ${name}`, fixed_by] as const] : []));
    }))).flat()),
  });
  return data ?? new Map();
}

function Order({ topic, stages, trial }: { topic: string; stages: Stage[]; trial: Trial | undefined }) {
  const queries = useQueryClient();
  const files = useFiles(topic);
  const [draft, setDraft] = useState<{ kind: Kind; stage: string; order: string[]; effect?: Effect; etag?: string; says?: string } | null>(null);
  const [held, hold] = useState<Stage | null>(null);
  const placeOf = ({ stage, name }: Stage) => (stage === draft?.stage ? draft.order.indexOf(name) : 0);
  const shown = stages.map((stage, at) => ({ stage, at })).sort((one, other) => {
    const [a, b] = [one.stage, other.stage];
    return a.stage === b.stage && a.stage === draft?.stage ? placeOf(a) - placeOf(b) : one.at - other.at;
  }).map(({ stage }) => stage);
  const steps = new Map(trial?.steps.map((step) => [`${step.stage} ${step.name}`, step]));
  const further = trial?.steps.filter(({ stage, name }) => !stages.some((one) => one.stage === stage && one.name === name)) ?? [];

  /** Put a stage where another one of its kind is. */
  const move = async ({ stage, name }: Stage, target: Stage | undefined) => {
    const kind = ORDERED.get(stage);
    if (!kind || target?.stage !== stage || target.name === name) return;
    try {
      const known = draft?.kind === kind ? draft.order : await namesOf(kind.api);
      const order = moved(known, name, target.name);
      setDraft({ kind, stage, order });
      const { body, etag } = await call<Effect>("POST", `${kind.api}:reorder`, { body: { order }, query: { dry_run: true } });
      setDraft({ kind, stage, order, effect: body, etag });
    } catch (error) {
      setDraft((now) => now && { ...now, says: sentence(error) });
    }
  };
  const save = async () => {
    if (!draft) return;
    try {
      await call("POST", `${draft.kind.api}:reorder`, { body: { order: draft.order }, etag: draft.etag });
      await queries.invalidateQueries();
      setDraft(null);
    } catch (error) {
      setDraft({ ...draft, says: error instanceof Refused && error.status === 412 ? "Somebody else changed the order. Try: Discard, which loads the current order" : sentence(error) });
    }
  };
  const press = (stage: Stage, at: number) => (event: KeyboardEvent) => {
    if (!event.altKey || (event.key !== "ArrowUp" && event.key !== "ArrowDown")) return;
    event.preventDefault();
    void move(stage, shown[at + (event.key === "ArrowUp" ? -1 : 1)]);
  };
  let isStopped = false;
  return (
    <>
      <ol className="pipeline" aria-label="Stages in their order">
        {shown.map((stage, at) => {
          const step = steps.get(`${stage.stage} ${stage.name}`);
          const was = isStopped;
          if (step?.outcome === "drop" || step?.outcome === "disconnect") isStopped = true;
          const file = files.get(`${stage.stage} ${stage.name}`);
          const canMove = ORDERED.has(stage.stage) && !file;
          return (
            <li key={`${stage.stage} ${stage.name}`} className={was ? "after" : held === stage ? "held" : ""} draggable={canMove}
              onDragStart={(event) => { hold(stage); event.dataTransfer.effectAllowed = "move"; }} onDragEnd={() => hold(null)}
              onDragOver={(event) => held?.stage === stage.stage && event.preventDefault()}
              onDrop={(event) => { event.preventDefault(); if (held) void move(held, stage); }}>
              <div>
                {ORDERED.has(stage.stage) && <button type="button" className="quiet grip" disabled={!canMove} aria-label={`Move ${stage.name}: Alt ↑ or Alt ↓`} title={file ? `The file ${file} fixes its place` : "Drag, or Alt ↑ and Alt ↓"} onKeyDown={press(stage, at)}>⠿</button>}
                <span className="muted">{stage.stage}</span> {KIND_OF[stage.stage] ? <ObjectLink kind={KIND_OF[stage.stage]!} name={stage.name} /> : null}
                {!stage.enabled && <> <State state="disabled" /></>}{stage.mode === "shadow" && <> <State state="alarm">shadow</State></>}
                {stage.does && <p className="muted small does">{stage.does}</p>}
              </div>
              {step ? <Became step={step} isShadow={stage.mode === "shadow"} /> : was && <span className="muted">not reached</span>}
            </li>
          );
        })}
        {further.map((step) => (
          <li key={`${step.stage} ${step.name}`}><div><span className="muted">{step.stage}</span> <ObjectLink kind={KIND_OF[step.stage] ?? "rules"} name={step.name} /> <span className="muted">on the changed topic</span></div><Became step={step} isShadow={false} /></li>
        ))}
      </ol>
      <div role="status">
        {draft && <p className="small">{draft.kind.many}: {draft.order.join(" → ")}</p>}
        {draft?.effect && <EffectView effect={draft.effect} />}
        {draft?.says && <State state="failed">{draft.says}</State>}
      </div>
      {draft && <div className="buttons"><button type="button" className="primary" disabled={!draft.etag} onClick={() => void save()}>Save the order</button><button type="button" onClick={() => setDraft(null)}>Discard</button></div>}
    </>
  );
}

// One gate: a form, the same as code, and what it does to real messages

const pretty = (value: unknown) => JSON.stringify(value, null, 2);

/** A message as text to compare: a payload of JSON as JSON. */
function written(message: { topic: string; payload?: unknown; qos?: number; retain?: boolean; user_properties?: unknown }) {
  const { topic, qos = 0, retain = false, user_properties: user = [] } = message;
  const text = textOf(message);
  let payload: unknown = text;
  try {
    payload = JSON.parse(text);
  } catch {
    // not JSON: unchanged
  }
  return pretty({ topic, qos, retain, user_properties: Array.isArray(user) ? user : Object.entries(user as object), payload });
}

/** The object as code. The text stays as typed while it means the same as the form. */
function Code({ value, onChange }: { value: Spec; onChange: (value: Spec) => void }) {
  const [typed, setTyped] = useState({ text: "", means: "" });
  const now = JSON.stringify(value);
  const change = (text: string) => {
    try {
      const read = JSON.parse(text);
      if (typeof read !== "object" || read === null || Array.isArray(read)) throw new Error("expected an object");
      setTyped({ text, means: JSON.stringify(read) });
      onChange(read);
    } catch {
      setTyped({ text, means: now });
    }
  };
  const lint = async (text: string) => {
    try {
      JSON.parse(text);
      return [];
    } catch (error) {
      return [{ message: `code: expected JSON. ${(error as Error).message}. The form shows the last text that was`, severity: "error" as const }];
    }
  };
  const [check] = useState(() => lint);
  return <Editor label="As code" language="json" readOnly={useFixed()} value={typed.means === now ? typed.text : pretty(value)} onChange={change} lint={check} />;
}

function Form({ which, draft, isNew, children }: { which: Which; draft: { value: Spec; set: (value: Spec) => void }; isNew: boolean; children: ReactNode }) {
  const [problems, setProblems] = useState<{ pointer?: string; message: string }[]>([]);
  return (
    <>
      <div className="halves">
        <Card title="Settings"><SchemaForm schema={{ $ref: `#/components/schemas/${which.model}` }} value={draft.value} onChange={draft.set} skip={isNew ? [] : ["name"]} problems={problems} /></Card>
        <Card title="The same as code" note={<CopySpec kind={which.path} name={String(draft.value.name || "unnamed")} spec={draft.value} />}>
          <Code value={draft.value} onChange={draft.set} />
        </Card>
      </div>
      <Preview which={which} draft={draft.value} setProblems={setProblems} />
      {children}
    </>
  );
}

const labelOf = ({ at, source, message }: Found) => `${at.slice(11, 19)} ${source} ${message.topic} ${textOf(message).slice(0, 40)}`;

/** What became of which message; ``ended`` names the stages at which newer ones ended before the gate. */
interface Tried { trial?: Trial; on?: Sample; ended: string[]; says: string }
type Sample = Pick<Found, "message" | "source">;

const MOST_TRIED = 10;

/** The step of a gate, if the message reached it. */
const reaches = (trial: Trial, { one }: Which, name: string) => trial.steps.find((step) => step.stage === one && step.name === name);

function Preview({ which, draft, setProblems }: { which: Which; draft: Spec; setProblems: (problems: { pointer?: string; message: string }[]) => void }) {
  const topics = Array.isArray(draft.topics) ? (draft.topics as string[]) : [];
  const [filter, setFilter] = useState("");
  const [chosen, choose] = useState<Found | null>(null);
  const [own, setOwn] = useState<{ topic: string; payload: string } | null>(null);
  const wanted = filter || topics.find(Boolean) || "#";
  const messages = useMessages(wanted);
  const name = String(draft.name || "unnamed");
  const candidates: Sample[] = own ? [{ message: own, source: "live" }] : (chosen ? [chosen] : messages.slice(0, MOST_TRIED)).map(({ message, source }) => ({ message, source }));
  const asked = useDeferredValue(JSON.stringify([draft, candidates]));
  const { data } = useQuery({
    queryKey: ["trial", which.path, asked],
    queryFn: async ({ signal }): Promise<Tried> => {
      await new Promise((go) => setTimeout(go, 150)); // skip this request if the user types on
      signal.throwIfAborted();
      const [spec, given] = JSON.parse(asked) as [Spec, Sample[]];
      const attempt = (message: Message) => preview({ message, [which.member]: [{ ...spec, name, enable: true }] }, signal);
      const ended = new Set<string>();
      let newest: Pick<Tried, "trial" | "on"> = {};
      try {
        if (!given.length) await attempt({ topic: "none" }).then(() => setProblems([])); // checks the draft
        for (const on of given) {
          const trial = await attempt(on.message);
          setProblems([]);
          if (reaches(trial, which, name)) return { trial, on, ended: [...ended], says: "" };
          if (trial.ended_by) ended.add(`${trial.ended_by.stage} ${trial.ended_by.name}`);
          if (!newest.trial) newest = { trial, on };
        }
        return { ...newest, ended: [...ended], says: "" };
      } catch (error) {
        if (!(error instanceof Refused)) throw error;
        const errors = error.problem?.errors ?? [];
        setProblems(errors.map((one) => ({ ...one, pointer: one.pointer?.replace(`/${which.member}/0`, ""), message: one.suggestion ? `${one.message}; ${one.suggestion}` : one.message })));
        return { ended: [], says: errors.map(({ message: why }) => why).join("; ") || error.message };
      }
    },
    placeholderData: keepPreviousData, staleTime: Infinity, gcTime: 10_000, enabled: topics.some(Boolean),
  });
  const { trial, on } = data ?? {};
  const message = on?.message;
  const mine = trial && reaches(trial, which, name);
  const ends = data?.ended.join(", ");
  return (
    <Card title="On real messages" note="evaluated as you type; nothing is saved or sent">
      <form className="inline" onSubmit={(event) => { event.preventDefault(); choose(null); setFilter(String(new FormData(event.currentTarget).get("filter"))); }}>
        <label htmlFor="filter">Messages on</label>
        <input id="filter" name="filter" spellCheck={false} placeholder={wanted} defaultValue={filter} />
        <button type="submit">Follow</button>
        {!own && messages.length > 0 && (
          <label>Message <select value={chosen ? labelOf(chosen) : ""} onChange={(event) => choose(messages.find((one) => labelOf(one) === event.target.value) ?? null)}>
            <option value="">the newest that reaches it</option>
            {[...new Set([...(chosen ? [chosen] : []), ...messages].map(labelOf))].map((label) => <option key={label}>{label}</option>)}
          </select></label>
        )}
        <button type="button" onClick={() => setOwn(own ? null : { topic: message?.topic ?? topics[0]?.replace(/[+#]/g, "x") ?? "", payload: message ? textOf(message) : "{}" })}>{own ? "Real messages" : "Write one"}</button>
      </form>
      {own && (
        <div className="fields across">
          <label>Topic <input spellCheck={false} value={own.topic} onChange={(event) => setOwn({ ...own, topic: event.target.value })} /></label>
          <label>Payload <textarea rows={3} spellCheck={false} value={own.payload} onChange={(event) => setOwn({ ...own, payload: event.target.value })} /></label>
        </div>
      )}
      {!candidates.length && <Empty>No message of {wanted} is known yet. The next one that arrives is shown here; or write one.</Empty>}
      <div role="alert">{data?.says && <State state="failed">{data.says}</State>}</div>
      {trial && message && (
        <div className="stack" aria-live="polite">
          <div>
            <h3>Step by step</h3>
            {!mine && candidates.length > 1 && <p className="note">None of the last {candidates.length} messages reaches this {which.one}{ends ? `: ${ends} ${data?.ended.length === 1 ? "stops" : "stop"} them` : ""}. Below is the newest.</p>}
            {!mine && candidates.length === 1 && <p className="note">{ends ? `The message does not reach this ${which.one}: ${ends} stops it.` : `This ${which.one} does not act on ${message.topic}.`}</p>}
            {mine && ends && <p className="muted">The newest message that reaches this {which.one}. Newer ones end at {ends}.</p>}
            <ol className="pipeline">
              {trial.steps.map((step) => (
                <li key={`${step.stage} ${step.name}`} className={step === mine ? "mine" : ""}>
                  <div><span className="muted">{step.stage}</span> <strong>{step.name}</strong></div><Became step={step} isShadow={step === mine && draft.mode === "shadow"} />
                </li>
              ))}
              {trial.message && <li><div><span className="muted">then</span> <strong>subscribers</strong></div><code>{textOf(trial.message)}</code></li>}
            </ol>
          </div>
          <div>
            <h3>{trial.message ? "Before and after" : "The message, which goes no further"}</h3>
            {trial.message ? <Difference before={written(message)} after={written(trial.message)} language="json" titles={[on?.source === "live" ? "Published" : "Stored, after the stages of then", "Delivered"]} /> : <pre className="source">{written(message)}</pre>}
          </div>
        </div>
      )}
      {messages.length > 0 && !data?.says && <Forecast which={which} draft={draft} messages={messages} />}
    </Card>
  );
}

interface Shape { times: number; path: string; reason: string; topic: string }

/** What a draft would do to the messages that are known, as if it were enforced. */
function Forecast({ which, draft, messages }: { which: Which; draft: Spec; messages: Found[] }) {
  const [found, setFound] = useState<{ of: string; matched: number; shapes: Shape[] } | null>(null);
  const [says, setSays] = useState("");
  const zone = useZone();
  const of = JSON.stringify(draft);
  const run = async () => {
    const shapes = new Map<string, Shape>();
    let matched = 0;
    const name = String(draft.name || "unnamed");
    for (const { message } of messages) {
      const trial = await preview({ message, [which.member]: [{ ...draft, name, enable: true, mode: "enforce" }] });
      const step = reaches(trial, which, name);
      if (!step) continue;
      matched += 1;
      if (step.outcome === "passed" || step.outcome === "changed") continue;
      const [path, reason] = [step.path ?? "", step.reason ?? step.failure?.reason ?? ""];
      const shape = shapes.get(path) ?? { times: 0, path, reason, topic: message.topic };
      shapes.set(path, { ...shape, times: shape.times + 1 });
    }
    setFound({ of, matched, shapes: [...shapes.values()] });
  };
  const press = () => void run().then(() => setSays(""), (error) => setSays(sentence(error)));
  const failed = found?.shapes.reduce((sum, { times }) => sum + times, 0) ?? 0;
  return (
    <div className="forecast" role="status">
      <button type="button" onClick={press}>Forecast on the last {counted(messages.length, "message")}</button>
      {messages.some(({ source }) => source === "stream") && <p className="muted small">Streams keep what passed; a validation in shadow mode counts all that arrive.</p>}
      {says && <State state="failed">{says}</State>}
      {found?.of === of && (
        <>
          <p><State state={failed ? "alarm" : "done"}>{`Would have stopped ${share(failed, found.matched)} since ${clock(Date.parse(messages.at(-1)?.at ?? ""), zone)}`}</State></p>
          <ul className="plain">{found.shapes.map(({ times, path, reason, topic }) => <li key={path}>{count(times)} × <code>{path || "payload"}</code>: {reason} <span className="muted">for example on {topic}</span></li>)}</ul>
        </>
      )}
    </div>
  );
}

const percent = new Intl.NumberFormat("en", { style: "percent", maximumSignificantDigits: 2 });
const share = (failed: number, matched: number) => `${count(failed)} of ${counted(matched, "message")}${matched ? ` (${percent.format(failed / matched)})` : ""}`;

const Change = (which: Which) => function Changed({ name, object, etag }: ObjectProps<Gate>) {
  const own = (shown: Spec): Spec => ({ name, ...specOf(shown) });
  const draft = useDraft<Spec>(`${which.path}/${name}`, own(object as unknown as Spec), etag);
  const saving = useSave({ kind: which.path, name, etag: draft.etag });
  return (
    <>
      <DraftStrip draft={draft} />
      <Form which={which} draft={draft} isNew={false}>
        <SaveBar saving={saving} body={draft.value} isChanged={draft.isChanged} onDiscard={draft.discard} onSaved={(saved, tag) => draft.settle(own(saved), tag)} />
      </Form>
    </>
  );
};

const Create = (which: Which) => function Created() {
  const navigate = useNavigate();
  const { schema, type } = useSearch({ strict: false }) as { schema?: string; type?: string };
  const fresh = schema && which.path === "validations" ? { ...which.fresh, checks: [{ type, schema }] } : which.fresh;
  const draft = useDraft<Spec>(`${which.path}/new`, fresh);
  const saving = useSave({ kind: which.path });
  const done = (name: string) => {
    draft.settle(fresh, "");
    void navigate({ to: "/$kind/$name", params: { kind: which.path, name } } as never);
  };
  return (
    <>
      <DraftStrip draft={draft} />
      <Form which={which} draft={draft} isNew>
        <SaveBar saving={saving} body={draft.value} isChanged={draft.isChanged} onDiscard={draft.discard} onSaved={(saved) => done(String(saved.name))} />
      </Form>
    </>
  );
};

// What a gate did, and what it stopped

const Watch = (which: Which) => function Watched({ name, object, etag }: ObjectProps<Gate>) {
  const zone = useZone();
  const isFixed = useFixed();
  const [isAsking, ask] = useState(false);
  const { metrics, recent_failures: failures, failure_shapes: shapes, mode } = object;
  const isShadow = mode === "shadow";
  const failed = share(metrics.failed, metrics.matched);
  const counted = shapes.reduce((sum, shape) => sum + shape.count, 0);
  return (
    <>
      <Card title={isShadow ? "Forecast" : "Failures"} note={`since ${clock(Date.parse(metrics.since), zone, "full")}`}>
        <p><State state={metrics.failed ? "alarm" : "done"}>{isShadow ? `In shadow mode: would have stopped ${failed}` : `${failed} failed`}</State></p>
        {metrics.matched === 0 && <Empty>No message on {object.topics.join(", ")} since then.</Empty>}
        {shapes.length > 0 && (
          <Table label="Shapes of failures" rows={shapes} keyOf={(_, at) => at} columns={[
            { title: "Messages", kind: "num", show: (shape) => count(shape.count) },
            { title: "Where", kind: "mono", show: ({ last }) => <code>{last.path || "payload"}</code> },
            { title: "Why, of the last one", kind: "why", show: ({ last }) => last.reason },
            { title: which.one === "validation" ? "Check" : "Operation", kind: "fit", show: ({ last }) => (last.check ? `${last.check.index + 1}: ${last.check.schema ?? last.check.type}` : last.operation === null || last.operation === undefined ? last.kind : last.operation + 1) },
            { title: "Topic", kind: "mono", show: ({ last }) => <code>{last.topic}</code> },
          ]} />
        )}
        {counted < metrics.failed && <p className="muted">{count(metrics.failed - counted)} further failures have other shapes.</p>}
        {isShadow && <div className="buttons"><button type="button" className="primary" disabled={isFixed} onClick={() => ask(true)}>Enforce…</button></div>}
        {isAsking && <Confirm title={`Enforce ${which.one} ${name}`} method="PATCH" path={`${which.path}/${name}`} body={{ mode: "enforce" }} etag={etag} close={() => ask(false)} />}
      </Card>
      <Card title="Counters">
        <dl className="facts">
          {([["Matched", metrics.matched], ["Passed", metrics.succeeded], ["Failed", metrics.failed], ["Kept in quarantine", metrics.quarantined], ["Messages a second, now", metrics.rate], ["On average over 5 min", metrics.rate_last5m], ["At most", metrics.rate_max]] as const)
            .map(([word, value]) => <div key={word}><dt>{word}</dt><dd>{count(value)}</dd></div>)}
        </dl>
      </Card>
      <Card title="Last failures" note="without payloads; newest first">
        {failures.length ? (
          <Table label="Last failures" rows={[...failures].reverse()} keyOf={(_, at) => at} columns={[
            { title: "Time", kind: "fit", show: ({ time_ms }) => clock(time_ms, zone), exact: ({ time_ms }) => clock(time_ms, zone, "full") },
            { title: "Topic", kind: "mono", show: ({ topic }) => <code>{topic}</code> },
            { title: "Client", kind: "mono", show: ({ clientid }) => <code>{clientid}</code> },
            { title: "Where", kind: "mono", show: ({ path }) => <code>{path || "payload"}</code> },
            { title: "Why", kind: "why", show: ({ reason }) => reason },
            { title: "Then", kind: "fit", show: ({ action }) => action },
          ]} />
        ) : <Empty>None failed.</Empty>}
      </Card>
      <Quarantine stream={object.quarantine ?? ""} />
    </>
  );
};

const MOST_QUARANTINED = 100;

function Quarantine({ stream }: { stream: string }) {
  if (stream) return <Kept key={stream} stream={stream} />;
  return (
    <Card title="Quarantine">
      <Empty>Messages that it stops are not kept. <Link to="." search={{ tab: "change" } as never}>Set its quarantine</Link> to a stream of rows, to keep them and publish them again after a fix.</Empty>
    </Card>
  );
}

function Kept({ stream }: { stream: string }) {
  const [job, setJob] = useState<string | null>(null);
  const [says, setSays] = useState("");
  const held = useObject<Schemas["StreamObject"]>("streams", stream).data?.object?.positions;
  const work = Object.values(useJobs() ?? {}).flatMap(({ id, kind, name, state, progress }) => (kind === "quarantine" && name === stream ? [[id, state, progress.done]] : []));
  const place = `quarantine/${encodeURIComponent(stream)}`;
  const { data, error } = useQuery({ queryKey: ["quarantine", stream, held, work], placeholderData: keepPreviousData, queryFn: () => getAny<Schemas["QuarantineView"]>(place, { query: { limit: MOST_QUARANTINED } }) });
  const [chosen, select] = useSelection(data?.items ?? [], ({ shard, offset }) => `${shard}/${offset}`);
  const records = chosen.map(({ shard, offset }) => `${shard}/${offset}`);
  const verb = `${place}:take-again${records.length ? `?${records.map((one) => `record=${one}`).join("&")}` : ""}`;
  const body = { limit: 10_000 };
  const again = async () => {
    try {
      setJob((await call<Job>("POST", verb, { body, isAsync: true })).body.id);
      setSays("");
    } catch (error) {
      setSays(sentence(error));
    }
  };
  return (
    <Card title="Quarantine" note={<ObjectLink kind="streams" name={stream} />}>
      {error && <p role="alert"><State state="failed">{sentence(error)}</State></p>}
      {data && <p role="status">{counted(data.waiting, "message")} in stream {stream}.{data.waiting > data.items.length && ` Below are the oldest ${data.items.length}.`}</p>}
      {data && data.items.length > 0 && (
        <>
          <div className="buttons">
            <button type="button" className="primary" onClick={() => void again()}>Publish {chosen.length ? `${chosen.length} selected` : count(data.waiting)} again</button>
            <CopyAs path={verb} method="POST" body={body} cli={`sluice quarantine take-again ${stream}${records.map((one) => ` --record ${one}`).join("")}`} />
          </div>
          <Table label="Messages in quarantine" rows={data.items} keyOf={(row) => `${row.shard} ${row.offset}`} columns={[
            select,
            { title: "Offset", kind: "num", show: ({ offset }) => offset },
            { title: "Stopped by", kind: "fit", show: (row) => row.name },
            { title: "Topic", kind: "mono", show: ({ topic }) => <code>{topic}</code> },
            { title: "Where", kind: "mono", show: ({ path: at }) => <code>{at || "payload"}</code> },
            { title: "Why", kind: "why", show: ({ reason }) => reason },
            { title: "Payload", kind: "mono", show: ({ payload }) => <code>{payload}</code> },
          ]} />
          <p className="muted small">They pass all stages again; what fails again comes back with its new reason.</p>
        </>
      )}
      <div role="alert">{says && <State state="failed">{says}</State>}</div>
      {job && <JobView id={job}>{({ result }) => <p role="status">{count(result?.published as number)} published, {count(result?.failed as number)} failed again.</p>}</JobView>}
    </Card>
  );
}

const pageOf = (which: Which): KindPage<Gate> => ({
  columns: [
    { title: "Topics", kind: "mono", show: ({ topics }) => <code>{topics.join(", ")}</code> },
    { title: "Mode", kind: "fit", show: ({ mode, failure_action }) => (mode === "shadow" ? <State state="alarm">shadow</State> : failure_action) },
    { title: "Matched", kind: "num", show: ({ metrics }) => count(metrics.matched) },
    { title: "Failed", kind: "num", show: ({ metrics }) => (metrics.failed ? `${count(metrics.failed)} (${percent.format(metrics.failed / metrics.matched)})` : 0) },
    { title: "Per second", kind: "num", show: ({ metrics }) => count(metrics.rate) },
  ],
  filters: [{ name: "topic", label: "Topic" }, { name: "schema_name", label: "Schema" }, { name: "mode", label: "Mode", values: ["enforce", "shadow"] }],
  above: () => <Pipeline />,
  tabs: [{ title: "Watch", show: Watch(which) }, { title: "Change", show: Change(which) }],
  create: Create(which),
});

export const [validations, transforms] = BOTH.map(pageOf) as [KindPage<Gate>, KindPage<Gate>];
