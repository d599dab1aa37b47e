// The list of any kind of objects: only the rows in view are drawn, and only those near the view are followed.

import { Link, useNavigate, useParams, useSearch } from "@tanstack/react-router";
import { useVirtualizer } from "@tanstack/react-virtual";
import { useEffect, useRef, useState } from "react";
import { type Kind, kindOf } from "../../api/kinds";
import { useList } from "../../api/live";
import { causeOf, Empty, ObjectLink, State, stateOf, Why } from "../../parts/card";
import { CopyAs } from "../../parts/copy";
import { exact } from "../../parts/format";
import type { Filter } from "../../parts/kind-page";
import type { Column } from "../../parts/table";
import { keepTimeZone } from "../../parts/time";
import { canCreate, useKindPage } from "../registry";
import { NotFound } from "./detail";
import { ObjectMenu, type Row } from "./menu";

const STEP = 50; // windows of the list begin at multiples
const SETTLE_MS = 50;
const ROW_PX = 36;

export function ListPage() {
  const { kind: path } = useParams({ strict: false }) as { kind: string };
  const kind = kindOf(path);
  return kind ? <List key={path} kind={kind} /> : <NotFound />;
}

function List({ kind }: { kind: Kind }) {
  const page = useKindPage(kind.path);
  const search = useSearch({ strict: false }) as Record<string, string | undefined>;
  const filters = page?.filters ?? [];
  const query = Object.fromEntries(
    [
      ["like_name", search.q],
      ...["state", ...filters.map(({ name }) => name)].map((name) => [name, search[name]]),
    ].filter(([, value]) => value),
  ) as Record<string, string>;
  const [position, setPosition] = useState(0);
  const { list, problem } = useList<Row>(kind.api, { filters: query, position, limit: 3 * STEP }, page !== undefined);
  const known = useRef(list);
  if (list) known.current = list; // until the next ones arrive, the rows before are shown
  const { total, isEstimate, items: rows } = known.current ?? { items: [] };
  const seen = useRef(new Set<string>());
  [...rows.map(stateOf), search.state].forEach((state) => state && seen.current.add(state));
  const queryText = new URLSearchParams(query).toString();
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
          <p className="muted">{kind.purpose}</p>
        </div>
        <div className="buttons">
          {canCreate(kind.path) && (
            <Link
              className="button primary"
              to="/new/$kind"
              params={{ kind: kind.path }}
              search={keepTimeZone as never}>
              New {kind.one.toLowerCase()}
            </Link>
          )}
          <CopyAs path={queryText ? `${kind.api}?${queryText}` : kind.api} cli={`sluice ${kind.cli} ls`} />
        </div>
      </div>
      {page?.above?.()}
      <section className="card" aria-label={kind.many}>
        <Toolbar filters={filters} states={[...seen.current].sort()} shown={total ?? 0} />
        {problem && (
          <p role="alert">
            <State state="failed">{problem.detail}</State>
          </p>
        )}
        {total === 0 && (
          <Empty command={queryText ? undefined : `sluice ${kind.cli} apply -f -`}>
            {queryText
              ? "None matches."
              : `There is no ${kind.one.toLowerCase()} yet. ` +
                (canCreate(kind.path) ? "Create one here, or in a shell." : "Create one in a shell.")}
          </Empty>
        )}
        {total !== undefined && total > 0 && page && (
          <Rows
            kind={kind}
            columns={page.columns}
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

function Toolbar({ filters, states, shown }: { filters: Filter[]; states: string[]; shown: number }) {
  const search = useSearch({ strict: false }) as Record<string, string | undefined>;
  const navigate = useNavigate();
  const set = (name: string, value: string) =>
    void navigate({
      to: ".",
      search: (known: object) => ({ ...known, [name]: value || undefined }),
      replace: true,
    } as never);
  return (
    <form className="inline filters" role="search" aria-label="Filters" onSubmit={(event) => event.preventDefault()}>
      <Typed label="Name" value={search.q ?? ""} onChange={(value) => set("q", value)} />
      {states.length > 1 || search.state ? (
        <label>
          State
          <select value={search.state ?? ""} onChange={(event) => set("state", event.target.value)}>
            <option value="">any</option>
            {states.map((one) => (
              <option key={one}>{one}</option>
            ))}
          </select>
        </label>
      ) : null}
      {filters.map(({ name, label, values }) =>
        values ? (
          <label key={name}>
            {label}
            <select value={search[name] ?? ""} onChange={(event) => set(name, event.target.value)}>
              <option value="">any</option>
              {values.map((one) => (
                <option key={one}>{one}</option>
              ))}
            </select>
          </label>
        ) : (
          <Typed key={name} label={label} value={search[name] ?? ""} onChange={(value) => set(name, value)} />
        ),
      )}
      <p className="muted small" role="status">
        {exact(shown)} shown
      </p>
    </form>
  );
}

/** A field whose value goes into the address when the user stops typing. */
function Typed({ label, value, onChange }: { label: string; value: string; onChange: (value: string) => void }) {
  const [text, setText] = useState(value);
  useEffect(() => setText(value), [value]);
  useEffect(() => {
    if (text === value) return;
    const timer = setTimeout(() => onChange(text), 200);
    return () => clearTimeout(timer);
  }, [text]);
  return (
    <label>
      {label}
      <input type="search" spellCheck={false} value={text} onChange={(event) => setText(event.target.value)} />
    </label>
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
    <div className="scroll list" ref={place} role="group" aria-label={`${kind.many}, rows`} tabIndex={0}>
      <table aria-rowcount={total + 1}>
        <thead>
          <tr>
            {hasOrder && <th scope="col">Order</th>}
            <th scope="col">Name</th>
            {hasState && <th scope="col">State</th>}
            {columns.map(({ title, kind }) => (
              <th key={title} scope="col" className={kind}>
                {title}
              </th>
            ))}
            <th scope="col">
              <span className="hidden">Do</span>
            </th>
          </tr>
        </thead>
        <tbody>
          {above > 0 && (
            <tr aria-hidden="true">
              <td colSpan={width} style={{ height: above }} />
            </tr>
          )}
          {drawn.map(({ index }) => {
            const row = rows[index - first];
            if (!row)
              return (
                <tr key={index} data-index={index} aria-rowindex={index + 2} aria-busy="true">
                  <td colSpan={width} style={{ height: ROW_PX }}>
                    …
                  </td>
                </tr>
              );
            return (
              <tr key={row.name} data-index={index} ref={virtual.measureElement} aria-rowindex={index + 2}>
                {hasOrder && <td className="fit">{index + 1}</td>}
                <td>
                  <ObjectLink kind={kind.path} name={row.name} />
                </td>
                {hasState && (
                  <td className="fit">
                    {stateOf(row) && <State state={stateOf(row)} />}
                    <Why>{causeOf(row)}</Why>
                  </td>
                )}
                {!row.isCut ? (
                  columns.map((column) => (
                    <td key={column.title} className={column.kind} title={column.exact?.(row)}>
                      {column.show(row)}
                    </td>
                  ))
                ) : (
                  <td colSpan={columns.length} className="muted">
                    Too large for the list; open it.
                  </td>
                )}
                <td className="num">
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
