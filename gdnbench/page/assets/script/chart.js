/* SPDX-License-Identifier: Apache-2.0 */
// A picture is {label, draw, headers, rows}: `draw(width)` gives [height, shapes], and `rows()` the same numbers for a
// table. Without `draw` its label says why. `chart` shows a picture on the page, png.js in a file.
import { el, folded, svg, table } from "./dom.js";
import { above, below, decades, extent, horizontal, linear, logarithmic, whole } from "./axis.js";
import { number } from "./text.js";

const NARROW = 640; // where no width is known yet: printing

// Drawn anew at the width it is given; the table is made when it is opened.
export function chart({ label, draw, headers, rows, numeric = headers?.map((_, column) => column).slice(1) }) {
  if (!draw) return el("p", { class: "hint" }, label);
  const box = el("div", { class: "chart" });
  let drawn = 0;
  const redraw = () => {
    const width = Math.max(box.clientWidth || NARROW, 240);
    if (width === drawn) return;
    drawn = width;
    const [height, shapes] = draw(width);
    box.replaceChildren(svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label },
      shapes));
  };
  redraw();
  new ResizeObserver(redraw).observe(box);
  return el("figure", {}, el("figcaption", {}, label), box,
    folded("As a table", () => table(label, headers, rows(), numeric)));
}

const DASHES = [null, "6 4", "2 3", "9 3 2 3"];
export const POINTS = [
  (x, y) => svg("circle", { cx: x, cy: y, r: 3 }),
  (x, y) => svg("rect", { x: x - 2.7, y: y - 2.7, width: 5.4, height: 5.4 }),
  (x, y) => svg("path", { d: `M${x} ${y - 3.4}L${x + 3.4} ${y + 3}H${x - 3.4}Z` }),
  (x, y) => svg("path", { d: `M${x} ${y - 3.6}L${x + 3.6} ${y}L${x} ${y + 3.6}L${x - 3.6} ${y}Z` }),
];
const MARKED = 60; // points; more would hide the line

// Lines over a shared horizontal axis of whole numbers, errors by powers of ten; `across` and `up` are what the axes
// say. A series is {name, points: [[x, y]]};
// null among the points is a gap. Marks and dashes tell series apart without their colours. A series with `beside`, the
// number of another one, is dotted in the colour of that one.
export function lines(label, { across, up }, series, headers, rows) {
  const all = series.flatMap((one) => one.points).filter(Boolean);
  if (!all.some(([, y]) => y > 0 && y < Infinity)) return { label: `${label}: none above zero.` };
  const powers = decades(all.map((point) => point[1]));
  const [low, high] = extent(all.map((point) => point[0]));
  const draw = (width) => {
    const left = 52, right = width - 12, top = 24, bottom = 204;
    const x = linear(low, high, left, right);
    const y = logarithmic(powers[0], powers.at(-1), bottom, top);
    const names = series.map((one, number) => legendOf(one, number, left, bottom + 52 + 18 * number));
    return [bottom + 58 + 18 * series.length, [
      powers.map((power) => horizontal(y(power), power, left, right)),
      whole(low, high, Math.max(2, Math.floor(width / 110))).map((tick) => below(x(tick), bottom, number(tick, 6))),
      below((left + right) / 2, bottom + 18, across), above(left, top, up),
      series.map((one, number) => lineOf(one, number, x, y)), names,
    ]];
  };
  return { label, draw, headers, rows };
}

export function styleOf({ beside }, number) {
  return beside === undefined
    ? { kind: `series s${number % POINTS.length}`, dashes: DASHES[number % DASHES.length], point: POINTS[number % POINTS.length] }
    : { kind: `series s${beside % POINTS.length}`, dashes: "1 4", point: () => null };
}

function lineOf(one, number, x, y) {
  const { points } = one, { kind, dashes, point: marked } = styleOf(one, number);
  const path = pathOf(points.map((point) => point && [x(point[0]), y(point[1])]));
  const known = points.filter((point) => point && Number.isFinite(point[1]));
  const every = Math.ceil(known.length / MARKED);
  return svg("g", { class: kind }, svg("path", { d: path, "stroke-dasharray": dashes, class: "line" }),
    known.filter((_, at) => at % every === 0).map((point) => marked(x(point[0]), y(point[1]))));
}

// Lines from point to point; a gap where there is none, or one that is not finite.
export function pathOf(points) {
  let path = "", begins = true;
  for (const point of points) {
    if (!point || !Number.isFinite(point[1])) { begins = true; continue; }
    path += `${begins ? "M" : "L"}${point[0].toFixed(1)} ${point[1].toFixed(1)}`;
    begins = false;
  }
  return path;
}

export function legendOf(one, number, x, y) {
  const { kind, dashes, point } = styleOf(one, number);
  return svg("g", { class: kind },
    svg("path", { d: `M${x} ${y - 4}H${x + 30}`, class: "line", "stroke-dasharray": dashes }),
    point(x + 15, y - 4), svg("text", { x: x + 38, y }, one.name));
}
