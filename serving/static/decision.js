// The decision: the domain, how sure the router is, and who comes next.
// Knows replies of /v1/route. Asks nothing.

import { announce, facts, fill, find, make, table } from "./dom.js";
import { count, percent, short } from "./numbers.js";
import { arrange, bar, named } from "./palette.js";

const MOST = 10;
const DECIDERS = { table: "the table", sentences: "the sentence encoder" };

export function showDecision(reply, hasCascade) {
  const [verdict, shares] = [find("verdict"), find("scores")];
  if (!reply) {
    fill(verdict, make("p", { class: "empty" }, "Nothing is routed yet."));
    fill(shares);
    return;
  }
  arrange(reply.order);
  const ranked = Object.entries(reply.scores).sort((one, other) => other[1] - one[1]);
  const open = shares.querySelector("details")?.open;
  fill(verdict, make("p", { class: "winner" }, winner(reply)), make("p", { class: "sure" }, sure(reply)));
  fill(shares, scores(ranked), make("details", { open }, make("summary", {}, "More about this decision"), known(reply, hasCascade)));
  announce(inShort(reply, ranked));
}

function winner(reply) {
  return reply.domain in reply.scores ? named(reply.domain) : (reply.domain ?? "no domain");
}

function sure(reply) {
  const words = `Confidence ${percent(reply.confidence)}${reply.calibrated ? "" : ", not calibrated"}`;
  if (!reply.abstained) return words;
  const why = reply.belongs ? `${words}: too low` : "It seems to belong to no expert's domain";
  return `${why}, so the router abstains. The prompt ${goes(reply)}; ${reply.best} is ahead.`;
}

// Where a prompt goes on which the router abstains: its expert is the fallback, if there are experts.
function goes(reply) {
  return `goes to ${reply.expert ?? reply.domain ?? "no domain"}`;
}

function known(reply, hasCascade) {
  return facts([
    ["Expert", reply.expert],
    ["Expected quality", reply.expert_quality === undefined ? null : percent(reply.expert_quality)],
    ["Decided by", hasCascade ? DECIDERS[reply.router] : null],
    ["Prompt", count(reply.tokens, "token")],
    ["Release", make("code", { title: reply.release }, short(reply.release))],
  ]);
}

function scores(ranked) {
  const shown = ranked.length > MOST + 1 ? ranked.slice(0, MOST) : ranked;
  const rest = ranked.slice(shown.length);
  const rows = shown.map(([domain, share]) => row(named(domain), bar(share, domain), share));
  if (rest.length) rows.push(row(`${rest.length} others`, "", rest.reduce((sum, [, share]) => sum + share, 0)));
  const made = table(["Domain", "Bar", "Probability"], rows, {
    caption: "Probability of each domain",
    unseen: true,
    numbersFrom: 2,
    kind: "scores",
  });
  made.querySelector("thead").classList.add("unseen");
  for (const line of made.tBodies[0].rows) line.cells[1].className = "drawn";
  return made;
}

const row = (name, drawn, share) => [name, drawn, percent(share)];

function inShort(reply, ranked) {
  const next = ranked.find(([domain]) => domain !== reply.best);
  const then = next ? `; then ${next[0]}, ${percent(next[1], 0)}` : "";
  const where = reply.abstained ? `abstained, ${goes(reply)}; ahead is ${reply.best}` : reply.domain;
  return `${where}, confidence ${percent(reply.confidence, 0)}${then}.`;
}
