/* SPDX-License-Identifier: Apache-2.0 */
// How many units in the last place elements are off: a bar for each power of two.
import { svg } from "./dom.js";
import { above, below, horizontal, linear } from "./axis.js";

// Bucket 0 holds distance 0, k distances from 2^(k-1) to 2^k - 1.
export function bucket(number) {
  if (number < 2) return String(number);
  if (number > 10) return `2^${number - 1}+`;
  return `${2 ** (number - 1)}-${2 ** number - 1}`;
}

export function histogram(tensor) {
  const counts = tensor.ulp_histogram ?? [];
  const all = counts.reduce((sum, count) => sum + count, 0);
  if (!all) return null;
  const last = counts.findLastIndex((count) => count > 0);
  const shown = counts.slice(0, last + 1);
  const share = (count) => `${(100 * count / all).toPrecision(3)} %`;
  const draw = (width) => {
    const left = 52, right = width - 12, top = 24, bottom = 150;
    const most = Math.max(...shown);
    // Counts span as many decades as there are elements: by powers of ten, one element still seen.
    const y = linear(0, Math.log10(most) + 0.3 || 1, bottom, top);
    const wide = (right - left) / shown.length;
    const every = Math.ceil(58 / wide);
    const powers = Array.from({ length: Math.floor(Math.log10(most)) + 1 }, (_, power) => power);
    const step = Math.ceil(powers.length / 5);
    return [bottom + 40, [
      powers.filter((power) => power % step === 0)
        .map((power) => horizontal(y(power + 0.3), 10 ** power, left, right)),
      shown.map((count, at) => count > 0 && svg("rect", { class: "bar", x: left + at * wide + 1, width: Math.max(wide - 2, 1),
        y: y(Math.log10(count) + 0.3), height: bottom - y(Math.log10(count) + 0.3) },
      svg("title", {}, `${bucket(at)} ULP: ${count} elements, ${share(count)}`))),
      shown.map((_, at) => at % every === 0 && below(left + (at + 0.5) * wide, bottom, bucket(at))),
      below((left + right) / 2, bottom + 18, "units in the last place"), above(left, top, "elements"),
    ]];
  };
  const rows = () => shown.map((count, at) => [bucket(at), count.toLocaleString("en-GB"), share(count)]);
  return { label: `${tensor.tensor} (${tensor.side}): elements by how far they are off`, draw,
    headers: ["ULP", "elements", "share"], rows };
}
