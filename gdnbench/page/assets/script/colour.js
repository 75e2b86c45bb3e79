/* SPDX-License-Identifier: Apache-2.0 */
// Colours of errors: dark blue to yellow, lighter with every step, which no kind of colour blindness confuses.
// tests/page/test_colours.py holds these stops to that. What a colour says stands beside it as a number or mark.

const STOPS = ["#0a1f5c", "#1d3a78", "#3d5480", "#5f6d83", "#808681", "#a39f77", "#c8b963", "#ecd547", "#fff176"];
const RGB = STOPS.map((stop) => [1, 3, 5].map((at) => parseInt(stop.slice(at, at + 2), 16)));

export const NO_ERROR = [236, 236, 236];
export const WRONG = [184, 74, 0]; // not finite on one side only

// `part` of the scale, 0 to 1, as [red, green, blue].
export function shade(part) {
  const at = Math.min(Math.max(part, 0), 1) * (RGB.length - 1);
  const below = Math.min(Math.floor(at), RGB.length - 2);
  return RGB[below].map((low, channel) => Math.round(low + (RGB[below + 1][channel] - low) * (at - below)));
}

export function css(rgb) {
  return `rgb(${rgb.join(" ")})`;
}

// Black or white, whichever is read on `rgb`.
export function on(rgb) {
  const [r, g, b] = rgb.map((channel) => {
    const part = channel / 255;
    return part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
  });
  return 0.2126 * r + 0.7152 * g + 0.0722 * b > 0.179 ? "#000" : "#fff";
}

// Decades of what is finite and above zero: errors span many. `part(value)` is null where the value has none.
export function logScale(values) {
  let low = Infinity, high = 0;
  for (const value of values) {
    if (value > 0 && value < Infinity) { low = Math.min(low, value); high = Math.max(high, value); }
  }
  if (!high) return { low: 0, high: 0, part: (value) => (value === 0 ? 0 : value > 0 ? 1 : null) };
  // At least a decade, so that small differences look small; one cell of rounding must not take all colours of the others.
  low = Math.min(Math.max(low, high * 1e-6), high / 10);
  const span = Math.log(high / low);
  return { low, high, part: (value) => {
    if (value === 0) return 0;
    if (value === Infinity) return 1; // over something that is exact
    return value > 0 ? Math.max(Math.log(value / low) / span, 0) : null;
  } };
}
