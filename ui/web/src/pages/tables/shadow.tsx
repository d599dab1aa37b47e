// The shadow of a table: how far its replay is, what a swap would change, and the swap.

import { keepPreviousData, useQuery } from "@tanstack/react-query";
import { useState } from "react";
import { call, getAny, type Job, sentence } from "../../api/client";
import { useJobs } from "../../api/live";
import type { components } from "../../api/openapi";
import { Card, Empty, Failure, State } from "../../parts/card";
import { word } from "../../parts/copy";
import { CopyAs } from "../../parts/copy-as";
import { counted, exact } from "../../parts/format";
import { JobView } from "../../parts/job";
import { Permitted } from "../../parts/permitted";
import { Table } from "../../parts/table";
import { DateTime } from "../../parts/time";

type Schemas = components["schemas"];
type Diff = Schemas["TableDiff"];
type Verb = "diff" | "swap" | "discard";

const SAYS: Record<Verb, string> = { diff: "Compare", swap: "Swap", discard: "Discard" };

/** The shadow of a table, if it has one. `isBusy` while a job works on the table, whose end changes it; `replay` is the
 *  last one, which may be over before the page has seen the table busy. */
export function ShadowCard({ name, isBusy, replay }: { name: string; isBusy: boolean; replay: string | undefined }) {
  const path = `lake/tables/${encodeURIComponent(name)}`;
  const [job, setJob] = useState<{ id: string; verb: Verb } | null>(null);
  const [problem, setProblem] = useState("");
  const jobs = useJobs();
  const states = [replay, job?.id].map((id) => id && [id, jobs?.[id]?.state]);
  const { data: shadow } = useQuery({
    queryKey: ["shadow", name, isBusy, states],
    placeholderData: keepPreviousData,
    retry: false,
    refetchInterval: isBusy ? 2000 : false,
    queryFn: async ({ signal }): Promise<Schemas["FoundShadow"]["shadow"]> =>
      (await getAny<Schemas["FoundShadow"]>(`${path}/shadow`, { signal })).shadow,
  });
  const start = async (verb: Verb) => {
    setProblem("");
    await call<Job>("POST", `${path}:${verb}`, { isAsync: true }).then(
      ({ body }) => setJob({ id: body.id, verb }),
      (error) => setProblem(sentence(error)),
    );
  };
  if (!shadow && !job) return null;
  return (
    <Card title="Shadow" note={<code>sluice lake tables shadow {name}</code>}>
      {shadow && (
        <>
          <p role="status">
            {exact(shadow.done)} of {counted(shadow.records, "record", exact)}, since{" "}
            <DateTime at={shadow.started_at} />: {counted(shadow.rows, "row", exact)},{" "}
            {counted(shadow.dead_letters, "dead letter", exact)}, {exact(shadow.filtered)} filtered.
            {shadow.is_complete ? " The table takes them when they are swapped." : " It is not complete yet."}
          </p>
          <progress aria-label={`Shadow of ${name}`} value={shadow.done} max={shadow.records || 1} />
          <Permitted right="tables" does="job" to="compare, swap or discard shadows">
            <div className="buttons">
              {(["diff", "swap", "discard"] as const).map((verb) => (
                <button
                  key={verb}
                  type="button"
                  className={verb === "diff" ? "primary" : ""}
                  disabled={isBusy || (verb === "swap" && !shadow.is_complete)}
                  onClick={() => void start(verb)}>
                  {SAYS[verb]}
                </button>
              ))}
              <CopyAs path={`${path}:diff`} method="POST" body={{}} cli={`sluice lake tables diff ${word(name)}`} />
            </div>
          </Permitted>
        </>
      )}
      <Failure>{problem}</Failure>
      {job && <JobView id={job.id}>{({ result }) => <Done verb={job.verb} result={result} />}</JobView>}
    </Card>
  );
}

function Done({ verb, result }: { verb: Verb; result: unknown }) {
  if (verb === "discard")
    return (
      <p role="status">
        <State state="ok">The shadow is removed.</State>
      </p>
    );
  if (verb === "swap")
    return (
      <p role="status">
        <State state="ok">The table has the rows of the shadow.</State> Version{" "}
        {exact((result as Schemas["SwapReport"]).version)}.
      </p>
    );
  const diff = result as Diff;
  return (
    <div className="stack">
      <Rows title="Rows" found={diff.rows} />
      <Rows title="Dead letters" found={diff.dead_letters} />
    </div>
  );
}

function Rows({ title, found }: { title: string; found: Schemas["RowDiff"] }) {
  const columns = Object.entries(found.columns).sort(([, one], [, other]) => other - one);
  return (
    <section aria-label={`Difference of ${title.toLowerCase()}`}>
      <h3>{title}</h3>
      <p>
        {exact(found.same)} the same, {exact(found.changed)} changed, {exact(found.only_table)} only in the table,{" "}
        {exact(found.only_shadow)} only in the shadow.
      </p>
      {columns.length > 0 && (
        <p className="muted small">
          Changed:{" "}
          {columns.map(([column, times], at) => (
            <span key={column}>
              {at > 0 && ", "}
              <code>{column}</code> {counted(times, "time")}
            </span>
          ))}
        </p>
      )}
      {found.samples.length ? (
        <Table
          label={`Changed ${title.toLowerCase()}`}
          kind="log"
          rows={found.samples}
          keyOf={(one, at) => `${one.shard}/${one.offset} ${at}`}
          columns={[
            { title: "Record", kind: "fit", show: ({ shard, offset }) => `${shard}/${offset}` },
            {
              title: "What",
              kind: "fit",
              show: ({ kind }) =>
                ({ changed: "changed", only_table: "only in the table", only_shadow: "only in the shadow" })[kind],
            },
            { title: "Table", show: ({ table }) => <Values of={table} /> },
            { title: "Shadow", show: ({ shadow }) => <Values of={shadow} /> },
          ]}
        />
      ) : (
        <Empty>No difference.</Empty>
      )}
    </section>
  );
}

function Values({ of }: { of: Record<string, string | null> | null }) {
  return (
    <>
      {of &&
        Object.entries(of).map(([column, value]) => (
          <div key={column}>
            <code>{column}</code> {value ?? "null"}
          </div>
        ))}
    </>
  );
}
