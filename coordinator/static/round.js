// The round that runs, or the last one; and the rounds before it.
// Knows the round of /v1/standing, and the answer of /v1/rounds.

import { ask } from "./api.js";
import { facts, fill, find, make, scrolling, table } from "./dom.js";
import { backticks, meter } from "./folder.js";
import { OUTCOMES } from "./glance.js";
import { count, duration, stamp, whole, when } from "./numbers.js";

let shown = "";

export function showRound(round) {
  const now = JSON.stringify(round);
  if (now === shown) return;
  shown = now;
  find("rounds").hidden = !round || round.number < 2;
  if (!round) {
    fill(find("round"), make("p", { class: "empty" }, backticks("No round yet. Run one with `ridgeway coordinator round DIR`.")));
    return;
  }
  const open = find("round").querySelector("details")?.open ?? round.outcome === "running";
  fill(find("round"), summary(round), progress(round.progress, open), died(round));
}

function summary(round) {
  const kind = { released: "good", unchanged: "good", failed: "bad", "cut off": "bad", running: "busy" }[round.outcome];
  return make(
    "div",
    {},
    make("p", { class: "headline" }, `Round ${round.number} `, make("span", { class: `state ${kind}` }, OUTCOMES[round.outcome])),
    round.reason && round.outcome === "failed" ? make("p", { class: "notice" }, backticks(round.reason)) : null,
    facts([
      ["Began", when(round.began)],
      ["Took", round.seconds === null ? null : duration(round.seconds)],
      ["Mode", round.mode],
      ["Refused answers", round.refused ? whole(round.refused) : null],
      ["Away", round.absent.length ? count(round.absent.length, "holder") : null],
      ["Last heard of", round.ended || !round.progress ? null : when(round.progress.heard)],
    ]),
  );
}

function died(round) {
  if (round.outcome !== "cut off") return null;
  return make("p", { class: "notice" }, "The process of this round ended without closing it. Accepted data is in the ledger and is not requested again; run the round again.");
}

function progress(told, open) {
  if (!told) return make("p", { class: "empty" }, "No steps to show: this round ran in another process, or its file was removed.");
  const stages = told.stages.map(({ name, done, of }) => [name, meter(of ? done / of : 0), `${whole(done)} of ${whole(of)}`]);
  const drawn = stages.length
    ? scrolling("Progress of the holders", table(["Step", "", "Holders"], stages, { caption: "Progress of the holders", unseen: true, numbersFrom: 2, kind: "stages" }))
    : make("p", { class: "empty" }, "No holder has answered yet.");
  const lines = make("ol", { class: "lines" }, told.lines.map(([verb, ...words]) => make("li", {}, make("b", {}, verb), " ", words.join(" · "))));
  return [drawn, make("details", { open }, make("summary", {}, "Step by step"), told.lines.length ? lines : make("p", { class: "empty" }, "Nothing yet."))];
}

export function startRounds() {
  find("rounds").addEventListener("toggle", readRounds);
}

export async function readRounds() {
  if (!find("rounds").open) return;
  const box = find("rounds-box");
  try {
    const rounds = await ask("/v1/rounds");
    fill(box, rounds.length ? scrolling("Rounds", made(rounds)) : make("p", { class: "empty" }, "No round yet."));
  } catch (problem) {
    fill(box, make("p", { class: "notice" }, problem.message));
  }
}

function made(rounds) {
  const rows = rounds.map((round) => [
    String(round.number),
    stamp(round.began),
    round.seconds === null ? "–" : duration(round.seconds),
    round.mode,
    OUTCOMES[round.outcome],
    backticks(round.outcome === "failed" ? round.reason : ""),
    whole(round.refused),
    whole(round.absent.length),
  ]);
  return table(["Round", "Began", "Took", "Mode", "It", "Why", "Refused", "Away"], rows, { caption: `The latest ${count(rounds.length, "round")}`, numbersFrom: 6, kind: "wide" });
}
