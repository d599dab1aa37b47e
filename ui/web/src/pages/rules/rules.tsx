// Rules: the list, the editor with trials on real messages, test cases, back-tests, versions, actions and tables.

import { keepPreviousData, useQuery, useQueryClient } from "@tanstack/react-query";
import { useNavigate } from "@tanstack/react-router";
import { type KeyboardEvent, type ReactNode, useCallback, useMemo, useRef, useState } from "react";
import { call, client, getAny, Refused, type RuleOutcome, sentence, settled } from "../../api/client";
import { useActions, useChanges, useList, useNow, useRested } from "../../api/live";
import type { components } from "../../api/openapi";
import { useMay } from "../../api/rights";
import { Card, Empty, Failure, ObjectLink, State, Why } from "../../parts/card";
import { Command } from "../../parts/copy";
import { CopySpec } from "../../parts/copy-as";
import { Confirm } from "../../parts/dialogs";
import { Difference, Editor } from "../../parts/editor";
import { ago, count, counted, exact, pretty, UNKNOWN } from "../../parts/format";
import { JobView } from "../../parts/job";
import type { KindPage, ObjectProps } from "../../parts/kind-page";
import { Permitted } from "../../parts/permitted";
import { useFixed } from "../../parts/read-only";
import { RuleTable } from "../../parts/rule-table";
import { type DraftOf, DraftStrip, SaveBar, useDraft, useSave } from "../../parts/saving";
import { SchemaForm } from "../../parts/schema-form";
import { Table } from "../../parts/table";
import { clock, useTimeZone } from "../../parts/time";
import { check, type Checked, complete, type Event, fieldsOf, hover, PATIENT, sourcesOf, standingFor } from "./sql";
import { type Program, TestPanel, useLatest, useStreams } from "./test";

type Schemas = components["schemas"];
type RuleObject = Required<Schemas["RuleObject"]>;
type TestCase = Schemas["TestCase"];
type RuleAction = RuleObject["actions"][number];

interface RuleDraft {
  name: string;
  description: string;
  enable: boolean;
  language: "sql" | "jq";
  sql: string;
  jq: string;
  from: string[];
  actions: Record<string, unknown>[];
  tests: TestCase[];
}

const NEW: RuleDraft = {
  name: "",
  description: "",
  enable: true,
  language: "sql",
  sql: 'SELECT\n  payload.temp AS celsius,\n  clientid\nFROM "meters/#"\nWHERE payload.temp > 20\n',
  jq: ".",
  from: ["meters/#"],
  actions: [],
  tests: [],
};

function draftOf({ name, description, enable, language, sql, jq, from, actions, tests }: RuleObject): RuleDraft {
  return {
    name,
    description,
    enable,
    language: language === "jq" ? "jq" : "sql",
    sql: language === "jq" ? "" : (sql ?? ""), // what it stands for changes with the program
    jq: jq ?? "",
    from,
    actions: actions as unknown as Record<string, unknown>[],
    tests,
  };
}

const readBy = ({ from }: RuleDraft) => from.map((one) => one.trim()).filter(Boolean);

const programOf = (draft: RuleDraft): Program =>
  draft.language === "jq" ? { language: "jq", jq: draft.jq, from: readBy(draft) } : { sql: draft.sql };

/** What changes with the language. SQL that was written stays in the draft, and so does a jq program. */
function inLanguage(draft: RuleDraft, language: "sql" | "jq"): Partial<RuleDraft> {
  const same = standingFor(draft.jq, readBy(draft));
  if (language === "sql") return { language, sql: draft.sql || same };
  if (draft.sql === same) return { language, sql: "" };
  return { language, jq: draft.jq || NEW.jq, from: sourcesOf(draft.sql) };
}

function bodyOf(draft: RuleDraft) {
  const { name, description, enable, actions, tests } = draft;
  return { name, ...programOf(draft), description, enable, actions, tests };
}

// The list

const textOf = ({ language, sql, jq }: RuleObject) => (language === "jq" ? jq : sql);
const line = (sql: string | null | undefined) => (sql ?? "").replace(/\s+/g, " ").trim();

function actionText(action: RuleAction): ReactNode {
  if (action.type === "stream")
    return (
      <>
        stream <ObjectLink kind="streams" name={action.stream} />
      </>
    );
  if (action.type === "bridge") return <ObjectLink kind="actions" name={action.bridge} />;
  return action.type === "republish" ? `republish to ${action.topic}` : action.type;
}

function LastError({ error }: { error: { text: string; time_ms: number } | null | undefined }) {
  const now = useNow(Boolean(error));
  return error ? (
    <span className="err">
      {error.text}
      <Why>{ago(new Date(error.time_ms).toISOString(), now)}</Why>
    </span>
  ) : (
    UNKNOWN
  );
}

// One rule

/** What the editor, its completion and its trials share. */
function useKnown(program: Program, latest: { event: Event }[]) {
  const sources = "sql" in program ? sourcesOf(program.sql) : (program.from ?? []);
  const rested = useRested(sources);
  const mayTry = useMay()("rules", "try");
  const { data: fields } = useQuery({
    queryKey: ["fields", rested],
    enabled: mayTry,
    placeholderData: keepPreviousData,
    ...PATIENT,
    queryFn: async () =>
      (await call<Schemas["InputFields"]>("POST", "rules:fields", { body: { from: rested } })).body.fields,
  });
  const { data: functions } = useQuery({
    queryKey: ["functions"],
    staleTime: Infinity,
    queryFn: async () =>
      (await settled(client.GET("/api/v1/functions", { params: { query: { language: "sql" } } }))).items,
  });
  const { data: events } = useQuery({
    queryKey: ["events"],
    staleTime: Infinity,
    queryFn: async () => (await settled(client.GET("/api/v1/events"))).items,
  });
  return useMemo(() => {
    const typed = fields ?? [];
    const paths = new Set(typed.map(({ path }) => path));
    return {
      fields: [...typed, ...fieldsOf(latest.map(({ event }) => event)).filter(({ path }) => !paths.has(path))],
      functions: functions ?? [],
      events: events ?? [],
    };
  }, [fields, functions, events, latest]);
}

/** The findings of the checker, as of so many changes of objects: schemas and what binds them are among these. */
const checking = (program: Program, changes: number | undefined) => ({
  queryKey: ["check", program, changes],
  queryFn: ({ signal }: { signal: AbortSignal }) => check(program, signal),
  staleTime: Infinity,
  ...PATIENT,
});

function useCheck(program: Program) {
  const enabled = useMay()("rules", "try");
  return useQuery({ ...checking(useRested(program), useChanges()), placeholderData: keepPreviousData, enabled }).data;
}

function SqlEditor({
  sql,
  set,
  known,
}: {
  sql: string;
  set: (sql: string) => void;
  known: ReturnType<typeof useKnown>;
}) {
  const queries = useQueryClient();
  const [says, setSays] = useState("");
  const isFixed = useFixed();
  const changes = useChanges();
  const mayTry = useMay()("rules", "try");
  const lint = useCallback(
    async (text: string) => (mayTry ? (await queries.fetchQuery(checking({ sql: text }, changes))).findings : []),
    [queries, changes, mayTry],
  ); // another change makes the editor ask again
  const columns = useMemo(() => new Set(known.fields.map(({ path }) => path)), [known.fields]);
  const names = useMemo(
    () => known.functions.map(({ name }) => name).filter((name) => !columns.has(name)),
    [known.functions, columns],
  );
  const format = async () => {
    try {
      set((await call<{ sql: string }>("POST", "rules:format", { body: { sql } })).body.sql);
      setSays("");
    } catch (error) {
      setSays(sentence(error));
    }
  };
  const press = (event: KeyboardEvent) => {
    if (!event.altKey || !event.shiftKey || event.code !== "KeyF" || isFixed) return;
    event.preventDefault();
    void format();
  };
  return (
    <div onKeyDown={press}>
      <Editor
        label="SQL"
        language="sql"
        value={sql}
        onChange={set}
        lint={lint}
        functions={names}
        readOnly={isFixed}
        complete={(text, at, signal, isAsked) => complete(text, at, signal, isAsked, known)}
        hover={async (text, at) => hover(text, at, known)}
      />
      <div className="buttons">
        <button
          type="button"
          disabled={isFixed}
          onClick={() => void format()}
          aria-keyshortcuts="Shift+Alt+F"
          title="Shift Alt F">
          Format
        </button>
      </div>
      <Failure>{says}</Failure>
    </div>
  );
}

function Columns({ columns }: { columns: Checked["columns"] }) {
  if (!columns.length) return null;
  return (
    <p className="small columns-of">
      Rows have{" "}
      {columns.map(({ name, type }, at) => (
        <span key={name}>
          {at > 0 && ", "}
          <code>{name}</code> <span className="muted">{type}</span>
        </span>
      ))}
    </p>
  );
}

const LANGUAGES = [
  ["sql", "SQL"],
  ["jq", "jq"],
] as const;

function Language({ draft, change }: { draft: RuleDraft; change: (changed: Partial<RuleDraft>) => void }) {
  const isFixed = useFixed();
  return (
    <div className="choice" role="group" aria-label="Language">
      {LANGUAGES.map(([one, title]) => (
        <button
          key={one}
          type="button"
          disabled={isFixed}
          aria-pressed={one === draft.language}
          onClick={() => one !== draft.language && change(inLanguage(draft, one))}>
          {title}
        </button>
      ))}
    </div>
  );
}

function RuleEditor({
  draft,
  name,
  onSaved,
  children,
}: {
  draft: DraftOf<RuleDraft>;
  name?: string;
  onSaved: (body: Record<string, unknown>, etag: string) => void;
  children?: ReactNode;
}) {
  const { value, set } = draft;
  const change = (changed: Partial<RuleDraft>) => set((known) => ({ ...known, ...changed }));
  const program = programOf(value);
  const sources = "sql" in program ? sourcesOf(program.sql) : (program.from ?? []);
  const latest = useLatest(useRested(sources));
  const known = useKnown(program, latest);
  const checked = useCheck(program);
  const mayTry = useMay()("rules", "try");
  const lintJq = useCallback(
    async (jq: string) =>
      mayTry ? (await check(programOf({ ...NEW, language: "jq", jq, from: value.from }))).findings : [],
    [value.from, mayTry],
  );
  const setSql = (sql: string) => change({ sql });
  const isFixed = useFixed();
  const [force, setForce] = useState(false);
  const saving = useSave({
    kind: "rules",
    name,
    etag: name === undefined ? undefined : draft.etag,
    query: { force: force || undefined },
  });
  const place = useRef<HTMLDivElement>(null);
  const press = (event: KeyboardEvent) => {
    if (!(event.ctrlKey || event.metaKey) || event.key !== "s") return;
    event.preventDefault();
    place.current?.querySelector<HTMLButtonElement>(".saving > .buttons > button.primary")?.click();
  };
  const addCase = (event: Event, { outcome, rows }: RuleOutcome) => {
    const expect: Schemas["Expectation"] =
      outcome === "rows" ? { rows: rows ?? [] } : outcome === "error" ? { error: true } : { no_result: true };
    change({ tests: [...value.tests, { name: `case ${value.tests.length + 1}`, event, expect }] });
  };
  const isRefusedByCases = saving.problem?.code === "test_case_failed";
  return (
    <div className="page" ref={place} onKeyDown={press}>
      <DraftStrip draft={draft} />
      <div className="columns">
        <div className="stack">
          {name === undefined && (
            <Card title="Rule">
              <label className="field">
                Name
                <input
                  spellCheck={false}
                  required
                  value={value.name}
                  onChange={(event) => change({ name: event.target.value })}
                />
              </label>
            </Card>
          )}
          <Card title={value.language === "jq" ? "Program" : "SQL"} note={<Language draft={value} change={change} />}>
            {value.language === "jq" ? (
              <>
                <label className="field">
                  Reads
                  <textarea
                    disabled={isFixed}
                    rows={Math.max(2, value.from.length)}
                    spellCheck={false}
                    placeholder="topic filters and events, one per line"
                    value={value.from.join("\n")}
                    onChange={(event) => change({ from: event.target.value.split("\n") })}
                  />
                </label>
                <Editor
                  label="jq program"
                  language="jq"
                  value={value.jq}
                  onChange={(jq) => change({ jq })}
                  lint={lintJq}
                  readOnly={isFixed}
                />
              </>
            ) : (
              <SqlEditor sql={value.sql} set={setSql} known={known} />
            )}
            <Columns columns={checked?.columns ?? []} />
          </Card>
          <Card title="Settings">
            <SchemaForm
              schema={{ $ref: "#/components/schemas/RuleSpec" }}
              skip={["name", "sql", "jq", "from", "language", "tests", "enable"]}
              value={{ actions: value.actions, description: value.description }}
              onChange={(changed) => change(changed as Partial<RuleDraft>)}
              problems={saving.problem?.errors}
            />
          </Card>
          <Cases draft={value} change={change} />
          <Card
            title={name === undefined ? "Create" : "Save"}
            note={
              <>
                <kbd>Ctrl S</kbd>
              </>
            }>
            <SaveBar
              saving={saving}
              body={bodyOf(value)}
              isChanged={draft.isChanged || name === undefined}
              label={name === undefined ? "Create and start" : "Save"}
              onSaved={onSaved}
              onDiscard={draft.discard}>
              {(isRefusedByCases || force) && (
                <label className="check">
                  <input type="checkbox" checked={force} onChange={(event) => setForce(event.target.checked)} /> Save it
                  although test cases fail
                </label>
              )}
              <CopySpec kind="rules" name={value.name || "unnamed"} spec={bodyOf(value)} />
            </SaveBar>
          </Card>
          {children}
        </div>
        <div className="stack">
          <Permitted right="rules" does="try" to="test rules">
            <TestPanel
              program={program}
              actions={value.actions}
              sources={sources}
              latest={latest}
              events={known.events}
              onCase={addCase}
            />
          </Permitted>
        </div>
      </div>
    </div>
  );
}

function Cases({ draft, change }: { draft: RuleDraft; change: (changed: Partial<RuleDraft>) => void }) {
  const { tests } = draft;
  const isFixed = useFixed();
  const rested = useRested({ ...programOf(draft), tests });
  const mayTry = useMay()("rules", "try");
  const { data, error } = useQuery({
    queryKey: ["cases", rested],
    enabled: mayTry && rested.tests.length > 0,
    placeholderData: keepPreviousData,
    staleTime: 5000,
    ...PATIENT,
    queryFn: async ({ signal }) =>
      (await call<Schemas["CasesReport"]>("POST", "rules:test-cases", { body: rested, signal })).body,
  });
  const replace = (at: number, changed?: TestCase) =>
    change({ tests: tests.flatMap((one, n) => (n === at ? (changed ? [changed] : []) : [one])) });
  return (
    <Card
      title="Test cases"
      note={data && tests.length > 0 ? `${data.passed} of ${tests.length} pass` : "they run on every save"}>
      {!tests.length && (
        <Empty>A test case is a message and what the rule makes of it. Keep one from the test beside.</Empty>
      )}
      {error instanceof Refused && (
        <p role="status">
          <State state="failed">{error.message}</State>
        </p>
      )}
      <ul className="plain">
        {tests.map((test, at) => {
          const result = data?.cases[at];
          return (
            <li key={at} className="case">
              <label className="hidden" htmlFor={`case-${at}`}>
                Name of case {at + 1}
              </label>
              <input
                id={`case-${at}`}
                disabled={isFixed}
                value={test.name}
                onChange={(event) => replace(at, { ...test, name: event.target.value })}
              />
              <State state={result ? (result.passed ? "ok" : "failed") : "idle"}>
                {result ? (result.passed ? "passes" : "fails") : mayTry ? "…" : "not run"}
              </State>
              <button type="button" disabled={isFixed} aria-label={`Remove ${test.name}`} onClick={() => replace(at)}>
                Remove
              </button>
              <details>
                <summary>{result?.passed === false ? result.difference : "Message and expectation"}</summary>
                <pre className="source">{JSON.stringify({ event: test.event, expect: test.expect }, null, 2)}</pre>
              </details>
            </li>
          );
        })}
      </ul>
    </Card>
  );
}

function Create() {
  const navigate = useNavigate();
  const draft = useDraft<RuleDraft>("rules/new", NEW);
  const saved = (body: Record<string, unknown>) => {
    draft.discard();
    void navigate({ to: "/$kind/$name", params: { kind: "rules", name: String(body.name) } } as never);
  };
  return <RuleEditor draft={draft} onSaved={saved} />;
}

function Edit({ name, object, etag }: ObjectProps<RuleObject>) {
  const draft = useDraft<RuleDraft>(`rules/${name}`, draftOf(object), etag);
  const saved = (body: Record<string, unknown>, tag: string) => {
    draft.settle(draftOf(body as unknown as RuleObject), tag);
  };
  return <RuleEditor draft={draft} name={name} onSaved={saved} />;
}

// Actions and the table

function Actions({ name, object, etag }: ObjectProps<RuleObject>) {
  const bridges = useActions()?.items ?? [];
  const details = object.action_details;
  return (
    <div className="page">
      <Card title="Actions" note="change them in the editor">
        {details.length ? (
          <Table
            label="Actions"
            keyOf={(_, at) => at}
            rows={details}
            columns={[
              { title: "Action", show: (one) => actionText(object.actions[details.indexOf(one)]!) },
              {
                title: "State",
                kind: "fit",
                show: ({ status, name: bridge }) => (
                  <>
                    <State state={status} />
                    <Why>{bridges.find((other) => other.id === bridge)?.status_reason}</Why>
                  </>
                ),
              },
              {
                title: "Rows",
                kind: "num",
                show: ({ metrics }) => count(metrics.total),
                exact: ({ metrics }) => exact(metrics.total),
              },
              {
                title: "Handed over",
                kind: "num",
                show: ({ metrics }) => count(metrics.success),
                exact: ({ metrics }) => exact(metrics.success),
              },
              {
                title: "Failed",
                kind: "num",
                show: ({ metrics }) => count(metrics.failed),
                exact: ({ metrics }) => exact(metrics.failed),
              },
              {
                title: "Waiting",
                kind: "num",
                show: ({ name: bridge }) => count(bridges.find((other) => other.id === bridge)?.metrics?.queuing),
              },
              { title: "Last error", kind: "why", show: ({ last_error }) => <LastError error={last_error} /> },
            ]}
          />
        ) : (
          <Empty>This rule has no action: its rows are counted and go nowhere.</Empty>
        )}
      </Card>
      <TableOf name={name} object={object} etag={etag} />
    </div>
  );
}

interface TableObject {
  name: string;
  stream: string;
  rule?: string | null;
  format: string;
  state: string;
  reason: string | null;
  rows: number | null;
  lag_records: number | null;
  path: string;
}

/** The tables of a rule, or the question which one to create. */
function TableOf({ name, object, etag }: ObjectProps<RuleObject>) {
  const streams = object.actions.flatMap((action) => (action.type === "stream" ? [action.stream] : []));
  const { list } = useList<TableObject>("lake/tables");
  const tables = list?.items.filter(({ stream, rule }) => (rule ? rule === name : streams.includes(stream))) ?? [];
  return (
    <Card title="Table" note={tables.length ? undefined : "in DuckDB, Spark and any reader of Delta or Iceberg"}>
      {tables.map((table) => (
        <div key={table.name} className="stack" role="status">
          <p>
            <ObjectLink kind="tables" name={table.name} /> <State state={table.state} />{" "}
            {table.rows ? counted(table.rows, "row") : "no row yet: the first ones come with the next messages"}
            {table.lag_records ? `, ${count(table.lag_records)} behind` : ""}
          </p>
          <p className="muted small">
            {table.rule
              ? "It runs this rule over messages; a replay applies a corrected rule to older ones."
              : "It holds the rows that the rule wrote; a corrected rule changes later rows only."}
          </p>
          {table.reason && <p className="muted">{table.reason}</p>}
          {table.rows ? (
            <Command text={`duckdb -c "SELECT * FROM ${table.format}_scan('${table.path}') LIMIT 10"`} />
          ) : null}
        </div>
      ))}
      {list && !tables.length && (
        <Permitted right="tables" does="change" to="create tables">
          <RuleTable name={name} etag={etag} />
        </Permitted>
      )}
    </Card>
  );
}

// Back-tests

function Backtest({ name, object, etag }: ObjectProps<RuleObject>) {
  const { value, isChanged } = useDraft<RuleDraft>(`rules/${name}`, draftOf(object), etag);
  const streams = useStreams().data?.items.filter(({ kind }) => kind === "topics");
  const [given, setGiven] = useState({ stream: "", from: "", to: "" });
  const [job, setJob] = useState<string | null>(null);
  const [problem, setProblem] = useState("");
  const stream = given.stream || (streams?.[0]?.name ?? "");
  const start = async () => {
    setProblem("");
    const program = programOf(value);
    const what = "sql" in program ? program : { language: program.language, jq: program.jq, sources: program.from };
    const place = (text: string) => (text === "" ? undefined : /^\d+$/.test(text) ? Number(text) : text);
    try {
      const body = { name, ...(isChanged ? what : {}), stream, from: place(given.from), to: place(given.to) };
      setJob((await call<{ id: string }>("POST", "rules:backtest", { body })).body.id);
    } catch (error) {
      setProblem(sentence(error));
    }
  };
  return (
    <Card
      title="Back-test"
      note={
        isChanged
          ? "your draft, compared with the rule that runs"
          : "the rule that runs; change it in the editor to compare"
      }>
      <Permitted right="back-tests" does="try" to="back-test rules">
        {streams && !streams.length ? (
          <Empty command={`printf '%s' '{"name": "raw", "topics": ["meters/#"]}' | sluice streams apply -f -`}>
            No stream captures messages. A back-test runs a rule over what a stream with topics has kept.
          </Empty>
        ) : (
          <form
            className="inline"
            onSubmit={(event) => {
              event.preventDefault();
              void start();
            }}>
            <label>
              Stream
              <select value={stream} onChange={(event) => setGiven({ ...given, stream: event.target.value })}>
                {streams?.map(({ name }) => (
                  <option key={name}>{name}</option>
                ))}
              </select>
            </label>
            <label>
              From
              <input
                placeholder="offset or time"
                value={given.from}
                onChange={(event) => setGiven({ ...given, from: event.target.value })}
              />
            </label>
            <label>
              To
              <input
                placeholder="offset or time"
                value={given.to}
                onChange={(event) => setGiven({ ...given, to: event.target.value })}
              />
            </label>
            <button type="submit" className="primary" disabled={!stream}>
              Run
            </button>
          </form>
        )}
      </Permitted>
      <Failure>{problem}</Failure>
      {job && (
        <JobView key={job} id={job}>
          {({ id }) => <Compared id={id} />}
        </JobView>
      )}
    </Card>
  );
}

function Compared({ id }: { id: string }) {
  const { data } = useQuery({
    queryKey: ["back-test", id],
    staleTime: Infinity,
    queryFn: () => getAny<Schemas["BacktestView"]>(`backtests/${id}`),
  });
  if (!data?.result) return null;
  const { messages, matched, rows, samples, errors, undefined_columns, not_kept } = data.result;
  const isComparison = data.rule !== null;
  const kinds = [
    ["added", samples.added],
    ["lost", samples.lost],
    ["changed", samples.changed],
  ] as const;
  return (
    <div className="stack">
      <p role="status">
        {counted(messages, "message", exact)}, {exact(matched.after)} match, {counted(rows.after, "row", exact)}
        {isComparison &&
          `: ${exact(rows.added)} added, ${exact(rows.lost)} lost, ${exact(rows.changed)} changed, ` +
            `${exact(rows.unchanged)} as before`}
        .
      </p>
      {errors.after.map(({ message, count, first }) => (
        <p key={message}>
          <State state="failed">{exact(count)} times</State> {message}{" "}
          <span className="muted">first at offset {first.offset}</span>
        </p>
      ))}
      {undefined_columns.length > 0 && (
        <p className="muted">
          Streams do not keep {not_kept.join(", ")}; {undefined_columns.join(", ")}{" "}
          {undefined_columns.length === 1 ? "was" : "were"} undefined.
        </p>
      )}
      {isComparison &&
        kinds.map(
          ([kind, found]) =>
            found.length > 0 && (
              <details key={kind} open>
                <summary>
                  {kind}, {found.length} of them
                </summary>
                {found.slice(0, 10).map(({ topic, offset, before, after }, at) => (
                  <div key={at}>
                    <p className="small muted">
                      {topic} at offset {offset}
                    </p>
                    <Difference
                      titles={["The rule that runs", "Your draft"]}
                      before={pretty(before)}
                      after={pretty(after)}
                      language="json"
                    />
                  </div>
                ))}
              </details>
            ),
        )}
      {!isComparison && samples.added.length > 0 && (
        <pre className="source">{samples.added.map(({ after }) => JSON.stringify(after)).join("\n")}</pre>
      )}
    </div>
  );
}

// Versions

function VersionsOf({ name, etag, object }: ObjectProps<RuleObject>) {
  const timeZone = useTimeZone();
  const [chosen, choose] = useState<number | null>(null);
  const isFixed = useFixed();
  const [restoring, setRestoring] = useState(false);
  const { data } = useQuery({
    queryKey: ["versions", name, object.version],
    queryFn: () => getAny<{ items: Schemas["VersionRow"][] }>(`rules/${encodeURIComponent(name)}/versions`),
  });
  const path = `rules/${encodeURIComponent(name)}/versions/${chosen}`;
  const { data: old } = useQuery({
    queryKey: ["version", name, chosen],
    enabled: chosen !== null,
    queryFn: () => getAny<{ rule: RuleObject }>(path),
  });
  return (
    <div className="page">
      <Card title="Versions" note="newest first">
        <Table
          label="Versions"
          rows={data?.items ?? []}
          keyOf={({ version }) => version}
          columns={[
            { title: "Version", kind: "num", show: ({ version }) => version },
            {
              title: "Saved",
              kind: "fit",
              show: ({ saved_at }) => (saved_at ? clock(Date.parse(saved_at), timeZone, "full") : UNKNOWN),
            },
            { title: "Change", kind: "why", show: ({ change }) => change },
            {
              title: "",
              kind: "num",
              show: ({ version }) =>
                version === object.version ? (
                  <span className="muted">runs now</span>
                ) : (
                  <button type="button" aria-pressed={version === chosen} onClick={() => choose(version)}>
                    Compare version {version}
                  </button>
                ),
            },
          ]}
        />
      </Card>
      {old && chosen !== null && (
        <Card title={`Version ${chosen} and now`}>
          <Difference
            titles={[`Version ${chosen}`, "Now"]}
            before={shownOf(old.rule)}
            after={shownOf(object)}
            language="sql"
          />
          <div className="buttons">
            <button type="button" disabled={isFixed} onClick={() => setRestoring(true)}>
              Restore version {chosen}…
            </button>
          </div>
          {restoring && (
            <Confirm
              title={`Restore version ${chosen} of rule ${name}`}
              method="POST"
              path={`${path}:restore`}
              etag={etag}
              close={() => setRestoring(false)}
              onDone={() => choose(null)}
            />
          )}
        </Card>
      )}
    </div>
  );
}

/** A rule as text for comparison: its program unchanged, the rest as JSON. */
function shownOf({
  sql,
  jq,
  language,
  from,
  actions = [],
  tests = [],
  description = "",
  enable = true,
}: RuleObject): string {
  const isJq = language === "jq";
  const rest = { ...(isJq && { language, from }), enable, description, actions, tests };
  return `${isJq ? jq : sql}\n\n-- the rest\n${pretty(rest)}`;
}

export const page: KindPage<RuleObject> = {
  cells: {
    "SQL or jq": {
      kind: "mono",
      show: (rule) => <code className="one-line">{line(textOf(rule))}</code>,
      exact: (rule) => textOf(rule) || undefined,
    },
    Actions: {
      show: ({ actions }) =>
        actions.map((action, at) => (
          <span key={at}>
            {at > 0 && ", "}
            {actionText(action)}
          </span>
        )),
    },
    "Last error": { kind: "why", show: ({ last_error }) => <LastError error={last_error} /> },
  },
  tabs: [
    { title: "Editor", show: Edit },
    { title: "Actions", show: Actions },
    { title: "Back-test", show: Backtest },
    { title: "Versions", show: VersionsOf },
  ],
  create: Create,
};
