/* SPDX-License-Identifier: Apache-2.0 */
// Ranges of what was captured: gates, keys and whatever else the operation says matters.
import { table } from "./dom.js";
import { number } from "./text.js";

export function facts(found) {
  const list = Array.isArray(found) ? found
    : Object.entries(found ?? {}).map(([name, values]) => ({ name, ...(isValues(values) ? { values } : values) }));
  const rows = list.map((fact) => [fact.label ?? fact.name,
    Object.entries(fact.values ?? {}).map(([name, value]) => `${name} ${shown(value)}`).join(", "), fact.unit ?? ""]);
  if (!rows.length) return null;
  const units = rows.some((row) => row[2]);
  return table("Ranges of the captured inputs", ["input", "range", ...(units ? ["unit"] : [])],
    units ? rows : rows.map((row) => row.slice(0, 2)));
}

function isValues(values) {
  return values && !("values" in values);
}

function shown(value) {
  if (Array.isArray(value)) return value.map((one) => shown(one)).join(" to ");
  return typeof value === "string" && !/^-?(inf|nan)$/.test(value) ? value : number(value, 4);
}
