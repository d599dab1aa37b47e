// What one person chose for this browser: colours, time zone, whether Start has its steps. Nothing else is stored,
// least of all a secret.

import { useSyncExternalStore } from "react";

export type Theme = "system" | "light" | "dark";
export interface Preferences {
  theme: Theme;
  zone: string;
  keys: boolean;
  steps: boolean;
}

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
  return useSyncExternalStore(
    (listener) => {
      listeners.add(listener);
      return () => listeners.delete(listener);
    },
    () => current,
  );
}
