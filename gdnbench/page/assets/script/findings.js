/* SPDX-License-Identifier: Apache-2.0 */
// What the simulator and its checker found: both accesses with their PTX and source lines.
import { el } from "./dom.js";

const RANK = { error: 0, review: 1, incomplete: 2, note: 3 };

export function findings(found) {
  if (!found) return null;
  if (!found.length) return el("p", {}, "✓ The checker found nothing.");
  const standing = (one) => RANK[one.severity] + (one.accepted === null ? 0 : 10);
  return [...found].sort((a, b) => standing(a) - standing(b)).map(finding);
}

function finding(one) {
  const fails = one.severity === "error" && one.accepted === null;
  const evidence = one.evidence;
  return el("article", { class: `finding ${fails ? "fails" : ""}` },
    el("h4", {}, `${fails ? "✗ " : ""}${one.severity}: ${one.kind}`,
      el("small", {}, ` · launch ${one.launch}${one.of ? ` of ${one.of}` : ""}${one.count > 1 ? ` · ${one.count} times` : ""}`)),
    el("pre", { class: "prose" }, one.message),
    evidence?.first && access("first", evidence.first),
    evidence?.second && access(evidence.first ? "second" : "access", evidence.second),
    evidence?.count > 1 && el("p", { class: "hint" },
      `${evidence.count} such ${evidence.first ? "pairs" : "accesses"} of ${evidence.places} places in ${evidence.ctas} CTAs`),
    !evidence && (one.ptx_line || one.file) && access(one.thread ?? "at",
      { place: { line: one.ptx_line, text: one.ptx, file: one.file, file_line: one.line } }),
    one.accepted !== null && el("p", { class: "hint" }, `accepted: ${one.accepted}`));
}

function access(which, side) {
  const { line, text, file, file_line: at } = side.place;
  const who = side.does && `CTA ${side.cta.join(",")}, warp ${side.warp} (${side.role}): ${side.does}`
    + (side.asynchronous ? ", asynchronously" : "");
  return el("div", { class: "access" },
    el("p", {}, el("b", {}, `${which}${who ? ": " : ""}`), who),
    file && el("p", {}, el("code", {}, `${file}:${at}`)),
    line && el("pre", {}, `PTX ${line}: ${text}`));
}
