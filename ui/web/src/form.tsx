// A form from a JSON Schema: the settings of anything that the API describes.

import { useQuery } from "@tanstack/react-query";
import { type ReactNode, useId, useState } from "react";
import { getAny } from "./api";

export interface JsonSchema {
  $ref?: string; type?: string | string[]; title?: string; description?: string; default?: unknown; const?: unknown; enum?: unknown[]; format?: string;
  properties?: Record<string, JsonSchema>; required?: string[]; additionalProperties?: boolean | JsonSchema; items?: JsonSchema;
  anyOf?: JsonSchema[]; oneOf?: JsonSchema[]; allOf?: JsonSchema[]; writeOnly?: boolean; minimum?: number; maximum?: number; minLength?: number;
  $defs?: Record<string, JsonSchema>;
}

type Value = unknown;
type Members = Record<string, unknown>;
type Schemas = Record<string, JsonSchema>;

/** The types of the API by name; undefined until they are loaded. */
export function useSchemas(): Schemas | undefined {
  const { data } = useQuery({ queryKey: ["openapi"], queryFn: () => getAny<{ components: { schemas: Schemas } }>("openapi.json"), staleTime: Infinity, retry: true });
  return data?.components.schemas;
}

interface Context { schemas: Schemas; skip: ReadonlySet<string>; problemAt: (pointer: string) => string | undefined; hasStored: boolean }

export interface FormProps {
  schema: JsonSchema;
  value: Members;
  onChange: (value: Members) => void;
  /** Members that the page sets otherwise. */
  skip?: string[];
  /** What is wrong at a JSON pointer, from the problem of the last answer. */
  problems?: { pointer?: string; message: string }[];
  /** The object exists, so that an empty secret keeps the stored one. */
  hasStored?: boolean;
}

export function SchemaForm({ schema, value, onChange, skip = [], problems = [], hasStored = false }: FormProps) {
  const schemas = useSchemas();
  if (!schemas) return <p className="muted" role="status">Loading the settings…</p>;
  const problemAt = (pointer: string) => problems.find((one) => one.pointer === pointer)?.message;
  const context = { schemas: { ...schemas, ...schema.$defs }, skip: new Set(skip), problemAt, hasStored };
  return <MembersOf context={context} schema={resolved(schema, context.schemas)} value={value} at="" onChange={(changed) => onChange(changed as Members)} />;
}

function resolved(schema: JsonSchema, schemas: Schemas): JsonSchema {
  if (schema.allOf?.length === 1) return { ...resolved(schema.allOf[0]!, schemas), ...schema, allOf: undefined };
  if (!schema.$ref) return schema;
  const { $ref, ...rest } = schema;
  return { ...resolved(schemas[$ref.split("/").at(-1)!] ?? {}, schemas), ...rest };
}

/** Without a null among its alternatives, and with the alternatives that are left. */
function alternatives(schema: JsonSchema, schemas: Schemas): { isNullable: boolean; forms: JsonSchema[] } {
  const all = (schema.anyOf ?? schema.oneOf ?? [schema]).map((one) => (one === schema ? one : resolved(one, schemas)));
  const forms = all.filter(({ type }) => type !== "null");
  return { isNullable: forms.length < all.length, forms };
}

const isSecret = (name: string, schema: JsonSchema) => schema.format === "password" || schema.writeOnly === true || /(^|_)(password|secret|token)$/.test(name);
const wordsOf = (name: string) => name.replaceAll("_", " ").replace(/^./, (first) => first.toUpperCase());
const isMembers = (value: Value): value is Members => typeof value === "object" && value !== null && !Array.isArray(value);

interface FieldProps { context: Context; schema: JsonSchema; value: Value; at: string; onChange: (value: Value) => void }

/** The members of an object: those that are required or set, then the rest folded away. */
function MembersOf({ context, schema, value, at, onChange }: FieldProps) {
  const given = isMembers(value) ? value : {};
  const [shownFirst] = useState(() => new Set([...(schema.required ?? []), ...Object.keys(given)]));
  const names = Object.keys(schema.properties ?? {}).filter((name) => at !== "" || !context.skip.has(name));
  const change = (name: string, changed: Value) => {
    const { [name]: _, ...rest } = given;
    onChange(changed === undefined ? rest : { ...given, [name]: changed });
  };
  const field = (name: string) => (
    <Member key={name} context={context} name={name} schema={schema.properties?.[name] ?? {}} value={given[name]} at={`${at}/${name}`}
      isRequired={schema.required?.includes(name) ?? false} onChange={(changed) => change(name, changed)} />
  );
  const [first, rest] = [names.filter((name) => shownFirst.has(name)), names.filter((name) => !shownFirst.has(name))];
  if (!first.length && rest.length <= 6) return <div className="fields">{rest.map(field)}</div>;
  return (
    <div className="fields">
      {first.map(field)}
      {rest.length > 0 && <details className="more"><summary>{rest.length} more {rest.length === 1 ? "setting" : "settings"}</summary><div className="fields">{rest.map(field)}</div></details>}
    </div>
  );
}

function Member({ context, name, schema: raw, value, at, isRequired, onChange }: FieldProps & { name: string; isRequired: boolean }) {
  const schema = resolved(raw, context.schemas);
  const { isNullable, forms } = alternatives(schema, context.schemas);
  const problem = context.problemAt(at);
  const id = useId();
  const frame = (control: ReactNode, isGroup = false) => (
    <div className={`field ${isGroup ? "group" : ""}`} role={isGroup ? "group" : undefined} aria-labelledby={isGroup ? `${id}-label` : undefined}>
      {isGroup ? <p className="label" id={`${id}-label`}>{wordsOf(name)}</p> : <label htmlFor={id}>{wordsOf(name)}{isRequired && <span className="muted"> (required)</span>}</label>}
      {control}
      {schema.description && <p className="help" id={`${id}-help`}>{schema.description}</p>}
      {problem && <p className="err small" role="alert" id={`${id}-problem`}>{problem}</p>}
    </div>
  );
  const props = { context, value, at, onChange };
  const described = [schema.description && `${id}-help`, problem && `${id}-problem`].filter(Boolean).join(" ") || undefined;
  const common = { id, "aria-describedby": described, "aria-invalid": problem ? true : undefined } as const;
  const [only] = forms;
  if (forms.length > 1 && forms.every((one) => one.properties || one.type === "object")) return frame(<Variant {...props} schema={schema} forms={forms} isNullable={isNullable} />, true);
  if (forms.length === 1 && only) {
    if (only.properties) {
      const isOn = value !== undefined && value !== null;
      const body = (isOn || !isNullable) && <MembersOf {...props} schema={only} />;
      return frame(<>{isNullable && <Check label="Set" isOn={isOn} onChange={(on) => onChange(on ? {} : undefined)} />}{body}</>, true);
    }
    if (only.type === "object" || (only.additionalProperties && !only.type)) return frame(<Pairs {...props} schema={only} />, true);
    if (only.type === "array") return frame(<Items {...props} schema={only} common={common} />, resolvesToMembers(only.items, context));
    if (only.type === "boolean") {
      return <div className="field"><Check {...common} label={wordsOf(name)} isOn={Boolean(value ?? schema.default)} onChange={onChange} />{schema.description && <p className="help" id={`${id}-help`}>{schema.description}</p>}{problem && <p className="err small" role="alert" id={`${id}-problem`}>{problem}</p>}</div>;
    }
    const choices = only.enum ?? (only.const === undefined ? undefined : [only.const]);
    if (choices) {
      const shown = value ?? schema.default ?? "";
      return frame(
        <select {...common} value={String(shown)} onChange={(event) => onChange(choices.find((one) => String(one) === event.target.value))}>
          {!choices.includes(shown) && <option value="">{isRequired ? "Choose…" : "not set"}</option>}
          {choices.map((one) => <option key={String(one)}>{String(one)}</option>)}
        </select>,
      );
    }
  }
  return frame(<Text {...common} schema={schema} forms={forms} isSecret={isSecret(name, only ?? schema)} hasStored={context.hasStored} isRequired={isRequired} value={value} onChange={onChange} />);
}

const resolvesToMembers = (items: JsonSchema | undefined, { schemas }: Context) => Boolean(items && alternatives(resolved(items, schemas), schemas).forms.some((one) => one.properties));

function Check({ label, isOn, onChange, ...rest }: { label: string; isOn: boolean; onChange: (on: boolean) => void; id?: string; "aria-describedby"?: string }) {
  return <label className="check"><input type="checkbox" {...rest} checked={isOn} onChange={(event) => onChange(event.target.checked)} /> {label}</label>;
}

interface TextProps {
  id: string; schema: JsonSchema; forms: JsonSchema[]; isSecret: boolean; hasStored: boolean; isRequired: boolean; value: Value; onChange: (value: Value) => void;
  "aria-describedby"?: string; "aria-invalid"?: true;
}

/** A number, a text, or either, as a duration of seconds or "10s" is. */
function Text({ schema, forms, isSecret, hasStored, isRequired, value, onChange, ...common }: TextProps) {
  const types = forms.flatMap(({ type }) => type ?? []);
  const isNumber = types.length > 0 && types.every((type) => type === "integer" || type === "number");
  const placeholder = isSecret && hasStored ? "unchanged" : schema.default === undefined || schema.default === null ? undefined : String(schema.default);
  const read = (text: string): Value => {
    if (text === "" && !isRequired) return undefined;
    const isNumeric = types.some((type) => type === "integer" || type === "number") && /^-?\d+(\.\d+)?$/.test(text);
    return isNumeric ? Number(text) : text;
  };
  const shown = value === undefined || value === null ? "" : typeof value === "object" ? JSON.stringify(value) : String(value);
  const isLong = /PEM|SQL|template/i.test(schema.description ?? "") || shown.includes("\n");
  const props = { ...common, spellCheck: false, autoComplete: "off", placeholder, required: isRequired && !(isSecret && hasStored), value: shown };
  if (isLong && !isSecret) return <textarea {...props} rows={Math.min(8, shown.split("\n").length + 1)} onChange={(event) => onChange(read(event.target.value))} />;
  return <input {...props} type={isSecret ? "password" : "text"} inputMode={isNumber ? "decimal" : undefined} autoComplete={isSecret ? "new-password" : "off"} onChange={(event) => onChange(read(event.target.value))} />;
}

/** One of several objects, told apart by a member that is constant. */
function Variant({ context, forms, isNullable, value, at, onChange }: FieldProps & { forms: JsonSchema[]; isNullable: boolean }) {
  const mark = Object.keys(forms[0]?.properties ?? {}).find((name) => forms.every((one) => constantOf(one, name) !== undefined));
  const nameOf = (form: JsonSchema) => String((mark && constantOf(form, mark)) ?? form.title ?? "");
  const given = isMembers(value) ? value : undefined;
  const guessed = given && forms.find((one) => (mark ? constantOf(one, mark) === given[mark] : Object.keys(given).every((name) => one.properties?.[name])));
  const choose = (title: string) => {
    const form = forms.find((one) => nameOf(one) === title);
    onChange(form ? (mark ? { [mark]: constantOf(form, mark) } : {}) : undefined);
  };
  return (
    <>
      <select aria-label="Form" value={guessed ? nameOf(guessed) : ""} onChange={(event) => choose(event.target.value)}>
        {(isNullable || !guessed) && <option value="">not set</option>}
        {forms.map((one) => <option key={nameOf(one)}>{nameOf(one)}</option>)}
      </select>
      {guessed && <MembersOf key={nameOf(guessed)} context={context} schema={mark ? without(guessed, mark) : guessed} value={given} at={at} onChange={onChange} />}
    </>
  );
}

const constantOf = (schema: JsonSchema, name: string): Value => schema.properties?.[name]?.const ?? (schema.properties?.[name]?.enum?.length === 1 ? schema.properties[name]?.enum?.[0] : undefined);

function without(schema: JsonSchema, name: string): JsonSchema {
  const { [name]: _, ...properties } = schema.properties ?? {};
  return { ...schema, properties, required: schema.required?.filter((one) => one !== name) };
}

/** Any keys with values of one form. */
function Pairs({ context, schema, value, at, onChange }: FieldProps) {
  const given = Object.entries(isMembers(value) ? value : {});
  const form = typeof schema.additionalProperties === "object" ? resolved(schema.additionalProperties, context.schemas) : {};
  const replace = (index: number, pair: [string, Value] | null) => onChange(Object.fromEntries(given.flatMap((one, n) => (n === index ? (pair ? [pair] : []) : [one]))));
  return (
    <>
      {given.map(([key, item], n) => (
        <div className="pair" key={n}>
          <input aria-label={`Key ${n + 1}`} spellCheck={false} value={key} onChange={(event) => replace(n, [event.target.value, item])} />
          <Text id={`${at}/${n}`} aria-describedby={undefined} schema={form} forms={alternatives(form, context.schemas).forms} isSecret={false} hasStored={false} isRequired value={item} onChange={(changed) => replace(n, [key, changed])} />
          <button type="button" aria-label={`Remove ${key}`} onClick={() => replace(n, null)}>Remove</button>
        </div>
      ))}
      <button type="button" onClick={() => onChange({ ...Object.fromEntries(given), "": "" })} disabled={given.some(([key]) => key === "")}>Add</button>
    </>
  );
}

/** A list: of texts one per line, of objects one below the other. */
function Items({ context, schema, value, at, onChange, common }: FieldProps & { common: { id: string; "aria-describedby"?: string } }) {
  const given = Array.isArray(value) ? value : Array.isArray(schema.default) && value === undefined ? schema.default : [];
  const item = resolved(schema.items ?? {}, context.schemas);
  const { forms } = alternatives(item, context.schemas);
  if (!resolvesToMembers(schema.items, context)) {
    const isNumber = forms.every(({ type }) => type === "integer" || type === "number");
    const read = (text: string) => (text === "" ? undefined : text.split("\n").map((line) => (isNumber && line.trim() !== "" ? Number(line) : line)));
    return <textarea {...common} rows={Math.max(2, given.length)} spellCheck={false} placeholder="one per line" value={given.map((one) => (isMembers(one) ? JSON.stringify(one) : String(one))).join("\n")} onChange={(event) => onChange(read(event.target.value))} />;
  }
  const replace = (index: number, changed: Value) => onChange(given.flatMap((one, n) => (n === index ? (changed === undefined ? [] : [changed]) : [one])));
  return (
    <ol className="items">
      {given.map((one, n) => (
        <li key={n} className="fields">
          {forms.length > 1
            ? <Variant context={context} schema={item} forms={forms} isNullable={false} value={one} at={`${at}/${n}`} onChange={(changed) => replace(n, changed)} />
            : <MembersOf context={context} schema={forms[0] ?? item} value={one} at={`${at}/${n}`} onChange={(changed) => replace(n, changed)} />}
          <button type="button" aria-label={`Remove ${n + 1}`} onClick={() => replace(n, undefined)}>Remove</button>
        </li>
      ))}
      <li><button type="button" onClick={() => onChange([...given, {}])}>Add</button></li>
    </ol>
  );
}
