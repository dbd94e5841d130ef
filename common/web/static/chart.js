// What charts share: a value axis, a frame with a heading and a table.
// Knows nothing of what is drawn.

import { draw, make, scrolling } from "./dom.js";

const HEIGHT = 190;
const LEFT = 44;
const RIGHT = 8;
const TOP = 10;
const BOTTOM = 26;

export function frame(place, title) {
  // Made once; the drawing in it is made again as time goes on.
  const drawing = make("div");
  const below = make("div");
  const box = make("div");
  const more = make("details", {}, make("summary", {}, "As a table"), box);
  place.classList.add("chart");
  place.replaceChildren(make("h3", {}, title), drawing, below, more);
  const made = { drawing, below, rows: () => null };
  more.addEventListener("toggle", () => {
    if (more.open) box.replaceChildren(scrolling(title, made.rows()));
  });
  return made;
}

export function scales(width, steps, most, least = 0) {
  // The value axis goes from `least` to the next round number.
  const top = ceiling(most);
  const inner = Math.max(width - LEFT - RIGHT, 40);
  const band = inner / steps;
  return {
    least,
    top,
    band,
    left: LEFT,
    right: width - RIGHT,
    width,
    x: (place) => LEFT + place * band,
    y: (value) => TOP + (HEIGHT - TOP - BOTTOM) * (1 - (value - least) / (top - least)),
  };
}

function ceiling(value) {
  // The next round number.
  if (!(value > 0)) return 1;
  const size = 10 ** Math.floor(Math.log10(value));
  return size * [1, 2, 4, 6, 8, 10].find((step) => step * size >= value * 0.999999);
}

export function picture(scale, words, below, label, content) {
  return draw(
    "svg",
    { class: "plot", viewBox: `0 0 ${scale.width} ${HEIGHT}`, height: HEIGHT, role: "img", "aria-label": words },
    [0, 0.5, 1].map((part) => level(scale, scale.least + part * (scale.top - scale.least), label)),
    below,
    content,
  );
}

function level(scale, value, label) {
  const y = scale.y(value);
  return [
    draw("line", { class: "axis", x1: LEFT, x2: scale.right, y1: y, y2: y }),
    draw("text", { x: LEFT - 8, y: y + 4, "text-anchor": "end" }, label(value)),
  ];
}

export function mark(scale, x, words, anchor = "middle") {
  // A word below the drawing.
  return draw("text", { x, y: HEIGHT - 6, "text-anchor": anchor }, words);
}

export function nothing(scale, words) {
  return draw("text", { class: "nothing", x: (scale.left + scale.right) / 2, y: HEIGHT / 2 - 6, "text-anchor": "middle" }, words);
}
