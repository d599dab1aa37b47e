// Messages for trials: arriving ones on a topic filter, as published, and the latest stored ones.

import { useQuery } from "@tanstack/react-query";
import { getAny } from "./client";
import { useEvery, useTail } from "./live";
import type { components } from "./openapi";

type Latest = components["schemas"]["LatestMessage"];
export type Message = Latest["message"];
export interface Found {
  at: string;
  source: Latest["source"];
  message: Message;
}

const MOST = 20;

export const latestOf = async (filter: string, limit: number): Promise<Latest[]> =>
  (await getAny<{ items: Latest[] }>("topics/latest", { query: { filter, limit } })).items;

/** Newest first. Those that validations stop are among the arriving ones only; streams keep what passed. Stored ones
 *  are asked for: a tail has neither those from before it was opened nor the bytes of payloads that were decoded. */
export function useMessages(filter: string): Found[] {
  const { data: { messages } = { messages: [] } } = useTail(filter);
  const { data: stored = [] } = useQuery({
    queryKey: ["latest", filter],
    queryFn: () => latestOf(filter, MOST),
    refetchInterval: useEvery(5000),
  });
  const { data: types } = useQuery({
    queryKey: ["schema types"],
    staleTime: 10_000,
    queryFn: async () =>
      new Map(
        (await getAny<{ items: { name: string; type: string }[] }>("schemas", { query: { limit: 1000 } })).items.map(
          ({ name, type }) => [name, type],
        ),
      ),
  });
  // Of a payload that a binary schema decoded, the bytes are not known.
  const whole = messages.filter(
    ({ payload, schema }) => !payload.truncated && (schema === null || types?.get(schema) === "json"),
  );
  const arriving = whole.map(
    ({ at, topic, payload: { encoding, data }, qos, retain, properties, user_properties, clientid, username }) => ({
      at,
      source: "live" as const,
      message: {
        topic,
        payload: { encoding, data },
        qos,
        retain,
        properties,
        user_properties,
        clientid,
        username,
      } as Message,
    }),
  );
  return [...arriving, ...stored].slice(0, MOST);
}

/** A payload as text. */
export function textOf({ payload }: { payload?: unknown }): string {
  const { data } = typeof payload === "string" ? { data: payload } : ((payload ?? {}) as { data?: unknown });
  return typeof data === "string" ? data : JSON.stringify(data ?? "");
}
