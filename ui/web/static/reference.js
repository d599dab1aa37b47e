// Lists every operation of the OpenAPI document.

import { el } from "./dom.js";

const METHODS = ["get", "post", "put", "delete"];
const description = await (await fetch("/api/v1/openapi.json")).json();
const operations = Object.entries(description.paths).flatMap(([path, methods]) =>
  METHODS.filter((method) => methods[method]).map((method) => ({ path, method, ...methods[method] })));

document.getElementById("operations").append(...description.tags.flatMap(({ name, description: text }) => {
  const own = operations.filter((operation) => operation.tags?.includes(name));
  return own.length ? [el("h2", {}, name), el("p", { class: "muted" }, text), ...own.map(line)] : [];
}));

function line({ path, method, summary, parameters = [], requestBody, operationId }) {
  const query = parameters.filter((parameter) => parameter.in === "query").map((parameter) => parameter.name);
  const body = requestBody ? ` · body: ${members(requestBody.content["application/json"].schema)}` : "";
  const notes = `${summary}${query.length ? ` · query: ${query.join(", ")}` : ""}${body}`;
  return el("div", { class: "operation", id: operationId }, el("span", { class: "method" }, method.toUpperCase()),
    el("code", {}, path), el("p", { class: "muted small" }, notes));
}

function members({ $ref }) {
  const schema = description.components.schemas[$ref.split("/").at(-1)];
  const required = new Set(schema.required ?? []);
  return Object.keys(schema.properties ?? {}).map((name) => (required.has(name) ? name : `${name}?`)).join(", ") || "an object";
}
