// What became of a message at one stage, in words.

import { ObjectLink, State } from "../../parts/card";
import { cell, counted } from "../../parts/format";
import type { Step } from "./shared";

const OUTCOMES: Record<string, [string, string]> = {
  passed: ["running", "passes"],
  changed: ["starting", "changed"],
  shadow: ["alarm", "would fail; passes, since it is in shadow mode"],
  drop: ["failed", "dropped"],
  disconnect: ["failed", "dropped, and its client disconnected"],
  ignore: ["alarm", "fails, and passes as it was"],
  no_result: ["idle", "FROM or WHERE does not match"],
  error: ["failed", "error"],
};

export function Became({ step, isShadow }: { step: Step; isShadow: boolean }) {
  const { outcome, wrote = [], failure, rows, error } = step;
  const [tone, word] =
    outcome === "rows" ? ["running", counted(rows?.length, "row")] : (OUTCOMES[outcome] ?? ["alarm", outcome]);
  return (
    <div className="became">
      <State state={tone}>
        {outcome === "changed" && isShadow ? "would be changed; passes as it was, in shadow mode" : word}
      </State>
      {step.reason !== undefined && (
        <p>
          <code>{step.path || "payload"}</code>: {step.reason}{" "}
          <span className="muted">
            by check {(step.check ?? 0) + 1},{" "}
            {step.schema ? (
              <>
                {step.type} schema <ObjectLink kind="schemas" name={step.schema} />
              </>
            ) : (
              step.type
            )}
          </span>
        </p>
      )}
      {failure && (
        <p>
          {failure.operation !== null && failure.operation !== undefined && `operation ${failure.operation + 1}: `}
          {failure.reason}
        </p>
      )}
      {wrote.map(({ key, value }, at) => (
        <p key={at}>
          <code>{key}</code> = <code>{cell(value)}</code>
        </p>
      ))}
      {rows?.map((row, at) => (
        <p key={at}>
          <code>{cell(row)}</code>
        </p>
      ))}
      {error && <p>{error.message}</p>}
    </div>
  );
}
