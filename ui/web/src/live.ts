// Where live data comes from: one poll a second of GET /status while the page is visible and not paused. Pages read
// the hooks below and do not know how the data arrives.

import { keepPreviousData, useQuery } from "@tanstack/react-query";
import { createContext, useContext, useEffect, useState } from "react";
import { getActions, getAlarms, getHistory, getStatus, Refused, tail, type TailedMessage } from "./api";

const EVERY_MS = 1000;
const LONGEST_WAIT_MS = 10_000;

export type Link = { state: "connecting" | "live" | "paused" | "signed out" } | { state: "lost"; sinceMs: number; retryInS: number; why: string };

export const Paused = createContext({ paused: false, setPaused: (_: boolean) => {} });

let failures = 0; // since the last answer

const waitMs = () => (failures < 2 ? EVERY_MS : Math.min(EVERY_MS * 2 ** (failures - 1), LONGEST_WAIT_MS));

async function askStatus(signal: AbortSignal) {
  try {
    const status = await getStatus(signal);
    failures = 0;
    return status;
  } catch (error) {
    if (!signal.aborted) failures += 1;
    throw error;
  }
}

export const isSignedOut = (error: unknown) => error instanceof Refused && error.status === 401;

/** The state of the node, polled each second; after failures less often. */
export function useStatus() {
  const { paused } = useContext(Paused);
  return useQuery({
    queryKey: ["status"],
    queryFn: ({ signal }) => askStatus(signal),
    refetchInterval: ({ state }) => (paused || isSignedOut(state.error) ? false : waitMs()),
  });
}

/** What the header says about the connection. One slow answer is no news, so a loss shows after two. */
export function useLink(): Link {
  const { paused } = useContext(Paused);
  const { data, error, dataUpdatedAt, errorUpdatedAt } = useStatus();
  const nowMs = useNow(error !== null);
  if (isSignedOut(error)) return { state: "signed out" };
  if (paused) return { state: "paused" };
  if (error && (failures > 1 || !data)) {
    const retryInS = Math.max(0, Math.ceil((errorUpdatedAt + waitMs() - nowMs) / 1000));
    return { state: "lost", sinceMs: dataUpdatedAt || errorUpdatedAt, retryInS, why: error instanceof Refused ? error.message : "" };
  }
  return { state: data ? "live" : "connecting" };
}

/** The time by the browser's clock, each second while it is needed. */
export function useNow(isNeeded = true): number {
  const [now, setNow] = useState(Date.now);
  useEffect(() => {
    if (!isNeeded) return;
    setNow(Date.now());
    const timer = setInterval(() => setNow(Date.now()), EVERY_MS);
    return () => clearInterval(timer);
  }, [isNeeded]);
  return now;
}

export function useAlarms() {
  const { paused } = useContext(Paused);
  return useQuery({ queryKey: ["alarms"], queryFn: getAlarms, refetchInterval: paused ? false : 2 * EVERY_MS });
}

export function useActions() {
  const { paused } = useContext(Paused);
  return useQuery({ queryKey: ["actions"], queryFn: getActions, refetchInterval: paused ? false : 2 * EVERY_MS });
}

/** The history of metrics over the last ``seconds``, or between two times; of series with these ``labels``, as ``NAME=VALUE``. */
export function useHistory(names: string[], seconds: number, zoom: { from: number; to: number } | null, labels: string[] = []) {
  const { paused } = useContext(Paused);
  const span = zoom ? (zoom.to - zoom.from) / 1000 : seconds;
  const step = Math.max(1, Math.round(span / 300));
  return useQuery({
    queryKey: ["history", names, labels, seconds, zoom],
    queryFn: () => {
      const to = zoom ? zoom.to : Date.now();
      return getHistory(names, String(Math.round(zoom ? zoom.from : to - seconds * 1000)), String(Math.round(to)), step, labels);
    },
    refetchInterval: paused || zoom ? false : Math.min(Math.max(step, 2), 60) * EVERY_MS,
    placeholderData: keepPreviousData,
  });
}

const KEPT = 20;

/** The latest messages of a filter, newest first, drawn once a second. A hidden or paused page does not ask. */
export function useTail(filter: string): { messages: TailedMessage[]; problem: string } {
  const { paused } = useContext(Paused);
  const [messages, setMessages] = useState<TailedMessage[]>([]);
  const [problem, setProblem] = useState("");
  const isHidden = useIsHidden();
  useEffect(() => setMessages([]), [filter]);
  useEffect(() => {
    if (paused || isHidden) return;
    const stop = new AbortController();
    let waiting: TailedMessage[] = [];
    const drawing = setInterval(() => {
      const fresh = waiting.reverse();
      waiting = [];
      if (fresh.length) setMessages((known) => [...fresh, ...known].slice(0, KEPT));
    }, EVERY_MS);
    const read = async () => {
      while (!stop.signal.aborted) {
        try {
          for await (const line of tail(filter, stop.signal)) {
            if (line.kind === "message") waiting = [...waiting, line].slice(-KEPT);
            setProblem("");
          }
        } catch (error) {
          if (stop.signal.aborted) return;
          if (error instanceof Refused) setProblem(error.message);
          await new Promise((go) => setTimeout(go, 2 * EVERY_MS));
        }
      }
    };
    void read();
    return () => {
      stop.abort();
      clearInterval(drawing);
    };
  }, [filter, paused, isHidden]);
  return { messages, problem };
}

function useIsHidden(): boolean {
  const [isHidden, setHidden] = useState(document.hidden);
  useEffect(() => {
    const change = () => setHidden(document.hidden);
    document.addEventListener("visibilitychange", change);
    return () => document.removeEventListener("visibilitychange", change);
  }, []);
  return isHidden;
}
