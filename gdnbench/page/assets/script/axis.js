/* SPDX-License-Identifier: Apache-2.0 */
// Axes of charts: where ticks go, and how values become pixels.
import { svg } from "./dom.js";
import { number } from "./text.js";

export function linear(low, high, from, to) {
  const span = high - low || 1;
  return (value) => from + (value - low) / span * (to - from);
}

export function logarithmic(low, high, from, to) {
  const place = linear(Math.log10(low), Math.log10(high), from, to);
  return (value) => place(Math.log10(Math.max(value, low)));
}

// The smallest and the largest of any number of values, NaN aside.
export function extent(values) {
  let [low, high] = [Infinity, -Infinity];
  for (const value of values) {
    if (value < low) low = value;
    if (value > high) high = value;
  }
  return [low, high];
}

const TICKS = 100; // of values that differ by their last bit only, a step would lead nowhere

// Whole steps of 1, 2 or 5 times a power of ten, about `count` of them.
export function ticks(low, high, count) {
  const rough = (high - low) / count || 1;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((by) => by * power).find((one) => one >= rough);
  const found = [];
  for (let at = Math.ceil(low / step - 1e-9) * step; at <= high + step * 1e-9 && found.length < TICKS; at += step) found.push(at);
  return found;
}

// The same, of whole numbers.
export function whole(low, high, count) {
  return ticks(low, high, Math.min(count, Math.max(high - low, 1)));
}

// Powers of ten around the values; both ends of the axis among them.
export function decades(values) {
  const above = values.filter((value) => value > 0 && value < Infinity);
  if (!above.length) return [1e-1, 1];
  const [least, most] = extent(above);
  let low = Math.floor(Math.log10(least) + 1e-9);
  const high = Math.max(Math.ceil(Math.log10(most) - 1e-9), low + 1);
  low = Math.max(low, high - 12);
  const step = Math.ceil((high - low) / 6);
  const found = [];
  for (let power = low; power < high + step; power += step) found.push(Number(`1e${power}`));
  return found;
}

export function horizontal(at, y, left, right, text) {
  return [svg("line", { x1: left, x2: right, y1: at, y2: at, class: "gridline" }),
    svg("text", { x: left - 6, y: at + 4, "text-anchor": "end" }, text ?? number(y, 2))];
}

// What a vertical axis says, above its highest line.
export function above(left, top, text) {
  return svg("text", { x: left - 48, y: top - 13, class: "quiet" }, text);
}

export function below(x, bottom, text, anchor = "middle") {
  return svg("text", { x, y: bottom + 16, "text-anchor": anchor }, text);
}
