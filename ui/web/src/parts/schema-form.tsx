// A form from a JSON Schema: the settings of anything that the API describes.

import { useQuery } from "@tanstack/react-query";
import { type ReactNode, useId, useRef, useState } from "react";
import { getAny, Refused } from "../api/client";
import { Changeable } from "./read-only";

export interface JsonSchema {
  $ref?: string;
  type?: string | string[];
  title?: string;
  description?: string;
  default?: unknown;
  const?: unknown;
  enum?: unknown[];
  format?: string;
  properties?: Record<string, JsonSchema>;
  required?: string[];
  additionalProperties?: boolean | JsonSchema;
  items?: JsonSchema;
  anyOf?: JsonSchema[];
  oneOf?: JsonSchema[];
  allOf?: JsonSchema[];
  writeOnly?: boolean;
  minimum?: number;
  maximum?: number;
  minLength?: number;
  $defs?: Record<string, JsonSchema>;
  discriminator?: { propertyName: string; mapping?: Record<string, string> };
  "x-unit"?: "seconds" | "bytes";
  /** Shown with the required members. */
  "x-first"?: boolean;
}

type Value = unknown;
type Members = Record<string, unknown>;
export type Schemas = Record<string, JsonSchema>;

/** What the server shows for a stored secret. Sent back, it keeps the secret. */
const STARS = "******";

/** A type of the API and those that it refers to, by name; undefined until they are loaded. */
export function useSchemas(of: JsonSchema): Schemas | undefined {
  const name = nameOf(of);
  const { data, error } = useQuery({
    queryKey: ["schema", name],
    queryFn: () => getAny<{ components: { schemas: Schemas } }>(`openapi.json/schemas/${name}`),
    enabled: name !== undefined,
    staleTime: Infinity,
    retry: (_, failure) => !isMissing(failure),
    retryDelay: 1000,
  });
  return name === undefined || isMissing(error) ? NO_SCHEMAS : data?.components.schemas;
}

const NO_SCHEMAS: Schemas = {};
const nameOf = ({ $ref }: JsonSchema) => $ref?.split("/").at(-1);
const isMissing = (error: unknown) => error instanceof Refused && error.status === 404;

interface Context {
  schemas: Schemas;
  skip: ReadonlySet<string>;
  problemAt: (pointer: string) => string | undefined;
  placeOf: (pointer: string) => string | undefined;
}

interface FormProps {
  schema: JsonSchema;
  value: Members;
  onChange: (value: Members) => void;
  /** Members that have controls elsewhere on the page. */
  skip?: string[];
  /** Places that set members over what is saved with the form, by the keys of the members. */
  fixed?: Record<string, string>;
  /** The problems in the last response, by JSON pointer. */
  problems?: { pointer?: string; message: string }[];
}

export function SchemaForm({ schema, value, onChange, skip = [], fixed = {}, problems = [] }: FormProps) {
  const schemas = useSchemas(schema);
  if (!schemas)
    return (
      <p className="muted" role="status">
        Loading the settings…
      </p>
    );
  const problemAt = (pointer: string) => problems.find((one) => one.pointer === pointer)?.message;
  const placeOf = (pointer: string) => fixed[pointer.slice(1).replaceAll("/", ".")];
  const context = { schemas: { ...schemas, ...schema.$defs }, skip: new Set(skip), problemAt, placeOf };
  const root = resolved(schema, context.schemas);
  const { forms } = alternatives(root, context.schemas);
  const props = { context, value, at: "", onChange: (changed: Value) => onChange((changed ?? {}) as Members) };
  return (
    <Changeable>
      {forms.length > 1 ? (
        <Variant {...props} schema={root} forms={forms} isNullable={false} />
      ) : (
        <MembersOf {...props} schema={root} />
      )}
    </Changeable>
  );
}

function resolved(schema: JsonSchema, schemas: Schemas): JsonSchema {
  if (schema.allOf?.length === 1) return { ...resolved(schema.allOf[0]!, schemas), ...schema, allOf: undefined };
  if (!schema.$ref) return schema;
  const { $ref, ...rest } = schema;
  return { ...resolved(schemas[nameOf(schema)!] ?? {}, schemas), ...rest };
}

/** The alternatives of a schema, those of its alternatives among them. */
function flattened(raw: JsonSchema, schemas: Schemas): JsonSchema[] {
  const schema = resolved(raw, schemas);
  const { propertyName = "", mapping } = schema.discriminator ?? {};
  if (mapping) {
    return Object.entries(mapping).map(([value, $ref]) => {
      const form = resolved({ $ref }, schemas);
      return { ...form, properties: { ...form.properties, [propertyName]: { const: value } } };
    });
  }
  return (schema.anyOf ?? schema.oneOf)?.flatMap((one) => flattened(one, schemas)) ?? [schema];
}

/** Without a null among its alternatives, and with the alternatives that are left. */
function alternatives(schema: JsonSchema, schemas: Schemas): { isNullable: boolean; forms: JsonSchema[] } {
  const all = flattened(schema, schemas);
  const forms = all.filter(({ type }) => type !== "null");
  return { isNullable: forms.length < all.length, forms };
}

/** A value as it may be kept in the browser: in place of a secret that was typed, ``kept``. */
export function withoutSecrets(value: Value, schema: JsonSchema, schemas: Schemas, kept: string | undefined): Value {
  const forms = flattened(schema, schemas);
  if (typeof value === "string")
    return forms.some(({ format }) => format === "password") && !isReference(value) ? kept : value;
  if (Array.isArray(value))
    return value.map((one) => withoutSecrets(one, forms.find(({ items }) => items)?.items ?? {}, schemas, kept));
  if (!isMembers(value)) return value;
  const schemaOf = (name: string) =>
    forms
      .map(
        ({ properties, additionalProperties: more }) =>
          properties?.[name] ?? (typeof more === "object" ? more : undefined),
      )
      .find(Boolean);
  return Object.fromEntries(
    Object.entries(value).map(([name, one]) => [name, withoutSecrets(one, schemaOf(name) ?? {}, schemas, kept)]),
  );
}

/** What a file must say of a value: members that the schema has and that are not as by default. */
export function withoutDefaults(value: Value, raw: JsonSchema, schemas: Schemas): Value {
  const forms = flattened(raw, schemas);
  if (Array.isArray(value))
    return value.map((one) => withoutDefaults(one, forms.find(({ items }) => items)?.items ?? {}, schemas));
  if (!isMembers(value)) return value;
  const isOf = ({ properties }: JsonSchema) =>
    properties !== undefined &&
    Object.entries(value).every(([name, one]) => constantsOf(properties[name] ?? {})?.includes(one) ?? true);
  const { properties, required = [] } = forms.find(isOf) ?? {};
  if (!properties) return value;
  const isSaid = (name: string, one: Value) =>
    properties[name] && one !== null && (required.includes(name) || !isPlain(one, properties[name], schemas));
  return Object.fromEntries(
    Object.entries(value)
      .filter(([name, one]) => isSaid(name, one))
      .map(([name, one]) => [name, withoutDefaults(one, properties[name]!, schemas)]),
  );
}

const isSecret = (name: string, schema: JsonSchema) =>
  schema.format === "password" || schema.writeOnly === true || /(^|_)(password|secret|token)$/.test(name);
const isReference = (text: string) => /^\$\{(env|file):/.test(text);
const CAPITALS = /\b(ssl|tls|url|id|ttl|mqtt|http|qos|sql|pem)\b/g;
export const wordsOf = (name: string) =>
  name
    .replaceAll("_", " ")
    .replace(/\bclientid\b/, "client id")
    .replace(CAPITALS, (word) => (word === "qos" ? "QoS" : word.toUpperCase()))
    .replace(/^./, (first) => first.toUpperCase());
/** Text with its backticked parts as code. */
export const quoted = (text: string) =>
  text.split(/`+/).map((part, at) => (at % 2 ? <code key={at}>{part}</code> : part));
const takesMembers = (form: JsonSchema) => Boolean(form.properties || form.type === "object");
const constantsOf = (form: JsonSchema) => form.enum ?? (form.const === undefined ? undefined : [form.const]);
const isMembers = (value: Value): value is Members =>
  typeof value === "object" && value !== null && !Array.isArray(value);

interface FieldProps {
  context: Context;
  schema: JsonSchema;
  value: Value;
  at: string;
  onChange: (value: Value) => void;
}

/** Whether a value equals its default. */
function isPlain(value: Value, raw: JsonSchema, schemas: Schemas): boolean {
  if (value === undefined || value === null || JSON.stringify(value) === JSON.stringify(raw.default)) return true;
  if (Array.isArray(value)) return !value.length && raw.default === undefined;
  const { properties } = resolved(raw, schemas);
  return (
    isMembers(value) && Object.entries(value).every(([name, one]) => isPlain(one, properties?.[name] ?? {}, schemas))
  );
}

/** The members of an object: first the required and the changed ones, the rest collapsed. */
function MembersOf({ context, schema, value, at, onChange }: FieldProps) {
  const given = isMembers(value) ? value : {};
  const isSet = (name: string) => !isPlain(given[name], schema.properties?.[name] ?? {}, context.schemas);
  const [shownFirst] = useState(() => {
    const members = Object.entries(schema.properties ?? {});
    const marked = members.filter(([, one]) => one["x-first"]).map(([name]) => name);
    return new Set([...(schema.required ?? []), ...marked, ...Object.keys(given).filter(isSet)]);
  });
  const names = Object.keys(schema.properties ?? {})
    .filter((name) => at !== "" || !context.skip.has(name))
    .sort((a, b) => Number(b === "name") - Number(a === "name"));
  const change = (name: string, changed: Value) => {
    const { [name]: _, ...rest } = given;
    onChange(changed === undefined ? rest : { ...given, [name]: changed });
  };
  const field = (name: string) => {
    const place = context.placeOf(`${at}/${name}`);
    const member = (
      <Member
        key={name}
        context={context}
        name={name}
        schema={schema.properties?.[name] ?? {}}
        value={given[name]}
        at={`${at}/${name}`}
        isRequired={schema.required?.includes(name) ?? false}
        onChange={(changed) => change(name, changed)}
      />
    );
    if (place === undefined) return member;
    return (
      <fieldset className="changeable" key={name} disabled>
        {member}
        <p className="help">
          Set by <code>{place}</code>, which comes before what is saved here. Change it there.
        </p>
      </fieldset>
    );
  };
  const [first, rest] = [names.filter((name) => shownFirst.has(name)), names.filter((name) => !shownFirst.has(name))];
  if (!first.length && rest.length <= 6) return <div className="fields">{rest.map(field)}</div>;
  return (
    <div className="fields">
      {first.map(field)}
      {rest.length > 0 && (
        <details
          className="more"
          open={
            at === "" &&
            first.length < 2 &&
            !first.some((name) => takesMembers(resolved(schema.properties?.[name] ?? {}, context.schemas)))
          }>
          <summary>
            {rest.length} more {rest.length === 1 ? "setting" : "settings"}
          </summary>
          <div className="fields">{rest.map(field)}</div>
        </details>
      )}
    </div>
  );
}

function Member({
  context,
  name,
  schema: raw,
  value,
  at,
  isRequired,
  onChange,
}: FieldProps & { name: string; isRequired: boolean }) {
  const schema = resolved(raw, context.schemas);
  const { isNullable, forms } = alternatives(schema, context.schemas);
  const problem = context.problemAt(at);
  const id = useId();
  const [only] = forms;
  const unit = only?.["x-unit"];
  const help = [schema.description, unit && UNITS[unit].help].filter(Boolean).join(" ");
  const frame = (control: ReactNode, isGroup = false) => (
    <div
      className={`field ${isGroup ? "group" : ""}`}
      role={isGroup ? "group" : undefined}
      aria-labelledby={isGroup ? `${id}-label` : undefined}>
      {isGroup ? (
        <p className="label" id={`${id}-label`}>
          {wordsOf(name)}
        </p>
      ) : (
        <label htmlFor={id}>
          {wordsOf(name)}
          {isRequired && <span className="muted"> (required)</span>}
        </label>
      )}
      {!isGroup && control}
      {help && (
        <p className="help" id={`${id}-help`}>
          {quoted(help)}
        </p>
      )}
      {isGroup && control}
      {problem && (
        <p className="err small" role="alert" id={`${id}-problem`}>
          {problem}
        </p>
      )}
    </div>
  );
  const props = { context, value, at, onChange };
  const described = [help && `${id}-help`, problem && `${id}-problem`].filter(Boolean).join(" ") || undefined;
  const common = { id, "aria-describedby": described, "aria-invalid": problem ? true : undefined } as const;
  if (forms.length > 1 && forms.some(takesMembers))
    return frame(<Variant {...props} schema={schema} forms={forms} isNullable={isNullable} />, true);
  if (forms.length === 1 && only) {
    if (only.properties) {
      const isOn = value !== undefined && value !== null;
      const body = (isOn || !isNullable) && <MembersOf {...props} schema={only} />;
      return frame(
        <>
          {isNullable && <Check label="Set" isOn={isOn} onChange={(on) => onChange(on ? {} : undefined)} />}
          {body}
        </>,
        true,
      );
    }
    if (only.type === "object" || (only.additionalProperties && !only.type))
      return frame(<Pairs {...props} schema={only} />, true);
    if (only.type === "array")
      return frame(
        <Items {...props} schema={only} common={common} />,
        resolvesToMembers(only.items, context) || Boolean(constantsOf(resolved(only.items ?? {}, context.schemas))),
      );
    if (only.type === "boolean") {
      return (
        <div className="field">
          <Check {...common} label={wordsOf(name)} isOn={Boolean(value ?? schema.default)} onChange={onChange} />
          {help && (
            <p className="help" id={`${id}-help`}>
              {quoted(help)}
            </p>
          )}
          {problem && (
            <p className="err small" role="alert" id={`${id}-problem`}>
              {problem}
            </p>
          )}
        </div>
      );
    }
    const choices = constantsOf(only);
    if (choices) {
      const shown = value ?? schema.default ?? "";
      return frame(
        <select
          {...common}
          value={String(shown)}
          onChange={(event) => onChange(choices.find((one) => String(one) === event.target.value))}>
          {!choices.includes(shown) && <option value="">{isRequired ? "Choose…" : "not set"}</option>}
          {choices.map((one) => (
            <option key={String(one)}>{String(one)}</option>
          ))}
        </select>,
      );
    }
  }
  return frame(
    <Text
      {...common}
      schema={schema}
      forms={forms}
      isSecret={isSecret(name, only ?? schema)}
      isRequired={isRequired}
      value={value}
      onChange={onChange}
    />,
  );
}

const resolvesToMembers = (items: JsonSchema | undefined, { schemas }: Context) =>
  Boolean(items && alternatives(resolved(items, schemas), schemas).forms.some((one) => one.properties));

function Check({
  label,
  isOn,
  onChange,
  ...rest
}: {
  label: string;
  isOn: boolean;
  onChange: (on: boolean) => void;
  id?: string;
  "aria-describedby"?: string;
}) {
  return (
    <label className="check">
      <input type="checkbox" {...rest} checked={isOn} onChange={(event) => onChange(event.target.checked)} /> {label}
    </label>
  );
}

interface TextProps {
  id: string;
  schema: JsonSchema;
  forms: JsonSchema[];
  isSecret: boolean;
  isRequired: boolean;
  value: Value;
  onChange: (value: Value) => void;
  "aria-describedby"?: string;
  "aria-invalid"?: true;
}

/** Quantities with units. Values are shown in the largest unit that is exact. */
const UNITS = {
  seconds: {
    steps: [
      [86_400, "d"],
      [3600, "h"],
      [60, "m"],
      [1, "s"],
      [0.001, "ms"],
    ],
    help: "Such as 500ms, 10s or 5m; a number counts seconds.",
  },
  bytes: {
    steps: [
      [2 ** 40, "TB"],
      [2 ** 30, "GB"],
      [2 ** 20, "MB"],
      [2 ** 10, "KB"],
    ],
    help: "Such as 64KB, 16MB or 1GB; a number counts bytes.",
  },
} satisfies Record<string, { steps: [number, string][]; help: string }>;

function written(value: Value, unit: keyof typeof UNITS | undefined): string {
  if (value === undefined || value === null) return "";
  if (typeof value === "object") return JSON.stringify(value);
  const isWhole = (step: number) => Math.abs((value as number) / step - Math.round((value as number) / step)) < 1e-9;
  const found =
    unit && typeof value === "number" && value !== 0
      ? UNITS[unit].steps.find(([step]) => value >= step && isWhole(step))
      : undefined;
  return found ? `${Math.round((value as number) / found[0])}${found[1]}` : String(value);
}

/** A number, a text, or either, as a duration of seconds or "10s" is. */
function Text({ schema, forms, isSecret, isRequired, value, onChange, ...common }: TextProps) {
  const [typed, setTyped] = useState<string | null>(null);
  const types = forms.flatMap(({ type }) => type ?? []);
  const isNumber = types.length > 0 && types.every((type) => type === "integer" || type === "number");
  const unit = forms[0]?.["x-unit"];
  const placeholder = written(schema.default, unit) || undefined;
  const read = (text: string): Value => {
    if (text === "" && !isRequired) return undefined;
    const isNumeric = types.some((type) => type === "integer" || type === "number") && /^-?\d+(\.\d+)?$/.test(text);
    return isNumeric ? Number(text) : types.includes("boolean") && /^(true|false)$/.test(text) ? text === "true" : text;
  };
  const shown = typed ?? written(value, unit);
  const change = (text: string) => {
    setTyped(text); // 10 is not to become 10s, nor 0.50 to become 0.5, while it is being typed
    onChange(read(text));
  };
  if (isSecret) return <SecretText {...common} value={value} isRequired={isRequired} onChange={onChange} />;
  const isLong = /PEM|SQL|template/i.test(schema.description ?? "") || shown.includes("\n");
  const props = {
    ...common,
    spellCheck: false,
    autoComplete: "off",
    placeholder,
    required: isRequired,
    value: shown,
    onBlur: () => setTyped(null),
  };
  if (isLong)
    return (
      <textarea
        {...props}
        rows={Math.min(8, shown.split("\n").length)}
        onChange={(event) => change(event.target.value)}
      />
    );
  return (
    <input
      {...props}
      type="text"
      inputMode={isNumber ? "decimal" : undefined}
      onChange={(event) => change(event.target.value)}
    />
  );
}

/** A secret is never shown. An empty field keeps the stored one. */
function SecretText({
  value,
  isRequired,
  onChange,
  ...common
}: Pick<TextProps, "id" | "value" | "isRequired" | "onChange">) {
  const isStored = useRef(false);
  if (value === STARS) isStored.current = true;
  const shown = typeof value === "string" && value !== STARS ? value : "";
  const isGone = isStored.current && value === undefined;
  const placeholder = isGone ? "removed when saved" : isStored.current ? "stored; leave empty to keep it" : undefined;
  return (
    <div className="secret">
      <input
        {...common}
        type={isReference(shown) ? "text" : "password"}
        spellCheck={false}
        autoComplete="new-password"
        placeholder={placeholder}
        required={isRequired && !isStored.current}
        value={shown}
        onChange={({ target: { value: text } }) => onChange(text || (isStored.current ? STARS : undefined))}
      />
      {isStored.current && !isRequired && (
        <button type="button" onClick={() => onChange(isGone ? STARS : undefined)}>
          {isGone ? "Keep" : "Remove"}
        </button>
      )}
    </div>
  );
}

/** One of several forms: objects distinguished by a constant member, constants, or text. */
function Variant({
  context,
  schema,
  forms,
  isNullable,
  value,
  at,
  onChange,
}: FieldProps & { forms: JsonSchema[]; isNullable: boolean }) {
  const objects = forms.filter(takesMembers);
  const constants = forms.flatMap((form) => (takesMembers(form) ? [] : (constantsOf(form) ?? [])));
  const text = forms.find((form) => !takesMembers(form) && !constantsOf(form));
  const mark = Object.keys(objects[0]?.properties ?? {}).find((name) =>
    objects.every((one) => constantOf(one, name) !== undefined),
  );
  const nameOf = (form: JsonSchema) =>
    String((mark && constantOf(form, mark)) ?? (form.title ?? "").replace(/(?<=[a-z])(?=[A-Z])/g, " ").toLowerCase());
  const known = value ?? schema.default ?? undefined;
  const given = isMembers(known) ? known : undefined;
  const guessed =
    given &&
    objects.find((one) =>
      mark ? constantOf(one, mark) === given[mark] : Object.keys(given).every((name) => one.properties?.[name]),
    );
  const chosen = guessed
    ? nameOf(guessed)
    : known === undefined
      ? ""
      : constants.includes(known)
        ? String(known)
        : "text";
  const choose = (name: string) => {
    const form = objects.find((one) => nameOf(one) === name);
    if (form) onChange(mark ? { [mark]: constantOf(form, mark) } : {});
    else onChange(name === "" ? undefined : (constants.find((one) => String(one) === name) ?? ""));
  };
  return (
    <>
      <select aria-label="Form" value={chosen} onChange={(event) => choose(event.target.value)}>
        {(isNullable || chosen === "") && <option value="">not set</option>}
        {constants.map((one) => (
          <option key={String(one)}>{String(one)}</option>
        ))}
        {text && <option>text</option>}
        {objects.map((one) => (
          <option key={nameOf(one)}>{nameOf(one)}</option>
        ))}
      </select>
      {guessed && (
        <MembersOf
          key={nameOf(guessed)}
          context={context}
          schema={mark ? without(guessed, mark) : guessed}
          value={given}
          at={at}
          onChange={onChange}
        />
      )}
      {chosen === "text" && text && (
        <Text
          id={`${at}-text`}
          schema={text}
          forms={[text]}
          isSecret={false}
          isRequired
          value={known}
          onChange={onChange}
        />
      )}
    </>
  );
}

const constantOf = (schema: JsonSchema, name: string): Value =>
  schema.properties?.[name]?.const ??
  (schema.properties?.[name]?.enum?.length === 1 ? schema.properties[name]?.enum?.[0] : undefined);

function without(schema: JsonSchema, name: string): JsonSchema {
  const { [name]: _, ...properties } = schema.properties ?? {};
  return { ...schema, properties, required: schema.required?.filter((one) => one !== name) };
}

/** Any keys with values of one form. */
function Pairs({ context, schema, value, at, onChange }: FieldProps) {
  const given = Object.entries(isMembers(value) ? value : {});
  const form =
    typeof schema.additionalProperties === "object" ? resolved(schema.additionalProperties, context.schemas) : {};
  const replace = (index: number, pair: [string, Value] | null) =>
    onChange(Object.fromEntries(given.flatMap((one, n) => (n === index ? (pair ? [pair] : []) : [one]))));
  return (
    <>
      {given.map(([key, item], n) => (
        <div className="pair" key={n}>
          <input
            aria-label={`Key ${n + 1}`}
            spellCheck={false}
            value={key}
            onChange={(event) => replace(n, [event.target.value, item])}
          />
          <Text
            id={`${at}/${n}`}
            aria-describedby={undefined}
            schema={form}
            forms={alternatives(form, context.schemas).forms}
            isSecret={form.format === "password"}
            isRequired
            value={item}
            onChange={(changed) => replace(n, [key, changed ?? ""])}
          />
          <button type="button" aria-label={`Remove ${key}`} onClick={() => replace(n, null)}>
            Remove
          </button>
        </div>
      ))}
      <button
        type="button"
        onClick={() => onChange({ ...Object.fromEntries(given), "": "" })}
        disabled={given.some(([key]) => key === "")}>
        Add
      </button>
    </>
  );
}

/** A list: strings one per line, objects below each other. */
function Items({
  context,
  schema,
  value,
  at,
  onChange,
  common,
}: FieldProps & { common: { id: string; "aria-describedby"?: string } }) {
  const given = Array.isArray(value)
    ? value
    : Array.isArray(schema.default) && value === undefined
      ? schema.default
      : [];
  const item = resolved(schema.items ?? {}, context.schemas);
  const { forms } = alternatives(item, context.schemas);
  const choices = forms.length === 1 && forms[0] ? constantsOf(forms[0]) : undefined;
  if (choices) {
    const chosen = (one: unknown, on: boolean) =>
      onChange(choices.filter((other) => (other === one ? on : given.includes(other))));
    return (
      <div className="buttons">
        {choices.map((one) => (
          <Check key={String(one)} label={String(one)} isOn={given.includes(one)} onChange={(on) => chosen(one, on)} />
        ))}
      </div>
    );
  }
  if (!resolvesToMembers(schema.items, context)) {
    const isNumber = forms.every(({ type }) => type === "integer" || type === "number");
    const read = (text: string) =>
      text === "" ? undefined : text.split("\n").map((line) => (isNumber && line.trim() !== "" ? Number(line) : line));
    return (
      <textarea
        {...common}
        rows={Math.max(2, given.length)}
        spellCheck={false}
        placeholder="one per line"
        value={given.map((one) => (isMembers(one) ? JSON.stringify(one) : String(one))).join("\n")}
        onChange={(event) => onChange(read(event.target.value))}
      />
    );
  }
  const replace = (index: number, changed: Value) =>
    onChange(given.flatMap((one, n) => (n === index ? (changed === undefined ? [] : [changed]) : [one])));
  return (
    <ol className="items">
      {given.map((one, n) => (
        <li key={n} className="fields">
          {forms.length > 1 ? (
            <Variant
              context={context}
              schema={item}
              forms={forms}
              isNullable={false}
              value={one}
              at={`${at}/${n}`}
              onChange={(changed) => replace(n, changed)}
            />
          ) : (
            <MembersOf
              context={context}
              schema={forms[0] ?? item}
              value={one}
              at={`${at}/${n}`}
              onChange={(changed) => replace(n, changed)}
            />
          )}
          <button type="button" aria-label={`Remove ${n + 1}`} onClick={() => replace(n, undefined)}>
            Remove
          </button>
        </li>
      ))}
      <li>
        <button type="button" onClick={() => onChange([...given, {}])}>
          Add
        </button>
      </li>
    </ol>
  );
}
