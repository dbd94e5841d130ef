// Where held-out texts were routed, as a heat map that can also be read.
// Knows the manifest's evaluation. Asks nothing.

import { breakable, make, scrolling } from "./dom.js";
import { percent, whole } from "./numbers.js";

const WORDS = "Rows: the domain of a text. Columns: where it was routed. Numbers are texts; the stronger the colour, the larger the share of the row.";

export function confusion(evaluation) {
  if (!evaluation) {
    return make("div", {}, title(), make("p", { class: "empty" }, "This release was not evaluated on held-out text."));
  }
  const { order, confusion: counts } = evaluation;
  const made = make(
    "table",
    { class: "heat" },
    make("caption", { class: "unseen" }, "Rows: the domain of a text. Columns: where it was routed."),
    make("thead", {}, heads(order)),
    make("tbody", {}, counts.map((row, place) => line(row, place, order))),
  );
  return make("div", {}, title(), make("p", { class: "quiet" }, WORDS), scrolling("Where held-out texts were routed", made));
}

const title = () => make("h3", {}, "Where held-out texts were routed");

function heads(order) {
  const names = order.map((name) => make("th", { scope: "col" }, breakable(name)));
  return make("tr", {}, make("td", {}), names, make("th", { scope: "col" }, "right"));
}

function line(row, place, order) {
  const all = row.reduce((sum, each) => sum + each, 0);
  const cells = row.map((each, column) => cell(each, all ? each / all : 0, column === place, order[column]));
  const right = make("td", { class: "number" }, all ? percent(row[place] / all) : "–");
  return make("tr", {}, make("th", { scope: "row" }, order[place]), cells, right);
}

function cell(value, share, right, column) {
  const classes = ["count", right ? "right" : "", value ? "" : "none"].filter(Boolean).join(" ");
  const made = make("td", { class: classes, title: `${percent(share)} to ${column}` }, whole(value));
  made.style.setProperty("--share", share.toFixed(3));
  return made;
}
