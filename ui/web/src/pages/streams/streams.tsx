// Streams: what they hold and who reads it, and their records, from any offset or time on.

import { keepPreviousData, useQuery } from "@tanstack/react-query";
import { Link, useNavigate, useSearch } from "@tanstack/react-router";
import { type FormEvent, type ReactNode, useState } from "react";
import { Button } from "react-aria-components";
import { getAny, sentence } from "../../api/client";
import { useNow, useStatus } from "../../api/live";
import type { components } from "../../api/openapi";
import { inAddress, recordsFrom } from "../../parts/address";
import { Card, Empty, LoadFailure, ObjectLink, State, Why } from "../../parts/card";
import { Command, download, word } from "../../parts/copy";
import { CopyAs } from "../../parts/copy-as";
import { Opens } from "../../parts/dialogs";
import { ExplainButton, originalOf } from "../../parts/explaining";
import { bytes, count, counted, duration, exact } from "../../parts/format";
import type { KindPage, ObjectProps } from "../../parts/kind-page";
import { SpecForm } from "../../parts/spec-form";
import { Stats } from "../../parts/stats";
import { Table } from "../../parts/table";
import { clock, DateTime, RelativeTime, useTimeZone } from "../../parts/time";
import { StreamReplay } from "./replay";

type Stream = components["schemas"]["StreamObject"];
type Found = components["schemas"]["RecordView"];
type Records = components["schemas"]["RecordPage"];

export const page: KindPage<Stream> = {
  cells: { Captures: { show: captures } },
  tabs: [
    { title: "Overview", show: Overview },
    { title: "Records", show: Browser },
    { title: "Replay", show: StreamReplay },
    {
      title: "Settings",
      show: ({ name, object, etag }) => (
        <SpecForm kind="streams" schema="StreamSpec" name={name} object={object} etag={etag} skip={["shards"]} />
      ),
    },
  ],
  create: () => (
    <>
      <p>
        With topic filters a stream keeps messages as they were published. Without any it keeps the rows that rules
        write to it.
      </p>
      <SpecForm kind="streams" schema="StreamSpec" object={{ name: "", topics: [] }} />
    </>
  ),
};

function captures({ topics }: Stream): ReactNode {
  return topics?.length ? <code>{topics.join(", ")}</code> : "rows that rules write";
}

function Overview({ name, object }: ObjectProps<Stream>) {
  const { data: status } = useStatus();
  const now = useNow();
  const readers = status?.tables.filter(({ stream }) => stream === name) ?? [];
  const limit = Number(object.retention?.bytes ?? 0);
  const age = seconds(object.retention?.age);
  const left = age !== null && object.oldest ? age - (now - Date.parse(object.oldest)) / 1000 : null;
  return (
    <>
      <Stats
        label="What it holds"
        stats={[
          {
            label: "Records",
            value: count(object.records),
            under: (
              <Link to="." search={recordsFrom()}>
                browse
              </Link>
            ),
          },
          { label: "Size", value: bytes(object.bytes), under: `of at most ${bytes(limit)}` },
          { label: "Rate", value: count(object.records_per_s), unit: "/s" },
          { label: "Oldest", value: <RelativeTime at={object.oldest} /> },
          { label: "Newest", value: <RelativeTime at={object.newest} /> },
          ...(object.index_state
            ? [
                {
                  label: "Topic index",
                  value: object.index_state.state,
                  under:
                    object.index_state.problem ?? `${counted(object.index_state.records_waiting, "record")} to index`,
                },
              ]
            : []),
          ...(object.tier_state
            ? [
                {
                  label: "In the tier",
                  value: bytes(object.tier_state.bytes),
                  under:
                    object.tier_state.problem ??
                    `${object.tier_state.state}, ${counted(object.tier_state.records_waiting, "record")} to upload`,
                },
              ]
            : []),
          {
            label: "Captures",
            value: object.topics?.length ? count(object.topics.length) : "rows",
            under: captures(object),
          },
        ]}
      />
      <Card title="Kept" note={age === null ? "for ever" : `for ${duration(age)}`}>
        <p>
          {left === null
            ? "No record is removed because of its age."
            : left > 0
              ? `The oldest record is removed in ${duration(left)}.`
              : "The oldest records are being removed."}
        </p>
        <meter aria-label="Size of the stream" min={0} max={limit || 1} high={0.9 * limit} value={object.bytes ?? 0} />
        <p className="muted small">
          {bytes(object.bytes)} of {bytes(limit)} before compression; above that the oldest records are removed.
        </p>
      </Card>
      <Card title="Shards" note="each in the order of its offsets">
        <Table
          label="Shards"
          rows={object.positions ?? []}
          keyOf={({ shard }) => shard}
          columns={[
            { title: "Shard", kind: "num", show: ({ shard }) => shard },
            {
              title: "First",
              kind: "num",
              show: ({ shard, first_offset }) => (
                <Link to="." search={recordsFrom(shard, first_offset)}>
                  {first_offset}
                </Link>
              ),
            },
            { title: "Next", kind: "num", show: ({ next_offset }) => next_offset },
            ...(object.tier_state
              ? [
                  {
                    title: "In the tier",
                    kind: "num" as const,
                    show: ({ shard }: { shard: number }) => inTier(object, shard),
                  },
                ]
              : []),
            {
              title: "Records",
              kind: "num",
              show: ({ first_offset, next_offset }) => exact(BigInt(next_offset) - BigInt(first_offset)),
            },
          ]}
        />
      </Card>
      <Card title="Readers" note="tables that follow this stream">
        {readers.length ? (
          <Table
            label="Readers"
            rows={readers}
            keyOf={(one) => one.name}
            columns={[
              { title: "Table", show: (one) => <ObjectLink kind="tables" name={one.name} /> },
              {
                title: "State",
                show: ({ state, reason }) => (
                  <>
                    <State state={state} />
                    <Why>{reason}</Why>
                  </>
                ),
              },
              {
                title: "Behind",
                kind: "num",
                show: ({ lag_records }) => (
                  <>
                    {counted(lag_records, "record")}
                    <Why>{behind(lag_records, object.records_per_s)}</Why>
                  </>
                ),
              },
              { title: "Last commit", kind: "fit", show: ({ last_commit_at }) => <RelativeTime at={last_commit_at} /> },
            ]}
          />
        ) : (
          <Empty>
            No table follows this stream.{" "}
            <Link to="/new/$kind" params={{ kind: "tables" }} search={{ stream: name } as never}>
              Create a table from it
            </Link>
          </Empty>
        )}
      </Card>
    </>
  );
}

/** The offsets of a shard that are in the tier, with the way to the first. */
function inTier({ tier_state }: Stream, shard: number): ReactNode {
  const held = tier_state?.positions.find((one) => one.shard === shard);
  if (!held || held.first_offset === held.next_offset) return "none";
  return (
    <>
      <Link to="." search={recordsFrom(shard, held.first_offset)}>
        {held.first_offset}
      </Link>{" "}
      to {String(BigInt(held.next_offset) - 1n)}
    </>
  );
}

const behind = (lag: number | null | undefined, rate: number | undefined) =>
  lag && rate ? `about ${duration(lag / rate)}` : "";

/** An age of the API: seconds, as a number or as "604800s"; null for infinity. */
function seconds(age: number | string | undefined): number | null {
  const value = Number.parseFloat(String(age));
  return Number.isFinite(value) ? value : null;
}

/** As the address has it: what looks like a number is one. */
interface Place {
  shard?: number;
  from?: string | number;
  topics?: string | number;
  record?: string | number;
  limit?: number;
  find?: string | number;
  plain?: boolean;
}

const LIMITS = [20, 100, 500];

function Browser({ name, object }: ObjectProps<Stream>) {
  const navigate = useNavigate();
  const place = useSearch({ strict: false }) as Place;
  const shard = Number(place.shard ?? 0);
  const limit = Number(place.limit ?? 20);
  const held = object.positions?.find((one) => one.shard === shard);
  const [first, end] = [BigInt(held?.first_offset ?? 0), BigInt(held?.next_offset ?? 0)];
  const newest = end - BigInt(limit) > first ? end - BigInt(limit) : first;
  const isAnywhere = place.from === undefined || place.from === "";
  const topics = String(place.topics ?? "");
  const isNewest = isAnywhere && !topics;
  const from = isNewest ? String(newest) : isAnywhere ? String(first) : String(place.from);
  const isLast = !/^\d+$/.test(from) || BigInt(from) + BigInt(limit) >= end;
  const query = { shard, from, limit, decode: !place.plain, ...(topics && { filter: topics }) };
  const { data, error } = useQuery({
    queryKey: ["records", name, query, isLast && String(end)],
    queryFn: ({ signal }) => getAny<Records>(`streams/${encodeURIComponent(name)}/records`, { query, signal }),
    placeholderData: keepPreviousData,
  });
  const set = (changed: Place) => {
    const placed = "from" in changed ? { ...changed, from: inAddress(changed.from) } : changed;
    void navigate({ to: ".", search: ((known: object) => ({ ...known, ...placed })) as never, replace: true });
  };
  const submit = (event: FormEvent<HTMLFormElement>) => {
    event.preventDefault();
    const given = new FormData(event.currentTarget);
    set({
      from: String(given.get("from")).trim() || undefined,
      topics: String(given.get("topics")).trim() || undefined,
      record: undefined,
    });
  };
  const wanted = String(place.find ?? "").toLowerCase();
  const items = data?.items ?? [];
  const shown = items.filter(
    (one) => !wanted || `${one.topic} ${one.clientid} ${textOf(one)}`.toLowerCase().includes(wanted),
  );
  const at = items[0] ? BigInt(items[0].offset) : newest;
  const back = at - BigInt(limit) > first ? at - BigInt(limit) : first;
  const chosen = items.find(({ offset }) => offset === String(place.record));
  const last = BigInt(data?.next_offset ?? 0) - 1n;
  const options = `--limit ${limit}${topics ? ` --filter ${word(topics)}` : ""}${place.plain ? "" : " --decode"}`;
  const search = new URLSearchParams(Object.entries(query).map(([key, value]) => [key, String(value)]));
  return (
    <Card title="Records" note={data && `offsets ${data.first_offset} to ${last < 0n ? 0 : last} of shard ${shard}`}>
      <form key={`${from} ${shard} ${topics}`} className="inline filters" aria-label="Place" onSubmit={submit}>
        {(object.positions?.length ?? 1) > 1 && (
          <label>
            Shard
            <select
              value={shard}
              onChange={(event) =>
                set({ shard: Number(event.target.value) || undefined, from: undefined, record: undefined })
              }>
              {object.positions?.map((one) => (
                <option key={one.shard}>{one.shard}</option>
              ))}
            </select>
          </label>
        )}
        <label>
          Offset or time
          <input
            name="from"
            className="wide"
            spellCheck={false}
            defaultValue={place.from ?? ""}
            placeholder="2026-01-31T12:00:00Z"
          />
        </label>
        <label>
          Topic filter
          <input name="topics" className="wide" spellCheck={false} defaultValue={topics} placeholder="plant/+/temp" />
        </label>
        <button type="submit">Go</button>
        <div className="buttons" role="group" aria-label="Move">
          <button type="button" disabled={at <= first} onClick={() => set({ from: String(first), record: undefined })}>
            First
          </button>
          <button type="button" disabled={at <= first} onClick={() => set({ from: String(back), record: undefined })}>
            Previous
          </button>
          <button
            type="button"
            disabled={!data?.next}
            onClick={() => set({ from: data?.next ?? undefined, record: undefined })}>
            Next
          </button>
          <button
            type="button"
            aria-pressed={isNewest}
            onClick={() => set({ from: undefined, topics: undefined, record: undefined })}>
            Newest
          </button>
        </div>
      </form>
      <div className="inline filters" role="search" aria-label="Filter">
        <label>
          Find in these records
          <input
            type="search"
            spellCheck={false}
            value={place.find ?? ""}
            onChange={(event) => set({ find: event.target.value || undefined })}
          />
        </label>
        <label>
          Records
          <select value={limit} onChange={(event) => set({ limit: Number(event.target.value) })}>
            {LIMITS.map((one) => (
              <option key={one}>{one}</option>
            ))}
          </select>
        </label>
        <label className="check">
          <input
            type="checkbox"
            checked={!place.plain}
            onChange={(event) => set({ plain: !event.target.checked || undefined })}
          />{" "}
          Decode by the bound schema
        </label>
        <CopyAs
          path={`streams/${name}/records?${search}`}
          cli={`sluice streams records ${name} --shard ${shard} --from ${word(String(from))} ${options}`}
        />
        {items[0] && (
          <Opens label="Export…" title={`Export records of ${name}`}>
            {(close) => (
              <Export
                stream={name}
                shard={shard}
                first={items[0]!.offset}
                end={end}
                decode={!place.plain}
                topics={topics}
                close={close}
              />
            )}
          </Opens>
        )}
      </div>
      <LoadFailure error={error} />
      {data && !items.length && (
        <Empty>
          {data.next
            ? `No topic from offset ${from} to ${BigInt(data.next) - 1n} matches the filter. Next looks further.`
            : topics
              ? "No topic at this place or after it matches the filter."
              : end > first
                ? "There is no record at this place or after it."
                : object.topics?.length
                  ? "Nothing has arrived on its topics yet."
                  : "No rule has written a row yet."}
        </Empty>
      )}
      {items.length > 0 && !shown.length && (
        <Empty>
          None of these {items.length} records contains “{place.find}”.{" "}
          <button type="button" className="quiet" onClick={() => set({ find: undefined })}>
            Show all
          </button>
        </Empty>
      )}
      {shown.length > 0 && (
        <Table
          label="Records of the stream"
          kind="records"
          rows={shown}
          keyOf={({ offset }) => offset}
          columns={[
            {
              title: "Offset",
              kind: "num",
              show: ({ offset }) => (
                <Link
                  to="."
                  search={recordsFrom(shard, isNewest ? String(at) : from, offset)}
                  aria-current={offset === chosen?.offset || undefined}>
                  {offset}
                </Link>
              ),
            },
            { title: "Time", kind: "fit", show: ({ at }) => <DateTime at={at} /> },
            {
              title: "Topic",
              show: ({ topic, rule }) => (
                <>
                  <code>{topic}</code>
                  {rule && <Why>rule {rule}</Why>}
                </>
              ),
            },
            {
              title: "Payload",
              show: (one) => (
                <>
                  <code className="one-line">{textOf(one)}</code>
                  {one.schema_error && <Why>{one.schema_error}</Why>}
                </>
              ),
            },
            { title: "Client", show: (one) => one.clientid },
            {
              title: "Do",
              head: <span className="hidden">Do</span>,
              kind: "num verbs",
              show: ({ topic, offset }) => <ExplainButton topic={topic} of={() => originalOf(name, shard, offset)} />,
            },
          ]}
        />
      )}
      {chosen && (
        <One
          key={chosen.offset}
          stream={name}
          record={chosen}
          close={() => set({ record: undefined })}
          isTopics={Boolean(object.topics?.length)}
        />
      )}
    </Card>
  );
}

const MOST_EXPORTED = 100_000;

/** A range of offsets as a file with one record as JSON on each line. */
function Export({
  stream,
  shard,
  first,
  end,
  decode,
  topics,
  close,
}: {
  stream: string;
  shard: number;
  first: string;
  end: bigint;
  decode: boolean;
  topics: string;
  close: () => void;
}) {
  const [done, setDone] = useState<number>();
  const [says, setSays] = useState("");
  const [from, setFrom] = useState(first);
  const [to, setTo] = useState(String(end - 1n));
  const isRange = /^\d+$/.test(from) && /^\d+$/.test(to) && BigInt(from) <= BigInt(to);
  const wanted = isRange ? BigInt(to) - BigInt(from) + 1n : 0n;
  const options = `--limit ${wanted}${topics ? ` --filter ${word(topics)}` : ""}${decode ? " --decode" : ""} --json`;
  const problem = !isRange
    ? "Last offset: expected an offset that is not before the first."
    : wanted > MOST_EXPORTED
      ? `Expected at most ${counted(MOST_EXPORTED, "record", exact)}, got ${exact(wanted)}.`
      : "";
  const write = async (event: FormEvent) => {
    event.preventDefault();
    const lines: string[] = [];
    try {
      for (let at: string | null = from; at !== null && BigInt(at) <= BigInt(to);) {
        setDone(lines.length);
        const page: Records = await getAny<Records>(`streams/${encodeURIComponent(stream)}/records`, {
          query: { shard, from: at, limit: 1000, decode, ...(topics && { filter: topics }) },
        });
        lines.push(
          ...page.items.filter(({ offset }) => BigInt(offset) <= BigInt(to)).map((one) => `${JSON.stringify(one)}\n`),
        );
        at = page.next;
      }
      download(`${stream}-${shard}-${from}-${to}`, "ndjson", new Blob(lines, { type: "application/x-ndjson" }));
      close();
    } catch (error) {
      setDone(undefined);
      setSays(sentence(error));
    }
  };
  return (
    <form className="export" onSubmit={(event) => void write(event)}>
      <h2>Export records of {stream}</h2>
      <p>
        The file has one record as JSON on each line,{" "}
        {topics && (
          <>
            of topics that match <code>{topics}</code>,{" "}
          </>
        )}
        {decode ? "decoded by the schema that is bound to its topic" : "with its payload as text or base64"}. Payloads
        above 64 KiB are cut.
      </p>
      <div className="fields across">
        <label>
          First offset
          <input value={from} inputMode="numeric" onChange={(event) => setFrom(event.target.value)} />
        </label>
        <label>
          Last offset
          <input value={to} inputMode="numeric" onChange={(event) => setTo(event.target.value)} />
        </label>
      </div>
      <Command
        text={`sluice streams records ${stream} --shard ${shard} --from ${word(from)} ${options} | jq -c '.items[]'`}
      />
      <div role="alert">{(problem || says) && <State state="failed">{problem || says}</State>}</div>
      <p role="status">{done !== undefined && `${exact(done)} of ${counted(wanted, "record", exact)} read`}</p>
      <div className="buttons">
        <button type="submit" className="primary" disabled={Boolean(problem) || done !== undefined}>
          Export {counted(Number(wanted), "record")}
        </button>
        <Button className="button" onPress={close}>
          Close
        </Button>
      </div>
    </form>
  );
}

const textOf = ({ payload }: Found) =>
  (typeof payload.data === "string" ? payload.data : JSON.stringify(payload.data)) + (payload.truncated ? "…" : "");

function One({
  stream,
  record,
  isTopics,
  close,
}: {
  stream: string;
  record: Found;
  isTopics: boolean;
  close: () => void;
}) {
  const timeZone = useTimeZone();
  const { shard, offset, payload } = record;
  const { data: raw } = useQuery({
    queryKey: ["raw", stream, shard, offset],
    staleTime: Infinity,
    queryFn: () =>
      getAny<Records>(`streams/${encodeURIComponent(stream)}/records`, {
        query: { shard, from: offset, limit: 1, raw: true },
      }),
  });
  const properties: [string, unknown][] = [
    ["Published", clock(Date.parse(record.at), timeZone, "full")],
    ["Client", record.clientid],
    ["User", record.username],
    ["QoS", record.qos],
    ["Retained", record.retain ? "yes" : "no"],
    ["Schema", record.schema],
    ["Size", bytes(payload.size_bytes)],
    ...Object.entries(record.properties),
    ...record.user_properties.map(([key, value]): [string, unknown] => [`${key} (user property)`, value]),
  ];
  return (
    <section className="record" aria-label={`Record ${offset}`}>
      <div className="head">
        <h3>
          Record {offset} of shard {shard}, <code>{record.topic}</code>
        </h3>
        <div className="buttons">
          <ExplainButton topic={record.topic} of={() => originalOf(stream, shard, offset)} />
          {isTopics && (
            <Link
              className="button"
              to="/new/$kind"
              params={{ kind: "rules" }}
              search={{ input: "stream", stream, record: `${shard}/${offset}` } as never}>
              Use as test input
            </Link>
          )}
          <button type="button" onClick={close}>
            Close
          </button>
        </div>
      </div>
      {record.schema_error && (
        <p>
          <State state="failed">{record.schema_error}</State>
        </p>
      )}
      <div className="columns">
        <pre className="source" tabIndex={0} aria-label="Payload">
          {typeof payload.data === "string" ? payload.data : JSON.stringify(payload.data, null, 2)}
        </pre>
        <dl className="members">
          {properties.map(
            ([name, value]) =>
              value !== null &&
              value !== undefined && (
                <div key={name}>
                  <dt>{name}</dt>
                  <dd>{typeof value === "object" ? JSON.stringify(value) : String(value)}</dd>
                </div>
              ),
          )}
        </dl>
      </div>
      <details>
        <summary>Bytes</summary>
        <pre className="source" tabIndex={0} aria-label="Bytes of the payload">
          {raw?.items[0] ? hex(String(raw.items[0].payload.data)) : "Loading…"}
        </pre>
      </details>
      <Command text={`sluice streams records ${stream} --shard ${shard} --from ${offset} --limit 1`} />
    </section>
  );
}

const HEX_BYTES = 2048;

/** Base64 as lines of sixteen bytes: offset, bytes, characters. */
function hex(base64: string): string {
  const all = Uint8Array.from(atob(base64), (one) => one.charCodeAt(0));
  const lines: string[] = [];
  for (let at = 0; at < Math.min(all.length, HEX_BYTES); at += 16) {
    const some = [...all.subarray(at, at + 16)];
    const pairs = some.map((one) => one.toString(16).padStart(2, "0")).join(" ");
    const characters = some.map((one) => (one > 31 && one < 127 ? String.fromCharCode(one) : ".")).join("");
    lines.push(`${at.toString(16).padStart(6, "0")}  ${pairs.padEnd(47)}  ${characters}`);
  }
  return lines.join("\n") + (all.length > HEX_BYTES ? `\n… ${exact(all.length - HEX_BYTES)} bytes more` : "");
}
