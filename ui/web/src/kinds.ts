// The kinds of objects that the dashboard shows: where they are in the API, the CLI and the files.

export interface Kind {
  path: string;
  api: string;
  one: string;
  many: string;
  cli: string;
  file: string;
}

function kind(path: string, one: string, file: string, api = path, cli = path): Kind {
  const many = one.replace(/y$/, "ie").replace(/ch$/, "che") + "s";
  return { path, api, one, many, cli, file };
}

/** In the order of a message's path. */
export const KINDS: Kind[] = [
  kind("schemas", "Schema", "schema_registry.schemas"),
  kind("validations", "Validation", "schema_validation.validations"),
  kind("transforms", "Transformation", "message_transformation.transformations"),
  kind("rules", "Rule", "rule_engine.rules"),
  kind("connectors", "Connector", "connectors"),
  kind("actions", "Action", "actions"),
  kind("sources", "Source", "sources"),
  kind("streams", "Stream", "streams"),
  kind("tables", "Table", "lake.tables", "lake/tables", "lake tables"),
];

export const kindOf = (path: string) => KINDS.find((one) => one.path === path);
