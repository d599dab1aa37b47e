// The pages of all kinds. Each is loaded when it is opened first; a kind without one has the page of its declaration.

import { useQuery } from "@tanstack/react-query";
import type { ComponentType } from "react";
import type { Kind, Resource } from "../api/kinds";
import { lazyPart, whenThere } from "../api/modules";
import type { ItemPageProps } from "../parts/item-page";
import type { KindPage } from "../parts/kind-page";

type AnyPage = KindPage<any>;

const declared = async (path: string) => (await import("./declared/declared")).PAGES.get(path)!;

/** The modules, loaded when a page of their kind is opened. */
const MODULES: Record<string, () => Promise<{ page: AnyPage }>> = {
  schemas: () => import("./schemas/schemas"),
  validations: async () => ({ page: (await import("./validations-transforms/pages")).validations }),
  transforms: async () => ({ page: (await import("./validations-transforms/pages")).transforms }),
  rules: () => import("./rules/rules"),
  connectors: async () => ({ page: (await import("./bridges/bridges")).connectors }),
  actions: async () => ({ page: (await import("./bridges/bridges")).actions }),
  sources: async () => ({ page: (await import("./bridges/bridges")).sources }),
  streams: () => import("./streams/streams"),
  tables: () => import("./tables/tables"),
  listeners: () => import("./listeners/listeners"),
  "access/rules": async () => ({
    page: { ...(await declared("access/rules")), above: (await import("./access/access")).above },
  }),
};

/** The page of a kind; undefined until it is loaded. */
export function useKindPage(kind: Kind): AnyPage | undefined {
  const load = MODULES[kind.path];
  const { data, error } = useQuery({
    queryKey: ["module", kind.path],
    queryFn: () => whenThere(async () => (load ? (await load()).page : await declared(kind.path))),
    staleTime: Infinity,
  });
  if (error) throw error;
  return data;
}

interface ItemPage {
  show: ComponentType<ItemPageProps>;
  verbs?: ComponentType<{ name: string }>;
  /** What is known of one that is no longer there. */
  gone?: ComponentType<{ resource: Resource; name: string }>;
}

/** Pages of items of live lists that show more than their members, by the path of the list. */
export const ITEM_PAGES: Record<string, ItemPage> = {
  clients: {
    show: lazyPart(() => import("./clients/client")),
    verbs: lazyPart(async () => ({ default: (await import("./clients/client")).ClientVerbs })),
    gone: lazyPart(async () => ({ default: (await import("./clients/client")).ClientGone })),
  },
  captures: { show: lazyPart(() => import("./captures/capture")) },
  jobs: { show: lazyPart(() => import("./jobs/job")) },
};
