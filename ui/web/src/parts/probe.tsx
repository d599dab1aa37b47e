// The test of an object, step by step.

import { useState } from "react";
import { sentence } from "../api/client";
import type { components } from "../api/openapi";
import type { Does } from "../api/kinds";
import { State, Why } from "./card";
import { Command } from "./copy";
import { duration } from "./format";
import { Permitted } from "./permitted";

const STEPS: Record<string, [string, string]> = {
  resolve: ["Resolve the name", "Check how the host is spelt, and that the name server of this machine knows it."],
  connect: ["Connect", "Check the port, that the other system runs, and that no firewall is in between."],
  tls: ["Agree on TLS", "Check the certificate authority in ssl.cacertfile, and that the port speaks TLS."],
  authenticate: ["Sign in", "Check the user name, the password and the mechanism."],
  metadata: [
    "Ask for metadata",
    "It is connected, but the answer is not what was expected: check the versions of both sides.",
  ],
  check: ["Ask for an answer", "It is connected and does not answer as expected."],
  request: ["Send a request", "Check the path, and what the service says."],
  target: ["Find the target", "Create the topic, table or path, or correct its name in the settings."],
  permission: ["May it write?", "Grant the user of the connector the right to write."],
  publish: ["Publish", "Check the topic, and what validations and transformations of it say."],
  send: ["Send an e-mail", "Check the port, the encryption, the user name and password, and the addresses."],
};

type Result = components["schemas"]["ProbeResult"];

interface Props {
  /** What rights call the kind of the object. */
  right: string;
  /** The right that the test takes: that to save the object, where it is not saved. */
  does?: Does;
  ask: () => Promise<{ body: Result }>;
  cli?: string;
  label?: string;
  done?: string;
}

export const Test = ({ right, does = "try", ...test }: Props) => (
  <Permitted right={right} does={does} to="run this test">
    <Probe {...test} />
  </Permitted>
);

function Probe({
  ask,
  cli,
  label = "Test the connection",
  done = "Nothing was written.",
}: Omit<Props, "right" | "does">) {
  const [result, setResult] = useState<Result | null>(null);
  const [says, setSays] = useState("");
  const press = async () => {
    setResult(null);
    setSays("Testing…");
    setSays(
      await ask().then(({ body }) => {
        setResult(body);
        return "";
      }, sentence),
    );
  };
  return (
    <div className="probe">
      <div className="buttons">
        <button type="button" disabled={says === "Testing…"} onClick={() => void press()}>
          {label}
        </button>
        {cli && <Command text={cli} />}
      </div>
      <div role="status">
        {says && <p className={says === "Testing…" ? "muted" : "err"}>{says}</p>}
        {result && (
          <>
            <p>
              <State state={result.ok ? "ok" : "failed"}>
                {result.ok ? `Every step went well. ${done}` : "A step failed; those after it were not tried."}
              </State>
            </p>
            <ol className="plain steps">
              {result.steps.map(({ name, result: how, duration_ms: ms, message }) => (
                <li key={name} className="step">
                  <State state={how === "skipped" ? "idle" : how}>{STEPS[name]?.[0] ?? name}</State>{" "}
                  <span className="muted small">{how === "skipped" ? "not tried" : duration(ms / 1000)}</span>
                  <Why>{message}</Why>
                  {how === "failed" && STEPS[name] && <Why>{STEPS[name][1]}</Why>}
                </li>
              ))}
            </ol>
          </>
        )}
      </div>
    </div>
  );
}
