// A table of a rule: the choice of what it follows, with the consequence of each.

import { useQuery, useQueryClient } from "@tanstack/react-query";
import { useId, useState } from "react";
import { call, type Effect, patiently, Refused, sentence } from "../api/client";
import { useChanges } from "../api/live";
import { Failure, Why } from "./card";

const CHOICES = [
  ["messages", "Run the rule over messages"],
  ["rows", "Keep the rows that the rule writes"],
] as const;
type Follows = (typeof CHOICES)[number][0];

/** What creating the table would do, or why it cannot be created. */
function usePlan(path: string, follows: Follows, enabled: boolean) {
  const { data } = useQuery({
    enabled,
    queryKey: ["plan", path, follows, useChanges()],
    queryFn: async ({ signal }): Promise<{ effect?: Effect; says?: string }> => {
      try {
        return {
          effect: (
            await patiently(
              () => call<Effect>("POST", path, { body: { follows }, query: { dry_run: true }, signal }),
              signal,
            )
          ).body,
        };
      } catch (error) {
        if (!(error instanceof Refused)) throw error;
        return { says: error.message };
      }
    },
  });
  return data;
}

/** Asks what the table of a rule follows, and creates it. */
export function RuleTable({ name, etag }: { name: string; etag?: string }) {
  const queries = useQueryClient();
  const id = useId();
  const [format, setFormat] = useState("delta");
  const [picked, pick] = useState<Follows | null>(null);
  const [problem, setProblem] = useState("");
  const [isAsking, setAsking] = useState(true); // not while the table is created: then the plans would be refused
  const path = `rules/${encodeURIComponent(name)}:create-table`;
  const plans = { messages: usePlan(path, "messages", isAsking), rows: usePlan(path, "rows", isAsking) };
  const follows = picked ?? (plans.messages?.says && !plans.rows?.says ? "rows" : "messages");
  const create = async () => {
    setProblem("");
    setAsking(false);
    await queries.cancelQueries({ queryKey: ["plan", path] }); // the server may come to one behind the creation
    try {
      await call("POST", path, { etag, body: { format, follows } });
    } catch (error) {
      setProblem(sentence(error));
      setAsking(true);
    }
    await queries.invalidateQueries();
  };
  return (
    <div className="stack">
      <fieldset className="plain">
        <legend className="label">What is the table filled from?</legend>
        {CHOICES.map(([one, label]) => {
          const { effect, says } = plans[one] ?? {};
          return (
            <div key={one}>
              <label className="check">
                <input
                  type="radio"
                  name={id}
                  value={one}
                  checked={follows === one}
                  disabled={Boolean(says)}
                  aria-describedby={`${id}-${one}`}
                  onChange={() => pick(one)}
                />{" "}
                {label}
              </label>
              <div id={`${id}-${one}`}>
                <Why>{says ?? effect?.consequences.join(" ")}</Why>
                {effect?.affected.map(({ kind, name: touched, how }) => (
                  <Why key={kind}>
                    {kind} {touched}: {how}
                  </Why>
                ))}
              </div>
            </div>
          );
        })}
      </fieldset>
      <div className="buttons">
        <label className="check">
          Format{" "}
          <select value={format} onChange={(event) => setFormat(event.target.value)}>
            <option value="delta">Delta</option>
            <option value="iceberg">Iceberg</option>
          </select>
        </label>
        <button type="button" className="primary" disabled={!plans[follows]?.effect} onClick={() => void create()}>
          Create a table from this rule
        </button>
      </div>
      <Failure>{problem}</Failure>
    </div>
  );
}
