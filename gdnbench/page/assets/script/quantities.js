/* SPDX-License-Identifier: Apache-2.0 */
// What a grid's cells hold: errors by several measures, which cells stand out, and their names.
import { parsed } from "./text.js";

// Unit roundoffs: what rounding to a dtype may cost, relative to the value.
const ROUNDOFF = { bfloat16: 2 ** -8, float16: 2 ** -11, float32: 2 ** -24, float64: 2 ** -53,
  float8_e4m3fn: 2 ** -4, float8_e5m2: 2 ** -3 };

// What may be shown, if the grid has it: a title and a cell's value. Where torch is exact in a cell, its error
// counts as what rounding alone may cost there.
export function quantities(grid, dtype, largest) {
  const over = (a, b) => (a === 0 ? 0 : a / b);
  const rounding = (cell) => (ROUNDOFF[dtype] ?? 0) * grid.rms_reference[cell];
  const torchs = (cell) => (grid.torch_rms[cell] > 0 ? grid.torch_rms[cell] : rounding(cell));
  return {
    relative: ["error relative to the exact value", (cell) => over(grid.rms[cell], grid.rms_reference[cell])],
    ...(hasTorch(grid) && { torch: ["error ÷ torch's", (cell) => over(grid.rms[cell], torchs(cell))] }),
    ...(largest && { limit: ["largest error ÷ its limit", (cell) => over(grid.max_abs[cell], largest)] }),
    rms: ["RMS error", (cell) => grid.rms[cell]],
    max: ["largest error", (cell) => grid.max_abs[cell]],
  };
}

// Whether torch's kernel is off anywhere: else nothing can be a part of its error.
const hasTorch = (grid) => Boolean(grid.torch_rms?.some((rms) => rms > 0));

// The quantity that is shown first.
export function firstQuantity(grid) {
  return hasTorch(grid) ? "torch" : "relative";
}

export function valuesOf(grid, [, value]) {
  return Float64Array.from({ length: grid.regions.length * grid.heads }, (_, cell) => value(cell));
}

// The limit of a single element's error, where one holds for every cell; or null.
export function elementLimit(tensor) {
  const held = (tensor.held ?? []).find((one) => one.what === "largest" && one.chunk !== undefined);
  return held && parsed(held.limit) > 0 ? parsed(held.limit) : null;
}

export const OVER = 1, NOT_FINITE = 2;

// 0, or how a cell stands out.
export function mark(grid, values, largest, cell) {
  if (grid.nonfinite?.[cell] || Number.isNaN(values[cell])) return NOT_FINITE;
  return largest !== null && grid.max_abs[cell] > largest ? OVER : 0;
}

export function markWords(largest) {
  return ["grey: no error", "orange: not finite", ...(largest === null ? [] : ["× over the limit of the largest error"])];
}

// What cells are ordered by: their errors are of finite elements, and one that is wrongly not finite is worse.
export function ranked(grid, values, cell) {
  return grid.nonfinite?.[cell] || Number.isNaN(values[cell]) ? Infinity : values[cell];
}

export function worstCell(grid, values) {
  let found = 0;
  for (let cell = 1; cell < values.length; cell++) if (ranked(grid, values, cell) > ranked(grid, values, found)) found = cell;
  return found;
}

export function cellName(grid, cell) {
  const [sequence, chunk, , ] = grid.regions[Math.floor(cell / grid.heads)];
  const words = [];
  if (sequence !== null && sequence >= 0) words.push(`sequence ${sequence}`);
  if (chunk !== null) words.push(`chunk ${chunk}`);
  words.push(grid.heads > 1 ? `head ${cell % grid.heads}` : "all heads");
  return words.join(", ");
}

// Fewer cells, at most `heads` x `columns`: each has the largest value and mark of a block of down x across.
export function pooled(grid, values, marks, heads, columns) {
  const down = Math.ceil(grid.heads / heads), across = Math.ceil(grid.regions.length / columns);
  const found = { regions: grid.regions.filter((_, region) => region % across === 0), down, across,
    heads: Math.ceil(grid.heads / down) };
  found.values = new Float64Array(found.regions.length * found.heads);
  found.marks = new Uint8Array(found.values.length);
  for (let cell = 0; cell < values.length; cell++) {
    const region = Math.floor(cell / grid.heads), head = cell % grid.heads;
    const block = Math.floor(region / across) * found.heads + Math.floor(head / down);
    if (values[cell] > found.values[block]) found.values[block] = values[cell];
    if (marks[cell] > found.marks[block]) found.marks[block] = marks[cell];
  }
  return found;
}
