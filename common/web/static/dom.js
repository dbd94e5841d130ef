// Elements made of plain values. Text goes in as text and never as HTML.
// Knows the document. Knows nothing of prompts or releases.

const SVG = "http://www.w3.org/2000/svg";

export const find = (id) => document.getElementById(id);

export function make(tag, attributes = {}, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

export function draw(tag, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, tag), attributes, children);
}

function filled(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined));
  return element;
}

export function fill(element, ...children) {
  element.replaceChildren(...children.flat(Infinity).filter((child) => child !== null && child !== undefined));
  element.hidden = false;
}

export function show(element, words) {
  // A notice that is there while it has something to say.
  element.hidden = !words;
  if (element.textContent !== (words ?? "")) element.textContent = words ?? "";
}

export function announce(words) {
  find("said").textContent = words;
}

export function table(heads, rows, { caption = null, numbersFrom = 1, kind = null, unseen = false } = {}) {
  // The first cell of each row is its head; cells from `numbersFrom` on are numbers.
  const aside = (place) => (place >= numbersFrom ? "number" : null);
  const head = heads.map((words, place) => make("th", { scope: "col", class: aside(place) }, words));
  const body = rows.map((cells) =>
    make(
      "tr",
      {},
      cells.map((cell, place) =>
        place === 0 ? make("th", { scope: "row" }, cell) : make("td", { class: aside(place) }, cell),
      ),
    ),
  );
  return make(
    "table",
    { class: kind },
    caption ? make("caption", { class: unseen ? "unseen" : null }, caption) : null,
    make("thead", {}, make("tr", {}, head)),
    make("tbody", {}, body),
  );
}

export function scrolling(name, inner) {
  // A box that scrolls by itself, so that the page does not have to; the keyboard reaches it.
  return make("div", { class: "scroll", role: "region", "aria-label": name, tabindex: "0" }, inner);
}

export function breakable(name) {
  // A name that may go on in the next line after each underscore or hyphen.
  return name.split(/(?<=[_-])/).flatMap((part, place) => (place ? [make("wbr"), part] : [part]));
}

export function button(words, onClick, attributes = {}) {
  const made = make("button", { type: "button", class: "plain", ...attributes }, words);
  made.addEventListener("click", onClick);
  return made;
}

export function searched(id, label, rows, most, names, painted) {
  // Of many rows those whose names hold what is searched for, `most` at first; `painted` makes a table of some of them.
  const box = make("input", { id, type: "search", autocomplete: "off", placeholder: "all, or a part of a name" });
  const place = make("div");
  let shown = most;
  const paint = () => {
    const words = box.value.trim().toLowerCase();
    const found = rows.filter((row) => names(row).some((name) => name.toLowerCase().includes(words)));
    const more = found.length > shown ? button(`Show ${Math.min(most, found.length - shown)} more`, () => { shown += most; paint(); }) : null;
    fill(place, make("p", { class: "quiet" }, `${Math.min(shown, found.length)} of ${found.length}`), painted(found.slice(0, shown)), more);
  };
  box.addEventListener("input", () => { shown = most; paint(); });
  paint();
  return [make("p", { class: "search" }, make("label", { for: id }, label), box), place];
}

export function facts(pairs) {
  // A list of what is known, without what is not.
  const known = pairs.filter(([, value]) => value !== null && value !== undefined && value !== "");
  return make("dl", { class: "facts" }, known.map(([name, value]) => [make("dt", {}, name), make("dd", {}, value)]));
}
