/* SPDX-License-Identifier: Apache-2.0 */
// Errors by chunk and head, a cell each, on a canvas: a grid may have 65,536 of them. Arrow keys and the pointer
// move over cells; below stands what the cell holds, and all of it is in a table too.
import { el, folded, select, table } from "./dom.js";
import { logScale } from "./colour.js";
import { drawCells, LEFT } from "./cells.js";
import { number } from "./text.js";
import { cellName, elementLimit, firstQuantity, mark, markWords, quantities, ranked, valuesOf, worstCell } from "./quantities.js";
import { legendScale } from "./scale.js";

const WINDOW = 512; // columns drawn at a time
const LISTED = 200; // cells in the table

export function heatmap(tensor, grid, sides) {
  const largest = elementLimit(tensor);
  const shown = quantities(grid, tensor.dtype, largest);
  const regions = grid.regions.length, cells = regions * grid.heads;
  let name = firstQuantity(grid);
  let values, scale, cursor, from = 0;

  const canvas = el("canvas", { tabindex: "0", role: "application", "aria-roledescription": "heatmap",
    "aria-label": `Errors of ${tensor.tensor} by chunk and head: arrow keys move, Home and End along a head, w`
      + " goes to the worst cell" });
  const about = el("div", { class: "cell", "aria-live": "polite" });
  const key = el("div", { class: "legend" });
  const moved = el("div", { class: "steps" });
  const worst = () => worstCell(grid, values);

  function draw() {
    const count = Math.min(WINDOW, regions - from);
    drawCells(canvas, { grid, from, count, cursor, values, part: scale.part,
      marked: (cell) => mark(grid, values, largest, cell), width: canvas.parentElement?.clientWidth || 640 });
  }

  function move(cell) {
    cursor = Math.min(Math.max(cell, 0), cells - 1);
    const column = Math.floor(cursor / grid.heads);
    if (column < from || column >= from + WINDOW) from = Math.floor(column / WINDOW) * WINDOW;
    about.replaceChildren(...describe(grid, cursor, sides, shown[name], largest));
    steps();
    draw();
    reveal();
  }

  // Into view, where the canvas is wider than the page.
  function reveal() {
    const box = canvas.parentElement;
    if (!box || box.scrollWidth <= box.clientWidth) return;
    const x = canvas.cellWidth * (Math.floor(cursor / grid.heads) - from) + LEFT;
    if (x < box.scrollLeft + LEFT || x + canvas.cellWidth > box.scrollLeft + box.clientWidth) {
      box.scrollLeft = x - box.clientWidth / 2;
    }
  }

  function steps() {
    if (regions <= WINDOW) return;
    const last = Math.min(from + WINDOW, regions);
    const go = (by) => () => move((from + by) * grid.heads + (cursor % grid.heads));
    moved.replaceChildren(
      el("button", { type: "button", disabled: from === 0, onclick: go(-WINDOW) }, "Earlier"),
      el("span", {}, `chunks ${from + 1} to ${last} of ${regions}`),
      el("button", { type: "button", disabled: last === regions, onclick: go(WINDOW) }, "Later"));
  }

  function show(quantity) {
    name = quantity;
    values = valuesOf(grid, shown[name]);
    scale = logScale(values);
    key.replaceChildren(legendScale(scale, shown[name][0], markWords(largest)));
    move(worst());
  }

  canvas.addEventListener("keydown", (event) => {
    const { heads } = grid, head = cursor % heads;
    const to = { ArrowRight: cursor + heads, ArrowLeft: cursor - heads, ArrowDown: cursor + 1,
      ArrowUp: cursor - 1, Home: head, End: (regions - 1) * heads + head,
      PageDown: cursor + 10 * heads, PageUp: cursor - 10 * heads, Enter: cursor, " ": cursor, w: worst() }[event.key];
    if (to === undefined || event.ctrlKey || event.altKey || event.metaKey) return;
    event.preventDefault();
    const sideways = event.key.startsWith("Arrow") && Math.floor(to / heads) !== Math.floor(cursor / heads);
    const edge = event.key === "ArrowDown" || event.key === "ArrowUp" ? sideways : to < 0 || to >= cells;
    if (!edge) move(to);
  });
  canvas.addEventListener("click", (event) => {
    const place = canvas.getBoundingClientRect();
    const column = Math.floor((event.clientX - place.left - LEFT) / canvas.cellWidth);
    const head = Math.floor((event.clientY - place.top) / canvas.cellHeight);
    if (column >= 0 && column + from < regions && head >= 0 && head < grid.heads) {
      move((column + from) * grid.heads + head);
    }
  });

  const element = el("div", { class: "heatmap" },
    select("Colour", Object.entries(shown).map(([id, [title]]) => [id, title]), name, show),
    el("button", { type: "button", onclick: () => { move(worst()); canvas.focus(); } }, "Worst cell"),
    key, moved, el("div", { class: "scroll" }, canvas),
    grid.leftOut > 0 && el("p", { class: "notice" },
      `${grid.leftOut} chunks of smaller error are not kept: a grid holds 65,536 cells.`),
    about, folded("As a table", () => asTable(tensor, grid, values, shown[name][0])));
  show(name);
  new ResizeObserver(draw).observe(element);
  element.addEventListener("redraw", draw);
  return element;
}

// Where in the tensor a cell is furthest off: "[70, 2, 5] (T 70, Hv 2, V 5)".
export function worstPlace(grid, cell) {
  const at = Array.from(grid.worst.subarray(cell * grid.dimensions, (cell + 1) * grid.dimensions));
  if (!at.length || at[0] < 0) return "nowhere: no element is finite on both sides";
  const named = at.map((value, axis) => `${grid.axes[axis] ?? "?"} ${value}`);
  return `[${at.join(", ")}] (${named.join(", ")})`;
}

function describe(grid, cell, sides, [title, value], largest) {
  const [, , first, rows] = grid.regions[Math.floor(cell / grid.heads)];
  const lines = [
    [title, number(value(cell))],
    ["furthest off at", worstPlace(grid, cell)],
    [sides[0], number(grid.x[cell], 9)],
    [sides[1], number(grid.y[cell], 9)],
    ["largest error", largest === null ? number(grid.max_abs[cell])
      : `${number(grid.max_abs[cell])}, limit ${number(largest)}${grid.max_abs[cell] > largest ? ": over" : ""}`],
    ["RMS error", `${number(grid.rms[cell])} of values of RMS ${number(grid.rms_reference[cell])}`],
    grid.torch_rms && ["torch's RMS error", number(grid.torch_rms[cell])],
    grid.nonfinite?.[cell] && ["wrongly not finite", `${grid.nonfinite[cell]} elements`],
  ].filter(Boolean);
  return [
    el("p", { class: "where" }, el("b", {}, cellName(grid, cell)), ` · rows ${first} to ${first + rows - 1}`),
    el("dl", {}, lines.map(([name, text]) => [el("dt", {}, name), el("dd", {}, text)])),
  ];
}

function asTable(tensor, grid, values, title) {
  const rank = Float64Array.from(values, (_, cell) => ranked(grid, values, cell));
  const order = Array.from(values.keys()).sort((a, b) => (rank[a] === rank[b] ? a - b : rank[b] - rank[a]));
  const rows = order.slice(0, LISTED).map((cell) => [cellName(grid, cell), number(values[cell]),
    worstPlace(grid, cell), number(grid.x[cell], 6), number(grid.y[cell], 6), number(grid.max_abs[cell])]);
  const rest = order.length - rows.length;
  return [
    table(`${tensor.tensor}, the worst first`, ["cell", title, "furthest off at", "x", "y", "largest error"], rows,
      [1, 3, 4, 5]),
    rest > 0 && el("p", { class: "notice" }, `${rest} more cells are smaller; select them above.`),
  ].filter(Boolean);
}
