// The settings of an existing or a new object as a form. Unsaved changes are kept as a draft.

import { useNavigate } from "@tanstack/react-router";
import type { ReactNode } from "react";
import { kindOf } from "../api/kinds";
import { Card } from "./card";
import { CopySpec } from "./copy";
import { DraftStrip, SaveBar, useDraft, useSave } from "./saving";
import { SchemaForm } from "./schema-form";

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
  const draft = useDraft<Members>(
    `${path}/${name ?? "new"}`,
    name === undefined ? (object as Members) : specOf(object as Members),
    etag,
  );
  const saving = useSave({ kind: path, name, etag: draft.etag || undefined });
  const change = (changed: Members) => draft.set((known) => ({ ...known, ...changed }));
  const saved = (body: Members, tag: string) => {
    if (name !== undefined) return draft.settle(specOf(body), tag);
    draft.discard();
    void navigate({ to: "/$kind/$name", params: { kind: path, name: String(body.name) } } as never);
  };
  const problemAt = (pointer: string) => saving.problem?.errors.find((one) => one.pointer === pointer)?.message;
  return (
    <Card title={name === undefined ? `The ${kind.one.toLowerCase()}` : "Settings"}>
      <DraftStrip draft={draft} />
      <form onSubmit={(event) => event.preventDefault()} aria-label={kind.one}>
        {fields?.(draft.value, change, problemAt)}
        <SchemaForm
          schema={{ $ref: `#/components/schemas/${schema}` }}
          value={draft.value}
          onChange={draft.set}
          skip={name === undefined ? skip : ["name", ...skip]}
          problems={saving.problem?.errors}
        />
        <SaveBar
          saving={saving}
          body={draft.value}
          isChanged={name === undefined || draft.isChanged}
          label={name === undefined ? "Create" : "Save"}
          onDiscard={draft.discard}
          onSaved={saved}>
          <CopySpec kind={path} name={name ?? String(draft.value.name || "NAME")} spec={draft.value} />
        </SaveBar>
      </form>
    </Card>
  );
}

const SHOWN_BY_STATE = new Set(["state", "status", "status_reason", "reason", "problem"]);
/** Members that the server adds and that files must not have. */
const ADDED = new Set([
  ...SHOWN_BY_STATE,
  "name",
  "version",
  "created_at",
  "updated_at",
  "from",
  "columns",
  "warnings",
  "action_details",
  "metrics",
  "last_error",
  "kind",
  "epoch",
  "positions",
  "records",
  "bytes",
  "oldest",
  "newest",
  "records_per_s",
  "index_state",
  "tier_state",
  "lag_records",
  "rows",
  "dead_letters",
  "report",
  "rule_text",
  "store",
  "catalog_settings",
  "replay",
  "lag_s",
  "last_commit_at",
  "last_commit_rows",
  "node_status",
  "resource_opts_effective",
  "recent_failures",
  "failure_shapes",
  "id",
  "fingerprints",
  "facts",
  "latest",
  "versions",
]);

/** What a file or a request may say of an object: what the server adds, and what is empty, left out. */
export function specOf(object: Members): Members {
  return Object.fromEntries(
    Object.entries(object).filter(
      ([key, value]) => !ADDED.has(key) && value !== "" && value !== null && !(Array.isArray(value) && !value.length),
    ),
  );
}
