// Tests a rule while it is edited, on real messages, records, events or a message written by hand, and shows each step
// with its values.

import { keepPreviousData, useIsFetching, useQuery, useQueryClient } from "@tanstack/react-query";
import { useNavigate, useSearch } from "@tanstack/react-router";
import { type ReactNode, useEffect, useRef, useState } from "react";
import { call, getAny, Refused, type RuleOutcome, sentence } from "../../api/client";
import { parseJson } from "../../api/json";
import { useEvery, useNow, useRested } from "../../api/live";
import type { components } from "../../api/openapi";
import { Card, Empty, State } from "../../parts/card";
import { word } from "../../parts/copy";
import { CopyAs } from "../../parts/copy-as";
import { Editor } from "../../parts/editor";
import { ago } from "../../parts/format";
import { useFixed } from "../../parts/read-only";
import { type Event, type EventKind, isTopic, PATIENT } from "./sql";

type Schemas = components["schemas"];
type Explanation = Schemas["Explanation"];
type Step = Schemas["ExplainStep"];
type Value = Schemas["ExplainedValue"];

/** What a rule evaluates, as bodies of trials have it. */
export type Program = { sql: string } | { language: "jq"; jq: string; from?: string[] };
interface Sample {
  key: string;
  title: string;
  at?: string;
  event: Event;
  refusal?: Schemas["RefusalView"] | null;
}

const KEPT = 20;
/** Waiting for the next message changes plans of the broker: not with every look. */
const FRESH_MS = 10_000;

/** The last messages on the topics of FROM that reached rules, newest first, as validations and transformations left
 *  them; those that come in are  added. Dropped ones are shown while no other is known. They are asked for, since a
 *  tail has no events  as rules get them, and some of a stream from before it was opened. */
export function useLatest(sources: string[]): Sample[] {
  const queries = useQueryClient();
  const filters = sources.filter(isTopic).slice(0, 5);
  const queryKey = ["latest", filters];
  const { data = [] } = useQuery({
    queryKey,
    queryFn: async ({ signal }) => {
      const known = queries.getQueryData<Sample[]>(queryKey) ?? [];
      const isFresh = known[0]?.at !== undefined && Date.now() - Date.parse(known[0].at) < FRESH_MS;
      const lists = await Promise.all(
        filters.map((filter) =>
          getAny<Schemas["LatestMessages"]>("topics/latest", {
            query: { filter, limit: KEPT, wait: isFresh ? 0 : 2 },
            signal,
          }).catch((error) => {
            if (error instanceof Refused && error.status === 422) return { items: [] };
            throw error;
          }),
        ),
      );
      const found = lists.flatMap(({ items }) =>
        items.map(({ at, event, refusal }): Sample => ({
          key: `${at} ${event.topic} ${event.payload.data}`,
          title: event.topic,
          at,
          event: event as unknown as Event,
          refusal,
        })),
      );
      const all = new Map([...known, ...found].map((one) => [one.key, one]));
      const sorted = [...all.values()].sort((a, b) => (b.at ?? "").localeCompare(a.at ?? ""));
      const reached = sorted.filter(({ refusal }) => !refusal);
      return (reached.length ? reached : sorted).slice(0, KEPT);
    },
    enabled: filters.length > 0,
    refetchInterval: useEvery(2000),
  });
  return data;
}

interface Stream {
  name: string;
  kind: string;
  topics: string[];
}
export const useStreams = (isNeeded = true) =>
  useQuery({
    queryKey: ["streams of topics"],
    queryFn: () => getAny<{ items: Stream[] }>("streams", { query: { limit: 200 } }),
    enabled: isNeeded,
  });

interface StreamRecord {
  shard: number;
  offset: string;
  at: string;
  topic: string;
  payload: unknown;
  qos: number;
  clientid: string;
}

/** The newest records of a stream, or those from one offset on. */
function useRecords(stream: string | undefined, from: { shard?: number; offset?: string }): Sample[] {
  const { data = [] } = useQuery({
    queryKey: ["samples", stream, from.shard, from.offset],
    enabled: stream !== undefined,
    ...PATIENT,
    queryFn: async () => {
      const read = (shard: number, from: string) =>
        getAny<{ items: StreamRecord[] }>(`streams/${stream}/records`, { query: { shard, from, limit: KEPT } });
      const newest = async () => {
        const { shards } = await getAny<{ shards: { shard: number; first_offset: string; next_offset: string }[] }>(
          `streams/${stream}/positions`,
        );
        const pages = await Promise.all(
          shards
            .slice(0, 16)
            .map(({ shard, first_offset, next_offset }) =>
              read(
                shard,
                String([BigInt(next_offset) - BigInt(KEPT), BigInt(first_offset)].reduce((a, b) => (a > b ? a : b))),
              ),
            ),
        );
        return pages
          .flatMap(({ items }) => items)
          .sort((a, b) => b.at.localeCompare(a.at))
          .slice(0, KEPT);
      };
      return (from.offset === undefined ? await newest() : (await read(from.shard ?? 0, from.offset)).items).map(
        (one): Sample => ({
          key: `${one.shard}/${one.offset}`,
          title: `${one.topic} at offset ${one.offset}`,
          at: one.at,
          event: { topic: one.topic, payload: one.payload, qos: one.qos, clientid: one.clientid },
        }),
      );
    },
  });
  return data;
}

const EVALUATED = ["evaluated"];
const INPUTS = [
  ["latest", "Last messages"],
  ["stream", "Stream"],
  ["event", "Event"],
  ["own", "By hand"],
] as const;
type Input = (typeof INPUTS)[number][0];

/** A value that changes, except while it is in use. */
function useHeld<T>(value: T, isInUse: boolean): T {
  const held = useRef(value);
  if (!isInUse) held.current = value;
  return held.current;
}

export function TestPanel({
  program,
  actions,
  sources,
  latest: newest,
  events,
  onCase,
}: {
  program: Program;
  actions: unknown[];
  sources: string[];
  latest: Sample[];
  events: EventKind[];
  onCase: (event: Event, outcome: RuleOutcome) => void;
}) {
  const search = useSearch({ strict: false }) as {
    input?: Input;
    stream?: string;
    shard?: number;
    offset?: string | number;
  };
  const navigate = useNavigate();
  const set = (changed: object) =>
    void navigate({ to: ".", search: (known: object) => ({ ...known, ...changed }), replace: true } as never);
  const readsEvents = sources.length > 0 && !sources.some(isTopic);
  const input: Input = INPUTS.some(([one]) => one === search.input)
    ? search.input!
    : search.stream
      ? "stream"
      : readsEvents
        ? "event"
        : "latest";
  const streams = useStreams(input === "stream").data?.items.filter(({ kind }) => kind === "topics") ?? [];
  const stream = search.stream ?? streams[0]?.name;
  const records = useRecords(input === "stream" ? stream : undefined, {
    shard: search.shard,
    offset: search.offset === undefined ? undefined : String(search.offset),
  });
  // else each message would end the evaluation before it
  const latest = useHeld(newest, useIsFetching({ queryKey: EVALUATED }) > 0);
  const isFixed = useFixed();
  const [own, setOwn] = useState<Sample>();
  const eventsOf = events
    .filter(({ topic }) => !readsEvents || sources.includes(topic))
    .concat(readsEvents ? events.filter(({ topic }) => !sources.includes(topic)) : []);
  const arrived = {
    latest,
    stream: records,
    event: eventsOf.map(({ name, topic, example }): Sample => ({ key: name, title: topic, event: example })),
    own: own ? [own] : [],
  }[input];
  const [picked, pick] = useState<{ from: string; sample: Sample }>();
  const from = `${input} ${stream} ${search.offset}`;
  const chosen = picked?.from === from ? picked.sample : undefined;
  // it stays when others have taken its place
  const samples = chosen && !arrived.some(({ key }) => key === chosen.key) ? [...arrived, chosen] : arrived;
  const seen = samples.filter(({ refusal }) => !refusal);
  const sample = chosen ?? seen[0] ?? samples[0];
  const refusal = sample?.refusal;
  const rested = useRested({
    program,
    actions,
    samples: seen.map(({ key, event }) => ({ key, event })),
    event: refusal ? undefined : sample?.event,
  });
  const many = useQuery({
    queryKey: [...EVALUATED, "outcomes", rested.program, rested.samples],
    enabled: rested.samples.length > 0,
    placeholderData: keepPreviousData,
    staleTime: Infinity,
    ...PATIENT,
    queryFn: async ({ signal }) => {
      const { matched, outcomes } = (
        await call<Schemas["RuleOutcomes"]>("POST", "rules:test-many", {
          body: { ...rested.program, events: rested.samples.map(({ event }) => event) },
          signal,
        })
      ).body;
      return { matched, outcomes: new Map(rested.samples.map(({ key }, at) => [key, outcomes[at]?.outcome])) };
    },
  });
  const isValid = !many.isError;
  const explained = useQuery({
    queryKey: [...EVALUATED, "explain", rested.program, rested.actions, rested.event],
    enabled: rested.event !== undefined && isValid,
    placeholderData: keepPreviousData,
    staleTime: Infinity,
    ...PATIENT,
    queryFn: async ({ signal }) => ({
      event: rested.event!,
      ...(
        await call<Explanation>("POST", "rules:explain", {
          body: { ...rested.program, actions: rested.actions, event: rested.event },
          signal,
        })
      ).body,
    }),
  });
  const says = many.error ?? explained.error ?? many.failureReason ?? explained.failureReason;
  return (
    <>
      <Card title="Test" note="actions do not run">
        <div className="choice" role="group" aria-label="Test on">
          {INPUTS.map(([one, title]) => (
            <button key={one} type="button" aria-pressed={one === input} onClick={() => set({ input: one })}>
              {title}
            </button>
          ))}
        </div>
        {input === "stream" &&
          (streams.length ? (
            <label className="field">
              Stream
              <select
                value={stream}
                onChange={(event) => set({ stream: event.target.value, shard: undefined, offset: undefined })}>
                {streams.map(({ name }) => (
                  <option key={name}>{name}</option>
                ))}
              </select>
            </label>
          ) : (
            <Empty>No stream captures messages. A stream with topics keeps them, to test and back-test rules on.</Empty>
          ))}
        {input === "own" && (
          <p className="small muted">
            The message as the rule sees it: behind validations and transformations, which do not run here.
          </p>
        )}
        {input === "own" && <Own start={latest[0]?.event} setSample={setOwn} />}
        {input === "latest" && !samples.length && <Waiting sources={sources} />}
        {samples.length > 0 && input !== "own" && (
          <Samples
            samples={samples}
            outcomes={isValid ? many.data?.outcomes : undefined}
            matched={isValid ? many.data?.matched : undefined}
            chosen={sample?.key}
            choose={(sample) => pick({ from, sample })}
          />
        )}
        {says && (
          <p role="status">
            <State state="failed">
              {many.isError || explained.isError
                ? "The rule has a problem; see the editor."
                : `${sentence(says)} Trying again.`}
            </State>
          </p>
        )}
        {refusal && (
          <p id="result">
            <State state="failed">
              {`The ${refusal.stage} ${refusal.name} dropped this message; no rule sees it.`}
            </State>{" "}
            {refusal.text}
          </p>
        )}
        {sample && !refusal && isValid && explained.data && (
          <>
            <Result outcome={explained.data} />
            <div className="buttons">
              <button type="button" disabled={isFixed} onClick={() => onCase(explained.data.event, explained.data)}>
                Keep as test case
              </button>
              <CopyAs
                path="rules:explain"
                body={{ ...program, actions, event: sample.event }}
                cli={cliOf(program, sample.event)}
              />
            </div>
          </>
        )}
      </Card>
      {sample && !refusal && isValid && explained.data && (
        <Card title="Step by step">
          <Steps steps={explained.data.steps} />
        </Card>
      )}
    </>
  );
}

function cliOf(program: Program, event: Event): string {
  const what = "sql" in program ? `--sql ${word(program.sql)}` : `--language jq --sql ${word(program.jq)}`;
  return `echo ${word(JSON.stringify(event))} | sluice rules ${"sql" in program ? "explain" : "run"} ${what} --event -`;
}

function Waiting({ sources }: { sources: string[] }) {
  const topic = sources.find(isTopic)?.replaceAll("+", "1").replace("#", "1");
  return (
    <Empty command={topic && `sluice publish ${word(topic)} '{"temp": 21.5}'`}>
      {sources.length
        ? `No message on ${sources.join(", ")} is known. ` +
          "The page waits for one; a stream or a retained message is found at once."
        : "Write FROM, and the last messages on its topics appear here."}
    </Empty>
  );
}

const OUTCOMES: Record<RuleOutcome["outcome"], [string, string]> = {
  rows: ["running", "row"],
  no_result: ["idle", "no result"],
  error: ["failed", "error"],
};

function Samples({
  samples,
  outcomes,
  matched,
  chosen,
  choose,
}: {
  samples: Sample[];
  outcomes: Map<string, RuleOutcome["outcome"] | undefined> | undefined;
  matched?: number;
  chosen?: string;
  choose: (sample: Sample) => void;
}) {
  const now = useNow();
  return (
    <>
      <p role="status" className="small muted">
        {matched === undefined ? `${samples.length} to test on` : `${matched} of the last ${samples.length} match`}
      </p>
      <ul className="samples" aria-label="Messages">
        {samples.map((sample) => {
          const { key, title, at, event, refusal } = sample;
          const outcome = outcomes?.get(key);
          const [tone, word] = refusal ? ["failed", "dropped"] : outcome ? OUTCOMES[outcome] : ["idle", "…"];
          return (
            <li key={key}>
              <button type="button" className="quiet" aria-pressed={key === chosen} onClick={() => choose(sample)}>
                <State state={tone}>{word}</State> <code>{title}</code>{" "}
                <code className="muted">{payloadOf(event)}</code>
                {at && <span className="muted small"> {ago(at, now)}</span>}
              </button>
            </li>
          );
        })}
      </ul>
    </>
  );
}

function payloadOf({ payload }: Event): string {
  const data = typeof payload === "object" && payload !== null && "data" in payload ? payload.data : payload;
  return (typeof data === "string" ? data : JSON.stringify(data ?? "")).slice(0, 120);
}

/** A message written by hand: sent unchanged, or encoded with a schema. */
function Own({ start, setSample }: { start?: Event; setSample: (sample: Sample | undefined) => void }) {
  const [topic, setTopic] = useState(() => String(start?.topic ?? "meters/1"));
  const [payload, setPayload] = useState(() => (start ? payloadOf(start) : '{"temp": 21.5}'));
  const [schema, setSchema] = useState("");
  const { data: schemas } = useQuery({
    queryKey: ["schema names"],
    queryFn: () => getAny<{ items: { name: string; type: string }[] }>("schemas", { query: { limit: 200 } }),
  });
  const [problem, setProblem] = useState("");
  const given = useRested({ topic, payload, schema });
  useEffect(() => {
    const stop = new AbortController();
    const encode = async (): Promise<unknown> => {
      if (!given.schema) return given.payload;
      return (
        await call<Schemas["EncodedValue"]>("POST", `schemas/${given.schema}:encode`, {
          body: { value: parseJson(given.payload) },
          signal: stop.signal,
        })
      ).body.payload;
    };
    encode().then(
      (encoded) => {
        setProblem("");
        setSample({
          key: "own",
          title: given.topic,
          event: { topic: given.topic, payload: encoded, clientid: "me", qos: 0 },
        });
      },
      (error) => {
        if (!stop.signal.aborted) {
          setProblem(
            error instanceof SyntaxError ? `payload: expected JSON to encode. ${error.message}` : sentence(error),
          );
          setSample(undefined);
        }
      },
    );
    return () => stop.abort();
  }, [given]);
  return (
    <div className="fields">
      <label className="field">
        Topic
        <input spellCheck={false} value={topic} onChange={(event) => setTopic(event.target.value)} />
      </label>
      <Editor label="Payload" language="json" value={payload} onChange={setPayload} />
      <label className="field">
        Encoded by
        <select value={schema} onChange={(event) => setSchema(event.target.value)}>
          <option value="">no encoding</option>
          {schemas?.items.map(({ name, type }) => (
            <option key={name} value={name}>
              {name} ({type})
            </option>
          ))}
        </select>
      </label>
      {problem && (
        <p role="alert">
          <State state="failed">{problem}</State>
        </p>
      )}
    </div>
  );
}

export function Result({
  outcome: { outcome, rows = [], reason = "No result: FROM or WHERE does not match this message.", error },
}: {
  outcome: RuleOutcome;
}) {
  if (outcome === "error")
    return (
      <p id="result">
        <State state="failed">{error?.message}</State>
      </p>
    );
  if (outcome === "no_result")
    return (
      <p id="result">
        <State state="idle">{reason}</State>
      </p>
    );
  return (
    <pre id="result" className="source">
      {rows.length ? rows.map((row) => JSON.stringify(row, null, 2)).join("\n") : "No row: no item passed INCASE."}
    </pre>
  );
}

function Steps({ steps }: { steps: Step[] }) {
  return (
    <ol className="trial">
      {steps.map((step, at) => (
        <li key={at}>
          <div>
            {step.holds !== undefined && (
              <State state={step.holds ? "running" : "idle"}>{step.holds ? "yes" : "no"}</State>
            )}{" "}
            <span className="muted">
              {step.clause === "ACTION" ? `ACTION ${(step.action ?? 0) + 1}` : step.clause}
              {step.item !== undefined && ` ${step.item}`}
            </span>{" "}
            <code>{step.text ?? [step.type, step.name].filter(Boolean).join(" ")}</code>
            {step.clause !== "ACTION" && step.holds === undefined && step.text && <Shown {...step} />}
          </div>
          {step.error && (
            <p>
              <State state="failed">{step.error.message}</State>
            </p>
          )}
          {step.discarded && <p className="muted">It would be discarded: {step.discarded}</p>}
          {step.effects?.map((effect, number) => (
            <pre key={number} className="source">
              {effectText(effect)}
            </pre>
          ))}
          <Values values={step.expressions ?? []} outer={step.text ?? ""} />
        </li>
      ))}
    </ol>
  );
}

function effectText(effect: Schemas["ActionEffect"]): string {
  return Object.entries(effect)
    .map(([verb, what]) => `would ${verb} ${JSON.stringify(what, null, 2)}`)
    .join("\n");
}

function Values({ values, outer }: { values: Value[]; outer: string }): ReactNode {
  if (!values.length) return null;
  if (values.length === 1 && (values[0]!.text === outer || outer.startsWith(`${values[0]!.text} AS `)))
    return <Values values={values[0]!.expressions ?? []} outer="" />;
  return (
    <ul>
      {values.map((value, at) => (
        <li key={at}>
          <code>{value.text}</code>
          <Shown {...value} />
          <Values values={value.expressions ?? []} outer="" />
        </li>
      ))}
    </ul>
  );
}

function Shown({ type, value, is_cut }: { type?: string; value?: unknown; is_cut?: boolean }) {
  if (type === undefined) return null;
  return (
    <code className="shown"> = {value === undefined ? type : `${JSON.stringify(value)}${is_cut ? "…" : ""}`}</code>
  );
}
