// The kinds of objects that the dashboard shows. What is declared of a kind is in kinds.json, which `make docs` writes.

import declared from "./kinds.json";

export interface Kind {
  /** In the address of the page. */
  path: string;
  api: string;
  /** What the API calls one in a sentence. */
  name: string;
  one: string;
  many: string;
  cli: string;
  file: string;
  /** What saves one, among the types of the API. */
  model: string;
  /** The key that opens its list after g. */
  key: string;
  /** Whether it has the verbs enable and disable. */
  canDisable: boolean;
  /** Whether its objects act in the order of the list, which can be changed. */
  isOrdered: boolean;
  /** What it is for, in one sentence. */
  purpose: string;
}

/** In the order of a message's path. ``title``: where pages have a shorter word than the API. */
const SHOWN: { api: string; key: string; title?: string; purpose: string }[] = [
  { api: "schemas", key: "c", purpose: "What payloads look like: Avro, JSON Schema and Protobuf, with versions." },
  {
    api: "validations",
    key: "v",
    purpose: "Messages of a topic that fit no schema are dropped, kept apart, or only counted.",
  },
  { api: "transforms", key: "t", purpose: "Messages of a topic are changed before rules and subscribers get them." },
  { api: "rules", key: "r", purpose: "SQL over messages and events; each row goes to the rule's actions." },
  { api: "connectors", key: "n", purpose: "Connections to Kafka, MQTT brokers, HTTP servers, PostgreSQL and files." },
  { api: "actions", key: "a", purpose: "Rows of rules, sent over a connector, with a buffer that outlives outages." },
  { api: "sources", key: "i", purpose: "Messages and records of other systems, taken in over a connector." },
  { api: "streams", key: "m", purpose: "Rows and messages kept in order on disk, to be read again from any time." },
  { api: "lake/tables", key: "l", title: "Table", purpose: "Streams as Delta and Iceberg tables, written by Spark." },
];

const capitalized = (text: string) => text[0]!.toUpperCase() + text.slice(1);

export const KINDS: Kind[] = SHOWN.map(({ api, key, title, purpose }) => {
  const { name, many, command, section, model, verbs, is_ordered } = declared.find(({ path }) => path === api)!;
  return {
    path: api.split("/").at(-1)!,
    api,
    name,
    one: title ?? capitalized(name),
    many: title ? `${title}s` : capitalized(many),
    cli: command,
    file: section!,
    model,
    key,
    canDisable: verbs.includes("disable"),
    isOrdered: is_ordered,
    purpose,
  };
});

export const kindOf = (path: string) => KINDS.find((kind) => kind.path === path);

/** The kind that the API calls so in a sentence. */
export const kindNamed = (name: string) => KINDS.find((kind) => kind.name === name || kind.one.toLowerCase() === name);
