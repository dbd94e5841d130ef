// The words that decided, as a table: equal ones together, the weightiest first.
// The same rows as `ridgeway route --explain` prints. Knows replies of /v1/route.

import { fill, find, make, scrolling, table } from "./dom.js";
import { percent, signed, signedPercent, whole } from "./numbers.js";
import { named } from "./palette.js";

const MOST = 12;

export function lead(reply) {
  // The words that make the lead, and what they make of it, as somebody says it who does not know of margins.
  const { best, runner_up: next, margin } = reply;
  const merged = together(reply.explanation);
  const spoken = merged.filter(({ text }) => /[\p{L}\p{N}]/u.test(text));
  const speaking = spoken.filter(({ weight }) => weight > 0);
  if (!(margin > 0) || !speaking.length) return `No word gives ${best} a lead over ${next}.`;
  const strong = speaking.slice(0, 3).filter(({ weight }) => weight >= speaking[0].weight / 4);
  const share = strong.reduce((sum, { weight }) => sum + weight, 0) / margin;
  const against = spoken.find(({ weight }) => weight < 0);
  const names = list(strong.map(({ text }) => quoted(text)));
  const whose = `of the lead of ${best} over ${next}`;
  if (share < 1.005) return `${names} ${strong.length > 1 ? "make" : "makes"} ${percent(share, 0)} ${whose}.`;
  const back = against ? `; ${quoted(against.text)} takes ${percent(-against.weight / margin, 0)} of it back` : "";
  return `${names} alone ${strong.length > 1 ? "make" : "makes"} more than the whole ${whose}${back}.`;
}

const quoted = (text) => `‘${text}’`;
const list = (names) => (names.length > 1 ? `${names.slice(0, -1).join(", ")} and ${names.at(-1)}` : names[0]);

export function showWords(reply) {
  const merged = together(reply.explanation);
  const rows = merged.slice(0, MOST).filter(({ weight }) => weight).map((each) => row(reply, each));
  if (merged.length > MOST) rows.push(others(reply, merged.slice(MOST)));
  const caption = `What each word added to the lead of ${reply.best} over ${reply.runner_up}, ${reply.margin.toFixed(4)}`;
  const made = table(["Word", "Speaks for", "Times", "Weight", "Of the lead"], rows, { caption, unseen: true, numbersFrom: 2 });
  find("lead").textContent = lead(reply);
  fill(find("words"), scrolling("Table of the words that decided", made));
}

function together(words) {
  const merged = new Map();
  for (const { text: written, domain, weight } of words) {
    const text = written.trim() || written; // the blank before a word is no part of it here
    const name = JSON.stringify([text, domain]);
    const each = merged.get(name) ?? { text, domain, times: 0, weight: 0 };
    each.times += 1;
    each.weight += weight;
    merged.set(name, each);
  }
  return [...merged.values()].sort((one, other) => Math.abs(other.weight) - Math.abs(one.weight));
}

function row(reply, { text, domain, times, weight }) {
  const word = make("span", { class: "word" }, JSON.stringify(text));
  return [word, named(domain), whole(times), signed(weight), ofMargin(reply, weight)];
}

function others(reply, rest) {
  const weight = rest.reduce((sum, each) => sum + each.weight, 0);
  return [`${whole(rest.length)} other words`, "", "", signed(weight), ofMargin(reply, weight)];
}

const ofMargin = (reply, weight) => (reply.margin ? signedPercent(weight / reply.margin) : "–");
