// The kinds of objects that the dashboard shows: where they are in the API, the CLI and the files.

export interface Kind {
  path: string;
  api: string;
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

type Rest = Pick<Kind, "key" | "purpose"> & Partial<Pick<Kind, "api" | "cli" | "canDisable" | "isOrdered">>;

function kind(path: string, one: string, file: string, rest: Rest): Kind {
  const many = one.replace(/y$/, "ie").replace(/ch$/, "che") + "s";
  return { path, api: path, one, many, cli: path, file, model: `${path[0]!.toUpperCase()}${path.slice(1, -1)}Spec`, canDisable: true, isOrdered: false, ...rest };
}

/** In the order of a message's path. */
export const KINDS: Kind[] = [
  kind("schemas", "Schema", "schema_registry.schemas", { key: "c", canDisable: false, purpose: "What payloads look like: Avro, JSON Schema and Protobuf, with versions." }),
  kind("validations", "Validation", "schema_validation.validations", { key: "v", isOrdered: true, purpose: "Messages of a topic that fit no schema are dropped, kept apart, or only counted." }),
  kind("transforms", "Transformation", "message_transformation.transformations", { key: "t", isOrdered: true, purpose: "Messages of a topic are changed before rules and subscribers get them." }),
  kind("rules", "Rule", "rule_engine.rules", { key: "r", isOrdered: true, purpose: "SQL over messages and events; each row goes to the rule's actions." }),
  kind("connectors", "Connector", "connectors", { key: "n", purpose: "Connections to Kafka, MQTT brokers, HTTP servers, PostgreSQL and files." }),
  kind("actions", "Action", "actions", { key: "a", purpose: "Rows of rules, sent over a connector, with a buffer that outlives outages." }),
  kind("sources", "Source", "sources", { key: "i", purpose: "Messages and records of other systems, taken in over a connector." }),
  kind("streams", "Stream", "streams", { key: "m", canDisable: false, purpose: "Rows and messages kept in order on disk, to be read again from any time." }),
  kind("tables", "Table", "lake.tables", { key: "l", canDisable: false, api: "lake/tables", cli: "lake tables", purpose: "Streams as Delta and Iceberg tables, written by Spark." }),
];

export const kindOf = (path: string) => KINDS.find((one) => one.path === path);
