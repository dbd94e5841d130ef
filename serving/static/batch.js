// Many prompts of a file: routed a part at a time, shown as a table, saved as CSV. The file stays in the browser.
// Where a column holds the true domains, what is right is counted, and every confusion opens its own examples.

import { ask } from "./api.js";
import { announce, button, fill, find, make, scrolling, searched, show, table } from "./dom.js";
import { count, percent, short, whole } from "./numbers.js";
import { csvOf, guessed, rowsOf } from "./prompt_files.js";

const PART = { prompts: 256, characters: 200_000 };
const LARGEST = 32 * 1024 * 1024;
const ROWS = 50;
const CUT = 160;
let file = { columns: [], rows: [] };
let done = []; // { text, label, decision }
let run = 0;
let running = false;
let release = "";

export function startBatch() {
  find("batch-file").addEventListener("change", (event) => load(event.target.files[0]));
  find("batch-route").addEventListener("click", () => (running ? halt() : route()));
  find("batch-save").addEventListener("click", save);
  for (const id of ["batch-prompts", "batch-labels"]) find(id).addEventListener("change", reset);
}

export function examplesOf(own, routed) {
  // Texts of the batch that are of one domain and were routed to another.
  return done.filter((each) => isAnswered(each) && each.label === own && each.decision.best === routed).map(({ text }) => text);
}

async function load(chosen) {
  if (!chosen) return;
  halt();
  try {
    if (chosen.size > LARGEST) throw new Error(`This file has ${whole(chosen.size / 2 ** 20)} MiB, and 32 are taken at most; divide it.`);
    file = rowsOf(chosen.name, await chosen.text());
    show(find("batch-problem"), null);
  } catch (problem) {
    file = { columns: [], rows: [] };
    show(find("batch-problem"), problem.message);
  }
  const option = (name) => make("option", { value: name }, name);
  fill(find("batch-prompts"), file.columns.map(option));
  fill(find("batch-labels"), make("option", { value: "" }, "none"), file.columns.map(option));
  find("batch-prompts").value = guessed(file.columns, ["prompt", "text", "question", "input", "content", "query"]) || file.columns[0];
  find("batch-labels").value = guessed(file.columns, ["label", "domain", "true", "truth", "category", "expected"]);
  find("batch-columns").hidden = !file.rows.length;
  reset();
}

function reset() {
  halt();
  done = [];
  paint();
}

function halt() {
  run += 1;
  running = false;
}

async function route() {
  const own = ++run;
  running = true;
  paint();
  try {
    while (own === run && done.length < file.rows.length) {
      const part = next();
      const answer = await ask("/v1/route", { prompts: part.map(({ text }) => text) });
      if (own !== run) return;
      if (done.length && answer.release !== release) {
        [done, release] = [[], answer.release]; // rows of two releases do not go together: all are routed again
        continue;
      }
      release = answer.release;
      done = [...done, ...part.map((each, place) => ({ ...each, decision: answer.decisions[place] }))];
      progress();
    }
    announce(`${count(done.length, "prompt")} routed.`);
  } catch (problem) {
    if (own === run) show(find("batch-problem"), `It stopped after ${count(done.length, "prompt")}. ${problem.message}`);
  }
  if (own !== run) return;
  running = false;
  paint();
}

function next() {
  const [prompts, labels] = [find("batch-prompts").value, find("batch-labels").value];
  const part = [];
  let size = 0;
  for (let place = done.length; place < file.rows.length && part.length < PART.prompts; place += 1) {
    const row = file.rows[place];
    size += row[prompts].length;
    if (part.length && size > PART.characters) break;
    part.push({ text: row[prompts], label: labels ? row[labels].trim() : "" });
  }
  return part;
}

function progress() {
  const bar = find("batch-progress");
  [bar.max, bar.value, bar.hidden] = [Math.max(file.rows.length, 1), done.length, !file.rows.length];
  show(find("batch-told"), file.rows.length ? `${whole(done.length)} of ${count(file.rows.length, "prompt")} routed` : null);
}

function paint() {
  progress();
  const isWhole = done.length === file.rows.length;
  find("batch-route").textContent = running ? "Stop" : done.length && !isWhole ? "Go on" : "Route all";
  find("batch-route").hidden = !file.rows.length || (isWhole && done.length > 0);
  find("batch-save").hidden = running || !done.length;
  fill(find("batch-results"), done.length && !running ? [confusions(), examples(), decisions()] : null);
}

const labelled = () => done.filter(({ label }) => label);
const isAnswered = ({ decision }) => !decision.abstained;
const isRight = (each) => isAnswered(each) && each.label === each.decision.best;
const ratio = (part, all) => (all.length ? ` (${percent(part.length / all.length)})` : "");

function confusions() {
  const known = labelled();
  if (!known.length) return null;
  const pairs = new Map();
  const answered = known.filter(isAnswered);
  for (const each of answered.filter((one) => !isRight(one))) {
    const name = JSON.stringify([each.label, each.decision.best]);
    pairs.set(name, (pairs.get(name) ?? 0) + 1);
  }
  const rows = [...pairs].map(([name, many]) => [...JSON.parse(name), many]).sort((one, other) => other[2] - one[2]);
  const right = known.filter(isRight);
  const words = `Of ${count(known.length, "prompt")} with a true domain the router answered ${whole(answered.length)}${ratio(answered, known)}, ${whole(right.length)} of them right${ratio(right, answered)}. On ${whole(known.length - answered.length)} it abstained.`;
  const painted = (some) => table(["True domain", "Routed to", "Prompts", "More"], some.map(([own, routed, many]) => [own, routed, whole(many), button("Examples", () => open(own, routed), { "aria-label": `Examples of ${own} routed to ${routed}` })]), { caption: "Confusions in this batch", unseen: true, numbersFrom: 2 });
  return [make("h3", {}, "Against the true domains"), make("p", {}, words), rows.length ? searched("batch-pairs", "Confusions of ", rows, 10, ([own, routed]) => [own, routed], (some) => scrolling("Confusions in this batch", painted(some))) : null];
}

const examples = () => make("div", { id: "batch-examples", hidden: true });

function open(own, routed) {
  const texts = examplesOf(own, routed);
  const shown = texts.slice(0, 10).map((text) => make("li", { class: "said" }, cut(text)));
  fill(find("batch-examples"), make("h4", {}, `${own}, routed to ${routed}: ${count(texts.length, "prompt")}`), make("ul", { class: "samples" }, shown));
  find("batch-examples").scrollIntoView({ block: "nearest" });
}

const cut = (text) => (text.length > CUT ? `${text.slice(0, CUT)}…` : text);

function decisions() {
  const heads = ["Prompt", "Goes to", "Confidence", ...(labelled().length ? ["True domain"] : []), ...(done[0].decision.expert ? ["Expert"] : [])];
  const row = (each) => [
    make("span", { class: "cut" }, cut(each.text)),
    isAnswered(each) ? each.decision.domain : make("span", { class: "quiet" }, `abstained${each.decision.domain ? `, goes to ${each.decision.domain}` : ""}`),
    percent(each.decision.confidence),
    ...(labelled().length ? [make("span", { class: each.label && isAnswered(each) && !isRight(each) ? "wrong" : null }, each.label || "–")] : []),
    ...(done[0].decision.expert ? [each.decision.expert] : []),
  ];
  const painted = (some) => scrolling("Decisions of the batch", table(heads, some.map(row), { caption: `Decisions by release ${short(release)}`, numbersFrom: 99 }));
  return [make("h3", {}, "Decisions"), searched("batch-search", "Rows with ", done, ROWS, ({ text, label, decision }) => [text, label, decision.domain ?? ""], painted)];
}

function save() {
  const heads = ["prompt", "domain", "confidence", "abstained", "best", "expert", "true", "release"];
  const rows = done.map(({ text, label, decision: each }) => [text, each.domain ?? "", each.confidence, each.abstained, each.best, each.expert ?? "", label, release]);
  const address = URL.createObjectURL(new Blob([csvOf(heads, rows)], { type: "text/csv" }));
  make("a", { href: address, download: "decisions.csv" }).click();
  setTimeout(() => URL.revokeObjectURL(address), 10_000);
}
