// Members of objects as pages draw them: by the value, and by the name, which ends with the unit.

import { Link } from "@tanstack/react-router";
import type { ReactNode } from "react";
import { type DeclaredColumn, KINDS, RESOURCES } from "../api/kinds";
import { ObjectLink, State } from "./card";
import { bytes, count, duration, exact, type Progress, progressText, UNKNOWN } from "./format";
import { wordsOf } from "./schema-form";
import { type Column, Table } from "./table";
import { keepTimeZone, RelativeTime } from "./time";

type Members = Record<string, unknown>;

const TIME = /^\d{4}-\d\d-\d\dT\d\d:\d\d/;
const isMembers = (value: unknown): value is Members =>
  typeof value === "object" && value !== null && !Array.isArray(value);
const isNothing = (value: unknown) =>
  value === null || value === undefined || value === "" || (Array.isArray(value) && !value.length);

/** A member, or a member of a member: ``metrics/matched``. */
export const valueAt = (row: object, member: string): unknown =>
  member.split("/").reduce<unknown>((value, key) => (value as Members | null | undefined)?.[key], row);

/** Pages of what members name: several by the word for many, single ones where the word has no other meaning. */
const LINKED = new Map([
  ...KINDS.map(({ many, path }) => [many.toLowerCase(), path] as const),
  ...KINDS.filter(({ name }) => ["connector", "stream", "listener"].includes(name)).map(
    ({ name, path }) => [name, path] as const,
  ),
  ...RESOURCES.filter(({ key, show }) => show && key.endsWith("id") && key !== "id")
    .toReversed() // the first one that is named so
    .map(({ key, path }) => [key, path] as const),
]);

function drawnNumber(member: string, value: number): [string, string] {
  const parts = member.split("/");
  const last = parts.at(-1)!;
  const has = (unit: RegExp) => parts.some((part) => unit.test(part));
  const isSize = has(/(^|_)bytes(_|$)/);
  if (/(^|[._])(rate|per_s)$/.test(last) || has(/^rates$/))
    return [`${(isSize ? bytes : count)(value)} /s`, exact(value)];
  if (has(/(^|_)ms$/)) return [duration(value / 1000), `${exact(value)} ms`];
  if (has(/_s$/)) return [duration(value), `${exact(value)} s`];
  if (isSize) return [bytes(value), `${exact(value)} B`];
  if (/(^|_)(id|identifier|pid|number|cell|port|offset|position|version)$|^(value|default)$/.test(last))
    return [String(value), ""];
  return [count(value), exact(value)];
}

/** Payloads are objects with their encoding. */
const isPayload = (value: Members) => "encoding" in value && "data" in value;
const textOf = (value: unknown) => (typeof value === "string" ? value : JSON.stringify(value));

interface Difference {
  pointer: string;
  before: unknown;
  after: unknown;
}
const isDifference = (value: unknown): value is Difference =>
  isMembers(value) && "pointer" in value && "before" in value && "after" in value;

const isProgress = (value: unknown): value is Progress =>
  isMembers(value) && typeof value.done === "number" && typeof value.total === "number" && "unit" in value;

/** A range of a stream's records: the second offset is the first one behind it. */
const isRange = (value: unknown): value is { shard: number; from: string; to: string } =>
  isMembers(value) && "shard" in value && "from" in value && "to" in value;

const Differences = ({ of }: { of: Difference[] }) => (
  <ul className="differences">
    {of.map(({ pointer, before, after }) => (
      <li key={pointer}>
        <code>{pointer || "/"}</code> {drawn(before)} → {drawn(after)}
      </li>
    ))}
  </ul>
);
const drawn = (value: unknown) =>
  isNothing(value) ? <span className="muted">{UNKNOWN}</span> : <code className="wraps">{textOf(value)}</code>;

export function Value({ member, value }: { member: string; value: unknown }): ReactNode {
  const last = member.split("/").at(-1)!;
  if (isNothing(value)) return <span className="muted">{UNKNOWN}</span>;
  if (typeof value === "boolean") return value ? "yes" : "no";
  if (typeof value === "number") {
    const [text, title] = drawnNumber(member, value);
    return <span title={title || undefined}>{text}</span>;
  }
  if (Array.isArray(value) && value.every(isDifference)) return <Differences of={value} />;
  if (Array.isArray(value))
    return value.map((item, at) => (
      <span key={at}>
        {at > 0 && ", "}
        <Value member={last} value={item} />
      </span>
    ));
  if (isProgress(value))
    return (
      <span className="progress">
        {value.total > 0 && <progress aria-label={wordsOf(last)} value={value.done} max={value.total} />}{" "}
        {progressText(value)}
      </span>
    );
  if (isRange(value)) return `shard ${value.shard}: ${value.from} to ${value.to}`;
  if (isMembers(value))
    return <code className="one-line">{isPayload(value) ? textOf(value.data) : textOf(value)}</code>;
  const text = String(value);
  const path = LINKED.get(last);
  if (path) return <ObjectLink kind={path} name={text} />;
  if (last === "page" && text.startsWith("/"))
    return (
      <Link className="name" to={text as never} search={keepTimeZone as never}>
        {decodeURIComponent(text.slice(1))}
      </Link>
    );
  if (last === "state" || last === "status") return <State state={text} />;
  if (TIME.test(text)) return <RelativeTime at={text} />;
  if (/(topics?|filter|sql|payload)$/.test(last)) return <code className="wraps">{text}</code>;
  return text;
}

/** A column as it is declared, aligned by its values. */
export function columnOf<Row extends object>({ title, member }: DeclaredColumn, rows: Row[]): Column<Row> {
  const values = rows.map((row) => valueAt(row, member)).filter((value) => !isNothing(value));
  const isEvery = (test: (value: unknown) => boolean) => values.length > 0 && values.every(test);
  const isNumber = isEvery((value) => typeof value === "number" || typeof value === "bigint");
  const isShort = isEvery((value) => typeof value === "boolean" || TIME.test(String(value)));
  const kind = isNumber ? "num" : isShort || /(^|\/)(state|status)$/.test(member) ? "fit" : undefined;
  return {
    title,
    kind: kind ?? (/(^|\/)id$/.test(member) ? "id" : undefined),
    ...(/(^|\/)id$/.test(member) && { exact: (row) => String(valueAt(row, member) ?? "") }),
    show: (row) => <Value member={member} value={valueAt(row, member)} />,
  };
}

/** A member without its unit, which values are shown with. */
const heading = (member: string) =>
  member === "eta_s"
    ? "Time left"
    : wordsOf(member.replace(/(?<=.)_(per_s|s|ms|bytes)$/, (unit) => (unit === "_bytes" ? "_size" : "")));

/** Whether a member has the value of another one under the name of the last release. */
const isOldName = (member: string, object: Members) => member === "client_id" && "clientid" in object;

/** All members of an object: single values as a list, objects and lists of objects below it. */
export function Facts({ object, label, of = "" }: { object: Members; label: string; of?: string }) {
  const entries = Object.entries(object).filter(([member]) => !isOldName(member, object));
  const isTable = (value: unknown): value is Members[] =>
    Array.isArray(value) && value.length > 0 && value.every(isMembers);
  const isPart = (value: unknown) => isTable(value) || (isMembers(value) && !isPayload(value) && !isProgress(value));
  const parts = entries.filter(([, value]) => isPart(value) && Object.keys(value as object).length > 0);
  return (
    <>
      <dl className="facts">
        {entries
          .filter(([, value]) => !isPart(value))
          .map(([member, value]) => (
            <div key={member}>
              <dt>{heading(member)}</dt>
              <dd>
                <Value member={of + member} value={value} />
              </dd>
            </div>
          ))}
      </dl>
      {parts.map(([member, value]) => (
        <section key={member} className="part" aria-label={`${heading(member)} of ${label}`}>
          <h3>{heading(member)}</h3>
          {isTable(value) ? (
            <Rows rows={value} label={heading(member)} />
          ) : (
            <Facts object={value as Members} label={label} of={`${of}${member}/`} />
          )}
        </section>
      ))}
    </>
  );
}

const ROWS_SHOWN = 100;

/** Objects of one object as a table, the first ones of many. */
export function Rows({ rows, label }: { rows: Members[]; label: string }) {
  const shown = rows.slice(0, ROWS_SHOWN);
  const members = [...new Set(shown.flatMap((row) => Object.keys(row).filter((member) => !isOldName(member, row))))];
  return (
    <>
      <Table
        label={label}
        columns={members.map((member) => columnOf({ title: heading(member), member }, shown))}
        rows={shown}
        keyOf={(_, at) => at}
      />
      {rows.length > shown.length && (
        <p className="muted small">
          The first {exact(ROWS_SHOWN)} of {exact(rows.length)}.
        </p>
      )}
    </>
  );
}
