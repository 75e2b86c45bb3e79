/* SPDX-License-Identifier: Apache-2.0 */
// What all runs came to, before any record is looked at.
import { index } from "./data.js";
import { el, folded, svg } from "./dom.js";
import { badge, verdictBar } from "./verdict.js";
import { count } from "./text.js";

export function overview() {
  const earlier = earlierRuns(), shown = (wanted) => el("div", { class: "runs" }, index.runs.filter((_, n) => earlier.has(n) === wanted).map(run));
  return el("header", {}, el("h1", {}, index.title), shown(false),
    earlier.size > 0 && folded(`${count(earlier.size, "earlier run")}`, () => shown(true)),
    index.without_grid > 0 && el("p", { class: "hint" },
      `${count(index.without_grid, "passing record")} without a heatmap, to keep this file small.`));
}

// [outcome, number of records, severity], the worst first.
export function outcomesOf(one) {
  return Object.entries(one.outcomes).map(([outcome, number]) => [outcome, number, index.severities[outcome] ?? 0])
    .sort((a, b) => a[2] - b[2] || b[1] - a[1] || (a[0] < b[0] ? -1 : 1));
}

const SHOWN = 4; // runs; of more, only the newest of each kernel are seen at once

function earlierRuns() {
  const tracks = index.runs.length > SHOWN ? index.history?.tracks ?? [] : [];
  return new Set(tracks.flatMap((track) => track.slice(0, -1)));
}

// What was compared with what.
export function runName(header) {
  return header.command === "diff" ? `${header.a} against ${header.b}`
    : `${header.kernel} on ${header.on} against ${header.against}`;
}

function run(one) {
  const outcomes = outcomesOf(one);
  const bar = svg("svg", { class: "verdicts", viewBox: "0 0 1000 8", preserveAspectRatio: "none", "aria-hidden": "true" },
    verdictBar(outcomes, 1000, 8));
  const { header } = one;
  // A title names the only kernel already.
  const what = header.kernel === index.title ? `on ${header.on} against ${header.against}` : runName(header);
  return el("section", { class: "run" }, el("h2", {}, what, index.runs.length > 1 && el("small", {}, ` ${one.path}`)),
    el("p", { class: "hint" }, [header.rule, header.store, one.path].filter(Boolean).join(" · ")),
    bar,
    el("p", { class: "outcomes" }, outcomes.map(([outcome, number, severity]) =>
      badge(outcome, severity, `${number.toLocaleString("en-GB")} ${outcome}`)),
    el("span", { class: "hint" }, ` of ${count(one.records, "record")}`),
    one.expected > one.records && el("span", { class: "notice" }, ` interrupted: ${count(one.expected, "record")} were to be replayed`)));
}
