// What a second release decides on the same prompt, beside the first, and where the two differ.
// Knows /v1/compare. A late answer to an earlier prompt is dropped.

import { ask } from "./api.js";
import { fill, find, make, table } from "./dom.js";
import { percent, points, short } from "./numbers.js";
import { named } from "./palette.js";

const MOST = 6;
let asked = 0;

export async function showCompared(reply, prompt) {
  const place = find("compared");
  const own = ++asked;
  place.hidden = true;
  if (!reply) return;
  try {
    const other = await ask("/v1/compare", { prompt });
    if (own === asked) fill(place, make("h3", {}, "Beside release ", make("code", { title: other.release }, short(other.release))), verdict(reply, other), changes(reply, other));
  } catch (problem) {
    if (own === asked) fill(place, make("p", { class: "notice" }, `The second release could not be asked. ${problem.message}`));
  }
}

function verdict(reply, other) {
  const said = (each) => `${each.domain}, ${percent(each.confidence)}`;
  const words = reply.domain === other.domain ? `Both say ${reply.domain}` : "They differ";
  return make("p", {}, make("strong", {}, words), `: here ${said(reply)}; there ${said(other)}.`);
}

function changes(reply, other) {
  const domains = [...new Set([...Object.keys(reply.scores), ...Object.keys(other.scores)])];
  const gap = (name) => (other.scores[name] ?? 0) - (reply.scores[name] ?? 0);
  const most = domains.sort((one, next) => Math.abs(gap(next)) - Math.abs(gap(one))).slice(0, MOST);
  const cell = (scores, name) => (name in scores ? percent(scores[name]) : "not known");
  const rows = most.map((name) => [named(name), cell(reply.scores, name), cell(other.scores, name), points(gap(name))]);
  return table(["Domain", "Here", "There", "Points"], rows, { caption: "Probabilities that differ most between the two releases", unseen: true });
}
