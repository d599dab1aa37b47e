// The settings of a bridge as a form, with secrets that are never shown.

import { useMemo } from "react";
import { call } from "../../api/client";
import { kindOf } from "../../api/kinds";
import { Card } from "../../parts/card";
import { CopySpec } from "../../parts/copy-as";
import type { ObjectProps } from "../../parts/kind-page";
import { Test } from "../../parts/probe";
import { DraftStrip, SaveBar, useDraft, useSave } from "../../parts/saving";
import {
  type JsonSchema,
  SchemaForm,
  type Schemas as FormSchemas,
  useSchemas,
  withoutSecrets,
} from "../../parts/schema-form";
import { writable } from "../../parts/spec-form";
import { type Bridge, type Members, oneOf, type Path } from "./shared";

const modelOf = (path: Path, type: string) =>
  type
    .split("_")
    .map((part) => part[0]!.toUpperCase() + part.slice(1))
    .join("") + kindOf(path)!.one;

const refTo = (path: Path, type: string): JsonSchema => ({ $ref: `#/components/schemas/${modelOf(path, type)}` });

export function Settings({
  path,
  initial,
  etag,
  name,
  skip,
  onSaved,
}: {
  path: Path;
  initial: Members;
  etag?: string;
  name?: string;
  skip: string[];
  onSaved?: (body: Members, etag: string) => void;
}) {
  const schema = useMemo(() => refTo(path, String(initial.type)), [path, initial.type]);
  const schemas = useSchemas(schema);
  return schemas ? (
    <Form {...{ path, initial, etag, name, skip, onSaved, schema, schemas }} />
  ) : (
    <p className="muted" role="status">
      Loading the settings…
    </p>
  );
}

function Form({
  path,
  initial,
  etag,
  name,
  skip,
  onSaved,
  schema,
  schemas,
}: Parameters<typeof Settings>[0] & { schema: JsonSchema; schemas: FormSchemas }) {
  const draft = useDraft<Members>(
    name ? `${path}/${name}` : `${path}/new/${String(initial.type)}`,
    initial,
    etag,
    (value) => withoutSecrets(value, schema, schemas, name && "******") as Members,
  );
  const saving = useSave({ kind: path, name, etag: draft.etag });
  const { value } = draft;
  const title = String(value.name ?? `my-${oneOf(path)}`);
  const copied = withoutSecrets(value, schema, schemas, "******") as Members;
  return (
    <Card title="Settings" note={<CopySpec kind={path} name={title} spec={copied} method={name ? "PUT" : "POST"} />}>
      <DraftStrip draft={draft} />
      <p className="muted small">
        Secrets are never shown. A stored one stays if its field is left empty; write {"${env:NAME}"} or{" "}
        {"${file:PATH}"} to keep it out of the settings. Drafts in this browser are kept without what was typed into
        such fields.
      </p>
      <form onSubmit={(event) => event.preventDefault()}>
        <SchemaForm
          schema={schema}
          value={value}
          onChange={draft.set}
          skip={skip}
          problems={saving.problem?.errors as never}
        />
      </form>
      <SaveBar
        saving={saving}
        body={value}
        isChanged={draft.isChanged || !name}
        label={name ? "Save" : "Create"}
        onDiscard={draft.discard}
        onSaved={(saved, tag) => {
          draft.settle(name ? writable(kindOf(path)!, saved) : initial, tag);
          onSaved?.(saved, tag);
        }}
      />
      <Test right={path} does="change" ask={() => call("POST", `${path}:probe`, { body: value })} />
    </Card>
  );
}

export function SettingsTab<T extends Bridge>(path: Path) {
  return {
    title: "Settings",
    show: ({ name, object, etag }: ObjectProps<T>) => {
      const skip = ["name", "type", ...(path === "connectors" ? [] : ["connector"])];
      return (
        <Settings
          path={path}
          name={name}
          initial={writable(kindOf(path)!, object as Members)}
          etag={etag}
          skip={skip}
        />
      );
    },
  };
}
