// Schemas: from files, text or messages; checked before they are saved; their versions, and trying one.

import { useQuery } from "@tanstack/react-query";
import { Link, useNavigate } from "@tanstack/react-router";
import { type ChangeEvent, type DragEvent, type ReactNode, useCallback, useState } from "react";
import { call, client, patiently, Refused, sentence, settled } from "../../api/client";
import { parseJson } from "../../api/json";
import { kindNamed } from "../../api/kinds";
import { latestOf, textOf as payloadOf } from "../../api/messages";
import type { components } from "../../api/openapi";
import { useMay } from "../../api/rights";
import { useParameter } from "../../parts/address";
import { Card, Empty, Failure, ObjectLink, State } from "../../parts/card";
import type { Finding, Language } from "../../parts/codemirror";
import { CopyButton } from "../../parts/copy";
import { CopySpec } from "../../parts/copy-as";
import { Confirm } from "../../parts/dialogs";
import { Difference, Editor, findingsOf } from "../../parts/editor";
import { count, counted, pretty } from "../../parts/format";
import type { KindPage, ObjectProps } from "../../parts/kind-page";
import { Permitted } from "../../parts/permitted";
import { Changeable, useFixed } from "../../parts/read-only";
import { DraftStrip, SaveBar, useDraft, useSave } from "../../parts/saving";
import { Table } from "../../parts/table";
import { clock, useTimeZone } from "../../parts/time";

type Schemas = components["schemas"];
type SchemaObject = Schemas["SchemaReadOnly"] & Schemas["SchemaSpec"];
type File = Schemas["SchemaFile"];
type Check = Schemas["SchemaCheck"];
type Type = Schemas["SchemaSpec"]["type"];

export interface Draft {
  name: string;
  type: Type;
  source: string;
  files: File[];
  rest: Partial<Schemas["SchemaSpec"]>;
}

const NEW: Draft = { name: "", type: "json", source: "", files: [], rest: {} };
const LANGUAGES: Record<string, Language> = { json: "json", avro: "avro", protobuf: "protobuf", external_http: "json" };
const TYPES: [Type, string][] = [
  ["json", "JSON Schema"],
  ["avro", "Avro"],
  ["protobuf", "Protobuf"],
];
const MOST_BYTES = 2 * 2 ** 20;
const MOST_FIELDS = 500;

const specOf = ({ name, type, source, files, rest }: Draft) => ({
  ...rest,
  name,
  type,
  ...(files.length ? { files } : { source }),
});

/** JSON that is written in one line, in several. Numbers stay as they are, however long. */
function readable(text: string): string {
  if (text.includes("\n") || !/^\s*[[{]/.test(text)) return text;
  let depth = 0;
  const line = (change: number) => `\n${"  ".repeat((depth += change))}`;
  const tokens = text.match(/"(?:[^"\\]|\\.)*"|[{}[\],:]|[^\s"{}[\],:]+/g) ?? [];
  return tokens
    .map((token, at) => {
      const [before, after] = [tokens[at - 1] ?? "", tokens[at + 1] ?? ""];
      if ("{[".includes(token)) return "}]".includes(after) ? token : token + line(1);
      if ("}]".includes(token)) return "{[".includes(before) ? token : line(-1) + token;
      return token === "," ? token + line(0) : token === ":" ? ": " : token;
    })
    .join("");
}

/** What an object says again when it is saved with another source. */
function draftOf({ name, type, source, files, description, tags, metadata, references }: SchemaObject): Draft {
  return {
    name,
    type,
    source: readable(source ?? ""),
    files: files ?? [],
    rest: { description, tags, metadata, ...(references?.length && { references: references as never }) },
  };
}

// Files

const nameOf = (file: string) => file.replace(/\.[^.]*$/, "").replace(/[^\w.-]+/g, "-");

async function read(files: globalThis.File[], known: Draft): Promise<Draft> {
  const size = files.reduce((sum, file) => sum + file.size, 0);
  if (size > MOST_BYTES)
    throw new Error(`files: expected at most 2 MiB in all, got ${(size / 2 ** 20).toFixed(1)} MiB. Try: fewer files`);
  const [first] = files;
  if (!first) return known;
  const ending = first.name.split(".").at(-1);
  const type: Type = ending === "proto" ? "protobuf" : ending === "avsc" ? "avro" : "json";
  const strange = files.find(({ name }) => files.length > 1 && !name.endsWith(".proto"));
  if (strange)
    throw new Error(
      `files: expected one file, or several .proto files, got ${strange.name}. Try: one schema after the other`,
    );
  const texts = await Promise.all(files.map((file) => file.text()));
  const name = known.name || nameOf(first.name);
  if (files.length === 1) return { ...known, name, type, source: texts[0] ?? "", files: [] };
  const all = files.map((file, at) => ({ path: file.name, contents: texts[at] ?? "" }));
  // The root is the file that no other one imports.
  const root = all.find(({ path }) => !all.some(({ contents }) => contents.includes(`"${path}"`))) ?? all[0];
  return {
    ...known,
    name: known.name || nameOf(root?.path ?? ""),
    type,
    source: "",
    files: all.map((file) => ({ ...file, root: file === root })),
  };
}

function Files({ draft, change }: { draft: Draft; change: (draft: Draft) => void }) {
  const [problem, setProblem] = useState("");
  const [isOver, setOver] = useState(false);
  const take = (list: FileList | null) =>
    read([...(list ?? [])], draft).then(
      (found) => {
        setProblem("");
        change(found);
      },
      (error: Error) => setProblem(error.message),
    );
  const drag = (over: boolean) => (event: DragEvent) => {
    event.preventDefault();
    setOver(over);
  };
  return (
    <div
      className={isOver ? "drop over" : "drop"}
      onDragOver={drag(true)}
      onDragLeave={drag(false)}
      onDrop={(event) => {
        drag(false)(event);
        void take(event.dataTransfer.files);
      }}>
      <label>
        Files: .avsc, .json, or one or more .proto; choose them, or drop them here
        <input
          type="file"
          multiple
          accept=".avsc,.json,.proto"
          onChange={(event: ChangeEvent<HTMLInputElement>) => {
            void take(event.target.files);
          }}
        />
      </label>
      <Failure>{problem}</Failure>
    </div>
  );
}

// Checking

/** The form of a schema; it is checked as it changes, and below it is what saving it would do. */
function Form({
  draft,
  change,
  isNew,
  isChanged,
  children,
}: {
  draft: Draft;
  change: (draft: Draft) => void;
  isNew: boolean;
  isChanged: boolean;
  children: ReactNode;
}) {
  const [found, setFound] = useState<{ check?: Check; problems: Finding[] }>({ problems: [] });
  const [shown, show] = useState(0);
  const { type, name, files } = draft;
  const at = Math.min(shown, Math.max(0, files.length - 1));
  const file = files[at];
  const text = file ? file.contents : draft.source;
  const edit = (contents: string) =>
    change(
      file
        ? { ...draft, files: files.map((one, index) => (index === at ? { ...one, contents } : one)) }
        : { ...draft, source: contents },
    );
  const mayTry = useMay()("schemas", "try");
  const rest = JSON.stringify([draft.rest, files.map(({ path, root }) => [path, root])]);
  const lint = useCallback(
    async (contents: string, signal: AbortSignal): Promise<Finding[]> => {
      if (!mayTry || !contents.trim()) {
        setFound({ problems: [] });
        return [];
      }
      const pointer = files.length ? `/files/${at}/contents` : "/source";
      const body = specOf({
        ...draft,
        source: contents,
        files: files.map((one, index) => (index === at ? { ...one, contents } : one)),
      });
      try {
        const check = await patiently(
          () =>
            settled(
              client.POST("/api/v1/schemas:check", { body: { ...body, name: name || "unnamed" } as never, signal }),
            ),
          signal,
        );
        setFound({ check, problems: [] });
        return [];
      } catch (error) {
        if (!(error instanceof Refused)) throw error;
        const errors = (error.problem?.errors ?? [{ message: error.message }]) as Finding[];
        setFound({ problems: errors.filter((one) => one.pointer && one.pointer !== pointer) });
        return findingsOf(
          errors.map((one) => ({
            ...one,
            message: one.suggestion ? `${one.message}; ${one.suggestion}` : one.message,
          })),
          "error",
          pointer,
        );
      }
    },
    [type, name, rest, at, mayTry],
  );
  return (
    <>
      <Card title={isNew ? "Schema" : "New version"}>
        <Changeable>
          <Files draft={draft} change={change} />
          <div className="fields across">
            {isNew && (
              <label>
                Name{" "}
                <input
                  value={name}
                  required
                  spellCheck={false}
                  onChange={(event) => change({ ...draft, name: event.target.value })}
                />
              </label>
            )}
            {isNew && (
              <label>
                Type
                <select value={type} onChange={(event) => change({ ...draft, type: event.target.value as Type })}>
                  {TYPES.map(([value, title]) => (
                    <option key={value} value={value}>
                      {title}
                    </option>
                  ))}
                </select>
              </label>
            )}
            <label>
              Description{" "}
              <input
                value={draft.rest.description ?? ""}
                onChange={(event) => change({ ...draft, rest: { ...draft.rest, description: event.target.value } })}
              />
            </label>
          </div>
          {files.length > 0 && (
            <div className="fields across">
              <label>
                File shown
                <select value={at} onChange={(event) => show(Number(event.target.value))}>
                  {files.map(({ path }, index) => (
                    <option key={path} value={index}>
                      {path}
                    </option>
                  ))}
                </select>
              </label>
              <label>
                Root file: the schema itself
                <select
                  value={files.findIndex(({ root }) => root)}
                  onChange={(event) =>
                    change({
                      ...draft,
                      files: files.map((one, index) => ({ ...one, root: index === Number(event.target.value) })),
                    })
                  }>
                  {files.map(({ path }, index) => (
                    <option key={path} value={index}>
                      {path}
                    </option>
                  ))}
                </select>
              </label>
            </div>
          )}
        </Changeable>
        <div className="halves">
          <Editor
            label={file ? `Contents of ${file.path}` : "Source"}
            language={LANGUAGES[type] ?? "text"}
            value={text}
            onChange={edit}
            lint={lint}
            readOnly={useFixed()}
          />
          <div>
            <h3>Fields</h3>
            {found.check?.fields ? (
              <Fields fields={found.check.fields} />
            ) : (
              <Empty>Choose a file, paste a schema, or infer one from messages. Its fields appear here.</Empty>
            )}
            {found.problems.map(({ pointer, message }) => (
              <p key={pointer} role="alert">
                <State state="failed">{`${pointer?.slice(1)}: ${message}`}</State>
              </p>
            ))}
          </div>
        </div>
        {type !== "protobuf" && (
          <Changeable>
            <Infer draft={draft} change={change} />
          </Changeable>
        )}
      </Card>
      {found.check && isChanged && <Report check={found.check} isNew={isNew} />}
      {children}
    </>
  );
}

function Infer({ draft, change }: { draft: Draft; change: (draft: Draft) => void }) {
  const [topic, setTopic] = useState("");
  const [said, setSaid] = useState<{ ok: boolean; text: string } | null>(null);
  const infer = async () => {
    try {
      const found = await patiently(() =>
        settled(
          client.POST("/api/v1/schemas:infer", {
            body: { type: draft.type === "avro" ? "avro" : "json", topic, name: "Message" },
          }),
        ),
      );
      change({ ...draft, source: found.source, files: [] });
      setSaid({ ok: true, text: `From ${counted(found.messages, "message")}. ${found.warnings.join(" ")}` });
    } catch (error) {
      const suggestion = error instanceof Refused ? error.problem?.errors?.[0]?.suggestion : "";
      setSaid({ ok: false, text: `${sentence(error)}${suggestion ? `: ${suggestion}` : ""}` });
    }
  };
  return (
    <form
      className="inline"
      onSubmit={(event) => {
        event.preventDefault();
        void infer();
      }}>
      <label htmlFor="infer">Infer from messages on</label>
      <input
        id="infer"
        required
        spellCheck={false}
        placeholder="meters/#"
        value={topic}
        onChange={(event) => setTopic(event.target.value)}
      />
      <button type="submit">Infer</button>
      <div role="status">{said && <State state={said.ok ? "done" : "failed"}>{said.text}</State>}</div>
    </form>
  );
}

/** A field under its parent; only the last part of its path is written. */
export function Fields({ fields }: { fields: Schemas["FieldView"][] }) {
  const last = (path: string) =>
    path.endsWith("]") ? "each item" : path.endsWith("}") ? "each value" : path.replace(/^.*[.]/, "");
  const depth = (path: string) => path.split(/[.[{<]/).length - (path ? 0 : 1);
  return (
    <ul className="tree" aria-label="Fields">
      {fields.slice(0, MOST_FIELDS).map(({ path, type, is_optional }) => (
        <li key={path} ref={(item) => item?.style.setProperty("--depth", String(depth(path)))}>
          <code>{path ? last(path) : "payload"}</code>{" "}
          <span className="muted">
            {type}
            {is_optional && path ? ", optional" : ""}
          </span>
        </li>
      ))}
      {fields.length > MOST_FIELDS && <li className="muted">and {count(fields.length - MOST_FIELDS)} more</li>}
    </ul>
  );
}

/** What saving would do: the changes, whether the mode allows them, whom they break, and what recent messages say. */
function Report({ check, isNew }: { check: Check; isNew: boolean }) {
  const { changes = [], compatibility, impact = [], messages, version, is_new_version } = check;
  const title =
    isNew && version === 1
      ? "It can be saved"
      : is_new_version
        ? `It would be version ${version}`
        : `It is version ${version}, which would be used again`;
  const broken = impact.filter(({ breaks }) => breaks);
  return (
    <Card title="Before saving">
      <ul className="plain" aria-live="polite">
        <li>
          <State state={broken.length || compatibility?.compatible === false ? "alarm" : "done"}>{title}</State>
        </li>
        {isNew && (version ?? 1) > 1 && (
          <li>
            <State state="alarm">
              {`schema "${check.name}": the name is taken. Try: another name, or a new version on its page`}
            </State>
          </li>
        )}
        {compatibility && version !== 1 && (
          <li>
            <State state={compatibility.compatible ? "done" : "failed"}>
              {compatibility.compatible
                ? `Compatible (${compatibility.mode})`
                : `Not compatible: the mode is ${compatibility.mode}`}
            </State>
            {compatibility.reasons.map(({ path, message }) => (
              <p key={path + message}>
                <code>{path}</code> {message}
              </p>
            ))}
          </li>
        )}
        {impact.map(({ user, breaks, why }) => (
          <li key={user}>
            <State state={breaks ? "failed" : "done"}>{breaks ? "Would break" : "Uses it"}</State>{" "}
            <UserLink user={user} />: {why}
          </li>
        ))}
        {messages && (
          <li>
            <State state={messages.newly_refused ? "alarm" : "done"}>
              {`Of the last ${counted(messages.tried, "message")}, ${count(messages.newly_refused)} would no longer ` +
                `fit and ${count(messages.newly_accepted)} would fit now`}
            </State>
            {messages.reasons.map(({ path, reason, count: times, topic }) => (
              <p key={path + reason}>
                {count(times)} × <code>{path}</code> {reason} <span className="muted">for example on {topic}</span>
              </p>
            ))}
          </li>
        )}
      </ul>
      {changes.length > 0 && <Changes changes={changes} />}
    </Card>
  );
}

const SIGNS: Record<string, [string, string]> = { added: ["+", "ok"], removed: ["−", "err"] };

const Changes = ({ changes }: { changes: Schemas["ChangeView"][] }) => (
  <ul className="plain changed" aria-label="Changes">
    {changes.map(({ change, path, text }) => {
      const [sign, tone] = SIGNS[change] ?? ["~", "warn"];
      return (
        <li key={change + path}>
          <span className={`state ${tone}`} data-mark={sign}>
            {change}
          </span>{" "}
          {text}
        </li>
      );
    })}
  </ul>
);

/** `rule 'hot'`, as the API names an object, as a link. */
function UserLink({ user }: { user: string }) {
  const [, kind = "", name = ""] = /^([a-z ]+) ["'](.*)["']$/.exec(user) ?? [];
  const path = kindNamed(kind)?.path;
  return path ? (
    <>
      {kind} <ObjectLink kind={path} name={name} />
    </>
  ) : (
    <>{user}</>
  );
}

// The tabs of a schema

const useVersion = (name: string, version: string) =>
  useQuery({
    queryKey: ["schema", name, version],
    queryFn: () =>
      settled(client.GET("/api/v1/schemas/{name}/versions/{version}", { params: { path: { name, version } } })),
  });

/** The whole text of a version: its source, or its files after each other. */
const textOf = (found: Schemas["SchemaVersionSource"] | undefined) =>
  (found?.source && readable(found.source)) ??
  found?.files?.map(({ path, contents }) => `// ${path}\n${contents}`).join("\n") ??
  JSON.stringify(found?.parameters ?? "", null, 2);

function Source({ name, object }: ObjectProps<SchemaObject>) {
  const [version, setVersion] = useParameter("version", "current");
  const { data, error } = useVersion(name, version);
  const { data: users } = useQuery({
    queryKey: ["users", name],
    queryFn: () => settled(client.GET("/api/v1/schemas/{name}/users", { params: { path: { name } } })),
  });
  const used = [...(users?.users ?? []), ...(users?.schemas ?? []).map((one) => `schema '${one}'`)];
  return (
    <>
      <Card
        title="Source"
        note={
          <label>
            Version{" "}
            <select value={version} onChange={(event) => setVersion(event.target.value)}>
              <option value="current">{object.version}, in use</option>
              {object.versions
                .filter((one) => one.version !== object.version)
                .reverse()
                .map((one) => (
                  <option key={one.version}>{one.version}</option>
                ))}
            </select>
          </label>
        }>
        {error && <Empty>{sentence(error)}</Empty>}
        {data && (
          <div className="halves">
            <Editor
              label={`Source of version ${data.version}`}
              language={LANGUAGES[object.type] ?? "text"}
              value={textOf(data)}
              readOnly
            />
            <div>
              <h3>Fields</h3>
              <Fields fields={data.fields} />
            </div>
          </div>
        )}
      </Card>
      <Card title="Used by">
        {used.length ? (
          <ul className="plain">
            {used.map((user) => (
              <li key={user}>
                <UserLink user={user} />
              </li>
            ))}
          </ul>
        ) : (
          <Empty>
            No object uses this schema. A validation binds it to topics:{" "}
            <Link
              to="/new/$kind"
              params={{ kind: "validations" }}
              search={{ schema: name, type: object.type } as never}>
              New validation with {name}
            </Link>
          </Empty>
        )}
      </Card>
      <Card title="Facts">
        <dl className="facts">
          <div>
            <dt>Compatibility</dt>
            <dd>{object.compatibility}</dd>
          </div>
          <div>
            <dt>Identifier</dt>
            <dd>{object.id}</dd>
          </div>
          {Object.entries({ ...object.facts, ...object.fingerprints }).map(([key, value]) => (
            <div key={key}>
              <dt>{key.replaceAll("_", " ")}</dt>
              <dd>
                <code>{String(value)}</code>
              </dd>
            </div>
          ))}
        </dl>
      </Card>
    </>
  );
}

function Change({ name, object, etag }: ObjectProps<SchemaObject>) {
  const draft = useDraft<Draft>(`schemas/${name}`, draftOf(object), etag);
  const [breaks, setBreaks] = useState(false);
  const saving = useSave({ kind: "schemas", name, etag: draft.etag, query: { force: breaks || undefined } });
  return (
    <>
      <DraftStrip draft={draft} />
      <Form draft={draft.value} change={draft.set} isNew={false} isChanged={draft.isChanged}>
        <SaveBar
          saving={saving}
          body={specOf(draft.value)}
          isChanged={draft.isChanged}
          label="Save as a new version"
          onDiscard={draft.discard}
          onSaved={(saved, tag) => draft.settle(draftOf(saved as never), tag)}>
          <label className="check">
            <input
              type="checkbox"
              disabled={useFixed()}
              checked={breaks}
              onChange={(event) => setBreaks(event.target.checked)}
            />{" "}
            Save although it breaks objects that use it
          </label>
        </SaveBar>
      </Form>
    </>
  );
}

function Create() {
  const navigate = useNavigate();
  const draft = useDraft<Draft>("schemas/new", NEW);
  const saving = useSave({ kind: "schemas" });
  const done = (name: string) => {
    draft.settle(NEW, "");
    void navigate({ to: "/$kind/$name", params: { kind: "schemas", name } } as never);
  };
  return (
    <>
      <DraftStrip draft={draft} />
      <Form draft={draft.value} change={draft.set} isNew isChanged={draft.isChanged}>
        <SaveBar
          saving={saving}
          body={specOf(draft.value)}
          isChanged={draft.isChanged}
          onDiscard={draft.discard}
          onSaved={(saved) => done(String(saved.name))}>
          <CopySpec kind="schemas" name={draft.value.name || "unnamed"} spec={specOf(draft.value)} />
        </SaveBar>
      </Form>
    </>
  );
}

const MODES: Schemas["Compatibility"]["compatibility"][] = [
  "none",
  "backward",
  "backward_transitive",
  "forward",
  "forward_transitive",
  "full",
  "full_transitive",
  "disabled",
];

function Versions({ name, object, etag }: ObjectProps<SchemaObject>) {
  const timeZone = useTimeZone();
  const isFixed = useFixed();
  const numbers = object.versions.map(({ version }) => String(version)).reverse();
  const [before, setBefore] = useParameter("before", numbers[1] ?? numbers[0] ?? "");
  const [after, setAfter] = useParameter("after", numbers[0] ?? "");
  const [doing, setDoing] = useState<Pick<Parameters<typeof Confirm>[0], "title" | "method" | "path"> | null>(null);
  const [mode, setMode] = useState("");
  const place = `schemas/${encodeURIComponent(name)}`;
  const choose = async (compatibility: string) => {
    await call("PUT", `${place}/compatibility`, { body: { compatibility } }).then(
      () => setMode(""),
      (error) => setMode(sentence(error)),
    );
  };
  return (
    <>
      <Card
        title="Versions"
        note={
          <label>
            Compatibility of new versions{" "}
            <select
              disabled={isFixed}
              value={object.compatibility}
              onChange={(event) => void choose(event.target.value)}>
              {MODES.map((one) => (
                <option key={one}>{one}</option>
              ))}
            </select>
          </label>
        }>
        <Failure>{mode}</Failure>
        <Table
          label={`Versions of ${name}`}
          rows={[...object.versions].reverse()}
          keyOf={({ version }) => version}
          columns={[
            {
              title: "Version",
              show: ({ version, in_use }) => (
                <>
                  {version} {in_use && <State state="done">in use</State>}
                </>
              ),
            },
            { title: "Identifier", kind: "num", show: ({ id }) => id },
            {
              title: "Saved",
              kind: "fit",
              show: ({ created_at }) => (created_at ? clock(Date.parse(created_at), timeZone, "full") : "–"),
            },
            { title: "Description", kind: "why", show: ({ description }) => description },
            {
              title: "",
              kind: "fit",
              show: ({ version, in_use }) =>
                !in_use && (
                  <span className="buttons">
                    <button
                      type="button"
                      disabled={isFixed}
                      onClick={() =>
                        setDoing({
                          title: `Use version ${version}`,
                          method: "POST",
                          path: `${place}/versions/${version}:use`,
                        })
                      }>
                      Use version {version}
                    </button>
                  </span>
                ),
            },
          ]}
        />
      </Card>
      {doing && <Confirm {...doing} etag={etag} close={() => setDoing(null)} />}
      {numbers.length > 1 && (
        <Compare name={name} type={object.type} {...{ before, after, numbers, setBefore, setAfter }} />
      )}
    </>
  );
}

function Compare({
  name,
  type,
  before,
  after,
  numbers,
  setBefore,
  setAfter,
}: {
  name: string;
  type: string;
  before: string;
  after: string;
  numbers: string[];
  setBefore: (version: string) => void;
  setAfter: (version: string) => void;
}) {
  const { data: old } = useVersion(name, before);
  const { data: now } = useVersion(name, after);
  const { data, error } = useQuery({
    queryKey: ["schema", name, before, after],
    queryFn: () =>
      settled(client.GET("/api/v1/schemas/{name}/diff", { params: { path: { name }, query: { before, after } } })),
  });
  const choice = (label: string, value: string, set: (version: string) => void) => (
    <label>
      {label}{" "}
      <select value={value} onChange={(event) => set(event.target.value)}>
        {numbers.map((one) => (
          <option key={one}>{one}</option>
        ))}
      </select>
    </label>
  );
  return (
    <Card
      title="Compare"
      note={
        <span className="buttons">
          {choice("From version", before, setBefore)}
          {choice("to version", after, setAfter)}
        </span>
      }>
      {error && <Empty>{sentence(error)}</Empty>}
      {data &&
        (data.changes.length ? <Changes changes={data.changes} /> : <Empty>Both versions have the same fields.</Empty>)}
      {old && now && (
        <Difference
          before={textOf(old)}
          after={textOf(now)}
          language={LANGUAGES[type] ?? "text"}
          titles={[`Version ${before}`, `Version ${after}`]}
        />
      )}
    </Card>
  );
}

// Trying

type Coding = "utf8" | "hex" | "base64";

const bytesOf = (text: string, coding: Coding): Uint8Array<ArrayBuffer> => {
  if (coding === "utf8") return new TextEncoder().encode(text);
  if (coding === "base64") return Uint8Array.from(atob(text.replace(/\s/g, "")), (one) => one.charCodeAt(0));
  const digits = text.replace(/\s|0x/g, "");
  if (!/^([\da-f]{2})*$/i.test(digits))
    throw new Error(
      `payload: expected pairs of hexadecimal digits, got ${JSON.stringify(digits.slice(0, 20))}. Try: 06 61`,
    );
  return Uint8Array.from(digits.match(/../g) ?? [], (pair) => Number.parseInt(pair, 16));
};
const base64Of = (bytes: Uint8Array) => btoa(Array.from(bytes, (one) => String.fromCharCode(one)).join(""));
const hexOf = (bytes: Uint8Array) => Array.from(bytes, (one) => one.toString(16).padStart(2, "0")).join(" ");

interface Tried {
  text: string;
  coding: Coding;
  json: string;
  says: string;
  ok: boolean;
}

function Try({ name, object }: ObjectProps<SchemaObject>) {
  const [{ text, coding, json, says, ok }, set] = useState<Tried>({
    text: "",
    coding: "hex",
    json: "",
    says: "",
    ok: true,
  });
  const types = object.facts.message_types ?? [];
  const [type, setType] = useState(types[0]);
  const [topic, setTopic] = useState("");
  const change = (changed: Partial<Tried>) => set((known) => ({ ...known, ...changed }));
  const path = { name };
  const attempt = (work: () => Promise<Partial<Tried>>) =>
    work().then(
      (found) => change({ ok: true, ...found }),
      (error) => {
        const first = error instanceof Refused ? error.problem?.errors[0]?.message : "";
        change({ ok: false, says: first || (error instanceof Error ? error.message : String(error)) });
      },
    );
  const decode = (payload: string, as: Coding) =>
    attempt(async () => {
      const data = base64Of(bytesOf(payload, as));
      const body = { payload: { encoding: "base64", data }, message_type: type };
      const { body: found } = await patiently(() =>
        call<Schemas["DecodedValue"]>("POST", `schemas/${encodeURIComponent(path.name)}:decode`, { body }),
      );
      return { json: pretty(found.value), says: "The payload fits." };
    });
  const encode = () =>
    attempt(async () => {
      const value = parseJson(json);
      const { payload } = await patiently(() =>
        settled(
          client.POST("/api/v1/schemas/{name}:encode", { params: { path }, body: { value, message_type: type } }),
        ),
      );
      return { text: hexOf(bytesOf(payload.data, payload.encoding)), coding: "hex", says: "The value was encoded." };
    });
  const latest = () =>
    attempt(async () => {
      const found = (await latestOf(topic, 1))[0];
      if (!found)
        return {
          ok: false,
          says: `No message of ${topic} is stored. Try: a topic that a stream captures, or a retained one`,
        };
      const { payload } = found.message;
      const bytes = bytesOf(
        payloadOf(found.message),
        typeof payload === "object" && payload.encoding === "base64" ? "base64" : "utf8",
      );
      const shown = hexOf(bytes);
      change({ text: shown, coding: "hex", says: `The latest message on ${found.message.topic}.` });
      await decode(shown, "hex");
      return {};
    });
  return (
    <Card title="Decode and encode" note="nothing is saved or sent">
      <Permitted right="schemas" does="try" to="decode or encode payloads">
        <form
          className="inline"
          onSubmit={(event) => {
            event.preventDefault();
            void latest();
          }}>
          <label htmlFor="of">Latest message on</label>
          <input
            id="of"
            required
            spellCheck={false}
            placeholder="meters/#"
            value={topic}
            onChange={(event) => setTopic(event.target.value)}
          />
          <button type="submit">Take it</button>
          {types.length > 1 && (
            <label>
              Message type{" "}
              <select value={type} onChange={(event) => setType(event.target.value)}>
                {types.map((one) => (
                  <option key={one}>{one}</option>
                ))}
              </select>
            </label>
          )}
        </form>
        <div className="halves">
          <div className="field">
            <label htmlFor="payload">Payload</label>
            <textarea
              id="payload"
              rows={8}
              spellCheck={false}
              value={text}
              onChange={(event) => change({ text: event.target.value })}
            />
            <div className="buttons">
              <label>
                Written as{" "}
                <select value={coding} onChange={(event) => change({ coding: event.target.value as Coding })}>
                  <option value="hex">hex</option>
                  <option value="base64">base64</option>
                  <option value="utf8">text</option>
                </select>
              </label>
              <button type="button" className="primary" onClick={() => void decode(text, coding)}>
                Decode →
              </button>
              {text && <CopyButton text={text} />}
            </div>
          </div>
          <div className="field">
            <Editor
              label="Value as JSON"
              language="json"
              value={json}
              onChange={(changed) => change({ json: changed })}
            />
            <div className="buttons">
              <button type="button" className="primary" onClick={() => void encode()}>
                ← Encode
              </button>
            </div>
          </div>
        </div>
        <div role="status">{says && <State state={ok ? "done" : "failed"}>{says}</State>}</div>
      </Permitted>
    </Card>
  );
}

export const page: KindPage<SchemaObject> = {
  cells: {
    Type: { kind: "fit", show: ({ type }) => TYPES.find(([one]) => one === type)?.[1] ?? type },
    Version: { kind: "num", show: ({ version, latest }) => (version === latest ? version : `${version} of ${latest}`) },
    Description: { kind: "why", show: ({ description }) => description },
  },
  tabs: [
    { title: "Source", show: Source },
    { title: "Change", show: Change },
    { title: "Versions", show: Versions },
    { title: "Try", show: Try },
  ],
  create: Create,
};
