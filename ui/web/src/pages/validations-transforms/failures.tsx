// What a validation or transformation did: counters, failures and their shapes.

import { useState } from "react";
import { Card, Empty, State } from "../../parts/card";
import { Confirm } from "../../parts/dialogs";
import { ExplainButton, refusedOriginal } from "../../parts/explaining";
import { count } from "../../parts/format";
import type { ObjectProps } from "../../parts/kind-page";
import { useFixed } from "../../parts/read-only";
import { Table } from "../../parts/table";
import { clock, useTimeZone } from "../../parts/time";
import { Quarantine } from "./quarantine";
import { type Gate, share, type Which } from "./shared";

export const Watch = (which: Which) =>
  function Watched({ name, object, etag }: ObjectProps<Gate>) {
    const timeZone = useTimeZone();
    const isFixed = useFixed();
    const [isAsking, ask] = useState(false);
    const { metrics, recent_failures: failures, failure_shapes: shapes, mode } = object;
    const isShadow = mode === "shadow";
    const failed = share(metrics.failed, metrics.matched);
    const counted = shapes.reduce((sum, shape) => sum + shape.count, 0);
    return (
      <>
        <Card
          title={isShadow ? "Forecast" : "Failures"}
          note={`since ${clock(Date.parse(metrics.since), timeZone, "full")}`}>
          <p>
            <State state={metrics.failed ? "alarm" : "done"}>
              {isShadow ? `In shadow mode: would have stopped ${failed}` : `${failed} failed`}
            </State>
          </p>
          {metrics.matched === 0 && <Empty>No message on {object.topics.join(", ")} since then.</Empty>}
          {shapes.length > 0 && (
            <Table
              label="Shapes of failures"
              rows={shapes}
              keyOf={(_, at) => at}
              columns={[
                { title: "Messages", kind: "num", show: (shape) => count(shape.count) },
                { title: "Where", kind: "mono", show: ({ last }) => <code>{last.path || "payload"}</code> },
                { title: "Why, of the last one", kind: "why", show: ({ last }) => last.reason },
                {
                  title: which.one === "validation" ? "Check" : "Operation",
                  kind: "fit",
                  show: ({ last }) =>
                    last.check
                      ? `${last.check.index + 1}: ${last.check.schema ?? last.check.type}`
                      : last.operation === null || last.operation === undefined
                        ? last.kind
                        : last.operation + 1,
                },
                { title: "Topic", kind: "mono", show: ({ last }) => <code>{last.topic}</code> },
              ]}
            />
          )}
          {counted < metrics.failed && (
            <p className="muted">{count(metrics.failed - counted)} further failures have other shapes.</p>
          )}
          {isShadow && (
            <div className="buttons">
              <button type="button" className="primary" disabled={isFixed} onClick={() => ask(true)}>
                Enforce…
              </button>
            </div>
          )}
          {isAsking && (
            <Confirm
              title={`Enforce ${which.one} ${name}`}
              method="PATCH"
              path={`${which.path}/${name}`}
              body={{ mode: "enforce" }}
              etag={etag}
              close={() => ask(false)}
            />
          )}
        </Card>
        <Card title="Counters">
          <dl className="facts">
            {(
              [
                ["Matched", metrics.matched],
                ["Passed", metrics.succeeded],
                ["Failed", metrics.failed],
                ["Kept in quarantine", metrics.quarantined],
                ["Messages a second, now", metrics.rate],
                ["On average over 5 min", metrics.rate_last5m],
                ["At most", metrics.rate_max],
              ] as const
            ).map(([word, value]) => (
              <div key={word}>
                <dt>{word}</dt>
                <dd>{count(value)}</dd>
              </div>
            ))}
          </dl>
        </Card>
        <Card title="Last failures" note="without payloads; newest first">
          {failures.length ? (
            <Table
              label="Last failures"
              rows={[...failures].reverse()}
              keyOf={(_, at) => at}
              columns={[
                {
                  title: "Time",
                  kind: "fit",
                  show: ({ time_ms }) => clock(time_ms, timeZone),
                  exact: ({ time_ms }) => clock(time_ms, timeZone, "full"),
                },
                { title: "Topic", kind: "mono", show: ({ topic }) => <code>{topic}</code> },
                { title: "Client", kind: "mono", show: ({ clientid }) => <code>{clientid}</code> },
                { title: "Where", kind: "mono", show: ({ path }) => <code>{path || "payload"}</code> },
                { title: "Why", kind: "why", show: ({ reason }) => reason },
                { title: "Then", kind: "fit", show: ({ action }) => action },
                {
                  title: "Do",
                  head: <span className="hidden">Do</span>,
                  kind: "num verbs",
                  show: ({ message_id: id, topic, reason }) => (
                    <ExplainButton
                      topic={topic}
                      of={() => refusedOriginal(id)}
                      then={`When it was published, it failed: ${reason}`}
                    />
                  ),
                },
              ]}
            />
          ) : (
            <Empty>None failed.</Empty>
          )}
        </Card>
        <Quarantine stream={object.quarantine ?? ""} />
      </>
    );
  };
