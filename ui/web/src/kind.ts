// What one kind of objects adds to the pages that all kinds share.

import { useQuery } from "@tanstack/react-query";
import { useNavigate, useSearch } from "@tanstack/react-router";
import type { ReactNode } from "react";
import type { Column } from "./parts";

export interface ObjectProps<T> { name: string; object: T; etag: string }

export interface Tab<T> { title: string; show: (props: ObjectProps<T>) => ReactNode }

/** A query parameter of the operation that lists. Without ``values`` it takes text. */
export interface Filter { name: string; label: string; values?: string[] }

export interface KindPage<T> {
  /** Of the list, after name and state. */
  columns: Column<T>[];
  filters?: Filter[];
  /** Over the list. */
  above?: () => ReactNode;
  /** The first is shown when the address names none. */
  tabs: Tab<T>[];
  /** Members that the server adds, and a file does not have. */
  added?: string[];
  /** The body of the page that creates one. */
  create: () => ReactNode;
}

/** A part of the address. */
export function useParameter(key: string, otherwise: string): [string, (value: string) => void] {
  const search = useSearch({ strict: false }) as Record<string, unknown>;
  const navigate = useNavigate();
  const put = (value: string) => void navigate({ to: ".", search: (known: object) => ({ ...known, [key]: value === otherwise ? undefined : value }), replace: true } as never);
  return [search[key] === undefined ? otherwise : String(search[key]), put];
}

type AnyPage = KindPage<any>;

/** The modules, loaded when a page of their kind is opened. */
const MODULES: Record<string, () => Promise<{ page: AnyPage }>> = {
  schemas: () => import("./schemas"),
  validations: async () => ({ page: (await import("./gates")).validations }),
  transforms: async () => ({ page: (await import("./gates")).transforms }),
  rules: () => import("./rules"),
  connectors: async () => ({ page: (await import("./bridges")).connectors }),
  actions: async () => ({ page: (await import("./bridges")).actions }),
  sources: async () => ({ page: (await import("./bridges")).sources }),
  streams: () => import("./streams"),
  tables: () => import("./tables"),
};

const PLAIN: AnyPage = { columns: [], tabs: [], create: () => null };

/** The page of a kind; undefined until it is loaded. */
export function useKindPage(path: string): AnyPage | undefined {
  const load = MODULES[path];
  const { data, error } = useQuery({ queryKey: ["module", path], queryFn: async () => (load ? (await load()).page : PLAIN), staleTime: Infinity });
  if (error) throw error;
  return data;
}

export const canCreate = (path: string) => path in MODULES;
