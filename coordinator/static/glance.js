// The federation at a glance, and what stands in the way of the next round.
// Knows the answer of /v1/standing. Asks nothing.

import { facts, fill, find, make } from "./dom.js";
import { backticks } from "./folder.js";
import { count, duration, short, whole, when } from "./numbers.js";

export const OUTCOMES = {
  released: "made a release",
  unchanged: "found nothing changed",
  failed: "failed",
  "cut off": "was interrupted",
  running: "is running",
};

export function showGlance(now) {
  const active = now.members.filter((member) => !member.retired);
  const online = active.filter((member) => member.online).length;
  fill(
    find("glance"),
    facts([
      ["Coordinator", make("span", { class: now.up ? "state good" : "state bad" }, now.up ? "up" : "down")],
      ["Address", now.listen],
      ["Key", make("code", { title: now.key }, short(now.key))],
      ["Members", active.length ? `${count(active.length, "holder")}${now.up ? `, ${whole(online)} online` : ""}` : "none admitted yet"],
      ["Mode", `${now.mode}: ${now.sentence}`],
      ["A round costs", now.privacy ? `ε ${now.privacy.epsilon} per document at δ ${now.privacy.delta}; only each holder knows its remaining budget` : null],
      ["Newest release", now.release ? String(now.release).padStart(4, "0") : "none yet"],
      ["Last round", lastRound(now.round)],
      ...Object.entries(now.certificates).map(([name, each]) => [`Certificate of the ${name}`, certificate(each)]),
      ["Ledger", count(now.entries, "entry", "entries")],
    ]),
  );
}

function lastRound(round) {
  if (!round) return "none yet";
  const took = round.seconds === null ? "" : ` after ${duration(round.seconds)}`;
  return `${round.number}, ${OUTCOMES[round.outcome]}${took}; began ${when(round.began)}`;
}

function certificate({ ends, days }) {
  const words = days < 0 ? `expired on ${ends.slice(0, 10)}` : `to ${ends.slice(0, 10)}, ${count(Math.floor(days), "day")} left`;
  return make("span", { class: days < 0 ? "state bad" : null }, words);
}

let shown = "";

export function showObstacles(found) {
  const now = JSON.stringify(found);
  if (now === shown) return; // what somebody is reading, or has opened, stays as it is
  shown = now;
  if (!found.length) {
    fill(find("obstacles"), make("p", {}, make("span", { class: "state good" }, "No known problems.")), quiet());
    return;
  }
  fill(find("obstacles"), make("ul", { class: "obstacles" }, found.map(obstacle)), quiet());
}

const quiet = () => make("p", { class: "quiet" }, "Found without asking the holders; a round may find more.");

function obstacle({ stops, words, remedy, names }) {
  return make(
    "li",
    { class: stops ? "stops" : null },
    make("p", {}, make("strong", {}, stops ? "Stops it: " : "Note: "), backticks(words)),
    listed(names),
    remedy ? make("p", { class: "quiet" }, backticks(remedy)) : null,
  );
}

const FEW = 6;

function listed(names) {
  if (!names.length) return null;
  if (names.length <= FEW) return make("p", { class: "names" }, names.join(", "));
  return make("details", { class: "inline" }, make("summary", {}, `${whole(names.length)} of them`), make("p", {}, names.join(", ")));
}
