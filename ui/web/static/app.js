// The status page: asks the API each second while it is looked at, and shows what it says.

import * as chart from "./chart.js";
import { command, copy, el, setText, table, whenChanged } from "./dom.js";
import { UNKNOWN, ago, bytes, cell, clock, count, duration, exact, mark } from "./format.js";

const STATUS_EVERY_MS = 1000;
const ROWS_EVERY_MS = 2000;
const ROWS_SHOWN = 20;

const at = (id) => document.getElementById(id);
let paused = false, signedIn = false, lostSince = null, chosenTable = null, preview = null, rowsAskedMs = 0, failedOnce = false;

class Refused extends Error {
  constructor(status, detail) { super(detail); this.status = status; }
}

async function ask(path, options = {}) {
  const answer = await fetch(`/api/v1${path}`, { signal: AbortSignal.timeout(5000), ...options });
  const body = answer.status === 204 ? null : await answer.json();
  if (!answer.ok) throw new Refused(answer.status, body?.detail ?? answer.statusText);
  return body;
}

// --- the pulse ---

async function pulse() {
  if (!document.hidden && !paused) await look();
  setTimeout(pulse, STATUS_EVERY_MS);
}

async function look() {
  try {
    const status = await ask("/status");
    found();
    show(status);
    await lookAtRows(status);
  } catch (error) {
    if (error instanceof Refused && error.status === 401) askForToken();
    else if (error instanceof Refused) lost(error.message);
    else lost(null);
  }
}

function found() {
  signedIn = true;
  lostSince = null;
  failedOnce = false;
  at("strip").hidden = at("sign-in").hidden = true;
  at("status").hidden = at("pause").hidden = at("sign-out").hidden = false;
  showLink("live", "Live");
}

function lost(why) {
  if (!failedOnce) { failedOnce = true; return; } // one slow answer is no news
  lostSince ??= new Date();
  chart.remember(Date.now(), null);
  setText(at("strip"), `Connection lost since ${clock(lostSince)}${why ? `: ${why}` : ""} – trying again each second. What is shown is from before.`);
  at("strip").hidden = false;
  showLink("failed", "Lost");
}

function showLink(state, word) {
  const [shape, kind] = mark(state);
  const node = at("link-state");
  node.className = `link-state state ${kind}`;
  node.dataset.mark = shape;
  setText(node, word);
}

// --- signing in ---

function askForToken() {
  const hadCode = new URLSearchParams(location.search).has("code");
  if (hadCode) setText(at("sign-in-why"), "The code in this link was used already, or is older than ten minutes.");
  at("sign-in").hidden = false;
  at("status").hidden = at("pause").hidden = at("sign-out").hidden = at("strip").hidden = true;
  if (signedIn) setText(at("sign-in-why"), "The session is over; sign in again.");
  signedIn = false;
  showLink("idle", "Signed out");
}

at("sign-in-form").addEventListener("submit", async (event) => {
  event.preventDefault();
  setText(at("sign-in-error"), "");
  try {
    await ask("/session", { method: "POST", body: JSON.stringify({ token: at("token").value }) });
    at("token").value = "";
    await look();
  } catch (error) {
    at("sign-in-error").dataset.mark = "■";
    setText(at("sign-in-error"), error instanceof Refused ? error.message : "The server does not answer.");
  }
});

at("sign-out").addEventListener("click", async () => {
  await ask("/session", { method: "DELETE" }).catch(() => null);
  signedIn = false;
  askForToken();
});

at("pause").addEventListener("click", () => {
  paused = !paused;
  setText(at("pause"), paused ? "Resume" : "Pause");
  showLink(paused ? "idle" : "live", paused ? "Paused" : "Live");
});

// --- the parts of the page ---

function show(status) {
  const nowMs = Date.parse(status.started_at) + status.uptime_s * 1000; // the server's clock
  document.title = `${status.node} · Sluice`;
  setText(at("node"), `${status.node} · version ${status.version} · up ${duration(status.uptime_s)}`);
  chart.remember(Date.now(), status.rates);
  chart.draw(at("chart"), Date.now());
  showFigures(status);
  showLedger(status);
  showTables(status, nowMs);
  showRefusals(status, nowMs);
  showRules(status, nowMs);
  showStreams(status);
  showNext(status);
  showListeners(status);
}

function showFigures({ counters, rates, connections, sessions, subscriptions, tables }) {
  const lag = Math.max(...tables.map((entry) => entry.lag_records ?? 0), 0);
  const rows = tables.reduce((sum, entry) => sum + (entry.rows ?? 0), 0);
  const figures = [
    ["Received", rates.received, "/s", `${count(counters.received)} in all · ${bytes(counters.bytes_received)}`],
    ["Delivered", rates.delivered, "/s", `${count(counters.delivered)} in all · ${bytes(counters.bytes_sent)}`],
    ["Dropped", rates.dropped, "/s", `${count(counters.dropped)} in all`],
    ["Rules", rates.rules_matched, "/s", `${count(counters.rules_passed)} passed · ${count(counters.rules_failed)} failed`],
    ["In tables", tables.length ? rows : null, "", tables.length ? `rows · ${count(lag)} records behind` : "no table yet"],
    ["Connections", connections, "", `${count(sessions)} sessions · ${count(subscriptions)} subscriptions`],
  ];
  const place = at("figures");
  if (!place.childElementCount) {
    place.append(...figures.map(([label]) => el("div", { class: "figure" }, el("p", { class: "label" }, label),
      el("p", { class: "value" }, el("span"), el("small")), el("p", { class: "under" }))));
  }
  figures.forEach(([, value, unit, under], index) => {
    const [, figure, note] = place.children[index].children;
    figure.title = exact(value);
    setText(figure.children[0], count(value));
    setText(figure.children[1], unit && ` ${unit}`);
    setText(note, under);
  });
}

function byReason(counts) {
  const reasons = Object.entries(counts).filter(([, n]) => n > 0).sort((a, b) => b[1] - a[1]);
  return reasons.map(([reason, n]) => `${reason.replaceAll("_", " ")} ${count(n)}`).join(", ");
}

function showLedger({ ledger, dropped, lost_rows: lostRows }) {
  whenChanged(at("ledger"), [ledger, dropped, lostRows], () => {
    const named = byReason(dropped);
    const [shape, kind] = mark(ledger.residual === 0 ? "ok" : "failed");
    const verdict = ledger.residual === 0 ? "every message is accounted for" : `${count(ledger.residual)} not accounted for`;
    return [
      el("strong", { title: exact(ledger.received) }, count(ledger.received)), " received = ",
      el("strong", { title: exact(ledger.accepted) }, count(ledger.accepted)), " accepted + ",
      el("strong", { title: exact(ledger.dropped) }, count(ledger.dropped)), ` dropped${named ? ` (${named})` : ""} · `,
      el("span", { class: `state ${kind}`, "data-mark": shape }, verdict),
      ...lossOf(ledger.lost_rows, lostRows),
    ];
  });
}

function lossOf(rows, reasons) {
  if (!rows) return [];
  const [shape, kind] = mark("failed");
  return [" · ", el("span", { class: `state ${kind}`, "data-mark": shape }, `${count(rows)} rows lost by actions (${byReason(reasons)})`)];
}

function showTables({ tables }, nowMs) {
  if (!tables.length) {
    empty(at("tables"), "No table yet. A table follows a stream; Spark writes its rows.",
      post("lake/tables", { name: "readings", stream: "readings", format: "delta" }));
    return;
  }
  if (!tables.some((entry) => entry.name === chosenTable)) chosenTable = tables[0].name;
  const columns = [
    { title: "Table" }, { title: "State", kind: "fit" }, { title: "Rows", kind: "num" },
    { title: "Behind", kind: "num" }, { title: "Last commit", kind: "num" },
  ];
  table(at("tables"), "Tables", columns, tables.map((entry) => [
    { text: entry.name, press: entry.name, pressed: entry.name === chosenTable, why: `${entry.format} · from ${entry.stream}` },
    { text: entry.state, mark: mark(entry.state), why: entry.reason },
    { text: count(entry.rows), title: exact(entry.rows), why: entry.dead_letters ? `${count(entry.dead_letters)} dead letters` : null },
    { text: count(entry.lag_records), title: exact(entry.lag_records), why: entry.lag_s === undefined || entry.lag_s === null ? null : duration(entry.lag_s) },
    { text: ago(entry.last_commit_at, nowMs), title: entry.last_commit_at, why: entry.last_commit_rows ? `${count(entry.last_commit_rows)} rows` : null },
  ]));
}

at("tables").addEventListener("click", (event) => {
  const button = event.target.closest("[data-press]");
  if (!button) return;
  chosenTable = button.dataset.press;
  preview = null;
  rowsAskedMs = 0;
  look();
});

async function lookAtRows({ tables }) {
  const chosen = tables.find((entry) => entry.name === chosenTable);
  if (!chosen) {
    setText(at("rows-note"), "");
    empty(at("rows"), "The newest rows of a table appear here.");
    return;
  }
  if (Date.now() - rowsAskedMs < ROWS_EVERY_MS - 100) return;
  rowsAskedMs = Date.now();
  try {
    preview = await ask(`/lake/tables/${encodeURIComponent(chosen.name)}/preview?limit=${ROWS_SHOWN}`);
  } catch (error) {
    if (!(error instanceof Refused) || error.status === 401) throw error;
    setText(at("rows-note"), chosen.name);
    empty(at("rows"), error.message);
    return;
  }
  showRows(chosen);
}

function showRows(chosen) {
  const { rows } = preview;
  if (!rows.length) {
    setText(at("rows-note"), chosen.name);
    empty(at("rows"), "No rows yet. The first appear a few seconds after the first message that matches.");
    return;
  }
  const names = preview.columns ?? Object.keys(rows[0]);
  const ours = (name) => name.startsWith("_");
  const ordered = [...names.filter((name) => !ours(name)), ...names.filter(ours)];
  const isNumber = (name) => rows.every((row) => row[name] === null || row[name] === undefined || typeof row[name] === "number");
  const columns = ordered.map((name) => ({ title: name, kind: [isNumber(name) && "num", ours(name) && "ours"].filter(Boolean).join(" ") }));
  setText(at("rows-note"), `${chosen.name}, newest first, read from the table itself`);
  table(at("rows"), `Newest rows of ${chosen.name}`, columns, rows.map((row) => ordered.map((name) => {
    const text = cell(row[name]);
    return { text, title: text.length > 30 ? text : "" };
  })), "rows");
}

function showRefusals({ refusals }, nowMs) {
  if (!refusals.length) {
    empty(at("refusals"), "Nothing refused so far. When a validation or a transformation stops a message, the reason stands here.");
    return;
  }
  const columns = [{ title: "When", kind: "fit" }, { title: "Topic", kind: "why mono" }, { title: "Why", kind: "why" }];
  table(at("refusals"), "Refused messages", columns, refusals.slice(0, 10).map((entry) => [
    { text: ago(entry.at, nowMs), title: entry.at },
    { text: entry.topic, why: entry.client_id },
    { text: entry.text, why: `${entry.stage} ${entry.name} · ${entry.reason.replaceAll("_", " ")}` },
  ]));
}

function showRules({ rules }, nowMs) {
  if (!rules.length) {
    empty(at("rules"), "No rule yet. A rule selects from topics and hands its rows to a stream or another topic.",
      post("rules", { name: "warm", sql: 'SELECT payload.t AS t, clientid FROM "meters/#" WHERE payload.t > 20', actions: [{ type: "console" }] }));
    return;
  }
  const columns = [{ title: "Rule" }, { title: "State", kind: "fit" }, { title: "Matched", kind: "num" }, { title: "Passed", kind: "num" }, { title: "Failed", kind: "num" }];
  table(at("rules"), "Rules", columns, rules.map((rule) => [
    { text: rule.name, title: rule.sql, why: rule.last_error && `${rule.last_error.text} · ${ago(new Date(rule.last_error.time_ms).toISOString(), nowMs)}` },
    { text: rule.state, mark: mark(rule.state) },
    { text: count(rule.matched), title: exact(rule.matched) },
    { text: count(rule.passed), title: exact(rule.passed) },
    { text: count(rule.failed), title: exact(rule.failed) },
  ]));
}

function showStreams({ streams }) {
  if (!streams.length) {
    empty(at("streams"), "No stream yet. A stream keeps messages or rows until Spark, a replay or you read them.",
      post("streams", { name: "readings", topics: ["meters/#"] }));
    return;
  }
  const columns = [{ title: "Stream" }, { title: "Holds", kind: "num" }, { title: "Offsets", kind: "num" }];
  table(at("streams"), "Streams", columns, streams.map((stream) => {
    const held = stream.shards.reduce((sum, shard) => sum + BigInt(shard.next_offset) - BigInt(shard.first_offset), 0n);
    const offsets = stream.shards.map((shard) => `${shard.first_offset} – ${shard.next_offset}`);
    return [
      { text: stream.name, why: stream.captures ? `captures ${stream.captures}` : null },
      { text: count(held), title: String(held), why: stream.size_bytes === undefined ? null : bytes(stream.size_bytes) },
      { text: offsets.length === 1 ? offsets[0] : `${offsets.length} shards`, title: offsets.join("\n") },
    ];
  }));
}

function showNext({ next_steps: steps, listeners }) {
  whenChanged(at("next"), [steps, listeners], () => {
    const shown = steps.length ? steps : [{ label: "Publish a message", command: publishing(listeners) }];
    return [el("ol", { class: "steps" }, ...shown.map((step) => el("li", { class: "step" }, el("p", {}, step.label), command(step.command))))];
  });
}

function showListeners({ listeners }) {
  whenChanged(at("listeners"), listeners, () => {
    const pairs = listeners.flatMap(({ name, protocol, address }) => {
      const url = `${protocol}://${address}`;
      const button = el("button", { type: "button", class: "quiet", "aria-label": `Copy ${url}` }, "Copy");
      button.addEventListener("click", () => copy(url, button));
      return [el("span", { class: "muted" }, name), el("code", {}, url), button];
    });
    return pairs.length ? [el("div", { class: "pairs" }, ...pairs)] : [el("p", { class: "empty" }, UNKNOWN)];
  });
}

function empty(node, sentence, text = null) {
  whenChanged(node, [sentence, text], () => [el("p", { class: "empty" }, sentence), ...(text ? [command(text)] : [])]);
}

function post(path, body) {
  return `curl -H "Authorization: Bearer $SLUICE_API_TOKEN" -d '${JSON.stringify(body)}' ${location.origin}/api/v1/${path}`;
}

function publishing(listeners) {
  const address = listeners.find(({ protocol }) => protocol === "mqtt")?.address ?? "127.0.0.1:1883";
  const colon = address.lastIndexOf(":");
  return `mosquitto_pub -h ${address.slice(0, colon)} -p ${address.slice(colon + 1)} -t meters/1 -m '{"t": 21.5}'`;
}

// --- begin ---

chart.legend(at("legend"));
document.addEventListener("visibilitychange", () => { if (!document.hidden && !paused) look(); });
pulse().then(() => { if (signedIn && location.search) history.replaceState(null, "", location.pathname + location.hash); });
