/* SPDX-License-Identifier: Apache-2.0 */
// Everything about one record.
import { anchorOf } from "./anchor.js";
import { columns, details, index, string, total, unpackedGrid } from "./data.js";
import { el, folded, part, select, table } from "./dom.js";
import { alongSequence } from "./growth.js";
import { chart } from "./chart.js";
import { facts } from "./facts.js";
import { findings } from "./findings.js";
import { heatmap } from "./heatmap.js";
import { recordHistory } from "./history.js";
import { histogram } from "./ulp.js";
import { number } from "./text.js";
import { timing } from "./timing.js";
import { waterfall } from "./waterfall.js";
import { badge, ofLimit } from "./verdict.js";

export async function record(place, open) {
  const found = await details(place);
  const run = index.runs[columns.run[place]];
  const history = recordHistory(place);
  const shown = [
    el("h2", { tabindex: "-1" }, `Record ${found.number} `, el("span", {}, found.op)),
    permalink(place),
    el("p", { class: "what" }, badge(found.outcome, columns.severity[place]), ` ${found.layer} step ${found.step}`,
      index.runs.length > 1 && ` · ${run.path}`, ratioOf(place)),
    reasons(found),
    again(found, run),
    ...printed(found),
    ...(history ? [] : others(place, open)),
    pictures(found),
    history && part("Over runs", () => history),
    found.tensors.length > 0 && part("Tensors", () => tensors(found)),
    found.waterfall?.length > 0 && part("Stages: added and inherited error", () => chart(waterfall(found.waterfall))),
    found.findings && part("What the checker found", () => findings(found.findings)),
    found.timing && part("Times", () => timing(found.timing)),
    hasFacts(found.capture) && part("What was captured", () => facts(found.capture)),
    found.notes?.length > 0 && part("Notes", () => el("ul", {}, found.notes.map((note) => el("li", {}, note)))),
  ];
  return el("article", { class: "record", "data-place": place }, shown);
}

// A link to follow or to copy: the address of this file, and the record's own anchor.
function permalink(place) {
  const link = el("a", { href: anchorOf(place) }, decodeURIComponent(anchorOf(place).slice(1)));
  return el("p", { class: "permalink" }, "Link: ", link, " ", copyButton("Copy the link", () => link.href, link));
}

function hasFacts(capture) {
  return capture && Object.keys(capture).length > 0;
}

function ratioOf(place) {
  const text = ofLimit(columns.ratio[place]);
  return text && el("span", { class: "ratio" }, ` · ${text}`);
}

function reasons(found) {
  const lines = [...found.faults];
  for (const tensor of found.tensors) {
    const side = tensor.side === "against" ? "against " : "";
    lines.push(...tensor.reasons.map((reason) => `${side}${tensor.tensor}: ${reason}`));
  }
  if (!lines.length && found.reason) lines.push(found.reason);
  return lines.length > 0 && el("ul", { class: "reasons" }, lines.map((line) => el("li", {}, line)));
}

// The command, and a button that copies it.
function again(found, run) {
  // Lines break between words: not behind the dashes of an option.
  const words = found.command.split(" ").flatMap((word) => [" ", el("span", { class: "word" }, word)]);
  const code = el("code", {}, words.slice(1));
  const where = run.cwd ? `in ${run.cwd}${run.host ? ` on ${run.host}` : ""}` : null;
  return el("div", { class: "again" }, el("p", {}, "Run it again", where && el("small", {}, ` ${where}`)),
    el("pre", { tabindex: "0" }, code), copyButton("Copy the command", () => found.command, code));
}

// Copies a text; where the browser does not allow that, it selects the element that shows it.
function copyButton(label, text, shown) {
  const said = el("span", { "aria-live": "polite" });
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(text());
      said.textContent = " copied";
    } catch {
      getSelection().selectAllChildren(shown);
      said.textContent = " selected: copy it with your keyboard";
    }
  };
  return [el("button", { type: "button", class: "copy", onclick: copy }, label), said];
}

// The same captured record in the other runs.
function others(place, open) {
  if (index.runs.length < 2) return [];
  const found = [];
  for (let other = 0; other < total; other++) {
    if (other !== place && columns.key[other] === columns.key[place]) found.push(other);
  }
  return [found.length > 0 && el("ul", { class: "others" }, found.map((other) => el("li", {},
    el("button", { type: "button", onclick: () => open(other) }, badge(null, columns.severity[other], string("outcome", other)),
      ` in ${index.runs[columns.run[other]].path} `, ofLimit(columns.ratio[other])))))];
}

// The traceback of a kernel that failed, and what the kernel printed meanwhile.
function printed(found) {
  const trace = found.error?.traceback;
  return [
    trace && part("Where the kernel failed", () => el("pre", { tabindex: "0", class: "log" }, trace)),
    found.printed && part("What the kernel printed", () => el("pre", { tabindex: "0", class: "log" }, found.printed)),
  ];
}

function tensorName(tensor) {
  const kind = tensor.stage ? " (stage)" : tensor.when === "before" ? " (input)" : "";
  return `${tensor.tensor}${kind}`;
}

function tensors(found) {
  const rows = found.tensors.map((tensor) => {
    const { errors, torch_errors: torch } = tensor;
    const verdict = !tensor.judged ? "shown" : tensor.passed ? "✓ pass" : "✗ FAIL";
    return [tensorName(tensor), tensor.side, number(errors?.max_abs), number(errors?.rms_ratio), number(torch?.rms_ratio),
      errors && tensor.side !== "conversion" ? String(errors.max_ulp) : "-", verdict]; // a conversion's are fp64
  });
  const limits = found.tensors.flatMap((tensor) => (tensor.held ?? []).map((one) => {
    const places = ["sequence", "chunk", "head"].filter((name) => one[name] !== null && one[name] !== undefined);
    const over = !(Number(one.error) <= Number(one.limit));
    return { over, row: [`${tensorName(tensor)}, ${tensor.side}`, one.what, number(one.error),
      `${number(one.limit)}${over ? " ✗ over" : ""}`, places.map((name) => `${name} ${one[name]}`).join(" ")] };
  }));
  const headers = ["tensor", "what", "error", "limit", "closest or furthest over at"];
  const shown = (title, some) => some.length > 0 && table(title, headers, some.map((one) => one.row), [2, 3]);
  return [
    table("Errors", ["tensor", "side", "max abs", "RMS ratio", "torch's", "max ULP", "verdict"], rows, [2, 3, 4, 5]),
    shown("Limits exceeded", limits.filter((one) => one.over)),
    limits.length > 0 && folded("All limits", () => shown("Limits", limits)),
  ];
}

// Whose values x and y of a tensor's errors are.
function sides(tensor) {
  return { kernel: ["kernel", "exact"], against: ["against", "exact"], difference: ["kernel", "against"] }[tensor.side]
    ?? ["x", "y"];
}

// What is looked at first: what fails, in the order it is computed, else the output that is closest to its limit.
function interest(tensor) {
  if (!tensor.passed) return Infinity;
  const ratios = (tensor.held ?? []).map(({ error, limit }) => (Number(limit) > 0 ? Number(error) / Number(limit) : 0));
  return tensor.stage || !tensor.judged ? -1 : Math.max(0, ...ratios);
}

// Heatmap, growth and histogram of the tensor that is chosen.
function pictures(found) {
  const shown = found.tensors.filter((tensor) => tensor.grid || tensor.ulp_histogram?.some((count) => count > 0));
  if (!shown.length) return null;
  const box = el("div", {});
  const show = (number) => {
    const tensor = shown[number];
    const made = [];
    if (tensor.grid) {
      made.push(part("Errors by chunk and head", () => {
        const grid = unpackedGrid(tensor.grid);
        if (!grid.regions.length || !grid.heads) return el("p", {}, "It has no elements.");
        const along = alongSequence(tensor, grid);
        return [heatmap(tensor, grid, sides(tensor)), along && chart(along)];
      }, "h4"));
    } else if (found.grid_left_out) {
      made.push(el("p", { class: "notice" }, "Its errors by chunk and head are left out: this record passes, and the file"
        + " would be too large. A report of this run alone, or of fewer, has them."));
    }
    const counted = histogram(tensor);
    made.push(part("Units in the last place", () => (counted ? chart(counted) : el("p", {}, "None is off.")), "h4"));
    box.replaceChildren(...made);
  };
  const chosen = shown.indexOf(shown.reduce((best, one) => (interest(one) > interest(best) ? one : best)));
  const names = shown.map((tensor, number) => [number, `${tensorName(tensor)}, ${tensor.side}${tensor.passed ? "" : " ✗"}`]);
  const chooser = select("Tensor", names, chosen, (value) => show(Number(value)));
  return part("Where it is off", () => { show(chosen); return [shown.length > 1 && chooser, box]; });
}
