// What another threshold or another weight of cost would do: to this prompt, and to held-out text.
// Held-out figures come from the counts in the release's manifest; the service itself goes on as it is.

import { ask } from "./api.js";
import { fill, find, make, show } from "./dom.js";
import { percent, plain } from "./numbers.js";

const STEPS = 100;
const EDGES = [0, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99];
let manifest = {};
let worths = null;
let reply = null;
let most = 0;

export function startTuning() {
  find("threshold").addEventListener("input", paint);
  find("mu").addEventListener("input", paint);
}

export async function tuneRelease(card, hasExperts) {
  manifest = card.manifest;
  worths = hasExperts ? await ask("/v1/worths") : null;
  const [threshold, mu] = [find("threshold"), find("mu")];
  threshold.max = edges().length - 1;
  threshold.value = edges().findLastIndex((edge) => edge <= manifest.confidence.threshold);
  most = worths ? highest(worths) : 0;
  find("mu-part").hidden = !most;
  mu.value = most ? Math.min(STEPS, Math.round((STEPS * worths.mu) / most)) : 0;
  paint();
}

export function tunePrompt(answer) {
  reply = answer;
  paint();
}

export function tuned() {
  return [["threshold", find("threshold").value], ["mu", most ? find("mu").value : ""]];
}

export function tune(link) {
  for (const name of ["threshold", "mu"]) if (link.get(name)) find(name).value = link.get(name);
  paint();
}

const edges = () => manifest.evaluation?.reliability?.map(([edge]) => edge) ?? EDGES;

function paint() {
  const threshold = edges()[find("threshold").value] ?? 0;
  show(find("threshold-value"), threshold ? `below ${plain(100 * threshold)} %` : "at no confidence");
  fill(find("threshold-told"), [onHeldOut(threshold), onPrompt(threshold)].filter(Boolean).map((words) => make("p", {}, words)));
  if (!most) return;
  const mu = (most * find("mu").value) / STEPS;
  show(find("mu-value"), plain(mu));
  fill(find("mu-told"), [byCost(mu), promptByCost(mu)].filter(Boolean).map((words) => make("p", {}, words)));
}

function onHeldOut(threshold) {
  const bins = manifest.evaluation?.reliability;
  if (!bins) return "This release carries no counts of confidence on held-out text; `ridgeway evaluate --propose --sign` adds them.";
  const sum = (place, from) => bins.filter(([edge]) => edge >= from).reduce((total, bin) => total + bin[place], 0);
  const [met, right] = [sum(1, threshold), sum(2, threshold)];
  if (met < 5e-7) return "None of the held-out prompts would be answered.";
  return `Of held-out texts and of their first words alone ${percent(met / sum(1, 0))} would be answered, ${percent(right / met)} of them right.`;
}

function onPrompt(threshold) {
  if (!reply) return null;
  const answered = reply.confidence >= threshold && reply.belongs !== false;
  return answered ? `This prompt would go to ${reply.best}.` : `On this prompt the router would abstain; ${reply.best} has ${percent(reply.confidence)}.`;
}

function highest({ costs, quality }) {
  // The least weight of cost from which on only the cheapest expert is asked.
  const pairs = costs.flatMap((cost, dear) => costs.map((less, cheap) => [dear, cheap, cost - less])).filter(([, , more]) => more > 0);
  return Math.max(0, ...pairs.flatMap(([dear, cheap, more]) => quality.map((row) => (1.02 * (row[dear] - row[cheap])) / more)));
}

function bestOf(qualities, mu) {
  const worth = qualities.map((quality, place) => quality - mu * worths.costs[place]);
  return worth.indexOf(Math.max(...worth));
}

function byCost(mu) {
  const evaluation = manifest.evaluation;
  if (!evaluation) return "This release was not evaluated on held-out text.";
  const shares = worths.experts.map(() => 0);
  let [quality, cost, domains] = [0, 0, 0];
  evaluation.confusion.forEach((row, own) => {
    const all = row.reduce((sum, each) => sum + each, 0);
    domains += all ? 1 : 0;
    row.forEach((count, routed) => {
      if (!count) return;
      const expert = bestOf(worths.quality[routed], mu);
      shares[expert] += count / all;
      quality += (count / all) * worths.quality[own][expert];
      cost += (count / all) * worths.costs[expert];
    });
  });
  const who = shares.map((share, place) => [share / domains, worths.experts[place]]).filter(([share]) => share >= 0.0005).sort((one, other) => other[0] - one[0]);
  const told = who.slice(0, 5).map(([share, name]) => `${name} ${percent(share)}`).join(", ");
  return `Of held-out texts would answer: ${told}. Mean quality ${plain(quality / domains)}, mean cost ${plain(cost / domains)}, each text taken as surely of the domain it is routed to.`;
}

function promptByCost(mu) {
  if (!reply || reply.abstained) return null;
  const expected = worths.experts.map((_, expert) => worths.domains.reduce((sum, domain, place) => sum + (reply.scores[domain] ?? 0) * worths.quality[place][expert], 0));
  return `This prompt would go to ${worths.experts[bestOf(expected, mu)]}.`;
}
