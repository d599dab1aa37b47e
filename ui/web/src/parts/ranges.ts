// Time ranges of charts, and what the address of the overview holds.

export const RANGES: Record<string, [string, number]> = {
  "5m": ["5 min", 300],
  "15m": ["15 min", 900],
  "1h": ["1 h", 3600],
  "6h": ["6 h", 21_600],
  "1d": ["24 h", 86_400],
  "7d": ["7 days", 604_800],
};

/** What the address names: a time range, or the times between which it is zoomed, and the chart that is shown as a
 *  table. */
export interface HistorySearch {
  range?: string;
  from?: number;
  to?: number;
  table?: string;
}

export interface OverviewSearch extends HistorySearch {
  rows?: string;
  tab?: string;
}

export function overviewSearch({ range, from, to, table, rows, tab }: Record<string, unknown>): OverviewSearch {
  const found: OverviewSearch = {};
  if (typeof range === "string" && range in RANGES && range !== "5m") found.range = range;
  if (typeof from === "number" && typeof to === "number" && to - from >= 1000) Object.assign(found, { from, to });
  if (typeof table === "string") found.table = table;
  if (typeof rows === "string") found.rows = rows;
  if (typeof tab === "string") found.tab = tab;
  return found;
}
