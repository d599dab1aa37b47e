// The newest rows of a table, or its dead letters.

import { Link, useNavigate, useSearch } from "@tanstack/react-router";
import { useMay } from "../../api/rights";
import { recordsFrom } from "../../parts/address";
import { Card, Empty, LoadFailure } from "../../parts/card";
import { download } from "../../parts/copy";
import { CopyAs } from "../../parts/copy-as";
import { ExplainButton, originalOf } from "../../parts/explaining";
import { cell, count, exact } from "../../parts/format";
import type { Members } from "../../parts/spec-form";
import { Table, useSelection } from "../../parts/table";
import { place, type Props, type Schemas, tab, useTable } from "./shared";

type Preview = Schemas["TablePreview"];

interface RowsPlace {
  letters?: boolean;
  limit?: number;
  find?: string | number;
  member?: string;
}

const LIMITS = [20, 100, 1000];

export function Rows({ name, object }: Props) {
  const navigate = useNavigate();
  const mayReplay = useMay()("tables", "job");
  const { letters, limit = 20, find: found, member } = useSearch({ strict: false }) as RowsPlace;
  const find = String(found ?? "").toLowerCase();
  const query = { limit, dead_letters: letters || undefined, member: letters ? undefined : member };
  const { data, error } = useTable<Preview>(
    name,
    "preview",
    query,
    `${object.report?.table_version} ${object.dead_letters}`,
  );
  const set = (changed: RowsPlace) =>
    void navigate({ to: ".", search: ((known: object) => ({ ...known, ...changed })) as never, replace: true });
  const shown =
    data?.rows.filter((row) => !find || Object.values(row).some((value) => cell(value).toLowerCase().includes(find))) ??
    [];
  // What a row says comes first, where it comes from after it; what is the same in all rows is in the heading.
  const ours = (column: string) => column.startsWith("_") && !column.startsWith("_error");
  const [chosen, select] = useSelection(shown, recordOf);
  const columns = [...(data?.columns ?? [])]
    .filter((one) => one !== "_stream" && one !== "_offset")
    .sort((a, b) => Number(ours(a)) - Number(ours(b)));
  const kept = letters
    ? { query: "&dead_letters=true", option: " --dead-letters" }
    : member
      ? { query: `&member=${member}`, option: ` --member ${member}` }
      : { query: "", option: "" };
  return (
    <Card
      title={letters ? "Dead letters" : "Rows"}
      note={
        data &&
        `the newest ${exact(data.rows.length)} of ` +
          `${member && !letters ? member : count(letters ? object.dead_letters : object.rows)}, ` +
          `from stream ${object.stream}`
      }>
      <div className="inline filters" role="search" aria-label="Filter">
        <div className="choice" role="group" aria-label="Show">
          <button type="button" aria-pressed={!letters} onClick={() => set({ letters: undefined })}>
            Rows
          </button>
          <button type="button" aria-pressed={Boolean(letters)} onClick={() => set({ letters: true })}>
            Dead letters
          </button>
        </div>
        <label>
          Find in these
          <input
            type="search"
            spellCheck={false}
            value={String(found ?? "")}
            onChange={(event) => set({ find: event.target.value || undefined })}
          />
        </label>
        {Boolean(object.report?.tables?.length) && !letters && (
          <label>
            Of table
            <select value={member ?? ""} onChange={(event) => set({ member: event.target.value || undefined })}>
              <option value="">the last written</option>
              {object.report!.tables!.map((one) => (
                <option key={one.name}>{one.name}</option>
              ))}
            </select>
          </label>
        )}
        <label>
          Newest
          <select value={limit} onChange={(event) => set({ limit: Number(event.target.value) })}>
            {LIMITS.map((one) => (
              <option key={one}>{one}</option>
            ))}
          </select>
        </label>
        <CopyAs
          path={`${place(name)}/preview?limit=${limit}${kept.query}`}
          cli={`sluice lake tables preview ${name} --limit ${limit}${kept.option}`}
        />
      </div>
      <LoadFailure error={error} />
      {data && !data.rows.length && (
        <Empty>
          {letters
            ? "No record was dead-lettered: all of them fit the columns."
            : object.state === "running"
              ? "The stream has given no row yet."
              : "No row has been written yet; Spark takes some seconds to start."}
        </Empty>
      )}
      {data && data.rows.length > 0 && !shown.length && (
        <Empty>
          None of these rows contains “{String(found)}”.{" "}
          <button type="button" className="quiet" onClick={() => set({ find: undefined })}>
            Show all
          </button>
        </Empty>
      )}
      {letters && shown.length > 0 && (
        <div className="buttons">
          {chosen.length > 0 && mayReplay && (
            <Link className="button primary" to="." search={tab("replay", { records: chosen.map(recordOf) })}>
              Replay {chosen.length} selected…
            </Link>
          )}
          <button
            type="button"
            onClick={() =>
              download(
                `${name}-dead-letters`,
                "ndjson",
                new Blob(
                  (chosen.length ? chosen : shown).map((one) => `${JSON.stringify(one)}\n`),
                  { type: "application/x-ndjson" },
                ),
              )
            }>
            Export {chosen.length ? `${chosen.length} selected` : `the ${shown.length} shown`}
          </button>
        </div>
      )}
      {shown.length > 0 && (
        <Table
          label={letters ? "Dead letters of the table" : "Rows of the table"}
          kind="rows tall"
          rows={shown}
          keyOf={(row, at) => `${recordOf(row)} ${at}`}
          columns={[
            ...(letters ? [select] : []),
            { title: "Message", kind: "fit", show: (row) => <ToMessage stream={object.stream} row={row} /> },
            ...columns.map((title) => ({
              title,
              kind: title === "_error" ? ("why" as const) : ours(title) ? ("ours" as const) : undefined,
              show: (row: Members) => cell(row[title]),
              exact: (row: Members) => (typeof row[title] === "number" ? String(row[title]) : cell(row[title])),
            })),
            {
              title: "Do",
              head: <span className="hidden">Do</span>,
              kind: "num verbs" as const,
              show: (row: Members) => {
                const [shard, offset] = placeOf(row);
                const became = letters
                  ? `When it was read, it became a dead letter of table ${name}: ${row._error}`
                  : `When it was read, it became this row of table ${member ?? name}:`;
                return (
                  <ExplainButton
                    topic={String(row._topic ?? "")}
                    of={() => originalOf(object.stream, shard, offset)}
                    then={became}
                    rows={letters ? [] : [Object.fromEntries(Object.entries(row).filter(([title]) => !ours(title)))]}
                  />
                );
              },
            },
          ]}
        />
      )}
    </Card>
  );
}

const recordOf = ({ _shard, _offset }: Members) => `${Number(_shard ?? 0)}/${String(_offset ?? "")}`;

const placeOf = (row: Members): [number, string] => [Number(row._shard ?? 0), String(row._offset ?? "")];

/** The record that a row comes from. */
function ToMessage({ stream, row }: { stream: string; row: Members }) {
  const [shard, offset] = placeOf(row);
  return (
    <Link
      to="/$kind/$name"
      params={{ kind: "streams", name: stream }}
      search={recordsFrom(shard, offset, offset)}
      aria-label={`Message ${offset} of shard ${shard}`}>
      {offset}
    </Link>
  );
}
