// Kinds of objects and live lists as they are declared: kinds.json has them, which `make docs` writes.

import declared from "./kinds.json";

/** A column of a list: the member that it shows, or a member of a member as ``metrics/matched``. */
export interface DeclaredColumn {
  title: string;
  member: string;
}

/** What an operation does, by which rights permit it. */
export type Does = "read" | "change" | "try" | "job";

/** A query parameter of the operation that lists. Without ``values`` it takes text, maybe with ``*``. */
export interface Filter {
  name: string;
  label: string;
  text: string;
  values: string[] | null;
  is_pattern: boolean;
}

/** A list that has a page: its address below /, its names, and its place in the navigation. */
interface Listed {
  path: string;
  api: string;
  /** What the API calls one in a sentence. */
  name: string;
  one: string;
  many: string;
  cli: string;
  /** What rights call it. */
  right: string;
  /** The group of the navigation that has it; none: the search has it. */
  menu: string;
  /** The member that names one. */
  key: string;
  /** What it is for, in one sentence. */
  purpose: string;
}

export interface Kind extends Listed {
  /** The section of configuration files; none where settings hold the objects. */
  file: string | null;
  /** What saves one, among the types of the API. */
  model: string;
  writes: string[];
  /** Whether the path of the request that creates one has its name. */
  isCreatedByName: boolean;
  /** Whether a request changes members of an object, and none replaces it. */
  isPatched: boolean;
  /** Verbs that change the state of an object; with ``drains``, its connections may stay. */
  switches: { verb: string; text: string; drains: boolean }[];
  /** Whether its objects act in the order of the list, which can be changed. */
  isOrdered: boolean;
  /** Whether an object can be tested step by step. */
  hasTest: boolean;
  /** What else happens when one is deleted. */
  deletion: string;
  columns: DeclaredColumn[];
  filters: Filter[];
  /** Members of an object that a request does not set. */
  readOnly: string[];
}

/** Where a request has the name of an item: in its path, its query, or as a member of its body. */
export interface Call {
  path: string;
  place: string;
  parameter: string;
}

/** The path and the query that name an item. */
export const requestOf = (
  { path, place, parameter }: Call,
  name: string,
): { path: string; query: Record<string, string> } =>
  place === "path"
    ? { path: path.replace(`{${parameter}}`, encodeURIComponent(name)), query: {} }
    : { path, query: { [parameter]: name } };

export interface Verb extends Call {
  method: string;
  /** The right that it needs. */
  right: string;
  does: Does;
  title: string;
  text: string;
  /** The path of the list that it belongs to. */
  list: string;
  /** The type of the body, without the members ``skips``; none where there are no others. */
  model: string;
  skips: string[];
  may_be_dry: boolean;
  is_job: boolean;
  /** The items that it is for, see ``isOffered``; empty for all. */
  offered: string;
}

/** Whether an item is one that a verb is for: ``connected``, ``!ended``, ``state=running|paused``. Members that the item
 *  lacks rule nothing out. */
export function isOffered({ offered }: Verb, item: Record<string, unknown>): boolean {
  const [, not, member, values] = /^(!?)(\w*)=?(.*)$/.exec(offered)!;
  if (!member || !(member in item)) return true;
  return values ? values.split("|").includes(String(item[member])) : Boolean(item[member]) !== Boolean(not);
}

export interface List {
  path: string;
  title: string;
  text: string;
  is_paged: boolean;
  columns: DeclaredColumn[];
  filters: Filter[];
  orders: { name: string; label: string }[];
  order: string;
}

export interface Resource extends Listed {
  lists: List[];
  show: Call | null;
  /** Lists that belong to one item. */
  parts: (List & Call)[];
  verbs: Verb[];
  /** The path of the list where deletions are undone; empty for none. */
  undoneAt: string;
  /** The path that streams all that the filters of the list select; empty for none. */
  export: string;
}

/** Pages with a shorter address and name than the API has. */
const SHORT: Record<string, { path: string; one: string; many: string }> = {
  "lake/tables": { path: "tables", one: "Table", many: "Tables" },
  config: { path: "settings", one: "Setting", many: "Settings" },
};
/** These come first in the navigation: the path of a message, and clients before what is kept for them. */
const FIRST = ["schemas", "validations", "transforms", "rules", "connectors", "actions", "sources", "streams"].concat([
  "lake/tables",
  "clients",
  "sessions",
  "subscriptions",
  "retained",
  "delayed",
]);
const placeOf = (api: string) => (FIRST.indexOf(api) + 1 || FIRST.length + 1) - 1;

export const capitalized = (text: string) => text[0]!.toUpperCase() + text.slice(1);
const firstSentence = (text: string) => /^.*?\.(?= |$)/.exec(text)?.[0] ?? text;

/** As kinds.json has them. */
interface DeclaredPage {
  path: string;
  right: string;
  name: string;
  many: string;
  command: string;
  about: string;
  menu: string;
  key: string;
}
type DeclaredKind = DeclaredPage &
  Pick<Kind, "model" | "writes" | "switches" | "deletion" | "columns" | "filters"> & {
    section: string | null;
    is_created_by_name: boolean;
    is_patched: boolean;
    is_ordered: boolean;
    has_test: boolean;
    read_only: string[];
  };
type DeclaredResource = DeclaredPage &
  Pick<Resource, "lists" | "show" | "parts" | "verbs" | "export"> & { undone_at: string };
const { kinds, resources } = declared as unknown as { kinds: DeclaredKind[]; resources: DeclaredResource[] };

const listed = ({ path, right, name, many, command, about, menu, key }: DeclaredPage) => ({
  path,
  right,
  api: path,
  name,
  one: capitalized(name),
  many: capitalized(many),
  cli: command,
  menu,
  key,
  purpose: firstSentence(about),
  ...SHORT[path],
});

export const KINDS: Kind[] = kinds
  .map((kind) => ({
    ...listed(kind),
    file: kind.section,
    model: kind.model,
    writes: kind.writes,
    isCreatedByName: kind.is_created_by_name,
    isPatched: kind.is_patched,
    switches: kind.switches,
    isOrdered: kind.is_ordered,
    hasTest: kind.has_test,
    deletion: kind.deletion,
    columns: kind.columns,
    filters: kind.filters,
    readOnly: kind.read_only,
  }))
  .sort((a, b) => placeOf(a.api) - placeOf(b.api));

export const RESOURCES: Resource[] = resources.map((resource) => ({
  ...listed(resource),
  lists: resource.lists,
  show: resource.show,
  parts: resource.parts,
  verbs: resource.verbs,
  undoneAt: resource.undone_at,
  export: resource.export,
}));

const PAGES = [...KINDS, ...RESOURCES].sort((a, b) => placeOf(a.api) - placeOf(b.api));
export const kindOf = (path: string) => KINDS.find((kind) => kind.path === path);
export const resourceOf = (path: string) => RESOURCES.find((resource) => resource.path === path);

/** The kind that the API calls so in a sentence. */
export const kindNamed = (name: string) => KINDS.find((kind) => kind.name === name || kind.one.toLowerCase() === name);

/** Pages that show more than a list, by their group. */
const OWN: Record<string, { path: string; many: string; right: string }[]> = {
  Traffic: [{ path: "topics", many: "Topics", right: "topics" }],
  Diagnose: [{ path: "mqtt-client", many: "MQTT client", right: "topics" }],
};
const GROUPS = ["Traffic", "Data", "Delivery", "Diagnose", "Administration"];
/** The groups of the navigation with their lists. */
export const MENU = GROUPS.map((group) => ({
  group,
  pages: [...(OWN[group] ?? []), ...PAGES.filter(({ menu }) => menu === group)],
}));

/** Where the page of an item is, for links: its list has the path. */
export const itemAt = (path: string, name: string) =>
  ({ to: path.includes("/") ? `/${path}/$name` : "/$kind/$name", params: { kind: path, name } }) as unknown as {
    to: "/$kind/$name";
    params: { kind: string; name: string };
  };
