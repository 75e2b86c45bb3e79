/* SPDX-License-Identifier: Apache-2.0 */
// How far outputs were from their limits, over the runs of one kernel: a line for each tensor. A point is a link to the
// record of that run that was closest to its limit or furthest over it.
import { anchorOf } from "./anchor.js";
import { above, below, decades, horizontal, linear, logarithmic } from "./axis.js";
import { chart, legendOf, pathOf, styleOf } from "./chart.js";
import { columns, index, string, total } from "./data.js";
import { el, part, svg } from "./dom.js";
import { runName } from "./overview.js";
import { count, number, parsed } from "./text.js";

const DATE = 84; // CSS pixels that a date needs

// Of all records: a picture for each operation that the runs of a track have.
export function historyPictures() {
  return (index.history?.tracks ?? []).flatMap((track) => {
    const places = placesOf(track, () => true), kernel = runName(index.runs[track[0]].header);
    return [...new Set(places.map((place) => string("op", place)))].sort().map((op) => historyPicture(
      `${op}: error ÷ limit of the worst record in ${count(track.length, "run")} of ${kernel}`,
      track, places.filter((place) => string("op", place) === op), null));
  });
}

export function overRuns() {
  const shown = historyPictures();
  if (!shown.length) return null;
  const timeless = index.history.times.filter((time) => time === null).length;
  return part("History", () => [
    el("div", { class: "pictures" }, shown.map((one) => el("div", {}, chart(one), saidOf(one)))),
    timeless > 0 && el("p", { class: "hint" }, `${count(timeless, "run")} without a time: not in the history.`),
  ], "h2");
}

// Of one record: the same captured call in every run of its track; or null.
export function recordHistory(place) {
  const track = trackOf(place);
  if (!track) return null;
  const places = placesOf(track, (other) => columns.key[other] === columns.key[place]);
  if (new Set(places.map((other) => columns.run[other])).size < 2) return null;
  const shown = historyPicture("error ÷ limit of each tensor, run after run", track, places, place);
  return [chart(shown), saidOf(shown)];
}

export function trackOf(place) {
  return index.history?.tracks.find((track) => track.includes(columns.run[place]));
}

function placesOf(track, wanted) {
  const runs = new Set(track), found = [];
  for (let place = 0; place < total; place++) if (runs.has(columns.run[place]) && wanted(place)) found.push(place);
  return found;
}

const saidOf = ({ said }) => said.map((text) => el("p", { class: "hint" }, text));

// {lines: [{name, points}], stopped}: a point for each run of the track, or null. `stopped` has the first record of
// each run that failed without outputs.
function collected(track, places) {
  const lines = new Map(), stopped = track.map(() => null), at = new Map(track.map((run, n) => [run, n]));
  for (const place of places) {
    const here = at.get(columns.run[place]), limits = index.history.limits[place];
    if (!limits.length && columns.severity[place] < 3) stopped[here] ??= place;
    for (const [name, ratio, error, limit, failed] of limits) {
      if (!lines.has(name)) lines.set(name, { name: index.strings[name], points: track.map(() => null) });
      const { points } = lines.get(name), point = { ratio: parsed(ratio ?? NaN), error, limit, failed, place };
      const known = points[here];
      if (!known || !(point.ratio <= known.ratio)) points[here] = { ...point, failed: failed || Boolean(known?.failed) };
      else known.failed ||= failed;
    }
  }
  return { lines: [...lines.values()], stopped };
}

function historyPicture(label, track, places, current) {
  const { lines, stopped } = collected(track, places);
  const finite = lines.flatMap(({ points }) => points.map((point) => point?.ratio)).filter((ratio) => ratio > 0 && ratio < Infinity);
  const powers = decades([...finite, 1]);
  const draw = (width) => {
    const left = 52, right = width - 12, top = 28, bottom = 208;
    const x = linear(0, track.length - 1, left + 12, right - 12), y = logarithmic(powers[0], powers.at(-1), bottom, top);
    const high = (ratio) => (Number.isFinite(ratio) ? Math.max(y(ratio), top) : top);
    const every = Math.ceil(DATE / (x(1) - x(0)));
    const here = current === null ? -1 : track.indexOf(columns.run[current]);
    const mark = (point, at, line) => link(point.place, pointText(track[at], lines[line].name, point), [
      styleOf(lines[line], line).point(x(at), high(point.ratio)), point.failed && crossAt(x(at), high(point.ratio))]);
    return [bottom + 76 + 18 * lines.length, [
      powers.map((power) => horizontal(y(power), power, left, right)),
      svg("line", { class: "one", x1: left, x2: right, y1: y(1), y2: y(1) }),
      svg("text", { x: right, y: y(1) - 4, "text-anchor": "end", class: "quiet" }, "limit"),
      here >= 0 && svg("line", { class: "span", x1: x(here), x2: x(here), y1: top, y2: bottom }),
      dates(track, every).map(([at, text]) => below(x(at), bottom, text)),
      below((left + right) / 2, bottom + 18, "run, in the order of time (UTC)"), above(left, top, "error ÷ limit"),
      lines.map((line, n) => svg("g", { class: styleOf(line, n).kind }, svg("path", { class: "line", "stroke-dasharray": styleOf(line, n).dashes,
        d: pathOf(line.points.map((point, at) => isDrawn(point) && [x(at), high(point.ratio)])) }),
      line.points.map((point, at) => isDrawn(point) && mark(point, at, n)))),
      stopped.map((place, at) => place !== null && link(place, `${runText(track[at])}: ${string("outcome", place)}`, [crossAt(x(at), top)])),
      lines.map((line, n) => legendOf(line, n, left, bottom + 52 + 18 * n)),
      svg("g", {}, crossAt(left + 15, bottom + 48 + 18 * lines.length),
        svg("text", { x: left + 38, y: bottom + 52 + 18 * lines.length }, "failed, or no outputs to compare")),
    ]];
  };
  return { label, draw, numeric: [], said: lines.flatMap((line) => sinceWhen(track, line)),
    headers: ["run", "time (UTC)", "commit", "versions, then changes since the run before", ...lines.map(({ name }) => name), "without outputs"],
    rows: () => track.map((run, at) => [index.runs[run].path, clock(run), index.history.commits[run] ?? "-",
      (at ? index.history.changes[run].join("; ") : index.history.versions[run]) || "-", ...lines.map(({ points }) => cell(points[at])),
      stopped[at] === null ? "-" : string("outcome", stopped[at])]) };
}

// Not an output that passes by a rule without numbers.
const isDrawn = (point) => point && (point.failed || !Number.isNaN(point.ratio));

function cell(point) {
  if (!point) return "-";
  const limit = point.limit === null ? "" : ` (${number(point.error)} of ${number(point.limit)})`;
  return `${limit ? number(point.ratio) : "no limit"}${limit}${point.failed ? " ✗" : ""}`;
}

const clock = (run) => index.history.times[run].slice(0, 16).replace("T", " ");

// [at, text] of every so many runs: dates, and a time where the last of them was on the same day.
function dates(track, every) {
  const shown = track.map((run, at) => [at, clock(run)]).filter(([at]) => at % every === 0);
  return shown.map(([at, text], n) => [at, n && shown[n - 1][1].slice(0, 10) === text.slice(0, 10) ? text.slice(11) : text.slice(0, 10)]);
}

function runText(run) {
  const { commits, changes, versions } = index.history;
  return [`${clock(run)}, ${index.runs[run].path}`, commits[run] && `commit ${commits[run]}`, versions[run],
    ...changes[run].map((change) => `changed: ${change}`)].filter(Boolean).join("\n");
}

function pointText(run, name, point) {
  return `${name}: ${cell(point)} in record ${columns.number[point.place]}\n${runText(run)}`;
}

function link(place, text, shapes) {
  return svg("a", { href: anchorOf(place), class: "point", "aria-label": text }, svg("title", {}, text), shapes);
}

function crossAt(x, y) {
  return svg("path", { class: "over", d: `M${x - 5} ${y - 5}L${x + 5} ${y + 5}M${x + 5} ${y - 5}L${x - 5} ${y + 5}` });
}

// Of a tensor that fails in the newest run that has it: since when, and what changed then.
function sinceWhen(track, { name, points }) {
  const known = points.map((point, at) => [point, at]).filter(([point]) => point);
  if (!known.length || !known.at(-1)[0].failed) return [];
  const good = known.findLastIndex(([point]) => !point.failed), [, first] = known[good + 1];
  if (good < 0) return [`${name} fails in every run.`];
  const { commits, changes } = index.history, from = track[known[good][1]], to = track[first];
  const moved = commits[from] === commits[to] ? [] : [`commit ${commits[from] ?? "unknown"} -> ${commits[to] ?? "unknown"}`];
  const all = [...moved, ...track.slice(known[good][1] + 1, first + 1).flatMap((run) => changes[run])];
  return [`${name} fails since ${clock(to)} (${index.runs[to].path}); it passed at ${clock(from)} (${index.runs[from].path}). `
    + (all.length ? `Between them: ${all.join("; ")}.` : "Nothing that is recorded differs between them.")];
}
