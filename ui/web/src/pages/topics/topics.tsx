// Topics: the tree with rates, level by level; of one topic who gets it; and the messages as they pass.

import { keepPreviousData, useQuery } from "@tanstack/react-query";
import { Link, useNavigate, useSearch } from "@tanstack/react-router";
import { useState } from "react";
import { getAny, type TailedMessage } from "../../api/client";
import { useEvery, useRested, useTail } from "../../api/live";
import type { components } from "../../api/openapi";
import { Card, Empty, LoadFailure, Loading, State, Why } from "../../parts/card";
import { download } from "../../parts/copy";
import { CopyAs } from "../../parts/copy-as";
import { word } from "../../parts/copy";
import { ReceiversOf } from "../../parts/explain";
import { ExplainButton, outcomeThen, shownOriginal } from "../../parts/explaining";
import { bytes, count, counted, exact, UNKNOWN } from "../../parts/format";
import { Table } from "../../parts/table";
import { clock, keepTimeZone, RelativeTime, useTimeZone } from "../../parts/time";
import type { TopicSearch } from "../../parts/topic-search";

type Page = components["schemas"]["TopicPage"];
const EVERY_MS = 2000;
const ROWS = 50;

export function Topics() {
  const search = useSearch({ strict: false }) as TopicSearch;
  const navigate = useNavigate();
  const set = (changed: TopicSearch) =>
    void navigate({ to: ".", search: (known: object) => ({ ...known, ...changed }), replace: true } as never);
  const { under, topic, q = "" } = search;
  const filter = search.filter ?? topic ?? (under ? `${under}/#` : "#");
  return (
    <div className="page">
      <div className="title">
        <div>
          <h1>Topics</h1>
          <p className="muted">
            What is published where, how often and when last, who gets it, and the messages as they pass.
          </p>
        </div>
        <div className="buttons">
          <CopyAs
            path={`topics${under ? `?under=${encodeURIComponent(under)}` : ""}`}
            cli={`sluice topics tree${under ? ` ${word(under)}` : ""}`}
          />
        </div>
      </div>
      <div className="columns">
        <Tree under={under} search={q} setSearch={(text) => set({ q: text || undefined })} />
        <div className="stack">
          <Who topic={topic ?? ""} setTopic={(text) => set({ topic: text || undefined })} />
          <Tail key={filter} filter={filter} setFilter={(text) => set({ filter: text || undefined })} />
        </div>
      </div>
    </div>
  );
}

const at = (changed: TopicSearch) => ((known: { tz?: string }) => ({ ...keepTimeZone(known), ...changed })) as never;

function Tree({ under, search, setSearch }: { under?: string; search: string; setSearch: (text: string) => void }) {
  const pattern = useRested(search && (search.includes("*") ? search : `*${search}*`));
  const { data, error } = useQuery({
    queryKey: ["topics", under, pattern],
    queryFn: ({ signal }) => getAny<Page>("topics", { query: { under, search: pattern, limit: ROWS }, signal }),
    refetchInterval: useEvery(EVERY_MS),
    placeholderData: keepPreviousData,
  });
  const levels = under === undefined ? [] : under.split("/");
  return (
    <Card title="Tree" note={data && `${exact(data.total)} here`}>
      <div className="filters">
        <label>
          Search
          <input value={search} placeholder="* for any" onChange={({ target }) => setSearch(target.value)} />
        </label>
      </div>
      <p aria-label="Level">
        <Link to="." search={at({})}>
          all
        </Link>
        {levels.map((level, depth) => (
          <span key={depth}>
            {" / "}
            <Link to="." search={at({ under: levels.slice(0, depth + 1).join("/") })}>
              {level || "(empty)"}
            </Link>
          </span>
        ))}
      </p>
      <LoadFailure error={error} />
      {!data && !error && <Loading />}
      {data && !data.items.length && (
        <Empty>{search ? "No topic matches." : "Nothing was published here since the broker counts."}</Empty>
      )}
      {data && data.items.length > 0 && (
        <Table
          label="Topics"
          kind="live"
          rows={data.items}
          keyOf={({ topic }) => topic}
          columns={[
            {
              title: "Topic",
              show: ({ name, topic, is_topic: isTopic, levels, retained }) => (
                <>
                  <Link className="name" to="." search={at(isTopic ? { under, topic } : { under: topic })}>
                    {pattern ? topic : name || "(empty)"}
                  </Link>
                  {levels > 0 && isTopic && (
                    <>
                      {" "}
                      <Link to="." search={at({ under: topic })}>
                        /…
                      </Link>
                    </>
                  )}
                  <Why>
                    {[levels > 0 && counted(levels, "level"), retained && "retained"].filter(Boolean).join(" · ")}
                  </Why>
                </>
              ),
            },
            { title: "Topics", kind: "num", show: ({ topics }) => count(topics) },
            {
              title: "Messages/s",
              kind: "num",
              show: ({ message_rate: rate }) => (rate === null ? UNKNOWN : count(rate)),
            },
            { title: "Messages", kind: "num", show: ({ messages }) => count(messages) },
            { title: "Size", kind: "num", show: ({ bytes: size }) => bytes(size) },
            { title: "Last", kind: "fit", show: ({ last_at: last }) => (last ? <RelativeTime at={last} /> : UNKNOWN) },
          ]}
        />
      )}
      {data && data.rest.topics > 0 && (
        <p className="muted small">And {counted(data.rest.topics, "topic")} that are counted together.</p>
      )}
      {data?.next && <p className="muted small">The {ROWS} busiest are shown. Search for others.</p>}
      {data?.is_sampled && <p className="muted small">Rates are from a sample of the messages.</p>}
    </Card>
  );
}

function Who({ topic, setTopic }: { topic: string; setTopic: (topic: string) => void }) {
  const [client, setClient] = useState("");
  const rested = useRested({ topic, client });
  return (
    <Card title="Who gets it and why">
      <div className="filters">
        <label>
          Topic
          <input value={topic} placeholder="meters/1" onChange={({ target }) => setTopic(target.value)} />
        </label>
        <label>
          Publisher
          <input value={client} placeholder="any client" onChange={({ target }) => setClient(target.value)} />
        </label>
      </div>
      {rested.topic ? (
        <ReceiversOf topic={rested.topic} client={rested.client} />
      ) : (
        <Empty>Choose a topic in the tree, or type one.</Empty>
      )}
    </Card>
  );
}

const textOf = ({ data }: TailedMessage["payload"]) => (typeof data === "string" ? data : JSON.stringify(data));

function Tail({ filter, setFilter }: { filter: string; setFilter: (filter: string) => void }) {
  const [text, setText] = useState(filter);
  const [client, setClient] = useState("");
  const [address, setAddress] = useState("");
  const [publisher, setPublisher] = useState<{ clientid?: string; address?: string }>({});
  const [isOpen, setOpen] = useState(true);
  const timeZone = useTimeZone();
  const { data, problem } = useTail(isOpen ? filter : undefined, 20, publisher);
  const [kept, keep] = useState<TailedMessage[]>([]);
  const shown = isOpen ? (data?.messages ?? []) : kept;
  const follow = () => {
    setFilter(text);
    const wanted = { clientid: client.trim() || undefined, address: address.trim() || undefined };
    if (wanted.clientid !== publisher.clientid || wanted.address !== publisher.address) setPublisher(wanted);
  };
  const toggle = () => {
    keep(shown);
    setOpen(!isOpen);
  };
  const lines = () =>
    new Blob(
      shown.map((message) => `${JSON.stringify(message)}\n`),
      { type: "application/x-ndjson" },
    );
  return (
    <Card title="Messages" note={data && isOpen && `${exact(data.matched)} matched, ${exact(data.skipped)} left out`}>
      <form
        className="filters"
        onSubmit={(event) => {
          event.preventDefault();
          follow();
        }}>
        <label>
          Topic filter
          <input value={text} onChange={({ target }) => setText(target.value)} onBlur={follow} />
        </label>
        <label>
          Client
          <input
            value={client}
            placeholder="any, or a pattern: meter-*"
            onChange={({ target }) => setClient(target.value)}
            onBlur={follow}
          />
        </label>
        <label>
          Address
          <input
            value={address}
            placeholder="any, or a network: 10.0.0.0/8"
            onChange={({ target }) => setAddress(target.value)}
            onBlur={follow}
          />
        </label>
        <button type="submit" className="hidden">
          Apply
        </button>
      </form>
      <div className="buttons">
        <button type="button" onClick={toggle}>
          {isOpen ? "Stop" : "Follow"}
        </button>
        <button type="button" disabled={!shown.length} onClick={() => download("messages", "ndjson", lines())}>
          Download
        </button>
      </div>
      {problem && (
        <p role="alert">
          <State state="failed">{problem.detail}</State>
        </p>
      )}
      {shown.length ? (
        <Table
          label="Messages, newest first"
          kind="live"
          rows={shown.slice(0, 50)}
          keyOf={(message, at) => `${message.at} ${shown.length - at}`}
          columns={[
            { title: "At", kind: "fit", show: ({ at }) => clock(Date.parse(at), timeZone) },
            {
              title: "Topic",
              kind: "why",
              show: ({ topic, clientid: id, address, qos, retain }) => (
                <>
                  <code className="wraps">{topic}</code>
                  <Why>{[id, address, `QoS ${qos}`, retain && "retained"].filter(Boolean).join(" · ")}</Why>
                </>
              ),
            },
            {
              title: "Payload",
              kind: "why",
              show: ({ payload, outcome, refusal, schema, user_properties: pairs }) => (
                <>
                  <code className="wraps">{textOf(payload).slice(0, 300)}</code>
                  <Why>
                    {[
                      schema && `schema ${schema}`,
                      ...pairs.map(([key, value]) => `${key}=${value}`),
                      refusal ? refusal.text : outcome !== "passed" && outcome,
                    ]
                      .filter(Boolean)
                      .join(" · ")}
                  </Why>
                </>
              ),
            },
            {
              title: "Do",
              head: <span className="hidden">Do</span>,
              kind: "num verbs",
              show: (message) => (
                <ExplainButton topic={message.topic} of={shownOriginal(message)} then={outcomeThen(message)} />
              ),
            },
          ]}
        />
      ) : !isOpen ? (
        <Empty>Nothing is followed.</Empty>
      ) : data ? (
        <Empty>No message has passed since the page follows.</Empty>
      ) : (
        !problem && <Loading />
      )}
    </Card>
  );
}
