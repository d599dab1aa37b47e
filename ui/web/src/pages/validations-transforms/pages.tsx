// The pages of validations and of transformations.

import { State } from "../../parts/card";
import { count } from "../../parts/format";
import type { KindPage } from "../../parts/kind-page";
import { Change, Create } from "./editor";
import { Watch } from "./failures";
import { Pipeline } from "./pipeline";
import { BOTH, type Gate, percent, type Which } from "./shared";

const pageOf = (which: Which): KindPage<Gate> => ({
  cells: {
    Mode: {
      kind: "fit",
      show: ({ mode, failure_action }) => (mode === "shadow" ? <State state="alarm">shadow</State> : failure_action),
    },
    Failed: {
      kind: "num",
      show: ({ metrics }) =>
        metrics.failed ? `${count(metrics.failed)} (${percent.format(metrics.failed / metrics.matched)})` : 0,
    },
  },
  above: () => <Pipeline />,
  tabs: [
    { title: "Watch", show: Watch(which) },
    { title: "Change", show: Change(which) },
  ],
  create: Create(which),
});

export const [validations, transforms] = BOTH.map(pageOf) as [KindPage<Gate>, KindPage<Gate>];
