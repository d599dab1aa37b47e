// What the parts of the pages of bridges share.

import { useQuery } from "@tanstack/react-query";
import { getAny } from "../../api/client";
import { kindOf } from "../../api/kinds";
import { useStatus } from "../../api/live";
import type { components } from "../../api/openapi";

export type Schemas = components["schemas"];
export type Connector = Required<Schemas["ConnectorObject"]>;
export type Action = Required<Schemas["ActionObject"]>;
export type Source = Required<Schemas["SourceObject"]>;
export type Bridge = Connector | Action | Source;
export type TypeView = Schemas["ConnectorTypeView"];
export type Members = Record<string, unknown>;
export type Path = "connectors" | "actions" | "sources";
export const placeOf = (path: Path, name: string) => `${path}/${encodeURIComponent(name)}`;
export const oneOf = (path: Path) => kindOf(path)!.one.toLowerCase();

export function useTypes(): TypeView[] {
  const { data } = useQuery({
    queryKey: ["connector-types"],
    queryFn: () => getAny<{ items: TypeView[] }>("connector-types"),
    staleTime: Infinity,
  });
  return data?.items ?? [];
}

/** The time by the server's clock: the browser's may be wrong. */
export function useServerMs(): number {
  const { data: status } = useStatus();
  return status ? Date.parse(status.started_at) + status.uptime_s * 1000 : Date.now();
}
