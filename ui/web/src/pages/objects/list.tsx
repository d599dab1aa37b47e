// The list of any kind of objects: only the rows in view are drawn, and only those near the view are followed.

import { Link, useParams } from "@tanstack/react-router";
import { useVirtualizer } from "@tanstack/react-virtual";
import { Suspense, useEffect, useRef, useState } from "react";
import { type Kind, kindOf, resourceOf } from "../../api/kinds";
import { useList } from "../../api/live";
import { lazyPart } from "../../api/modules";
import { useMay } from "../../api/rights";
import { causeOf, Empty, Loading, ObjectLink, State, stateOf, Why } from "../../parts/card";
import { CopyAs } from "../../parts/copy-as";
import { useKeptFocus } from "../../parts/focus";
import { exact } from "../../parts/format";
import { quoted } from "../../parts/schema-form";
import type { Column } from "../../parts/table";
import { keepTimeZone } from "../../parts/time";
import { columnOf } from "../../parts/value";
import { useKindPage } from "../registry";
import { NotFound } from "./detail";
import { ObjectMenu, type Row } from "./menu";
import { filledIn, Selected, Toolbar, Typed, useListSearch, useSetSearch } from "./toolbar";

const STEP = 50; // windows of the list begin at multiples
const SETTLE_MS = 50;
const ROW_PX = 36;

const ResourceList = lazyPart(() => import("./resource-list"));

/** The page of a list; without a path that of the address. */
export function ListPage({ path: known }: { path?: string }) {
  const { kind: inAddress } = useParams({ strict: false }) as { kind?: string };
  const path = known ?? inAddress!;
  const [kind, resource] = [kindOf(path), resourceOf(path)];
  if (kind) return <List key={path} kind={kind} />;
  if (!resource) return <NotFound />;
  return (
    <Suspense fallback={<Loading />}>
      <ResourceList key={path} resource={resource} />
    </Suspense>
  );
}

function List({ kind }: { kind: Kind }) {
  const page = useKindPage(kind);
  const search = useListSearch();
  const set = useSetSearch();
  const query: Record<string, string> = {
    ...(search.q && { like_name: search.q }),
    ...(search.state && { state: search.state }),
    ...filledIn(kind.filters, search),
  };
  const [position, setPosition] = useState(0);
  const { list, problem } = useList<Row>(kind.api, { filters: query, position, limit: 3 * STEP }, page !== undefined);
  const known = useRef(list);
  if (list) known.current = list; // until the next ones arrive, the rows before are shown
  const { total, isEstimate, items: rows } = known.current ?? { items: [] };
  const seen = useRef(new Set<string>());
  [...rows.map(stateOf), search.state].forEach((state) => state && seen.current.add(state));
  const states = [...seen.current].sort();
  const queryText = new URLSearchParams(query).toString();
  const may = useMay();
  const kept = useKeptFocus();
  const canCreate = kind.writes.includes("create") && may(kind.right, "change");
  const columns = kind.columns.map((declared): Column<Row> => {
    const drawn = page?.cells?.[declared.title];
    return drawn ? { ...drawn, title: declared.title } : columnOf(declared, rows);
  });
  return (
    <div className="page">
      <div className="title">
        <div>
          <h1>
            {kind.many}{" "}
            {total !== undefined && (
              <span className="muted total">
                {isEstimate && "at least "}
                {exact(total)}
              </span>
            )}
          </h1>
          <p className="muted">{quoted(kind.purpose)}</p>
        </div>
        <div className="buttons">
          {canCreate && (
            <Link className="button primary" to={`/new/${kind.path}` as never} search={keepTimeZone as never}>
              New {kind.one.toLowerCase()}
            </Link>
          )}
          {may("audit-entries", "read") && (
            <Link
              className="button"
              to={"/audit-log" as never}
              search={((known: { tz?: string }) => ({ ...keepTimeZone(known), kind: kind.name })) as never}>
              History
            </Link>
          )}
          <CopyAs path={queryText ? `${kind.api}?${queryText}` : kind.api} cli={`sluice ${kind.cli} ls`} />
        </div>
      </div>
      {page?.above?.()}
      <section className="card" aria-label={kind.many} {...kept}>
        <Toolbar filters={kind.filters} shown={`${exact(total ?? 0)} shown`}>
          <Typed label="Name" value={search.q ?? ""} onChange={(value) => set({ q: value || undefined })} />
          {(states.length > 1 || search.state) && (
            <Selected
              label="State"
              value={search.state ?? ""}
              values={states}
              onChange={(value) => set({ state: value || undefined })}
            />
          )}
        </Toolbar>
        {problem && (
          <p role="alert">
            <State state="failed">{problem.detail}</State>
          </p>
        )}
        {total === undefined && !problem && <Loading />}
        {total === 0 && (
          <Empty command={queryText || !canCreate ? undefined : `sluice ${kind.cli} apply -f -`}>
            {queryText
              ? "None matches."
              : `There is no ${kind.one.toLowerCase()} yet.${canCreate ? " Create one here, or in a shell." : ""}`}
          </Empty>
        )}
        {total !== undefined && total > 0 && page && (
          <Rows
            kind={kind}
            columns={columns}
            isWhole={!queryText}
            rows={rows}
            first={known.current!.position}
            total={total}
            onView={setPosition}
          />
        )}
      </section>
    </div>
  );
}

function Rows({
  kind,
  columns,
  isWhole,
  rows,
  first,
  total,
  onView,
}: {
  kind: Kind;
  columns: Column<Row>[];
  isWhole: boolean;
  rows: Row[];
  first: number;
  total: number;
  onView: (position: number) => void;
}) {
  const place = useRef<HTMLDivElement>(null);
  const virtual = useVirtualizer({
    count: total,
    getScrollElement: () => place.current,
    estimateSize: () => ROW_PX,
    overscan: 12,
  });
  const drawn = virtual.getVirtualItems();
  const wanted = Math.max(0, Math.floor((drawn[0]?.index ?? 0) / STEP) * STEP);
  useEffect(() => {
    const timer = setTimeout(() => onView(wanted), SETTLE_MS); // not each window that is scrolled past
    return () => clearTimeout(timer);
  }, [wanted]);
  const [above, below] = [drawn[0]?.start ?? 0, virtual.getTotalSize() - (drawn.at(-1)?.end ?? 0)];
  const hasOrder = kind.isOrdered && isWhole;
  const width = columns.length + (hasOrder ? 4 : 3);
  const hasState = rows.some((row) => stateOf(row) !== "");
  return (
    <div className="scroll list cards" ref={place} role="group" aria-label={`${kind.many}, rows`} tabIndex={0}>
      <table role="table" aria-rowcount={total + 1}>
        <thead role="rowgroup">
          <tr role="row">
            {hasOrder && (
              <th role="columnheader" scope="col">
                Order
              </th>
            )}
            <th role="columnheader" scope="col">
              Name
            </th>
            {hasState && (
              <th role="columnheader" scope="col">
                State
              </th>
            )}
            {columns.map(({ title, kind }) => (
              <th key={title} role="columnheader" scope="col" className={kind}>
                {title}
              </th>
            ))}
            <th role="columnheader" scope="col">
              <span className="hidden">Do</span>
            </th>
          </tr>
        </thead>
        <tbody role="rowgroup">
          {above > 0 && (
            <tr aria-hidden="true">
              <td colSpan={width} style={{ height: above }} />
            </tr>
          )}
          {drawn.map(({ index }) => {
            const row = rows[index - first];
            if (!row)
              return (
                <tr key={index} role="row" data-index={index} aria-rowindex={index + 2} aria-busy="true">
                  <td role="cell" colSpan={width} style={{ height: ROW_PX }}>
                    …
                  </td>
                </tr>
              );
            return (
              <tr key={row.name} role="row" data-index={index} ref={virtual.measureElement} aria-rowindex={index + 2}>
                {hasOrder && (
                  <td role="cell" data-title="Order" className="fit">
                    {index + 1}
                  </td>
                )}
                <td role="cell">
                  <ObjectLink kind={kind.path} name={row.name} />
                </td>
                {hasState && (
                  <td role="cell" data-title="State" className="fit">
                    <div>
                      {stateOf(row) && <State state={stateOf(row)} />}
                      <Why>{causeOf(row)}</Why>
                    </div>
                  </td>
                )}
                {!row.isCut ? (
                  columns.map((column) => (
                    <td
                      key={column.title}
                      role="cell"
                      data-title={column.title}
                      className={column.kind}
                      title={column.exact?.(row)}>
                      <div>{column.show(row)}</div>
                    </td>
                  ))
                ) : (
                  <td role="cell" colSpan={columns.length} className="muted">
                    Too large for the list; open it.
                  </td>
                )}
                <td role="cell" className="num verbs">
                  <ObjectMenu kind={kind} row={row} before={rows[index - first - 1]} after={rows[index - first + 1]} />
                </td>
              </tr>
            );
          })}
          {below > 0 && (
            <tr aria-hidden="true">
              <td colSpan={width} style={{ height: below }} />
            </tr>
          )}
        </tbody>
      </table>
    </div>
  );
}
