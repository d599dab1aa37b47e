// The client of the management API. Its types are generated from the API's description: see build.py.

import createClient from "openapi-fetch";
import { parseJson } from "./json";
import type { components, paths } from "./openapi";

type Schemas = components["schemas"];
export type Status = Schemas["Status"];
export type MetricsWindow = Schemas["MetricsWindow"];
export type Action = Schemas["ActionObject"];
export type RuleOutcome = Schemas["RuleOutcome"];
export type TailedMessage = Schemas["TailedMessage"];

export type Problem = Schemas["ProblemDocument"];
export type Effect = Schemas["Effect"];
export type Job = Schemas["JobWithResult"];

export const client = createClient<paths>({ baseUrl: "", signal: undefined });
client.use({
  onRequest: ({ request }) =>
    new Request(request, { signal: AbortSignal.any([request.signal, AbortSignal.timeout(5000)]) }),
});

/** An error response of the server. */
export class Refused extends Error {
  constructor(
    readonly status: number,
    detail: string,
    readonly problem?: Problem,
  ) {
    super(detail);
  }
}

/** What went wrong, in a sentence; without an answer nothing was changed. */
export const sentence = (error: unknown) =>
  error instanceof Refused ? error.message : "The server does not answer. Nothing was saved; what you typed is kept.";

function refused(response: Response, error: unknown): Refused {
  const problem = error as Problem | undefined;
  return new Refused(response.status, problem?.detail ?? response.statusText, problem?.code ? problem : undefined);
}

/** Asks again each second while the node puts evaluations off because it is overloaded; ten times, then it throws. */
export async function patiently<T>(ask: () => Promise<T>, signal?: AbortSignal): Promise<T> {
  for (let attempt = 1; ; attempt += 1) {
    try {
      return await ask();
    } catch (error) {
      if (!(error instanceof Refused) || error.status !== 503 || attempt === 10 || signal?.aborted) throw error;
      await new Promise((go) => setTimeout(go, 1000));
    }
  }
}

type Answer<T> = { data?: T; error?: unknown; response: Response };

/** The body of an answer.
 *  @throws Refused if it is an error. */
export async function settled<T>(answer: Promise<Answer<T>>): Promise<T> {
  const { data, error, response } = await answer;
  if (response.ok) return data as T;
  throw refused(response, error);
}

export const getRows = (name: string, limit: number) =>
  getAny<Schemas["TablePreview"]>(`lake/tables/${encodeURIComponent(name)}/preview`, { query: { limit } });
export const getHistory = (names: string[], from: string, to: string, step: number, labels: string[] = []) =>
  settled(client.GET("/api/v1/metrics/history", { params: { query: { names, from, to, step, labels } } }));
export const signIn = (body: Schemas["SignInRequest"]) => settled(client.POST("/api/v1/session", { body }));
export const signInMethods = () => settled(client.GET("/api/v1/session"));
export const beginOidc = () => settled(client.POST("/api/v1/session:oidc"));
export const signOut = () => settled(client.DELETE("/api/v1/session"));
export const tryRule = async (sql: string, event: Record<string, unknown>) =>
  (await call<RuleOutcome>("POST", "rules:test", { body: { sql, event, language: "sql" } })).body;
export const createRule = (body: Schemas["RuleSpec"]) => settled(client.POST("/api/v1/rules", { body }));
export const createStream = (body: Schemas["StreamSpec"]) => settled(client.POST("/api/v1/streams", { body }));

export interface Call {
  query?: Record<string, string | number | boolean | undefined>;
  body?: unknown;
  etag?: string;
  signal?: AbortSignal;
  isAsync?: boolean;
}
interface Answered<T> {
  body: T;
  etag: string;
}

const LONGEST_MS = 30_000;

/** An operation that is known by its path only, as those of any kind of object are. ``etag`` is sent as If-Match; with
 *  ``isAsync`` long work answers with its job at once. */
export async function call<T = Record<string, unknown>>(
  method: string,
  path: string,
  { query = {}, body, etag, signal, isAsync }: Call = {},
): Promise<Answered<T>> {
  const chosen = Object.entries(query).flatMap(([name, value]) =>
    value === undefined || value === "" ? [] : [[name, String(value)]],
  );
  const headers = {
    ...(body !== undefined && { "Content-Type": "application/json" }),
    ...(etag && { "If-Match": `"${etag}"` }),
    ...(isAsync && { Prefer: "respond-async" }),
  };
  const limit = AbortSignal.timeout(method === "GET" ? 5000 : LONGEST_MS);
  const response = await fetch(`/api/v1/${path}${chosen.length ? `?${new URLSearchParams(chosen)}` : ""}`, {
    method,
    headers,
    body: body === undefined ? undefined : JSON.stringify(body),
    signal: signal ? AbortSignal.any([signal, limit]) : limit,
  });
  const text = await response.text();
  const answer = text && response.headers.get("content-type")?.includes("json") ? parseJson(text) : undefined;
  if (!response.ok) throw refused(response, answer);
  return { body: answer as T, etag: (response.headers.get("etag") ?? "").replaceAll('"', "") };
}

export const getAny = async <T = Record<string, unknown>>(path: string, given?: Call): Promise<T> =>
  (await call<T>("GET", path, given)).body;

/** The names of all objects of a kind, in their order; ``key`` is the member that has them. */
export async function namesOf(path: string, key = "name"): Promise<string[]> {
  const names: string[] = [];
  let cursor: string | undefined;
  do {
    const page = await getAny<{ items: Record<string, string>[]; next: string | null }>(path, {
      query: { limit: 1000, cursor },
    });
    names.push(...page.items.map((item) => item[key]!));
    cursor = page.next ?? undefined;
  } while (cursor);
  return names;
}

/** An order in which a name has the place of another one. */
export function moved(order: string[], name: string, target: string): string[] {
  const others = order.filter((one) => one !== name);
  others.splice(order.indexOf(target), 0, name);
  return others;
}
