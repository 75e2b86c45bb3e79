/* SPDX-License-Identifier: Apache-2.0 */
// The page's charts as SVG files, made where there is no browser: gdnbench/page/png.py runs this and rasterises them.
// It sets `pixelDensity`, and what no_browser.js needs.
import { svgContext } from "./no_browser.js";
import { BELOW, cross, CROSSED, LEFT, paintCells } from "./cells.js";
import { css, logScale, on } from "./colour.js";
import { index, unpackedGrid } from "./data.js";
import { svg } from "./dom.js";
import { alongSequence, layerCells, stepLines } from "./growth.js";
import { historyPictures } from "./history.js";
import { outcomesOf } from "./overview.js";
import { cellName, elementLimit, firstQuantity, mark, markWords, pooled, quantities, ranked, valuesOf, worstCell } from "./quantities.js";
import { rangePictures } from "./ranges.js";
import { SCALE, scaleBar } from "./scale.js";
import { number, shortened } from "./text.js";
import { timePictures } from "./timing.js";
import { histogram } from "./ulp.js";
import { kind, verdictBar, verdictText } from "./verdict.js";
import { waterfall } from "./waterfall.js";

const WIDTH = 720; // CSS pixels
const EDGE = 16;
const TENSORS = 12; // of a record in one file: the eight stages of a prefill, its outputs, and two more
const HISTORIES = 12; // files of errors over runs
const MATRICES = 12; // files of errors over decode steps
const HEADS = 64, COLUMNS = 512; // cells of a heatmap
const LAYERS = 64; // rows of layers by steps

// Files of all runs, as JSON [[name, SVG]]. `below`: which records have files of their own.
function runFiles(below) {
  return JSON.stringify([
    ["verdicts", sheet("Records by outcome", [...index.runs.map(verdicts), { label: below }])],
    ...historyPictures().slice(0, HISTORIES).map((picture, at) => [`history-${two(at)}`, sheet("Over runs", [picture])]),
    ...index.captured.map((captured, at) => [`captured-${two(at)}`,
      sheet(`${captured.op}: ranges of the captured inputs`, rangePictures(captured))]),
    ...index.growth.slice(0, MATRICES).map((matrix, at) => [`steps-${two(at)}`,
      sheet(`${matrix.op} ${matrix.tensor}: error over decode steps`, [stepLines(matrix), ...(matrix.layers.length > 1 ? [layers(matrix)] : [])])]),
  ]);
}

// Files of one record, of the run of that number; `text` is the record as JSON.
function recordFiles(name, run, text) {
  const found = JSON.parse(text);
  const where = index.runs.length > 1 ? ` in ${index.runs[run].path}` : "";
  const title = `record ${found.number} ${found.op} ${found.layer} step ${found.step}: ${found.outcome}${where}`;
  const tensors = found.tensors.filter((tensor) => tensor.when === "after");
  const grids = tensors.filter((tensor) => tensor.grid).map((tensor) => [tensor, unpackedGrid(tensor.grid)]);
  const files = {
    errors: grids.slice(0, TENSORS).map(([tensor, grid]) => errors(tensor, grid)),
    growth: grids.map(([tensor, grid]) => alongSequence(tensor, grid)).filter((one) => one?.draw).slice(0, TENSORS),
    ulp: tensors.map(histogram).filter(Boolean).slice(0, TENSORS),
    stages: [waterfall(found.waterfall)].filter(Boolean),
    times: found.timing ? timePictures(found.timing) : [],
  };
  return JSON.stringify(Object.entries(files).filter(([, pictures]) => pictures.length)
    .map(([what, pictures]) => [`${name}-${what}`, sheet(title, pictures)]));
}

const two = (at) => String(at).padStart(2, "0");

// Pictures under each other, with their labels and a title.
function sheet(title, pictures) {
  let y = 44;
  const shapes = [svg("text", { x: EDGE, y: 24, class: "title" }, shortened(title, 84))];
  for (const { label, draw } of pictures) {
    shapes.push(svg("text", { x: EDGE, y: y + 12, class: "quiet" }, shortened(label, 104)));
    y += 22;
    if (!draw) continue;
    const [height, drawn] = draw(WIDTH - 2 * EDGE);
    shapes.push(svg("g", { transform: `translate(${EDGE} ${y})` }, drawn));
    y += height + 12;
  }
  return String(svg("svg", { xmlns: "http://www.w3.org/2000/svg", viewBox: `0 0 ${WIDTH} ${y + 8}`, width: WIDTH, height: y + 8,
    "font-family": "DejaVu Sans" }, shapes));
}

function verdicts(run) {
  const outcomes = outcomesOf(run);
  const draw = (width) => {
    let x = 0, y = 34;
    const words = outcomes.map(([outcome, count, severity]) => {
      const text = verdictText(`${count} ${outcome}`, severity), wide = 8 * text.length + 12;
      if (x + wide > width) { x = 0; y += 18; }
      x += wide;
      return svg("text", { class: kind(severity), x: x - wide, y }, text);
    });
    return [y + 10, [svg("g", {}, verdictBar(outcomes, width, 16)), words]];
  };
  return { label: `${run.path}: ${run.records || "no"} record${run.records === 1 ? "" : "s"}`, draw: outcomes.length > 0 && draw };
}

// As many CSS pixels as `room` has for each of `count` cells: whole pixels of the file, `pixelDensity` to each, up to a
// limit.
function cellSize(room, count, most) {
  return Math.min(Math.max(Math.floor(room * pixelDensity / count), 2) / pixelDensity, most);
}

function errors(tensor, grid) {
  const side = tensor.side === "kernel" ? "" : `, ${tensor.side}`;
  const name = `${tensor.tensor}${side}${tensor.judged ? (tensor.passed ? ", pass" : ", FAIL") : ""}`;
  if (!grid.regions.length || !grid.heads) return { label: `${name}: no elements` };
  const largest = elementLimit(tensor), quantity = quantities(grid, tensor.dtype, largest)[firstQuantity(grid)];
  const all = valuesOf(grid, quantity), worst = worstCell(grid, all);
  const marks = all.map((_, cell) => mark(grid, all, largest, cell));
  const off = ranked(grid, all, worst);
  const cells = pooled(grid, all, marks, HEADS, COLUMNS);
  const words = [`${name}: ${off > 0 ? `largest ${marks[worst] === 2 ? "not finite" : number(off)} in ${cellName(grid, worst)}` : "no error"}`,
    cells.down * cells.across > 1 && `a cell is the largest of ${cells.down} heads x ${cells.across} chunks`,
    grid.leftOut > 0 && `${grid.leftOut} chunks of smaller error left out`];
  const draw = (width) => {
    const context = svgContext(), scale = logScale(all), count = cells.regions.length;
    const across = cellSize(width - LEFT - 1, count, 40), down = cellSize(200, cells.heads, 26);
    const cursor = Math.floor(worst / grid.heads / cells.across) * cells.heads + Math.floor(worst % grid.heads / cells.down);
    paintCells(context, { grid: cells, from: 0, count, cursor: off > 0 ? cursor : undefined, values: cells.values,
      marked: (cell) => cells.marks[cell], part: scale.part, across, down, ink: "currentColor" });
    const y = cells.heads * down + BELOW;
    return [y + SCALE[1] + 22, [context.shapes,
      key(scale, y, quantity[0], "rows: heads; columns: chunks or sequences", markWords(Math.min(across, down) < CROSSED ? null : largest))]];
  };
  return { label: words.filter(Boolean).join("; "), draw };
}

// What colours and places mean: the scale, beside it `title` and `places`, and `marks` below.
function key(scale, y, title, places, marks) {
  const left = scale.high > 0 ? SCALE[0] : LEFT;
  return svg("g", { transform: `translate(0 ${y})` }, scale.high > 0 && scaleBar(scale),
    svg("text", { x: left, y: 12 }, title), svg("text", { x: left, y: 28, class: "quiet" }, places),
    svg("text", { x: LEFT - 4, y: SCALE[1] + 14, class: "quiet" }, marks.join("; ")));
}

function layers(matrix) {
  const { scale, rows } = layerCells(matrix, LAYERS);
  const draw = (width) => {
    const context = svgContext(), left = 190, count = rows[0].cells.length;
    const across = cellSize(width - left, count, 18), down = Math.min(18, Math.max(360 / rows.length, 8)), every = Math.ceil(12 / down);
    rows.forEach(({ cells }, row) => cells.forEach(({ colour, over }, column) => {
      context.fillStyle = css(colour);
      context.fillRect(left + column * across, row * down, across - 0.7, down - 0.7);
      if (over) cross(context, left + column * across, row * down, across, down, on(colour));
    }));
    const y = rows.length * down, apart = Math.ceil(48 / across);
    return [y + 24 + SCALE[1] + 22, [context.shapes,
      rows.map(({ layer }, row) => row % every === 0
        && svg("text", { x: left - 6, y: row * down + down / 2 + 4, "text-anchor": "end" }, shortened(layer, 27))),
      rows[0].cells.map(({ first }, column) => column % apart === 0
        && svg("text", { x: left + column * across, y: y + 14 }, first)),
      key(scale, y + 24, "relative RMS error", "rows: layers; columns: steps", ["grey: no error", "× failed"])]];
  };
  return { label: rows.length < matrix.layers.length ? "all layers, several in a row" : "every layer, in the model's order", draw };
}
