// The messages that were stopped and kept, to be published again.

import { keepPreviousData, useQuery } from "@tanstack/react-query";
import { Link } from "@tanstack/react-router";
import { useState } from "react";
import { call, getAny, type Job, sentence } from "../../api/client";
import { useJobs, useObject } from "../../api/live";
import { useMay } from "../../api/rights";
import type { components } from "../../api/openapi";
import { Card, Empty, Failure, LoadFailure, ObjectLink } from "../../parts/card";
import { CopyAs } from "../../parts/copy-as";
import { ExplainButton, originalOf } from "../../parts/explaining";
import { count, counted } from "../../parts/format";
import { JobView } from "../../parts/job";
import { Table, useSelection } from "../../parts/table";

type Schemas = components["schemas"];

const MOST_QUARANTINED = 100;

export function Quarantine({ stream }: { stream: string }) {
  if (stream) return <Kept key={stream} stream={stream} />;
  return (
    <Card title="Quarantine">
      <Empty>
        Messages that it stops are not kept.{" "}
        <Link to="." search={{ tab: "change" } as never}>
          Set its quarantine
        </Link>{" "}
        to a stream of rows, to keep them and publish them again after a fix.
      </Empty>
    </Card>
  );
}

function Kept({ stream }: { stream: string }) {
  const [job, setJob] = useState<string | null>(null);
  const [says, setSays] = useState("");
  const held = useObject<Schemas["StreamObject"]>("streams", stream).data?.object?.positions;
  const work = Object.values(useJobs() ?? {}).flatMap(({ id, kind, name, state, progress }) =>
    kind === "quarantine" && name === stream ? [[id, state, progress.done]] : [],
  );
  const place = `quarantine/${encodeURIComponent(stream)}`;
  const mayPublish = useMay()("quarantines", "job");
  const { data, error } = useQuery({
    queryKey: ["quarantine", stream, held, work],
    placeholderData: keepPreviousData,
    queryFn: () => getAny<Schemas["QuarantineView"]>(place, { query: { limit: MOST_QUARANTINED } }),
  });
  const [chosen, select] = useSelection(data?.items ?? [], ({ shard, offset }) => `${shard}/${offset}`);
  const records = chosen.map(({ shard, offset }) => `${shard}/${offset}`);
  const verb = `${place}:take-again${records.length ? `?${records.map((one) => `record=${one}`).join("&")}` : ""}`;
  const body = { limit: 10_000 };
  const again = async () => {
    try {
      setJob((await call<Job>("POST", verb, { body, isAsync: true })).body.id);
      setSays("");
    } catch (error) {
      setSays(sentence(error));
    }
  };
  return (
    <Card title="Quarantine" note={<ObjectLink kind="streams" name={stream} />}>
      <LoadFailure error={error} />
      {data && (
        <p role="status">
          {counted(data.waiting, "message")} in stream {stream}.
          {data.waiting > data.items.length && ` Below are the oldest ${data.items.length}.`}
        </p>
      )}
      {data && data.items.length > 0 && (
        <>
          <div className="buttons">
            {mayPublish && (
              <button type="button" className="primary" onClick={() => void again()}>
                Publish {chosen.length ? `${chosen.length} selected` : count(data.waiting)} again
              </button>
            )}
            <CopyAs
              path={verb}
              method="POST"
              body={body}
              cli={`sluice quarantine take-again ${stream}${records.map((one) => ` --record ${one}`).join("")}`}
            />
          </div>
          <Table
            label="Messages in quarantine"
            rows={data.items}
            keyOf={(row) => `${row.shard} ${row.offset}`}
            columns={[
              select,
              { title: "Offset", kind: "num", show: ({ offset }) => offset },
              { title: "Stopped by", kind: "fit", show: (row) => row.name },
              { title: "Topic", kind: "mono", show: ({ topic }) => <code>{topic}</code> },
              { title: "Where", kind: "mono", show: ({ path: at }) => <code>{at || "payload"}</code> },
              { title: "Why", kind: "why", show: ({ reason }) => reason },
              { title: "Payload", kind: "mono", show: ({ payload }) => <code>{payload}</code> },
              {
                title: "Do",
                head: <span className="hidden">Do</span>,
                kind: "num verbs",
                show: ({ topic = "", shard, offset, reason }) => (
                  <ExplainButton
                    topic={topic}
                    of={() => originalOf(stream, shard, offset)}
                    then={`When it was published, it was stopped: ${reason}`}
                  />
                ),
              },
            ]}
          />
          <p className="muted small">They pass all stages again; what fails again comes back with its new reason.</p>
        </>
      )}
      <Failure>{says}</Failure>
      {job && (
        <JobView id={job}>
          {({ result }) => (
            <p role="status">
              {count(result?.published as number)} published, {count(result?.failed as number)} failed again.
            </p>
          )}
        </JobView>
      )}
    </Card>
  );
}
