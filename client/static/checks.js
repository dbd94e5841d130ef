// Whether the records are as they were written, and agree with each other.
// Knows the answer of /v1/checks.

import { ask } from "./api.js";
import { announce, breakable, fill, find, make } from "./dom.js";
import { warn } from "./folder.js";

export function startChecks() {
  find("verify").addEventListener("click", async () => announce(await verify()));
}

export async function verify() {
  const place = find("verified");
  try {
    const found = await ask("/v1/checks");
    const good = found.every((each) => each.good);
    place.className = `verdict ${good ? "good" : "bad"}`;
    warn(good ? "" : `Something was altered, or does not agree: ${found.find((each) => !each.good).words}`);
    place.textContent = good ? "Yes, all of them, and they agree." : "No: something was altered, or does not agree.";
    fill(find("checks"), make("ul", { class: "checks" }, found.map(line)));
  } catch (problem) {
    place.className = "verdict bad";
    place.textContent = `They could not be verified. ${problem.message}`;
  }
  return place.textContent;
}

function line({ name, words, good }) {
  return make("li", {}, make("span", { class: `state ${good ? "good" : "bad"}` }, name), " ", make("span", { class: "quiet" }, breakable(words)));
}
