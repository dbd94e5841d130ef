// The ledger: whether its chain holds, and its entries, the newest first.
// Knows the answers of /v1/ledger and /v1/ledger/verification.

import { ask } from "./api.js";
import { announce, fill, find, make, scrolling, table } from "./dom.js";
import { warn } from "./folder.js";
import { count, short, stamp, whole } from "./numbers.js";

let rows = [];
let older = false;

export function startLedger() {
  find("verify").addEventListener("click", async () => announce(await verify()));
  find("entries").addEventListener("toggle", () => readEntries());
}

export async function readLedger() {
  await Promise.all([verify(), readEntries()]);
}

async function verify() {
  const place = find("verified");
  try {
    const found = await ask("/v1/ledger/verification");
    place.className = `verdict ${found.valid ? "good" : "bad"}`;
    warn(found.valid ? "" : `Something was altered: the ledger is not as it was written. ${found.words}`);
    place.textContent = found.valid
      ? `The chain holds: ${count(found.entries, "entry", "entries")}, ${count(found.releases, "release")} and every stored sum are as they were written.`
      : `The ledger is not as it was written: ${found.words}.`;
  } catch (problem) {
    place.className = "verdict bad";
    place.textContent = `It could not be verified. ${problem.message}`;
  }
  return place.textContent;
}

async function readEntries(before = null) {
  if (!find("entries").open) return;
  try {
    const found = await ask(`/v1/ledger${before === null ? "" : `?before=${before}`}`);
    rows = before === null ? found.rows : [...rows, ...found.rows];
    older = found.older;
    paint();
  } catch (problem) {
    fill(find("entries-box"), make("p", { class: "notice" }, problem.message));
  }
}

function paint() {
  const cells = rows.map((entry) => [whole(entry.number), stamp(entry.time), entry.kind.replaceAll("_", " "), detail(entry), make("code", { title: entry.hash }, short(entry.hash))]);
  const made = table(["Entry", "Time", "What", "Facts", "Hash"], cells, { caption: "Entries of the ledger", unseen: true, numbersFrom: 5, kind: "wide" });
  fill(find("entries-box"), scrolling("Entries of the ledger", made), older ? button() : null);
}

function detail({ facts }) {
  // The short facts in a line, all of them when it is opened.
  const short_ = Object.entries(facts).filter(([, value]) => value !== null && value !== "" && typeof value !== "object" && String(value).length <= 24);
  const line = short_.map(([name, value]) => `${name} ${value}`).join(", ");
  return make("details", { class: "inline" }, make("summary", {}, line || "facts"), make("pre", {}, JSON.stringify(facts, null, 1)));
}

function button() {
  const made = make("button", { type: "button", class: "plain" }, "Older entries");
  made.addEventListener("click", () => readEntries(rows.at(-1).number));
  return made;
}
