/* SPDX-License-Identifier: Apache-2.0 */
// How errors grow: along the chunks of a sequence, and by layer over decode steps.
import { columns, index } from "./data.js";
import { el, part } from "./dom.js";
import { extent } from "./axis.js";
import { chart, lines } from "./chart.js";
import { logScale, css, NO_ERROR, on, shade } from "./colour.js";
import { legendScale } from "./scale.js";
import { number, parsed } from "./text.js";

const LINES = 4; // layers drawn as lines; all are in the picture

// Along a sequence: of every chunk the worst head, and torch's worst head.
export function alongSequence(tensor, grid) {
  const chunks = grid.regions.filter(([, chunk]) => chunk !== null).length;
  if (chunks < 2) return null;
  const worst = (errors, region) => {
    let found = 0;
    for (let head = 0; head < grid.heads; head++) {
      const cell = region * grid.heads + head;
      const error = errors[cell] === 0 ? 0 : errors[cell] / grid.rms_reference[cell];
      if (!(error <= found)) found = error;
    }
    return found;
  };
  const series = [{ name: tensor.side === "difference" ? "difference, worst head" : `${tensor.side}, worst head`,
    of: grid.rms }];
  if (grid.torch_rms) series.push({ name: "torch, worst head", of: grid.torch_rms });
  for (const one of series) {
    one.points = [];
    grid.regions.forEach(([sequence], region) => {
      if (region && grid.regions[region - 1][0] !== sequence) one.points.push(null); // a sequence begins
      const error = worst(one.of, region);
      one.points.push([region, error > 0 ? error : NaN]);
    });
  }
  const rows = () => grid.regions.map(([sequence, chunk], region) =>
    [`sequence ${sequence}, chunk ${chunk}`, ...series.map((one) => number(worst(one.of, region)))]);
  return lines(`${tensor.tensor}: relative RMS error by chunk, sequence after sequence`, { across: grid.regions.at(-1)[0] > 0 ? "chunk, counted over all sequences" : "chunk", up: "relative RMS error" }, series,
    ["chunk", ...series.map((one) => one.name)], rows);
}

// Over decode steps: one picture a tensor, a click on a step opens its record.
export function overSteps(open) {
  if (!index.growth.length) return null;
  return part("Error over decode steps", () => el("div", { class: "pictures" },
    index.growth.map((matrix) => el("div", { class: "steps-of" }, chart(stepLines(matrix)),
      matrix.layers.length > 1 && layerButtons(matrix, open)))), "h2");
}

function stepsLabel(matrix) {
  const run = index.runs.length > 1 ? ` in ${index.runs[matrix.run].path}` : "";
  return `${matrix.op} ${matrix.tensor}: relative RMS error by step${run}`;
}

const known = (rows) => rows.map((row) => row.map((value) => (value === null ? NaN : parsed(value))));

// The layers of largest errors, each beside torch's.
export function stepLines(matrix) {
  const error = known(matrix.error), torch = known(matrix.torch);
  const order = error.map((row, layer) => [extent([...row, 0])[1], layer])
    .sort((a, b) => b[0] - a[0]).slice(0, LINES).map(([, layer]) => layer).sort((a, b) => a - b);
  const points = (row) => matrix.steps.map((step, at) => [step, row[at] > 0 ? row[at] : NaN]);
  const series = order.map((layer) => ({ name: matrix.layers[layer], points: points(error[layer]) }));
  order.forEach((layer, beside) => {
    if (torch[layer].some((value) => value > 0)) {
      series.push({ name: `torch, ${matrix.layers[layer]}`, points: points(torch[layer]), beside });
    }
  });
  const rows = () => matrix.steps.map((step, at) => [String(step), ...error.map((row) => number(row[at]))]);
  const most = matrix.layers.length > LINES ? `, the ${LINES} layers of largest error` : "";
  return lines(`${stepsLabel(matrix)}${most}`, { across: "step", up: "relative RMS error" }, series, ["step", ...matrix.layers], rows);
}

// Layers by steps: rows {layer, cells: [{at, place, colour, over, error}]}, and the scale of the colours. A cell is the
// worst of so many steps that there are at most 48 across, and of so many layers that there are at most `most`.
export function layerCells(matrix, most = Infinity) {
  const error = known(matrix.error), scale = logScale(error.flat());
  const every = Math.ceil(matrix.steps.length / 48), each = Math.ceil(matrix.layers.length / most) || 1;
  const rows = [];
  for (let top = 0; top < matrix.layers.length; top += each) {
    const cells = [];
    for (let from = 0; from < matrix.steps.length; from += every) {
      let [row, at] = [top, from];
      for (let layer = top; layer < Math.min(top + each, matrix.layers.length); layer++) {
        for (let step = from; step < Math.min(from + every, matrix.steps.length); step++) {
          if (error[layer][step] > error[row][at] || Number.isNaN(error[row][at])) [row, at] = [layer, step];
        }
      }
      const place = matrix.place[row][at], value = error[row][at];
      cells.push({ layer: matrix.layers[row], step: matrix.steps[at], first: matrix.steps[from], place, error: value,
        colour: value > 0 ? shade(scale.part(value)) : NO_ERROR, over: place !== null && columns.severity[place] === 0 });
    }
    rows.push({ layer: matrix.layers[top], cells });
  }
  return { scale, rows };
}

// As links, so that Tab and Enter reach the records.
function layerButtons(matrix, open) {
  const { scale, rows } = layerCells(matrix);
  const body = rows.map((row) => {
    const cells = row.cells.map(({ layer, step, place, error, colour, over }) => {
      const text = `${layer}, step ${step}: ${number(error)}${over ? ", failed" : ""}`;
      const cell = el("button", { type: "button", class: "step", title: text, "aria-label": text, disabled: place === null,
        onclick: () => open(place) }, over ? "×" : "");
      cell.style.backgroundColor = css(colour);
      cell.style.color = on(colour);
      return cell;
    });
    return el("div", { class: "layer" }, el("span", { title: row.layer }, row.layer), el("div", {}, cells));
  });
  return el("div", { class: "layers" }, body, legendScale(scale, "relative RMS error", ["× failed", "grey: no error"]));
}
