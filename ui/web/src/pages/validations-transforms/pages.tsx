// The pages of validations and of transformations.

import { State } from "../../parts/card";
import { count } from "../../parts/format";
import type { KindPage } from "../../parts/kind-page";
import { Change, Create } from "./editor";
import { Watch } from "./failures";
import { Pipeline } from "./pipeline";
import { BOTH, type Gate, percent, type Which } from "./shared";

const pageOf = (which: Which): KindPage<Gate> => ({
  columns: [
    { title: "Topics", kind: "mono", show: ({ topics }) => <code>{topics.join(", ")}</code> },
    {
      title: "Mode",
      kind: "fit",
      show: ({ mode, failure_action }) => (mode === "shadow" ? <State state="alarm">shadow</State> : failure_action),
    },
    { title: "Matched", kind: "num", show: ({ metrics }) => count(metrics.matched) },
    {
      title: "Failed",
      kind: "num",
      show: ({ metrics }) =>
        metrics.failed ? `${count(metrics.failed)} (${percent.format(metrics.failed / metrics.matched)})` : 0,
    },
    { title: "Per second", kind: "num", show: ({ metrics }) => count(metrics.rate) },
  ],
  filters: [
    { name: "topic", label: "Topic" },
    { name: "schema_name", label: "Schema" },
    { name: "mode", label: "Mode", values: ["enforce", "shadow"] },
  ],
  above: () => <Pipeline />,
  tabs: [
    { title: "Watch", show: Watch(which) },
    { title: "Change", show: Change(which) },
  ],
  create: Create(which),
});

export const [validations, transforms] = BOTH.map(pageOf) as [KindPage<Gate>, KindPage<Gate>];
