// What both charts share: a time axis of the last minutes, a value axis, a frame with a heading and a table.
// Knows steps of seconds. Knows nothing of decisions or latencies.

import { draw, make, scrolling } from "./dom.js";

export const HEIGHT = 190;
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

export function timeline(activity) {
  // Every step of the time shown, the empty ones too, the oldest first.
  const { now, step_s: length, kept, steps } = activity;
  const last = Math.floor(now / length) * length;
  const there = new Map(steps.map((step) => [step.start, step]));
  return Array.from({ length: kept }, (_, place) => {
    const start = last - (kept - 1 - place) * length;
    return there.get(start) ?? { start, decisions: {}, abstained: 0, p50_ms: null, p99_ms: null };
  });
}

export function scales(width, steps, most) {
  const top = ceiling(most);
  const inner = Math.max(width - LEFT - RIGHT, 40);
  const band = inner / steps;
  return {
    top,
    band,
    width,
    x: (place) => LEFT + place * band,
    y: (value) => TOP + (HEIGHT - TOP - BOTTOM) * (1 - value / top),
  };
}

function ceiling(value) {
  // The next round number.
  if (!(value > 0)) return 1;
  const size = 10 ** Math.floor(Math.log10(value));
  return size * [1, 2, 4, 6, 8, 10].find((step) => step * size >= value * 0.999999);
}

export function picture(scale, words, minutes, label, content) {
  return draw(
    "svg",
    { class: "plot", viewBox: `0 0 ${scale.width} ${HEIGHT}`, height: HEIGHT, role: "img", "aria-label": words },
    [0, 0.5, 1].map((part) => level(scale, part * scale.top, label)),
    minuteMarks(scale, minutes),
    content,
  );
}

function level(scale, value, label) {
  const y = scale.y(value);
  return [
    draw("line", { class: "axis", x1: LEFT, x2: scale.width - RIGHT, y1: y, y2: y }),
    draw("text", { x: LEFT - 8, y: y + 4, "text-anchor": "end" }, label(value)),
  ];
}

function minuteMarks(scale, minutes) {
  const right = scale.width - RIGHT;
  const wide = (right - LEFT) / minutes;
  return Array.from({ length: minutes + 1 }, (_, back) => {
    const words = back === 0 ? "now" : back === minutes ? `−${back} min` : `−${back}`;
    return draw("text", { x: right - back * wide, y: HEIGHT - 6, "text-anchor": back ? "middle" : "end" }, words);
  });
}

export function nothing(scale, words) {
  return draw("text", { class: "nothing", x: (scale.x(0) + scale.width - RIGHT) / 2, y: HEIGHT / 2 - 6, "text-anchor": "middle" }, words);
}
