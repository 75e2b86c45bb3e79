/* SPDX-License-Identifier: Apache-2.0 */
// A heatmap's pixels. Columns are chunks in the order of the sequences, rows are heads.
import { css, NO_ERROR, on, shade, WRONG } from "./colour.js";
import { NOT_FINITE } from "./quantities.js";

export const LEFT = 56; // for the names of heads
export const BELOW = 34; // for those of chunks and sequences
export const CROSSED = 6; // the least side of a cell that has room for a cross
const FONT = "11px system-ui, sans-serif";

export function drawCells(canvas, { width, ...cells }) {
  const { grid, count } = cells;
  const across = Math.min(Math.max(Math.floor((width - LEFT - 1) / count), 9), 40);
  const down = Math.min(Math.max(Math.floor(360 / grid.heads), 11), 26);
  canvas.cellWidth = across;
  canvas.cellHeight = down;
  const size = [LEFT + count * across + 1, grid.heads * down + BELOW];
  const density = Math.min(window.devicePixelRatio || 1, 8192 / size[0]);
  canvas.width = size[0] * density;
  canvas.height = size[1] * density;
  canvas.style.width = `${size[0]}px`;
  canvas.style.height = `${size[1]}px`;
  const ink = getComputedStyle(canvas).getPropertyValue("color") || "#000";
  const context = canvas.getContext("2d");
  context.scale(density, density);
  paintCells(context, { ...cells, across, down, ink });
}

// On a canvas's context, cells of across x down pixels. `marked` gives how a cell stands out.
export function paintCells(context, { grid, from, count, cursor, values, marked, part, across, down, ink }) {
  const gap = across < 9 ? 0 : 0.5; // small cells touch
  context.font = FONT;
  context.textBaseline = "middle";
  context.textAlign = "center";

  for (let column = 0; column < count; column++) {
    for (let head = 0; head < grid.heads; head++) {
      const cell = (from + column) * grid.heads + head;
      const x = LEFT + column * across, y = head * down, how = marked(cell);
      const colour = how === NOT_FINITE ? WRONG : values[cell] === 0 ? NO_ERROR : shade(part(values[cell]));
      context.fillStyle = css(colour);
      context.fillRect(x, y, across - gap, down - gap);
      if (how && Math.min(across, down) >= CROSSED) cross(context, x, y, across, down, on(colour));
    }
  }
  labels(context, grid, from, count, across, down, ink);
  if (cursor !== undefined) outline(context, grid, cursor, from, count, across, down);
}

export function cross(context, x, y, across, down, colour) {
  const reach = Math.min(across, down) * 0.22, [cx, cy] = [x + across / 2, y + down / 2];
  context.strokeStyle = colour;
  context.lineWidth = 1.6;
  context.beginPath();
  context.moveTo(cx - reach, cy - reach);
  context.lineTo(cx + reach, cy + reach);
  context.moveTo(cx + reach, cy - reach);
  context.lineTo(cx - reach, cy + reach);
  context.stroke();
}

// White inside black: seen on every colour of the scale.
function outline(context, grid, cursor, from, count, across, down) {
  const column = Math.floor(cursor / grid.heads) - from;
  if (column < 0 || column >= count) return;
  const [wide, high] = across < CROSSED || down < CROSSED ? [13, 13] : [across, down]; // around a small cell
  const x = LEFT + (column + 0.5) * across - wide / 2, y = (cursor % grid.heads + 0.5) * down - high / 2;
  for (const [colour, inset] of [["#000", 0.5], ["#fff", 2]]) {
    context.strokeStyle = colour;
    context.lineWidth = 1.5;
    context.strokeRect(x + inset, y + inset, wide - 2 * inset - 0.5, high - 2 * inset - 0.5);
  }
}

function labels(context, grid, from, count, across, down, ink) {
  context.fillStyle = ink;
  const bottom = grid.heads * down;
  context.textAlign = "right";
  const apart = Math.ceil(14 / down);
  for (let head = 0; head < grid.heads; head += apart) {
    context.fillText(grid.heads > 1 ? `head ${head * (grid.down ?? 1)}` : "all heads", LEFT - 6, head * down + down / 2);
  }
  if (grid.regions.some(([, chunk]) => chunk !== null)) context.fillText("chunk", LEFT - 6, bottom + 8);
  context.textAlign = "center";
  const every = Math.ceil(26 / across);
  let since = every;
  for (let column = 0; column < count; column++) {
    const [sequence, chunk] = grid.regions[from + column];
    const begins = column === 0 || grid.regions[from + column - 1][0] !== sequence;
    const x = LEFT + column * across + across / 2;
    if (begins || since >= every) {
      if (chunk !== null && (!begins || since >= every / 2)) { context.fillText(chunk, x, bottom + 8); since = 0; }
    }
    since++;
    if (begins) sequenceLabel(context, x - across / 2, bottom, sequence, ink, grid, from + column, across);
  }
}

// "sequence 3" under its first chunk, with a line up to the cells, if there is room until the next one.
function sequenceLabel(context, x, bottom, sequence, ink, grid, column, across) {
  context.fillRect(x - 0.5, bottom, 1, BELOW - 4);
  let length = 1;
  while (grid.regions[column + length]?.[0] === sequence) length++;
  const room = length * across - 4;
  const text = [`sequence ${sequence}`, `s${sequence}`, `${sequence}`].find((one) => context.measureText(one).width < room);
  if (!text || sequence < 0) return;
  context.textAlign = "left";
  context.fillText(text, x + 3, bottom + 24);
  context.textAlign = "center";
}
