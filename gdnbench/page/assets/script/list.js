/* SPDX-License-Identifier: Apache-2.0 */
// The list of records: only the rows in view are elements, so that 10,000 cost no more than 20.
import { columns, index, string } from "./data.js";
import { el } from "./dom.js";
import { badge, ofLimit } from "./verdict.js";

const ROW = 56; // CSS pixels; style/list.css has the same
const BEYOND = 6; // rows made outside the view

export function list(open) {
  const rows = el("div", { class: "rows" });
  const box = el("div", { class: "list", role: "listbox", tabindex: "0", "aria-label": "Records" }, rows);
  let places = [], active = 0, opened = null;

  const row = (position) => {
    const place = places[position];
    const run = index.runs.length > 1 ? `${index.runs[columns.run[place]].path} · ` : "";
    const made = el("div", {
      class: "row", role: "option", id: `row-${place}`, "aria-setsize": places.length,
      "aria-posinset": position + 1, "aria-selected": String(place === opened),
      onclick: () => { active = position; choose(); },
    },
    el("span", { class: "first" }, badge(null, columns.severity[place], string("outcome", place)),
      el("b", {}, `#${columns.number[place]}`),
      el("span", { class: "ratio" }, ofLimit(columns.ratio[place]))),
    el("span", { class: "second" },
      `${run}${string("op", place)} ${string("layer", place)} step ${columns.step[place]} ${string("reason", place)}`));
    made.classList.toggle("active", position === active);
    made.style.top = `${position * ROW}px`;
    return made;
  };

  function draw() {
    const first = Math.max(0, Math.floor(box.scrollTop / ROW) - BEYOND);
    const last = Math.min(places.length, Math.ceil((box.scrollTop + box.clientHeight) / ROW) + BEYOND);
    rows.style.height = `${places.length * ROW}px`;
    rows.replaceChildren(...Array.from({ length: Math.max(0, last - first) }, (_, i) => row(first + i)));
    const shown = places[active];
    if (shown === undefined || active < first || active >= last) box.removeAttribute("aria-activedescendant");
    else box.setAttribute("aria-activedescendant", `row-${shown}`);
  }

  function choose() {
    if (places[active] === undefined) return;
    opened = places[active];
    draw();
    open(opened);
  }

  function move(to) {
    active = Math.min(Math.max(to, 0), Math.max(places.length - 1, 0));
    if (active * ROW < box.scrollTop) box.scrollTop = active * ROW;
    const below = (active + 1) * ROW - box.clientHeight;
    if (below > box.scrollTop) box.scrollTop = below;
    draw();
  }

  const page = () => Math.max(1, Math.floor(box.clientHeight / ROW) - 1);
  const keys = { ArrowDown: () => active + 1, ArrowUp: () => active - 1, PageDown: () => active + page(),
    PageUp: () => active - page(), Home: () => 0, End: () => places.length - 1 };
  box.addEventListener("keydown", (event) => {
    if (event.key === "Enter" || event.key === " ") choose();
    else if (keys[event.key]) move(keys[event.key]());
    else return;
    event.preventDefault();
  });
  box.addEventListener("scroll", draw, { passive: true });
  new ResizeObserver(draw).observe(box);

  return {
    element: box,
    show(found) {
      places = found;
      active = Math.max(0, places.indexOf(opened));
      box.scrollTop = 0;
      move(active);
    },
    mark(place) {
      opened = place;
      move(Math.max(0, places.indexOf(place)));
    },
  };
}
