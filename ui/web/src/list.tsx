// The list of any kind of objects: only the rows in view are drawn, and further pages are fetched as they come near.

import { keepPreviousData, useInfiniteQuery, useQueryClient } from "@tanstack/react-query";
import { Link, useNavigate, useParams, useSearch } from "@tanstack/react-router";
import { useVirtualizer } from "@tanstack/react-virtual";
import { useEffect, useMemo, useRef, useState } from "react";
import { Button, Dialog, DialogTrigger, Menu, MenuItem, MenuTrigger, Modal, ModalOverlay, Popover } from "react-aria-components";
import { call, type Effect, getAny, sentence } from "./api";
import { CopyAs } from "./copyas";
import { exact } from "./format";
import { canCreate, type Filter, useKindPage } from "./kind";
import { type Kind, kindOf } from "./kinds";
import { useEvery } from "./live";
import { NotFound } from "./object";
import { type Column, Empty, ObjectLink, State, Why } from "./parts";
import { EffectView } from "./saving";

export interface Row { name: string; etag: string; [member: string]: unknown }
interface Page { items: Row[]; next: string | null; total: number | null; total_is_estimate: boolean }

const PAGE = 100;
const ROW_PX = 36;

export const stateOf = (row: Record<string, unknown>) => String(row.enable === false ? "disabled" : (row.state ?? row.status ?? ""));
export const causeOf = (row: Record<string, unknown>) => {
  const cause = row.problem ?? row.reason ?? row.status_reason;
  return typeof cause === "string" ? cause : "";
};

export function ListPage() {
  const { kind: path } = useParams({ strict: false }) as { kind: string };
  const kind = kindOf(path);
  return kind ? <List key={path} kind={kind} /> : <NotFound />;
}

function List({ kind }: { kind: Kind }) {
  const page = useKindPage(kind.path);
  const every = useEvery(2000);
  const search = useSearch({ strict: false }) as Record<string, string | undefined>;
  const filters = page?.filters ?? [];
  const query: Record<string, string | undefined> = Object.fromEntries([["like_name", search.q], ...filters.map(({ name }) => [name, search[name]])]);
  const { data, error, fetchNextPage, hasNextPage, isFetchingNextPage } = useInfiniteQuery({
    queryKey: ["list", kind.path, query],
    queryFn: ({ pageParam, signal }) => getAny<Page>(kind.api, { query: { ...query, limit: PAGE, cursor: pageParam }, signal }),
    initialPageParam: undefined as string | undefined,
    getNextPageParam: ({ next }) => next ?? undefined,
    enabled: page !== undefined,
    placeholderData: keepPreviousData,
    refetchInterval: ({ state }) => every && every * (state.data?.pages.length || 1), // one page in two seconds
  });
  const all = useMemo(() => data?.pages.flatMap(({ items }) => items) ?? [], [data]);
  const rows = useMemo(() => all.filter((row) => !search.state || stateOf(row) === search.state), [all, search.state]);
  useEffect(() => {
    if (search.state && hasNextPage && !isFetchingNextPage) void fetchNextPage(); // a state is known to the rows only
  }, [search.state, hasNextPage, isFetchingNextPage]);
  const states = useMemo(() => [...new Set([...all.map(stateOf), search.state ?? ""])].filter(Boolean).sort(), [all, search.state]);
  const total = data?.pages[0]?.total;
  const queryText = new URLSearchParams(Object.entries(query).flatMap(([name, value]) => (value ? [[name, value]] : []))).toString();
  return (
    <div className="page">
      <div className="title">
        <div>
          <h1>{kind.many} {total !== undefined && total !== null && <span className="muted total">{data?.pages[0]?.total_is_estimate && "about "}{exact(total)}</span>}</h1>
          <p className="muted">{kind.purpose}</p>
        </div>
        <div className="buttons">
          {canCreate(kind.path) && <Link className="button primary" to="/new/$kind" params={{ kind: kind.path }} search={keepZone as never}>New {kind.one.toLowerCase()}</Link>}
          <CopyAs path={queryText ? `${kind.api}?${queryText}` : kind.api} cli={`sluice ${kind.cli} ls`} />
        </div>
      </div>
      {page?.above?.()}
      <section className="card" aria-label={kind.many}>
        <Toolbar filters={filters} states={states} shown={rows.length} />
        {error && <p role="alert"><State state="failed">{sentence(error)}</State></p>}
        {data && !rows.length && (
          <Empty command={total || queryText ? undefined : `sluice ${kind.cli} apply -f -`}>
            {total || queryText ? "None matches." : `There is no ${kind.one.toLowerCase()} yet. ${canCreate(kind.path) ? "Create one here, or in a shell." : "Create one in a shell."}`}
          </Empty>
        )}
        {rows.length > 0 && page && <Rows kind={kind} columns={page.columns} rows={rows} total={total ?? rows.length} more={hasNextPage ? () => void fetchNextPage() : null} />}
      </section>
    </div>
  );
}

export const keepZone = ({ tz }: { tz?: string }) => ({ tz });

function Toolbar({ filters, states, shown }: { filters: Filter[]; states: string[]; shown: number }) {
  const search = useSearch({ strict: false }) as Record<string, string | undefined>;
  const navigate = useNavigate();
  const set = (name: string, value: string) => void navigate({ to: ".", search: (known: object) => ({ ...known, [name]: value || undefined }), replace: true } as never);
  return (
    <form className="inline filters" role="search" aria-label="Filters" onSubmit={(event) => event.preventDefault()}>
      <Typed label="Name" value={search.q ?? ""} onChange={(value) => set("q", value)} />
      {states.length > 1 || search.state ? (
        <label>State
          <select value={search.state ?? ""} onChange={(event) => set("state", event.target.value)}>
            <option value="">any</option>{states.map((one) => <option key={one}>{one}</option>)}
          </select>
        </label>
      ) : null}
      {filters.map(({ name, label, values }) => (values ? (
        <label key={name}>{label}
          <select value={search[name] ?? ""} onChange={(event) => set(name, event.target.value)}><option value="">any</option>{values.map((one) => <option key={one}>{one}</option>)}</select>
        </label>
      ) : <Typed key={name} label={label} value={search[name] ?? ""} onChange={(value) => set(name, value)} />))}
      <p className="muted small" role="status">{exact(shown)} shown</p>
    </form>
  );
}

/** A field whose value reaches the address when typing rests. */
function Typed({ label, value, onChange }: { label: string; value: string; onChange: (value: string) => void }) {
  const [text, setText] = useState(value);
  useEffect(() => setText(value), [value]);
  useEffect(() => {
    if (text === value) return;
    const timer = setTimeout(() => onChange(text), 200);
    return () => clearTimeout(timer);
  }, [text]);
  return <label>{label}<input type="search" spellCheck={false} value={text} onChange={(event) => setText(event.target.value)} /></label>;
}

function Rows({ kind, columns, rows, total, more }: { kind: Kind; columns: Column<Row>[]; rows: Row[]; total: number; more: (() => void) | null }) {
  const place = useRef<HTMLDivElement>(null);
  const virtual = useVirtualizer({ count: rows.length, getScrollElement: () => place.current, estimateSize: () => ROW_PX, overscan: 12, getItemKey: (at) => rows[at]!.name });
  const drawn = virtual.getVirtualItems();
  const last = drawn.at(-1)?.index ?? 0;
  useEffect(() => {
    if (more && last > rows.length - PAGE / 2) more();
  }, [last, rows.length, more !== null]);
  const [above, below] = [drawn[0]?.start ?? 0, virtual.getTotalSize() - (drawn.at(-1)?.end ?? 0)];
  const width = columns.length + 3;
  const hasState = rows.some((row) => stateOf(row) !== "");
  return (
    <div className="scroll list" ref={place} role="group" aria-label={`${kind.many}, rows`} tabIndex={0}>
      <table aria-rowcount={total + 1}>
        <thead><tr>
          <th scope="col">Name</th>{hasState && <th scope="col">State</th>}
          {columns.map(({ title, kind }) => <th key={title} scope="col" className={kind}>{title}</th>)}
          <th scope="col"><span className="hidden">Do</span></th>
        </tr></thead>
        <tbody>
          {above > 0 && <tr aria-hidden="true"><td colSpan={width} style={{ height: above }} /></tr>}
          {drawn.map(({ index }) => {
            const row = rows[index]!;
            return (
              <tr key={row.name} data-index={index} ref={virtual.measureElement} aria-rowindex={index + 2}>
                <td><ObjectLink kind={kind.path} name={row.name} /></td>
                {hasState && <td className="fit">{stateOf(row) && <State state={stateOf(row)} />}<Why>{causeOf(row)}</Why></td>}
                {columns.map((column) => <td key={column.title} className={column.kind} title={column.exact?.(row)}>{column.show(row)}</td>)}
                <td className="num"><ObjectMenu kind={kind} row={row} /></td>
              </tr>
            );
          })}
          {below > 0 && <tr aria-hidden="true"><td colSpan={width} style={{ height: below }} /></tr>}
        </tbody>
      </table>
    </div>
  );
}

/** What can be done to one object. What is dangerous stands at the end, and says first what it would do. */
export function ObjectMenu({ kind, row, onDeleted }: { kind: Kind; row: { name: string; etag?: string; enable?: unknown }; onDeleted?: () => void }) {
  const queries = useQueryClient();
  const [doing, setDoing] = useState<string | null>(null);
  const place = `${kind.api}/${encodeURIComponent(row.name)}`;
  const isOn = row.enable !== false;
  const verb = isOn ? "disable" : "enable";
  return (
    <>
      <MenuTrigger>
        <Button className="button quiet" aria-label={`Do something with ${row.name}`}>⋯</Button>
        <Popover className="popover small-menu" placement="bottom end">
          <Menu className="menu" onAction={(key) => setDoing(String(key))}>
            {kind.canDisable && <MenuItem id={verb} className="item">{isOn ? "Disable" : "Enable"}</MenuItem>}
            <MenuItem id="delete" className="item err">Delete…</MenuItem>
          </Menu>
        </Popover>
      </MenuTrigger>
      {doing !== null && (
        <Confirm
          title={`${doing === "delete" ? "Delete" : doing === "disable" ? "Disable" : "Enable"} ${kind.one.toLowerCase()} ${row.name}`}
          method={doing === "delete" ? "DELETE" : "POST"} path={doing === "delete" ? place : `${place}:${doing}`} etag={row.etag}
          close={() => setDoing(null)} onDone={() => { void queries.invalidateQueries(); if (doing === "delete") onDeleted?.(); }}
        />
      )}
    </>
  );
}

/** Asks what a request would change, shows it, and sends it on confirmation. */
export function Confirm({ title, method, path, body, etag, query = {}, close, onDone }: {
  title: string; method: string; path: string; body?: unknown; etag?: string; query?: Record<string, string | boolean | undefined>; close: () => void; onDone: () => void;
}) {
  const [effect, setEffect] = useState<Effect | null>(null);
  const [says, setSays] = useState("");
  useEffect(() => {
    call<Effect>(method, path, { body, etag, query: { ...query, dry_run: true } }).then((answer) => setEffect(answer.body), (error) => setSays(sentence(error)));
  }, []);
  const go = async () => {
    try {
      await call(method, path, { body, etag, query });
      close();
      onDone();
    } catch (error) {
      setSays(sentence(error));
    }
  };
  return (
    <ModalOverlay isDismissable isOpen onOpenChange={(open) => !open && close()} className="overlay">
      <Modal className="modal">
        <Dialog className="dialog" role="alertdialog" aria-label={title}>
          <h2>{title}?</h2>
          {effect ? <EffectView effect={effect} /> : !says && <p className="muted" role="status">Asking the server what this changes…</p>}
          <div role="alert">{says && <State state="failed">{says}</State>}</div>
          <div className="buttons">
            <button type="button" className={method === "DELETE" ? "danger" : "primary"} disabled={!effect} onClick={() => void go()}>{title.split(" ")[0]}</button>
            <Button slot="close" className="button">Cancel</Button>
          </div>
        </Dialog>
      </Modal>
    </ModalOverlay>
  );
}

/** A button that opens a dialog. */
export function Opens({ label, title, children }: { label: string; title: string; children: (close: () => void) => React.ReactNode }) {
  return (
    <DialogTrigger>
      <Button className="button">{label}</Button>
      <ModalOverlay isDismissable className="overlay"><Modal className="modal"><Dialog className="dialog" aria-label={title}>{({ close }) => children(close)}</Dialog></Modal></ModalOverlay>
    </DialogTrigger>
  );
}
