// Creating a table.

import { useQuery } from "@tanstack/react-query";
import { Link, useSearch } from "@tanstack/react-router";
import type { ReactNode } from "react";
import { getAny } from "../../api/client";
import { Card, Empty } from "../../parts/card";
import { bytes, counted } from "../../parts/format";
import { Choice, useNames } from "../../parts/select";
import { type Members, SpecForm } from "../../parts/spec-form";
import type { Schemas } from "./shared";

export function NewTable() {
  const search = useSearch({ strict: false }) as { stream?: string; rule?: string };
  const { data } = useQuery({
    queryKey: ["all", "streams"],
    queryFn: () => getAny<{ items: Schemas["StreamObject"][] }>("streams", { query: { limit: 1000 } }),
  });
  const [streams, rules] = [data?.items ?? [], useNames("rules")];
  const initial = {
    name: search.rule ?? search.stream ?? "",
    stream: search.stream ?? "",
    format: "delta",
    ...(search.rule && { rule: search.rule }),
  };
  if (data && !streams.length)
    return (
      <Card title="The table">
        <Empty command={`printf '%s' '{"name": "readings", "topics": ["meters/#"]}' | sluice streams apply -f -`}>
          A table follows a stream, and there is none yet.{" "}
          <Link to="/new/$kind" params={{ kind: "streams" }}>
            Create a stream
          </Link>
        </Empty>
      </Card>
    );
  const fields = (
    value: Members,
    change: (changed: Members) => void,
    problemAt: (pointer: string) => string | undefined,
  ): ReactNode => {
    const chosen = streams.find(({ name }) => name === value.stream);
    return (
      <div className="fields">
        <Choice
          label="Stream"
          value={String(value.stream ?? "")}
          problem={problemAt("/stream")}
          onChange={(stream) => change({ stream, ...(!value.name && { name: stream }) })}
          options={streams.map(({ name, topics }) => [
            name,
            `${name}: ${topics?.length ? `messages on ${topics.join(", ")}` : "rows that rules write"}`,
          ])}
          help={
            chosen &&
            `${counted(chosen.records, "record")}, ${bytes(chosen.bytes)}. The table begins with the oldest of them.`
          }
        />
        {chosen?.kind === "topics" && (
          <Choice
            label="Rule"
            value={String(value.rule ?? "")}
            problem={problemAt("/rule")}
            none="none: the messages themselves"
            onChange={(rule) => change({ rule: rule || undefined })}
            options={rules.map((one) => [one, one])}
            help="Spark runs the rule on each message, and its rows are the table’s. A corrected rule can rebuild them."
          />
        )}
      </div>
    );
  };
  return <SpecForm kind="tables" schema="TableSpec" object={initial} skip={["stream", "rule"]} fields={fields} />;
}
