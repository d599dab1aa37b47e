// Saving: drafts that outlive the page, the effect of a change before it is made, and conflicts with changes by others.

import { useQueryClient } from "@tanstack/react-query";
import { type ReactNode, useCallback, useEffect, useState } from "react";
import { type Call, call, type Effect, type Problem, Refused, sentence } from "../api/client";
import { kindOf } from "../api/kinds";
import { ObjectLink, State } from "./card";
import { Difference } from "./editor";
import { pretty } from "./format";
import { useFixed } from "./read-only";

const PLACE = "sluice.draft.";
const LONGEST = 256 * 1024;

interface Stored<T> {
  value: T;
  etag: string;
}

function stored<T>(key: string): Stored<T> | null {
  try {
    return JSON.parse(localStorage.getItem(PLACE + key) ?? "null");
  } catch {
    return null; // a value that does not parse, or no storage
  }
}

export interface DraftOf<T> {
  value: T;
  /** The object that ``value`` is compared with: that of ``etag``, whatever the server has sent since. */
  base: T;
  /** ETag of the object when the draft was started. */
  etag: string;
  set: (changed: T | ((known: T) => T)) => void;
  isChanged: boolean;
  isRestored: boolean;
  discard: () => void;
  /** The draft was saved: later changes are compared with this object. */
  settle: (value: T, etag: string) => void;
}

/** What is being edited, kept in this browser until it is saved or discarded. ``kept`` leaves out what may not be kept,
 *  as passwords. Give ``key`` as ``rules/warm``, or ``rules/new``. */
export function useDraft<T>(key: string, initial: T, etag = "", kept: (value: T) => T = (value) => value): DraftOf<T> {
  const [state, setState] = useState(() => {
    const found = stored<T>(key);
    return {
      base: initial,
      etag: found?.etag ?? etag,
      value: found?.value ?? initial,
      isRestored: found !== null,
      latest: { value: initial, etag },
    };
  });
  const { base, value, isRestored } = state;
  const isChanged = JSON.stringify(value) !== JSON.stringify(base);
  useEffect(() => {
    try {
      const text = JSON.stringify({ value: kept(value), etag: state.etag });
      if (isChanged && text.length <= LONGEST) localStorage.setItem(PLACE + key, text);
      else localStorage.removeItem(PLACE + key);
    } catch {
      // no storage, or it is full: the draft lives until the page is left
    }
  }, [key, value, isChanged, state.etag]);
  useEffect(() => {
    setState((known) => ({
      ...known,
      latest: { value: initial, etag },
      ...(JSON.stringify(known.value) === JSON.stringify(known.base) && { base: initial, etag, value: initial }),
    }));
  }, [JSON.stringify(initial), etag]);
  const set = useCallback((changed: T | ((known: T) => T)) => {
    setState((known) => ({ ...known, value: changed instanceof Function ? changed(known.value) : changed }));
  }, []);
  const settle = (saved: T, tag: string) =>
    setState((known) => {
      // false if the user typed on during the request
      const isSame = JSON.stringify(known.value) === JSON.stringify(value);
      const latest = { value: saved, etag: tag };
      return { base: saved, etag: tag, value: isSame ? saved : known.value, isRestored: false, latest };
    });
  // not ``initial``: the live channel may be behind what was saved here
  const discard = () => setState(({ latest }) => ({ base: latest.value, ...latest, isRestored: false, latest }));
  return { value, base, etag: state.etag, set, isChanged, isRestored: isRestored && isChanged, discard, settle };
}

export function DraftStrip({ draft }: { draft: { isRestored: boolean; discard: () => void } }) {
  if (!draft.isRestored) return null;
  return (
    <p className="note" role="status">
      Your draft was restored; it is not saved.{" "}
      <button type="button" className="quiet" onClick={draft.discard}>
        Discard it
      </button>
    </p>
  );
}

export interface Saving {
  /** The problem of the last attempt. */
  problem: Problem | undefined;
  says: string;
  /** Effect of the body ``asked``. */
  effect: Effect | null;
  asked: string;
  conflict: { theirs: Record<string, unknown>; etag: string } | null;
  isBusy: boolean;
  /** A dry run. True if nothing needs confirmation. */
  check: (body: unknown) => Promise<boolean>;
  save: (body: unknown, over?: string) => Promise<{ body: Record<string, unknown>; etag: string } | null>;
  clear: () => void;
}

/** Creates an object, or replaces it if ``name`` is given; of a kind that is patched, the body has what changes.
 *  ``query`` is added to each request, such as ``force``. */
export function useSave({
  kind: path,
  name,
  etag,
  query,
}: {
  kind: string;
  name?: string;
  etag?: string;
  query?: Call["query"];
}): Saving {
  const kind = kindOf(path)!;
  const queries = useQueryClient();
  const nothing = { problem: undefined, says: "", effect: null, asked: "", conflict: null };
  const [shown, show] = useState<Pick<Saving, "problem" | "says" | "effect" | "asked" | "conflict">>(nothing);
  const [isBusy, setBusy] = useState(false);
  const method = name === undefined ? "POST" : kind.isPatched ? "PATCH" : "PUT";
  const placeOf = (body: unknown) => {
    const named = name ?? (kind.isCreatedByName ? String((body as Record<string, unknown>)[kind.key]) : undefined);
    return named === undefined ? kind.api : `${kind.api}/${encodeURIComponent(named)}`;
  };
  const ask = async <T,>(place: string, question: () => Promise<T>): Promise<T | null> => {
    setBusy(true);
    try {
      return await question();
    } catch (error) {
      if (error instanceof Refused && error.status === 412) {
        const now = await call("GET", place).catch(() => null);
        show({ ...nothing, conflict: now && { theirs: now.body, etag: now.etag }, says: now ? "" : sentence(error) });
      } else show({ ...nothing, problem: error instanceof Refused ? error.problem : undefined, says: sentence(error) });
      return null;
    } finally {
      setBusy(false);
    }
  };
  const check = async (body: unknown) => {
    const place = placeOf(body);
    const dry = { body, etag, query: { ...query, dry_run: true } };
    const answer = await ask(place, () => call<Effect>(method, place, dry));
    if (!answer) return false;
    show({ ...nothing, effect: answer.body, asked: JSON.stringify(body) });
    return isFree(answer.body);
  };
  const save = async (body: unknown, over?: string) => {
    const place = placeOf(body);
    const answer = await ask(place, () => call(method, place, { body, etag: over ?? etag, query }));
    if (!answer) return null;
    show(nothing);
    void queries.invalidateQueries(); // not awaited: input from now on applies to the saved object
    return answer;
  };
  return { ...shown, isBusy, check, save, clear: () => show(nothing) };
}

interface SaveBarProps {
  saving: Saving;
  body: unknown;
  isChanged: boolean;
  label?: string;
  /** After it was saved; ``etag`` is that of the saved object. */
  onSaved: (body: Record<string, unknown>, etag: string) => void;
  /** Replaces the draft with the object on the server. */
  onDiscard: () => void;
  /** Where the answer has the members of the body, if below others. */
  shownOf?: (object: Record<string, unknown>) => Record<string, unknown>;
  children?: ReactNode;
}

/** The save buttons, with the effect of the change, its problems, and the conflict if there is one. */
export function SaveBar({
  saving,
  body,
  isChanged,
  label = "Save",
  onSaved,
  onDiscard,
  shownOf,
  children,
}: SaveBarProps) {
  const { effect, conflict, isBusy } = saving;
  const isFixed = useFixed();
  const isShown = effect !== null && saving.asked === JSON.stringify(body); // of later input it says nothing
  const mustAsk = isShown && !isFree(effect);
  const finish = async (over?: string) => {
    const saved = await saving.save(body, over);
    if (saved) onSaved(saved.body, saved.etag);
  };
  const press = async () => {
    if (mustAsk || (await saving.check(body))) await finish();
  };
  return (
    <div className="saving">
      {conflict && (
        <section className="card conflict" role="alertdialog" aria-label="Conflict">
          <h2>Somebody else changed this object</h2>
          <p>Your changes are not saved yet.</p>
          <Difference
            titles={["Theirs", "Yours"]}
            before={pretty(common(shownOf?.(conflict.theirs) ?? conflict.theirs, body))}
            after={pretty(body)}
            language="json"
          />
          <div className="buttons">
            <button
              type="button"
              onClick={() => {
                saving.clear();
                onDiscard();
              }}>
              Take theirs
            </button>
            <button type="button" className="primary" disabled={isBusy} onClick={() => void finish(conflict.etag)}>
              Save yours over it
            </button>
          </div>
        </section>
      )}
      {isShown && <EffectView effect={effect} />}
      <div role="alert">
        {saving.says && <State state="failed">{saving.says}</State>}
        {saving.problem && <Entries entries={saving.problem.errors} />}
      </div>
      <div className="buttons">
        <button
          type="button"
          className="primary"
          disabled={isFixed || isBusy || (!isChanged && !mustAsk)}
          onClick={() => void press()}>
          {mustAsk ? `${label}, with these effects` : label}
        </button>
        <button type="button" disabled={isFixed || isBusy} onClick={() => void saving.check(body)}>
          Show the effect
        </button>
        {isChanged && (
          <button
            type="button"
            onClick={() => {
              saving.clear();
              onDiscard();
            }}>
            Discard
          </button>
        )}
        {children}
      </div>
    </div>
  );
}

/** The members of theirs that mine has too: the others are added by the server. */
function common(theirs: Record<string, unknown>, mine: unknown): Record<string, unknown> {
  return Object.fromEntries(Object.keys(mine as object).map((name) => [name, theirs[name]]));
}

/** Whether a change touches nothing but its object. */
const isFree = (effect: Effect) => !effect.affected.length && !effect.consequences.length && !effect.warnings.length;

export function EffectView({ effect }: { effect: Effect }) {
  return (
    <div className="effect" role="status">
      <p>{effect.summary}</p>
      {effect.consequences.length > 0 && (
        <ul>
          {effect.consequences.map((sentence) => (
            <li key={sentence}>{sentence}</li>
          ))}
        </ul>
      )}
      {effect.affected.length > 0 && <p>Affected:</p>}
      {effect.affected.length > 0 && (
        <ul>
          {effect.affected.map(({ kind, name, how }) => (
            <li key={`${kind} ${name}`}>
              {kind} <Named kind={kind} name={name} />: {how}
            </li>
          ))}
        </ul>
      )}
      <Entries entries={effect.warnings} />
    </div>
  );
}

function Named({ kind, name }: { kind: string; name: string }) {
  const path = [kind, `${kind}s`, kind.split("/").at(-1) ?? ""].find(kindOf);
  return path ? <ObjectLink kind={path} name={name} /> : <code>{name}</code>;
}

function Entries({ entries }: { entries: Problem["errors"] }) {
  if (!entries.length) return null;
  return (
    <ul>
      {entries.map(({ message, line, column, suggestion }, at) => (
        <li key={at}>
          {line !== undefined && (
            <span className="muted">
              line {line}, column {column}:{" "}
            </span>
          )}
          {message}
          {suggestion && (
            <>
              {" "}
              <span className="muted">{suggestion}</span>
            </>
          )}
        </li>
      ))}
    </ul>
  );
}
