// The address of records of a stream.

/** The search of a stream's Records tab at an offset, with one record opened; without an offset at the newest ones. */
export const recordsFrom = (shard = 0, from?: string | number, record?: string | number) =>
  (({ tz }: { tz?: string }) => ({ tz, tab: "records", shard: shard || undefined, from: text(from), record: text(record) })) as never;

const text = (value: string | number | undefined) => (value === undefined ? undefined : String(value));
