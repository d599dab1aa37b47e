// A list of live things as it is declared: the server filters, sorts and pages it, and the page shows one page of it.

import { keepPreviousData, useQuery } from "@tanstack/react-query";
import { Link } from "@tanstack/react-router";
import { useEffect, useState } from "react";
import { getAny } from "../../api/client";
import { capitalized, isOffered, type List, requestOf, type Resource } from "../../api/kinds";
import { useEvery } from "../../api/live";
import { useMay } from "../../api/rights";
import { Empty, LoadFailure, Loading, ObjectLink } from "../../parts/card";
import { word } from "../../parts/copy";
import { CopyAs } from "../../parts/copy-as";
import { ExplainButton, isMessage, itemOriginal } from "../../parts/explaining";
import { useKeptFocus } from "../../parts/focus";
import { counted, exact } from "../../parts/format";
import { quoted } from "../../parts/schema-form";
import { type Column, Table, useSelection } from "../../parts/table";
import { keepTimeZone } from "../../parts/time";
import { columnOf } from "../../parts/value";
import { filledIn, Toolbar, useListSearch, useSetSearch } from "./toolbar";
import { useVerbs, VerbButtons, VerbMenu, verbsOf, verbsOfList, verbsOfMany } from "./verbs";

type Members = Record<string, unknown>;
interface Page {
  items: Members[];
  next: string | null;
  total?: number | null;
  total_is_estimate?: boolean;
  incomplete?: { cell: number; why: string }[];
}

const ROWS = 50; // of a page
const EVERY_MS = 3000;

export default function ResourceList({ resource }: { resource: Resource }) {
  const search = useListSearch();
  const { lists } = resource;
  const list = lists.find(({ path }) => path === search.view) ?? lists[0]!;
  return (
    <div className="page">
      <Content key={list.path} resource={resource} list={list} />
    </div>
  );
}

function Views({ resource: { lists, many }, list }: { resource: Resource; list: List }) {
  if (lists.length < 2) return null;
  return (
    <nav className="tabs" aria-label={`Lists of ${many.toLowerCase()}`}>
      {lists.map((one) => (
        <Link
          key={one.path}
          to="."
          search={((known: { tz?: string }) => ({ ...keepTimeZone(known), view: one.path || undefined })) as never}
          activeOptions={{ exact: true, includeSearch: true, explicitUndefined: true }}
          aria-current={one === list ? "page" : undefined}>
          {capitalized(one.title)}
        </Link>
      ))}
    </nav>
  );
}

function Content({ resource, list }: { resource: Resource; list: List }) {
  const search = useListSearch();
  const setSearch = useSetSearch();
  const filled = filledIn(list.filters, search);
  const sort = list.orders.length ? (search.sort ?? list.order) : undefined;
  const query = { ...filled, sort };
  const text = JSON.stringify(query);
  const [cursors, setCursors] = useState<string[]>([]); // of the pages up to the one that is shown
  useEffect(() => setCursors([]), [text]);
  const cursor = cursors.at(-1);
  const path = `${resource.api}${list.path}`;
  const { data, error, isPlaceholderData } = useQuery({
    queryKey: ["resource", path, query, cursor],
    queryFn: ({ signal }) =>
      getAny<Page>(path, { query: { ...query, ...(list.is_paged && { limit: ROWS, cursor }) }, signal }),
    placeholderData: keepPreviousData,
    refetchInterval: useEvery(EVERY_MS),
  });
  const rows = data?.items ?? [];
  const total = data && (data.total ?? (data.next || cursor ? undefined : rows.length));
  const nameOf = (row: Members) => String(row[resource.key]);
  // rows of a list below the resource, as alarms/history, are no items that still are there
  const hasNames =
    resource.key !== "" && !list.path.startsWith("/") && rows.every((row) => typeof row[resource.key] === "string");
  const [chosen, select] = useSelection(rows, nameOf);
  const kept = useKeptFocus();
  const { ask, dialog, status } = useVerbs(resource);
  const may = useMay();
  const [verbs, many] = [hasNames ? verbsOf(resource) : [], hasNames ? verbsOfMany(resource) : []];
  const cell = rows.some((row) => "cell" in row) ? [{ title: "Cell", member: "cell" }] : []; // where there are several
  const columns = [...list.columns, ...cell].map((declared): Column<Members> => {
    const column = columnOf(declared, rows);
    if (!resource.show || !hasNames || declared.member !== resource.key) return column;
    return { ...column, show: (row) => <ObjectLink kind={resource.path} name={nameOf(row)} /> };
  });
  const hasMessages = resource.show !== null && hasNames && rows.every(isMessage);
  const originalOf = async (name: string) => {
    const { path, query } = requestOf(resource.show!, name);
    return itemOriginal(await getAny(path, { query }));
  };
  const menu: Column<Members> = {
    title: "Do",
    head: <span className="hidden">Do</span>,
    kind: "num verbs",
    show: (row) => (
      <>
        {hasMessages && <ExplainButton topic={String(row.topic)} of={() => originalOf(nameOf(row))} />}
        <VerbMenu verbs={verbs.filter((verb) => isOffered(verb, row))} name={nameOf(row)} ask={ask} />
      </>
    ),
  };
  const isFiltered = Object.keys(filled).length > 0;
  const flags = Object.entries(filled).map(([name, value]) => ` --${name.replaceAll("_", "-")} ${word(value)}`);
  return (
    <>
      <div className="title">
        <div>
          <h1>
            {resource.many}{" "}
            {typeof total === "number" && (
              <span className="muted total">
                {data?.total_is_estimate && "at least "}
                {exact(total)}
              </span>
            )}
          </h1>
          <p className="muted">{quoted(list.text || resource.purpose)}</p>
        </div>
        <div className="buttons">
          {resource.undoneAt && may(resource.right, "change") && (
            <Link className="button" to={`/${resource.undoneAt}` as never} search={keepTimeZone as never}>
              Undo a deletion
            </Link>
          )}
          {resource.export && (
            <a
              className="button"
              href={`/api/v1/${resource.export}?${new URLSearchParams(filled)}`}
              download={`${resource.path}.jsonl`}>
              Download
            </a>
          )}
          <VerbButtons verbs={verbsOfList(resource, list.path)} names={[]} initial={filled} ask={ask} />
          <CopyAs
            path={isFiltered ? `${path}?${new URLSearchParams(filled)}` : path}
            cli={resource.cli && `sluice ${resource.cli} ls${flags.join("")}`}
          />
        </div>
      </div>
      <Views resource={resource} list={list} />
      {status}
      <section className="card" aria-label={capitalized(list.title)} {...kept}>
        {(list.filters.length > 0 || list.orders.length > 0) && (
          <Toolbar filters={list.filters}>
            {list.orders.length > 0 && (
              <Sort list={list} value={sort!} onChange={(value) => setSearch({ sort: value })} />
            )}
          </Toolbar>
        )}
        <LoadFailure error={error} />
        {data?.incomplete && (
          <p className="note" role="status">
            {data.incomplete.map(({ cell, why }) => `Cell ${cell} is missing: ${why}.`).join(" ")}
          </p>
        )}
        {!data && !error && <Loading />}
        {data && !rows.length && !error && (
          <Empty>{isFiltered ? "None matches." : cursor ? "There are no more." : `No ${list.title}.`}</Empty>
        )}
        {rows.length > 0 && (
          <>
            {many.length > 0 && chosen.length > 0 && (
              <div className="buttons">
                <VerbButtons
                  verbs={many}
                  names={chosen.map(nameOf)}
                  suffix={` ${counted(chosen.length, resource.name)}`}
                  ask={ask}
                />
              </div>
            )}
            <Table
              label={`${resource.many}, rows`}
              kind="live"
              rows={rows}
              keyOf={(row, at) => (hasNames ? nameOf(row) : at)}
              columns={[...(many.length ? [select] : []), ...columns, ...(verbs.length || hasMessages ? [menu] : [])]}
            />
          </>
        )}
        {(cursors.length > 0 || data?.next) && (
          <nav className="pager" aria-label="Pages of the list">
            <button type="button" disabled={!cursors.length} onClick={() => setCursors(cursors.slice(0, -1))}>
              Previous
            </button>
            <p className="muted small" role="status">
              {rows.length
                ? `${exact(cursors.length * ROWS + 1)} to ${exact(cursors.length * ROWS + rows.length)}`
                : ""}
              {typeof total === "number" && ` of ${data?.total_is_estimate ? "at least " : ""}${exact(total)}`}
            </p>
            <button
              type="button"
              disabled={!data?.next || isPlaceholderData}
              onClick={() => setCursors([...cursors, data!.next!])}>
              Next
            </button>
          </nav>
        )}
      </section>
      {dialog}
    </>
  );
}

function Sort({ list, value, onChange }: { list: List; value: string; onChange: (value: string) => void }) {
  return (
    <label>
      Sort by
      <select value={value} onChange={(event) => onChange(event.target.value)}>
        {list.orders.flatMap(({ name, label }) => [
          <option key={name} value={name}>
            {label}, ascending
          </option>,
          <option key={`-${name}`} value={`-${name}`}>
            {label}, descending
          </option>,
        ])}
      </select>
    </label>
  );
}
