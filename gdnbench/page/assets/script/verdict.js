// Outcomes as a mark, a word and a colour: never a colour alone.
import { el } from "./dom.js";
import { number } from "./text.js";

const MARKS = ["✗", "–", "!", "✓"]; // by severity: failed, could not run, refused, passed
const KINDS = ["failed", "missing", "refused", "passed"];

export function kind(severity) {
  return KINDS[severity] ?? KINDS[0];
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
