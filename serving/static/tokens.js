// The prompt's words, coloured: by what decided, or by what each says for and against one domain.
// One stop for the keyboard; the arrow keys go from word to word, and a line below reads out the one they are at.
// Knows replies of /v1/route. Asks nothing.

import { fill, find, make } from "./dom.js";
import { signed, signedPercent, whole } from "./numbers.js";
import { legend, marks } from "./palette.js";
import { pieces } from "./pieces.js";

const MOST = 4000;
const DECIDED = "";
const MOST_VIEWS = 12; // of more domains, only the most probable are offered at once
const FEW_VIEWS = 5;
const HINT = "Point at a word, or go through them with the arrow keys, to read its numbers.";

let reply = null;
let shown = [];
let spans = [];
let view = DECIDED;
let current = -1;

export const viewed = () => view;

export function startTokens(wanted) {
  view = wanted ?? DECIDED;
  const box = find("tokens");
  box.addEventListener("pointerover", (event) => read(spans.indexOf(event.target)));
  box.addEventListener("pointerleave", () => read(document.activeElement === box ? current : -1));
  box.addEventListener("click", (event) => read(spans.indexOf(event.target)));
  box.addEventListener("keydown", onKey);
  find("views").addEventListener("change", (event) => {
    view = event.target.value;
    choices();
    paint();
  });
}

export function showTokens(answer, prompt) {
  reply = answer;
  if (!reply.order.includes(view)) view = DECIDED;
  const all = pieces(prompt, reply.explanation);
  shown = all.slice(0, MOST);
  spans = shown.map((piece) => make("span", {}, piece.text));
  const rest = all.length > MOST ? make("em", {}, `\n… and ${whole(all.length - MOST)} more words`) : null;
  fill(find("tokens"), spans, rest);
  choices();
  paint();
}

function choices() {
  const views = find("views");
  const present = [...views.querySelectorAll("input")].map((input) => input.value);
  const many = reply.order.length > MOST_VIEWS;
  const probable = (one, other) => reply.scores[other] - reply.scores[one];
  const near = many ? [...reply.order].sort(probable).filter((name, place) => place < FEW_VIEWS || name === view) : reply.order;
  const wanted = [DECIDED, ...near];
  if (present.join("\n") !== wanted.join("\n")) fill(views, views.querySelector("legend"), wanted.map(choice), many ? others(near) : null);
  for (const input of views.querySelectorAll("input")) input.checked = input.value === view;
}

function others(near) {
  const options = reply.order.filter((name) => !near.includes(name)).map((name) => make("option", { value: name }, name));
  return make("select", { "aria-label": "Another domain" }, make("option", { value: DECIDED }, "another domain"), options);
}

function choice(value) {
  return make("label", {}, make("input", { type: "radio", name: "view", value }), value || "what decided");
}

function paint() {
  const values = shown.map(valueOf);
  const most = Math.max(...values.map(Math.abs), 1e-12);
  spans.forEach((span, place) => {
    span.className = classesOf(shown[place], values[place]);
    span.style.setProperty("--weight", (Math.abs(values[place]) / most).toFixed(3));
  });
  find("view-words").textContent = words();
  fill(find("legend"), signs());
  read(-1);
}

function valueOf(piece) {
  if (!piece.weighs) return 0;
  return view === DECIDED ? piece.weight : piece.parts[reply.order.indexOf(view)];
}

function classesOf(piece, value) {
  if (!piece.weighs || !value) return "token silent";
  if (view === DECIDED) return `token ${marks(piece.domain)}`;
  return value > 0 ? `token u0 ${marks(view).split(" ")[0]}` : "token u2 against";
}

function words() {
  if (view === DECIDED) {
    return `Each word in the colour of the domain it speaks for; the stronger, the more it moved the lead of ${reply.best} over ${reply.runner_up}.`;
  }
  return `How much each word speaks for or against ${view}; the stronger the colour, the more.`;
}

function signs() {
  if (view === DECIDED) return legend(reply.order.filter((name) => shown.some((piece) => piece.domain === name)), { signed: true });
  const sign = (classes, text) =>
    make("li", {}, make("span", { class: `domain ${classes}` }, make("span", { class: "swatch", "aria-hidden": "true" }), make("span", { class: "signed" }, text)));
  const colour = marks(view).split(" ")[0];
  return make("ul", { class: "legend" }, sign(`${colour} u0`, `for ${view}`), sign("against u2", `against ${view}`));
}

function onKey(event) {
  const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
  if (event.key === "Home") go(0, 1);
  else if (event.key === "End") go(spans.length - 1, -1);
  else if (step) go(current < 0 ? (step > 0 ? 0 : spans.length - 1) : current + step, step);
  else return;
  event.preventDefault();
}

function go(place, step) {
  while (shown[place] && !shown[place].weighs) place += step;
  if (!shown[place]) return;
  read(place);
  spans[place].scrollIntoView({ block: "nearest" });
}

function read(place) {
  spans[current]?.classList.remove("current");
  current = shown[place]?.weighs ? place : -1;
  if (current < 0) {
    find("reading").textContent = HINT;
    return;
  }
  spans[current].classList.add("current");
  const piece = shown[current];
  fill(find("reading"), make("b", {}, JSON.stringify(piece.text)), ` ${numbers(piece)}`);
}

function numbers(piece) {
  if (view !== DECIDED) {
    const value = valueOf(piece);
    return `speaks ${value < 0 ? "against" : "for"} ${view}: ${signed(value)} over the mean of all domains.`;
  }
  const share = reply.margin ? `, ${signedPercent(piece.weight / reply.margin)} of it` : "";
  return `speaks for ${piece.domain}; adds ${signed(piece.weight)} to the lead${share}.`;
}
