// The page of a kind that has none of its own: its members, and its settings as a form, as they are declared.

import { call } from "../../api/client";
import { type Kind, KINDS } from "../../api/kinds";
import { Card } from "../../parts/card";
import type { KindPage, Tab } from "../../parts/kind-page";
import { Test } from "../../parts/probe";
import { bytes, duration } from "../../parts/format";
import { SpecForm } from "../../parts/spec-form";
import { Facts, Value } from "../../parts/value";

type Members = Record<string, unknown>;

/** The value and the default of a setting with the unit that its type says. */
function withUnit(object: Members): Members {
  const { type, value } = object;
  const drawn = type === "duration" ? duration : type === "size" ? bytes : undefined;
  return drawn && typeof value === "number" && value > 0 ? { ...object, value: drawn(value) } : object;
}

function pageOf(kind: Kind): KindPage<Members> {
  const overview: Tab<Members> = {
    title: "Overview",
    show: ({ name, object }) => (
      <Card title={kind.one}>
        <Facts object={kind.name === "setting" ? withUnit(object) : object} label={name} />
      </Card>
    ),
  };
  const settings: Tab<Members> = {
    title: "Settings",
    show: (props) => <SpecForm kind={kind.path} schema={kind.model} {...props} />,
  };
  const test: Tab<Members> = {
    title: "Test",
    show: ({ name }) => (
      <Card title="Test" note="with the settings as they are saved">
        <Test
          right={kind.right}
          ask={() => call("POST", `${kind.path}/${encodeURIComponent(name)}:test`)}
          cli={`sluice ${kind.cli} test ${name}`}
          label={`Test the ${kind.name}`}
          done="Check that the test arrived."
        />
      </Card>
    ),
  };
  const tabs = kind.writes.includes("put") ? [overview, settings] : [overview];
  return {
    tabs: kind.hasTest ? [...tabs, test] : tabs,
    cells:
      kind.name === "setting"
        ? { Value: { show: (row) => <Value member="value" value={withUnit(row).value} /> } }
        : undefined,
    create: () => <SpecForm kind={kind.path} schema={kind.model} object={{}} />,
  };
}

/** Made once: a page that is made again is another component, which begins without what was typed or shown. */
export const PAGES = new Map(KINDS.map((kind) => [kind.path, pageOf(kind)]));
