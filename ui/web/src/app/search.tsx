// Ctrl K: one field that finds pages and objects by name.

import { keepPreviousData, useQuery } from "@tanstack/react-query";
import { useNavigate } from "@tanstack/react-router";
import { useState } from "react";
import {
  Autocomplete,
  Dialog,
  Input,
  Menu,
  MenuItem,
  Modal,
  ModalOverlay,
  SearchField,
  useFilter,
} from "react-aria-components";
import { getAny, Refused } from "../api/client";
import { KINDS, RESOURCES } from "../api/kinds";
import { useRested } from "../api/live";

/** Pages that the broker serves beside the dashboard. */
const OUTSIDE = [
  ["Documentation", "/docs/README.md"],
  ["API operations", "/docs"],
] as const;

/** Keys that open a list after g. */
const KEYS: Record<string, string> = {
  schemas: "c",
  validations: "v",
  transforms: "t",
  rules: "r",
  connectors: "n",
  actions: "a",
  sources: "i",
  streams: "m",
  tables: "l",
  clients: "k",
  jobs: "j",
};

export const PAGES: { title: string; to: string; key?: string }[] = [
  { title: "Start", to: "/", key: "s" },
  { title: "Overview", to: "/overview", key: "o" },
  ...[...KINDS, ...RESOURCES].map(({ many, path }) => ({ title: many, to: `/${path}`, key: KEYS[path] })),
];

/** Of each kind: the first ones, and the first whose name has the text. */
const SHOWN = 20;

interface Found {
  id: string;
  title: string;
  note: string;
  to: string;
}

async function objectsLike(name: string, signal: AbortSignal): Promise<Found[]> {
  const lists = await Promise.all(
    KINDS.map(async (kind) => {
      const page = await getAny(kind.api, { query: { limit: SHOWN, like_name: name }, signal }).catch((error) => {
        if (error instanceof Refused) return { items: [] };
        throw error; // asked again
      });
      return (page.items as Record<string, string>[]).map((item) => ({
        id: `${kind.path}/${item[kind.key]}`,
        title: item[kind.key]!,
        note: kind.one,
        to: `/${kind.path}/${encodeURIComponent(item[kind.key]!)}`,
      }));
    }),
  );
  return lists.flat();
}

export function Search({ isOpen, setOpen }: { isOpen: boolean; setOpen: (open: boolean) => void }) {
  const navigate = useNavigate();
  const { contains } = useFilter({ sensitivity: "base" });
  const [text, setText] = useState("");
  const name = useRested(text.trim());
  const { data: first = [] } = useQuery({
    queryKey: ["objects", ""],
    queryFn: ({ signal }) => objectsLike("", signal),
    enabled: isOpen,
    staleTime: 5000,
  });
  const { data: like = [] } = useQuery({
    queryKey: ["objects", name],
    queryFn: ({ signal }) => objectsLike(name, signal),
    enabled: isOpen && name !== "",
    staleTime: 5000,
    placeholderData: keepPreviousData,
  });
  const objects = [...new Map([...first, ...like].map((one) => [one.id, one])).values()];
  const pages = PAGES.map(({ title, to }) => ({ id: to, title, note: "Page", to }));
  const items: Found[] = [...pages, ...objects, ...OUTSIDE.map(([title, to]) => ({ id: to, title, note: "Page", to }))];
  const go = (id: string) => {
    setOpen(false);
    setText("");
    const chosen = items.find((one) => one.id === id);
    if (chosen?.to.startsWith("/docs")) location.assign(chosen.to);
    else if (chosen) void navigate({ to: chosen.to, search: (known: object) => known } as never);
  };
  return (
    <ModalOverlay
      isDismissable
      isOpen={isOpen}
      onOpenChange={(open) => {
        setOpen(open);
        setText("");
      }}
      className="overlay">
      <Modal className="modal">
        <Dialog className="dialog find" aria-label="Find">
          <Autocomplete filter={contains} inputValue={text} onInputChange={setText}>
            <SearchField aria-label="Find pages and objects" autoFocus>
              <Input placeholder="Find pages, rules, schemas, bridges, tables…" />
            </SearchField>
            <Menu
              items={items}
              className="menu"
              aria-label="Found"
              onAction={(key) => go(String(key))}
              renderEmptyState={() => <p className="empty">Nothing has this name.</p>}>
              {({ id, title, note }) => (
                <MenuItem id={id} textValue={`${title} ${note}`} className="item">
                  <span>{title}</span> <span className="muted small">{note}</span>
                </MenuItem>
              )}
            </Menu>
          </Autocomplete>
        </Dialog>
      </Modal>
    </ModalOverlay>
  );
}
