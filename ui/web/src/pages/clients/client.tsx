// One client: its time line, its messages, and all that is known of it.

import { useNavigate } from "@tanstack/react-router";
import { useState } from "react";
import type { Resource } from "../../api/kinds";
import { useMay } from "../../api/rights";
import { Card, Empty } from "../../parts/card";
import { Confirm } from "../../parts/dialogs";
import { ItemList } from "../../parts/item-list";
import type { ItemPageProps, Members } from "../../parts/item-page";
import { ExplainButton, shownOriginal } from "../../parts/explaining";
import { keepTimeZone } from "../../parts/time";
import { Facts, Rows } from "../../parts/value";

const CAPTURE_S = 3600;

const QUEUE = ["queued", "queue_bytes", "inflight", "receive_maximum", "unsent_bytes", "silent_s", "dropped_by_reason"];
const ACCESS = ["tls", "attributes"];
const CONNECT = ["clean_start", "keep_alive_s", "connect_properties", "will"];
/** Members that have a card of their own, or are shown in the head of the page. */
const ELSEWHERE = new Set(
  [...QUEUE, ...ACCESS, ...CONNECT].concat(
    ["access", "rates", "user_properties", "subscriptions"],
    ["inflight_messages", "problem", "counters", "total_payload_bytes"],
  ),
);

export default function ClientPage({ resource, name, data }: ItemPageProps) {
  const [events, messages] = resource.parts;
  const of = (members: string[]) =>
    Object.fromEntries(members.filter((key) => key in data).map((key) => [key, data[key]]));
  const subscriptions = data.subscriptions as Members[];
  return (
    <div className="columns">
      <div className="stack">
        <ItemList part={events!} name={name} title="Time line" empty="Nothing has happened since the broker started." />
        <ItemList
          part={messages!}
          name={name}
          title="Messages for it"
          empty="No message is in flight to it or waits for it."
          action={(row) => <ExplainButton topic={String(row.topic)} of={shownOriginal(row as never)} />}
        />
        <Card title="Subscriptions">
          {subscriptions.length ? (
            <Rows rows={subscriptions.map(ofClient)} label="Subscriptions" />
          ) : (
            <Empty>It has no subscriptions.</Empty>
          )}
        </Card>
      </div>
      <div className="stack">
        <Card title="Queue">
          <Facts object={of([...QUEUE, "rates"])} label={name} />
        </Card>
        <Card title="Connection">
          <Facts object={of(Object.keys(data).filter((key) => !ELSEWHERE.has(key)))} label={name} />
        </Card>
        {data.connected === true && (
          <>
            <Card title="CONNECT" note="as the client sent it">
              <Facts object={of(CONNECT)} label={name} />
              <UserProperties pairs={data.user_properties as string[][]} />
            </Card>
            <Card title="Access">
              <Facts object={{ ...(data.access as Members), ...of(ACCESS) }} label={name} />
            </Card>
          </>
        )}
      </div>
    </div>
  );
}

/** A client that left: links of messages, alarms and the audit log lead here too. */
export function ClientGone({ resource: { parts }, name }: { resource: Resource; name: string }) {
  return (
    <>
      <p className="empty">{name} is not connected and has no session.</p>
      <ItemList
        part={parts[0]!}
        name={name}
        title="Time line"
        empty="Nothing is known of it since the broker started."
      />
    </>
  );
}

const ofClient = ({ clientid: _c, client_id: _, durable: __, connected: ___, ...subscription }: Members) =>
  subscription;

/** In the order in which the client sent them; names may repeat. */
function UserProperties({ pairs }: { pairs: string[][] }) {
  if (!pairs.length) return null;
  return (
    <section className="part" aria-label="User properties">
      <h3>User properties</h3>
      <dl className="facts">
        {pairs.map(([key, value], at) => (
          <div key={at}>
            <dt>{key}</dt>
            <dd>{value}</dd>
          </div>
        ))}
      </dl>
    </section>
  );
}

/** Names of captures have no other characters; the time keeps those of one client apart. */
const captureOf = (client: string) =>
  `${client
    .replace(/[^A-Za-z0-9_.-]/g, "_")
    .replace(/^[.-]/, "_")
    .slice(0, 40)}-${Date.now()}`;

/** Verbs of other lists: capture what it publishes, ban it. */
export function ClientVerbs({ name }: { name: string }) {
  const [asked, ask] = useState<"capture" | "ban" | null>(null);
  const navigate = useNavigate();
  const may = useMay();
  const close = () => ask(null);
  const [capture] = useState(() => captureOf(name));
  return (
    <>
      {may("captures", "change") && (
        <button type="button" onClick={() => ask("capture")}>
          Capture…
        </button>
      )}
      {may("bans", "change") && (
        <button type="button" onClick={() => ask("ban")}>
          Ban…
        </button>
      )}
      {asked === "capture" && (
        <Confirm
          title={`Capture ${name}`}
          method="POST"
          path="captures"
          body={{ name: capture, clientid: name, seconds: CAPTURE_S }}
          text="What it publishes in the next hour is recorded with every stage, and so is what happens to it."
          mayBeDry={false}
          close={close}
          onDone={() => void navigate({ to: `/captures/${capture}`, search: keepTimeZone } as never)}
        />
      )}
      {asked === "ban" && (
        <Confirm
          title={`Ban ${name}`}
          method="POST"
          path="bans"
          body={{ as: "clientid", who: name, reason: "Banned on the client's page" }}
          text="It is disconnected, and cannot connect again until the ban is deleted from the list of bans."
          isRisky
          close={close}
        />
      )}
    </>
  );
}
