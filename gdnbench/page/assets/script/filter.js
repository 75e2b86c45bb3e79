/* SPDX-License-Identifier: Apache-2.0 */
// Which records the list shows, and in which order.
import { columns, index, string, total } from "./data.js";
import { el, select } from "./dom.js";
import { badge } from "./verdict.js";

const ORDERS = {
  failures: ["Failures first", null],
  number: ["As recorded", (a, b) => columns.run[a] - columns.run[b] || columns.number[a] - columns.number[b]],
  step: ["By step", (a, b) => columns.step[a] - columns.step[b] || columns.number[a] - columns.number[b]],
  layer: ["By layer", (a, b) => string("layer", a).localeCompare(string("layer", b), "en", { numeric: true })],
};

// Texts that a search looks through, made once.
const searched = Array.from({ length: total }, (_, place) => [
  `#${columns.number[place]}`, string("op", place), string("layer", place), `step ${columns.step[place]}`,
  string("outcome", place), string("reason", place),
].join(" ").toLowerCase());

function counted(column) {
  const found = new Map();
  for (const value of columns[column]) found.set(value, (found.get(value) ?? 0) + 1);
  return found;
}

// The controls; `changed(places)` is told what they let through.
export function filter(changed) {
  const chosen = { text: "", outcomes: new Set(columns.outcome), op: "", run: "", order: "failures" };

  function apply() {
    const words = chosen.text.toLowerCase().split(/\s+/).filter(Boolean);
    const found = [];
    for (let place = 0; place < total; place++) {
      if (!chosen.outcomes.has(columns.outcome[place])) continue;
      if (chosen.op !== "" && columns.op[place] !== Number(chosen.op)) continue;
      if (chosen.run !== "" && columns.run[place] !== Number(chosen.run)) continue;
      if (words.every((word) => searched[place].includes(word))) found.push(place);
    }
    const order = ORDERS[chosen.order][1];
    changed(order ? found.sort(order) : found);
  }

  const outcomes = [...counted("outcome")].map(([value, count]) => {
    const severity = columns.severity[columns.outcome.indexOf(value)];
    const box = el("input", { type: "checkbox", checked: true, onchange: () => {
      chosen.outcomes[box.checked ? "add" : "delete"](value);
      apply();
    } });
    return el("label", { class: "choice" }, box,
      badge(null, severity, `${index.strings[value]} ${count.toLocaleString("en-GB")}`));
  });
  const search = el("input", { type: "search", placeholder: "layer, operation, reason, #number",
    oninput: () => { chosen.text = search.value; apply(); } });
  const set = (name) => (value) => { chosen[name] = value; apply(); };
  const operations = [...counted("op").keys()].map((op) => [op, index.strings[op]]);
  const runs = index.runs.map((run, number) => [number, run.path]);
  return {
    apply,
    element: el("form", { class: "filter", role: "search", onsubmit: (event) => event.preventDefault() },
      el("label", { class: "field grow" }, el("span", {}, "Find"), search),
      operations.length > 1 && select("Operation", [["", "all"], ...operations], "", set("op")),
      runs.length > 1 && select("Run", [["", "all"], ...runs], "", set("run")),
      select("Order", Object.entries(ORDERS).map(([name, [title]]) => [name, title]), "failures", set("order")),
      el("fieldset", {}, el("legend", {}, "Verdicts"), outcomes)),
  };
}
