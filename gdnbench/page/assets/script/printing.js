/* SPDX-License-Identifier: Apache-2.0 */
// On paper the list is a table, and every failure is there with its pictures, up to a number that is said.
import { columns, index, string, total } from "./data.js";
import { el, table } from "./dom.js";
import { ofLimit } from "./verdict.js";
import { record } from "./record.js";

const FAILURES = 20; // printed with their pictures; the table has all
const ROWS = 500; // of the table
const PASSING = 40; // of them, if there is room

// Made when the browser is idle, so that it is there when printing begins, which waits for nothing.
export async function paper(open) {
  const failures = Math.min(index.failures, FAILURES);
  const articles = [];
  for (let place = 0; place < failures; place++) {
    try {
      articles.push(await record(place, open));
    } catch (error) {
      articles.push(el("p", { class: "notice" }, `This record cannot be shown: ${error.message}`));
    }
    await new Promise((resolve) => setTimeout(resolve)); // a click does not wait for all of them
  }
  const listed = Math.min(total, ROWS, index.failures + PASSING);
  const rows = Array.from({ length: listed }, (_, place) => [`#${columns.number[place]} ${string("op", place)}`,
    `${string("layer", place)} step ${columns.step[place]}`, string("outcome", place), ofLimit(columns.ratio[place])]);
  const left = index.failures - failures;
  return el("section", { class: "paper" },
    table(total > listed ? `Records, the first ${listed} of ${total}` : "Records", ["record", "where", "verdict", "largest error"], rows),
    articles, left > 0 && el("p", { class: "notice" }, `${left} more failures are not printed; the file shows them on a screen.`));
}
