// The test of a bridge, step by step.

import { call } from "../../api/client";
import { Card } from "../../parts/card";
import { Test } from "../../parts/probe";
import { type Path, placeOf } from "./shared";

export function TestTab({ path, name }: { path: Path; name: string }) {
  return (
    <Card title="Test" note="with a connection of its own">
      <p className="muted">
        Goes through what it takes to {path === "actions" ? "send a row" : path === "sources" ? "read" : "connect"}, one
        step after the other, with the settings as they are saved. Nothing is written.
      </p>
      <Test right={path} ask={() => call("POST", `${placeOf(path, name)}:test`)} cli={`sluice ${path} test ${name}`} />
    </Card>
  );
}
