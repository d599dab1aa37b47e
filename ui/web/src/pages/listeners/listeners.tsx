// Listeners: what one has now, its settings, and a new one of a type.

import { Link } from "@tanstack/react-router";
import { useState } from "react";
import type { components } from "../../api/openapi";
import { Card } from "../../parts/card";
import type { KindPage, ObjectProps } from "../../parts/kind-page";
import { type Members, SpecForm } from "../../parts/spec-form";
import { keepTimeZone } from "../../parts/time";
import { Facts } from "../../parts/value";

type Listener = components["schemas"]["ListenerView"];

/** The types, with the settings of each and what one needs. */
const TYPES: Record<string, { title: string; schema: string; initial: Members }> = {
  tcp: { title: "MQTT over TCP", schema: "ListenerSettings", initial: {} },
  ssl: {
    title: "MQTT over TLS",
    schema: "SslListenerSettings",
    initial: { ssl_options: { certfile: "", keyfile: "" } },
  },
  ws: { title: "MQTT over WebSocket", schema: "WsListenerSettings", initial: {} },
  wss: {
    title: "MQTT over WebSocket with TLS",
    schema: "WssListenerSettings",
    initial: { ssl_options: { certfile: "", keyfile: "" } },
  },
};
const typeOf = (id: string) => id.slice(0, id.indexOf(":"));

function Overview({ name, object: { settings: _, fixed: __, ...now } }: ObjectProps<Listener>) {
  return (
    <Card title="Listener">
      <Facts object={now} label={name} />
      <p>
        <Link
          to={"/clients" as never}
          search={((known: Members) => ({ ...keepTimeZone(known), listener: name })) as never}>
          Its clients
        </Link>
      </p>
    </Card>
  );
}

const Settings = ({ name, object, etag }: ObjectProps<Listener>) => (
  <SpecForm
    kind="listeners"
    schema={TYPES[typeOf(name)]!.schema}
    name={name}
    object={object}
    etag={etag}
    settingsOf={(shown) => (shown as unknown as Listener).settings}
    fixed={object.fixed}
  />
);

function Create() {
  const [type, setType] = useState("tcp");
  const { schema, initial } = TYPES[type]!;
  return (
    <>
      <Card title="Type">
        <label>
          Clients connect by{" "}
          <select value={type} onChange={(event) => setType(event.target.value)}>
            {Object.entries(TYPES).map(([one, { title }]) => (
              <option key={one} value={one}>
                {title}
              </option>
            ))}
          </select>
        </label>
      </Card>
      <SpecForm
        key={type}
        kind="listeners"
        schema={schema}
        object={{ id: `${type}:`, ...initial }}
        fields={({ id }, change, problemAt) => (
          <div className="field">
            <label htmlFor="listener-key">
              Identifier <span className="muted">(required)</span>
            </label>
            <input
              id="listener-key"
              type="text"
              required
              spellCheck={false}
              autoComplete="off"
              aria-describedby="listener-key-help"
              aria-invalid={problemAt("/id") ? true : undefined}
              value={String(id ?? "").slice(type.length + 1)}
              onChange={(event) => change({ id: `${type}:${event.target.value}` })}
            />
            <p className="help" id="listener-key-help">
              Its name in files, metrics and commands, after <code>{type}:</code>.
            </p>
            {problemAt("/id") && (
              <p className="err small" role="alert">
                {problemAt("/id")}
              </p>
            )}
          </div>
        )}
      />
    </>
  );
}

export const page: KindPage<Listener> = {
  tabs: [
    { title: "Overview", show: Overview },
    { title: "Settings", show: Settings },
  ],
  create: Create,
};
