// How errors grow: along the chunks of a sequence, and by layer over decode steps.
import { columns, index } from "./data.js";
import { el, part } from "./dom.js";
import { lines } from "./chart.js";
import { logScale, css, on, shade } from "./colour.js";
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
  return lines(`${tensor.tensor}: relative RMS error by chunk, sequence after sequence`, "chunk, counted over all sequences", series,
    ["chunk", ...series.map((one) => one.name)], rows);
}

// Over decode steps: one picture a tensor, a click on a step opens its record.
export function overSteps(open) {
  if (!index.growth.length) return null;
  return part("Error over decode steps", () => el("div", { class: "pictures" },
    index.growth.map((matrix) => decode(matrix, open))), "h2");
}

function decode(matrix, open) {
  const run = index.runs.length > 1 ? ` in ${index.runs[matrix.run].path}` : "";
  const error = matrix.error.map((row) => row.map((value) => (value === null ? NaN : parsed(value))));
  const order = error.map((row, layer) => [Math.max(...row.filter((value) => value === value), 0), layer])
    .sort((a, b) => b[0] - a[0]).slice(0, LINES).map(([, layer]) => layer).sort((a, b) => a - b);
  const series = order.map((layer) => ({ name: matrix.layers[layer],
    points: matrix.steps.map((step, at) => [step, error[layer][at] > 0 ? error[layer][at] : NaN]) }));
  const label = `${matrix.op} ${matrix.tensor}: relative RMS error by step${run}`;
  const rows = () => matrix.steps.map((step, at) => [String(step), ...error.map((row) => number(row[at]))]);
  return el("div", { class: "steps-of" },
    lines(matrix.layers.length > LINES ? `${label}, the ${LINES} layers of largest error` : label, "step", series,
      ["step", ...matrix.layers], rows),
    matrix.layers.length > 1 && layers(matrix, error, open));
}

// Layers by steps, as cells; links, so that Tab and Enter reach the records.
function layers(matrix, error, open) {
  const scale = logScale(error.flat());
  const every = Math.ceil(matrix.steps.length / 48); // the worst of so many steps in a cell
  const body = matrix.layers.map((layer, row) => {
    const cells = [];
    for (let from = 0; from < matrix.steps.length; from += every) {
      let at = from;
      for (let i = from; i < Math.min(from + every, matrix.steps.length); i++) if (!(error[row][i] <= error[row][at])) at = i;
      const place = matrix.place[row][at], colour = shade(scale.part(error[row][at]) ?? 0);
      const over = place !== null && columns.severity[place] === 0;
      const text = `${layer}, step ${matrix.steps[at]}: ${number(error[row][at])}${over ? ", failed" : ""}`;
      const cell = el("button", { type: "button", class: "step", title: text, "aria-label": text, disabled: place === null,
        onclick: () => open(place) }, over ? "×" : "");
      cell.style.backgroundColor = css(colour);
      cell.style.color = on(colour);
      cells.push(cell);
    }
    return el("div", { class: "layer" }, el("span", { title: layer }, layer), el("div", {}, cells));
  });
  return el("div", { class: "layers" }, body, legendScale(scale, "relative RMS error", ["× failed"]));
}
