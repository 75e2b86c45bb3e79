// The colour scale with its numbers, and what marks on it mean.
import { css, shade } from "./colour.js";
import { el, svg } from "./dom.js";
import { number } from "./text.js";

const STEPS = 24, WIDE = 240;

export function legendScale(scale, title, marks) {
  if (!scale.high) return el("p", {}, `${title}: zero everywhere`);
  const ticks = [0, 0.5, 1].map((part) => [part, scale.low * (scale.high / scale.low) ** part]);
  const bar = svg("svg", { viewBox: `0 0 ${WIDE + 40} 34`, class: "scale", role: "img",
    "aria-label": `Colours from ${number(scale.low)}, dark, to ${number(scale.high)}, light` },
  Array.from({ length: STEPS }, (_, step) => svg("rect", { x: 20 + step * WIDE / STEPS, y: 2,
    width: WIDE / STEPS + 0.5, height: 12, fill: css(shade(step / (STEPS - 1))) })),
  ticks.map(([part, value]) => svg("text", { x: 20 + part * WIDE, y: 28, "text-anchor": "middle" },
    number(value, 2))));
  return el("div", { class: "key" }, el("span", {}, title), bar, marks.map((mark) => el("span", {}, mark)));
}
