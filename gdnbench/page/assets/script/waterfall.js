/* SPDX-License-Identifier: Apache-2.0 */
// Stage after stage: what each adds to the error, beside what the stages before it hand on.
import { svg } from "./dom.js";
import { below, decades, logarithmic } from "./axis.js";
import { number, parsed, shortened } from "./text.js";

export function waterfall(stages) {
  if (!stages?.length) return null;
  const relative = (stage, name) => {
    const [error, of] = [parsed(stage[name]), parsed(stage.reference)];
    return error === 0 ? 0 : error / of;
  };
  const powers = decades(stages.flatMap((stage) => ["added", "inherited"].map((name) => relative(stage, name))));
  const draw = (width) => {
    const left = 96, right = width - 56, each = 40, top = 26;
    const bottom = top + each * stages.length;
    const x = logarithmic(powers[0], powers.at(-1), left, right);
    const bar = (stage, name, y) => {
      const value = relative(stage, name);
      const end = value > 0 && Number.isFinite(value) ? x(value) : left; // NaN and infinities have no length
      return [svg("rect", { class: name, x: left, y, width: Math.max(end - left, 1), height: 14 },
        svg("title", {}, `${stage.stage}: ${name} ${number(value)}`)),
      svg("text", { x: end + 5, y: y + 11 }, number(value, 2))];
    };
    return [bottom + 40, [
      below((left + right) / 2, bottom + 16, "relative RMS error"),
      svg("rect", { class: "added", x: left, y: 4, width: 14, height: 12 }),
      svg("text", { x: left + 19, y: 14 }, "added"),
      svg("rect", { class: "inherited", x: left + 70, y: 4, width: 14, height: 12 }),
      svg("text", { x: left + 89, y: 14 }, "inherited"),
      powers.map((power) => [svg("line", { class: "gridline", x1: x(power), x2: x(power), y1: top, y2: bottom }),
        below(x(power), bottom, number(power, 2))]),
      stages.map((stage, at) => [
        svg("text", { x: left - 6, y: top + at * each + 16, "text-anchor": "end" }, shortened(stage.stage, 12)),
        svg("text", { x: left - 6, y: top + at * each + 31, "text-anchor": "end", class: "quiet" }, shortened(stage.step ?? "", 13)),
        bar(stage, "added", top + at * each + 4), bar(stage, "inherited", top + at * each + 20)]),
    ]];
  };
  const rows = () => stages.map((stage) => [stage.stage, stage.step ?? "", number(stage.added), number(stage.inherited),
    number(stage.error), number(stage.reference)]);
  return { label: "RMS error of each stage, relative to its exact value", draw,
    headers: ["stage", "step", "added", "inherited", "error", "RMS of the exact value"], rows };
}
