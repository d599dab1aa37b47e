// The small parts that pages are made of.

import { Link } from "@tanstack/react-router";
import { createContext, type ReactNode, useContext, useState } from "react";
import { mark } from "./format";

export function State({ state, children, tone = state }: { state: string; children?: ReactNode; tone?: string }) {
  const [shape, kind] = mark(tone);
  return <span className={`state ${kind}`} data-mark={shape}>{children ?? state}</span>;
}

const FixedBy = createContext<string | null>(null);

/** What is shown of an object that a file fixes, which the page cannot change. Without ``value`` there is no such file. */
export const InFile = FixedBy.Provider;

/** Whether a file fixes the object of the page. */
export const useFixed = () => useContext(FixedBy) !== null;

/** Fields of an object, disabled where a file fixes it. */
export const Changeable = ({ children }: { children: ReactNode }) => <fieldset className="changeable" disabled={useFixed()}>{children}</fieldset>;

export const ReadOnly = ({ file }: { file: string }) => <>Read-only: the file <code>{file}</code> fixes it. Change it there, then run <code>sluice config reload</code>.</>;

export function Card({ title, note, children, id }: { title: string; note?: ReactNode; children: ReactNode; id?: string }) {
  return (
    <section className="card" aria-label={title} id={id}>
      <div className="head"><h2>{title}</h2>{note && <div className="muted small">{note}</div>}</div>
      {children}
    </section>
  );
}

async function copy(text: string): Promise<boolean> {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    // no clipboard outside of https and localhost
    const area = document.createElement("textarea");
    area.value = text;
    document.body.append(area);
    area.select();
    const done = document.execCommand("copy");
    area.remove();
    return done;
  }
}

export function CopyButton({ text, label = "Copy" }: { text: string; label?: string }) {
  const [shown, setShown] = useState(label);
  const press = async () => {
    setShown((await copy(text)) ? "Copied" : "Select and copy");
    setTimeout(() => setShown(label), 2000);
  };
  return <button type="button" className="quiet" aria-label={`${shown}: ${text}`} onClick={press}>{shown}</button>;
}

export function Command({ text }: { text: string }) {
  const words = text.split(/(\s+)/).map((word, at) => (word.trim() ? <span key={at} className="word">{word}</span> : word));
  return <div className="command"><pre>{words}</pre><CopyButton text={text} /></div>;
}

/** Why there is nothing here, and what to do about it. */
export function Empty({ children, command }: { children: ReactNode; command?: string }) {
  return <><p className="empty">{children}</p>{command && <Command text={command} />}</>;
}

export function ObjectLink({ kind, name }: { kind: string; name: string }) {
  return <Link className="name" to="/$kind/$name" params={{ kind, name }}>{name}</Link>;
}

export interface Column<Row> {
  title: string;
  head?: ReactNode;
  kind?: "fit" | "num" | "why" | "mono" | "ours" | "num ours";
  show: (row: Row) => ReactNode;
  exact?: (row: Row) => string | undefined;
}

export function Table<Row>({ label, columns, rows, keyOf, kind = "" }: {
  label: string; columns: Column<Row>[]; rows: Row[]; keyOf: (row: Row, at: number) => string | number; kind?: string;
}) {
  return (
    <div className={`scroll ${kind}`} role="group" aria-label={label} tabIndex={0}>
      <table>
        <thead><tr>{columns.map(({ title, head, kind }) => <th key={title} scope="col" className={kind}>{head ?? title}</th>)}</tr></thead>
        <tbody>
          {rows.map((row, at) => (
            <tr key={keyOf(row, at)}>
              {columns.map((column) => <td key={column.title} className={column.kind} title={column.exact?.(row)}>{column.show(row)}</td>)}
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

/** Rows of a table that are selected, singly or all that are shown, and the column for it. */
export function useSelection<Row>(rows: Row[], nameOf: (row: Row) => string): [Row[], Column<Row>] {
  const [picked, pick] = useState<string[]>([]);
  const chosen = rows.filter((row) => picked.includes(nameOf(row)));
  const isAll = rows.length > 0 && chosen.length === rows.length;
  const all = (
    <input type="checkbox" aria-label="Select all shown" checked={isAll} ref={(box) => { if (box) box.indeterminate = chosen.length > 0 && !isAll; }}
      onChange={({ target }) => pick(target.checked ? rows.map(nameOf) : [])} />
  );
  const show = (row: Row) => {
    const name = nameOf(row);
    return <input type="checkbox" aria-label={`Select ${name}`} checked={picked.includes(name)} onChange={({ target }) => pick(target.checked ? [...picked, name] : picked.filter((one) => one !== name))} />;
  };
  return [chosen, { title: "Select", head: all, kind: "fit", show }];
}

export const Why = ({ children }: { children: ReactNode }) => (children ? <span className="why">{children}</span> : null);

/** Text as one word of a shell, without quotes where it needs none. */
export const word = (text: string) => (/^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`);

/** The request as a command; the token comes from the environment, never from the page. */
export function curl(path: string, body?: unknown, method?: string): string {
  const data = body === undefined ? "" : ` -d ${word(JSON.stringify(body))}`;
  return `curl${method && !(method === "POST" && data) ? ` -X ${method}` : ""} -H "Authorization: Bearer $SLUICE_API_TOKEN"${data} ${word(`${location.origin}/api/v1/${path}`)}`;
}

/** Have the browser save a file. */
export function save(title: string, kind: string, content: Blob | null) {
  if (!content) return;
  const link = document.createElement("a");
  link.href = URL.createObjectURL(content);
  link.download = `${title.toLowerCase().replaceAll(/[ ,]+/g, "-")}.${kind}`;
  link.click();
  URL.revokeObjectURL(link.href);
}
