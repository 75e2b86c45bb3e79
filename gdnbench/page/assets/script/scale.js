/* SPDX-License-Identifier: Apache-2.0 */
// The colour scale with its numbers, and what marks on cells mean.
import { css, shade } from "./colour.js";
import { el, svg } from "./dom.js";
import { number } from "./text.js";

const STEPS = 24, WIDE = 240, SIDE = 30; // room for half a number

export const SCALE = [WIDE + 2 * SIDE, 34]; // width and height

const APART = 0.16; // of the bar, between two numbers

// The ends of a scale, and powers of ten between them where there is room: [part of the bar, value].
function scaleTicks({ low, high }) {
  const span = Math.log10(high / low), first = Math.ceil(Math.log10(low)), found = [[0, low]];
  for (let power = first; power < Math.log10(high); power++) {
    const part = (power - Math.log10(low)) / span;
    if (part - found.at(-1)[0] >= APART && 1 - part >= APART) found.push([part, Number(`1e${power}`)]);
  }
  return [...found, [1, high]];
}

export function scaleBar(scale) {
  const ticks = scaleTicks(scale);
  return [
    Array.from({ length: STEPS }, (_, step) => svg("rect", { x: SIDE + step * WIDE / STEPS, y: 2,
      width: WIDE / STEPS + 0.5, height: 12, fill: css(shade(step / (STEPS - 1))) })),
    ticks.map(([part, value]) => svg("text", { x: SIDE + part * WIDE, y: 28, "text-anchor": "middle" }, number(value, 2))),
  ];
}

export function legendScale(scale, title, marks) {
  if (!scale.high) return el("p", {}, `${title}: zero everywhere`);
  const bar = svg("svg", { viewBox: `0 0 ${SCALE.join(" ")}`, class: "scale", role: "img",
    "aria-label": `Colours from ${number(scale.low)}, dark, to ${number(scale.high)}, light` }, scaleBar(scale));
  return el("div", { class: "key" }, el("span", {}, title), bar, marks.map((mark) => el("span", {}, mark)));
}
