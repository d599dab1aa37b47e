// What the editor of rules asks the server: problems, what may be written at a place, and what a name is.

import type { Completion, CompletionResult } from "@codemirror/autocomplete";
import { call, getAny, Refused } from "../../api/client";
import { parseJson } from "../../api/json";
import type { components } from "../../api/openapi";
import type { Finding, Hovered } from "../../parts/codemirror";
import { findingsOf } from "../../parts/editor";

type Schemas = components["schemas"];
export type Field = Schemas["InputField"];
export type SqlFunction = Schemas["FunctionView"];
export type EventKind = Schemas["EventDescription"];
export type Event = Record<string, unknown>;

const KEYWORDS = [
  "SELECT",
  "FROM",
  "WHERE",
  "AND",
  "OR",
  "NOT",
  "AS",
  "FOREACH",
  "DO",
  "INCASE",
  "CASE",
  "WHEN",
  "THEN",
  "ELSE",
  "END",
  "IN",
  "LIKE",
  "BETWEEN",
  "IS NULL",
  "IS NOT NULL",
  "JQ",
  "div",
  "mod",
];
const OPEN_SOURCE = /\bFROM\s+(?:(?:"[^"]*"|'[^']*'|[^\s,"']+)\s*,\s*)*(["'`])([^"'`]*)$/i;
const OPEN_SCHEMA = /\bschema_\w+\(\s*'([^']*)$/i;
const PATH = /[\w$@~.[\]"-]*$/;

/** What FROM names, also in a text that does not parse. */
export function sourcesOf(sql: string): string[] {
  const from = /\bFROM\b([^]*?)(?:\bWHERE\b|$)/i.exec(sql)?.[1] ?? "";
  return [...from.matchAll(/"([^"]+)"|'([^']+)'|`([^`]+)`|([^\s,;"'`]+)/g)].flatMap((found) =>
    found.slice(1).filter(Boolean),
  );
}

/** The SQL that a jq program stands for, as `sql` of a rule in jq shows it. */
export const standingFor = (jq: string, from: string[]) =>
  `SELECT *, json_or_text(payload) AS payload JQ '${jq.replaceAll("'", "''")}' FROM ` +
  from.map((source) => `"${source.replaceAll('"', '""')}"`).join(", ");

export const isTopic = (source: string) => !source.startsWith("$") || source.startsWith("$share/");

const isMistake = (error: unknown): error is Refused => error instanceof Refused && error.status === 422;

/** For queries that evaluate: what is no mistake is a lost connection or an overloaded node, and is asked again. */
export const PATIENT = { retry: (_: number, error: Error) => !isMistake(error), retryDelay: 1000, gcTime: 10_000 };

export interface Checked {
  findings: Finding[];
  columns: Schemas["RuleColumn"][];
}

/** What `sluice rules check` reports of a program. */
export async function check(program: object, signal?: AbortSignal): Promise<Checked> {
  try {
    const { warnings, columns } = (await call<Schemas["RuleTypes"]>("POST", "rules:check", { body: program, signal }))
      .body;
    return { findings: findingsOf(warnings, "warning"), columns };
  } catch (error) {
    if (isMistake(error)) return { findings: findingsOf(error.problem?.errors, "error"), columns: [] };
    throw error;
  }
}

const TYPES: Record<string, string> = { number: "double", string: "string", boolean: "boolean" };

/** The fields of payloads that no schema describes, as recent messages have them. */
export function fieldsOf(events: Event[]): Field[] {
  const found = new Map<string, Field>();
  const walk = (path: string, value: unknown, levels: number) => {
    const isArray = Array.isArray(value);
    if (!found.has(path))
      found.set(path, { path, type: isArray ? "array" : (TYPES[typeof value] ?? "struct"), nullable: true });
    const inner = isArray ? value[0] : value;
    if (levels && typeof inner === "object" && inner !== null) {
      for (const [name, member] of Object.entries(inner))
        walk(
          `${path}${isArray ? "[1]" : ""}.${/^[A-Za-z_]\w*$/.test(name) ? name : JSON.stringify(name)}`,
          member,
          levels - 1,
        );
    }
  };
  for (const { payload } of events) {
    const data = (payload as { data?: unknown } | undefined)?.data ?? payload;
    try {
      const value: unknown = typeof data === "string" ? parseJson(data) : data;
      if (typeof value === "object" && value !== null) walk("payload", value, 6);
    } catch {
      // not JSON: it has no fields
    }
  }
  return [...found.values()];
}

export interface Known {
  fields: Field[];
  functions: SqlFunction[];
  events: EventKind[];
}

export async function complete(
  text: string,
  at: number,
  signal: AbortSignal,
  isAsked: boolean,
  known: Known,
): Promise<CompletionResult | null> {
  const before = text.slice(0, at);
  const source = OPEN_SOURCE.exec(before);
  if (source)
    return { from: at - source[2]!.length, options: await sources(source[2]!, signal, known), validFor: /^[^"'`]*$/ };
  const schema = OPEN_SCHEMA.exec(before);
  if (schema) {
    const { items } = await getAny<{ items: { name: string; type: string }[] }>("schemas", {
      query: { limit: 200 },
      signal,
    });
    return {
      from: at - schema[1]!.length,
      options: items.map(({ name, type }) => ({ label: name, detail: type })),
      validFor: /^[^']*$/,
    };
  }
  const word = PATH.exec(before)?.[0] ?? "";
  if (!word && !isAsked) return null;
  return { from: at - word.length, options: words(known), validFor: /^[\w$@~.[\]"-]*$/ };
}

async function sources(begun: string, signal: AbortSignal, { events }: Known): Promise<Completion[]> {
  const level = begun.split("/").slice(0, -1).join("/");
  const under = level && !/[+#$]/.test(level) ? level : undefined;
  const { items } = await getAny<{ items: { topic: string; is_topic: boolean; topics: number }[] }>("topics", {
    query: { under, limit: 50 },
    signal,
  }).catch(() => ({ items: [] }));
  const topics = items.flatMap(({ topic, is_topic, topics }) => [
    ...(is_topic ? [{ label: topic, detail: "topic" }] : []),
    ...(topics > (is_topic ? 1 : 0) ? [{ label: `${topic}/#`, detail: `${topics} topics` }] : []),
  ]);
  return [
    ...topics,
    ...events
      .filter(({ topic }) => topic.startsWith("$"))
      .map(({ topic, text }) => ({ label: topic, detail: "event", info: text, boost: -10 })),
  ];
}

function words({ fields, functions }: Known): Completion[] {
  return [
    ...fields.map(({ path, type, nullable }) => ({
      label: path,
      detail: nullable ? `${type}, may be absent` : type,
      type: "property",
      boost: path.startsWith("payload.") ? 20 : 10,
    })),
    ...functions.map((one) => ({
      label: one.name,
      detail: signature(one),
      info: about(one),
      type: "function",
      apply: `${one.name}(`,
    })),
    ...KEYWORDS.map((label) => ({ label, type: "keyword", boost: -5 })),
  ];
}

const signature = ({ signature, returns }: SqlFunction) => `${signature.slice(signature.indexOf("("))} → ${returns}`;
const about = ({ documentation, examples }: SqlFunction) =>
  [
    documentation,
    ...examples
      .slice(0, 2)
      .map(
        ({ expression, result }) => `${expression} → ${typeof result === "string" ? result : JSON.stringify(result)}`,
      ),
  ].join("\n");

/** The type of the name at a place. */
export function hover(text: string, at: number, { fields, functions }: Known): Hovered | null {
  for (const found of text.matchAll(/[A-Za-z_][\w$@~]*(?:\.(?:[\w$@~]+|"[^"]*")|\[-?\d+\])*/g)) {
    const [from, to] = [found.index, found.index + found[0].length];
    if (at < from || at > to) continue;
    const field = fields.find(({ path }) => path === found[0].replace(/\[-?\d+\]/g, "[1]"));
    if (field)
      return {
        from,
        to,
        title: `${found[0]} ${field.type}`,
        text: field.nullable ? "It may be absent." : "It is always there.",
      };
    const called = functions.find(({ name }) => name === found[0].toLowerCase());
    if (called) return { from, to, title: `${called.name}${signature(called)}`, text: about(called) };
  }
  return null;
}
