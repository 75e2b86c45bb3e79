/* SPDX-License-Identifier: Apache-2.0 */
// Who captured and who replayed, side by side, with what differs between them first.
import { index } from "./data.js";
import { el, folded, part, table } from "./dom.js";

export function provenance() {
  const { columns, rows } = index.provenance;
  if (!columns.length) return null;
  return part("Where this comes from", () => {
    const headers = ["", ...columns.map((column) => `${column.title}: ${column.of}`)];
    const cells = (some) => some.map((row) => [row.differs ? el("span", { class: "differs" }, `≠ ${row.name}`) : row.name,
      ...row.values.map((value) => value ?? "-")]);
    const [differs, alike] = [rows.filter((row) => row.differs), rows.filter((row) => !row.differs)];
    return [
      differs.length ? table("What differs", headers, cells(differs))
        : el("p", {}, columns.length > 1 ? "Nothing that kernels depend on differs." : "One side only is known."),
      alike.length > 0 && folded(columns.length > 1 ? "What is the same, and what always differs" : "What is known of it",
        () => table("The rest", headers, cells(alike)), columns.length === 1),
    ].filter(Boolean);
  }, "h2");
}
