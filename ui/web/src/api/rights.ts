// What the signed-in user may do: pages leave out what the server would refuse.

import { useQuery } from "@tanstack/react-query";
import { client, settled } from "./client";
import type { Does } from "./kinds";

const FRESH_MS = 60_000; // new rights also end the live connection, whose return refreshes every query

/** Name, role and rights of the signed-in user. */
export const useMe = (isIn = true) =>
  useQuery({ queryKey: ["me"], queryFn: () => settled(client.GET("/api/v1/me")), staleTime: FRESH_MS, enabled: isIn })
    .data;

/** Whether a right exists. No page is shown until the rights are known, for it would ask for what it may not. */
export function useMay(isIn = true): (resource: string, does: Does) => boolean {
  const me = useMe(isIn);
  return (resource, does) => !me || (me.rights[resource] ?? []).includes(does);
}
