// Ctrl K: one field that finds pages and objects by name.

import { useQuery } from "@tanstack/react-query";
import { useNavigate } from "@tanstack/react-router";
import { Autocomplete, Dialog, Input, Menu, MenuItem, Modal, ModalOverlay, SearchField, useFilter } from "react-aria-components";
import { getAny } from "./api";
import { KINDS } from "./kinds";

export const PAGES: { title: string; to: string; key: string }[] = [
  { title: "Start", to: "/", key: "s" },
  { title: "Overview", to: "/overview", key: "o" },
  ...KINDS.map(({ many, path, key }) => ({ title: many, to: `/${path}`, key })),
];

const SHOWN = 200;

interface Found { id: string; title: string; note: string; to: string }

async function allObjects(): Promise<Found[]> {
  const lists = await Promise.all(KINDS.map(async (kind) => {
    const page = await getAny(`${kind.api}?limit=${SHOWN}`).catch(() => ({ items: [] }));
    return (page.items as { name: string }[]).map(({ name }) => ({
      id: `${kind.path}/${name}`, title: name, note: kind.one, to: `/${kind.path}/${encodeURIComponent(name)}`,
    }));
  }));
  return lists.flat();
}

export function Find({ isOpen, setOpen }: { isOpen: boolean; setOpen: (open: boolean) => void }) {
  const navigate = useNavigate();
  const { contains } = useFilter({ sensitivity: "base" });
  const { data: objects = [] } = useQuery({ queryKey: ["objects"], queryFn: allObjects, enabled: isOpen, staleTime: 5000 });
  const pages = PAGES.map(({ title, to }) => ({ id: to, title, note: "Page", to }));
  const items: Found[] = [...pages, ...objects, { id: "/docs", title: "API operations", note: "Page", to: "/docs" }];
  const go = (id: string) => {
    setOpen(false);
    const chosen = items.find((one) => one.id === id);
    if (chosen?.to === "/docs") location.assign("/docs");
    else if (chosen) void navigate({ to: chosen.to, search: (known: object) => known } as never);
  };
  return (
    <ModalOverlay isDismissable isOpen={isOpen} onOpenChange={setOpen} className="overlay">
      <Modal className="modal">
        <Dialog className="dialog find" aria-label="Find">
          <Autocomplete filter={contains}>
            <SearchField aria-label="Find pages and objects" autoFocus>
              <Input placeholder="Find pages, rules, schemas, bridges, tables…" />
            </SearchField>
            <Menu items={items} className="menu" aria-label="Found" onAction={(key) => go(String(key))} renderEmptyState={() => <p className="empty">Nothing has this name.</p>}>
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
