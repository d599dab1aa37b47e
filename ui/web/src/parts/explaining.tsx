// Explain anything: the button that stands where a message is shown, and how the message itself is read.
// The dialog is one of the shell: a row that moves on in a live list does not take it along.

import type { ReactNode } from "react";
import { useSyncExternalStore } from "react";
import { getAny, Refused, type TailedMessage } from "../api/client";
import { parseJson } from "../api/json";
import type { components } from "../api/openapi";

type Schemas = components["schemas"];
type Published = Pick<TailedMessage, "topic" | "qos"> & {
  payload: Pick<TailedMessage["payload"], "encoding" | "data"> & { truncated?: boolean };
  retain?: boolean;
  user_properties: string[][];
  properties: Record<string, unknown>;
  raw?: string | null;
  clientid?: string;
  username?: string | null;
  address?: string | null;
  client_attrs?: Record<string, string>;
};
export type ExplainedMessage = Partial<Schemas["TestMessage"]> & { topic: string };

/** A message that a page shows, as trials take it. Of a decoded one the bytes count. */
const messageOf = ({ topic, payload, raw, qos, retain, user_properties, properties, ...of }: Published) =>
  ({
    topic,
    payload: raw ? { encoding: "base64", data: raw } : { encoding: payload.encoding, data: payload.data },
    qos,
    retain,
    user_properties,
    properties,
    ...(of.clientid && { clientid: of.clientid }),
    username: of.username ?? null,
    ...(of.address && { peername: of.address }),
    ...(of.client_attrs && { client_attrs: of.client_attrs }),
  }) as ExplainedMessage;

/** A message, or what reads it when its explanation is opened. A string says why there is no message. */
export type Original = ExplainedMessage | string | (() => Promise<ExplainedMessage | string>);

export const CUT = "The message is too long to be tried here: only its beginning is read.";

/** Of a message that a stage stopped, once newer ones took its place. */
const NOT_KEPT =
  "The message was stopped and is no longer kept. Set a quarantine for what stopped it, to keep such messages.";

/** A message as a page shows it. */
export const shownOriginal = (message: Published): ExplainedMessage | string =>
  message.payload.truncated ? CUT : messageOf(message);

type Item = Record<string, unknown>;

/** Whether an item of a list is a message, maybe without its payload. */
export const isMessage = (item: Item) => "topic" in item && "payload_bytes" in item;

/** The message of an item that is shown alone. */
export const itemOriginal = ({ message, ...item }: Item) =>
  shownOriginal({
    ...(item as unknown as Published),
    ...(message as object),
    clientid: item.clientid as string,
    username: item.username as string,
  });

/** The message that a stage stopped, as it was published. */
export async function refusedOriginal(id: string | undefined) {
  if (!id) return "The message went on, and is not kept here. A stream of its topic keeps messages.";
  return getAny<Item>(`refused/${encodeURIComponent(id)}`).then(itemOriginal, (error) => {
    if (error instanceof Refused && error.status === 404) return NOT_KEPT;
    throw error;
  });
}

/** What became of a message when it was published. */
export const outcomeThen = ({ outcome, refusal }: Pick<TailedMessage, "outcome" | "refusal">) =>
  `When it was published, ${
    refusal
      ? `it was stopped: ${refusal.text}`
      : outcome === "dropped"
        ? "it was dropped."
        : `it ${outcome === "passed" ? "passed all stages." : "was changed, and passed."}`
  }`;

/** The message that a record of a stream is, or that a quarantine kept in it. */
export async function originalOf(stream: string, shard: number, offset: number | string) {
  const { items } = await getAny<Schemas["RecordPage"]>(`streams/${encodeURIComponent(stream)}/records`, {
    query: { shard, from: String(offset), limit: 1, raw: true },
  }).catch((error) => {
    if (error instanceof Refused && error.status === 404) return { items: [] };
    throw error;
  });
  const [record] = items;
  if (record?.offset !== String(offset))
    return `The message is no longer in stream ${stream}: its retention removed it.`;
  if (record.payload.truncated) return CUT;
  if (!record.rule) return messageOf(record);
  if (!/^(validation|transformation):/.test(record.rule))
    return `Rule ${record.rule} wrote this row. The message that it is from is not kept here: a stream with topics keeps messages.`;
  const { client_attrs, ...row } = parseJson(decoded(String(record.payload.data))) as QuarantineRow;
  return {
    ...messageOf({
      ...row,
      payload: { encoding: row.payload_encoding, data: row.payload } as Published["payload"],
      ...propertiesOf(row.properties),
      client_attrs: JSON.parse(client_attrs || "{}"),
    }),
    ...(row.peername && { peername: row.peername }),
  } as ExplainedMessage;
}

type QuarantineRow = Required<Schemas["QuarantinedMessage"]>;
const decoded = (base64: string) =>
  new TextDecoder().decode(Uint8Array.from(atob(base64), (char) => char.charCodeAt(0)));

/** MQTT properties of a row as trials take them. */
function propertiesOf(text: string) {
  const { "User-Property": pairs = [], ...properties } = JSON.parse(text || "{}");
  return { user_properties: pairs as string[][], properties };
}

export interface Asked {
  topic: string;
  of: Original;
  /** What happened to it when it was published. */
  then?: string;
  /** Rows that it became then, where the message itself is not kept. */
  rows?: unknown[];
}

let asked: Asked | null = null;
const listeners = new Set<() => void>();
const watch = (listener: () => void) => {
  listeners.add(listener);
  return () => void listeners.delete(listener);
};

/** Open the dialog that explains a message, or close it. */
export function explain(message: Asked | null) {
  asked = message;
  listeners.forEach((tell) => tell());
}

export const useExplained = () => useSyncExternalStore(watch, () => asked);

/** A button that explains a message in a dialog. */
export const ExplainButton = (message: Asked): ReactNode => (
  <button type="button" aria-haspopup="dialog" onClick={() => explain(message)}>
    Explain
  </button>
);
