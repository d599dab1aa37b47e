// The frame of every page: navigation, search, the state of the connection, and preferences.

import { useQueryClient } from "@tanstack/react-query";
import { Link, Outlet, useNavigate, useRouterState, useSearch } from "@tanstack/react-router";
import { type ReactNode, useContext, useEffect, useRef, useState } from "react";
import { Button, Dialog, DialogTrigger, Modal, ModalOverlay, Popover } from "react-aria-components";
import { signOut } from "../api/client";
import { MENU } from "../api/kinds";
import { Paused, useAlarms, useLink, useNow, useRest, useStatus } from "../api/live";
import { useMay, useMe } from "../api/rights";
import { State, Why } from "../parts/card";
import { counted, duration } from "../parts/format";
import { prefer, type Theme, usePreferences } from "../parts/preferences";
import { clock, keepTimeZone, useTimeZone, timeZoneName, TIME_ZONES } from "../parts/time";
import { PAGES, Search } from "./search";
import { SignIn } from "./sign-in";

export function Shell() {
  const [paused, setPaused] = useState(false);
  useRest(paused);
  return (
    <Paused value={{ paused, setPaused }}>
      <Frame />
    </Paused>
  );
}

function Frame() {
  const link = useLink();
  const { data: status } = useStatus();
  const [finding, setFinding] = useState(false);
  const [helping, setHelping] = useState(false);
  const path = useRouterState({ select: (state) => state.location.pathname });
  useEffect(() => {
    // newer browsers answer with a promise, which is no cleanup
    void document.querySelector("nav [aria-current='page']")?.scrollIntoView({ block: "nearest", inline: "nearest" });
  }, [path]);
  useKeys(
    () => setFinding(true),
    () => setHelping(true),
  );
  const page = PAGES.find(({ to }) => to === path)?.title ?? decodeURIComponent(path.split("/").at(-1) ?? "");
  useEffect(() => {
    document.title = status ? `${page} · ${status.node} · Sluice` : "Sluice";
  }, [page, status?.node]);
  const isIn = link.state !== "signed out";
  const may = useMay(isIn && status !== undefined);
  const queries = useQueryClient();
  const wasLive = useRef(false);
  useEffect(() => {
    if (link.state !== "live") return;
    if (wasLive.current) void queries.invalidateQueries(); // the data may be stale
    wasLive.current = true;
  }, [link.state]);
  return (
    <>
      <a className="skip" href="#main">
        Skip to the page
      </a>
      <header className="bar">
        <Link to="/" search={(known: object) => known} className="brand" aria-label="Sluice, start page">
          <Mark />
          <span>Sluice</span>
        </Link>
        {isIn && status && (
          <p className="node muted">
            {status.node} · version {status.version} · up {duration(status.uptime_s)}
          </p>
        )}
        {isIn && (
          <button type="button" className="finder" onClick={() => setFinding(true)}>
            Find <kbd>Ctrl K</kbd>
          </button>
        )}
        <Connection />
        {isIn && <Alarms />}
        <Settings isIn={isIn} showHelp={() => setHelping(true)} />
      </header>
      <LostStrip />
      {isIn && <OverloadStrip />}
      {(isIn || status) && (
        <div className="layout" hidden={!isIn}>
          <nav aria-label="Pages">
            <PageLink title="Start" to="/" />
            <PageLink title="Overview" to="/overview" />
            {MENU.map(({ group, pages: all }) => {
              const pages = all.filter(({ right }) => may(right, "read"));
              if (!pages.length) return null;
              const links = pages.map(({ many, path }) => <PageLink key={path} title={many} to={`/${path}`} />);
              if (group === "Data") return links;
              const isOpen = pages.some(({ path: own }) => `${path}/`.startsWith(`/${own}/`));
              return <Group key={group} title={group} isOpen={isOpen} links={links} />;
            })}
          </nav>
          <main id="main" tabIndex={-1}>
            {status ? <Outlet /> : <Skeleton />}
          </main>
        </div>
      )}
      {!isIn && <SignIn wasSignedIn={status !== undefined} />}
      <footer className="muted small">
        <a href="/docs/README.md">Documentation</a> · <a href="/docs">API operations</a> ·{" "}
        <a href="/api/v1/openapi.json">OpenAPI</a> · <a href="/metrics">Metrics</a>
      </footer>
      <Search isOpen={finding} setOpen={setFinding} />
      <Help isOpen={helping} setOpen={setHelping} />
    </>
  );
}

const PageLink = ({ title, to }: { title: string; to: string }) => (
  <Link to={to as never} search={keepTimeZone as never} activeOptions={{ exact: to === "/", includeSearch: false }}>
    {title}
  </Link>
);

/** Pages that are seldom needed at once: the group of the page that is shown is open. */
function Group({ title, isOpen, links }: { title: string; isOpen: boolean; links: ReactNode }) {
  const place = useRef<HTMLDetailsElement>(null);
  useEffect(() => {
    if (isOpen && place.current) place.current.open = true;
  }, [isOpen]);
  return (
    <details ref={place}>
      <summary>{title}</summary>
      {links}
    </details>
  );
}

function Skeleton() {
  return (
    <div className="skeleton" role="status" aria-label="Loading">
      {[1, 2, 3].map((at) => (
        <div key={at} className="card" />
      ))}
    </div>
  );
}

function Mark() {
  return (
    <svg viewBox="0 0 24 24" width="24" height="24" aria-hidden="true">
      <path className="wave" d="M2 9.5c1.7-2 3.3-2 5 0s3.3 2 5 0 3.3-2 5 0 3.3 2 5 0" />
      <path className="wave" d="M2 15.5c1.7-2 3.3-2 5 0s3.3 2 5 0 3.3-2 5 0 3.3 2 5 0" />
      <path className="gate" d="M12 3v18" />
    </svg>
  );
}

const WORDS = {
  connecting: "Connecting",
  live: "Live",
  paused: "Paused",
  "signed out": "Signed out",
  lost: "Reconnecting",
};

function Connection() {
  const link = useLink();
  const timeZone = useTimeZone();
  return (
    <p
      className="link-state"
      role="status"
      title={link.state === "lost" ? `since ${clock(link.sinceMs, timeZone, "full")}` : undefined}>
      <State state={link.state}>{WORDS[link.state]}</State>
      {link.state === "live" && link.skipped > 0 && <Why>{counted(link.skipped, "update")} skipped</Why>}
    </p>
  );
}

/** Why the figures do not change, and since when. */
function LostStrip() {
  const link = useLink();
  const timeZone = useTimeZone();
  const nowMs = useNow(link.state === "lost");
  if (link.state !== "lost") return null;
  return (
    <div className="strip">
      <p role="alert">
        Connection to the broker lost since {clock(link.sinceMs, timeZone)}
        {link.why && `: ${link.why}`}. The page shows what it knew.
      </p>
      <p aria-hidden="true">Reconnecting in {Math.max(0, Math.ceil((link.retryAtMs - nowMs) / 1000))} s</p>
    </div>
  );
}

function OverloadStrip() {
  const timeZone = useTimeZone();
  const health = useStatus().data?.health;
  if (!health?.overloaded || !health.overloaded_since) return null;
  return (
    <div className="strip">
      <p role="alert">
        Overloaded since {clock(Date.parse(health.overloaded_since), timeZone)}, because{" "}
        {health.overloaded_because.join("; ")}.
      </p>
    </div>
  );
}

function Alarms() {
  const { data } = useAlarms();
  if (!data) return null;
  const n = Object.keys(data).length;
  return (
    <Link to="/overview" hash="alarms" search={(known: object) => known} className="alarms">
      <State state={n ? "alarm" : "idle"}>{n ? counted(n, "alarm") : "No alarms"}</State>
    </Link>
  );
}

function Settings({ isIn, showHelp }: { isIn: boolean; showHelp: () => void }) {
  const { theme, zone, keys } = usePreferences();
  const me = useMe(isIn);
  const { paused, setPaused } = useContext(Paused);
  const { tz } = useSearch({ strict: false }) as { tz?: string };
  const navigate = useNavigate();
  const leave = async () => {
    await signOut().catch(() => null);
    location.reload(); // nothing that was shown is kept
  };
  const chooseTimeZone = (chosen: string) => {
    prefer({ zone: chosen });
    void navigate({
      to: ".",
      search: (known: object) => ({ ...known, tz: chosen === "browser" ? undefined : chosen }),
    } as never);
  };
  const chosenTimeZone = tz ?? zone;
  return (
    <>
      {isIn && (
        <button type="button" id="pause" onClick={() => setPaused(!paused)}>
          {paused ? "Resume" : "Pause"}
        </button>
      )}
      <DialogTrigger>
        <Button className="button" aria-label="Settings">
          Settings
        </Button>
        <Popover className="popover" placement="bottom end">
          <Dialog className="dialog settings" aria-label="Settings">
            {me && (
              <p className="muted small">
                Signed in as {me.name}
                {me.role && me.role !== me.name && ` (${me.role})`}
              </p>
            )}
            <label>
              Colours
              <select value={theme} onChange={(event) => prefer({ theme: event.target.value as Theme })}>
                <option value="system">As the system</option>
                <option value="light">Light</option>
                <option value="dark">Dark</option>
              </select>
            </label>
            <label>
              Time zone
              <select value={chosenTimeZone} onChange={(event) => chooseTimeZone(event.target.value)}>
                {[...new Set([...TIME_ZONES, chosenTimeZone])].map((one) => (
                  <option key={one} value={one}>
                    {one === "browser" ? `Browser (${timeZoneName(one)})` : one}
                  </option>
                ))}
              </select>
            </label>
            <label className="check">
              <input type="checkbox" checked={keys} onChange={(event) => prefer({ keys: event.target.checked })} />{" "}
              Shortcuts of single keys
            </label>
            <div className="buttons">
              <Button slot="close" className="button" onPress={showHelp}>
                Keyboard
              </Button>
              {isIn && (
                <Button slot="close" className="button" onPress={leave}>
                  Sign out
                </Button>
              )}
            </div>
          </Dialog>
        </Popover>
      </DialogTrigger>
    </>
  );
}

const SHORTCUTS = [
  ["Ctrl K", "Find"],
  ["?", "This help"],
  ...PAGES.filter(({ key }) => key).map(({ title, key }) => [`g ${key}`, `Go to ${title}`]),
  ["Esc", "Close"],
];

function Help({ isOpen, setOpen }: { isOpen: boolean; setOpen: (open: boolean) => void }) {
  return (
    <ModalOverlay isDismissable isOpen={isOpen} onOpenChange={setOpen} className="overlay">
      <Modal className="modal">
        <Dialog className="dialog" aria-label="Keyboard">
          <h2>Keyboard</h2>
          <dl className="keys">
            {SHORTCUTS.map(([keys, does]) => (
              <div key={keys}>
                <dt>
                  <kbd>{keys}</kbd>
                </dt>
                <dd>{does}</dd>
              </div>
            ))}
          </dl>
          <Button slot="close" className="button">
            Close
          </Button>
        </Dialog>
      </Modal>
    </ModalOverlay>
  );
}

function useKeys(find: () => void, help: () => void) {
  const navigate = useNavigate();
  const { keys } = usePreferences();
  useEffect(() => {
    let afterG = false;
    const press = (event: KeyboardEvent) => {
      if ((event.ctrlKey || event.metaKey) && event.key.toLowerCase() === "k") {
        event.preventDefault();
        find();
        return;
      }
      const isTyping =
        event.target instanceof HTMLElement &&
        event.target.closest("input, textarea, select, [contenteditable], [role=dialog]");
      if (!keys || isTyping || event.ctrlKey || event.metaKey || event.altKey) return;
      const page = PAGES.find(({ key }) => key === event.key);
      if (event.key === "?") help();
      else if (afterG && page) void navigate({ to: page.to as never });
      afterG = event.key === "g";
    };
    document.addEventListener("keydown", press);
    return () => document.removeEventListener("keydown", press);
  }, [keys]);
}
