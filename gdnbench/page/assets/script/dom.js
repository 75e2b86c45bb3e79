/* SPDX-License-Identifier: Apache-2.0 */
// Elements made without markup: what a store holds is only ever text.
import { visible } from "./text.js";

const SVG = "http://www.w3.org/2000/svg";

function filled(made, properties, children) {
  for (const [name, value] of Object.entries(properties)) {
    if (value === null || value === undefined || value === false) continue;
    if (typeof value === "function") made.addEventListener(name.slice(2), value);
    else made.setAttribute(name, value === true ? "" : value);
  }
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    made.append(child instanceof Node ? child : visible(child));
  }
  return made;
}

export function el(tag, properties = {}, ...children) {
  return filled(document.createElement(tag), properties, children);
}

export function svg(tag, properties = {}, ...children) {
  return filled(document.createElementNS(SVG, tag), properties, children);
}

// A table. Cells are texts or elements; the first is a header. Where the page is narrower than the table, every cell
// is a line with its column's name. The roles say that it is a table there too.
export function table(caption, headers, rows, numeric = []) {
  const kind = (column) => (numeric.includes(column) ? "numeric" : null);
  const made = el("table", { role: "table" },
    el("caption", {}, caption),
    el("thead", { role: "rowgroup" }, el("tr", { role: "row" }, headers.map((one, column) =>
      el("th", { scope: "col", role: "columnheader", class: kind(column) }, one)))),
    el("tbody", { role: "rowgroup" }, rows.map((row) => el("tr", { role: "row" }, row.map((cell, column) => column === 0
      ? el("th", { scope: "row", role: "rowheader", class: kind(0) }, cell)
      : el("td", { role: "cell", class: kind(column), "data-column": visible(headers[column]) }, cell))))));
  const box = el("div", { class: "wide", tabindex: "0", role: "region", "aria-label": caption }, made);
  let known = 0;
  new ResizeObserver(() => {
    if (box.clientWidth === known) return; // its height changed
    known = box.clientWidth;
    box.classList.remove("stacked");
    box.classList.toggle("stacked", made.scrollWidth > known);
  }).observe(box);
  return box;
}

// Made when it is opened: most are never looked at.
export function folded(title, make, open = false) {
  const details = el("details", {}, el("summary", {}, title));
  details.addEventListener("toggle", () => {
    if (details.open && details.childElementCount === 1) details.append(...[make()].flat());
  });
  details.open = open;
  return details;
}

export function select(label, options, chosen, changed) {
  const box = el("select", { onchange: () => changed(box.value) },
    options.map(([value, text]) => el("option", { value, selected: String(value) === String(chosen) }, text)));
  return el("label", { class: "field" }, el("span", {}, label), box);
}

// One part of the page. A part that a damaged record breaks says so and leaves the others alone.
export function part(title, make, level = "h3") {
  const section = el("section", { class: "part" }, el(level, {}, title));
  try {
    section.append(...[make()].flat(Infinity).filter(Boolean));
  } catch (error) {
    section.append(el("p", { class: "notice" }, `This part cannot be shown: ${error.message}`));
  }
  return section;
}
