// An MQTT client in the page: it connects as any client, publishes and subscribes with the properties of MQTT 5, and
// explains what it sent. Examples are kept in the browser; a password is not.

import { useQuery } from "@tanstack/react-query";
import { type FormEvent, type ReactNode, useState } from "react";
import { call, getAny, sentence } from "../../api/client";
import { parseJson } from "../../api/json";
import { useMay } from "../../api/rights";
import type { components } from "../../api/openapi";
import { Card, Empty, Failure, LoadFailure, State, Why } from "../../parts/card";
import { download } from "../../parts/copy";
import { ExplainButton, type ExplainedMessage } from "../../parts/explaining";
import { bytes, counted } from "../../parts/format";
import { Table } from "../../parts/table";
import { clock, useTimeZone } from "../../parts/time";
import * as client from "./session";
import type { Connecting, Delivery, Exchanged, Subscribing } from "./session";

type Schemas = components["schemas"];
const DELIVERY: Delivery = {
  qos: 1,
  retain: false,
  contentType: "",
  responseTopic: "",
  correlationData: "",
  expiry: "",
  isText: false,
  userProperties: "",
};
const newConnection = (): Connecting => ({
  listener: "",
  clientid: `page-${crypto.getRandomValues(new Uint32Array(1))[0]!.toString(36)}`,
  username: "",
  password: "",
  cleanStart: true,
  keepAlive: "120",
  sessionExpiry: "",
  receiveMaximum: "",
  userProperties: "",
  hasWill: false,
  will: { ...DELIVERY, topic: "", payload: "", delay: "" },
});
const SUBSCRIPTION: Subscribing = {
  filter: "",
  qos: 1,
  noLocal: false,
  retainAsPublished: false,
  retainHandling: 0,
  identifier: "",
};

/** Chosen options and examples, kept in the browser; of a connection all but the password. */
function kept<T>(place: string, otherwise: T): T {
  try {
    const text = localStorage.getItem(place);
    return text === null ? otherwise : (JSON.parse(text) as T);
  } catch {
    return otherwise; // nothing stored, or no storage
  }
}
function keep(place: string, value: unknown) {
  try {
    localStorage.setItem(place, JSON.stringify(value));
  } catch {
    // no storage: it holds until the page is left
  }
}
const CONNECTION = "sluice.mqtt.connection";
const EXAMPLES = "sluice.mqtt.examples";
const MOST_EXAMPLES = 50;

const said = (error: unknown) => (error instanceof Error ? error.message : sentence(error));

export function MqttPage() {
  const may = useMay();
  const session = client.useSession();
  return (
    <div className="page">
      <div>
        <h1>
          MQTT client{" "}
          <State
            state={session.state === "connected" ? "connected" : session.state === "closed" ? "stopped" : "connecting"}>
            {session.state === "closed" ? "not connected" : session.state}
          </State>
        </h1>
        <p className="muted">
          A client of the broker in this page. What it publishes passes the same stages and access rules as the messages
          of any client.
        </p>
      </div>
      {may("messages", "change") ? (
        <div className="columns">
          <div className="stack">
            <Connection />
            <Publish />
          </div>
          <div className="stack">
            <Subscriptions />
            <Messages />
          </div>
        </div>
      ) : (
        <Card title="Not permitted">
          <Empty>
            Your role may not publish messages. Ask an administrator for a role with the right to change messages, such
            as operator. Topics shows messages as they pass.
          </Empty>
        </Card>
      )}
    </div>
  );
}

interface FieldProps {
  label: string;
  value: string;
  set: (value: string) => void;
  type?: string;
  placeholder?: string;
  isRequired?: boolean;
}
const Field = ({ label, value, set, type = "text", placeholder, isRequired }: FieldProps) => (
  <label>
    {label}
    <input
      type={type}
      value={value}
      required={isRequired}
      placeholder={placeholder}
      autoComplete="off"
      spellCheck={false}
      onChange={({ target }) => set(target.value)}
    />
  </label>
);
const Check = ({ label, value, set }: { label: string; value: boolean; set: (value: boolean) => void }) => (
  <label className="check">
    <input type="checkbox" checked={value} onChange={({ target }) => set(target.checked)} /> {label}
  </label>
);
const Choice = <T extends number>({
  label,
  value,
  set,
  options,
}: {
  label: string;
  value: T;
  set: (value: T) => void;
  options: [T, string][];
}) => (
  <label>
    {label}
    <select value={value} onChange={({ target }) => set(Number(target.value) as T)}>
      {options.map(([option, text]) => (
        <option key={option} value={option}>
          {text}
        </option>
      ))}
    </select>
  </label>
);
const QOS: [0 | 1 | 2, string][] = [
  [0, "0, at most once"],
  [1, "1, at least once"],
  [2, "2, exactly once"],
];
const UserProperties = ({ value, set }: { value: string; set: (value: string) => void }) => (
  <label>
    User properties, NAME=VALUE on each line
    <textarea rows={2} value={value} spellCheck={false} onChange={({ target }) => set(target.value)} />
  </label>
);

function DeliveryFields<T extends Delivery>({ of, set }: { of: T; set: (changed: Partial<Delivery>) => void }) {
  return (
    <>
      <div className="fields across">
        <Choice label="QoS" value={of.qos} set={(qos) => set({ qos })} options={QOS} />
        <Check label="Retain" value={of.retain} set={(retain) => set({ retain })} />
      </div>
      <details className="more">
        <summary>Properties</summary>
        <div className="fields">
          <div className="fields across">
            <Field label="Content type" value={of.contentType} set={(contentType) => set({ contentType })} />
            <Field label="Response topic" value={of.responseTopic} set={(responseTopic) => set({ responseTopic })} />
            <Field
              label="Correlation data"
              value={of.correlationData}
              set={(correlationData) => set({ correlationData })}
            />
            <Field label="Expires after, in seconds" value={of.expiry} set={(expiry) => set({ expiry })} />
          </div>
          <Check
            label="Payload is UTF-8 text (payload format indicator)"
            value={of.isText}
            set={(isText) => set({ isText })}
          />
          <UserProperties value={of.userProperties} set={(userProperties) => set({ userProperties })} />
        </div>
      </details>
    </>
  );
}

function Connection() {
  const session = client.useSession();
  const [form, setForm] = useState<Connecting>(() => ({ ...newConnection(), ...kept(CONNECTION, {}), password: "" }));
  const [says, setSays] = useState("");
  const set = (changed: Partial<Connecting>) => setForm((known) => ({ ...known, ...changed }));
  const { data: listeners } = useQuery({
    queryKey: ["listeners of clients"],
    queryFn: () => getAny<{ items: Schemas["ListenerRow"][] }>("listeners"),
  });
  const connect = async (event: FormEvent) => {
    event.preventDefault();
    setSays("");
    keep(CONNECTION, { ...form, password: undefined });
    await client.open(form).catch((error) => {
      client.close();
      setSays(said(error));
    });
  };
  if (session.state === "connected")
    return (
      <Card title="Connection">
        <p role="status">
          Connected as <code className="wraps">{session.clientid}</code>
          {session.username && ` with the user name ${session.username}`}.{" "}
          {session.hadSession ? "Its session continues." : "It has a new session."}
        </p>
        <div className="buttons">
          <button type="button" onClick={client.close}>
            Disconnect
          </button>
        </div>
      </Card>
    );
  const open = listeners?.items.filter(({ state }) => state === "running") ?? [];
  return (
    <Card title="Connection">
      <form onSubmit={(event) => void connect(event)}>
        <div className="fields across">
          <Field label="Client ID" value={form.clientid} set={(clientid) => set({ clientid })} />
          <Field label="User name" value={form.username} set={(username) => set({ username })} />
          <Field label="Password" type="password" value={form.password} set={(password) => set({ password })} />
        </div>
        <details className="more">
          <summary>Options</summary>
          <div className="fields">
            <div className="fields across">
              <label>
                Listener
                <select value={form.listener} onChange={({ target }) => set({ listener: target.value })}>
                  <option value="">the first that is open</option>
                  {open.map(({ id }) => (
                    <option key={id}>{id}</option>
                  ))}
                </select>
              </label>
              <Field label="Keep-alive, in seconds" value={form.keepAlive} set={(keepAlive) => set({ keepAlive })} />
              <Field
                label="Session expiry, in seconds"
                value={form.sessionExpiry}
                set={(sessionExpiry) => set({ sessionExpiry })}
              />
              <Field
                label="Receive maximum"
                value={form.receiveMaximum}
                set={(receiveMaximum) => set({ receiveMaximum })}
              />
              <Check label="Clean start" value={form.cleanStart} set={(cleanStart) => set({ cleanStart })} />
            </div>
            <UserProperties value={form.userProperties} set={(userProperties) => set({ userProperties })} />
            <Check label="With a will" value={form.hasWill} set={(hasWill) => set({ hasWill })} />
            {form.hasWill && (
              <fieldset className="fields">
                <legend>Will</legend>
                <div className="fields across">
                  <Field
                    label="Will topic"
                    value={form.will.topic}
                    isRequired
                    set={(topic) => set({ will: { ...form.will, topic } })}
                  />
                  <Field
                    label="Will payload"
                    value={form.will.payload}
                    set={(payload) => set({ will: { ...form.will, payload } })}
                  />
                  <Field
                    label="Will delay, in seconds"
                    value={form.will.delay}
                    set={(delay) => set({ will: { ...form.will, delay } })}
                  />
                </div>
                <DeliveryFields of={form.will} set={(changed) => set({ will: { ...form.will, ...changed } })} />
              </fieldset>
            )}
          </div>
        </details>
        <Failure>{says || session.says}</Failure>
        <button type="submit" className="primary" disabled={session.state === "connecting"}>
          {session.state === "connecting" ? "Connecting…" : "Connect"}
        </button>
      </form>
    </Card>
  );
}

const FORMS = { text: "text", hex: "hex", base64: "base64" };
type Example = Delivery & { name: string; topic: string; payload: string; form: string };
const NEW: Omit<Example, "name"> = { ...DELIVERY, topic: "", payload: "", form: "text" };
const SCHEMA = "schema ";

/** The bytes of a payload as it was typed.
 *  @throws Error if it is not of that form. */
async function encoded(payload: string, form: string): Promise<Uint8Array> {
  if (form === "hex") {
    const digits = payload.replaceAll(/\s/g, "");
    if (!/^([\da-f]{2})*$/i.test(digits)) throw new Error("Payload: expected pairs of hexadecimal digits.");
    return Uint8Array.from(digits.match(/../g) ?? [], (pair) => Number.parseInt(pair, 16));
  }
  if (form === "base64") return unbase64(payload.replaceAll(/\s/g, ""));
  if (!form.startsWith(SCHEMA)) return new TextEncoder().encode(payload);
  let value: unknown;
  try {
    value = parseJson(payload);
  } catch (error) {
    throw new Error(`Payload: expected JSON to encode. ${(error as Error).message}`);
  }
  const name = form.slice(SCHEMA.length);
  const { body } = await call<Schemas["EncodedValue"]>("POST", `schemas/${encodeURIComponent(name)}:encode`, {
    body: { value },
  });
  const { encoding, data } = body.payload;
  return encoding === "base64" ? unbase64(data) : new TextEncoder().encode(data);
}
function unbase64(text: string): Uint8Array {
  try {
    return Uint8Array.from(atob(text), (char) => char.charCodeAt(0));
  } catch {
    throw new Error("Payload: expected base64.");
  }
}
function base64(data: Uint8Array): string {
  let text = "";
  for (const byte of data) text += String.fromCharCode(byte);
  return btoa(text);
}

const useSchemas = () =>
  useQuery({
    queryKey: ["schema names"],
    queryFn: () => getAny<{ items: { name: string; type: string }[] }>("schemas", { query: { limit: 200 } }),
  }).data?.items ?? [];

function Publish() {
  const { state, clientid, username } = client.useSession();
  const [form, setForm] = useState(NEW);
  const [says, setSays] = useState("");
  const schemas = useSchemas();
  const set = (changed: Partial<Example>) => setForm((known) => ({ ...known, ...changed }));
  const send = async (event: FormEvent) => {
    event.preventDefault();
    try {
      client.publish(form.topic, await encoded(form.payload, form.form), form);
      setSays("");
    } catch (error) {
      setSays(said(error));
    }
  };
  const tried = async (): Promise<ExplainedMessage | string> => {
    try {
      const payload = await encoded(form.payload, form.form);
      return messageOf({ ...form, payload, userProperties: client.pairsOf(form.userProperties) }, clientid, username);
    } catch (error) {
      return said(error);
    }
  };
  return (
    <Card title="Publish">
      <Examples form={form} load={setForm} />
      <form onSubmit={(event) => void send(event)}>
        <div className="fields">
          <Field label="Topic" value={form.topic} isRequired placeholder="meters/1" set={(topic) => set({ topic })} />
          <label>
            Payload
            <textarea
              rows={4}
              value={form.payload}
              spellCheck={false}
              onChange={({ target }) => set({ payload: target.value })}
            />
          </label>
          <label>
            The payload is
            <select value={form.form} onChange={({ target }) => set({ form: target.value })}>
              {Object.keys(FORMS).map((one) => (
                <option key={one} value={one}>
                  {one}
                </option>
              ))}
              {schemas.map(({ name, type }) => (
                <option key={name} value={SCHEMA + name}>
                  JSON, encoded by {name} ({type})
                </option>
              ))}
            </select>
          </label>
          <DeliveryFields of={form} set={set} />
        </div>
        <Failure>{says}</Failure>
        <div className="buttons">
          <button type="submit" className="primary" disabled={state !== "connected"}>
            Publish
          </button>
          {form.topic && <ExplainButton topic={form.topic} of={tried} then="Not published yet." />}
        </div>
        {state !== "connected" && (
          <p className="muted small">Connect, to publish. Explain works without a connection.</p>
        )}
      </form>
    </Card>
  );
}

function Examples({ form, load }: { form: Omit<Example, "name">; load: (example: Omit<Example, "name">) => void }) {
  const [examples, setExamples] = useState(() => kept<Example[]>(EXAMPLES, []));
  const [name, setName] = useState("");
  const put = (changed: Example[]) => {
    setExamples(changed);
    keep(EXAMPLES, changed);
  };
  const save = (event: FormEvent) => {
    event.preventDefault();
    put(
      [{ ...form, name: name.trim() }, ...examples.filter((one) => one.name !== name.trim())].slice(0, MOST_EXAMPLES),
    );
  };
  const chosen = examples.find((one) => one.name === name);
  return (
    <form className="inline filters" aria-label="Examples" onSubmit={save}>
      {examples.length > 0 && (
        <label>
          Load an example
          <select
            value={chosen?.name ?? ""}
            onChange={({ target }) => {
              const example = examples.find((one) => one.name === target.value);
              setName(target.value);
              if (example) load({ ...NEW, ...example });
            }}>
            <option value="">none</option>
            {examples.map((one) => (
              <option key={one.name}>{one.name}</option>
            ))}
          </select>
        </label>
      )}
      <label>
        Example name
        <input value={name} required maxLength={60} onChange={({ target }) => setName(target.value)} />
      </label>
      <button type="submit">Save as example</button>
      {chosen && (
        <button
          type="button"
          onClick={() => {
            put(examples.filter((one) => one !== chosen));
            setName("");
          }}>
          Delete example
        </button>
      )}
    </form>
  );
}

function Subscriptions() {
  const { state, subscriptions } = client.useSession();
  const [form, setForm] = useState(SUBSCRIPTION);
  const [says, setSays] = useState("");
  const set = (changed: Partial<Subscribing>) => setForm((known) => ({ ...known, ...changed }));
  const submit = async (event: FormEvent) => {
    event.preventDefault();
    try {
      setSays(await client.subscribe(form));
    } catch (error) {
      setSays(said(error));
    }
  };
  return (
    <Card title="Subscriptions">
      <form onSubmit={(event) => void submit(event)}>
        <div className="fields across">
          <Field
            label="Topic filter"
            value={form.filter}
            isRequired
            placeholder="meters/#"
            set={(filter) => set({ filter })}
          />
          <Choice label="QoS" value={form.qos} set={(qos) => set({ qos })} options={QOS} />
        </div>
        <details className="more">
          <summary>Options</summary>
          <div className="fields across">
            <Choice
              label="Retained messages"
              value={form.retainHandling}
              set={(retainHandling) => set({ retainHandling })}
              options={[
                [0, "send"],
                [1, "send if it is new"],
                [2, "do not send"],
              ]}
            />
            <Field label="Subscription identifier" value={form.identifier} set={(identifier) => set({ identifier })} />
            <Check label="No local" value={form.noLocal} set={(noLocal) => set({ noLocal })} />
            <Check
              label="Retain as published"
              value={form.retainAsPublished}
              set={(retainAsPublished) => set({ retainAsPublished })}
            />
          </div>
        </details>
        <Failure>{says}</Failure>
        <button type="submit" disabled={state !== "connected"}>
          Subscribe
        </button>
      </form>
      {subscriptions.length > 0 && (
        <Table
          label="Subscriptions"
          rows={subscriptions}
          keyOf={({ filter }) => filter}
          columns={[
            { title: "Filter", kind: "why", show: ({ filter }) => <code>{filter}</code> },
            { title: "QoS", kind: "num", show: ({ granted }) => granted },
            {
              title: "Do",
              head: <span className="hidden">Do</span>,
              kind: "num verbs",
              show: ({ filter }) => (
                <button type="button" onClick={() => client.unsubscribe(filter)}>
                  Unsubscribe
                </button>
              ),
            },
          ]}
        />
      )}
    </Card>
  );
}

const messageOf = (
  {
    topic,
    payload,
    qos,
    retain,
    userProperties,
    properties = {},
  }: Pick<Exchanged, "topic" | "payload" | "qos" | "retain" | "userProperties"> &
    Partial<Pick<Exchanged, "properties">>,
  clientid: string,
  username: string,
) =>
  ({
    topic,
    payload: { encoding: "base64", data: base64(payload) },
    qos,
    retain,
    user_properties: userProperties,
    properties: Object.fromEntries(
      Object.entries(properties).filter(([name]) => !["Subscription-Identifier", "Topic-Alias"].includes(name)),
    ),
    ...(clientid && { clientid }),
    ...(username && { username }),
  }) as ExplainedMessage;

const SHOWN = 300; // characters of a payload in the list

function Messages() {
  const { messages, gone, clientid, username } = client.useSession();
  const timeZone = useTimeZone();
  const [find, setFind] = useState("");
  const [schema, setSchema] = useState("");
  const schemas = useSchemas();
  const shown = find
    ? messages.filter(({ topic, payload }) =>
        `${topic} ${client.textOf(payload)}`.toLowerCase().includes(find.toLowerCase()),
      )
    : messages;
  const lines = () =>
    new Blob(
      shown.map((one) => {
        const { payload, id: _, ...rest } = one;
        return `${JSON.stringify({ ...rest, at: new Date(one.at).toISOString(), payload: { encoding: "base64", data: base64(payload) } })}\n`;
      }),
      { type: "application/x-ndjson" },
    );
  return (
    <Card
      title="Messages"
      note={gone > 0 ? `${counted(gone, "older message")} made room` : "newest first, at most 200"}>
      <div className="filters">
        <label>
          Find
          <input type="search" value={find} spellCheck={false} onChange={({ target }) => setFind(target.value)} />
        </label>
        {schemas.length > 0 && (
          <label>
            Decode by
            <select value={schema} onChange={({ target }) => setSchema(target.value)}>
              <option value="">no schema</option>
              {schemas.map(({ name, type }) => (
                <option key={name} value={name}>
                  {name} ({type})
                </option>
              ))}
            </select>
          </label>
        )}
      </div>
      {messages.length > 0 && (
        <div className="buttons">
          <button type="button" onClick={() => download("mqtt-client", "ndjson", lines())}>
            Download
          </button>
          <button type="button" onClick={client.clear}>
            Clear
          </button>
        </div>
      )}
      {!messages.length && <Empty>Nothing was sent or received. Subscribe to a filter, or publish a message.</Empty>}
      {messages.length > 0 && !shown.length && (
        <Empty>
          None contains “{find}”.{" "}
          <button type="button" className="quiet" onClick={() => setFind("")}>
            Show all
          </button>
        </Empty>
      )}
      {shown.length > 0 && (
        <Table
          label="Sent and received"
          kind="live"
          rows={shown}
          keyOf={({ id }) => id}
          columns={[
            {
              title: "At",
              kind: "fit",
              show: ({ at, isSent }) => (
                <>
                  {clock(at, timeZone)}
                  <Why>{isSent ? "→ sent" : "← received"}</Why>
                </>
              ),
            },
            { title: "Message", kind: "why", show: (message) => <Message of={message} schema={schema} /> },
            {
              title: "Do",
              head: <span className="hidden">Do</span>,
              kind: "num verbs",
              show: (message) => (
                <ExplainButton
                  topic={message.topic}
                  of={messageOf(message, message.isSent ? clientid : "", message.isSent ? username : "")}
                  then={message.isSent ? `The broker's answer: ${message.says}.` : "The page received it."}
                />
              ),
            },
          ]}
        />
      )}
    </Card>
  );
}

const TONES = { sent: "idle", ok: "ok", failed: "failed" };

function Message({ of, schema }: { of: Exchanged; schema: string }) {
  const { topic, payload, qos, retain, userProperties, properties, isSent, state, says } = of;
  const text = client.textOf(payload);
  const facts: [string, ReactNode][] = [
    ...Object.entries(properties),
    ...userProperties.map(([name, value]): [string, string] => [`${name} (user property)`, value]),
  ];
  return (
    <>
      <code className="wraps">{topic}</code>
      <Why>{[`QoS ${qos}`, retain && "retained", bytes(payload.length)].filter(Boolean).join(" · ")}</Why>
      {isSent && says && (
        <p>
          <State state={TONES[state]}>{says}</State>
        </p>
      )}
      {schema ? <Decoded payload={payload} schema={schema} /> : <code className="wraps">{text.slice(0, SHOWN)}</code>}
      <details>
        <summary>Details</summary>
        <dl className="members">
          {facts.map(([name, value], at) => (
            <div key={at}>
              <dt>{name}</dt>
              <dd>{value}</dd>
            </div>
          ))}
          <div>
            <dt>Hex</dt>
            <dd>
              <code>{client.hexOf(payload.slice(0, 1024)) || "empty"}</code>
              {payload.length > 1024 && " … the first 1024 bytes"}
            </dd>
          </div>
        </dl>
      </details>
    </>
  );
}

function Decoded({ payload, schema }: { payload: Uint8Array; schema: string }) {
  const data = base64(payload);
  const { data: decoded, error } = useQuery({
    queryKey: ["decoded", schema, data],
    queryFn: async ({ signal }) =>
      (
        await call<Schemas["DecodedValue"]>("POST", `schemas/${encodeURIComponent(schema)}:decode`, {
          body: { payload: { encoding: "base64", data } },
          signal,
        })
      ).body,
    staleTime: Infinity,
    gcTime: 10_000,
  });
  if (error) return <LoadFailure error={error} />;
  return decoded ? <code className="wraps">{JSON.stringify(decoded.value).slice(0, 2000)}</code> : null;
}
