/* SPDX-License-Identifier: Apache-2.0 */
// Puts the page together.
import { anchored, anchorOf } from "./anchor.js";
import { index, total } from "./data.js";
import { el } from "./dom.js";
import { filter } from "./filter.js";
import { overRuns } from "./history.js";
import { list } from "./list.js";
import { overSteps } from "./growth.js";
import { overview } from "./overview.js";
import { paper } from "./printing.js";
import { provenance } from "./provenance.js";
import { capturedRanges } from "./ranges.js";
import { record } from "./record.js";
import { count } from "./text.js";

const detail = el("div", { class: "detail", id: "detail" });
const said = el("p", { class: "hint", role: "status" });
const records = list((place) => open(place));
const controls = filter((places) => {
  records.show(places);
  said.textContent = places.length === total ? count(total, "record") : `${places.length} of ${count(total, "record")}`;
});
let wanted = null;

async function open(place, look = true) {
  wanted = place;
  let made;
  try {
    made = await record(place, open);
  } catch (error) {
    made = el("p", { class: "notice" }, `This record cannot be shown: ${error.message}`);
  }
  if (wanted !== place) return; // another one was asked for meanwhile
  detail.replaceChildren(made);
  records.mark(place);
  if (!look) return;
  history.replaceState(null, "", anchorOf(place));
  const narrow = matchMedia("(max-width: 60rem)").matches;
  if (narrow || detail.getBoundingClientRect().top < 0) detail.scrollIntoView();
  else detail.scrollTop = 0;
}

// What the address names, or the first record. A link to a record that is not here says so.
function openNamed(first) {
  const place = anchored();
  if (place === undefined) {
    wanted = null;
    detail.replaceChildren(el("p", { class: "notice", role: "alert" },
      `This report has no record ${decoded(location.hash.slice(1))}.`));
  } else if (place !== null) open(place);
  else if (first && total) open(0, false);
}

function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

function redrawn() {
  for (const one of document.querySelectorAll(".heatmap")) one.dispatchEvent(new Event("redraw"));
}

document.getElementById("page").replaceChildren(...[
  overview(),
  overRuns(),
  el("div", { class: "columns" },
    el("section", { id: "records", class: "records", "aria-label": "Records" }, el("h2", {}, "Records"),
      controls.element, said, records.element),
    detail),
  overSteps(open),
  capturedRanges(),
  provenance(),
  el("footer", {}, `gdnbench ${index.version}`),
].filter(Boolean));
controls.apply();
openNamed(true);
addEventListener("hashchange", () => openNamed(false));
performance.mark("interactive");
for (const query of ["(prefers-color-scheme: dark)", "print"]) matchMedia(query).addEventListener("change", redrawn);
addEventListener("beforeprint", redrawn);
const whenIdle = window.requestIdleCallback ?? ((make) => setTimeout(make, 200));
whenIdle(async () => {
  document.querySelector(".columns").after(await paper(open));
  document.documentElement.dataset.ready = "true"; // printing and tests wait for it
});
