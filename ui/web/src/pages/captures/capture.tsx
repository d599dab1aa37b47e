// One capture: its bounds, and its messages with every stage that each met.

import { keepPreviousData, useQuery } from "@tanstack/react-query";
import { useState } from "react";
import { getAny } from "../../api/client";
import { useEvery } from "../../api/live";
import { textOf } from "../../api/messages";
import type { components } from "../../api/openapi";
import { Card, Empty, LoadFailure, Loading, ObjectLink, State, Why } from "../../parts/card";
import { StageName } from "../../parts/explain";
import { CUT, ExplainButton, shownOriginal } from "../../parts/explaining";
import { counted, exact, UNKNOWN } from "../../parts/format";
import type { ItemPageProps } from "../../parts/item-page";
import { Table } from "../../parts/table";
import { DateTime } from "../../parts/time";
import { wordsOf } from "../../parts/schema-form";
import { Facts } from "../../parts/value";

type Schemas = components["schemas"];
type Captured = Schemas["CaptureRecord"];
const ROWS = 50;
const EVERY_MS = 3000;

export default function CapturePage({ name, data }: ItemPageProps) {
  const place = `captures/${encodeURIComponent(name)}`;
  return (
    <>
      <Card
        title="Capture"
        note={
          <a href={`/api/v1/${place}/file`} download>
            Download the file
          </a>
        }>
        <Facts object={data} label={name} />
      </Card>
      <Records place={place} isRunning={data.ended === ""} />
    </>
  );
}

function Records({ place, isRunning }: { place: string; isRunning: boolean }) {
  const [cursors, setCursors] = useState<string[]>([]); // of the pages up to the one that is shown
  const cursor = cursors.at(-1);
  const every = useEvery(EVERY_MS);
  const { data, error, isPlaceholderData } = useQuery({
    queryKey: ["captured", place, cursor],
    queryFn: ({ signal }) =>
      getAny<Schemas["CaptureRecordList"]>(`${place}/records`, { query: { limit: ROWS, cursor }, signal }),
    placeholderData: keepPreviousData,
    refetchInterval: isRunning && every,
  });
  const rows = data?.items ?? [];
  return (
    <Card title="Messages" note="oldest first">
      <LoadFailure error={error} />
      {!data && !error && <Loading />}
      {data && !rows.length && (
        <Empty>
          {isRunning ? "No message was captured yet. It shows here when one passes." : "No message was captured."}
        </Empty>
      )}
      {rows.length > 0 && (
        <Table
          label="Captured messages"
          kind="live"
          rows={rows}
          keyOf={(_, at) => at}
          columns={[
            { title: "Number", kind: "num", show: ({ number, message }) => (message ? exact(number) : UNKNOWN) },
            { title: "At", kind: "fit", show: ({ at }) => <DateTime at={at} /> },
            {
              title: "Message",
              kind: "why",
              show: ({ message, clientid, address, text }) => (
                <>
                  {message ? <code className="wraps">{message.topic}</code> : text}
                  <Why>
                    <ObjectLink kind="clients" name={clientid} /> {address}
                  </Why>
                  {message && <code className="wraps">{textOf(message).slice(0, 300)}</code>}
                </>
              ),
            },
            {
              title: "Outcome",
              kind: "why",
              show: (record) => (
                <>
                  {record.message ? (
                    <State state={record.outcome === "refused" ? "failed" : "ok"}>{record.outcome}</State>
                  ) : (
                    wordsOf(record.outcome).toLowerCase()
                  )}
                  <Why>{record.error || (record.message && record.text)}</Why>
                  {record.steps.length > 0 && <Stages of={record} />}
                </>
              ),
            },
            {
              title: "Do",
              head: <span className="hidden">Do</span>,
              kind: "num verbs",
              show: ({ message, clientid, username, is_cut: isCut, outcome, error: why }) =>
                message &&
                outcome !== "sent" && (
                  <ExplainButton
                    topic={message.topic}
                    of={isCut ? CUT : shownOriginal({ ...message, clientid, username } as never)}
                    then={`When it was captured, it was ${outcome}${why ? `: ${why}` : "."}`}
                  />
                ),
            },
          ]}
        />
      )}
      {(cursors.length > 0 || data?.next) && (
        <nav className="pager" aria-label="Pages of the messages">
          <button type="button" disabled={!cursors.length} onClick={() => setCursors(cursors.slice(0, -1))}>
            Previous
          </button>
          <button
            type="button"
            disabled={!data?.next || isPlaceholderData}
            onClick={() => setCursors([...cursors, data!.next!])}>
            Next
          </button>
        </nav>
      )}
    </Card>
  );
}

/** The stages as they were met, with the time of each. */
function Stages({ of: { steps, number } }: { of: Captured }) {
  if (!steps.length) return <Why>It met no stage.</Why>;
  return (
    <details>
      <summary>{counted(steps.length, "stage")}</summary>
      <Table
        label={`Stages of message ${number}`}
        rows={steps}
        keyOf={(_, at) => at}
        columns={[
          { title: "Stage", show: (step) => <StageName of={step} /> },
          { title: "Took", kind: "num", show: ({ took_us: took }) => `${exact(Math.round(took))} µs` },
          {
            title: "Result",
            kind: "why",
            show: ({ after, rows, refusal, error, state }) => (
              <>
                {refusal ?? error ?? state}
                {after && (
                  <Why>
                    became <code>{after.topic}</code> <code>{textOf(after)}</code>
                  </Why>
                )}
                {rows?.map((row, at) => (
                  <code key={at} className="wraps">
                    {JSON.stringify(row)}
                  </code>
                ))}
              </>
            ),
          },
        ]}
      />
    </details>
  );
}
