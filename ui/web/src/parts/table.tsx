// Tables, and rows of them that are selected.

import { type ReactNode, useState } from "react";

export interface Column<Row> {
  title: string;
  head?: ReactNode;
  kind?: "fit" | "id" | "num" | "why" | "mono" | "ours" | "num ours" | "num verbs" | undefined;
  show: (row: Row) => ReactNode;
  exact?: (row: Row) => string | undefined;
}

/** Each row is a card on a narrow screen, but with the ``kind`` "rows" of data with columns of any number. */
export function Table<Row>({
  label,
  columns,
  rows,
  keyOf,
  kind = "",
}: {
  label: string;
  columns: Column<Row>[];
  rows: Row[];
  keyOf: (row: Row, at: number) => string | number;
  kind?: string;
}) {
  const isCards = !/\brows\b/.test(kind); // there a cell is a grid of its title and one other item
  return (
    <div className={`scroll ${kind}${isCards ? " cards" : ""}`} role="group" aria-label={label} tabIndex={0}>
      <table role="table">
        <thead role="rowgroup">
          <tr role="row">
            {columns.map(({ title, head, kind }) => (
              <th key={title} role="columnheader" scope="col" className={kind}>
                {head ?? title}
              </th>
            ))}
          </tr>
        </thead>
        <tbody role="rowgroup">
          {rows.map((row, at) => (
            <tr key={keyOf(row, at)} role="row">
              {columns.map((column) => (
                <td
                  key={column.title}
                  role="cell"
                  data-title={column.title}
                  className={column.kind}
                  title={column.exact?.(row)}>
                  {isCards ? <div>{column.show(row)}</div> : column.show(row)}
                </td>
              ))}
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
    <input
      type="checkbox"
      aria-label="Select all shown"
      checked={isAll}
      ref={(box) => {
        if (box) box.indeterminate = chosen.length > 0 && !isAll;
      }}
      onChange={({ target }) => pick(target.checked ? rows.map(nameOf) : [])}
    />
  );
  const show = (row: Row) => {
    const name = nameOf(row);
    return (
      <input
        type="checkbox"
        aria-label={`Select ${name}`}
        checked={picked.includes(name)}
        onChange={({ target }) => pick(target.checked ? [...picked, name] : picked.filter((one) => one !== name))}
      />
    );
  };
  return [chosen, { title: "Select", head: all, kind: "fit", show }];
}
