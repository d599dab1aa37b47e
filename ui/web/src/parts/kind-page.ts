// What the page of one kind adds to the pages that all kinds share.

import type { ReactNode } from "react";
import type { Column } from "./table";

export interface ObjectProps<T> {
  name: string;
  object: T;
  etag: string;
}

export interface Tab<T> {
  title: string;
  show: (props: ObjectProps<T>) => ReactNode;
}

/** A query parameter of the operation that lists. Without ``values`` it takes text. */
export interface Filter {
  name: string;
  label: string;
  values?: string[];
}

export interface KindPage<T> {
  /** Of the list, after name and state. */
  columns: Column<T>[];
  filters?: Filter[];
  /** Over the list. */
  above?: () => ReactNode;
  /** The first is shown when the address names none. */
  tabs: Tab<T>[];
  /** The body of the page that creates one. */
  create: () => ReactNode;
}
