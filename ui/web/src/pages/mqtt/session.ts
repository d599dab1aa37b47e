// The MQTT client of the page: one connection that outlives the page, as long as the tab is open, and what it sent and
// received. MQTT.js is loaded with the first connection. A WebSocket of the API carries it to a listener of the broker.

import type { IClientOptions, MqttClient, Packet } from "mqtt";
import { useSyncExternalStore } from "react";
import { whenThere } from "../../api/modules";

/** What a message has beside its topic and payload, as forms hold it. */
export interface Delivery {
  qos: 0 | 1 | 2;
  retain: boolean;
  contentType: string;
  responseTopic: string;
  correlationData: string;
  /** Seconds. */
  expiry: string;
  isText: boolean;
  /** NAME=VALUE on each line. */
  userProperties: string;
}
export interface Connecting {
  listener: string;
  clientid: string;
  username: string;
  password: string;
  cleanStart: boolean;
  keepAlive: string;
  sessionExpiry: string;
  receiveMaximum: string;
  userProperties: string;
  hasWill: boolean;
  will: Delivery & { topic: string; payload: string; delay: string };
}
export interface Subscribing {
  filter: string;
  qos: 0 | 1 | 2;
  noLocal: boolean;
  retainAsPublished: boolean;
  retainHandling: 0 | 1 | 2;
  identifier: string;
}
export interface Exchanged {
  id: number;
  at: number;
  isSent: boolean;
  topic: string;
  payload: Uint8Array;
  qos: 0 | 1 | 2;
  retain: boolean;
  userProperties: [string, string][];
  /** By their MQTT name. */
  properties: Record<string, string | number>;
  /** What became of one that was sent. */
  state: "sent" | "ok" | "failed";
  says: string;
}
interface Session {
  state: "closed" | "connecting" | "connected";
  /** Why it ended. */
  says: string;
  clientid: string;
  username: string;
  hadSession: boolean;
  subscriptions: (Subscribing & { granted: number })[];
  messages: Exchanged[];
  /** Messages that made room for newer ones. */
  gone: number;
}

const MOST_MESSAGES = 200;
const MOST_BYTES = 4 * 1024 * 1024;
const FRAME_BYTES = 32 * 1024; // the API takes frames of at most 64 KiB
const CONNECT_MS = 15_000;

let session: Session = {
  state: "closed",
  says: "",
  clientid: "",
  username: "",
  hadSession: false,
  subscriptions: [],
  messages: [],
  gone: 0,
};
let client: MqttClient | null = null;
/** Of messages that were sent, until MQTT.js says that they are done; it leaves the reason out where there is no error. */
const answers = new Map<number, Reasoned>();
let count = 0;
const listeners = new Set<() => void>();
const watch = (listener: () => void) => {
  listeners.add(listener);
  return () => void listeners.delete(listener);
};
function change(changed: Partial<Session>) {
  session = { ...session, ...changed };
  listeners.forEach((tell) => tell());
}
export const useSession = () => useSyncExternalStore(watch, () => session);

/** Reason codes of MQTT 5 in words. */
const REASONS: Record<number, string> = {
  0x00: "normal disconnection",
  0x04: "disconnected with the will",
  0x10: "no client subscribes to the topic",
  0x11: "there was no such subscription",
  0x80: "unspecified error",
  0x81: "malformed packet",
  0x82: "protocol error",
  0x83: "refused by the broker's configuration",
  0x84: "the version of MQTT is not supported",
  0x85: "the client identifier is not valid",
  0x86: "the user name or the password is wrong",
  0x87: "not authorized",
  0x88: "the server is not available",
  0x89: "the server is busy",
  0x8a: "the client is banned",
  0x8b: "the server is shutting down",
  0x8c: "the authentication method is not supported",
  0x8d: "nothing was heard within the keep-alive",
  0x8e: "another connection took over the session",
  0x8f: "the topic filter is not valid",
  0x90: "the topic name is not valid",
  0x91: "the packet identifier is in use",
  0x93: "more messages in flight than agreed",
  0x94: "the topic alias is not valid",
  0x95: "the packet is too large",
  0x96: "messages come too fast",
  0x97: "a quota is exceeded",
  0x98: "an administrator ended it",
  0x99: "the payload does not have the stated format",
  0x9a: "retained messages are not supported",
  0x9b: "the QoS is not supported",
  0x9c: "another server is to be used",
  0x9d: "the server has moved",
  0x9e: "shared subscriptions are not supported",
  0x9f: "connections come too fast",
  0xa0: "the maximum connect time is over",
  0xa1: "subscription identifiers are not supported",
  0xa2: "wildcard subscriptions are not supported",
};
const codeText = (code: number) => `0x${code.toString(16).padStart(2, "0")}`;
interface Reasoned {
  messageId?: number;
  reasonCode?: number;
  properties?: { reasonString?: string };
}
const inWords = (code: number, packet?: Reasoned) =>
  [`${REASONS[code] ?? "unknown reason"} (${codeText(code)})`, packet?.properties?.reasonString]
    .filter(Boolean)
    .join(": ");

/** User properties of a form. MQTT.js keeps the order of names, and of the values of each.
 *  @throws Error if a line is not NAME=VALUE. */
export function pairsOf(text: string): [string, string][] {
  return text.split("\n").flatMap((line): [string, string][] => {
    if (!line.trim()) return [];
    const at = line.indexOf("=");
    if (at < 1) throw new Error(`User properties: expected NAME=VALUE on each line, got "${line}".`);
    return [[line.slice(0, at).trim(), line.slice(at + 1).trim()]];
  });
}
function grouped(pairs: [string, string][]): Record<string, string | string[]> | undefined {
  if (!pairs.length) return undefined;
  const groups: Record<string, string[]> = Object.create(null);
  for (const [name, value] of pairs) (groups[name] ??= []).push(value);
  return { ...groups };
}
const number = (label: string, text: string, most: number): number | undefined => {
  if (!text.trim()) return undefined;
  const value = Number(text);
  if (!Number.isInteger(value) || value < 0 || value > most)
    throw new Error(`${label}: expected a whole number from 0 to ${most}, got "${text}".`);
  return value;
};
const MOST_32 = 0xffff_ffff;

const propertiesOf = (of: Delivery) => ({
  ...(of.contentType && { contentType: of.contentType }),
  ...(of.responseTopic && { responseTopic: of.responseTopic }),
  ...(of.correlationData && { correlationData: of.correlationData as never }), // text is written as UTF-8
  ...(of.expiry.trim() && { messageExpiryInterval: number("Expires after", of.expiry, MOST_32) }),
  ...(of.isText && { payloadFormatIndicator: true }),
  userProperties: grouped(pairsOf(of.userProperties)),
});

/** Properties by their MQTT name, as the API has them. */
function named(properties: Record<string, unknown> = {}): Exchanged["properties"] {
  const { contentType, responseTopic, correlationData, messageExpiryInterval, payloadFormatIndicator } = properties;
  const { subscriptionIdentifier, topicAlias } = properties;
  const members = {
    "Content-Type": contentType,
    "Response-Topic": responseTopic,
    "Correlation-Data": correlationData === undefined ? undefined : textOf(correlationData as string | Uint8Array),
    "Message-Expiry-Interval": messageExpiryInterval,
    "Payload-Format-Indicator": payloadFormatIndicator === undefined ? undefined : Number(payloadFormatIndicator),
    "Subscription-Identifier": Array.isArray(subscriptionIdentifier)
      ? subscriptionIdentifier.join(", ")
      : subscriptionIdentifier,
    "Topic-Alias": topicAlias,
  };
  return Object.fromEntries(Object.entries(members).filter(([, value]) => value !== undefined)) as never;
}
const ungrouped = (groups: Record<string, string | string[]> = {}): [string, string][] =>
  Object.entries(groups).flatMap(([name, values]) => [values].flat().map((value): [string, string] => [name, value]));

/** Bytes as text; those that are not UTF-8 in hex. */
export function textOf(bytes: string | Uint8Array): string {
  if (typeof bytes === "string") return bytes;
  try {
    return new TextDecoder("utf-8", { fatal: true }).decode(bytes);
  } catch {
    return hexOf(bytes);
  }
}
export const hexOf = (bytes: Uint8Array) =>
  Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0"))
    .join(" ")
    .trim();

function add(message: Omit<Exchanged, "id" | "at">): number {
  const id = (count += 1);
  const messages = [{ ...message, id, at: Date.now() }, ...session.messages];
  let size = 0;
  const kept = messages.slice(0, MOST_MESSAGES).filter(({ payload }, at) => {
    size += payload.length;
    return at === 0 || size <= MOST_BYTES;
  });
  change({ messages: kept, gone: session.gone + messages.length - kept.length });
  return id;
}
const settle = (id: number, state: Exchanged["state"], says: string) =>
  change({ messages: session.messages.map((one) => (one.id === id ? { ...one, state, says } : one)) });

export const clear = () => change({ messages: [], gone: 0 });

/** The address of the API's WebSocket. */
function address(listener: string): string {
  const query = listener ? `?${new URLSearchParams({ listener })}` : "";
  return `${location.protocol.replace("http", "ws")}//${location.host}/api/v1/mqtt${query}`;
}

/** @throws Error if a field is not valid. */
export async function open(given: Connecting): Promise<void> {
  const { will } = given;
  const options: IClientOptions = {
    protocolVersion: 5,
    clientId: given.clientid,
    clean: given.cleanStart,
    keepalive: number("Keep-alive", given.keepAlive, 65_535) ?? 0,
    reconnectPeriod: 0,
    connectTimeout: CONNECT_MS,
    resubscribe: false,
    timerVariant: "native", // others make workers, which the page's policy forbids
    ...(given.username && { username: given.username }),
    ...(given.password && { password: given.password }),
    properties: {
      sessionExpiryInterval: number("Session expiry", given.sessionExpiry, MOST_32),
      receiveMaximum: number("Receive maximum", given.receiveMaximum, 65_535) || undefined,
      userProperties: grouped(pairsOf(given.userProperties)),
    },
    ...(given.hasWill && {
      will: {
        topic: will.topic,
        payload: will.payload as never,
        qos: will.qos,
        retain: will.retain,
        properties: { ...propertiesOf(will), willDelayInterval: number("Will delay", will.delay, MOST_32) },
      },
    }),
  };
  answers.clear();
  change({ state: "connecting", says: "", subscriptions: [], clientid: given.clientid, username: given.username });
  const { default: mqtt } = await whenThere(() => import("mqtt"));
  let why = "";
  const own = mqtt.connect(address(given.listener), {
    ...options,
    createWebsocket: (url: string, protocols: string[]) => {
      // of the page's own address: MQTT.js leaves the query out
      const socket = new WebSocket(`${url.split("?")[0]}${new URL(address(given.listener)).search}`, protocols);
      const send = socket.send.bind(socket);
      socket.send = (data) => {
        const bytes = new Uint8Array(data as ArrayBuffer);
        for (let start = 0; start < bytes.length; start += FRAME_BYTES) send(bytes.slice(start, start + FRAME_BYTES));
      };
      socket.addEventListener("close", ({ code, reason }) => {
        if (code > 1000 && reason) why ||= reason;
        ended();
      });
      return socket;
    },
  });
  client = own;
  const ended = () => {
    if (client !== own) return;
    client = null;
    own.end(true);
    const was = session.state;
    const nothing = was === "connecting" ? "The broker does not answer." : "The connection was lost.";
    change({ state: "closed", subscriptions: [], says: why ? `Disconnected: ${why}` : nothing });
  };
  own.on("connect", (packet) => {
    const assigned = packet.properties?.assignedClientIdentifier;
    change({ state: "connected", hadSession: packet.sessionPresent, clientid: assigned ?? given.clientid });
  });
  own.on("packetreceive", (packet: Packet) => {
    const { reasonCode = 0 } = packet as Reasoned;
    if (packet.cmd === "connack" && reasonCode) why = inWords(reasonCode, packet as Reasoned);
    if (packet.cmd === "puback" || packet.cmd === "pubrec") answers.set(packet.messageId ?? 0, packet as Reasoned);
    if (packet.cmd === "disconnect") why = inWords(reasonCode, packet as Reasoned);
  });
  own.on("error", (error) => {
    why ||= error.message;
    ended();
  });
  own.on("close", ended);
  own.on("message", (topic, payload, { qos, retain, properties }) =>
    add({
      isSent: false,
      topic,
      payload: new Uint8Array(payload),
      qos,
      retain,
      userProperties: ungrouped(properties?.userProperties),
      properties: named(properties as Record<string, unknown>),
      state: "ok",
      says: "",
    }),
  );
}

export function close() {
  const own = client;
  client = null;
  own?.end();
  change({ state: "closed", says: "", subscriptions: [] });
}

/** @throws Error if a field is not valid, or there is no connection. */
export function publish(topic: string, payload: Uint8Array, of: Delivery) {
  if (!client || session.state !== "connected") throw new Error("Connect before you publish.");
  const properties = propertiesOf(of);
  const { userProperties, ...others } = properties;
  const id = add({
    isSent: true,
    topic,
    payload,
    qos: of.qos,
    retain: of.retain,
    userProperties: ungrouped(userProperties),
    properties: named(others),
    state: "sent",
    says: of.qos ? "not acknowledged yet" : "sent; QoS 0 is not acknowledged",
  });
  const own = client;
  let packetId = 0;
  own.publish(topic, payload as never, { qos: of.qos, retain: of.retain, properties }, (error) => {
    if (of.qos === 0) {
      if (error) settle(id, "failed", error.message);
      return;
    }
    const code = (error as { code?: number } | undefined)?.code;
    const answer = answers.get(packetId);
    answers.delete(packetId);
    if (typeof code === "number") settle(id, "failed", `refused: ${inWords(code, answer)}`);
    else if (error) settle(id, "failed", error.message);
    else settle(id, "ok", answer?.reasonCode ? inWords(answer.reasonCode, answer) : "acknowledged");
  });
  packetId = own.getLastMessageId();
}

/** What a subscription is refused with, else nothing.
 *  @throws Error if a field is not valid, or there is no connection. */
export async function subscribe(given: Subscribing): Promise<string> {
  const own = client;
  if (!own || session.state !== "connected") throw new Error("Connect before you subscribe.");
  const { filter, qos, noLocal, retainAsPublished, retainHandling } = given;
  const subscriptionIdentifier = number("Subscription identifier", given.identifier, 268_435_455);
  return new Promise((done) => {
    own.subscribe(
      { [filter]: { qos, nl: noLocal, rap: retainAsPublished, rh: retainHandling } },
      { qos, ...(subscriptionIdentifier && { properties: { subscriptionIdentifier } }) },
      (error, granted, packet) => {
        const code = (packet as { granted?: number[] } | undefined)?.granted?.[0] ?? granted?.[0]?.qos;
        if (code !== undefined && code >= 0x80) return done(`Refused: ${inWords(code, packet as Reasoned)}.`);
        if (error) return done(error.message);
        const others = session.subscriptions.filter((one) => one.filter !== filter);
        change({ subscriptions: [...others, { ...given, granted: code ?? qos }] });
        done("");
      },
    );
  });
}

export function unsubscribe(filter: string) {
  client?.unsubscribe(filter, () =>
    change({ subscriptions: session.subscriptions.filter((one) => one.filter !== filter) }),
  );
}
