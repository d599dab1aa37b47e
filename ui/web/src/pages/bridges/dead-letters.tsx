// Rows that an action gave up: sent again, deleted or exported.

import { keepPreviousData, useQuery } from "@tanstack/react-query";
import { useEffect, useState } from "react";
import { Button } from "react-aria-components";
import { call, type Effect, getAny, type Job, sentence } from "../../api/client";
import { useEvery } from "../../api/live";
import { useMay } from "../../api/rights";
import { Card, Empty, Failure, LoadFailure, Why } from "../../parts/card";
import { Command, download } from "../../parts/copy";
import { CopyAs } from "../../parts/copy-as";
import { Opens } from "../../parts/dialogs";
import { ExplainButton } from "../../parts/explaining";
import { ago, bytes, count, counted } from "../../parts/format";
import { JobView } from "../../parts/job";
import type { ObjectProps } from "../../parts/kind-page";
import { EffectView } from "../../parts/saving";
import { Table, useSelection } from "../../parts/table";
import { type Action, placeOf, type Schemas, useServerMs } from "./shared";

const MOST_LETTERS = 100;
const ROW_ONLY =
  "A dead letter has the row that a rule made. The message is not kept with it: a stream with topics keeps messages.";

export function DeadLetters({
  object: { name, metrics, dead_letters_waiting: waiting, dead_letters: kept },
}: ObjectProps<Action>) {
  const place = `${placeOf("actions", name)}/dead-letters`;
  const { data, error } = useQuery({
    queryKey: ["dead-letters", name, waiting, metrics.failed],
    placeholderData: keepPreviousData,
    queryFn: () => getAny<Schemas["DeadLetterList"]>(place, { query: { limit: MOST_LETTERS } }),
    refetchInterval: useEvery(5000), // a row is counted as failed before its letter is committed
  });
  const nowMs = useServerMs();
  const n = data?.waiting ?? waiting;
  const [chosen, select] = useSelection(data?.items ?? [], ({ offset }) => String(offset));
  const offsets = chosen.map(({ offset }) => offset);
  const what = chosen.length ? `${chosen.length} selected` : "all";
  const exported = chosen.length ? chosen : (data?.items ?? []);
  const causes = kept?.causes?.join(", ");
  const may = useMay();
  return (
    <Card
      title="Dead letters"
      note={<CopyAs path={`${place}?limit=${MOST_LETTERS}`} cli={`sluice actions dead-letters ls ${name}`} />}>
      <p className="muted">
        Rows that were given up, with the reason.{" "}
        {causes
          ? `Kept: those that ${causes
              .replace("failed", "the target refused")
              .replace("expired", "waited too long")
              .replace("queue_full", "found the buffer full")}.`
          : "The settings keep none."}{" "}
        At most {counted(kept?.max_records, "row")} and {bytes(Number(kept?.max_bytes))}; then the oldest make room.
      </p>
      <LoadFailure error={error} />
      {n > 0 && (
        <div className="buttons">
          {may("dead-letters", "job") && (
            <Opens
              label={chosen.length ? `Send ${what} again…` : "Send again…"}
              title={`Send dead letters of ${name} again`}>
              {(close) => <Redrive name={name} waiting={chosen.length || n} offsets={offsets} close={close} />}
            </Opens>
          )}
          {may("dead-letters", "change") && (
            <Opens label={`Delete ${what}…`} title={`Delete the dead letters of ${name}`}>
              {(close) => <Purge name={name} waiting={chosen.length || n} offsets={offsets} close={close} />}
            </Opens>
          )}
          <button
            type="button"
            onClick={() =>
              download(
                `${name}-dead-letters`,
                "ndjson",
                new Blob(
                  exported.map((one) => `${JSON.stringify(one)}\n`),
                  { type: "application/x-ndjson" },
                ),
              )
            }>
            Export {chosen.length ? what : `the ${exported.length} shown`}
          </button>
        </div>
      )}
      {n === 0 ? (
        <Empty>No dead letters.</Empty>
      ) : (
        data && (
          <>
            <p role="status">
              {n > data.items.length ? `The oldest ${count(data.items.length)} of ${count(n)}.` : `${count(n)} in all.`}
            </p>
            <Table
              label="Dead letters"
              kind="letters"
              rows={data.items}
              keyOf={({ offset }) => offset}
              columns={[
                select,
                {
                  title: "Given up",
                  kind: "fit",
                  show: ({ time_ms: ms }) => ago(new Date(ms).toISOString(), nowMs),
                  exact: ({ time_ms: ms }) => new Date(ms).toISOString(),
                },
                {
                  title: "Why",
                  kind: "why",
                  show: ({ cause, reason, attempts }) => (
                    <>
                      {reason}
                      <Why>
                        {cause.replaceAll("_", " ")}, {counted(attempts, "attempt")}
                      </Why>
                    </>
                  ),
                },
                {
                  title: "From",
                  show: ({ topic, clientid }) => (
                    <>
                      <code>{topic}</code>
                      <Why>{clientid}</Why>
                    </>
                  ),
                },
                {
                  title: "Row",
                  kind: "why",
                  show: ({ row }) => (
                    <details>
                      <summary>
                        <code>{JSON.stringify(row).slice(0, 60)}</code>
                      </summary>
                      <pre className="source">{typeof row === "string" ? row : JSON.stringify(row, null, 2)}</pre>
                    </details>
                  ),
                },
                {
                  title: "Do",
                  head: <span className="hidden">Do</span>,
                  kind: "num verbs",
                  show: ({ topic, reason, row }) => (
                    <ExplainButton topic={topic} of={ROW_ONLY} rows={[row]} then={`The row was given up: ${reason}`} />
                  ),
                },
              ]}
            />
          </>
        )
      )}
    </Card>
  );
}

interface Chosen {
  name: string;
  waiting: number;
  offsets: number[];
  close: () => void;
}

const only = (offsets: number[]) => (offsets.length ? `?${offsets.map((one) => `offset=${one}`).join("&")}` : "");
const flags = (offsets: number[]) => offsets.map((one) => ` --offset ${one}`).join("");

function Redrive({ name, waiting, offsets, close }: Chosen) {
  const [limit, setLimit] = useState(String(Math.min(waiting, 100_000)));
  const [job, setJob] = useState("");
  const [says, setSays] = useState("");
  const press = async () => {
    const asked = call<Job>("POST", `${placeOf("actions", name)}/dead-letters:redrive${only(offsets)}`, {
      body: { limit: Number(limit) },
      isAsync: true,
    });
    setSays(
      await asked.then(({ body }) => {
        setJob(body.id);
        return "";
      }, sentence),
    );
  };
  return (
    <>
      <h2>Send dead letters of {name} again?</h2>
      <p>
        {count(waiting)} {offsets.length ? "are selected. They" : "wait. The oldest"} are handed to the action once
        more; one that fails again becomes a new dead letter.
      </p>
      {job ? (
        <JobView id={job}>{({ result }) => <Redriven result={result as never} />}</JobView>
      ) : (
        <>
          {!offsets.length && (
            <label>
              How many
              <input
                type="number"
                min={1}
                max={100_000}
                value={limit}
                onChange={(event) => setLimit(event.target.value)}
              />
            </label>
          )}
          <Command
            text={`sluice actions dead-letters redrive ${name}${offsets.length ? flags(offsets) : ` --limit ${limit}`}`}
          />
        </>
      )}
      <Failure>{says}</Failure>
      <div className="buttons">
        {!job && (
          <button type="button" className="primary" onClick={() => void press()}>
            Send again
          </button>
        )}
        <Button className="button" onPress={close}>
          Close
        </Button>
      </div>
    </>
  );
}

function Redriven({ result }: { result: Schemas["RedrivenLetters"] | null }) {
  if (!result) return null;
  return (
    <p>
      {count(result.sent)} sent again, {count(result.waiting)} wait. {result.problem}
    </p>
  );
}

function Purge({ name, waiting, offsets, close }: Chosen) {
  const [says, setSays] = useState("");
  const [effect, setEffect] = useState<Effect | null>(null);
  const place = `${placeOf("actions", name)}/dead-letters:purge${only(offsets)}`;
  useEffect(() => {
    call<Effect>("POST", `${place}${offsets.length ? "&" : "?"}dry_run=true`).then(
      (answer) => setEffect(answer.body),
      (error) => setSays(sentence(error)),
    );
  }, []);
  const press = async () => {
    try {
      await call("POST", place);
      close();
    } catch (error) {
      setSays(sentence(error));
    }
  };
  return (
    <>
      <h2>
        Delete {offsets.length ? "the selected" : "all"} {counted(waiting, "dead letter")} of {name}?
      </h2>
      {effect && <EffectView effect={effect} />}
      <p>To keep a copy first:</p>
      <Command text={`sluice actions dead-letters ls ${name} --limit 1000 -o json > dead-letters.json`} />
      <Failure>{says}</Failure>
      <div className="buttons">
        <button type="button" className="danger" onClick={() => void press()}>
          Delete {counted(waiting, "dead letter")}
        </button>
        <Button className="button" onPress={close}>
          Keep them
        </Button>
      </div>
    </>
  );
}
