// The list of any kind of objects: only the rows in view are drawn, and only those near the view are followed.

import { useQueryClient } from "@tanstack/react-query";
import { Link, useNavigate, useParams, useSearch } from "@tanstack/react-router";
import { useVirtualizer } from "@tanstack/react-virtual";
import { useEffect, useRef, useState } from "react";
import { Button, Dialog, DialogTrigger, Menu, MenuItem, MenuTrigger, Modal, ModalOverlay, Popover } from "react-aria-components";
import { call, type Effect, moved, namesOf, Refused, sentence } from "./api";
import { CopyAs } from "./copyas";
import { exact } from "./format";
import { canCreate, type Filter, useKindPage } from "./kind";
import { type Kind, kindOf } from "./kinds";
import { useList } from "./live";
import { NotFound } from "./object";
import { type Column, Empty, ObjectLink, ReadOnly, State, Why } from "./parts";
import { EffectView } from "./saving";

export interface Row { name: string; etag: string; fixed_by?: string | null; [member: string]: unknown }

const STEP = 50; // windows of the list begin at multiples
const SETTLE_MS = 50;
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
  const search = useSearch({ strict: false }) as Record<string, string | undefined>;
  const filters = page?.filters ?? [];
  const query = Object.fromEntries([["like_name", search.q], ...["state", ...filters.map(({ name }) => name)].map((name) => [name, search[name]])].filter(([, value]) => value)) as Record<string, string>;
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
          <h1>{kind.many} {total !== undefined && <span className="muted total">{isEstimate && "at least "}{exact(total)}</span>}</h1>
          <p className="muted">{kind.purpose}</p>
        </div>
        <div className="buttons">
          {canCreate(kind.path) && <Link className="button primary" to="/new/$kind" params={{ kind: kind.path }} search={keepZone as never}>New {kind.one.toLowerCase()}</Link>}
          <CopyAs path={queryText ? `${kind.api}?${queryText}` : kind.api} cli={`sluice ${kind.cli} ls`} />
        </div>
      </div>
      {page?.above?.()}
      <section className="card" aria-label={kind.many}>
        <Toolbar filters={filters} states={[...seen.current].sort()} shown={total ?? 0} />
        {problem && <p role="alert"><State state="failed">{problem.detail}</State></p>}
        {total === 0 && (
          <Empty command={queryText ? undefined : `sluice ${kind.cli} apply -f -`}>
            {queryText ? "None matches." : `There is no ${kind.one.toLowerCase()} yet. ${canCreate(kind.path) ? "Create one here, or in a shell." : "Create one in a shell."}`}
          </Empty>
        )}
        {total !== undefined && total > 0 && page && <Rows kind={kind} columns={page.columns} isWhole={!queryText} rows={rows} first={known.current!.position} total={total} onView={setPosition} />}
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

/** A field whose value goes into the address when the user stops typing. */
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

function Rows({ kind, columns, isWhole, rows, first, total, onView }: { kind: Kind; columns: Column<Row>[]; isWhole: boolean; rows: Row[]; first: number; total: number; onView: (position: number) => void }) {
  const place = useRef<HTMLDivElement>(null);
  const virtual = useVirtualizer({ count: total, getScrollElement: () => place.current, estimateSize: () => ROW_PX, overscan: 12 });
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
        <thead><tr>
          {hasOrder && <th scope="col">Order</th>}<th scope="col">Name</th>{hasState && <th scope="col">State</th>}
          {columns.map(({ title, kind }) => <th key={title} scope="col" className={kind}>{title}</th>)}
          <th scope="col"><span className="hidden">Do</span></th>
        </tr></thead>
        <tbody>
          {above > 0 && <tr aria-hidden="true"><td colSpan={width} style={{ height: above }} /></tr>}
          {drawn.map(({ index }) => {
            const row = rows[index - first];
            if (!row) return <tr key={index} data-index={index} aria-rowindex={index + 2} aria-busy="true"><td colSpan={width} style={{ height: ROW_PX }}>…</td></tr>;
            return (
              <tr key={row.name} data-index={index} ref={virtual.measureElement} aria-rowindex={index + 2}>
                {hasOrder && <td className="fit">{index + 1}</td>}
                <td><ObjectLink kind={kind.path} name={row.name} /></td>
                {hasState && <td className="fit">{stateOf(row) && <State state={stateOf(row)} />}<Why>{causeOf(row)}</Why></td>}
                {!row.isCut ? columns.map((column) => <td key={column.title} className={column.kind} title={column.exact?.(row)}>{column.show(row)}</td>) : <td colSpan={columns.length} className="muted">Too large for the list; open it.</td>}
                <td className="num"><ObjectMenu kind={kind} row={row} before={rows[index - first - 1]} after={rows[index - first + 1]} /></td>
              </tr>
            );
          })}
          {below > 0 && <tr aria-hidden="true"><td colSpan={width} style={{ height: below }} /></tr>}
        </tbody>
      </table>
    </div>
  );
}

interface MenuProps {
  kind: Kind; row: { name: string; etag?: string; enable?: unknown; fixed_by?: string | null };
  /** Those beside it in its list. */
  before?: Row; after?: Row; onDeleted?: () => void;
}

/** The verbs of an object. Destructive ones come last and ask for confirmation with their effect. */
export function ObjectMenu({ kind, row, before, after, onDeleted }: MenuProps) {
  const queries = useQueryClient();
  const [asked, ask] = useState<Pick<Parameters<typeof Confirm>[0], "title" | "method" | "path" | "body" | "etag"> | null>(null);
  const [says, setSays] = useState("");
  const place = `${kind.api}/${encodeURIComponent(row.name)}`;
  const one = `${kind.one.toLowerCase()} ${row.name}`;
  const { etag } = row;
  const verb = row.enable === false ? "Enable" : "Disable";
  /** Ask to put it at the place of another one. */
  const move = async (word: string, other: string) => {
    const order = moved(await namesOf(kind.api), row.name, other);
    ask({ title: `Move ${one} ${word} ${other}`, method: "POST", path: `${kind.api}:reorder`, body: { order } });
  };
  const moves = kind.isOrdered ? ([["before", before], ["after", after]] as const).flatMap(([word, other]) => (other && !other.fixed_by ? [[word, other.name] as const] : [])) : [];
  const act = (key: string) => {
    setSays("");
    const found = moves.find(([word]) => word === key);
    if (found) void move(...found).catch((error) => setSays(sentence(error)));
    else if (key === "delete") ask({ title: `Delete ${one}`, method: "DELETE", path: place, etag });
    else ask({ title: `${verb} ${one}`, method: "POST", path: `${place}:${key}`, etag });
  };
  return (
    <>
      {row.fixed_by && <span className="muted small">read-only </span>}
      <MenuTrigger>
        <Button className="button quiet" aria-label={`Do something with ${row.name}`}>⋯</Button>
        <Popover className="popover small-menu" placement="bottom end">
          {row.fixed_by && <p className="note"><ReadOnly file={row.fixed_by} /></p>}
          <Menu className="menu" aria-label={`Verbs of ${row.name}`} disabledKeys={row.fixed_by ? ["before", "after", "enable", "disable", "delete"] : []} onAction={(key) => act(String(key))}>
            {moves.map(([word, other]) => <MenuItem key={word} id={word} className="item">Move {word} {other}</MenuItem>)}
            {kind.canDisable && <MenuItem id={verb.toLowerCase()} className="item">{verb}</MenuItem>}
            <MenuItem id="delete" className="item err">Delete…</MenuItem>
          </Menu>
        </Popover>
      </MenuTrigger>
      {says && <span role="alert"><State state="failed">{says}</State></span>}
      {asked && <Confirm {...asked} close={() => ask(null)} onDone={() => { void queries.invalidateQueries(); if (asked.method === "DELETE") onDeleted?.(); }} />}
    </>
  );
}

/** Asks what a request would change, shows it, and sends it on confirmation. Without an ``etag``, that of the answer counts.
 *  A deletion of what others use shows those too, and deletes all of them. */
export function Confirm({ title, method, path, body, etag, query = {}, close, onDone }: {
  title: string; method: string; path: string; body?: unknown; etag?: string; query?: Record<string, string | boolean | undefined>; close: () => void; onDone?: () => void;
}) {
  const [{ effect, seen }, show] = useState<{ effect?: Effect; seen?: string }>({});
  const [says, setSays] = useState("");
  const [cascade, setCascade] = useState<true | undefined>();
  const ask = async (cascade?: true) => {
    const answer = await call<Effect>(method, path, { body, etag, query: { ...query, cascade, dry_run: true } });
    show({ effect: answer.body, seen: answer.etag });
  };
  useEffect(() => {
    ask().catch((error) => {
      if (method !== "DELETE" || !(error instanceof Refused) || error.problem?.code !== "in_use") throw error;
      setCascade(true);
      return ask(true);
    }).catch((error) => setSays(sentence(error)));
  }, []);
  const verb = cascade ? "Delete all" : title.split(" ")[0];
  const go = async () => {
    try {
      await call(method, path, { body, etag: etag ?? seen, query: { ...query, cascade } });
      close();
      onDone?.();
    } catch (error) {
      setSays(sentence(error));
    }
  };
  return (
    <ModalOverlay isDismissable isOpen onOpenChange={(open) => !open && close()} className="overlay">
      <Modal className="modal">
        <Dialog className="dialog" role="alertdialog" aria-label={title}>
          <h2>{title}?</h2>
          {cascade && <p>Other objects use it. They would be deleted too.</p>}
          {effect ? <EffectView effect={effect} /> : !says && <p className="muted" role="status">Asking the server what this changes…</p>}
          <div role="alert">{says && <State state="failed">{says}</State>}</div>
          <div className="buttons">
            <button type="button" className={method === "DELETE" ? "danger" : "primary"} disabled={!effect} onClick={() => void go()}>{verb}</button>
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
