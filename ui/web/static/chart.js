// Rates of the last two minutes as three lines. A second without an answer is a gap, not a zero.

import { el } from "./dom.js";
import { count } from "./format.js";

const SVG = "http://www.w3.org/2000/svg";
const WIDTH = 600, HEIGHT = 100, SECONDS = 120;
export const SERIES = [["received", "received"], ["delivered", "delivered"], ["rows", "rows of rules"]];

const samples = [];

export function remember(atMs, rates) {
  samples.push({ atMs, rates });
  while (samples.length && samples[0].atMs < atMs - SECONDS * 1000) samples.shift();
}

export function legend(node) {
  node.replaceChildren(...SERIES.map(([, name], index) => {
    const line = shape("svg", { viewBox: "0 0 28 8", "aria-hidden": "true" },
      shape("line", { x1: 0, x2: 28, y1: 4, y2: 4, class: `series-${index + 1}` }));
    return el("span", {}, line, `${name}, /s`);
  }));
}

export function draw(node, nowMs) {
  const top = ceiling(Math.max(1, ...samples.flatMap(({ rates }) => SERIES.map(([key]) => rates?.[key] ?? 0))));
  const lines = SERIES.flatMap(([key], index) => pieces(key, nowMs, top).map(
    (points) => shape("polyline", { class: `series-${index + 1}`, points })));
  const middle = shape("line", { class: "rule-line", x1: 0, x2: WIDTH, y1: HEIGHT / 2, y2: HEIGHT / 2 });
  const upper = shape("line", { class: "rule-line", x1: 0, x2: WIDTH, y1: 0, y2: 0 });
  const picture = shape("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img", "aria-label": summary() },
    upper, middle, ...lines);
  const scale = el("div", { class: "scale", "aria-hidden": "true" },
    ...[top, top / 2, 0].map((value) => el("span", {}, count(value))));
  const times = el("div", { class: "times", "aria-hidden": "true" }, el("span", {}, "2 min ago"), el("span", {}, "now"));
  node.replaceChildren(scale, picture, times);
}

function pieces(key, nowMs, top) {
  const found = [];
  let points = [], last = null;
  for (const { atMs, rates } of samples) {
    const value = rates?.[key];
    const broken = value === undefined || value === null || (last !== null && atMs - last > 3500);
    if (broken && points.length) { found.push(points.join(" ")); points = []; }
    if (value === undefined || value === null) { last = null; continue; }
    const x = WIDTH - ((nowMs - atMs) / 1000 / SECONDS) * WIDTH;
    points.push(`${x.toFixed(1)},${(HEIGHT - (value / top) * HEIGHT).toFixed(1)}`);
    last = atMs;
  }
  if (points.length) found.push(points.join(" "));
  return found;
}

// The next of 1, 2, 5 times a power of ten: the scale jumps seldom and reads well.
function ceiling(value) {
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].map((step) => step * power).find((step) => step >= value);
}

function summary() {
  const rates = samples.at(-1)?.rates ?? {};
  return `Rates now, per second: ${SERIES.map(([key, name]) => `${name} ${count(rates[key])}`).join(", ")}`;
}

function shape(tag, attributes, ...children) {
  const node = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}
