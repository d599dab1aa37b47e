// Upkeep of a table: files joined, old versions and rows removed.

import { useState } from "react";
import { call, type Job, sentence } from "../../api/client";
import { Card, Failure, State } from "../../parts/card";
import { word } from "../../parts/copy";
import { CopyAs } from "../../parts/copy-as";
import { bytes, counted, exact } from "../../parts/format";
import { JobView } from "../../parts/job";
import { Permitted } from "../../parts/permitted";
import { place, type Props } from "./shared";

type Upkeep = {
  dry_run: boolean;
  files: number;
  bytes: number;
  files_after?: number;
  snapshots?: number;
  rows?: number;
};

/** Compaction, expiry and removal of old rows, each with what it would do before it is started. */
export function Maintain({ name, object }: Props) {
  const [age, setAge] = useState("7d");
  const [rowAge, setRowAge] = useState("400d");
  return (
    <>
      <Card title="Compact" note="joins small files of the same partition; rows stay as they are">
        <p className="muted">
          {object.partition_by?.length ? (
            <>
              Partitions: <code>{object.partition_by.join(", ")}</code>.{" "}
            </>
          ) : (
            ""
          )}
          The lake job does it by itself once 100 files can be joined.
        </p>
        <Upkeeping
          name={name}
          verb="compact"
          body={{}}
          cli=""
          says={({ files, bytes: size, files_after }) =>
            files
              ? `${counted(files, "file", exact)}, ${bytes(size)}, become ${exact(files_after)}`
              : "No file can be joined with another."
          }
        />
      </Card>
      <Card title="Remove old versions" note="and the files that only they have">
        <p className="muted">
          Readers that began with such a version may fail. The newest version stays, and so do tags and branches.
        </p>
        <div className="try">
          <label>
            Older than
            <input spellCheck={false} value={age} onChange={(event) => setAge(event.target.value)} />
          </label>
        </div>
        <Upkeeping
          key={age}
          name={name}
          verb="expire"
          body={{ older_than: age }}
          cli={` --older-than ${word(age)}`}
          says={({ files, bytes: size, snapshots }) =>
            files || snapshots
              ? (snapshots ? `${counted(snapshots, "snapshot")} and ` : "") +
                `${counted(files, "file")}, ${bytes(size)}, go`
              : "No version is older."
          }
        />
      </Card>
      {!object.key?.length && (
        <Card title="Remove old rows" note="and dead letters, by the time of publishing">
          <p className="muted">
            The lake job does it about once an hour in a table with <code>retention</code>. The audit counts these rows
            as removed.
          </p>
          <div className="try">
            <label>
              Published longer ago than
              <input spellCheck={false} value={rowAge} onChange={(event) => setRowAge(event.target.value)} />
            </label>
          </div>
          <Upkeeping
            key={`rows ${rowAge}`}
            name={name}
            verb="retain"
            body={{ older_than: rowAge }}
            cli={` --older-than ${word(rowAge)}`}
            says={({ rows }) => (rows ? `${counted(rows, "row", exact)} and dead letters go` : "No row is older.")}
          />
        </Card>
      )}
    </>
  );
}

function Upkeeping({
  name,
  verb,
  body,
  cli,
  says,
}: {
  name: string;
  verb: string;
  body: object;
  cli: string;
  says: (report: Upkeep) => string;
}) {
  const [plan, setPlan] = useState<Upkeep | null>(null);
  const [job, setJob] = useState("");
  const [problem, setProblem] = useState("");
  const path = `${place(name)}:${verb}`;
  const ask = (question: Promise<void>) => {
    setProblem("");
    void question.catch((error) => setProblem(sentence(error)));
  };
  const look = () =>
    ask(call<Upkeep>("POST", path, { body, query: { dry_run: true } }).then(({ body }) => setPlan(body)));
  const start = () =>
    ask(
      call<Job>("POST", path, { body, isAsync: true }).then(({ body }) => {
        setPlan(null);
        setJob(body.id);
      }),
    );
  return (
    <>
      <Permitted right="tables" does="job" to="maintain tables">
        <div className="buttons">
          <button type="button" className={plan ? "" : "primary"} onClick={look}>
            Preview
          </button>
          {plan && Boolean(plan.files || plan.snapshots || plan.rows) && (
            <button type="button" className="primary" onClick={start}>
              {verb === "compact" ? "Join them" : "Remove them"}
            </button>
          )}
          <CopyAs path={path} method="POST" body={body} cli={`sluice lake tables ${verb} ${word(name)}${cli}`} />
        </div>
      </Permitted>
      <Failure>{problem}</Failure>
      {plan && <p role="status">{says(plan)}</p>}
      {job && (
        <JobView id={job}>
          {(done) => (
            <p role="status">
              <State state="ok">{says(done.result as unknown as Upkeep)}</State>
            </p>
          )}
        </JobView>
      )}
    </>
  );
}
