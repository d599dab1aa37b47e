// The pages of connectors, actions and sources.

import { Link } from "@tanstack/react-router";
import { ObjectLink, Why } from "../../parts/card";
import { count, duration, exact } from "../../parts/format";
import type { KindPage } from "../../parts/kind-page";
import { keepTimeZone } from "../../parts/time";
import { NewConnector, NewMember } from "./create";
import { DeadLetters } from "./dead-letters";
import { ACTION_CHARTS, OverTime, SOURCE_CHARTS } from "./over-time";
import { ActionNow, ConnectorNow, SourceNow } from "./overview";
import { TestTab } from "./probe";
import { SettingsTab } from "./settings";
import type { Action, Connector, Source } from "./shared";

export const connectors: KindPage<Connector> = {
  tabs: [
    { title: "Overview", show: (props) => <ConnectorNow {...props} /> },
    SettingsTab("connectors"),
    { title: "Test", show: ({ name }) => <TestTab path="connectors" name={name} /> },
  ],
  create: () => <NewConnector />,
};

export const actions: KindPage<Action> = {
  cells: {
    Connector: {
      show: ({ connector, type }) => (
        <>
          <ObjectLink kind="connectors" name={connector} />
          <Why>{type}</Why>
        </>
      ),
    },
    Waiting: {
      kind: "num",
      show: ({ metrics: m }) => (
        <>
          {count(m.queuing)}
          {m.queuing > 0 && m.lag_s ? <Why>for {duration(m.lag_s)}</Why> : null}
        </>
      ),
      exact: ({ metrics }) => exact(metrics.queuing),
    },
    "Dead letters": {
      kind: "num",
      show: ({ name, dead_letters_waiting: n }) =>
        n ? (
          <Link
            to="/$kind/$name"
            params={{ kind: "actions", name }}
            search={((known: object) => ({ ...keepTimeZone(known), tab: "dead letters" })) as never}>
            {count(n)}
          </Link>
        ) : (
          0
        ),
    },
  },
  tabs: [
    { title: "Overview", show: (props) => <ActionNow {...props} /> },
    SettingsTab("actions"),
    { title: "Test", show: ({ name }) => <TestTab path="actions" name={name} /> },
    { title: "Dead letters", show: (props) => <DeadLetters {...props} /> },
    { title: "Over time", show: ({ object }) => <OverTime charts={ACTION_CHARTS} label={`action=${object.id}`} /> },
  ],
  create: () => <NewMember path="actions" />,
};

export const sources: KindPage<Source> = {
  cells: {
    Connector: {
      show: ({ connector, type }) => (
        <>
          <ObjectLink kind="connectors" name={connector} />
          <Why>{type}</Why>
        </>
      ),
    },
  },
  tabs: [
    { title: "Overview", show: (props) => <SourceNow {...props} /> },
    SettingsTab("sources"),
    { title: "Test", show: ({ name }) => <TestTab path="sources" name={name} /> },
    { title: "Over time", show: ({ object }) => <OverTime charts={SOURCE_CHARTS} label={`source=${object.id}`} /> },
  ],
  create: () => <NewMember path="sources" />,
};
