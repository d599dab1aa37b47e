// The menu of what can be done with an object of any kind.

import { useQueryClient } from "@tanstack/react-query";
import { useState } from "react";
import { Button, Menu, MenuItem, MenuTrigger, Popover } from "react-aria-components";
import { moved, namesOf, sentence } from "../../api/client";
import { capitalized, type Kind } from "../../api/kinds";
import { useMay } from "../../api/rights";
import { State } from "../../parts/card";
import { Confirm } from "../../parts/dialogs";
import { ReadOnly } from "../../parts/read-only";

export interface Row {
  name: string;
  etag: string;
  fixed_by?: string | null;
  [member: string]: unknown;
}

interface MenuProps {
  kind: Kind;
  row: { name: string; etag?: string; enable?: unknown; state?: unknown; fixed_by?: string | null };
  /** Those beside it in its list. */
  before?: Row;
  after?: Row;
  onDeleted?: () => void;
}

/** The verbs of an object. Destructive ones come last and ask for confirmation with their effect. */
export function ObjectMenu({ kind, row, before, after, onDeleted }: MenuProps) {
  const queries = useQueryClient();
  const may = useMay();
  const [asked, ask] = useState<Pick<
    Parameters<typeof Confirm>[0],
    "title" | "method" | "path" | "body" | "etag" | "text" | "drains"
  > | null>(null);
  const [says, setSays] = useState("");
  const place = `${kind.api}/${encodeURIComponent(row.name)}`;
  const one = `${kind.one.toLowerCase()} ${row.name}`;
  const { etag } = row;
  const isDone: Record<string, boolean> = {
    disable: row.enable === false,
    enable: row.enable !== false,
    start: row.state === "running",
    stop: row.state === "stopped",
  };
  const switches = kind.switches.filter(({ verb }) => !isDone[verb]);
  /** Ask to put it at the place of another one. */
  const move = async (word: string, other: string) => {
    const order = moved(await namesOf(kind.api, kind.key), row.name, other);
    ask({ title: `Move ${one} ${word} ${other}`, method: "POST", path: `${kind.api}:reorder`, body: { order } });
  };
  const moves = kind.isOrdered
    ? (
        [
          ["before", before],
          ["after", after],
        ] as const
      ).flatMap(([word, other]) => (other && !other.fixed_by ? [[word, other.name] as const] : []))
    : [];
  const canDelete = kind.writes.includes("delete");
  const act = (key: string) => {
    setSays("");
    const target = moves.find(([word]) => word === key);
    if (target) void move(...target).catch((error) => setSays(sentence(error)));
    else if (key === "delete")
      ask({
        title: `Delete ${one}`,
        method: "DELETE",
        path: place,
        etag,
        text: kind.deletion || undefined,
        drains: kind.switches.some(({ drains }) => drains),
      });
    else {
      const { text, drains } = kind.switches.find(({ verb }) => verb === key)!;
      ask({ title: `${capitalized(key)} ${one}`, method: "POST", path: `${place}:${key}`, etag, text, drains });
    }
  };
  if (!may(kind.right, "change") || (!moves.length && !switches.length && !canDelete)) return null;
  return (
    <>
      {row.fixed_by && <span className="muted small">read-only </span>}
      <MenuTrigger>
        <Button className="button quiet" aria-label={`Do something with ${row.name}`}>
          ⋯
        </Button>
        <Popover className="popover small-menu" placement="bottom end">
          {row.fixed_by && (
            <p className="note">
              <ReadOnly file={row.fixed_by} />
            </p>
          )}
          <Menu
            className="menu"
            aria-label={`Verbs of ${row.name}`}
            disabledKeys={row.fixed_by ? ["before", "after", "delete", ...kind.switches.map(({ verb }) => verb)] : []}
            onAction={(key) => act(String(key))}>
            {moves.map(([word, other]) => (
              <MenuItem key={word} id={word} className="item">
                {`Move ${word} ${other}`}
              </MenuItem>
            ))}
            {switches.map(({ verb }) => (
              <MenuItem key={verb} id={verb} className="item">
                {capitalized(verb)}
              </MenuItem>
            ))}
            {canDelete && (
              <MenuItem id="delete" className="item err">
                Delete…
              </MenuItem>
            )}
          </Menu>
        </Popover>
      </MenuTrigger>
      {says && (
        <span role="alert">
          <State state="failed">{says}</State>
        </span>
      )}
      {asked && (
        <Confirm
          {...asked}
          close={() => ask(null)}
          onDone={() => {
            void queries.invalidateQueries();
            if (asked.method === "DELETE") onDeleted?.();
          }}
        />
      )}
    </>
  );
}
