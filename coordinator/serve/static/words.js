// The words that decided, as a table: equal ones together, the weightiest first.
// The same rows as `ridgeway route --explain` prints. Knows replies of /v1/route.

import { fill, find, make, scrolling, table } from "./dom.js";
import { signed, signedPercent, whole } from "./numbers.js";
import { named } from "./palette.js";

const MOST = 12;

export function showWords(reply) {
  const merged = together(reply.explanation);
  const rows = merged.slice(0, MOST).filter(({ weight }) => weight).map((each) => row(reply, each));
  if (merged.length > MOST) rows.push(others(reply, merged.slice(MOST)));
  const caption = `${reply.best} over ${reply.runner_up}, margin ${reply.margin.toFixed(4)}: what each word added`;
  const made = table(["Word", "Speaks for", "Times", "Weight", "Of margin"], rows, { caption, unseen: true, numbersFrom: 2 });
  fill(find("words"), make("p", { class: "quiet", "aria-hidden": "true" }, caption), scrolling("The words that decided", made));
}

function together(words) {
  const merged = new Map();
  for (const { text, domain, weight } of words) {
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
