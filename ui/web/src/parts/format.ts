// Numbers, times and states as people read them. Unknown is a dash, never 0.

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const short = new Intl.NumberFormat("en", { maximumSignificantDigits: 3 });
export const UNKNOWN = "–";

type Maybe<T> = T | null | undefined;

/** 1,234 up to 9,999, then 12.3 k; the exact number belongs into a title. */
export function count(value: Maybe<number | bigint>): string {
  if (value === null || value === undefined) return UNKNOWN;
  const number = Number(value);
  if (Math.abs(number) < 10_000) return Number.isInteger(number) ? whole.format(number) : short.format(number);
  for (const [limit, unit] of [
    [1e12, "T"],
    [1e9, "G"],
    [1e6, "M"],
    [1e3, "k"],
  ] as const) {
    if (Math.abs(number) >= limit) return `${short.format(number / limit)} ${unit}`;
  }
  return whole.format(number);
}

/** "1 row", "12.3 k rows"; "12,345 rows" with `exact`. */
export const counted = (value: Maybe<number | bigint>, one: string, shown = count) =>
  `${shown(value)} ${one}${Number(value) === 1 ? "" : "s"}`;

export interface Progress {
  done: number;
  total: number;
  unit: string;
}

/** "420 of 1,000 rows (42 %)"; a total that is not known is 0. */
export function progressText({ done, total, unit }: Progress): string {
  if (!total) return `${count(done)} ${unit}`;
  return `${count(done)} of ${count(total)} ${unit} (${Math.min(100, Math.floor((100 * done) / total))} %)`;
}

export function exact(value: Maybe<number | bigint>): string {
  if (value === null || value === undefined) return "";
  return Number.isInteger(Number(value)) ? whole.format(value) : String(value);
}

export function bytes(value: Maybe<number>): string {
  if (value === null || value === undefined) return UNKNOWN;
  for (const [limit, unit] of [
    [2 ** 40, "TiB"],
    [2 ** 30, "GiB"],
    [2 ** 20, "MiB"],
    [2 ** 10, "KiB"],
  ] as const) {
    if (value >= limit) return `${short.format(value / limit)} ${unit}`;
  }
  return `${short.format(value)} B`;
}

export function duration(seconds: Maybe<number>): string {
  if (seconds === null || seconds === undefined) return UNKNOWN;
  if (seconds === 0) return "0 s";
  if (seconds < 0.001) return `${short.format(seconds * 1e6)} µs`;
  if (seconds < 1) return `${short.format(seconds * 1e3)} ms`;
  if (seconds < 10) return `${short.format(seconds)} s`;
  const s = Math.round(seconds);
  if (s < 60) return `${s} s`;
  const two = (large: number, unit: string, small: number, smaller: string) =>
    `${Math.floor(s / large)} ${unit}${s % large < small ? "" : ` ${Math.floor((s % large) / small)} ${smaller}`}`;
  return s < 3600 ? two(60, "min", 1, "s") : s < 86_400 ? two(3600, "h", 60, "min") : two(86_400, "d", 3600, "h");
}

/** "4 s ago", or "in 4 min"; a few seconds ahead are the difference of two clocks. */
export function ago(time: Maybe<string>, nowMs: number): string {
  if (!time) return UNKNOWN;
  const seconds = (nowMs - Date.parse(time)) / 1000;
  if (Number.isNaN(seconds)) return time;
  if (seconds <= -5) return `in ${duration(Math.ceil(-seconds))}`;
  return seconds < 1 ? "now" : `${duration(Math.floor(seconds))} ago`;
}

/** Any value of a row, as one line of text. */
export function cell(value: unknown): string {
  if (value === null || value === undefined) return UNKNOWN;
  if (typeof value === "number") return String(Number(value.toPrecision(12))); // 61.483999999999995 is 61.484
  return typeof value === "object" ? JSON.stringify(value) : String(value);
}

/** A value as JSON of several lines. */
export const pretty = (value: unknown) => JSON.stringify(value, null, 2) ?? "";

/** "validation failed 45, expired 3": the counts that are not 0, largest first. */
export function byReason(counts: Record<string, number>): string {
  const reasons = Object.entries(counts)
    .filter(([, n]) => n > 0)
    .sort((a, b) => b[1] - a[1]);
  return reasons.map(([reason, n]) => `${reason.replaceAll("_", " ")} ${count(n)}`).join(", ");
}

const STATES: Record<string, [string, string]> = {
  running: ["●", "ok"],
  ok: ["●", "ok"],
  live: ["●", "ok"],
  connected: ["●", "ok"],
  ready: ["●", "ok"],
  done: ["●", "ok"],
  starting: ["◆", "info"],
  recovering: ["◆", "info"],
  connecting: ["◆", "info"],
  degraded: ["▲", "warn"],
  retrying: ["▲", "warn"],
  alarm: ["▲", "warn"],
  failed: ["■", "err"],
  error: ["■", "err"],
  disconnected: ["■", "err"],
  lost: ["■", "err"],
};

/** Shape and colour of a state, which is always shown as shape, word and colour. */
export function mark(state: string): [string, string] {
  return STATES[state] ?? ["○", "idle"];
}

const DAY_S = 86_400;
// of history, before it says how fast the disk fills: compaction makes shorter ones go up and down
const LEAST_S = 6 * 3600;

/** When the disk is full by what the broker itself stores, and over which time that was measured. */
export function diskOutlook(data: Maybe<Series>, free: number, total: number): string {
  const [own, all] = [pointsOf(data, "data_directory_bytes"), pointsOf(data, "disk_free_bytes")];
  const [first, last] = [own[0], own.at(-1)];
  if (!first || !last || last[0] - first[0] < LEAST_S)
    return `How fast the broker fills it is known after ${duration(LEAST_S)}.`;
  const perDay = slope(own) * DAY_S;
  const days = free / perDay;
  const full = days < 1 ? duration((free / perDay) * DAY_S) : counted(Math.round(days), "day");
  const others = -slope(all) * DAY_S - Math.max(0, perDay);
  const enough = total / 10_000; // a day
  return `In the last ${duration(last[0] - first[0])} the data of the broker ${
    perDay < enough ? "did not grow." : `grew by ${bytes(perDay)} a day: at this rate the disk is full in ${full}.`
  }${others < enough ? "" : ` Other programs took ${bytes(others)} a day.`}`;
}

interface Series {
  step_s: number;
  series: { name: string; mean: (number | null)[] }[];
}
type Point = readonly [number, number];

function pointsOf(data: Maybe<Series>, name: string): Point[] {
  const series = data?.series.find((one) => one.name === name);
  return (
    series?.mean.flatMap((value, at) => (value === null ? [] : [[at * (data?.step_s ?? 1), value] as const])) ?? []
  );
}

/** The change per second, by least squares. */
function slope(points: Point[]): number {
  const mean = (which: 0 | 1) => points.reduce((sum, point) => sum + point[which], 0) / points.length;
  const [x, y] = [mean(0), mean(1)];
  return (
    points.reduce((sum, point) => sum + (point[0] - x) * (point[1] - y), 0) /
    points.reduce((sum, point) => sum + (point[0] - x) ** 2, 0)
  );
}
