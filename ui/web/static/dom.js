// Elements and commands to copy. Text only, never HTML.

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
