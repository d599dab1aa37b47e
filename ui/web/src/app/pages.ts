// The pages that the search and keys lead to.

import { KINDS, RESOURCES } from "../api/kinds";

/** Keys that open a list after g. */
const KEYS: Record<string, string> = {
  schemas: "c",
  validations: "v",
  transforms: "t",
  rules: "r",
  connectors: "n",
  actions: "a",
  sources: "i",
  streams: "m",
  tables: "l",
  clients: "k",
  jobs: "j",
};

export const PAGES: { title: string; to: string; key?: string }[] = [
  { title: "Start", to: "/", key: "s" },
  { title: "Overview", to: "/overview", key: "o" },
  { title: "Topics", to: "/topics", key: "p" },
  { title: "MQTT client", to: "/mqtt-client", key: "q" },
  ...[...KINDS, ...RESOURCES].map(({ many, path }) => ({ title: many, to: `/${path}`, key: KEYS[path] })),
];
