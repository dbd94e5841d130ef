// What the pages of a folder share: commands in words, and a bar for a share, a warning.
// Knows nothing of what is shown.

import { draw, find, make } from "./dom.js";

export function backticks(words) {
  // Words in which `commands` stand between backticks.
  return words.split("`").map((part, place) => (place % 2 ? make("code", {}, part) : part));
}

export function meter(share) {
  return draw(
    "svg",
    { class: "bar", "aria-hidden": "true", preserveAspectRatio: "none", viewBox: "0 0 100 10" },
    draw("rect", { class: "all", width: 100, height: 10 }),
    draw("rect", { class: "part plain", width: 100 * Math.min(share, 1), height: 10 }),
  );
}

export function warn(words) {
  // At the top of the page: that something was altered.
  find("altered").textContent = words;
  find("altered").hidden = !words;
}
