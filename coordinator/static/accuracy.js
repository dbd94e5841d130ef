// Accuracy by domain over the releases, with error bars from the number of held-out texts.
// Knows the answer of /v1/releases. Asks nothing.

import { frame, mark, nothing, picture, scales } from "./chart.js";
import { draw, fill, find, make, table } from "./dom.js";
import { count, percent, whole } from "./numbers.js";
import { legend, marks } from "./palette.js";

const MOST_DOMAINS = 8;
const MOST_RELEASES = 40;
let chart;
let releases = [];

export function startAccuracy() {
  chart = frame(find("accuracy"), "Accuracy on held-out text, by release");
  chart.rows = accuracyTable;
  find("accuracy-search").addEventListener("input", paint);
  new ResizeObserver(() => paint()).observe(chart.drawing);
}

export function showAccuracy(latest) {
  releases = latest.slice(-MOST_RELEASES);
  find("accuracy-part").hidden = !releases.some((each) => each.mean);
  paint();
}

function wanted() {
  // The domains that are searched for; of too many, those that the newest release does worst on.
  const words = find("accuracy-search").value.trim().toLowerCase();
  const names = [...new Set(releases.flatMap((each) => Object.keys(each.accuracies)))].filter((name) => name.toLowerCase().includes(words));
  const newest = (name) => releases.findLast((each) => each.accuracies[name])?.accuracies[name].share ?? 1;
  return { found: names.length, names: names.sort((one, other) => newest(one) - newest(other) || one.localeCompare(other)).slice(0, MOST_DOMAINS) };
}

function paint() {
  if (!chart || find("accuracy-part").hidden) return;
  const { found, names } = wanted();
  const points = names.flatMap((name) => releases.map((each) => each.accuracies[name])).filter(Boolean);
  const least = Math.max(0, Math.floor(Math.min(...points.map((each) => each.low), 1) * 10) / 10 - (points.length ? 0 : 1));
  const scale = scales(chart.drawing.clientWidth || 320, releases.length, 1, least);
  const drawn = points.length ? names.map((name, place) => series(scale, name, place, names.length)) : nothing(scale, "No domain has this name");
  fill(chart.drawing, picture(scale, said(names), numbers(scale), (value) => percent(value, 0), drawn));
  const words = found > names.length ? `The ${whole(names.length)} of ${count(found, "domain")} with the lowest accuracy in the newest release. ` : "";
  fill(chart.below, make("p", { class: "quiet" }, `${words}Bars: 95 % confidence intervals.`), legend(names));
}

const said = (names) => {
  const newest = releases.at(-1);
  const parts = names.filter((name) => newest?.accuracies[name]).map((name) => `${name} ${percent(newest.accuracies[name].share)}`);
  return `Accuracy by domain over ${count(releases.length, "release")}. Newest: ${parts.join(", ") || "not evaluated"}.`;
};

function numbers(scale) {
  const every = Math.ceil((releases.length * 44) / (scale.right - scale.left));
  return releases.map((each, place) => (place % every ? null : mark(scale, scale.x(place) + scale.band / 2, String(each.number).padStart(4, "0"))));
}

function series(scale, name, place, many) {
  // Beside each other within a release, so that bars do not hide each other.
  const aside = many > 1 ? ((place - (many - 1) / 2) / many) * Math.min(scale.band * 0.6, 60) : 0;
  const x = (step) => scale.x(step) + scale.band / 2 + aside;
  let path = "";
  let before = false;
  const signs = releases.map((each, step) => {
    const one = each.accuracies[name];
    if (one) path += `${before ? "L" : "M"}${x(step).toFixed(1)} ${scale.y(one.share).toFixed(1)}`;
    before = Boolean(one);
    return one ? point(scale, x(step), one, `${name}, release ${String(each.number).padStart(4, "0")}`) : null;
  });
  return draw("g", { class: `series ${marks(name)}` }, draw("path", { class: "path", d: path }), signs);
}

function point(scale, x, { share, low, high, texts }, words) {
  const [top, bottom] = [scale.y(high), scale.y(low)];
  return draw(
    "g",
    {},
    draw("title", {}, `${words}: ${percent(share)} of ${count(texts, "text")}, ${percent(low)} to ${percent(high)}`),
    draw("path", { class: "doubt", d: `M${x - 4} ${top}h8M${x} ${top}V${bottom}M${x - 4} ${bottom}h8` }),
    draw("circle", { cx: x, cy: scale.y(share), r: 3.5 }),
  );
}

function accuracyTable() {
  const names = [...new Set(releases.flatMap((each) => Object.keys(each.accuracies)))].sort();
  const cell = (one) => (one ? `${percent(one.share)} (${percent(one.low, 0)} to ${percent(one.high, 0)})` : "–");
  const rows = names.map((name) => [name, ...releases.toReversed().map((each) => cell(each.accuracies[name]))]);
  return table(["Domain", ...releases.toReversed().map((each) => String(each.number).padStart(4, "0"))], rows, { caption: "Accuracy, and where it truly lies in 95 of 100 cases; the newest release first" });
}
