/* SPDX-License-Identifier: Apache-2.0 */
// Times of kernels on a record: every sample, quartiles, and the interval of each ratio.
import { el, svg, table } from "./dom.js";
import { chart } from "./chart.js";
import { below, extent, linear, ticks } from "./axis.js";
import { number, seconds } from "./text.js";

const DRAWN = 400; // samples of a kernel

export function timing(found) {
  if (!found) return null;
  const parts = timePictures(found).map(chart);
  const pairs = pairsOf(found);
  if (pairs.length) parts.push(intervals(pairs));
  const not = found.kernels.filter((kernel) => !kernel.summary || kernel.reason);
  parts.push(...not.map((kernel) => el("p", { class: "notice" }, `${kernel.name}: ${kernel.outcome}: ${kernel.reason}`)));
  const where = [found.machine?.device, found.machine?.host, found.clock && `by ${found.clock}`, found.time];
  parts.push(el("p", { class: "hint" }, where.filter(Boolean).join(" · ")));
  parts.push(...(found.notes ?? []).map((note) => el("p", { class: "hint" }, note)));
  return parts;
}

// Samples of each kernel, and ratios to the first.
export function timePictures(found) {
  const timed = found.kernels.filter((kernel) => kernel.summary);
  const known = pairsOf(found).filter((pair) => pair.interval);
  return [timed.length > 0 && samples(timed), known.length > 0 && ratios(known)].filter(Boolean);
}

function pairsOf(found) {
  return [...(found.pairs ?? []), ...(found.repeat ? [{ ...found.repeat, other: "the same again" }] : [])];
}

// A dot a sample, spread over the strip so that equal ones are seen; the box is the middle half.
function samples(kernels) {
  // What is slower than a hundredth of all may be any interruption: it is drawn at the edge.
  const all = kernels.flatMap((kernel) => kernel.samples).sort((a, b) => a - b);
  const low = all[0], high = all[Math.max(Math.ceil(all.length * 0.99) - 1, 0)];
  const draw = (width) => {
    const left = 16, right = width - 16, each = 64, top = 6;
    const x = linear(low, high, left, right), inside = (value) => Math.min(x(value), right + 6);
    const bottom = top + each * kernels.length;
    return [bottom + 40, [
      below((left + right) / 2, bottom + 16, "time of a launch"),
      ticks(low, high, Math.max(2, Math.floor(width / 130))).map((tick) =>
        [svg("line", { class: "gridline", x1: x(tick), x2: x(tick), y1: top, y2: bottom }), below(x(tick), bottom, seconds(tick))]),
      kernels.map((kernel, at) => {
        const y = top + at * each, every = Math.ceil(kernel.samples.length / DRAWN), { lower, median, upper } = kernel.summary;
        return [
          svg("text", { x: left, y: y + 12 }, `${kernel.name}: median ${seconds(median)}`),
          svg("rect", { class: "box", x: inside(lower), y: y + 20, width: Math.max(inside(upper) - inside(lower), 1), height: 30 }),
          kernel.samples.filter((_, i) => i % every === 0).map((value, i) =>
            svg("circle", { class: `dot s${at % 4}`, cx: inside(value), cy: y + 24 + (i * 7) % 23, r: 2 })),
          svg("line", { class: "median", x1: inside(median), x2: inside(median), y1: y + 17, y2: y + 53 })];
      }),
    ]];
  };
  const rows = () => kernels.map(({ name, summary }) => [name, String(summary.count), seconds(summary.lower),
    seconds(summary.median), seconds(summary.upper)]);
  return { label: "Time of a launch: samples, median, and the middle half as a box", draw,
    headers: ["kernel", "samples", "lower quartile", "median", "upper quartile"], rows };
}

function intervals(pairs) {
  const confidence = confidenceOf(pairs);
  const rows = pairs.map(({ first, other, interval, verdict, margin }) => [`${other} ÷ ${first}`,
    interval ? number(interval.ratio, 4) : "-",
    interval ? `${number(interval.low, 4)} to ${number(interval.high, 4)}` : "too few blocks",
    interval ? `${interval.groups} ${interval.by}s` : "-", verdict, number(margin, 2)]);
  return table(`Ratios of times${confidence ? `, intervals of ${100 * confidence} %` : ""}`,
    ["kernels", "ratio", "interval", "over", "verdict", "margin"], rows, [1, 2]);
}

function confidenceOf(pairs) {
  return pairs.find((pair) => pair.interval)?.interval.confidence;
}

function ratios(pairs) {
  const ends = pairs.flatMap(({ interval, margin }) => [interval.low, interval.high, 1 - margin, 1 + margin]);
  const [low, high] = extent([...ends, 1]), more = (high - low) * 0.1 || 0.01;
  const draw = (width) => {
    const left = 16, right = width - 16, bottom = 8 + 40 * pairs.length;
    const x = linear(low - more, high + more, left, right);
    return [bottom + 40, [
      below((left + right) / 2, bottom + 16, "ratio of times"),
      ticks(low - more, high + more, Math.max(2, Math.floor(width / 110))).map((tick) => below(x(tick), bottom, number(tick, 4))),
      svg("line", { class: "one", x1: x(1), x2: x(1), y1: 4, y2: bottom }),
      pairs.map(({ other, first, interval, margin, verdict }, at) => [
        svg("rect", { class: "margin", x: x(1 - margin), width: x(1 + margin) - x(1 - margin), y: 4 + 40 * at, height: 40 }),
        svg("text", { x: left, y: 18 + 40 * at }, `${other} ÷ ${first}: ${verdict}`),
        svg("path", { class: "interval", d: `M${x(interval.low)} ${30 + 40 * at}H${x(interval.high)}` }),
        [interval.low, interval.high].map((end) => svg("path", { class: "interval", d: `M${x(end)} ${25 + 40 * at}V${35 + 40 * at}` })),
        svg("circle", { class: "dot s0", cx: x(interval.ratio), cy: 30 + 40 * at, r: 4 })]),
    ]];
  };
  const rows = () => pairs.map(({ other, first, interval }) => [`${other} ÷ ${first}`, number(interval.low, 4),
    number(interval.ratio, 4), number(interval.high, 4)]);
  return { label: `Ratio of times with its interval of ${100 * confidenceOf(pairs)} %; the line is 1, no difference; grey: the margin`,
    draw, headers: ["kernels", "low", "ratio", "high"], rows };
}
