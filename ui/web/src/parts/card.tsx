// What pages are made of: cards, states, links to objects, and what stands where there is nothing.

import { Link } from "@tanstack/react-router";
import type { ReactNode } from "react";
import { sentence } from "../api/client";
import { itemAt } from "../api/kinds";
import { Command } from "./copy";
import { mark } from "./format";

export function State({ state, children, tone = state }: { state: string; children?: ReactNode; tone?: string }) {
  const [shape, kind] = mark(tone);
  return (
    <span className={`state ${kind}`} data-mark={shape}>
      {children ?? state}
    </span>
  );
}

/** Why what was asked for failed; nothing without children. It stays on the page, so that it is read out. */
export const Failure = ({ children }: { children: string | undefined }) => (
  <div role="alert">{children && <State state="failed">{children}</State>}</div>
);

export const Loading = () => (
  <p className="muted" role="status">
    Loading…
  </p>
);

/** Why something could not be loaded. */
export const LoadFailure = ({ error }: { error: unknown }) =>
  error ? (
    <p role="alert">
      <State state="failed">{sentence(error)}</State>
    </p>
  ) : null;

export function Card({
  title,
  note,
  children,
  id,
}: {
  title: string;
  note?: ReactNode;
  children: ReactNode;
  id?: string;
}) {
  return (
    <section className="card" aria-label={title} id={id}>
      <div className="head">
        <h2>{title}</h2>
        {note && <div className="muted small">{note}</div>}
      </div>
      {children}
    </section>
  );
}

/** Why there is nothing here, and what to do about it. */
export function Empty({ children, command }: { children: ReactNode; command?: string }) {
  return (
    <>
      <p className="empty">{children}</p>
      {command && <Command text={command} />}
    </>
  );
}

export function ObjectLink({ kind, name }: { kind: string; name: string }) {
  return (
    <Link className="name" {...itemAt(kind, name)}>
      {name}
    </Link>
  );
}

export const Why = ({ children }: { children: ReactNode }) =>
  children ? <span className="why">{children}</span> : null;

export const stateOf = ({ enable, state, status }: Record<string, unknown>) =>
  enable === false ? "disabled" : String(state ?? (typeof status === "string" ? status : "")); // a number is one of HTTP
export const causeOf = (row: Record<string, unknown>) => {
  const cause = row.problem ?? row.reason ?? row.status_reason;
  return typeof cause === "string" ? cause : "";
};
