// Releases over time: a table, accuracy by domain with its doubt, and what changed between two of them.
// Knows the answers of /v1/releases and /v1/releases/BEFORE/AFTER.

import { showAccuracy, startAccuracy } from "./accuracy.js";
import { ask } from "./api.js";
import { facts, fill, find, make, scrolling, table } from "./dom.js";
import { percent, points, short, stamp, whole } from "./numbers.js";
import { arrange, named } from "./palette.js";

const FEW = 10;
let releases = [];

const padded = (number) => String(number).padStart(4, "0");

export function startReleases() {
  startAccuracy();
  for (const name of ["compare-before", "compare-after"]) find(name).addEventListener("change", compare);
  find("compare").addEventListener("submit", (event) => event.preventDefault());
}

export async function readReleases() {
  const place = find("releases");
  try {
    releases = await ask("/v1/releases");
  } catch (problem) {
    fill(place, make("p", { class: "notice" }, problem.message));
    return;
  }
  arrange([...new Set(releases.toReversed().flatMap((each) => each.domains))]);
  fill(place, releases.length ? listed() : make("p", { class: "empty" }, "No release yet. The first successful round publishes one."));
  showAccuracy(releases);
  find("compare").hidden = releases.length < 2;
  if (releases.length >= 2) choices();
}

function listed() {
  const rows = releases.toReversed().map((each) => [
    padded(each.number),
    make("code", { title: each.release }, short(each.release)),
    stamp(each.time),
    each.cause,
    each.mode,
    each.settings["λ"] ? `λ ${each.settings["λ"]}, ${each.settings.selector}` : each.whole ? "–" : "its manifest is missing or differs from the ledger",
    whole(each.domains.length),
    whole(each.members),
    accuracy(each.mean),
  ]);
  const heads = ["Release", "Id", "Made", "By", "Mode", "Chosen", "Domains", "Members", "Accuracy, 95 % interval"];
  const first = scrolling("Releases", table(heads, rows.slice(0, FEW), { caption: "Releases, the newest first", unseen: true, numbersFrom: 6, kind: "wide" }));
  if (rows.length <= FEW) return first;
  const older = scrolling("Older releases", table(heads, rows.slice(FEW), { caption: "Older releases", unseen: true, numbersFrom: 6, kind: "wide" }));
  return [first, make("details", {}, make("summary", {}, `${whole(rows.length - FEW)} older`), older)];
}

export function accuracy(mean) {
  return mean ? `${percent(mean.share)}, ${percent(mean.low)} to ${percent(mean.high)}` : "not evaluated";
}

function choices() {
  const numbers = releases.map((each) => each.number);
  const [before, after] = [find("compare-before"), find("compare-after")];
  const follow = after.value === "" || after.selectedIndex === 0; // whoever has chosen another one keeps it
  const kept = [before.value, after.value];
  for (const box of [before, after]) box.replaceChildren(...numbers.toReversed().map((number) => make("option", { value: number }, padded(number))));
  if (follow) [before.value, after.value] = numbers.slice(-2);
  else [before.value, after.value] = kept;
  compare();
}

async function compare() {
  const [before, after] = [find("compare-before").value, find("compare-after").value];
  const place = find("changes");
  if (before === after) {
    fill(place, make("p", { class: "empty" }, "Choose two different releases."));
    return;
  }
  try {
    fill(place, changes(await ask(`/v1/releases/${before}/${after}`)));
  } catch (problem) {
    fill(place, make("p", { class: "notice" }, problem.message));
  }
}

function changes(found) {
  const names = (list) => (list.length ? list.join(", ") : null);
  const pairs = [
    ["Domains added", names(found.domains.added)],
    ["Domains lost", names(found.domains.lost)],
    ["Members joined", names(found.members.joined)],
    ["Members left", names(found.members.left)],
    ["Other sums of", names(found.members.changed)],
    ...found.settings.map(({ name, before, after }) => [name.charAt(0).toUpperCase() + name.slice(1), `${before ?? "not known"} → ${after ?? "not known"}`]),
  ];
  const same = pairs.every(([, value]) => value === null);
  return make("div", { class: "card" }, make("div", {}, same ? make("p", { class: "empty" }, "The same domains, members, sums and settings.") : facts(pairs)), compared(found.accuracies));
}

function compared(rows) {
  if (!rows.length) return make("p", { class: "empty" }, "Neither was evaluated on held-out text.");
  const share = (each) => (each ? percent(each.share) : "–");
  const cells = rows.map(({ domain, before, after, change, doubt }) => [
    named(domain),
    share(before),
    share(after),
    change === null ? "–" : make("span", { class: Math.abs(change) > doubt ? "strong" : null }, `${points(change)} ± ${points(doubt, false)}`),
    after ? whole(after.texts) : "–",
  ]);
  const made = table(["Domain", "Before", "After", "Change, points", "Texts"], cells, { caption: "Accuracy on held-out text, the greatest loss first. ±: the change could be chance within this, in 95 of 100 cases, as if the texts were different ones." });
  return scrolling("Accuracy by domain", made);
}
