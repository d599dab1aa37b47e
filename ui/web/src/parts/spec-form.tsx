// The settings of an existing or a new object as a form. Unsaved changes are kept as a draft.

import { useNavigate } from "@tanstack/react-router";
import { type ReactNode, useState } from "react";
import { itemAt, type Kind, kindOf } from "../api/kinds";
import { Card, ObjectLink } from "./card";
import { Command } from "./copy";
import { CopySpec } from "./copy-as";
import { DraftStrip, SaveBar, useDraft, useSave } from "./saving";
import { SchemaForm, useSchemas, withoutSecrets } from "./schema-form";

export type Members = Record<string, unknown>;

interface Props {
  kind: string;
  /** In the description of the API. */
  schema: string;
  /** Name of the object to change; a new one is created without it. */
  name?: string;
  object: object;
  etag?: string;
  /** Members without a field in the form. */
  skip?: string[];
  /** Members that can be set, where an object has them below others. */
  settingsOf?: (object: Members) => Members;
  /** Places that set members over what is saved here, by their keys. */
  fixed?: Record<string, string>;
  /** Fields before those of the schema. */
  fields?: (
    value: Members,
    change: (changed: Members) => void,
    problemAt: (pointer: string) => string | undefined,
  ) => ReactNode;
}

export function SpecForm({ kind: path, schema, name, object, etag, skip = [], settingsOf, fixed, fields }: Props) {
  const kind = kindOf(path)!;
  const settings = (shown: Members) => specOf(kind, settingsOf?.(shown) ?? shown);
  const navigate = useNavigate();
  const described = { $ref: `#/components/schemas/${schema}` };
  const schemas = useSchemas(described);
  const masked = (value: Members, kept: string | undefined) =>
    schemas ? (withoutSecrets(value, described, schemas, kept) as Members) : value;
  const draft = useDraft<Members>(
    `${path}/${name ?? "new"}${schema === kind.model ? "" : `/${schema}`}`,
    name === undefined ? (object as Members) : settings(object as Members),
    etag,
    (value) => masked(value, name && MASKED),
  );
  const saving = useSave({ kind: path, name, etag: draft.etag || undefined });
  const isPatch = name !== undefined && kind.isPatched;
  const sent = isPatch ? changesOf(draft.base, draft.value) : draft.value;
  const change = (changed: Members) => draft.set((known) => ({ ...known, ...changed }));
  const [once, setOnce] = useState<{ name: string; secrets: [string, string][] } | null>(null);
  const saved = (body: Members, tag: string) => {
    const own = String(body[kind.key] ?? body.name);
    const secrets = generated(body);
    setOnce(secrets.length ? { name: own, secrets } : null);
    if (name !== undefined) return draft.settle(settings(body), tag);
    draft.discard();
    if (!secrets.length) void navigate(itemAt(path, own) as never);
  };
  const problemAt = (pointer: string) => saving.problem?.errors.find((one) => one.pointer === pointer)?.message;
  const shownOnce = once && (
    <ShownOnce secrets={once.secrets}>
      <ObjectLink kind={path} name={once.name} />
    </ShownOnce>
  );
  if (shownOnce && name === undefined) return <Card title={kind.one}>{shownOnce}</Card>;
  return (
    <Card title={name === undefined ? `The ${kind.one.toLowerCase()}` : "Settings"}>
      {shownOnce}
      <DraftStrip draft={draft} />
      <form onSubmit={(event) => event.preventDefault()} aria-label={kind.one}>
        {fields?.(draft.value, change, problemAt)}
        <SchemaForm
          schema={described}
          value={draft.value}
          onChange={draft.set}
          skip={[...kind.readOnly, ...(name === undefined ? skip : [kind.key, ...skip])]}
          fixed={fixed}
          problems={saving.problem?.errors}
        />
        <SaveBar
          saving={saving}
          body={sent}
          shownOf={settingsOf}
          isChanged={name === undefined || draft.isChanged}
          label={name === undefined ? "Create" : "Save"}
          onDiscard={draft.discard}
          onSaved={saved}>
          <CopySpec
            kind={path}
            name={name ?? String(draft.value[kind.key] || "NAME")}
            spec={masked(sent, MASKED)}
            method={isPatch ? "PATCH" : kind.isCreatedByName ? "POST" : "PUT"}
          />
        </SaveBar>
      </form>
    </Card>
  );
}

/** The members of an object that a request sets. */
export const writable = (kind: Kind, object: Members): Members =>
  Object.fromEntries(Object.entries(object).filter(([member]) => !kind.readOnly.includes(member)));

/** What a request may say of an object: without its name, which the path has, and what is empty. */
export const specOf = (kind: Kind, object: Members): Members =>
  Object.fromEntries(
    Object.entries(writable(kind, object)).filter(
      ([member, value]) =>
        member !== kind.key && value !== "" && value !== null && !(Array.isArray(value) && !value.length),
    ),
  );

/** What a patch says to make one object another: what is gone is null. */
function changesOf(before: Members, after: Members): Members {
  const isPart = (value: unknown): value is Members =>
    typeof value === "object" && value !== null && !Array.isArray(value);
  const names = [...new Set([...Object.keys(before), ...Object.keys(after)])];
  return Object.fromEntries(
    names.flatMap((name) => {
      const [old, now] = [before[name], after[name]];
      if (JSON.stringify(old) === JSON.stringify(now)) return [];
      return [[name, isPart(old) && isPart(now) ? changesOf(old, now) : (now ?? null)]];
    }),
  );
}

const MASKED = "******";
/** Secrets that the server generated, which only the answer to the request that saves has. */
const generated = (answer: Members) =>
  Object.entries(answer).filter(
    ([member, value]) => /^(token|password|secret)$/.test(member) && typeof value === "string" && value !== MASKED,
  ) as [string, string][];

function ShownOnce({ secrets, children }: { secrets: [string, string][]; children: ReactNode }) {
  return (
    <section className="note" role="status" aria-label="Shown only once">
      <p>
        <strong>Shown only once.</strong> The server does not store it in clear: copy it now.
      </p>
      {secrets.map(([member, value]) => (
        <Command key={member} text={value} />
      ))}
      {children}
    </section>
  );
}
