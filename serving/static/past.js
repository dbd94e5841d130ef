// Prompts of before, in this browser alone and only if somebody wants them kept; at most fifty, and they can be cleared.
// Knows localStorage. What is done with a prompt that is chosen is somebody else's job.

import { button, fill, find, make } from "./dom.js";
import { percent } from "./numbers.js";

const PLACE = "ridgeway-history";
const MOST = 50;
const LONGEST = 20_000;
let chosen;

export function startPast(onChosen) {
  chosen = onChosen;
  const box = find("past-keep");
  box.checked = read() !== null;
  box.addEventListener("change", () => {
    if (box.checked) write([]);
    else forget();
    paint();
  });
  find("past-clear").addEventListener("click", () => {
    write([]);
    paint();
  });
  paint();
}

export function remember(text, { domain, confidence }) {
  const kept = read();
  if (kept === null || !text.trim() || text.length > LONGEST) return;
  const [last] = kept; // a text that is typed on takes its beginning's place
  const others = last && (text.startsWith(last.text) || last.text.startsWith(text)) ? kept.slice(1) : kept;
  write([{ text, domain, confidence }, ...others.filter((each) => each.text !== text)].slice(0, MOST));
  paint();
}

function paint() {
  const kept = read();
  find("past-clear").hidden = !kept?.length;
  const row = ({ text, domain, confidence }) =>
    make("li", {}, button([make("span", { class: "cut" }, text), make("span", { class: "quiet" }, `${domain}, ${percent(confidence, 0)}`)], () => chosen(text)));
  fill(find("past"), kept?.length ? kept.map(row) : make("li", { class: "empty" }, kept ? "Nothing yet." : "Nothing is kept."));
}

function read() {
  try {
    const kept = JSON.parse(localStorage.getItem(PLACE));
    return Array.isArray(kept) ? kept : null;
  } catch {
    return null; // the browser keeps nothing, or something that is not ours
  }
}

function write(entries) {
  try {
    localStorage.setItem(PLACE, JSON.stringify(entries));
  } catch {
    forget();
  }
}

function forget() {
  try {
    localStorage.removeItem(PLACE);
  } catch {
    // There is nothing to forget.
  }
}
