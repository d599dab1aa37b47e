// What happens to a message: every stage, the rows that it becomes, and who gets it and why.

import { useQuery } from "@tanstack/react-query";
import { type ReactNode, useId } from "react";
import { Button, Dialog, Modal, ModalOverlay } from "react-aria-components";
import { call, getAny } from "../api/client";
import { useStatus } from "../api/live";
import { useMay } from "../api/rights";
import type { components } from "../api/openapi";
import { Empty, LoadFailure, Loading, ObjectLink, State, Why } from "./card";
import { type Asked, explain, type ExplainedMessage } from "./explaining";
import { counted } from "./format";
import { Table } from "./table";

type Schemas = components["schemas"];
type Step = Schemas["TrialStep"];
type Receivers = Schemas["TopicReceivers"];

const PATHS: Record<string, string> = {
  validation: "validations",
  transformation: "transforms",
  rule: "rules",
  stream: "streams",
  rules: "rules",
  delivery: "clients",
};
const NOT_TRIED = "Your role may not try messages. This is what acts on the topic, and who gets it.";
const TONES: Record<string, string> = { passed: "ok", rows: "ok", changed: "ok" };

/** The dialog of the shell: what happens to the message that was asked about last. */
export default function ExplainDialog({ asked: { topic, of, then, rows = [] } }: { asked: Asked }) {
  const { data, error } = useQuery({
    queryKey: ["original", useId()],
    queryFn: async () => (typeof of === "function" ? await of() : of),
    gcTime: 0,
  });
  const mayTry = useMay()("stages", "try");
  const title = topic || (typeof data === "object" ? data.topic : "");
  const instead = typeof data === "string" ? data : mayTry ? undefined : NOT_TRIED;
  const close = () => explain(null);
  const end = (
    <Button className="button" onPress={close}>
      Close
    </Button>
  );
  return (
    <ModalOverlay isDismissable isOpen onOpenChange={(open) => !open && close()} className="overlay">
      <Modal className="modal wide">
        <Dialog className="dialog" aria-label={`What happens to a message${title && ` on ${title}`}`}>
          <h2>
            What happens to a message {title && "on "}
            {title && <code className="wraps">{title}</code>}
          </h2>
          {then && <p>{then}</p>}
          {rows.map((row, at) => (
            <code key={at} className="wraps">
              {typeof row === "string" ? row : JSON.stringify(row)}
            </code>
          ))}
          <LoadFailure error={error} />
          {data === undefined && !error && (
            <p className="muted" role="status">
              Reading the message…
            </p>
          )}
          {data !== undefined && instead !== undefined && (
            <>
              <p className="note" role="status">
                {instead}
              </p>
              <ReceiversOf topic={title} hasStages />
            </>
          )}
          {typeof data === "object" && mayTry ? (
            <Explanation message={data}>{end}</Explanation>
          ) : (
            <div className="buttons">{end}</div>
          )}
        </Dialog>
      </Modal>
    </ModalOverlay>
  );
}

function Explanation({ message, children }: { message: ExplainedMessage; children: ReactNode }) {
  const { data, error, refetch } = useQuery({
    queryKey: ["explain", message],
    queryFn: async ({ signal }) =>
      (await call<Schemas["PipelineTrial"]>("POST", "pipeline:preview", { body: { message }, signal })).body,
  });
  return (
    <div className="stack">
      <LoadFailure error={error} />
      {!data && !error && (
        <p className="muted" role="status">
          Trying the message…
        </p>
      )}
      {data && (
        <>
          <p role="status">
            <State state={data.outcome === "passed" ? "ok" : "failed"}>
              {data.outcome === "passed" ? "It passes all stages." : `It is stopped by ${data.ended_by?.stage} `}
              {data.ended_by && <ObjectLink kind={PATHS[data.ended_by.stage] ?? "rules"} name={data.ended_by.name} />}
            </State>{" "}
            <span className="muted small">Tried now, as everything is configured. Nothing is sent.</span>
          </p>
          {data.steps.length ? (
            <Table
              label="Stages"
              rows={data.steps}
              keyOf={(_, at) => at}
              columns={[
                { title: "Stage", show: (step) => <StageName of={step} /> },
                {
                  title: "Outcome",
                  kind: "fit",
                  show: ({ outcome }) => <State state={outcome} tone={TONES[outcome]} />,
                },
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
        {children}
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

export const StageName = ({ of: { stage, name } }: { of: { stage: string; name: string } }) => (
  <>
    {PATHS[stage] && name !== stage ? <ObjectLink kind={PATHS[stage]} name={name} /> : name}
    {name !== stage && <Why>{stage}</Why>}
  </>
);

/** The streams that keep a message, and the tables that its record becomes a row of. */
function Kept({ streams }: { streams: string[] }) {
  const { data: status } = useStatus();
  if (!streams.length) return null;
  return (
    <>
      <h3>Where it is kept</h3>
      <ul className="plain">
        {streams.map((stream) => {
          const tables = status?.tables.filter((table) => table.stream === stream) ?? [];
          return (
            <li key={stream}>
              stream <ObjectLink kind="streams" name={stream} />
              {tables.map(({ name }) => (
                <span key={name}>
                  , then table <ObjectLink kind="tables" name={name} />
                </span>
              ))}
            </li>
          );
        })}
      </ul>
    </>
  );
}

/** Who gets a topic, and why others do not. */
export function ReceiversOf({
  topic,
  client = "",
  qos = 0,
  hasStages = false,
}: {
  topic: string;
  client?: string;
  qos?: number;
  hasStages?: boolean;
}) {
  const { data, error } = useQuery({
    queryKey: ["receivers", topic, client, qos],
    queryFn: ({ signal }) => getAny<Receivers>("topics:who", { query: { topic, clientid: client, qos }, signal }),
    enabled: topic !== "",
  });
  if (error) return <LoadFailure error={error} />;
  if (!data) return topic ? <Loading /> : null;
  const { subscriptions, subscriptions_total: total, groups, publisher, becomes, stages } = data;
  const getting = subscriptions.filter(({ gets }) => gets).length;
  return (
    <section className="part" aria-label={`Who gets ${topic}`}>
      {hasStages && stages.length > 0 && (
        <>
          <h3>What acts on the topic</h3>
          <Table
            label="Stages"
            rows={stages}
            keyOf={(_, at) => at}
            columns={[
              { title: "Stage", show: (stage) => <StageName of={stage} /> },
              { title: "Does", kind: "why", show: ({ does }) => does },
            ]}
          />
        </>
      )}
      <Kept streams={stages.filter(({ stage }) => stage === "stream").map(({ name }) => name)} />
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
