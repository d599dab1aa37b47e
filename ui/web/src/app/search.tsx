// Ctrl K: one field that finds clients, topics, pages, objects and actions by name.

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
import { KINDS } from "../api/kinds";
import { useRested } from "../api/live";
import { PAGES } from "./pages";

/** Pages that the broker serves beside the dashboard. */
const OUTSIDE = [
  ["Documentation", "/docs/README.md"],
  ["API operations", "/docs"],
] as const;

/** Of each kind: the first ones, and the first whose name has the text. */
const SHOWN = 20;

interface Found {
  id: string;
  title: string;
  note: string;
  to: string;
  search?: object;
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

/** Clients and topics whose names have the text: a pattern where it has a star, else anywhere in the name. */
async function trafficLike(text: string, signal: AbortSignal): Promise<Found[]> {
  const pattern = text.includes("*") ? text : `*${text}*`;
  const lists = await Promise.all([
    getAny("clients", { query: { client_id: pattern, limit: TRAFFIC_SHOWN }, signal }),
    getAny("topics", { query: { search: pattern, limit: TRAFFIC_SHOWN }, signal }),
  ]).catch((error) => {
    if (error instanceof Refused) return []; // too many stars
    throw error;
  });
  const [clients, topics] = lists.map(({ items }) => items as Record<string, string>[]);
  return [
    ...(clients ?? []).map(({ client_id: id }) => ({
      id: `clients/${id}`,
      title: id!,
      note: "Client",
      to: `/clients/${encodeURIComponent(id!)}`,
    })),
    ...(topics ?? []).map(({ topic }) => ({
      id: `topics/${topic}`,
      title: topic!,
      note: "Topic",
      to: "/topics",
      search: { topic },
    })),
  ];
}
const TRAFFIC_SHOWN = 10;

const ACTIONS: Found[] = KINDS.filter(({ writes }) => writes.includes("create")).map(({ name, path }) => ({
  id: `new/${path}`,
  title: `New ${name}`,
  note: "Action",
  to: `/new/${path}`,
}));

export default function Search({ close }: { close: () => void }) {
  const navigate = useNavigate();
  const { contains } = useFilter({ sensitivity: "base" });
  const [text, setText] = useState("");
  const name = useRested(text.trim());
  const { data: first = [] } = useQuery({
    queryKey: ["objects", ""],
    queryFn: ({ signal }) => objectsLike("", signal),
    staleTime: 5000,
  });
  const { data: like = [] } = useQuery({
    queryKey: ["objects", name],
    queryFn: ({ signal }) => objectsLike(name, signal),
    enabled: name !== "",
    staleTime: 5000,
    placeholderData: keepPreviousData,
  });
  const { data: traffic = [] } = useQuery({
    queryKey: ["traffic", name],
    queryFn: ({ signal }) => trafficLike(name, signal),
    enabled: name !== "",
    staleTime: 5000,
    placeholderData: keepPreviousData,
  });
  const objects = [...new Map([...first, ...like].map((one) => [one.id, one])).values()];
  const pages = PAGES.map(({ title, to }) => ({ id: to, title, note: "Page", to }));
  const items: Found[] = [
    ...pages,
    ...ACTIONS,
    ...objects,
    ...traffic,
    ...OUTSIDE.map(([title, to]) => ({ id: to, title, note: "Page", to })),
  ];
  const go = (id: string) => {
    close();
    const chosen = items.find((one) => one.id === id);
    if (chosen?.to.startsWith("/docs")) location.assign(chosen.to);
    else if (chosen)
      void navigate({ to: chosen.to, search: (known: object) => ({ ...known, ...chosen.search }) } as never);
  };
  return (
    <ModalOverlay isDismissable isOpen onOpenChange={(open) => !open && close()} className="overlay">
      <Modal className="modal">
        <Dialog className="dialog find" aria-label="Find">
          <Autocomplete filter={contains} inputValue={text} onInputChange={setText}>
            <SearchField aria-label="Find clients, topics, pages, objects and actions" autoFocus>
              <Input placeholder="Find clients, topics, pages, rules, “new rule”…" />
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
