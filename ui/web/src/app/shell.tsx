// The frame of every page: navigation, search, the state of the connection, and preferences.

import { useQueryClient } from "@tanstack/react-query";
import { Link, Outlet, useNavigate, useRouterState } from "@tanstack/react-router";
import { type ReactNode, Suspense, useContext, useEffect, useRef, useState } from "react";
import { MENU } from "../api/kinds";
import { Paused, useAlarms, useLink, useNow, useRest, useStatus } from "../api/live";
import { lazyPart } from "../api/modules";
import { useMay, useMe } from "../api/rights";
import { State, Why } from "../parts/card";
import { explain, useExplained } from "../parts/explaining";
import { count, counted, duration } from "../parts/format";
import { usePreferences } from "../parts/preferences";
import { clock, keepTimeZone, useTimeZone } from "../parts/time";
import { useTroubles } from "../parts/troubles";
import { PAGES } from "./pages";
import { SignIn } from "./sign-in";

/** What opens over the page is loaded when it is opened first. */
const Search = lazyPart(() => import("./search"));
const ExplainDialog = lazyPart(() => import("../parts/explain"));
const Help = lazyPart(async () => ({ default: (await import("./dialogs")).Help }));
const SettingsDialog = lazyPart(async () => ({ default: (await import("./dialogs")).SettingsDialog }));

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
    explain(null); // it leads to another page
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
  const explained = useExplained();
  const isIn = link.state !== "signed out";
  const me = useMe(isIn);
  const isKnown = useRef(false); // a page that is open stays so while somebody signs in again
  isKnown.current ||= me !== undefined;
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
            <Groups />
          </nav>
          <main id="main" tabIndex={-1}>
            {status && isKnown.current ? <Outlet /> : <Skeleton />}
          </main>
        </div>
      )}
      {!isIn && <SignIn wasSignedIn={status !== undefined} />}
      <footer className="muted small">
        <a href="/docs/README.md">Documentation</a> · <a href="/docs">API operations</a> ·{" "}
        <a href="/api/v1/openapi.json">OpenAPI</a> · <a href="/metrics">Metrics</a>
      </footer>
      <Suspense>
        {finding && <Search close={() => setFinding(false)} />}
        {helping && <Help close={() => setHelping(false)} />}
        {explained && <ExplainDialog key={explained.topic} asked={explained} />}
      </Suspense>
    </>
  );
}

const PageLink = ({ title, to, wrong = 0 }: { title: string; to: string; wrong?: number }) => (
  <Link to={to as never} search={keepTimeZone as never} activeOptions={{ exact: to === "/", includeSearch: false }}>
    {title} <Wrong count={wrong} />
  </Link>
);

/** How much is wrong on a page, or on those of a group. */
const Wrong = ({ count: wrong }: { count: number }) =>
  wrong > 0 && (
    <span className="wrong">
      {count(wrong)}
      <span className="hidden"> wrong</span>
    </span>
  );

/** Groups that are open at first where there is room; the group of the page that is shown is open too. */
const OPEN = window.matchMedia("(min-width: 1280px)").matches ? ["Traffic", "Data", "Delivery"] : [];

function Groups() {
  const troubles = useTroubles();
  const may = useMay();
  const path = useRouterState({ select: (state) => state.location.pathname });
  return MENU.map(({ group, pages: all }) => {
    const pages = all.filter(({ right }) => may(right, "read"));
    if (!pages.length) return null;
    const isOpen = pages.some(({ path: own }) => `${path}/`.startsWith(`/${own}/`));
    const wrong = (own: string) => troubles.find((trouble) => trouble.path === own)?.count ?? 0;
    const links = pages.map(({ many, path: own }) => (
      <PageLink key={own} title={many} to={`/${own}`} wrong={wrong(own)} />
    ));
    const troubled = pages.reduce((sum, page) => sum + wrong(page.path), 0);
    return <Group key={group} title={group} wrong={troubled} isOpen={isOpen} links={links} />;
  });
}

interface GroupProps {
  title: string;
  wrong: number;
  isOpen: boolean;
  links: ReactNode;
}

function Group({ title, wrong, isOpen, links }: GroupProps) {
  const place = useRef<HTMLDetailsElement>(null);
  useEffect(() => {
    if ((isOpen || OPEN.includes(title)) && place.current) place.current.open = true;
  }, [isOpen]);
  return (
    <details ref={place}>
      <summary>
        {title} <Wrong count={wrong} />
      </summary>
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
  const { paused, setPaused } = useContext(Paused);
  const place = useRef<HTMLButtonElement>(null);
  const [isOpen, setOpen] = useState(false);
  return (
    <>
      {isIn && (
        <button type="button" id="pause" onClick={() => setPaused(!paused)}>
          {paused ? "Resume" : "Pause"}
        </button>
      )}
      <button
        type="button"
        ref={place}
        aria-label="Settings"
        aria-haspopup="dialog"
        aria-expanded={isOpen}
        onClick={() => setOpen(true)}>
        Settings
      </button>
      <Suspense>
        {isOpen && <SettingsDialog place={place} close={() => setOpen(false)} isIn={isIn} showHelp={showHelp} />}
      </Suspense>
    </>
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
