// What the parts of the page of tables share.

import { keepPreviousData, useQuery } from "@tanstack/react-query";
import { Link } from "@tanstack/react-router";
import { getAny } from "../../api/client";
import type { components } from "../../api/openapi";
import { recordsFrom } from "../../parts/address";
import type { ObjectProps } from "../../parts/kind-page";

export type Schemas = components["schemas"];
export type LakeTable = Schemas["TableObject"] & { stream: string };
export type Props = ObjectProps<LakeTable>;
export const place = (name: string) => `lake/tables/${encodeURIComponent(name)}`;

/** What the table's files say; blocking reads of the server, so not asked often. */
export function useTable<T>(
  name: string,
  what: string,
  query: Record<string, string | number | boolean | undefined>,
  version: unknown,
) {
  return useQuery({
    queryKey: [what, name, query, version],
    queryFn: ({ signal }) => getAny<T>(`${place(name)}/${what}`, { query, signal }),
    placeholderData: keepPreviousData,
    retry: 3,
  });
}

export const tab = (title: string, more: object = {}) =>
  (({ tz }: { tz?: string }) => ({ tz, tab: title, ...more })) as never;

export function Offsets({ stream, shard, start, end }: Schemas["ShardOffsetRange"] & { stream: string }) {
  return (
    <div>
      <Link to="/$kind/$name" params={{ kind: "streams", name: stream }} search={recordsFrom(shard, start)}>
        {end - start > 1 ? `${start} to ${end - 1}` : start}
      </Link>
      {shard > 0 && ` of shard ${shard}`}
    </div>
  );
}
