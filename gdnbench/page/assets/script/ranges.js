/* SPDX-License-Identifier: Apache-2.0 */
// Ranges of the captured inputs over all records: a mark for each number of each record.
import { above, below, extent, horizontal, linear, ticks, whole } from "./axis.js";
import { chart, POINTS } from "./chart.js";
import { index } from "./data.js";
import { el, part, svg } from "./dom.js";
import { number } from "./text.js";

export function capturedRanges() {
  const shown = index.captured.filter(({ records }) => records > 1);
  if (!shown.length) return null;
  return part("Ranges of the captured inputs", () => el("div", { class: "pictures" },
    shown.flatMap((captured) => rangePictures(captured).map(chart))), "h2");
}

// A picture for each input of an operation. With many records, a mark is the extreme of `each` neighbours.
export function rangePictures({ op, each, records, inputs }) {
  return inputs.map(({ label, unit, values }) => {
    const known = unit === "2^" ? "exponent of 2" : unit;
    return rangePicture(`${op}: ${label}${known ? ` (${known})` : ""}`, known, Object.entries(values), each, records);
  });
}

function rangePicture(label, unit, series, each, records) {
  const all = series.flatMap(([, values]) => values.filter((value) => value !== null));
  if (!all.length) return { label: `${label}: no finite number.` };
  const [low, high] = extent(all), more = (high - low) * 0.08 || Math.abs(high) * 0.1 || 1;
  const [lows, highs] = ["min", "max"].map((name) => series.find(([one]) => one === name)?.[1]);
  const draw = (width) => {
    const left = 64, right = width - 12, top = 24, bottom = 134;
    const x = linear(-0.5, records - 0.5, left, right), y = linear(low - more, high + more, bottom, top);
    let start = left;
    const names = series.map(([name], at) => {
      const shown = svg("g", { class: `series s${at % POINTS.length}` }, POINTS[at % POINTS.length](start, bottom + 46),
        svg("text", { x: start + 10, y: bottom + 50 }, name));
      start += 34 + 7 * String(name).length;
      return shown;
    });
    return [bottom + 60, [
      ticks(low - more, high + more, 4).map((tick) => horizontal(y(tick), tick, left, right, number(tick, 3))),
      whole(0, records - 1, Math.max(2, Math.floor(width / 110))).map((tick) => below(x(tick), bottom, number(tick, 6))),
      below((left + right) / 2, bottom + 16, "record, in the order captured"), above(left, top, unit || "value"),
      lows && highs && lows.map((value, at) => value !== null && highs[at] !== null
        && svg("path", { class: "span", d: `M${x(at * each)} ${y(value)}V${y(highs[at])}` })),
      series.map(([, values], at) => svg("g", { class: `series s${at % POINTS.length}` },
        values.map((value, record) => value !== null && POINTS[at % POINTS.length](x(record * each), y(value))))),
      names,
    ]];
  };
  const rows = () => (series[0]?.[1] ?? []).map((_, at) =>
    [String(at * each), ...series.map(([, values]) => number(values[at], 4))]);
  return { label, draw, headers: ["record", ...series.map(([name]) => name)], rows };
}
