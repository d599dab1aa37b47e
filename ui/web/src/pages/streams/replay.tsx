// Sending records of a stream again: what, where and how fast, the plan, then the job.

import { useNavigate, useSearch } from "@tanstack/react-router";
import { call, type Job } from "../../api/client";
import { useActions, useJobs } from "../../api/live";
import type { components } from "../../api/openapi";
import { inAddress } from "../../parts/address";
import { Card, Failure } from "../../parts/card";
import { word } from "../../parts/copy";
import { CopyAs } from "../../parts/copy-as";
import { bytes, cell, count, duration, exact, counted } from "../../parts/format";
import { JobView, usePlan } from "../../parts/job";
import type { ObjectProps } from "../../parts/kind-page";
import { Permitted } from "../../parts/permitted";
import { Choice, useNames } from "../../parts/select";
import { Table } from "../../parts/table";
import { DateTime } from "../../parts/time";

type Schemas = components["schemas"];
type Plan = Schemas["StreamReplayPlan"];
type Report = Schemas["StreamReplayReport"];

/** As the address has it: what looks like a number is one. */
interface Asked {
  to?: string;
  from?: string | number;
  until?: string | number;
  topics?: string;
  rule?: string;
  topic?: string;
  rate?: string | number;
  job?: string;
}

const RATE = 1000;

export function StreamReplay({ name, object }: ObjectProps<Schemas["StreamObject"]>) {
  const search = useSearch({ strict: false }) as Asked;
  const navigate = useNavigate();
  const set = (changed: Asked) =>
    void navigate({ to: ".", search: ((known: object) => ({ ...known, ...changed })) as never, replace: true });
  const streams = useNames("streams").filter((one) => one !== name);
  const rules = useNames("rules");
  const actions = useActions()?.items.map((one) => `${one.type}:${one.name}`) ?? [];
  const jobs = useJobs();
  const to = search.to ?? "mqtt";
  const body = asBody(search, to);
  const text = JSON.stringify(body);
  const path = `streams/${encodeURIComponent(name)}`;
  const { planned, says, isBusy, look, start } = usePlan<Plan>(text, {
    plan: async () => (await call<Plan>("POST", `${path}:plan-replay`, { body })).body,
    start: async () => set({ job: (await call<Job>("POST", `${path}:replay`, { body, isAsync: true })).body.id }),
  });
  const known = Object.values(jobs ?? {}).filter((one) => one.kind === "stream-replay" && one.name === name);
  const job = search.job ?? known.sort((one, other) => one.started_at.localeCompare(other.started_at)).at(-1)?.id;
  return (
    <>
      <Card title="Replay" note="sends records of the stream again">
        <p className="muted">
          The stream stays as it is, and does not capture what comes out of it. Records go out in the order of their
          times, at most at the rate.
        </p>
        <Permitted right="streams" does="job" to="replay records">
          <form
            onSubmit={(event) => {
              event.preventDefault();
              look();
            }}
            aria-label="What to replay">
            <Choice
              label="To"
              value={to}
              none="Choose…"
              onChange={(to) => set({ to: to || undefined, topic: undefined })}
              options={[
                ["mqtt", "Topics of this broker"],
                ...streams.map((one): [string, string] => [`stream:${one}`, `Stream ${one}`]),
                ...actions.map((one): [string, string] => [one, `Action ${one}`]),
              ]}
            />
            <div className="try">
              <label>
                From, an offset or a time
                <input
                  spellCheck={false}
                  value={search.from ?? ""}
                  placeholder="the first record"
                  onChange={(event) => set({ from: inAddress(event.target.value) })}
                />
              </label>
              <label>
                Until, not included
                <input
                  spellCheck={false}
                  value={search.until ?? ""}
                  placeholder="the last record there is now"
                  onChange={(event) => set({ until: inAddress(event.target.value) })}
                />
              </label>
              <label>
                Topic filter
                <input
                  spellCheck={false}
                  value={search.topics ?? ""}
                  placeholder="all topics"
                  onChange={(event) => set({ topics: event.target.value || undefined })}
                />
              </label>
              <label>
                Per second, at most
                <input
                  inputMode="numeric"
                  value={search.rate ?? ""}
                  placeholder={String(RATE)}
                  onChange={(event) => set({ rate: inAddress(event.target.value) })}
                />
              </label>
              {to === "mqtt" && (
                <label>
                  Topic of each message
                  <input
                    spellCheck={false}
                    value={search.topic ?? ""}
                    placeholder="${topic}"
                    onChange={(event) => set({ topic: event.target.value || undefined })}
                  />
                </label>
              )}
            </div>
            {object.kind === "topics" && (
              <Choice
                label="Rule"
                value={search.rule ?? ""}
                none="None: the messages as they are"
                onChange={(rule) => set({ rule: rule || undefined })}
                options={rules.map((one) => [one, one])}
                help="Its rows are sent in place of the messages; its actions do not run."
              />
            )}
            <div className="buttons">
              <button type="submit" className={planned ? "" : "primary"} disabled={isBusy}>
                Show the plan
              </button>
              {planned && planned.matched > 0 && (
                <button type="button" className="primary" disabled={isBusy} onClick={start}>
                  Replay {planned.is_estimate ? "about " : ""}
                  {exact(planned.matched)} {planned.matched === 1 ? "record" : "records"}
                </button>
              )}
              <CopyAs path={`${path}:replay`} method="POST" body={body} cli={asCommand(name, body)} />
            </div>
          </form>
        </Permitted>
        <Failure>{says}</Failure>
        {planned && <Planned plan={planned} />}
      </Card>
      {job && (
        <Card title="Progress" note={<code>sluice jobs watch {job}</code>}>
          <JobView id={job}>{(job) => <Outcome report={job.result as unknown as Report} />}</JobView>
        </Card>
      )}
    </>
  );
}

interface Body {
  to: string;
  from?: string;
  until?: string;
  filter?: string;
  rule?: string;
  topic?: string;
  rate?: number;
}

function asBody({ from, until, topics, rule, topic, rate }: Asked, to: string): Body {
  const given = { from, until, filter: topics, rule, topic };
  const texts = Object.entries(given).flatMap(([key, value]) =>
    value === undefined || value === "" ? [] : [[key, String(value)]],
  );
  return { to, ...Object.fromEntries(texts), ...(rate !== undefined && rate !== "" && { rate: Number(rate) }) };
}

function asCommand(name: string, { rate, ...texts }: Body): string {
  const options = Object.entries(texts)
    .map(([key, value]) => ` --${key} ${word(String(value))}`)
    .join("");
  return `sluice streams replay ${word(name)}${options}${rate === undefined ? "" : ` --rate ${rate}/s`}`;
}

function Planned({ plan }: { plan: Plan }) {
  if (!plan.records)
    return (
      <p className="note" role="status">
        There is nothing to replay: the stream has no record of this range.
      </p>
    );
  const about = plan.is_estimate ? "about " : "";
  return (
    <>
      <dl className="members effect" role="status" aria-label="Plan">
        <div>
          <dt>Sends</dt>
          <dd>
            {about}
            {exact(plan.matched)} of {counted(plan.records, "record", exact)}, {about}
            {bytes(plan.bytes)}
          </dd>
        </div>
        <div>
          <dt>Published</dt>
          <dd>
            <DateTime at={plan.oldest} /> to <DateTime at={plan.newest} />
          </dd>
        </div>
        <div>
          <dt>Takes</dt>
          <dd>{plan.seconds === null ? "as long as it takes" : `${about}${duration(plan.seconds)}, or longer`}</dd>
        </div>
      </dl>
      {plan.notes.map((one) => (
        <p key={one} className="note">
          {one}
        </p>
      ))}
      <Table
        label="First records"
        rows={plan.samples}
        keyOf={(one) => `${one.shard}/${one.offset}`}
        columns={[
          { title: "Offset", kind: "num", show: ({ offset }) => offset },
          { title: "Published", kind: "fit", show: ({ at }) => <DateTime at={at} /> },
          {
            title: "Sent",
            show: ({ topic, row }) => (
              <code>
                {[topic, row && cell(row)].filter(Boolean).join(" ") ||
                  (plan.to.startsWith("stream:") && !row ? "the record" : "nothing")}
              </code>
            ),
          },
        ]}
      />
    </>
  );
}

function Outcome({ report }: { report: Report }) {
  const others = (["skipped", "expired", "errors", "refused", "failed"] as const).filter((one) => report[one] > 0);
  return (
    <>
      <p role="status">
        {count(report.sent)} sent{others.map((one) => `, ${count(report[one])} ${one}`)}.
        {report.resumed > 0 &&
          " The broker stopped meanwhile: after a kill, some may have been sent twice, with the same marks."}
      </p>
      {report.problems.map((one) => (
        <p key={`${one.shard}/${one.offset}`} className="err small">
          Shard {one.shard}, offset {one.offset}: {one.reason}
        </p>
      ))}
    </>
  );
}
