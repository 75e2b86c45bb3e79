/* SPDX-License-Identifier: Apache-2.0 */
// Anchors of records: `#OPERATION/LAYER/STEP`, and where a run has several such records `/KEY`, the captured record's
// key. On a page of several runs `@RUN` follows, the run's path. None of it depends on the order of records, so that a
// link opens the same record in the report of a later run.
import { columns, index, string, total } from "./data.js";
import { visible } from "./text.js";

let anchors = null; // made when first needed: {places: by anchor, shown: by place}

const encoded = (text) => encodeURIComponent(visible(text));

function callOf(place) {
  return `${encoded(string("op", place))}/${encoded(string("layer", place))}/${columns.step[place]}`;
}

// Shorter names open the first such record of the page, in the order of its list: the one that is furthest off.
function anchorsMade() {
  const counts = new Map(), several = index.runs.length > 1;
  const calls = Array.from({ length: total }, (_, place) => {
    const call = callOf(place), inRun = `${columns.run[place]} ${call}`;
    counts.set(inRun, (counts.get(inRun) ?? 0) + 1);
    return [call, inRun];
  });
  const names = calls.map(([call, inRun], place) => {
    const own = counts.get(inRun) > 1 ? `${call}/${encoded(string("key", place))}` : call;
    return [call, own, ...(several ? [`${own}@${encoded(index.runs[columns.run[place]].path)}`] : [])];
  });
  const places = new Map();
  names.forEach((some, place) => some.forEach((name) => {
    if (!places.has(name)) places.set(name, place);
  }));
  return { places, shown: names.map((some) => some.at(-1)) };
}

export function anchorOf(place) {
  anchors ??= anchorsMade();
  return `#${anchors.shown[place]}`;
}

// The place of the record that the address names: null if it names none, undefined if that record is not here.
export function anchored() {
  const name = location.hash.slice(1);
  if (!name.includes("/")) return null; // a part of the page
  anchors ??= anchorsMade();
  // A page of one run opens what a page of several runs names.
  return anchors.places.get(index.runs.length > 1 ? name : name.split("@")[0]);
}
