// What is wrong with the node now, by the page that shows it.

import { useAlarms, useStatus } from "../api/live";
import { counted } from "./format";

export interface Trouble {
  /** The page of the list, and its filters. */
  path: string;
  query: Record<string, string>;
  count: number;
  text: string;
}

export function useTroubles(): Trouble[] {
  const { data: status } = useStatus();
  const { data: alarms } = useAlarms();
  if (!status) return [];
  const { rule_states: rules, tables, ledger, health } = status;
  const failing = tables.filter(({ state }) => state === "failed" || state === "degraded").length;
  const trouble = (path: string, count: number, text: string, query = {}): Trouble[] =>
    count > 0 ? [{ path, query, count, text }] : [];
  const active = Object.keys(alarms ?? {}).length;
  return [
    ...trouble("overview", Number(health?.overloaded ?? false), "the broker is overloaded"),
    ...trouble(
      "overview",
      Math.abs(ledger.residual),
      `${counted(Math.abs(ledger.residual), "message")} not accounted for`,
    ),
    ...trouble("rules", rules.failed ?? 0, `${counted(rules.failed ?? 0, "rule")} failed`, { state: "failed" }),
    ...trouble("actions", ledger.lost_rows, `${counted(ledger.lost_rows, "row")} lost by actions`),
    ...trouble("tables", failing, `${counted(failing, "table")} not running well`),
    ...trouble("alarms", active, counted(active, "alarm")),
  ];
}
