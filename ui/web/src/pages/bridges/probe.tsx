// The test of a bridge, step by step.

import { useState } from "react";
import { call, sentence } from "../../api/client";
import { Card, State, Why } from "../../parts/card";
import { Command } from "../../parts/copy";
import { duration } from "../../parts/format";
import { type Path, placeOf, type Schemas } from "./shared";

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
};

export function Test({ ask, cli }: { ask: () => Promise<{ body: Schemas["ProbeResult"] }>; cli?: string }) {
  const [result, setResult] = useState<Schemas["ProbeResult"] | null>(null);
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
          Test the connection
        </button>
        {cli && <Command text={cli} />}
      </div>
      <div role="status">
        {says && <p className={says === "Testing…" ? "muted" : "err"}>{says}</p>}
        {result && (
          <>
            <p>
              <State state={result.ok ? "ok" : "failed"}>
                {result.ok
                  ? "Every step went well. Nothing was written."
                  : "A step failed; those after it were not tried."}
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

export function TestTab({ path, name }: { path: Path; name: string }) {
  return (
    <Card title="Test" note="with a connection of its own">
      <p className="muted">
        Goes through what it takes to {path === "actions" ? "send a row" : path === "sources" ? "read" : "connect"}, one
        step after the other, with the settings as they are saved. Nothing is written.
      </p>
      <Test ask={() => call("POST", `${placeOf(path, name)}:test`)} cli={`sluice ${path} test ${name}`} />
    </Card>
  );
}
