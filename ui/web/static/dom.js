// Elements, and tables that change in place so that a selection or the focus stays where it is. Text only, never HTML.

export function el(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "onclick") node.addEventListener("click", value);
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children);
  return node;
}

export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

const drawn = new WeakMap();

// Draws into the node again only when the data is another.
export function whenChanged(node, data, draw) {
  const key = JSON.stringify(data);
  if (drawn.get(node) === key) return;
  drawn.set(node, key);
  node.replaceChildren(...draw());
}

// columns: [{title, kind}]; rows: arrays of {text, title, mark, why, press, pressed}. Cells are patched, not made anew.
export function table(node, label, columns, rows, kind = "") {
  const layout = JSON.stringify([columns, kind]);
  if (drawn.get(node) !== layout) {
    drawn.set(node, layout);
    const head = el("tr", {}, ...columns.map((c) => el("th", { scope: "col", class: c.kind }, c.title)));
    const body = el("table", {}, el("thead", {}, head), el("tbody"));
    node.replaceChildren(el("div", { class: `scroll ${kind}`, role: "group", "aria-label": label, tabindex: "0" }, body));
  }
  const body = node.querySelector("tbody");
  while (body.rows.length > rows.length) body.deleteRow(-1);
  rows.forEach((row, index) => {
    const line = body.rows[index] ?? body.insertRow();
    row.forEach((value, column) => patch(line.cells[column] ?? line.insertCell(), value, columns[column].kind));
  });
}

function patch(td, value, kind) {
  const key = JSON.stringify([value, kind]);
  if (drawn.get(td) === key) return;
  drawn.set(td, key);
  td.className = kind ?? "";
  td.title = value.title ?? "";
  td.replaceChildren(...content(value));
}

function content(value) {
  const nodes = [];
  if (value.mark) nodes.push(el("span", { class: `state ${value.mark[1]}`, "data-mark": value.mark[0] }, value.text));
  else if (value.press) nodes.push(el("button", { type: "button", class: "quiet", "data-press": value.press, "aria-pressed": String(value.pressed) }, value.text));
  else nodes.push(document.createTextNode(value.text));
  if (value.why) nodes.push(el("span", { class: "why" }, value.why));
  return nodes;
}

// A command with a button that copies it.
export function command(text) {
  const button = el("button", { type: "button", class: "quiet", "aria-label": `Copy: ${text}` }, "Copy");
  button.addEventListener("click", () => copy(text, button));
  const words = text.split(/(\s+)/).map((word) => (word.trim() ? el("span", { class: "word" }, word) : word));
  return el("div", { class: "command" }, el("pre", {}, ...words), button);
}

export async function copy(text, button) {
  let done = true;
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    done = copyBySelection(text); // no clipboard outside of https and localhost
  }
  button.textContent = done ? "Copied" : "Select and copy";
  setTimeout(() => { button.textContent = "Copy"; }, 2000);
}

function copyBySelection(text) {
  const area = el("textarea", { readonly: true, "aria-hidden": "true" });
  area.value = text;
  document.body.append(area);
  area.select();
  const done = document.execCommand("copy");
  area.remove();
  return done;
}
