// Reading a range of records again, and replacing their rows.

import { Link, useNavigate, useSearch } from "@tanstack/react-router";
import { call, type Job } from "../../api/client";
import { useObject } from "../../api/live";
import { inAddress } from "../../parts/address";
import { Card, Failure, ObjectLink, State } from "../../parts/card";
import { word } from "../../parts/copy";
import { CopyAs } from "../../parts/copy-as";
import { counted, exact } from "../../parts/format";
import { JobView, usePlan } from "../../parts/job";
import { Permitted } from "../../parts/permitted";
import { Choice, useNames } from "../../parts/select";
import { DateTime } from "../../parts/time";
import { ShadowCard } from "./shadow";
import { type LakeTable, Offsets, place, type Props, type Schemas, tab } from "./shared";

type Plan = Schemas["ReplayReport"];

interface Range {
  from?: string | number;
  to?: string | number;
  records?: string[];
  rule?: string;
  into?: "shadow" | undefined;
  rate?: string | number;
}

export function Replay({ name, object }: Props) {
  const search = useSearch({ strict: false }) as Range & { job?: string };
  const navigate = useNavigate();
  const set = (changed: Range & { job?: string }) =>
    void navigate({ to: ".", search: ((known: object) => ({ ...known, ...changed })) as never, replace: true });
  const rules = useNames("rules");
  const isPart = search.from !== undefined || search.to !== undefined;
  const texts = [
    ["from", search.from],
    ["to", search.to],
    ["rule", search.rule],
    ["into", search.into],
  ].flatMap(([key, value]) => (value === undefined || value === "" ? [] : [[key!, String(value)]]));
  const records = Array.isArray(search.records) ? search.records.map(String) : undefined;
  const rate = search.rate === undefined || search.rate === "" ? undefined : Number(search.rate);
  const body = { ...Object.fromEntries(texts), ...(records && { records }), ...(rate !== undefined && { rate }) };
  const text = JSON.stringify(body);
  const path = `${place(name)}:replay`;
  const { planned, says, isBusy, look, start } = usePlan<Plan>(text, {
    plan: async () => (await call<Plan>("POST", path, { body, query: { dry_run: true } })).body,
    start: async () => set({ job: (await call<Job>("POST", path, { body, isAsync: true })).body.id }),
  });
  const job = object.replay?.id ?? search.job;
  const options = [
    ...texts,
    ...(rate === undefined ? [] : [["rate", rate]]),
    ...(records ?? []).map((one) => ["record", one]),
  ]
    .map(([key, value]) => ` --${key} ${word(String(value))}`)
    .join("");
  return (
    <>
      <Card title="Replay" note="reads records of the stream again and replaces their rows">
        <Meaning object={object} />
        <Permitted right="tables" does="job" to="replay tables">
          <form
            onSubmit={(event) => {
              event.preventDefault();
              look();
            }}
            aria-label="What to replay">
            <div className="choice" role="group" aria-label="Range">
              <button type="button" aria-pressed={!isPart && !records} onClick={() => set({ ...NO_RANGE })}>
                The whole table
              </button>
              <button
                type="button"
                aria-pressed={isPart}
                onClick={() => set({ from: search.from ?? "", to: search.to ?? "", records: undefined })}>
                A part
              </button>
              {records && (
                <button type="button" aria-pressed="true">
                  {counted(records.length, "selected record")}
                </button>
              )}
            </div>
            {isPart && (
              <div className="try">
                <label>
                  From, an offset or a time
                  <input
                    spellCheck={false}
                    value={search.from ?? ""}
                    placeholder="the first record that the stream still has"
                    onChange={(event) => set({ from: inAddress(event.target.value) })}
                  />
                </label>
                <label>
                  To, not included
                  <input
                    spellCheck={false}
                    value={search.to ?? ""}
                    placeholder="the end of the table"
                    onChange={(event) => set({ to: inAddress(event.target.value) })}
                  />
                </label>
              </div>
            )}
            {object.rule && (
              <Choice
                label="Rule"
                value={search.rule ?? ""}
                none={`${object.rule}, the table’s own`}
                onChange={(rule) => set({ rule: rule || undefined })}
                options={rules.filter((one) => one !== object.rule).map((one) => [one, one])}
              />
            )}
            {!object.key?.length && (
              <Choice
                label="Into"
                value={search.into ?? ""}
                none="The table, whose rows are replaced"
                onChange={(into) => set({ into: into === "shadow" ? into : undefined })}
                options={[["shadow", "A shadow beside it, to be compared and swapped"]]}
              />
            )}
            <div className="try">
              <label>
                Records per second, at most
                <input
                  inputMode="numeric"
                  value={search.rate ?? ""}
                  placeholder="as fast as it goes"
                  onChange={(event) => set({ rate: inAddress(event.target.value) })}
                />
              </label>
            </div>
            <div className="buttons">
              <button type="submit" className={planned ? "" : "primary"} disabled={isBusy}>
                Show the plan
              </button>
              {planned && (planned.records > 0 || planned.recreates) && (
                <button type="button" className="primary" disabled={isBusy || Boolean(object.replay)} onClick={start}>
                  Replay {exact(planned.records)} {planned.records === 1 ? "record" : "records"}
                </button>
              )}
              <CopyAs
                path={`${place(name)}:replay`}
                method="POST"
                body={body}
                cli={`sluice replay ${name}${options}`}
              />
            </div>
          </form>
        </Permitted>
        <Failure>{says}</Failure>
        {planned && <Planned plan={planned} stream={object.stream} />}
      </Card>
      {job && (
        <Card title="Progress" note={<code>sluice jobs watch {job}</code>}>
          <JobView id={job}>
            {({ kind, result }) =>
              kind === "replay" &&
              result &&
              "rows_after" in result && <Outcome plan={result as unknown as Plan} name={name} />
            }
          </JobView>
        </Card>
      )}
      <ShadowCard key={name} name={name} isBusy={Boolean(object.replay)} replay={job} />
    </>
  );
}

const MOST_RANGES = 20;
const NO_RANGE = { from: undefined, to: undefined, records: undefined };

/** What a replay does to this table, and what it cannot do. */
function Meaning({ object }: { object: LakeTable }) {
  const { data } = useObject<Schemas["StreamObject"]>("streams", object.stream);
  if (object.tables)
    return (
      <p className="muted">
        A table with <code>tables</code> is not replayed.{" "}
        <Link to="/new/$kind" params={{ kind: "tables" }}>
          Create a new one
        </Link>{" "}
        of the stream, with a start.
      </p>
    );
  if (object.key?.length)
    return (
      <p className="muted">
        A table with a key is replayed to its end: rows after the start are replaced, and a later record replaces or
        deletes what an earlier one gives. The table is not filled meanwhile.
      </p>
    );
  const always = "The same range twice leaves the same table. New rows go on arriving meanwhile.";
  if (object.rule)
    return (
      <p className="muted">
        Rule <ObjectLink kind="rules" name={object.rule} /> runs again as it is now, so a corrected rule rebuilds its
        rows. {always}
      </p>
    );
  if (data?.object?.kind !== "rows")
    return <p className="muted">The messages of the stream are converted again; no rule runs. {always}</p>;
  return (
    <div className="fields">
      <p className="muted">The rows of the stream are converted again. {always}</p>
      <p className="note">
        This table follows the <strong>rows</strong> that rules wrote to stream{" "}
        <ObjectLink kind="streams" name={object.stream} />, not the messages: a replay does not run a rule, so it cannot
        apply a corrected one to older messages. For that,{" "}
        <Link to="/new/$kind" params={{ kind: "tables" }}>
          create a table
        </Link>{" "}
        of a stream that captures the messages and choose the rule there; its replay runs the rule again.
      </p>
    </div>
  );
}

function Planned({ plan, stream }: { plan: Plan; stream: string }) {
  if (!plan.records && !plan.recreates)
    return (
      <p className="note" role="status">
        There is nothing to replay: the table has no record of this range that the stream still holds.
      </p>
    );
  return (
    <dl className="members effect" role="status" aria-label="Plan">
      <div>
        <dt>Reads</dt>
        <dd>
          {counted(plan.records, "record", exact)}:{" "}
          {plan.ranges.slice(0, MOST_RANGES).map((one) => (
            <Offsets key={`${one.shard} ${one.start}`} stream={stream} {...one} />
          ))}
          {plan.ranges.length > MOST_RANGES && <div>and {plan.ranges.length - MOST_RANGES} more ranges</div>}
        </dd>
      </div>
      {plan.recreates && (
        <div>
          <dt>Makes again</dt>
          <dd>
            what is gone of the table; what is there stays.{" "}
            {plan.missing.length > 0 && (
              <>
                The stream no longer has{" "}
                {plan.missing.map((one) => `[${one.start}, ${one.end}) of shard ${one.shard}`).join(", ")}.
              </>
            )}
          </dd>
        </div>
      )}
      <div>
        <dt>Published</dt>
        <dd>
          {plan.published_from ? (
            <>
              <DateTime at={plan.published_from} /> to <DateTime at={plan.published_to} />
            </>
          ) : (
            "the table has no row of them now"
          )}
        </dd>
      </div>
      <div>
        <dt>Replaces</dt>
        <dd>
          {counted(plan.rows_before, "row", exact)} and {counted(plan.dead_letters_before, "dead letter", exact)} of
          table {plan.table}, each in one commit
        </dd>
      </div>
      <div>
        <dt>Runs</dt>
        <dd>
          {plan.rule ? (
            <>
              rule <ObjectLink kind="rules" name={plan.rule} />
            </>
          ) : (
            "no rule"
          )}
        </dd>
      </div>
    </dl>
  );
}

function Outcome({ plan, name }: { plan: Plan; name: string }) {
  return (
    <p role="status">
      <State state="ok">{counted(plan.records, "record", exact)} read</State>: {counted(plan.rows_after, "row", exact)}{" "}
      and {counted(plan.dead_letters_after, "dead letter", exact)} in place of {exact(plan.rows_before)} and{" "}
      {exact(plan.dead_letters_before)}
      {plan.rule && `, ${exact(plan.filtered_after)} filtered`}. Version {exact(plan.version)} of{" "}
      <ObjectLink kind="tables" name={name} />.{" "}
      <Link to="." search={tab("rows")}>
        See the rows
      </Link>{" "}
      or{" "}
      <Link to="." search={tab("audit")}>
        audit the table
      </Link>
      .
    </p>
  );
}
