// A draft, tried on real messages: the result of each, and what it would have stopped.

import { keepPreviousData, useQuery } from "@tanstack/react-query";
import { useDeferredValue, useState } from "react";
import { Refused, sentence } from "../../api/client";
import { type Found, type Message, textOf, useMessages } from "../../api/messages";
import { Card, Empty, Failure, State } from "../../parts/card";
import { Difference } from "../../parts/editor";
import { count, counted } from "../../parts/format";
import { clock, useTimeZone } from "../../parts/time";
import { Became } from "./outcome";
import { labelOf, preview, type Sample, share, type Spec, type Trial, type Which, written } from "./shared";

/** What became of which message; ``ended`` names the stages at which newer ones ended before the gate. */
interface Tried {
  trial?: Trial;
  on?: Sample;
  ended: string[];
  says: string;
}

const MOST_TRIED = 10;

/** The step of a gate, if the message reached it. */
const reaches = (trial: Trial, { one }: Which, name: string) =>
  trial.steps.find((step) => step.stage === one && step.name === name);

export function Preview({
  which,
  draft,
  setProblems,
}: {
  which: Which;
  draft: Spec;
  setProblems: (problems: { pointer?: string; message: string }[]) => void;
}) {
  const topics = Array.isArray(draft.topics) ? (draft.topics as string[]) : [];
  const [filter, setFilter] = useState("");
  const [chosen, choose] = useState<Found | null>(null);
  const [own, setOwn] = useState<{ topic: string; payload: string } | null>(null);
  const wanted = filter || topics.find(Boolean) || "#";
  const messages = useMessages(wanted);
  const name = String(draft.name || "unnamed");
  const candidates: Sample[] = own
    ? [{ message: own, source: "live" }]
    : (chosen ? [chosen] : messages.slice(0, MOST_TRIED)).map(({ message, source }) => ({ message, source }));
  const asked = useDeferredValue(JSON.stringify([draft, candidates]));
  const { data } = useQuery({
    queryKey: ["trial", which.path, asked],
    queryFn: async ({ signal }): Promise<Tried> => {
      await new Promise((go) => setTimeout(go, 150)); // skip this request if the user types on
      signal.throwIfAborted();
      const [spec, given] = JSON.parse(asked) as [Spec, Sample[]];
      const attempt = (message: Message) =>
        preview({ message, [which.member]: [{ ...spec, name, enable: true }] }, signal);
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
        setProblems(
          errors.map((one) => ({
            ...one,
            pointer: one.pointer?.replace(`/${which.member}/0`, ""),
            message: one.suggestion ? `${one.message}; ${one.suggestion}` : one.message,
          })),
        );
        return { ended: [], says: errors.map(({ message: why }) => why).join("; ") || error.message };
      }
    },
    placeholderData: keepPreviousData,
    staleTime: Infinity,
    gcTime: 10_000,
    enabled: topics.some(Boolean),
  });
  const { trial, on } = data ?? {};
  const message = on?.message;
  const mine = trial && reaches(trial, which, name);
  const ends = data?.ended.join(", ");
  return (
    <Card title="On real messages" note="evaluated as you type; nothing is saved or sent">
      <form
        className="inline"
        onSubmit={(event) => {
          event.preventDefault();
          choose(null);
          setFilter(String(new FormData(event.currentTarget).get("filter")));
        }}>
        <label htmlFor="filter">Messages on</label>
        <input id="filter" name="filter" spellCheck={false} placeholder={wanted} defaultValue={filter} />
        <button type="submit">Follow</button>
        {!own && messages.length > 0 && (
          <label>
            Message{" "}
            <select
              value={chosen ? labelOf(chosen) : ""}
              onChange={(event) => choose(messages.find((one) => labelOf(one) === event.target.value) ?? null)}>
              <option value="">the newest that reaches it</option>
              {[...new Set([...(chosen ? [chosen] : []), ...messages].map(labelOf))].map((label) => (
                <option key={label}>{label}</option>
              ))}
            </select>
          </label>
        )}
        <button
          type="button"
          onClick={() =>
            setOwn(
              own
                ? null
                : {
                    topic: message?.topic ?? topics[0]?.replace(/[+#]/g, "x") ?? "",
                    payload: message ? textOf(message) : "{}",
                  },
            )
          }>
          {own ? "Real messages" : "Write one"}
        </button>
      </form>
      {own && (
        <div className="fields across">
          <label>
            Topic{" "}
            <input
              spellCheck={false}
              value={own.topic}
              onChange={(event) => setOwn({ ...own, topic: event.target.value })}
            />
          </label>
          <label>
            Payload{" "}
            <textarea
              rows={3}
              spellCheck={false}
              value={own.payload}
              onChange={(event) => setOwn({ ...own, payload: event.target.value })}
            />
          </label>
        </div>
      )}
      {!candidates.length && (
        <Empty>No message of {wanted} is known yet. The next one that arrives is shown here; or write one.</Empty>
      )}
      <Failure>{data?.says}</Failure>
      {trial && message && (
        <div className="stack" aria-live="polite">
          <div>
            <h3>Step by step</h3>
            {!mine && candidates.length > 1 && (
              <p className="note">
                None of the last {candidates.length} messages reaches this {which.one}
                {ends ? `: ${ends} ${data?.ended.length === 1 ? "stops" : "stop"} them` : ""}. Below is the newest.
              </p>
            )}
            {!mine && candidates.length === 1 && (
              <p className="note">
                {ends
                  ? `The message does not reach this ${which.one}: ${ends} stops it.`
                  : `This ${which.one} does not act on ${message.topic}.`}
              </p>
            )}
            {mine && ends && (
              <p className="muted">
                The newest message that reaches this {which.one}. Newer ones end at {ends}.
              </p>
            )}
            <ol className="pipeline">
              {trial.steps.map((step) => (
                <li key={`${step.stage} ${step.name}`} className={step === mine ? "mine" : ""}>
                  <div>
                    <span className="muted">{step.stage}</span> <strong>{step.name}</strong>
                  </div>
                  <Became step={step} isShadow={step === mine && draft.mode === "shadow"} />
                </li>
              ))}
              {trial.message && (
                <li>
                  <div>
                    <span className="muted">then</span> <strong>subscribers</strong>
                  </div>
                  <code>{textOf(trial.message)}</code>
                </li>
              )}
            </ol>
          </div>
          <div>
            <h3>{trial.message ? "Before and after" : "The message, which goes no further"}</h3>
            {trial.message ? (
              <Difference
                before={written(message)}
                after={written(trial.message)}
                language="json"
                titles={[on?.source === "live" ? "Published" : "Stored, after the stages of then", "Delivered"]}
              />
            ) : (
              <pre className="source">{written(message)}</pre>
            )}
          </div>
        </div>
      )}
      {messages.length > 0 && !data?.says && <Forecast which={which} draft={draft} messages={messages} />}
    </Card>
  );
}

interface Shape {
  times: number;
  path: string;
  reason: string;
  topic: string;
}

/** What a draft would do to the messages that are known, as if it were enforced. */
function Forecast({ which, draft, messages }: { which: Which; draft: Spec; messages: Found[] }) {
  const [found, setFound] = useState<{ of: string; matched: number; shapes: Shape[] } | null>(null);
  const [says, setSays] = useState("");
  const timeZone = useTimeZone();
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
  const press = () =>
    void run().then(
      () => setSays(""),
      (error) => setSays(sentence(error)),
    );
  const failed = found?.shapes.reduce((sum, { times }) => sum + times, 0) ?? 0;
  return (
    <div className="forecast" role="status">
      <button type="button" onClick={press}>
        Forecast on the last {counted(messages.length, "message")}
      </button>
      {messages.some(({ source }) => source === "stream") && (
        <p className="muted small">Streams keep what passed; a validation in shadow mode counts all that arrive.</p>
      )}
      {says && <State state="failed">{says}</State>}
      {found?.of === of && (
        <>
          <p>
            <State state={failed ? "alarm" : "done"}>
              {`Would have stopped ${share(failed, found.matched)} ` +
                `since ${clock(Date.parse(messages.at(-1)?.at ?? ""), timeZone)}`}
            </State>
          </p>
          <ul className="plain">
            {found.shapes.map(({ times, path, reason, topic }) => (
              <li key={path}>
                {count(times)} × <code>{path || "payload"}</code>: {reason}{" "}
                <span className="muted">for example on {topic}</span>
              </li>
            ))}
          </ul>
        </>
      )}
    </div>
  );
}
