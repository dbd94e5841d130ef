// The release's card: what it is, who signed it, what it was made of and how well it does.
// Knows the answer of /v1/releases/current.

import { ask } from "./api.js";
import { confusion } from "./confusion.js";
import { facts, fill, find, make, scrolling, searched, table } from "./dom.js";
import { count, moment, percent, plain, short, whole } from "./numbers.js";
import { arrange, named } from "./palette.js";

const MANY = 20;

export async function showCard() {
  const place = find("release");
  try {
    const card = await ask("/v1/releases/current");
    arrange(card.domains);
    fill(place, refused(card.refused), make("div", { class: "card" }, about(card), domains(card)), confusion(card.manifest.evaluation));
    return card;
  } catch (problem) {
    fill(place, make("p", { class: "notice" }, `The release's card could not be read. ${problem.message}`));
    return null;
  }
}

export function refused(why) {
  return why ? make("p", { class: "notice" }, `A newer release was refused and this one goes on: ${why}`) : null;
}

function about(card) {
  const { manifest } = card;
  return make(
    "div",
    {},
    facts([
      ["Release", hash(card.release, "release id")],
      ["Number", manifest.number],
      ["In use since", moment(card.since)],
      ["Signed by", hash(card.signer, "signer's key")],
      ["Made by", told(manifest.cohort?.holders, (holders) => count(holders, "holder"))],
      ["Held out", heldOut(manifest.evaluation)],
    ]),
    make("details", {}, make("summary", {}, "How it was made"), facts([
      ["Made after", manifest.parent ? make("code", { title: manifest.parent }, short(manifest.parent)) : null],
      ["Encoder", told(manifest.encoder, encoder)],
      ["Samples", told(manifest.sampling, sampling)],
      ["Weighting", told(manifest.weighting, weighting)],
      ["λ", told(manifest.ridge, ridge)],
      ["Selector", told(manifest.selector, selector)],
      ["Confidence", told(manifest.confidence, confidence)],
    ])),
  );
}

const told = (fact, words) => (fact === undefined || fact === null ? null : words(fact));
const weighting = (name) => (name === "equal" ? "every domain weighs the same" : "every token weighs the same");

function hash(value, name) {
  const copied = navigator.clipboard && window.isSecureContext;
  const code = make("code", { title: value }, copied ? short(value) : value);
  if (!copied) return code;
  const button = make("button", { type: "button", class: "plain", "aria-label": `Copy the ${name}` }, "Copy");
  button.addEventListener("click", async () => {
    await navigator.clipboard.writeText(value).then(
      () => (button.textContent = "Copied"),
      () => (code.textContent = value), // to be copied by hand
    );
  });
  return make("span", { class: "hash" }, code, button);
}

function encoder({ name, rows, width, kind, fingerprint }) {
  const size = rows ? `: ${whole(rows)} tokens × ${whole(width)}` : "";
  return make("span", {}, `${name}${kind ? `, ${kind}` : ""}${size}, fingerprint `, make("code", { title: fingerprint }, short(fingerprint)));
}

function sampling({ window: size, max_tokens: most, stride, documents, units, mistyped }) {
  const words = [size === 1 ? "single tokens" : `windows of ${count(size, "token")}`];
  if (stride > size) words.push(`one every ${count(stride, "token")}`);
  if (documents) words.push(`each document counts ${count(documents, "time")} more as a whole`);
  if (units) words.push(`each document counts ${count(units, "unit")}, divided over its windows, its beginnings and the whole`);
  if (mistyped) words.push(`a copy of its beginning with typing errors counts ${count(mistyped, "time")}`);
  if (most) words.push(`the first ${count(most, "token")} of a document`);
  return words.join("; ");
}

function ridge({ value, relative }) {
  return `${plain(value)}${relative ? " of the mean diagonal of A" : ""}`;
}

function selector({ name, k }) {
  const meaning = { average: "the mean over all tokens decides", entropy: `the ${k} most certain tokens vote`, all: "every token votes" };
  return `${name}: ${meaning[name] ?? "as its name says"}`;
}

function confidence({ calibrated, threshold, fallback }) {
  const words = calibrated ? "calibrated on held-out text" : "not calibrated";
  return threshold ? `${words}; below ${percent(threshold, 0)} prompts go to ${fallback}` : words;
}

function heldOut(evaluation) {
  if (!evaluation) return "not evaluated";
  const documents = evaluation.confusion.flat().reduce((sum, each) => sum + each, 0);
  const texts = `${evaluation.interval ? "about " : ""}${count(documents, "text")}`;
  return `${accuracy(evaluation.accuracy, evaluation.interval)} right, the mean over domains; ${texts}`;
}

function accuracy(value, interval) {
  // The interval is that of counts under noise.
  return interval ? `${percent(value / 100)} (95 %: ${interval.map((end) => percent(end / 100)).join(" to ")})` : percent(value / 100);
}

function domains({ domains: names, manifest }) {
  const right = manifest.evaluation?.domains ?? {};
  const rows = names.map((name) => [named(name), name in right ? accuracy(right[name], manifest.evaluation.intervals?.[name]) : "–"]);
  const caption = "Domains of the release, and accuracy on held-out text";
  const painted = (some) => scrolling("Domains of the release", table(["Domain", "Right, of held-out texts"], some, { caption, unseen: true }));
  return rows.length > MANY ? make("div", {}, searched("domain-search", "Domains ", rows, MANY, ([name]) => [name.textContent], painted)) : painted(rows);
}
