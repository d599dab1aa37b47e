// Parts of the page's address.

import { useNavigate, useSearch } from "@tanstack/react-router";

/** The search of a stream's Records tab at an offset, with one record opened; without an offset at the newest ones. */
export const recordsFrom = (shard = 0, from?: string | number, record?: string | number) =>
  (({ tz }: { tz?: string }) => ({
    tz,
    tab: "records",
    shard: shard || undefined,
    from: inAddress(from),
    record: inAddress(record),
  })) as never;

/** An offset or a time as an address has it: numbers are not quoted there. */
export const inAddress = (place: string | number | undefined) =>
  /^(0|[1-9]\d{0,14})$/.test(String(place)) ? Number(place) : place;

/** A part of the address. */
export function useParameter(key: string, otherwise: string): [string, (value: string) => void] {
  const search = useSearch({ strict: false }) as Record<string, unknown>;
  const navigate = useNavigate();
  const put = (value: string) =>
    void navigate({
      to: ".",
      search: (known: object) => ({ ...known, [key]: value === otherwise ? undefined : value }),
      replace: true,
    } as never);
  return [search[key] === undefined ? otherwise : String(search[key]), put];
}
