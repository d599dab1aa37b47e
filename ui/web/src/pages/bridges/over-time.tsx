// The charts of one bridge.

import { useMemo } from "react";
import { bytes, count, UNKNOWN } from "../../parts/format";
import { type ChartOf, Charts, perSecond } from "../../parts/history-charts";

/** A duration that is short enough for an axis. */
const age = (seconds: number | null | undefined) =>
  seconds === null || seconds === undefined
    ? UNKNOWN
    : seconds < 120
      ? `${count(Math.round(seconds))} s`
      : seconds < 7200
        ? `${count(Math.round(seconds / 60))} min`
        : `${count(Math.round(seconds / 3600))} h`;

export const ACTION_CHARTS: ChartOf[] = [
  {
    id: "rows",
    title: "Rows",
    note: "per second",
    show: perSecond,
    parts: [
      { label: "handed over", names: ["action_matched"] },
      { label: "confirmed", names: ["action_success"] },
      { label: "failed", names: ["action_failed"] },
      { label: "dropped", names: ["action_dropped"] },
    ],
  },
  {
    id: "waiting",
    title: "Waiting",
    note: "rows",
    show: (value) => (value === null || value === undefined ? UNKNOWN : count(value)),
    parts: [
      { label: "in the buffer", names: ["action_queuing"] },
      { label: "in flight", names: ["action_inflight"] },
    ],
  },
  {
    id: "age",
    title: "Age of the oldest row",
    show: age,
    parts: [{ label: "not confirmed for", names: ["action_lag_seconds"] }],
  },
  {
    id: "size",
    title: "Buffer",
    show: (value) => bytes(value),
    parts: [{ label: "size", names: ["action_queuing_bytes"] }],
  },
];

export const SOURCE_CHARTS: ChartOf[] = [
  {
    id: "records",
    title: "Records",
    note: "per second",
    show: perSecond,
    parts: [{ label: "read", names: ["source_received"] }],
  },
  {
    id: "lag",
    title: "Not read yet",
    note: "records",
    show: (value) => (value === null || value === undefined ? UNKNOWN : count(value)),
    parts: [{ label: "behind", names: ["source_lag_records"] }],
  },
];

export function OverTime({ charts, label }: { charts: ChartOf[]; label: string }) {
  const labels = useMemo(() => [label], [label]);
  return <Charts charts={charts} labels={labels} />;
}
