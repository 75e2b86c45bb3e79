/* SPDX-License-Identifier: Apache-2.0 */
// Outcomes as a mark, a word and a colour: never a colour alone.
import { el, svg } from "./dom.js";
import { number } from "./text.js";

const MARKS = ["✗", "–", "!", "✓"]; // by severity: failed, could not run, refused, passed
const KINDS = ["failed", "missing", "refused", "passed"];

export function kind(severity) {
  return KINDS[severity] ?? KINDS[0];
}

// "✗ 3 crash"
export function verdictText(outcome, severity) {
  return `${MARKS[severity] ?? "?"} ${outcome}`;
}

// A piece for each of [outcome, number, severity], none too small to be seen.
export function verdictBar(outcomes, width, height) {
  const all = outcomes.reduce((sum, [, number]) => sum + number, 0);
  const parts = outcomes.map(([, number]) => Math.max(number / all, 0.006));
  const each = width / parts.reduce((sum, part) => sum + part, 0);
  let x = 0;
  return outcomes.map(([, , severity], at) => {
    const piece = svg("rect", { class: kind(severity), x, y: 0, width: parts[at] * each - (at < outcomes.length - 1 ? 2 : 0), height });
    x += parts[at] * each;
    return piece;
  });
}

export function badge(outcome, severity, text = outcome) {
  return el("span", { class: `badge ${kind(severity)}` },
    el("span", { "aria-hidden": "true" }, `${MARKS[severity] ?? "?"} `), text);
}

// Largest error as a part of its limit, in words.
export function ofLimit(ratio) {
  if (ratio === null) return "";
  const known = Number(ratio);
  if (!Number.isFinite(known)) return "no finite error";
  return `${number(known, 2)} × limit`;
}
