// Where held-out texts were routed, as a heat map that can also be read.
// Knows the manifest's evaluation. Asks nothing.

import { breakable, fill, make, scrolling, table } from "./dom.js";
import { count, percent, whole } from "./numbers.js";

const MOST_COLUMNS = 12;
const MOST_ROWS = 20;

const WORDS = "Rows: the domain of a text. Columns: where it was routed. Numbers are texts; the stronger the colour, the larger the share of the row.";

export function confusion(evaluation) {
  if (!evaluation) {
    return make("div", {}, title(), make("p", { class: "empty" }, "This release was not evaluated on held-out text."));
  }
  const { order, confusion: counts } = evaluation;
  if (order.length > MOST_COLUMNS) return make("div", {}, title(), searched(order, counts));
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

function searched(order, counts) {
  // Of many domains: the weakest first, or those that are searched for, beside what they are taken for.
  const rows = order.map((name, place) => mistaken(name, place, counts[place], order)).sort((one, other) => one.share - other.share);
  const search = make("input", { id: "confusion-search", type: "search", autocomplete: "off", placeholder: "all, or a part of a name" });
  const place = make("div", {});
  const paint = () => {
    const words = search.value.trim().toLowerCase();
    const found = rows.filter(({ name, others }) => [name, ...others.map(([other]) => other)].some((each) => each.toLowerCase().includes(words)));
    const shown = found.slice(0, MOST_ROWS).map(({ name, texts, share, others }) => [
      name,
      whole(texts),
      texts ? percent(share) : "–",
      others.slice(0, 3).map(([other, many]) => `${other} ${whole(many)}`).join(", ") || "–",
    ]);
    const made = table(["Domain", "Texts", "Right", "Most often taken for"], shown, { caption: "Domains, the weakest first, and what they are taken for", unseen: true });
    const told = found.length > shown.length ? `The ${whole(shown.length)} weakest of ${count(found.length, "domain")}.` : count(found.length, "domain");
    fill(place, make("p", { class: "quiet" }, told), scrolling("Where held-out texts were routed", made));
  };
  search.addEventListener("input", paint);
  paint();
  return [make("p", {}, make("label", { for: "confusion-search" }, "Domains shown "), search), place];
}

function mistaken(name, place, row, order) {
  const texts = row.reduce((sum, each) => sum + each, 0);
  const others = row.map((many, column) => [order[column], many]).filter(([, many], column) => many && column !== place);
  return { name, texts, share: texts ? row[place] / texts : 2, others: others.sort((one, other) => other[1] - one[1]) };
}
