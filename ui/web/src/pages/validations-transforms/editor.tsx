// A validation or transformation as a form and as code.

import { useNavigate, useSearch } from "@tanstack/react-router";
import { type ReactNode, useState } from "react";
import { Card } from "../../parts/card";
import { CopySpec } from "../../parts/copy-as";
import { Editor } from "../../parts/editor";
import { pretty } from "../../parts/format";
import type { ObjectProps } from "../../parts/kind-page";
import { Permitted } from "../../parts/permitted";
import { useFixed } from "../../parts/read-only";
import { DraftStrip, SaveBar, useDraft, useSave } from "../../parts/saving";
import { SchemaForm } from "../../parts/schema-form";
import { specOf } from "../../parts/spec-form";
import { kindOf } from "../../api/kinds";
import { Preview } from "./preview";
import { type Gate, type Spec, type Which } from "./shared";

/** The object as code. The text stays as typed while it means the same as the form. */
function Code({ value, onChange }: { value: Spec; onChange: (value: Spec) => void }) {
  const [typed, setTyped] = useState({ text: "", means: "" });
  const now = JSON.stringify(value);
  const change = (text: string) => {
    try {
      const read = JSON.parse(text);
      if (typeof read !== "object" || read === null || Array.isArray(read)) throw new Error("expected an object");
      setTyped({ text, means: JSON.stringify(read) });
      onChange(read);
    } catch {
      setTyped({ text, means: now });
    }
  };
  const lint = async (text: string) => {
    try {
      JSON.parse(text);
      return [];
    } catch (error) {
      return [
        {
          message: `code: expected JSON. ${(error as Error).message}. The form shows the last text that was`,
          severity: "error" as const,
        },
      ];
    }
  };
  const [check] = useState(() => lint);
  return (
    <Editor
      label="As code"
      language="json"
      readOnly={useFixed()}
      value={typed.means === now ? typed.text : pretty(value)}
      onChange={change}
      lint={check}
    />
  );
}

function Form({
  which,
  draft,
  isNew,
  children,
}: {
  which: Which;
  draft: { value: Spec; set: (value: Spec) => void };
  isNew: boolean;
  children: ReactNode;
}) {
  const [problems, setProblems] = useState<{ pointer?: string; message: string }[]>([]);
  return (
    <>
      <div className="halves">
        <Card title="Settings">
          <SchemaForm
            schema={{ $ref: `#/components/schemas/${which.model}` }}
            value={draft.value}
            onChange={draft.set}
            skip={isNew ? [] : ["name"]}
            problems={problems}
          />
        </Card>
        <Card
          title="The same as code"
          note={<CopySpec kind={which.path} name={String(draft.value.name || "unnamed")} spec={draft.value} />}>
          <Code value={draft.value} onChange={draft.set} />
        </Card>
      </div>
      <Permitted right="stages" does="try" to={`try ${which.path}`}>
        <Preview which={which} draft={draft.value} setProblems={setProblems} />
      </Permitted>
      {children}
    </>
  );
}

export const Change = (which: Which) =>
  function Changed({ name, object, etag }: ObjectProps<Gate>) {
    const own = (shown: Spec): Spec => ({ name, ...specOf(kindOf(which.path)!, shown) });
    const draft = useDraft<Spec>(`${which.path}/${name}`, own(object as unknown as Spec), etag);
    const saving = useSave({ kind: which.path, name, etag: draft.etag });
    return (
      <>
        <DraftStrip draft={draft} />
        <Form which={which} draft={draft} isNew={false}>
          <SaveBar
            saving={saving}
            body={draft.value}
            isChanged={draft.isChanged}
            onDiscard={draft.discard}
            onSaved={(saved, tag) => draft.settle(own(saved), tag)}
          />
        </Form>
      </>
    );
  };

export const Create = (which: Which) =>
  function Created() {
    const navigate = useNavigate();
    const { schema, type } = useSearch({ strict: false }) as { schema?: string; type?: string };
    const fresh = schema && which.path === "validations" ? { ...which.fresh, checks: [{ type, schema }] } : which.fresh;
    const draft = useDraft<Spec>(`${which.path}/new`, fresh);
    const saving = useSave({ kind: which.path });
    const done = (name: string) => {
      draft.settle(fresh, "");
      void navigate({ to: "/$kind/$name", params: { kind: which.path, name } } as never);
    };
    return (
      <>
        <DraftStrip draft={draft} />
        <Form which={which} draft={draft} isNew>
          <SaveBar
            saving={saving}
            body={draft.value}
            isChanged={draft.isChanged}
            onDiscard={draft.discard}
            onSaved={(saved) => done(String(saved.name))}
          />
        </Form>
      </>
    );
  };
