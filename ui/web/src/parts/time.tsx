// Times in the time zone that the page shows them in.

import { useSearch } from "@tanstack/react-router";
import { useNow } from "../api/live";
import { ago, UNKNOWN } from "./format";
import { usePreferences } from "./preferences";

/** "4 s ago", with the time on hover. */
export function RelativeTime({ at }: { at: string | null | undefined }) {
  const timeZone = useTimeZone();
  const now = useNow();
  return at ? (
    <time dateTime={at} title={clock(Date.parse(at), timeZone, "full")}>
      {ago(at, now)}
    </time>
  ) : (
    <>{UNKNOWN}</>
  );
}

/** The time with its date. */
export function DateTime({ at }: { at: string | null | undefined }) {
  const timeZone = useTimeZone();
  return at ? (
    <time dateTime={at} title={at}>
      {clock(Date.parse(at), timeZone, "full")}
    </time>
  ) : (
    <>{UNKNOWN}</>
  );
}

const BROWSER_TIME_ZONE = Intl.DateTimeFormat().resolvedOptions().timeZone || "UTC";
const NAMED = [
  "America/Los_Angeles",
  "America/New_York",
  "America/Sao_Paulo",
  "Europe/London",
  "Europe/Berlin",
  "Asia/Dubai",
  "Asia/Kolkata",
  "Asia/Shanghai",
  "Asia/Tokyo",
  "Australia/Sydney",
];
export const TIME_ZONES = ["UTC", "browser", ...NAMED];

export const timeZoneName = (timeZone: string) => (timeZone === "browser" ? BROWSER_TIME_ZONE : timeZone);

/** The time zone by which times are shown: that of the address, else the preferred one. */
export function timeZoneOf(preferred: string, inAddress: string | undefined): string {
  const timeZone = timeZoneName(inAddress ?? preferred);
  try {
    Intl.DateTimeFormat("en", { timeZone });
    return timeZone;
  } catch {
    return "UTC";
  }
}

export function clock(ms: number, timeZone: string, parts: "time" | "minute" | "day" | "full" = "time"): string {
  const date: Intl.DateTimeFormatOptions = { year: "numeric", month: "2-digit", day: "2-digit" };
  const time: Intl.DateTimeFormatOptions = { hour: "2-digit", minute: "2-digit", hourCycle: "h23" };
  const shown = {
    time: { ...time, second: "2-digit" },
    minute: time,
    day: { month: "short", day: "numeric" },
    full: { ...date, ...time, second: "2-digit" },
  } as const;
  return new Intl.DateTimeFormat(parts === "day" ? "en" : "sv-SE", { ...shown[parts], timeZone }).format(ms);
}

export const keepTimeZone = ({ tz }: { tz?: string }) => ({ tz });

/** The time zone in which this page shows times. */
export function useTimeZone(): string {
  const { tz } = useSearch({ strict: false }) as { tz?: string };
  return timeZoneOf(usePreferences().zone, tz);
}
