// What happens to a message: every stage, the rows that it becomes, and who gets it and why.

import { useQuery } from "@tanstack/react-query";
import type { ReactNode } from "react";
import { call, getAny, type TailedMessage } from "../api/client";
import type { components } from "../api/openapi";
import { Empty, LoadFailure, ObjectLink, State, Why } from "./card";
import { Opens } from "./dialogs";
import { counted } from "./format";
import { Table } from "./table";

type Schemas = components["schemas"];
type Step = Schemas["TrialStep"];
type Receivers = Schemas["TopicReceivers"];
type Published = Pick<TailedMessage, "topic" | "payload" | "qos" | "retain" | "user_properties" | "properties"> & {
  raw?: string | null;
  clientid?: string;
  username?: string | null;
};
export type ExplainedMessage = Partial<Schemas["TestMessage"]> & { topic: string };

/** A message that a page shows, as trials take it. Of a decoded one the bytes count. */
export const messageOf = ({ topic, payload, raw, qos, retain, user_properties, properties, ...of }: Published) =>
  ({
    topic,
    payload: raw ? { encoding: "base64", data: raw } : { encoding: payload.encoding, data: payload.data },
    qos,
    retain,
    user_properties,
    properties,
    ...(of.clientid && { clientid: of.clientid }),
    username: of.username ?? null,
  }) as ExplainedMessage;

const PATHS: Record<string, string> = {
  validation: "validations",
  transformation: "transforms",
  rule: "rules",
  stream: "streams",
};

/** A button that explains a message in a dialog. */
export const ExplainButton = ({ message }: { message: ExplainedMessage }) => (
  <Opens label="Explain" title={`What happens to a message on ${message.topic}`}>
    {() => (
      <>
        <h2>
          What happens to a message on <code className="wraps">{message.topic}</code>
        </h2>
        <Explanation message={message} />
      </>
    )}
  </Opens>
);

export function Explanation({ message }: { message: ExplainedMessage }) {
  const { data, error, refetch } = useQuery({
    queryKey: ["explain", message],
    queryFn: async ({ signal }) =>
      (await call<Schemas["PipelineTrial"]>("POST", "pipeline:preview", { body: { message }, signal })).body,
  });
  return (
    <div className="stack">
      <LoadFailure error={error} />
      {data && (
        <>
          <p role="status">
            <State state={data.outcome === "passed" ? "passed" : "dropped"}>
              {data.outcome === "passed" ? "It passes all stages." : `It is stopped by ${data.ended_by?.stage} `}
              {data.ended_by && <ObjectLink kind={PATHS[data.ended_by.stage] ?? "rules"} name={data.ended_by.name} />}
            </State>{" "}
            <span className="muted small">Tried now, as everything is configured. Nothing is sent.</span>
          </p>
          {data.steps.length ? (
            <Table
              label="Stages"
              kind="cards"
              rows={data.steps}
              keyOf={(_, at) => at}
              columns={[
                {
                  title: "Stage",
                  show: ({ stage, name }) => (
                    <>
                      {PATHS[stage] ? <ObjectLink kind={PATHS[stage]} name={name} /> : name}
                      <Why>{stage}</Why>
                    </>
                  ),
                },
                { title: "Outcome", kind: "fit", show: ({ outcome }) => <State state={outcome} /> },
                { title: "Why", kind: "why", show: (step) => <Details step={step} /> },
              ]}
            />
          ) : (
            <p className="muted">No validation, transformation or rule acts on this topic.</p>
          )}
        </>
      )}
      {data?.message && data.outcome === "passed" && (
        <ReceiversOf topic={data.message.topic} client={message.clientid} qos={message.qos ?? 0} />
      )}
      <div className="buttons">
        <button type="button" onClick={() => void refetch()}>
          Run again
        </button>
      </div>
    </div>
  );
}

function Details({ step }: { step: Step }): ReactNode {
  const { reason, path, error, failure, wrote = [], rows = [], actions = [] } = step;
  const said = error?.message ?? reason ?? (failure ? JSON.stringify(failure) : "");
  return (
    <>
      {said && `${path ? `${path}: ` : ""}${said}`}
      {wrote.map(({ key, value }) => (
        <Why key={key}>
          <code>
            {key} = {JSON.stringify(value)}
          </code>
        </Why>
      ))}
      {rows.map((row, at) => (
        <code key={at} className="wraps">
          {JSON.stringify(row)}
        </code>
      ))}
      {actions.length > 0 && <Why>to {actions.join(", ")}</Why>}
    </>
  );
}

/** Who gets a topic, and why others do not. */
export function ReceiversOf({ topic, client = "", qos = 0 }: { topic: string; client?: string; qos?: number }) {
  const { data, error } = useQuery({
    queryKey: ["receivers", topic, client, qos],
    queryFn: ({ signal }) => getAny<Receivers>("topics:who", { query: { topic, clientid: client, qos }, signal }),
    enabled: topic !== "",
  });
  if (error) return <LoadFailure error={error} />;
  if (!data) return null;
  const { subscriptions, subscriptions_total: total, groups, publisher, becomes } = data;
  const getting = subscriptions.filter(({ gets }) => gets).length;
  return (
    <section className="part" aria-label={`Who gets ${topic}`}>
      <h3>Who gets it</h3>
      {becomes && (
        <p>
          A rewrite makes it <code className="wraps">{becomes}</code>.
        </p>
      )}
      {publisher && publisher.connected && (
        <p>
          <State state={publisher.access.allowed ? "ok" : "failed"}>
            {publisher.clientid} {publisher.access.allowed ? "may publish there" : "may not publish there"}
          </State>
          <Why>{byRule(publisher.access)}</Why>
        </p>
      )}
      {!subscriptions.length && !groups.length && <Empty>No client subscribes to it.</Empty>}
      {subscriptions.length > 0 && (
        <Table
          label={`Subscriptions that match ${topic}`}
          kind="cards"
          rows={subscriptions}
          keyOf={({ clientid: id, filter }) => `${id} ${filter}`}
          columns={[
            { title: "Client", show: ({ clientid: id }) => <ObjectLink kind="clients" name={id} /> },
            { title: "Filter", show: ({ filter }) => <code className="wraps">{filter}</code> },
            { title: "QoS", kind: "num", show: ({ qos }) => qos },
            {
              title: "Gets it",
              kind: "fit",
              show: ({ gets }) => <State state={gets ? "ok" : "dropped"}>{gets ? "yes" : "no"}</State>,
            },
            {
              title: "Why",
              kind: "why",
              show: ({ why, access }) => (
                <>
                  {why}
                  <Why>{byRule(access)}</Why>
                </>
              ),
            },
          ]}
        />
      )}
      {total > subscriptions.length && (
        <p className="muted small">
          The first {subscriptions.length} of {counted(total, "subscription")}, {getting} of them get it.
        </p>
      )}
      {groups.map(({ group, choice, members, waiting }) => (
        <section key={group} aria-label={group}>
          <h4>
            <ObjectLink kind="groups" name={group} />
          </h4>
          <p>
            {choice} {waiting > 0 && `${counted(waiting, "message")} wait.`}
          </p>
          <Table
            label={`Members of ${group}`}
            kind="cards"
            rows={members}
            keyOf={({ clientid: id }) => id}
            columns={[
              { title: "Member", show: ({ clientid: id }) => <ObjectLink kind="clients" name={id} /> },
              {
                title: "Can get it",
                kind: "fit",
                show: ({ can_get: can }) => <State state={can ? "ok" : "dropped"}>{can ? "yes" : "no"}</State>,
              },
              { title: "Why", show: ({ why }) => why },
              { title: "In flight", kind: "num", show: ({ inflight }) => inflight },
            ]}
          />
        </section>
      ))}
    </section>
  );
}

const byRule = ({ source, rule }: Schemas["AccessVerdict"]) =>
  rule ? `by ${rule} of ${source}` : source === "none" ? "no access rule applies" : `by ${source.replaceAll("_", " ")}`;
