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
  /** Fields before those of the schema. */
  fields?: (
    value: Members,
    change: (changed: Members) => void,
    problemAt: (pointer: string) => string | undefined,
  ) => ReactNode;
}

export function SpecForm({ kind: path, schema, name, object, etag, skip = [], fields }: Props) {
  const kind = kindOf(path)!;
  const navigate = useNavigate();
  const described = { $ref: `#/components/schemas/${schema}` };
  const schemas = useSchemas(described);
  const masked = (value: Members, kept: string | undefined) =>
    schemas ? (withoutSecrets(value, described, schemas, kept) as Members) : value;
  const draft = useDraft<Members>(
    `${path}/${name ?? "new"}`,
    name === undefined ? (object as Members) : specOf(kind, object as Members),
    etag,
    (value) => masked(value, name && MASKED),
  );
  const saving = useSave({ kind: path, name, etag: draft.etag || undefined });
  const change = (changed: Members) => draft.set((known) => ({ ...known, ...changed }));
  const [once, setOnce] = useState<{ name: string; secrets: [string, string][] } | null>(null);
  const saved = (body: Members, tag: string) => {
    const own = String(body[kind.key] ?? body.name);
    const secrets = generated(body);
    setOnce(secrets.length ? { name: own, secrets } : null);
    if (name !== undefined) return draft.settle(specOf(kind, body), tag);
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
          skip={[...kind.readOnly, ...(name === undefined ? skip : ["name", ...skip])]}
          problems={saving.problem?.errors}
        />
        <SaveBar
          saving={saving}
          body={draft.value}
          isChanged={name === undefined || draft.isChanged}
          label={name === undefined ? "Create" : "Save"}
          onDiscard={draft.discard}
          onSaved={saved}>
          <CopySpec
            kind={path}
            name={name ?? String(draft.value[kind.key] || "NAME")}
            spec={masked(draft.value, MASKED)}
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
        member !== "name" && value !== "" && value !== null && !(Array.isArray(value) && !value.length),
    ),
  );

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
