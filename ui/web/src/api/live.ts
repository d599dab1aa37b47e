// Live data as hooks: what they show arrives over one WebSocket (channel.ts), while the page is visible and not paused.

import { keepPreviousData, useQuery } from "@tanstack/react-query";
import { createContext, useCallback, useEffect, useMemo, useState, useSyncExternalStore } from "react";
import { keyOf, type Link, linkNow, rest, type Shown, shown, watch, watchLink } from "./channel";
import { type Action, getHistory, type Status } from "./client";
import type { components } from "./openapi";

type Schemas = components["schemas"];

export const Paused = createContext({ paused: false, setPaused: (_: boolean) => {} });

/** What a channel shows with these parameters, for as long as the component does. No channel: nothing. */
function useChannel<T>(channel: string, parameters: Record<string, unknown> = {}, isWanted = true): Shown<T> {
  const key = keyOf(channel, parameters);
  const subscribe = useCallback(
    (listener: () => void) => (isWanted ? watch(key, channel, parameters, listener) : () => {}),
    [key, isWanted],
  );
  return useSyncExternalStore(subscribe, () => shown(key)) as Shown<T>;
}

/** The state of the node. */
export const useStatus = () => useChannel<Status>("status");

/** Grows with each change of an object or of their order: part of the keys of queries about what is configured. */
export const useChanges = () => useStatus().data?.changes;

/** The known jobs with their progress, by identifier. */
export const useJobs = () => useChannel<Record<string, Schemas["Job"]>>("jobs").data;

/** The active alarms, by name. */
export const useAlarms = () => useChannel<Record<string, Schemas["LiveAlarm"]>>("alarms");

/** ``limit`` objects of a list that pass the filters, from ``position`` on, each with its ETag; ``kind`` is a path
 *  below  /api/v1, such as lake/tables. */
export function useList<T = Record<string, unknown>>(
  kind: string,
  {
    filters = {},
    position = 0,
    limit = 200,
  }: { filters?: Record<string, string>; position?: number; limit?: number } = {},
  isWanted = true,
) {
  const { data, problem } = useChannel<Schemas["LiveList"]>("lists", { kind, filters, position, limit }, isWanted);
  const list = useMemo(() => {
    if (!data) return undefined;
    const rows = Object.entries(data.rows)
      .flatMap(([name, row]) => (row ? [[name, row] as const] : []))
      .sort(([, a], [, b]) => a.position - b.position);
    return {
      total: data.total,
      isEstimate: data.total_is_estimate,
      position,
      items: rows.map(
        ([name, { object, etag, state, fixed_by }]) =>
          ({ ...(object ?? { state, isCut: true }), name, etag, fixed_by }) as T,
      ),
    };
  }, [data]);
  return { list, problem };
}

/** An object as GET shows it, with its ETag and the file that fixes it; without ``object`` where there is none. */
export const useObject = <T = Record<string, unknown>>(kind: string, name: string) =>
  useChannel<{ object?: T; etag?: string; fixed_by?: string | null }>("object", { kind, name });

/** The latest 200 messages of a filter, newest first, and how many were matched, shown and skipped. No filter: none. */
export const useTail = (
  filter: string | undefined,
  messagesPerS = 5,
  publisher: { clientid?: string; address?: string } = {},
) =>
  useChannel<Schemas["LiveTail"]>(
    "tail",
    { filter: filter ?? "", messages_per_s: messagesPerS, bytes_per_s: 65_536, ...publisher },
    filter !== undefined,
  );

/** The state of the connection to the broker. */
export const useLink = (): Link => useSyncExternalStore(watchLink, linkNow);

/** For ``refetchInterval``: so often while the connection is there, else never. */
export function useEvery(ms: number): number | false {
  return useLink().state === "live" && ms;
}

/** Rests while the page is paused or hidden. */
export function useRest(paused: boolean) {
  useEffect(() => {
    const change = () => rest(paused || document.hidden);
    change();
    document.addEventListener("visibilitychange", change);
    return () => document.removeEventListener("visibilitychange", change);
  }, [paused]);
}

/** The time by the browser's clock, each second while it is needed. */
export function useNow(isNeeded = true): number {
  const [now, setNow] = useState(Date.now);
  useEffect(() => {
    if (!isNeeded) return;
    setNow(Date.now());
    const timer = setInterval(() => setNow(Date.now()), 1000);
    return () => clearInterval(timer);
  }, [isNeeded]);
  return now;
}

export const useActions = () => useList<Action>("actions").list;

/** The history of metrics over the last ``seconds``, or between two times; of series with these ``labels``, as
 *  ``NAME=VALUE``. */
export function useHistory(
  names: string[],
  seconds: number,
  zoom: { from: number; to: number } | null,
  labels: string[] = [],
) {
  const span = zoom ? (zoom.to - zoom.from) / 1000 : seconds;
  const step = Math.max(1, Math.round(span / 300));
  const every = useEvery(Math.min(Math.max(step, 10), 60) * 1000);
  return useQuery({
    queryKey: ["history", names, labels, seconds, zoom],
    queryFn: () => {
      const to = zoom ? zoom.to : Date.now();
      return getHistory(
        names,
        String(Math.round(zoom ? zoom.from : to - seconds * 1000)),
        String(Math.round(to)),
        step,
        labels,
      );
    },
    refetchInterval: zoom ? false : every,
    placeholderData: keepPreviousData,
  });
}

const REST_MS = 150;

/** A value that has stopped changing. */
export function useRested<T>(value: T): T {
  const text = JSON.stringify(value);
  const [rested, setRested] = useState(value);
  useEffect(() => {
    const timer = setTimeout(() => setRested(value), REST_MS);
    return () => clearTimeout(timer);
  }, [text]);
  return rested;
}
