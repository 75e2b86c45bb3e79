/* SPDX-License-Identifier: Apache-2.0 */
// Text and numbers as people read them.

// What does not print, or turns the direction of writing: shown as an escape, so that no name of a store looks
// like another one. Line ends stay: findings have several lines.
const HIDDEN = /[\u0000-\u0009\u000b-\u001f\u007f-\u009f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]|\p{Surrogate}/gu;

export function visible(text) {
  return String(text).replace(HIDDEN, (one) => "\\u" + one.charCodeAt(0).toString(16).padStart(4, "0"));
}

// At most so many characters, without those in the middle.
export function shortened(text, longest) {
  const found = visible(text), half = Math.floor((longest - 1) / 2);
  return found.length <= longest ? found : `${found.slice(0, half)}…${found.slice(-half)}`;
}

// As the CLI prints them: three significant digits. NaN and infinities come as text.
export function number(value, digits = 3) {
  if (value === null || value === undefined) return "-";
  const known = Number(value);
  if (Number.isNaN(known)) return "NaN";
  if (!Number.isFinite(known)) return known > 0 ? "Inf" : "-Inf";
  if (known === 0) return "0";
  const size = Math.abs(known);
  if (size >= 1e-4 && size < 10 ** Math.max(digits, 5)) return String(Number(known.toPrecision(digits)));
  return known.toExponential(digits - 1).replace(/\.?0+e/, "e").replace("e+", "e");
}

// "inf" and "nan" of JSON are no JavaScript numbers.
export function parsed(value) {
  if (typeof value === "number") return value;
  if (value === "inf") return Infinity;
  if (value === "-inf") return -Infinity;
  return NaN;
}

export function count(value, what) {
  return `${value.toLocaleString("en-GB")} ${what}${value === 1 ? "" : "s"}`;
}

// 3.1e-05 s -> "31 µs"
export function seconds(value) {
  for (const [unit, size] of [["s", 1], ["ms", 1e-3], ["µs", 1e-6]]) {
    if (value >= size) return `${number(value / size, 4)} ${unit}`;
  }
  return `${number(value / 1e-9, 4)} ns`;
}
