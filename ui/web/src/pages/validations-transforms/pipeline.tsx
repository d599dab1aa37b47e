// What happens to a message on a topic, stage by stage, and the order of the stages.

import { keepPreviousData, useQuery, useQueryClient } from "@tanstack/react-query";
import { type KeyboardEvent, useState } from "react";
import { call, type Effect, getAny, moved, namesOf, Refused, sentence } from "../../api/client";
import { type Kind, KINDS } from "../../api/kinds";
import { useChanges } from "../../api/live";
import { textOf, useMessages } from "../../api/messages";
import { useMay } from "../../api/rights";
import { useParameter } from "../../parts/address";
import { Card, Empty, LoadFailure, ObjectLink, State } from "../../parts/card";
import { EffectView } from "../../parts/saving";
import { Became } from "./outcome";
import { preview, type Stage, type Trial } from "./shared";

const KIND_OF: Record<string, string> = {
  validation: "validations",
  transformation: "transforms",
  rule: "rules",
  stream: "streams",
};

export function Pipeline() {
  const [on, setOn] = useParameter("on", "");
  const messages = useMessages(on || "#");
  const [first, setFirst] = useState("");
  if (!first && messages[0]) setFirst(messages[0].message.topic);
  const topic = on || first;
  const mayTry = useMay()("stages", "try");
  const known = mayTry ? messages.find(({ message }) => message.topic === topic) : undefined;
  const { data: stages, error } = useQuery({
    queryKey: ["pipeline", topic, useChanges()],
    queryFn: async () => ({ ...(await getAny<{ stages: Stage[] }>("pipeline", { query: { topic } })), topic }),
    enabled: topic !== "",
    placeholderData: keepPreviousData,
  });
  const { data: tried } = useQuery({
    queryKey: ["trial", known?.message],
    enabled: known !== undefined,
    placeholderData: keepPreviousData,
    gcTime: 10_000,
    queryFn: async ({ signal }) => ({
      message: known!.message,
      trial: await preview({ message: known!.message }, signal),
    }),
  });
  const shown = tried?.message.topic === topic ? tried : undefined;
  return (
    <Card
      title="What happens to a message"
      note={
        known
          ? known.source === "live"
            ? "tried on the latest message, as published; nothing is sent"
            : "tried on the latest message that is stored; nothing is sent"
          : mayTry
            ? "no message of this topic is known"
            : "your role may not try messages"
      }>
      <form
        className="inline"
        onSubmit={(event) => {
          event.preventDefault();
          setOn(String(new FormData(event.currentTarget).get("on")));
        }}>
        <label htmlFor="on">On topic</label>
        <input
          key={topic}
          id="on"
          name="on"
          className="wide"
          list="seen"
          required
          spellCheck={false}
          placeholder="meters/attic"
          defaultValue={topic}
        />
        <datalist id="seen">
          {[...new Set(messages.map((one) => one.message.topic))].map((one) => (
            <option key={one}>{one}</option>
          ))}
        </datalist>
        <button type="submit">Show</button>
      </form>
      <LoadFailure error={error} />
      {!topic && (
        <Empty>Name a topic, and see which validations, transformations and rules a message meets there.</Empty>
      )}
      {shown && (
        <p className="small muted wraps">
          Payload: <code>{textOf(shown.message)}</code>
        </p>
      )}
      {stages?.topic === topic && <Order topic={topic} stages={stages.stages} trial={shown?.trial} />}
    </Card>
  );
}

/** The filter of a kind that selects what acts on a topic. */
const onTopic = ({ filters }: Kind) => filters.find(({ name }) => name === "topic" || name === "match_from")?.name;

/** The kinds that act on topics in an order that can be changed, by their stage. */
const ORDERED = new Map(
  KINDS.filter((kind) => kind.isOrdered && onTopic(kind)).map((kind) => [kind.one.toLowerCase(), kind]),
);

/** The files that fix stages of a topic. */
function useFiles(topic: string): Map<string, string> {
  const { data } = useQuery({
    queryKey: ["files of stages", topic, useChanges()],
    placeholderData: keepPreviousData,
    queryFn: async () =>
      new Map(
        (
          await Promise.all(
            [...ORDERED].map(async ([stage, kind]) => {
              const { items } = await getAny<{ items: { name: string; fixed_by: string | null }[] }>(kind.api, {
                query: { [onTopic(kind)!]: topic, limit: 1000 },
              });
              return items.flatMap(({ name, fixed_by }) => (fixed_by ? [[`${stage} ${name}`, fixed_by] as const] : []));
            }),
          )
        ).flat(),
      ),
  });
  return data ?? new Map();
}

function Order({ topic, stages, trial }: { topic: string; stages: Stage[]; trial: Trial | undefined }) {
  const queries = useQueryClient();
  const files = useFiles(topic);
  const may = useMay();
  const [draft, setDraft] = useState<{
    kind: Kind;
    stage: string;
    order: string[];
    effect?: Effect;
    etag?: string;
    says?: string;
  } | null>(null);
  const [held, hold] = useState<Stage | null>(null);
  const placeOf = ({ stage, name }: Stage) => (stage === draft?.stage ? draft.order.indexOf(name) : 0);
  const shown = stages
    .map((stage, at) => ({ stage, at }))
    .sort((one, other) => {
      const [a, b] = [one.stage, other.stage];
      return a.stage === b.stage && a.stage === draft?.stage ? placeOf(a) - placeOf(b) : one.at - other.at;
    })
    .map(({ stage }) => stage);
  const steps = new Map(trial?.steps.map((step) => [`${step.stage} ${step.name}`, step]));
  const further =
    trial?.steps.filter(({ stage, name }) => !stages.some((one) => one.stage === stage && one.name === name)) ?? [];

  /** Put a stage where another one of its kind is. */
  const move = async ({ stage, name }: Stage, target: Stage | undefined) => {
    const kind = ORDERED.get(stage);
    if (!kind || target?.stage !== stage || target.name === name) return;
    try {
      const known = draft?.kind === kind ? draft.order : await namesOf(kind.api);
      const order = moved(known, name, target.name);
      setDraft({ kind, stage, order });
      const { body, etag } = await call<Effect>("POST", `${kind.api}:reorder`, {
        body: { order },
        query: { dry_run: true },
      });
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
      setDraft({
        ...draft,
        says:
          error instanceof Refused && error.status === 412
            ? "Somebody else changed the order. Try: Discard, which loads the current order"
            : sentence(error),
      });
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
          const kind = ORDERED.get(stage.stage);
          const hasRight = kind !== undefined && may(kind.right, "change");
          const canMove = hasRight && !file;
          return (
            <li
              key={`${stage.stage} ${stage.name}`}
              className={was ? "after" : held === stage ? "held" : ""}
              draggable={canMove}
              onDragStart={(event) => {
                hold(stage);
                event.dataTransfer.effectAllowed = "move";
              }}
              onDragEnd={() => hold(null)}
              onDragOver={(event) => held?.stage === stage.stage && event.preventDefault()}
              onDrop={(event) => {
                event.preventDefault();
                if (held) void move(held, stage);
              }}>
              <div>
                {hasRight && (
                  <button
                    type="button"
                    className="quiet grip"
                    disabled={!canMove}
                    aria-label={`Move ${stage.name}: Alt ↑ or Alt ↓`}
                    title={file ? `The file ${file} fixes its place` : "Drag, or Alt ↑ and Alt ↓"}
                    onKeyDown={press(stage, at)}>
                    ⠿
                  </button>
                )}
                <span className="muted">{stage.stage}</span>{" "}
                {KIND_OF[stage.stage] ? <ObjectLink kind={KIND_OF[stage.stage]!} name={stage.name} /> : null}
                {!stage.enabled && (
                  <>
                    {" "}
                    <State state="disabled" />
                  </>
                )}
                {stage.mode === "shadow" && (
                  <>
                    {" "}
                    <State state="alarm">shadow</State>
                  </>
                )}
                {stage.does && <p className="muted small does">{stage.does}</p>}
              </div>
              {step ? (
                <Became step={step} isShadow={stage.mode === "shadow"} />
              ) : (
                was && <span className="muted">not reached</span>
              )}
            </li>
          );
        })}
        {further.map((step) => (
          <li key={`${step.stage} ${step.name}`}>
            <div>
              <span className="muted">{step.stage}</span>{" "}
              <ObjectLink kind={KIND_OF[step.stage] ?? "rules"} name={step.name} />{" "}
              <span className="muted">on the changed topic</span>
            </div>
            <Became step={step} isShadow={false} />
          </li>
        ))}
      </ol>
      <div role="status">
        {draft && (
          <p className="small">
            {draft.kind.many}: {draft.order.join(" → ")}
          </p>
        )}
        {draft?.effect && <EffectView effect={draft.effect} />}
        {draft?.says && <State state="failed">{draft.says}</State>}
      </div>
      {draft && (
        <div className="buttons">
          <button type="button" className="primary" disabled={!draft.etag} onClick={() => void save()}>
            Save the order
          </button>
          <button type="button" onClick={() => setDraft(null)}>
            Discard
          </button>
        </div>
      )}
    </>
  );
}
