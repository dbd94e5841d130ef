// The box that a prompt is typed into: routed a moment after the last key, at most one question at a time.
// A decision that is shown belongs to the text in the box; as soon as that differs, it is marked as an old one's.
// Knows the form. What becomes of the answer is somebody else's job.

import { ask } from "./api.js";
import { button, find, make, show } from "./dom.js";
import { forgetLink } from "./permalink.js";

const PAUSE_MS = 250;
const LONG = 20_000; // characters; longer prompts wait for the button

let box;
let answered;
let timer = 0;
let busy = false;
let again = false;
let shown = ""; // the text that the decision on the page is of

export function startPrompt(onAnswer) {
  box = find("prompt");
  answered = onAnswer;
  box.addEventListener("input", soon);
  box.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) route();
  });
  find("ask").addEventListener("submit", (event) => {
    event.preventDefault();
    route();
  });
  if (box.value.trim()) route(); // the browser has kept it
}

export function offerExamples(examples = []) {
  // Those that the release carries, if any.
  find("examples-part").hidden = !examples.length;
  find("examples").replaceChildren(...examples.map((words) => make("li", {}, button(words, () => usePrompt(words)))));
}

export function usePrompt(text) {
  forgetLink();
  setPrompt(text);
}

export function setPrompt(text) {
  box.value = text;
  changed();
  route();
}

export const promptText = () => box.value;

function soon() {
  clearTimeout(timer);
  forgetLink();
  changed();
  const long = box.value.length > LONG;
  show(find("prompt-problem"), long ? "This prompt is long; press Route to have it routed." : null);
  if (!long) timer = setTimeout(route, PAUSE_MS);
}

function changed() {
  const old = shown !== "" && shown !== box.value;
  find("mode-prompt").classList.toggle("stale", old);
  find("stale").hidden = !old;
}

export async function route() {
  // The latest prompt wins: what was typed while a question was on its way is asked next.
  clearTimeout(timer);
  if (busy) {
    again = true;
    return;
  }
  busy = true;
  do {
    again = false;
    await routeOnce(box.value);
  } while (again);
  busy = false;
}

async function routeOnce(prompt) {
  try {
    const reply = prompt.trim() ? await ask("/v1/route", { prompt, explain: true }) : null;
    if (again) return;
    show(find("prompt-problem"), null);
    take(reply, prompt);
  } catch (problem) {
    show(find("prompt-problem"), `This could not be routed. ${problem.message}`);
    if (prompt !== shown) take(null, ""); // no decision is better than another text's
  }
}

function take(reply, prompt) {
  shown = reply ? prompt : "";
  answered(reply, prompt);
  changed();
}
