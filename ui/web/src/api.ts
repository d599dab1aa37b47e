// The client of the management API. Its types are generated from the API's description: see build.py.

import createClient from "openapi-fetch";
import type { components, paths } from "./openapi";

type Schemas = components["schemas"];
export type Status = Schemas["Status"];
export type MetricsWindow = Schemas["MetricsWindow"];
export type Action = Schemas["ActionObject"];
export type RuleOutcome = Schemas["RuleOutcome"];
export type TailedMessage = Schemas["TailedMessage"];

const client = createClient<paths>({ baseUrl: "", signal: undefined });
client.use({ onRequest: ({ request }) => new Request(request, { signal: AbortSignal.any([request.signal, AbortSignal.timeout(5000)]) }) });

/** What the server answered in place of what was asked for. */
export class Refused extends Error {
  constructor(readonly status: number, detail: string) {
    super(detail);
  }
}

type Answer<T> = { data?: T; error?: unknown; response: Response };

async function settled<T>(answer: Promise<Answer<T>>): Promise<T> {
  const { data, error, response } = await answer;
  if (response.ok) return data as T;
  throw new Refused(response.status, (error as { detail?: string } | undefined)?.detail ?? response.statusText);
}

export const getActions = () => settled(client.GET("/api/v1/actions", { params: { query: { limit: 100 } } }));
export const getRows = (name: string, limit: number) =>
  settled(client.GET("/api/v1/lake/tables/{name}/preview", { params: { path: { name }, query: { limit } } }));
export const getHistory = (names: string[], from: string, to: string, step: number) =>
  settled(client.GET("/api/v1/metrics/history", { params: { query: { names, from, to, step } } }));
export const signIn = (token: string) => settled(client.POST("/api/v1/session", { body: { token } }));
export const signOut = () => settled(client.DELETE("/api/v1/session"));
export const tryRule = (sql: string, event: Record<string, unknown>) =>
  settled(client.POST("/api/v1/rules:test", { body: { sql, event, language: "sql" } }));
export const createRule = (body: Schemas["RuleSpec"]) => settled(client.POST("/api/v1/rules", { body }));
export const createStream = (body: Schemas["StreamSpec"]) => settled(client.POST("/api/v1/streams", { body }));
export const createTable = (body: Schemas["TableSpec"]) => settled(client.POST("/api/v1/lake/tables", { body }));

/** One object, or a page of them, of a kind that is known by its path only. */
export async function getAny(path: string): Promise<Record<string, unknown>> {
  const response = await fetch(`/api/v1/${path}`, { signal: AbortSignal.timeout(5000) });
  const body = await response.json();
  if (!response.ok) throw new Refused(response.status, body.detail ?? response.statusText);
  return body;
}
