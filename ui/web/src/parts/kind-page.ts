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

export interface KindPage<T> {
  /** Cells of the list that are drawn in a way of their own, by the heading of the declared column. */
  cells?: Record<string, Omit<Column<T>, "title">>;
  /** Over the list. */
  above?: () => ReactNode;
  /** The first is shown when the address names none. */
  tabs: Tab<T>[];
  /** The body of the page that creates one. */
  create: () => ReactNode;
}
