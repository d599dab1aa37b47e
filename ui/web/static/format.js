// Numbers, times and states as people read them. Unknown is a dash, never 0.

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const short = new Intl.NumberFormat("en", { maximumSignificantDigits: 3 });
export const UNKNOWN = "–";

// 1,234 up to 9,999, then 12.3 k; the exact number belongs into a title.
export function count(value) {
  if (value === null || value === undefined) return UNKNOWN;
  const number = Number(value);
  if (Math.abs(number) < 10_000) return Number.isInteger(number) ? whole.format(number) : short.format(number);
  for (const [limit, unit] of [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]]) {
    if (Math.abs(number) >= limit) return `${short.format(number / limit)} ${unit}`;
  }
  return whole.format(number);
}

export function exact(value) {
  if (value === null || value === undefined) return "";
  return Number.isInteger(Number(value)) ? whole.format(value) : String(value);
}

export function bytes(value) {
  if (value === null || value === undefined) return UNKNOWN;
  for (const [limit, unit] of [[2 ** 40, "TiB"], [2 ** 30, "GiB"], [2 ** 20, "MiB"], [2 ** 10, "KiB"]]) {
    if (value >= limit) return `${short.format(value / limit)} ${unit}`;
  }
  return `${whole.format(value)} B`;
}

export function duration(seconds) {
  if (seconds === null || seconds === undefined) return UNKNOWN;
  if (seconds < 10) return `${short.format(seconds)} s`;
  const s = Math.round(seconds);
  if (s < 60) return `${s} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min ${s % 60} s`;
  if (s < 86_400) return `${Math.floor(s / 3600)} h ${Math.floor((s % 3600) / 60)} min`;
  return `${Math.floor(s / 86_400)} d ${Math.floor((s % 86_400) / 3600)} h`;
}

// "4 s ago", measured against the server's clock, since the browser's may be wrong.
export function ago(time, nowMs) {
  if (!time) return UNKNOWN;
  const seconds = (nowMs - Date.parse(time)) / 1000;
  if (Number.isNaN(seconds)) return String(time);
  return seconds < 1 ? "now" : `${duration(Math.floor(seconds))} ago`;
}

export function clock(date) {
  return date.toLocaleTimeString("en-GB");
}

// Any value of a row, as one line of text.
export function cell(value) {
  if (value === null || value === undefined) return UNKNOWN;
  if (typeof value === "object") return JSON.stringify(value);
  return String(value);
}

const STATES = {
  running: ["●", "ok"], ok: ["●", "ok"], live: ["●", "ok"],
  starting: ["◆", "info"], recovering: ["◆", "info"],
  degraded: ["▲", "warn"], retrying: ["▲", "warn"],
  failed: ["■", "err"], error: ["■", "err"],
};

// A state is always shape, word and colour.
export function mark(state) {
  return STATES[state] ?? ["○", "idle"];
}
