// Connectors, actions and sources: how each is and why, what to do about it, its settings, its test step by step, its
// dead letters, and its figures over time.

import { keepPreviousData, useQuery } from "@tanstack/react-query";
import { Link, useNavigate, useSearch } from "@tanstack/react-router";
import { type ReactNode, useEffect, useMemo, useState } from "react";
import { Button } from "react-aria-components";
import { call, type Effect, getAny, type Job, sentence } from "../../api/client";
import { kindOf } from "../../api/kinds";
import { useAlarms, useEvery, useHistory, useList, useStatus } from "../../api/live";
import type { components } from "../../api/openapi";
import { Card, Empty, Failure, LoadFailure, ObjectLink, State, stateOf, Why } from "../../parts/card";
import { Command, CopyAs, CopySpec, download } from "../../parts/copy";
import { Opens } from "../../parts/dialogs";
import { ago, byReason, bytes, count, counted, duration, exact, UNKNOWN } from "../../parts/format";
import { type ChartOf, Charts, perSecond } from "../../parts/history-charts";
import { JobView } from "../../parts/job";
import type { KindPage, ObjectProps } from "../../parts/kind-page";
import { useFixed } from "../../parts/read-only";
import { DraftStrip, EffectView, SaveBar, useDraft, useSave } from "../../parts/saving";
import {
  type JsonSchema,
  SchemaForm,
  type Schemas as FormSchemas,
  useSchemas,
  withoutSecrets,
} from "../../parts/schema-form";
import { type Stat, Stats } from "../../parts/stats";
import { Table, useSelection } from "../../parts/table";
import { clock, keepTimeZone, useTimeZone } from "../../parts/time";

type Schemas = components["schemas"];
type Connector = Required<Schemas["ConnectorObject"]>;
type Action = Required<Schemas["ActionObject"]>;
type Source = Required<Schemas["SourceObject"]>;
type Bridge = Connector | Action | Source;
type TypeView = Schemas["ConnectorTypeView"];
type Members = Record<string, unknown>;
type Path = "connectors" | "actions" | "sources";

/** What the server adds to an object. */
const READ_ONLY = [
  "id",
  "status",
  "status_reason",
  "since",
  "attempts",
  "next_attempt_at",
  "metrics",
  "last_error",
  "actions",
  "sources",
  "rules",
  "paused",
  "dead_letters_waiting",
];
const specOf = (object: object): Members =>
  Object.fromEntries(Object.entries(object).filter(([name]) => !READ_ONLY.includes(name)));
const placeOf = (path: Path, name: string) => `${path}/${encodeURIComponent(name)}`;
const oneOf = (path: Path) => kindOf(path)!.one.toLowerCase();

function useTypes(): TypeView[] {
  const { data } = useQuery({
    queryKey: ["connector-types"],
    queryFn: () => getAny<{ items: TypeView[] }>("connector-types"),
    staleTime: Infinity,
  });
  return data?.items ?? [];
}

/** The time by the server's clock: the browser's may be wrong. */
function useServerMs(): number {
  const { data: status } = useStatus();
  return status ? Date.parse(status.started_at) + status.uptime_s * 1000 : Date.now();
}

// How it is, and what to do

/** What to do about a state; nothing where all is well. */
function advice(path: Path, object: Bridge): string {
  const state = stateOf(object as never);
  const isAction = path === "actions";
  const keeps = isAction ? " Rows wait in the buffer until then." : "";
  const isTarget = object.status_reason.startsWith("unhealthy target");
  if (state === "disabled")
    return (
      "It is disabled in its settings. Enable it to use it." +
      (isAction ? " Rows that already wait are kept; new ones are not taken." : "")
    );
  if (state === "stopped")
    return (
      "It stays stopped until it is started or the broker restarts." +
      (isAction ? " Rows that wait are kept; new ones are dropped." : "")
    );
  if (isTarget)
    return (
      `The connection works, the ${isAction ? "target" : "place that is read"} does not: ` +
      `create it, or grant the user of the connector the right to it.${keeps}`
    );
  if (state === "disconnected" && path === "connectors")
    return (
      "It tries again by itself, with longer and longer pauses. Run the test: it shows the step that fails. " +
      "Then correct the settings, or the other system."
    );
  if (state === "disconnected")
    return `It goes on by itself once its connector is connected. Run the test: it shows the step that fails.${keeps}`;
  if (state === "connecting") return `It waits for the other system to answer.${keeps}`;
  if ("paused" in object && object.paused)
    return isAction
      ? "Paused by a person: rows wait in the buffer until it is resumed."
      : "Paused by a person: nothing is read until it is resumed.";
  return "";
}

function Now({ path, object, children }: { path: Path; object: Bridge; children?: ReactNode }) {
  const nowMs = useServerMs();
  const timeZone = useTimeZone();
  const isFixed = useFixed();
  const { name } = object;
  const state = stateOf(object as never);
  const isPaused = "paused" in object && object.paused;
  const what = advice(path, object);
  const connector = "connector" in object ? object.connector : name;
  const isAway = state === "disconnected" || state === "connecting";
  return (
    <Card
      title="Now"
      note={
        <span title={clock(Date.parse(object.since), timeZone, "full")}>
          {state} for {duration(Math.max(0, Math.floor((nowMs - Date.parse(object.since)) / 1000)))}
        </span>
      }>
      <AlarmsOf path={path} object={object} />
      <p>
        {what ||
          (path === "connectors"
            ? "It is connected, and the other system answers."
            : path === "actions"
              ? "Rows are sent as they arrive."
              : "Records are taken as they arrive.")}
      </p>
      {"attempts" in object && object.attempts > 0 && (
        <p className="muted">
          {counted(object.attempts, "attempt")} to connect failed.{" "}
          {object.next_attempt_at && `The next one is at ${clock(Date.parse(object.next_attempt_at), timeZone)}.`}
        </p>
      )}
      {children}
      <div className="buttons">
        {isAway && <Do verb="restart" label="Try now" place={placeOf("connectors", connector)} isPrimary />}
        {isAway && (
          <Link
            className="button"
            to="."
            search={((known: object) => ({ ...keepTimeZone(known), tab: "test" })) as never}>
            Run the test
          </Link>
        )}
        {state === "disabled" && (
          <Do verb="enable" label="Enable" place={placeOf(path, name)} isPrimary disabled={isFixed} />
        )}
        {state === "stopped" ? (
          <Do verb="start" label="Start" place={placeOf(path, name)} isPrimary />
        ) : (
          state !== "disabled" && <Do verb="stop" label="Stop" place={placeOf(path, name)} />
        )}
        {"paused" in object && state !== "disabled" && state !== "stopped" && (
          <Do
            key={String(isPaused)}
            verb={isPaused ? "resume" : "pause"}
            label={isPaused ? "Resume" : "Pause"}
            place={placeOf(path, name)}
            isPrimary={isPaused}
          />
        )}
        {path === "actions" && (
          <Opens label="Drain…" title={`Drain ${name}`}>
            {(close) => <Drain action={object as Action} close={close} />}
          </Opens>
        )}
      </div>
    </Card>
  );
}

/** A button that does one thing to an object. */
function Do({
  verb,
  label,
  place,
  isPrimary = false,
  disabled = false,
}: {
  verb: string;
  label: string;
  place: string;
  isPrimary?: boolean;
  disabled?: boolean;
}) {
  const [says, setSays] = useState("");
  const [isBusy, setBusy] = useState(false);
  const press = async () => {
    setBusy(true);
    setSays(await call("POST", `${place}:${verb}`).then(() => "", sentence));
    setBusy(false);
  };
  return (
    <>
      <button
        type="button"
        className={isPrimary ? "primary" : ""}
        disabled={disabled || isBusy}
        onClick={() => void press()}>
        {label}
      </button>
      {says && (
        <span role="alert">
          <State state="failed">{says}</State>
        </span>
      )}
    </>
  );
}

function AlarmsOf({ path, object }: { path: Path; object: Bridge }) {
  const { data } = useAlarms();
  const member = path.slice(0, -1);
  const alarms = Object.entries(data ?? {}).filter(([, { details }]) => details[member] === object.id);
  return (
    <div role="status">
      {alarms.map(([name, { message }]) => (
        <p key={name} className="note">
          <State state="alarm">Alarm: {message}</State>
        </p>
      ))}
    </div>
  );
}

const DRAIN_S = 25;

function Drain({ action: { name, metrics }, close }: { action: Action; close: () => void }) {
  const [says, setSays] = useState<ReactNode>(null);
  const [isBusy, setBusy] = useState(false);
  const press = async () => {
    setBusy(true);
    try {
      const { body } = await call<Schemas["DrainedAction"]>("POST", `${placeOf("actions", name)}:drain`, {
        body: { timeout_s: DRAIN_S },
      });
      setSays(
        body.drained ? (
          <State state="done">Every row was sent; the action is stopped.</State>
        ) : (
          <State state="degraded">The action is stopped, with {counted(body.left, "row")} left.</State>
        ),
      );
    } catch (error) {
      setSays(<State state="failed">{sentence(error)}</State>);
    }
    setBusy(false);
  };
  return (
    <>
      <h2>Drain {name}?</h2>
      <p>
        It takes no more rows, sends the {count(metrics.queuing + metrics.inflight)} that wait within {DRAIN_S} s, and
        stops.
      </p>
      <Command text={`sluice actions drain ${name} --timeout ${DRAIN_S}`} />
      <div role="status">{isBusy ? "Draining…" : says}</div>
      <div className="buttons">
        {!says && (
          <button type="button" className="primary" disabled={isBusy} onClick={() => void press()}>
            Drain
          </button>
        )}
        <Button className="button" onPress={close}>
          Close
        </Button>
      </div>
    </>
  );
}

// The test, step by step

const STEPS: Record<string, [string, string]> = {
  resolve: ["Resolve the name", "Check how the host is spelt, and that the name server of this machine knows it."],
  connect: ["Connect", "Check the port, that the other system runs, and that no firewall is in between."],
  tls: ["Agree on TLS", "Check the certificate authority in ssl.cacertfile, and that the port speaks TLS."],
  authenticate: ["Sign in", "Check the user name, the password and the mechanism."],
  metadata: [
    "Ask for metadata",
    "It is connected, but the answer is not what was expected: check the versions of both sides.",
  ],
  check: ["Ask for an answer", "It is connected and does not answer as expected."],
  request: ["Send a request", "Check the path, and what the service says."],
  target: ["Find the target", "Create the topic, table or path, or correct its name in the settings."],
  permission: ["May it write?", "Grant the user of the connector the right to write."],
};

function Test({ ask, cli }: { ask: () => Promise<{ body: Schemas["ProbeResult"] }>; cli?: string }) {
  const [result, setResult] = useState<Schemas["ProbeResult"] | null>(null);
  const [says, setSays] = useState("");
  const press = async () => {
    setResult(null);
    setSays("Testing…");
    setSays(
      await ask().then(({ body }) => {
        setResult(body);
        return "";
      }, sentence),
    );
  };
  return (
    <div className="probe">
      <div className="buttons">
        <button type="button" disabled={says === "Testing…"} onClick={() => void press()}>
          Test the connection
        </button>
        {cli && <Command text={cli} />}
      </div>
      <div role="status">
        {says && <p className={says === "Testing…" ? "muted" : "err"}>{says}</p>}
        {result && (
          <>
            <p>
              <State state={result.ok ? "ok" : "failed"}>
                {result.ok
                  ? "Every step went well. Nothing was written."
                  : "A step failed; those after it were not tried."}
              </State>
            </p>
            <ol className="plain steps">
              {result.steps.map(({ name, result: how, duration_ms: ms, message }) => (
                <li key={name} className="step">
                  <State state={how === "skipped" ? "idle" : how}>{STEPS[name]?.[0] ?? name}</State>{" "}
                  <span className="muted small">{how === "skipped" ? "not tried" : duration(ms / 1000)}</span>
                  <Why>{message}</Why>
                  {how === "failed" && STEPS[name] && <Why>{STEPS[name][1]}</Why>}
                </li>
              ))}
            </ol>
          </>
        )}
      </div>
    </div>
  );
}

function TestTab({ path, name }: { path: Path; name: string }) {
  return (
    <Card title="Test" note="with a connection of its own">
      <p className="muted">
        Goes through what it takes to {path === "actions" ? "send a row" : path === "sources" ? "read" : "connect"}, one
        step after the other, with the settings as they are saved. Nothing is written.
      </p>
      <Test ask={() => call("POST", `${placeOf(path, name)}:test`)} cli={`sluice ${path} test ${name}`} />
    </Card>
  );
}

// Settings

const modelOf = (path: Path, type: string) =>
  type
    .split("_")
    .map((part) => part[0]!.toUpperCase() + part.slice(1))
    .join("") + kindOf(path)!.one;
const refTo = (path: Path, type: string): JsonSchema => ({ $ref: `#/components/schemas/${modelOf(path, type)}` });

function Settings({
  path,
  initial,
  etag,
  name,
  skip,
  onSaved,
}: {
  path: Path;
  initial: Members;
  etag?: string;
  name?: string;
  skip: string[];
  onSaved?: (body: Members, etag: string) => void;
}) {
  const schema = useMemo(() => refTo(path, String(initial.type)), [path, initial.type]);
  const schemas = useSchemas(schema);
  return schemas ? (
    <Form {...{ path, initial, etag, name, skip, onSaved, schema, schemas }} />
  ) : (
    <p className="muted" role="status">
      Loading the settings…
    </p>
  );
}

function Form({
  path,
  initial,
  etag,
  name,
  skip,
  onSaved,
  schema,
  schemas,
}: Parameters<typeof Settings>[0] & { schema: JsonSchema; schemas: FormSchemas }) {
  const draft = useDraft<Members>(
    name ? `${path}/${name}` : `${path}/new/${String(initial.type)}`,
    initial,
    etag,
    (value) => withoutSecrets(value, schema, schemas, name && "******") as Members,
  );
  const saving = useSave({ kind: path, name, etag: draft.etag });
  const { value } = draft;
  const title = String(value.name ?? `my-${oneOf(path)}`);
  const copied = withoutSecrets(value, schema, schemas, "******") as Members;
  return (
    <Card title="Settings" note={<CopySpec kind={path} name={title} spec={copied} method={name ? "PUT" : "POST"} />}>
      <DraftStrip draft={draft} />
      <p className="muted small">
        Secrets are never shown. A stored one stays if its field is left empty; write {"${env:NAME}"} or{" "}
        {"${file:PATH}"} to keep it out of the settings. Drafts in this browser are kept without what was typed into
        such fields.
      </p>
      <form onSubmit={(event) => event.preventDefault()}>
        <SchemaForm
          schema={schema}
          value={value}
          onChange={draft.set}
          skip={skip}
          problems={saving.problem?.errors as never}
        />
      </form>
      <SaveBar
        saving={saving}
        body={value}
        isChanged={draft.isChanged || !name}
        label={name ? "Save" : "Create"}
        onDiscard={draft.discard}
        onSaved={(saved, tag) => {
          draft.settle(name ? specOf(saved) : initial, tag);
          onSaved?.(saved, tag);
        }}
      />
      <Test ask={() => call("POST", `${path}:probe`, { body: value })} />
    </Card>
  );
}

function SettingsTab<T extends Bridge>(path: Path) {
  return {
    title: "Settings",
    show: ({ name, object, etag }: ObjectProps<T>) => {
      const skip = ["name", "type", ...(path === "connectors" ? [] : ["connector"])];
      return <Settings path={path} name={name} initial={specOf(object)} etag={etag} skip={skip} />;
    },
  };
}

// Creating one

/** The types that there are, with what each is for and needs. */
function Catalogue({ types }: { types: TypeView[] }) {
  return (
    <ul className="catalogue">
      {types.map(({ name, title, summary, is_installed: isThere, problem, parameters }) => {
        const needed = ((parameters.connector as JsonSchema).required ?? []).map((one) => one.replaceAll("_", " "));
        const ways = [parameters.action && "sends rows of rules", parameters.source && "takes messages in"]
          .filter(Boolean)
          .join(" · ");
        return (
          <li key={name} className="card">
            <h2>
              {isThere ? (
                <Link
                  to="/new/$kind"
                  params={{ kind: "connectors" }}
                  search={((known: object) => ({ ...keepTimeZone(known), type: name })) as never}>
                  {title}
                </Link>
              ) : (
                title
              )}
            </h2>
            <p>{summary}</p>
            <p className="muted small">{ways}</p>
            <p className="muted small">Required: {needed.join(", ") || "nothing, the defaults do"}</p>
            {problem && <Why>{problem}</Why>}
          </li>
        );
      })}
    </ul>
  );
}

function Chosen({ children }: { children: ReactNode }) {
  return (
    <p className="muted">
      {children}{" "}
      <Link to="." search={keepTimeZone as never}>
        Choose another
      </Link>
    </p>
  );
}

function NewConnector() {
  const types = useTypes();
  const { type } = useSearch({ strict: false }) as { type?: string };
  const open = useOpen("connectors");
  const initial = useMemo(() => ({ type }), [type]);
  const chosen = types.find(({ name, is_installed: isThere }) => name === type && isThere);
  if (!chosen) return <Catalogue types={types} />;
  return (
    <>
      <Chosen>
        <strong>{chosen.title}</strong>: {chosen.summary}
      </Chosen>
      <Settings key={type} path="connectors" initial={initial} skip={["type"]} onSaved={open} />
    </>
  );
}

function NewMember({ path }: { path: "actions" | "sources" }) {
  const types = useTypes();
  const connectors = useList<Connector>("connectors").list?.items;
  const { connector: name } = useSearch({ strict: false }) as { connector?: string };
  const open = useOpen(path);
  const member = path.slice(0, -1);
  const able = connectors?.filter(({ type }) => types.some((one) => one.name === type && member in one.parameters));
  const chosen = able?.find((one) => one.name === name);
  const initial = useMemo(() => ({ type: chosen?.type, connector: name, parameters: {} }), [chosen?.type, name]);
  if (!able) return null;
  if (chosen)
    return (
      <>
        <Chosen>
          Over connector <ObjectLink kind="connectors" name={chosen.name} />.
        </Chosen>
        <Settings key={name} path={path} initial={initial} skip={["type", "connector"]} onSaved={open} />
      </>
    );
  return (
    <Card title="Over which connector?">
      {able.length ? (
        <Table
          label="Connectors"
          rows={able}
          keyOf={(one) => one.name}
          columns={[
            {
              title: "Connector",
              show: (one) => (
                <Link
                  className="name"
                  to="/new/$kind"
                  params={{ kind: path }}
                  search={((known: object) => ({ ...keepTimeZone(known), connector: one.name })) as never}>
                  {one.name}
                </Link>
              ),
            },
            { title: "Type", show: (one) => types.find((type) => type.name === one.type)?.title ?? one.type },
            {
              title: "State",
              kind: "fit",
              show: (one) => (
                <>
                  <State state={stateOf(one as never)} />
                  <Why>{one.status_reason}</Why>
                </>
              ),
            },
          ]}
        />
      ) : (
        <Empty>No connector that has {path} yet.</Empty>
      )}
      <p>
        <Link to="/new/$kind" params={{ kind: "connectors" }} search={keepTimeZone as never}>
          New connector
        </Link>
      </p>
    </Card>
  );
}

function useOpen(kind: Path) {
  const navigate = useNavigate();
  return ({ name }: Members) =>
    void navigate({ to: "/$kind/$name", params: { kind, name: String(name) }, search: keepTimeZone } as never);
}

// Connectors

function ConnectorNow({ object }: ObjectProps<Connector>) {
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

function ActionNow({ object }: ObjectProps<Action>) {
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

/** A duration that is short enough for an axis. */
const age = (seconds: number | null | undefined) =>
  seconds === null || seconds === undefined
    ? UNKNOWN
    : seconds < 120
      ? `${count(Math.round(seconds))} s`
      : seconds < 7200
        ? `${count(Math.round(seconds / 60))} min`
        : `${count(Math.round(seconds / 3600))} h`;

const ACTION_CHARTS: ChartOf[] = [
  {
    id: "rows",
    title: "Rows",
    note: "per second",
    show: perSecond,
    parts: [
      { label: "handed over", names: ["action_matched"] },
      { label: "confirmed", names: ["action_success"] },
      { label: "failed", names: ["action_failed"] },
      { label: "dropped", names: ["action_dropped"] },
    ],
  },
  {
    id: "waiting",
    title: "Waiting",
    note: "rows",
    show: (value) => (value === null || value === undefined ? UNKNOWN : count(value)),
    parts: [
      { label: "in the buffer", names: ["action_queuing"] },
      { label: "in flight", names: ["action_inflight"] },
    ],
  },
  {
    id: "age",
    title: "Age of the oldest row",
    show: age,
    parts: [{ label: "not confirmed for", names: ["action_lag_seconds"] }],
  },
  {
    id: "size",
    title: "Buffer",
    show: (value) => bytes(value),
    parts: [{ label: "size", names: ["action_queuing_bytes"] }],
  },
];
const SOURCE_CHARTS: ChartOf[] = [
  {
    id: "records",
    title: "Records",
    note: "per second",
    show: perSecond,
    parts: [{ label: "read", names: ["source_received"] }],
  },
  {
    id: "lag",
    title: "Not read yet",
    note: "records",
    show: (value) => (value === null || value === undefined ? UNKNOWN : count(value)),
    parts: [{ label: "behind", names: ["source_lag_records"] }],
  },
];

function OverTime({ charts, label }: { charts: ChartOf[]; label: string }) {
  const labels = useMemo(() => [label], [label]);
  return <Charts charts={charts} labels={labels} />;
}

// Dead letters

const MOST_LETTERS = 100;

function DeadLetters({
  object: { name, metrics, dead_letters_waiting: waiting, dead_letters: kept },
}: ObjectProps<Action>) {
  const place = `${placeOf("actions", name)}/dead-letters`;
  const { data, error } = useQuery({
    queryKey: ["dead-letters", name, waiting, metrics.failed],
    placeholderData: keepPreviousData,
    queryFn: () => getAny<Schemas["DeadLetterList"]>(place, { query: { limit: MOST_LETTERS } }),
    refetchInterval: useEvery(5000), // a row is counted as failed before its letter is committed
  });
  const nowMs = useServerMs();
  const n = data?.waiting ?? waiting;
  const [chosen, select] = useSelection(data?.items ?? [], ({ offset }) => String(offset));
  const offsets = chosen.map(({ offset }) => offset);
  const what = chosen.length ? `${chosen.length} selected` : "all";
  const exported = chosen.length ? chosen : (data?.items ?? []);
  const causes = kept?.causes?.join(", ");
  return (
    <Card
      title="Dead letters"
      note={<CopyAs path={`${place}?limit=${MOST_LETTERS}`} cli={`sluice actions dead-letters ls ${name}`} />}>
      <p className="muted">
        Rows that were given up, with the reason.{" "}
        {causes
          ? `Kept: those that ${causes
              .replace("failed", "the target refused")
              .replace("expired", "waited too long")
              .replace("queue_full", "found the buffer full")}.`
          : "The settings keep none."}{" "}
        At most {counted(kept?.max_records, "row")} and {bytes(Number(kept?.max_bytes))}; then the oldest make room.
      </p>
      <LoadFailure error={error} />
      {n > 0 && (
        <div className="buttons">
          <Opens
            label={chosen.length ? `Send ${what} again…` : "Send again…"}
            title={`Send dead letters of ${name} again`}>
            {(close) => <Redrive name={name} waiting={chosen.length || n} offsets={offsets} close={close} />}
          </Opens>
          <Opens label={`Delete ${what}…`} title={`Delete the dead letters of ${name}`}>
            {(close) => <Purge name={name} waiting={chosen.length || n} offsets={offsets} close={close} />}
          </Opens>
          <button
            type="button"
            onClick={() =>
              download(
                `${name}-dead-letters`,
                "ndjson",
                new Blob(
                  exported.map((one) => `${JSON.stringify(one)}\n`),
                  { type: "application/x-ndjson" },
                ),
              )
            }>
            Export {chosen.length ? what : `the ${exported.length} shown`}
          </button>
        </div>
      )}
      {n === 0 ? (
        <Empty>No dead letters.</Empty>
      ) : (
        data && (
          <>
            <p role="status">
              {n > data.items.length ? `The oldest ${count(data.items.length)} of ${count(n)}.` : `${count(n)} in all.`}
            </p>
            <Table
              label="Dead letters"
              kind="letters"
              rows={data.items}
              keyOf={({ offset }) => offset}
              columns={[
                select,
                {
                  title: "Given up",
                  kind: "fit",
                  show: ({ time_ms: ms }) => ago(new Date(ms).toISOString(), nowMs),
                  exact: ({ time_ms: ms }) => new Date(ms).toISOString(),
                },
                {
                  title: "Why",
                  kind: "why",
                  show: ({ cause, reason, attempts }) => (
                    <>
                      {reason}
                      <Why>
                        {cause.replaceAll("_", " ")}, {counted(attempts, "attempt")}
                      </Why>
                    </>
                  ),
                },
                {
                  title: "From",
                  show: ({ topic, clientid }) => (
                    <>
                      <code>{topic}</code>
                      <Why>{clientid}</Why>
                    </>
                  ),
                },
                {
                  title: "Row",
                  kind: "why",
                  show: ({ row }) => (
                    <details>
                      <summary>
                        <code>{JSON.stringify(row).slice(0, 60)}</code>
                      </summary>
                      <pre className="source">{typeof row === "string" ? row : JSON.stringify(row, null, 2)}</pre>
                    </details>
                  ),
                },
              ]}
            />
          </>
        )
      )}
    </Card>
  );
}

interface Chosen {
  name: string;
  waiting: number;
  offsets: number[];
  close: () => void;
}

const only = (offsets: number[]) => (offsets.length ? `?${offsets.map((one) => `offset=${one}`).join("&")}` : "");
const flags = (offsets: number[]) => offsets.map((one) => ` --offset ${one}`).join("");

function Redrive({ name, waiting, offsets, close }: Chosen) {
  const [limit, setLimit] = useState(String(Math.min(waiting, 100_000)));
  const [job, setJob] = useState("");
  const [says, setSays] = useState("");
  const press = async () => {
    const asked = call<Job>("POST", `${placeOf("actions", name)}/dead-letters:redrive${only(offsets)}`, {
      body: { limit: Number(limit) },
      isAsync: true,
    });
    setSays(
      await asked.then(({ body }) => {
        setJob(body.id);
        return "";
      }, sentence),
    );
  };
  return (
    <>
      <h2>Send dead letters of {name} again?</h2>
      <p>
        {count(waiting)} {offsets.length ? "are selected. They" : "wait. The oldest"} are handed to the action once
        more; one that fails again becomes a new dead letter.
      </p>
      {job ? (
        <JobView id={job}>{({ result }) => <Redriven result={result as never} />}</JobView>
      ) : (
        <>
          {!offsets.length && (
            <label>
              How many
              <input
                type="number"
                min={1}
                max={100_000}
                value={limit}
                onChange={(event) => setLimit(event.target.value)}
              />
            </label>
          )}
          <Command
            text={`sluice actions dead-letters redrive ${name}${offsets.length ? flags(offsets) : ` --limit ${limit}`}`}
          />
        </>
      )}
      <Failure>{says}</Failure>
      <div className="buttons">
        {!job && (
          <button type="button" className="primary" onClick={() => void press()}>
            Send again
          </button>
        )}
        <Button className="button" onPress={close}>
          Close
        </Button>
      </div>
    </>
  );
}

function Redriven({ result }: { result: Schemas["RedrivenLetters"] | null }) {
  if (!result) return null;
  return (
    <p>
      {count(result.sent)} sent again, {count(result.waiting)} wait. {result.problem}
    </p>
  );
}

function Purge({ name, waiting, offsets, close }: Chosen) {
  const [says, setSays] = useState("");
  const [effect, setEffect] = useState<Effect | null>(null);
  const place = `${placeOf("actions", name)}/dead-letters:purge${only(offsets)}`;
  useEffect(() => {
    call<Effect>("POST", `${place}${offsets.length ? "&" : "?"}dry_run=true`).then(
      (answer) => setEffect(answer.body),
      (error) => setSays(sentence(error)),
    );
  }, []);
  const press = async () => {
    try {
      await call("POST", place);
      close();
    } catch (error) {
      setSays(sentence(error));
    }
  };
  return (
    <>
      <h2>
        Delete {offsets.length ? "the selected" : "all"} {counted(waiting, "dead letter")} of {name}?
      </h2>
      {effect && <EffectView effect={effect} />}
      <p>To keep a copy first:</p>
      <Command text={`sluice actions dead-letters ls ${name} --limit 1000 -o json > dead-letters.json`} />
      <Failure>{says}</Failure>
      <div className="buttons">
        <button type="button" className="danger" onClick={() => void press()}>
          Delete {counted(waiting, "dead letter")}
        </button>
        <Button className="button" onPress={close}>
          Keep them
        </Button>
      </div>
    </>
  );
}

// Sources

function SourceNow({ object }: ObjectProps<Source>) {
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

// The pages

const links = (kind: string) => (names: string[]) =>
  names.map((name, at) => (
    <span key={name}>
      {at > 0 && ", "}
      <ObjectLink kind={kind} name={name} />
    </span>
  ));

export const connectors: KindPage<Connector> = {
  columns: [
    { title: "Type", kind: "fit", show: ({ type }) => type },
    { title: "Actions", show: ({ actions }) => links("actions")(actions) },
    { title: "Sources", show: ({ sources }) => links("sources")(sources) },
  ],
  tabs: [
    { title: "Overview", show: (props) => <ConnectorNow {...props} /> },
    SettingsTab("connectors"),
    { title: "Test", show: ({ name }) => <TestTab path="connectors" name={name} /> },
  ],
  create: () => <NewConnector />,
};

export const actions: KindPage<Action> = {
  columns: [
    {
      title: "Connector",
      show: ({ connector, type }) => (
        <>
          <ObjectLink kind="connectors" name={connector} />
          <Why>{type}</Why>
        </>
      ),
    },
    { title: "Rate", kind: "num", show: ({ metrics }) => `${perSecond(metrics.rate)} /s` },
    {
      title: "Waiting",
      kind: "num",
      show: ({ metrics: m }) => (
        <>
          {count(m.queuing)}
          {m.queuing > 0 && m.lag_s ? <Why>for {duration(m.lag_s)}</Why> : null}
        </>
      ),
      exact: ({ metrics }) => exact(metrics.queuing),
    },
    {
      title: "Confirmed",
      kind: "num",
      show: ({ metrics }) => count(metrics.success),
      exact: ({ metrics }) => exact(metrics.success),
    },
    {
      title: "Failed",
      kind: "num",
      show: ({ metrics }) => count(metrics.failed),
      exact: ({ metrics }) => exact(metrics.failed),
    },
    {
      title: "Dropped",
      kind: "num",
      show: ({ metrics }) => count(metrics.dropped),
      exact: ({ metrics }) => exact(metrics.dropped),
    },
    {
      title: "Dead letters",
      kind: "num",
      show: ({ name, dead_letters_waiting: n }) =>
        n ? (
          <Link
            to="/$kind/$name"
            params={{ kind: "actions", name }}
            search={((known: object) => ({ ...keepTimeZone(known), tab: "dead letters" })) as never}>
            {count(n)}
          </Link>
        ) : (
          0
        ),
    },
    { title: "Rules", show: ({ rules }) => links("rules")(rules) },
  ],
  tabs: [
    { title: "Overview", show: (props) => <ActionNow {...props} /> },
    SettingsTab("actions"),
    { title: "Test", show: ({ name }) => <TestTab path="actions" name={name} /> },
    { title: "Dead letters", show: (props) => <DeadLetters {...props} /> },
    { title: "Over time", show: ({ object }) => <OverTime charts={ACTION_CHARTS} label={`action=${object.id}`} /> },
  ],
  create: () => <NewMember path="actions" />,
};

export const sources: KindPage<Source> = {
  columns: [
    {
      title: "Connector",
      show: ({ connector, type }) => (
        <>
          <ObjectLink kind="connectors" name={connector} />
          <Why>{type}</Why>
        </>
      ),
    },
    { title: "Rate", kind: "num", show: ({ metrics }) => `${perSecond(metrics.rate)} /s` },
    { title: "Not read yet", kind: "num", show: ({ metrics }) => count(metrics.lag_records) },
    {
      title: "Read",
      kind: "num",
      show: ({ metrics }) => count(metrics.received),
      exact: ({ metrics }) => exact(metrics.received),
    },
    { title: "Refused", kind: "num", show: ({ metrics }) => count(metrics.refused) },
    { title: "Rules", show: ({ rules }) => links("rules")(rules) },
  ],
  tabs: [
    { title: "Overview", show: (props) => <SourceNow {...props} /> },
    SettingsTab("sources"),
    { title: "Test", show: ({ name }) => <TestTab path="sources" name={name} /> },
    { title: "Over time", show: ({ object }) => <OverTime charts={SOURCE_CHARTS} label={`source=${object.id}`} /> },
  ],
  create: () => <NewMember path="sources" />,
};
