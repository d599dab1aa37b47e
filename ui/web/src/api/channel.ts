// The live channel: one WebSocket per tab. Its snapshots and numbered deltas are kept by channel and parameters, for
// all components that show them; see docs/how-to/follow-changes-live.md. live.ts has the hooks.

import { parseJson } from "./json";
import type { components } from "./openapi";

type Schemas = components["schemas"];
type Frame = Schemas["LiveFrame"];
export type Problem = Schemas["LiveError"];
type Members = Record<string, unknown>;

/** What a subscription shows: nothing before its first snapshot. */
export interface Shown<T> {
  data?: T;
  problem?: Problem;
}
export type Link =
  | { state: "connecting" | "paused" | "signed out" }
  | { state: "live"; skipped: number }
  | { state: "lost"; sinceMs: number; retryAtMs: number; why: string };

interface Feed {
  id: string;
  channel: string;
  parameters: Members;
  seq?: number;
  shown: Shown<Members>;
  listeners: Set<() => void>;
}

const SIGNED_OUT = 4401;
const RIGHTS_CHANGED = 4409;
const FIRST_RETRY_MS = 500;
const LONGEST_RETRY_MS = 10_000;
const SILENCE_MS = 15_000; // the status changes each second, so a connection that is silent is broken
const LINGER_MS = 1000; // a page that is left and the next one often show the same
const NOTE_MS = 10_000;
const FAILED_RETRY_MS = 10_000;
const MESSAGES_KEPT = 200;
const NOTHING: Shown<Members> = {};

const feeds = new Map<string, Feed>();
const watchers = new Set<() => void>();
let link: Link = { state: "connecting" };
let socket: WebSocket | undefined;
let isResting = false;
let failures = 0;
let heardMs = Date.now();
let reason = ""; // that the broker gave for closing
let timer: ReturnType<typeof setTimeout> | undefined; // of the next attempt, or of the next look at the silence
let noting: ReturnType<typeof setTimeout> | undefined;
let lastId = 0;

export const linkNow = () => link;

export function watchLink(listener: () => void): () => void {
  watchers.add(listener);
  return () => watchers.delete(listener);
}

export const shown = (key: string) => feeds.get(key)?.shown ?? NOTHING;

/** Subscribes, if this is the first listener; the key is that of ``shown``. */
export function watch(key: string, channel: string, parameters: Members, listener: () => void): () => void {
  let feed = feeds.get(key);
  if (!feed) {
    feeds.set(key, (feed = { id: `${++lastId}`, channel, parameters, shown: NOTHING, listeners: new Set() }));
    subscribe(feed);
  }
  feed.listeners.add(listener);
  if (!socket && !timer) connect();
  return () => {
    feed.listeners.delete(listener);
    setTimeout(() => {
      if (feed.listeners.size || feeds.get(key) !== feed) return;
      feeds.delete(key);
      send({ kind: "unsubscribe", id: feed.id });
      if (!feeds.size) disconnect();
    }, LINGER_MS);
  };
}

const isWaiting = ({ shown }: Feed) => !shown.data && !shown.problem;

/** No connection while the page is paused or hidden, but for what has not been shown yet; it continues where it was. */
export function rest(resting: boolean) {
  if (resting !== isResting) disconnect();
  isResting = resting;
  if (resting && link.state !== "signed out") say({ state: "paused" });
  connect();
}

/** Connects at once, such as after signing in. */
export function connect() {
  if (socket) return;
  clearTimeout(timer);
  timer = undefined;
  if (![...feeds.values()].some((feed) => !isResting || isWaiting(feed))) return;
  if (link.state === "paused" && !isResting) say({ state: "connecting" });
  const opened = new WebSocket(`${location.origin.replace("http", "ws")}/api/v1/live`);
  socket = opened;
  heardMs = Date.now();
  opened.onopen = () => feeds.forEach((feed) => (!isResting || isWaiting(feed)) && subscribe(feed));
  opened.onmessage = ({ data }) => {
    if (socket !== opened) return;
    heardMs = Date.now();
    failures = 0;
    reason = "";
    if (link.state !== "live" && !isResting) say({ state: "live", skipped: 0 });
    take(parseJson(data) as Parameters<typeof take>[0]);
    if (isResting && ![...feeds.values()].some(isWaiting)) disconnect();
  };
  opened.onclose = ({ code, reason: why }) => socket === opened && over(code, why);
  listen();
}

function listen() {
  timer = setTimeout(() => (Date.now() - heardMs < SILENCE_MS ? listen() : over(0, "it is silent")), 1000);
}

function disconnect() {
  clearTimeout(timer);
  timer = undefined;
  socket?.close();
  socket = undefined;
}

// A connection that comes back at the first attempt is not reported.
function over(code: number, why: string) {
  disconnect();
  if (code === SIGNED_OUT) return say({ state: "signed out" });
  if (code === RIGHTS_CHANGED) say({ state: "connecting" }); // so that every query is asked again
  failures += 1;
  reason = why || reason;
  const waitMs = Math.min(FIRST_RETRY_MS * 2 ** (failures - 1), LONGEST_RETRY_MS) * (0.75 + Math.random() / 2);
  timer = setTimeout(connect, waitMs);
  if (failures > 1)
    say({
      state: "lost",
      sinceMs: link.state === "lost" ? link.sinceMs : heardMs,
      retryAtMs: Date.now() + waitMs,
      why: reason,
    });
}

function say(changed: Link) {
  link = changed;
  watchers.forEach((listener) => listener());
}

function send(frame: Members) {
  if (socket?.readyState === WebSocket.OPEN) socket.send(JSON.stringify(frame));
}

function subscribe({ id, channel, parameters, seq }: Feed) {
  send({ kind: "subscribe", id, channel, parameters, after: seq ?? null });
}

function take({ ch, seq, kind, data }: Frame) {
  const feed = [...feeds.values()].find(({ id }) => id === ch);
  if (!feed) return;
  if (kind === "snapshot" || (kind === "delta" && seq > (feed.seq ?? 0))) {
    feed.seq = seq;
    show(feed, { data: merged(feed, kind === "delta", data) });
  } else if (kind === "error") {
    feed.seq = undefined;
    show(feed, { ...feed.shown, problem: data as Problem });
    setTimeout(
      () => feeds.get(keyOf(feed.channel, feed.parameters)) === feed && feed.seq === undefined && subscribe(feed),
      FAILED_RETRY_MS,
    );
  } else if (kind === "skipped" && link.state === "live") {
    clearTimeout(noting);
    noting = setTimeout(() => link.state === "live" && say({ state: "live", skipped: 0 }), NOTE_MS);
    say({ state: "live", skipped: link.skipped + (data as Schemas["LiveSkipped"]).count });
  }
}

function show(feed: Feed, what: Shown<Members>) {
  feed.shown = what;
  feed.listeners.forEach((listener) => listener());
}

function merged({ channel, shown }: Feed, isDelta: boolean, data: Members): Members {
  if (channel === "tail") {
    const known = (shown.data?.messages as unknown[] | undefined) ?? [];
    const fresh = (data.messages as unknown[] | undefined) ?? [];
    return { ...shown.data, ...data, messages: [...fresh.toReversed(), ...known].slice(0, MESSAGES_KEPT) };
  }
  if (!isDelta) return data;
  return channel === "lists"
    ? { ...data, rows: changed(shown.data?.rows as Members, data.rows as Members) }
    : changed(shown.data, data);
}

const changed = (known: Members | undefined, delta: Members): Members =>
  Object.fromEntries(Object.entries({ ...known, ...delta }).filter(([, value]) => value !== null));

export const keyOf = (channel: string, parameters: Members) => JSON.stringify([channel, parameters]);
