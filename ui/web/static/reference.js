// Lists every operation of the OpenAPI document; one that is opened shows its parameters, body, answers and a command.

import { command, el } from "./dom.js";

const METHODS = ["get", "post", "put", "patch", "delete"];
const description = await (await fetch("/api/v1/openapi.json")).json();
const operations = Object.entries(description.paths).flatMap(([path, methods]) =>
  METHODS.filter((method) => methods[method]).map((method) => ({ path, method, ...methods[method] })));

document.getElementById("operations").append(...description.tags.flatMap(({ name, description: text }) => {
  const own = operations.filter((operation) => operation.tags.includes(name));
  return own.length ? [el("h2", {}, name), el("p", { class: "muted" }, text), ...own.map(entry)] : [];
}));
openNamed();
window.addEventListener("hashchange", openNamed);

function openNamed() {
  const named = document.getElementById(location.hash.slice(1));
  if (named instanceof HTMLDetailsElement) {
    named.open = true;
    named.scrollIntoView();
  }
}

function entry(operation) {
  const { path, method, summary, operationId } = operation;
  const shown = el("details", { class: "operation", id: operationId },
    el("summary", {}, el("span", { class: "method" }, method.toUpperCase()), el("code", {}, path),
      el("span", { class: "muted small" }, summary)));
  shown.addEventListener("toggle", () => shown.append(...details(operation)), { once: true });
  return shown;
}

function details(operation) {
  const { parameters = [], requestBody, responses } = operation;
  const [type, content] = Object.entries(requestBody?.content ?? {})[0] ?? [];
  return [
    ...section("Parameters", parameters.map((one) =>
      [one.name, `${one.in}, ${one.required ? "required" : "optional"}`, kind(one.schema), one.description ?? ""])),
    ...(content ? [el("h3", {}, `Body, ${type}`), el("p", { class: "muted" }, resolved(content.schema).description ?? ""),
      ...rows("Body", members(content.schema))] : []),
    ...section("Answers", Object.entries(responses).map(([status, one]) => [status, one.description])),
    command(call(operation, type, content?.example)),
  ];
}

function section(title, items) {
  return items.length ? [el("h3", {}, title), ...rows(title, items)] : [];
}

function rows(label, items) {
  if (!items.length) return [];
  const cells = (row) => row.map((text, at) => el("td", {}, at ? text : el("code", {}, text)));
  const body = el("table", {}, el("tbody", {}, ...items.map((row) => el("tr", {}, ...cells(row)))));
  return [el("div", { class: "scroll", role: "group", "aria-label": label, tabindex: "0" }, body)];
}

function resolved(schema = {}) {
  return schema.$ref ? description.components.schemas[schema.$ref.split("/").at(-1)] : schema;
}

function members(schema) {
  const { properties = {}, required = [] } = resolved(schema);
  return Object.entries(properties).map(([name, member]) =>
    [name, required.includes(name) ? "required" : "optional", kind(member), member.description ?? ""]);
}

function kind(schema = {}) {
  const choices = schema.anyOf ?? schema.oneOf;
  if (choices) return choices.filter((one) => one.type !== "null").map(kind).join(" or ");
  if (schema.const !== undefined) return JSON.stringify(schema.const);
  if (schema.enum) return schema.enum.map((value) => JSON.stringify(value)).join(" or ");
  if (schema.type === "array") return `array of ${kind(schema.items)}`;
  return resolved(schema).type ?? "any";
}

// The operation as a command of a shell, with its example.
function call({ path, method, parameters = [] }, type, example) {
  const filled = path.replace(/{(\w+)}/g, (_, name) =>
    encodeURIComponent(parameters.find((one) => one.name === name && one.in === "path")?.example ?? name).replaceAll("%3A", ":"));
  const query = parameters.filter((one) => one.in === "query" && one.required)
    .map((one) => `${one.name}=${encodeURIComponent(one.example)}`).join("&");
  const words = ["curl", "-sS", "-X", method.toUpperCase(), quoted(location.origin + filled + (query && `?${query}`)),
    "-H", '"Authorization: Bearer $SLUICE_API_TOKEN"'];
  if (type === "multipart/form-data") words.push(...Object.entries(example).flatMap(([name, value]) => ["-F", quoted(`${name}=${value}`)]));
  else if (type) words.push("-H", quoted("Content-Type: application/json"), "-d", quoted(JSON.stringify(example)));
  return words.join(" ");
}

function quoted(text) {
  return `'${text.replaceAll("'", "'\\''")}'`;
}
