// What one person chose for this browser: colours, time zone, whether Start has its steps. Nothing else is stored, least of all a secret.

import { useSyncExternalStore } from "react";

export type Theme = "system" | "light" | "dark";
export interface Preferences { theme: Theme; zone: string; keys: boolean; steps: boolean }

const PLACE = "sluice.preferences";
const listeners = new Set<() => void>();
let current: Preferences = { theme: "system", zone: "browser", keys: true, steps: true };
try {
  current = { ...current, ...JSON.parse(localStorage.getItem(PLACE) ?? "{}") };
} catch {
  // a value that does not parse, or no storage: the defaults
}
apply();

function apply() {
  document.documentElement.dataset.theme = current.theme;
}

export function prefer(change: Partial<Preferences>) {
  current = { ...current, ...change };
  try {
    localStorage.setItem(PLACE, JSON.stringify(current));
  } catch {
    // no storage: the choice holds until the page is left
  }
  apply();
  listeners.forEach((listener) => listener());
}

export function usePreferences(): Preferences {
  return useSyncExternalStore((listener) => {
    listeners.add(listener);
    return () => listeners.delete(listener);
  }, () => current);
}

const BROWSER_ZONE = Intl.DateTimeFormat().resolvedOptions().timeZone || "UTC";
const NAMED = ["America/Los_Angeles", "America/New_York", "America/Sao_Paulo", "Europe/London", "Europe/Berlin", "Asia/Dubai", "Asia/Kolkata", "Asia/Shanghai", "Asia/Tokyo", "Australia/Sydney"];
export const ZONES = ["UTC", "browser", ...NAMED];

export const zoneName = (zone: string) => (zone === "browser" ? BROWSER_ZONE : zone);

/** The zone by which times are shown: that of the address, else the preferred one. */
export function zoneOf(preferred: string, inAddress: string | undefined): string {
  const zone = zoneName(inAddress ?? preferred);
  try {
    Intl.DateTimeFormat("en", { timeZone: zone });
    return zone;
  } catch {
    return "UTC";
  }
}

export function clock(ms: number, zone: string, parts: "time" | "minute" | "day" | "full" = "time"): string {
  const date: Intl.DateTimeFormatOptions = { year: "numeric", month: "2-digit", day: "2-digit" };
  const time: Intl.DateTimeFormatOptions = { hour: "2-digit", minute: "2-digit", hourCycle: "h23" };
  const shown = { time: { ...time, second: "2-digit" }, minute: time, day: { month: "short", day: "numeric" }, full: { ...date, ...time, second: "2-digit" } } as const;
  return new Intl.DateTimeFormat(parts === "day" ? "en" : "sv-SE", { ...shown[parts], timeZone: zone }).format(ms);
}
