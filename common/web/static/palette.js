// Which colour and which underline a domain has. The same everywhere on the page, as long as the release is the same.
// Knows the order of the domains. Knows no colours: they are in palette.css.

import { draw, make } from "./dom.js";

const COLOURS = 16;
const SIGNS = 5;
let order = [];

export function arrange(domains) {
  order = [...domains];
}

export function known() {
  return [...order];
}

export function placeOf(domain) {
  if (!order.includes(domain)) order.push(domain); // of an older release: still in the charts for a while
  return order.indexOf(domain);
}

export function marks(domain) {
  const place = placeOf(domain);
  return `d${place % COLOURS} u${place % SIGNS}`;
}

export function named(domain, { signed = false } = {}) {
  // A domain's name beside its colour, and where tokens are near, over its underline.
  return make(
    "span",
    { class: `domain ${marks(domain)}` },
    make("span", { class: "swatch", "aria-hidden": "true" }),
    make("span", { class: signed ? "signed" : null }, domain),
  );
}

export function legend(domains, options = {}) {
  return make("ul", { class: "legend" }, domains.map((domain) => make("li", {}, named(domain, options))));
}

export function bar(share, domain) {
  return draw(
    "svg",
    { class: `bar ${marks(domain)}`, "aria-hidden": "true", preserveAspectRatio: "none", viewBox: "0 0 100 10" },
    draw("rect", { class: "all", width: 100, height: 10, rx: 0 }),
    draw("rect", { class: "part", width: 100 * share, height: 10 }),
  );
}
