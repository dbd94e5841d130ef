// Where held-out texts were routed, as a heat map that can also be read.
// A cell opens what its counts say; the release holds no text, so examples come from the reader's own batch alone.
// Knows the manifest's evaluation. Asks nothing.

import { examplesOf } from "./batch.js";
import { breakable, button, facts, fill, make, scrolling, searched, table } from "./dom.js";
import { count, percent, whole } from "./numbers.js";

const MOST_COLUMNS = 12;
const MOST_ROWS = 20;
const MOST_NAMED = 5;

const WORDS = "Rows: the domain of a text. Columns: where it was routed. Numbers are texts; the stronger the colour, the larger the share of the row. A number opens what is behind it.";

export function confusion(evaluation) {
  if (!evaluation) {
    return make("div", {}, title(), make("p", { class: "empty" }, "This release was not evaluated on held-out text."));
  }
  const { order, confusion: counts } = evaluation;
  const detail = make("div", { class: "panel", role: "status", hidden: true });
  const open = (own, routed) => {
    fill(detail, opened(order, counts, own, routed));
    detail.scrollIntoView({ block: "nearest" });
  };
  if (order.length > MOST_COLUMNS) return make("div", {}, title(), pairs(order, counts, open), detail);
  const made = make(
    "table",
    { class: "heat" },
    make("caption", { class: "unseen" }, "Rows: the domain of a text. Columns: where it was routed."),
    make("thead", {}, heads(order)),
    make("tbody", {}, counts.map((row, place) => line(row, place, order, open))),
  );
  return make("div", {}, title(), make("p", { class: "quiet" }, WORDS), scrolling("Where held-out texts were routed", made), detail);
}

const title = () => make("h3", {}, "Where held-out texts were routed");

function heads(order) {
  const names = order.map((name) => make("th", { scope: "col" }, breakable(name)));
  return make("tr", {}, make("td", {}), names, make("th", { scope: "col" }, "right"));
}

function line(row, place, order, open) {
  const all = row.reduce((sum, each) => sum + each, 0);
  const cells = row.map((each, column) => cell(each, all ? each / all : 0, order, place, column, open));
  const right = make("td", { class: "number" }, all ? percent(row[place] / all) : "–");
  return make("tr", {}, make("th", { scope: "row" }, order[place]), cells, right);
}

function cell(value, share, order, row, column, open) {
  const classes = ["count", row === column ? "right" : "", value ? "" : "none"].filter(Boolean).join(" ");
  const name = `${whole(value)} texts of ${order[row]} routed to ${order[column]}, ${percent(share)}`;
  const made = make("td", { class: classes }, button(whole(value), () => open(row, column), { class: "cell", "aria-label": name, title: name }));
  made.style.setProperty("--share", share.toFixed(3));
  return made;
}

const sum = (counts) => counts.reduce((total, each) => total + each, 0);

function opened(order, counts, own, routed) {
  const [row, column] = [counts[own], counts.map((each) => each[routed])];
  const share = (part, all) => `${whole(part)} of ${whole(all)}, ${all ? percent(part / all) : "–"}`;
  const others = (values, apart) =>
    values.map((many, place) => [order[place], many]).filter(([, many], place) => many && place !== apart).sort((one, other) => other[1] - one[1]).slice(0, MOST_NAMED).map(([name, many]) => `${name} ${whole(many)}`).join(", ") || "none";
  const mine = examplesOf(order[own], order[routed]);
  const back = own === routed ? [] : [["The other way round", share(counts[routed][own], sum(counts[routed]))]];
  return [
    make("h4", {}, own === routed ? `${order[own]}, routed right` : `${order[own]}, routed to ${order[routed]}`),
    facts([
      [`Of the texts of ${order[own]}`, share(row[routed], sum(row))],
      [`Of all that goes to ${order[routed]}`, share(row[routed], sum(column))],
      ...back,
      [`Texts of ${order[own]} also go to`, others(row, own)],
      [`To ${order[routed]} also go texts of`, others(column, routed)],
    ]),
    make("p", { class: "quiet" }, mine.length ? `Of your batch, ${count(mine.length, "text")}:` : "The release holds counts and no text. A batch with true domains shows examples of its own here."),
    mine.length ? make("ul", { class: "samples" }, mine.slice(0, MOST_NAMED).map((text) => make("li", { class: "said" }, text.slice(0, 200)))) : null,
  ];
}

function pairs(order, counts, open) {
  // Of many domains: which are taken for which, the most frequent first, or those that are searched for.
  const found = counts.flatMap((row, own) => row.map((many, routed) => ({ own, routed, many, share: many / sum(row) })).filter(({ many, routed }) => many && routed !== own));
  found.sort((one, other) => other.many - one.many || other.share - one.share);
  const row = ({ own, routed, many, share }) => [order[own], order[routed], whole(many), percent(share), button("Open", () => open(own, routed), { "aria-label": `Open ${order[own]} routed to ${order[routed]}` })];
  const painted = (some) => scrolling("Where held-out texts were routed", table(["Domain", "Routed to", "Texts", "Of the domain", "More"], some.map(row), { caption: "Confusions, the most frequent first", kind: "pairs", unseen: true, numbersFrom: 2 }));
  return searched("confusion-search", "Confusions of ", found, MOST_ROWS, ({ own, routed }) => [order[own], order[routed]], painted);
}
