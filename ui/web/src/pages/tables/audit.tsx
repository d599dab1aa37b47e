// The audit of a table, with a picture of the offsets of each shard.

import { useState } from "react";
import { call, type Job, sentence } from "../../api/client";
import { Card, Failure, State } from "../../parts/card";
import { CopyAs } from "../../parts/copy-as";
import { counted, duration, exact } from "../../parts/format";
import { JobView } from "../../parts/job";
import { Permitted } from "../../parts/permitted";
import { RelativeTime } from "../../parts/time";
import { type LakeTable, Offsets, place, type Props, type Schemas } from "./shared";

type Audit = Schemas["TableAudit"];
type Shard = Schemas["AuditedShard"];

export function AuditTab({ name, object }: Props) {
  const [says, setSays] = useState("");
  const [started, setStarted] = useState("");
  const [depth, setDepth] = useState(object.audit_depth ?? "offsets");
  const path = `${place(name)}:audit?depth=${depth}`;
  const run = async () => {
    setSays("");
    await call<Job>("POST", `${place(name)}:audit`, { query: { depth }, isAsync: true }).then(
      ({ body }) => setStarted(body.id),
      (error) => setSays(sentence(error)),
    );
  };
  const { last_audit: last, audit_interval: interval, replay } = object;
  const job = (replay?.audit && replay.id) || started;
  return (
    <Card title="Audit" note="every record of the stream is a row, was filtered, or is a dead letter, once">
      <Permitted right="tables" does="job" to="audit tables">
        {!object.key?.length && (
          <div className="choice" role="group" aria-label="What is compared">
            {DEPTHS.filter(([one]) => one !== "deep" || !object.tables).map(([one, title]) => (
              <button key={one} type="button" aria-pressed={depth === one} onClick={() => setDepth(one)}>
                {title}
              </button>
            ))}
          </div>
        )}
        <div className="buttons">
          <button type="button" className="primary" disabled={Boolean(replay)} onClick={() => void run()}>
            {replay?.audit ? "Reading the table…" : started ? "Audit again" : "Audit"}
          </button>
          <CopyAs path={path} body={{}} cli={`sluice audit ${name}${depth === "offsets" ? "" : ` --${depth}`}`} />
        </div>
      </Permitted>
      <Failure>{says}</Failure>
      {last && !job && (
        <>
          <p>
            Last audit, <RelativeTime at={last.at} />:{" "}
            <State state={last.ok ? "ok" : "failed"}>
              {last.ok ? "every record was accounted for, once" : counted(last.problem_count, "problem")}
            </State>
          </p>
          {last.problems.length > 0 && (
            <ul className="findings">
              {last.problems.map((one) => (
                <li key={one}>
                  <State state="failed">{one}</State>
                </li>
              ))}
            </ul>
          )}
        </>
      )}
      {interval ? (
        <p className="muted small">
          The lake job audits the table every {duration(Number(interval))}, with an alarm while the last audit found a
          problem.
        </p>
      ) : (
        <p className="muted small">
          With <code>audit_interval</code> in the settings, the lake job audits the table by itself.
        </p>
      )}
      {job && (
        <JobView key={job} id={job}>
          {({ kind, result }) =>
            kind === "audit" && result && <AuditReport report={result as unknown as Audit} object={object} />
          }
        </JobView>
      )}
    </Card>
  );
}

function AuditReport({ report, object }: { report: Audit; object: LakeTable }) {
  return (
    <div className="stack audit">
      <p role="status">
        <State state={report.ok ? "ok" : "failed"}>
          {report.ok
            ? "Every record is accounted for, once." +
              (report.shards.some((one) => one.rows > 0) ? "" : " The table has no rows yet.")
            : counted(report.problems.length, "problem")}
        </State>{" "}
        <span className="muted">version {report.version}</span>
      </p>
      {report.problems.length > 0 && (
        <ul className="findings">
          {report.problems.map((one) => (
            <li key={one}>
              <State state="failed">{one}</State>
            </li>
          ))}
        </ul>
      )}
      {report.shards.map((one) => (
        <ShardPicture
          key={one.shard}
          stream={object.stream}
          shard={one}
          hasRule={Boolean(object.rule)}
          hasKey={report.key.length > 0}
        />
      ))}
      {report.key.length > 0 && (
        <p className="muted small">
          Rows that later records of their key ({report.key.join(", ")}) replaced are gone: they are counted by the
          batches. No key has two rows.
        </p>
      )}
      <p className="legend">
        {LEGEND.map(([kind, word]) => (
          <span key={kind}>
            <svg viewBox="0 0 16 12" aria-hidden="true">
              <rect className={`audit-${kind}`} width="16" height="12" />
            </svg>
            {word}
          </span>
        ))}
      </p>
    </div>
  );
}

const DEPTHS = [
  ["offsets", "Offsets"],
  ["values", "Offsets and values"],
  ["deep", "All, with the stream"],
] as const;

const LEGEND = [
  ["ok", "accounted for"],
  ["missing", "missing"],
  ["doubled", "more than once"],
  ["expired", "removed before the table had them"],
  ["lag", "waiting in the stream"],
];

const WIDTH = 1000;
const THINNEST = 4;

/** The offsets of a shard as a strip: green, with the places where they are wrong, and what is to come. */
function ShardPicture({
  stream,
  shard: one,
  hasRule,
  hasKey,
}: {
  stream: string;
  shard: Shard;
  hasRule: boolean;
  hasKey: boolean;
}) {
  const end = one.next + one.expired + one.lag;
  const span = Math.max(1, end - one.first);
  const x = (offset: number) => ((offset - one.first) / span) * WIDTH;
  const rect = (kind: string, start: number, stop: number) =>
    stop > start && (
      <rect
        key={`${kind} ${start}`}
        className={`audit-${kind}`}
        x={Math.min(x(start), WIDTH - THINNEST)}
        width={Math.max(THINNEST, x(stop) - x(start))}
        height="28">
        <title>{`${start} to ${stop - 1}`}</title>
      </rect>
    );
  const records = one.next - one.first;
  const bad: [string, Schemas["OffsetRange"][]][] = [
    ["missing", one.missing_at],
    ["doubled", one.doubled_at],
  ];
  const says =
    `Shard ${one.shard}: ${counted(records, "record", exact)}, ${exact(one.missing)} missing, ` +
    `${exact(one.doubled)} more than once`;
  return (
    <figure className="strip-of-shard">
      <figcaption>
        <strong>Shard {one.shard}</strong>{" "}
        {records ? (
          <>
            offsets {one.first} to {one.next - 1}: {counted(records, "record", exact)} are{" "}
            {counted(one.rows, "row", exact)}, {hasKey && <>{exact(one.superseded)} superseded or deleted, </>}
            {exact(one.filtered)} filtered{one.removed > 0 && <>, {exact(one.removed)} removed by their age</>} and{" "}
            {counted(one.dead_letters, "dead letter", exact)}
          </>
        ) : (
          "nothing was written yet"
        )}
        {one.lag > 0 && <>; {exact(one.lag)} more wait in the stream</>}
        {typeof one.compared === "number" && <>; the values of {counted(one.compared, "row", exact)} were compared</>}
      </figcaption>
      <svg viewBox={`0 0 ${WIDTH} 28`} preserveAspectRatio="none" role="img" aria-label={says}>
        {rect("lag", one.next + one.expired, end)}
        {rect("expired", one.next, one.next + one.expired)}
        {rect("ok", one.first, one.next)}
        {bad.map(([kind, ranges]) => ranges.map(({ start, end }) => rect(kind, start, end)))}
      </svg>
      {hasRule && one.missing > 0 && (
        <p className="muted small">
          Of these some may be filtered: a rule table keeps how many records its rule filtered, not which.
        </p>
      )}
      {bad.map(
        ([kind, ranges]) =>
          ranges.length > 0 && (
            <p key={kind}>
              {kind === "missing" ? "Missing" : "More than once"}:{" "}
              {ranges.map((range) => (
                <span key={range.start} className="column">
                  <Offsets stream={stream} shard={one.shard} {...range} />
                </span>
              ))}
            </p>
          ),
      )}
    </figure>
  );
}
