// A list that belongs to one item, as it is declared: its time line, its messages.

import { useQuery } from "@tanstack/react-query";
import type { ReactNode } from "react";
import { getAny, Refused } from "../api/client";
import { type Call, type List } from "../api/kinds";
import { useEvery } from "../api/live";
import { Card, Empty, LoadFailure, Loading } from "./card";
import { Table } from "./table";
import { columnOf } from "./value";

const EVERY_MS = 3000;

export function ItemList({
  part,
  name,
  title,
  empty,
  action,
}: {
  part: List & Call;
  name: string;
  title: string;
  empty: string;
  /** What can be done with a row. */
  action?: (row: Record<string, unknown>) => ReactNode;
}) {
  const path = part.path.replace(`{${part.parameter}}`, encodeURIComponent(name));
  const { data, error } = useQuery({
    queryKey: ["item", path],
    queryFn: ({ signal }) => getAny<{ items: Record<string, unknown>[] }>(path, { signal }),
    refetchInterval: useEvery(EVERY_MS),
  });
  const rows = data?.items ?? [];
  const isGone = error instanceof Refused && error.status === 404;
  return (
    <Card title={title}>
      {!isGone && <LoadFailure error={error} />}
      {!data && !error && <Loading />}
      {(data || isGone) && !rows.length && <Empty>{empty}</Empty>}
      {rows.length > 0 && (
        <Table
          kind="live"
          label={title}
          columns={[
            ...part.columns.map((declared) => columnOf(declared, rows)),
            ...(action
              ? [{ title: "Do", head: <span className="hidden">Do</span>, kind: "num verbs" as const, show: action }]
              : []),
          ]}
          rows={rows}
          keyOf={(_, at) => rows.length - at}
        />
      )}
    </Card>
  );
}
