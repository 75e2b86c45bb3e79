/* SPDX-License-Identifier: Apache-2.0 */
// The report's data: an index that is read at once, and packed blocks of records that are unpacked when looked at.

export const index = JSON.parse(document.getElementById("index").textContent);
export const columns = index.columns;
export const total = columns.run.length;

const KEPT = 12; // blocks unpacked at a time
const opened = new Map();

export function string(column, place) {
  return index.strings[columns[column][place]];
}

export function bytes(base64) {
  if (Uint8Array.fromBase64) return Uint8Array.fromBase64(base64); // not in older browsers
  const text = atob(base64);
  const found = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) found[i] = text.charCodeAt(i);
  return found;
}

async function unpacked(number) {
  const packed = document.getElementById(`block-${number}`).textContent;
  const stream = new Blob([bytes(packed)]).stream().pipeThrough(new DecompressionStream("gzip"));
  return JSON.parse(await new Response(stream).text());
}

// Everything about the record at a place of the index.
export async function details(place) {
  const number = Math.floor(place / index.block);
  const found = opened.get(number) ?? unpacked(number);
  opened.delete(number);
  opened.set(number, found); // the newest last
  if (opened.size > KEPT) opened.delete(opened.keys().next().value);
  return (await found)[place % index.block];
}

// A grid's arrays, row by row as regions and heads have them; unpacked when first asked for.
const ARRAYS = { rms: Float32Array, rms_reference: Float32Array, torch_rms: Float32Array, max_abs: Float32Array,
  x: Float32Array, y: Float32Array, worst: Int32Array, nonfinite: Int32Array };

export function unpackedGrid(grid) {
  const found = { regions: grid.regions, heads: grid.heads, axes: grid.axes, leftOut: grid.left_out ?? 0 };
  const cells = grid.regions.length * grid.heads;
  for (const [name, kind] of Object.entries(ARRAYS)) {
    if (grid[name] === null || grid[name] === undefined) { found[name] = null; continue; }
    found[name] = new kind(bytes(grid[name]).buffer);
    if (name === "worst" ? found[name].length % cells : found[name].length !== cells) {
      throw new Error(`its grid has ${found[name].length} values of ${name} in ${cells} cells`);
    }
  }
  found.dimensions = cells ? found.worst.length / cells : 0;
  return found;
}
