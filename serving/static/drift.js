// Drift: the share of prompts of low confidence, and the alarm.
// Knows the drift of /v1/activity. Asks nothing.

import { draw, fill, find, make } from "./dom.js";
import { count, percent } from "./numbers.js";

export function showDrift(drift) {
  fill(find("drift"), lowConfidence(drift));
  alarm(drift);
}

function lowConfidence({ prompts, low_confidence_share: share, low_below: below, share_alarm: limit }) {
  if (!prompts) return gauge("Low confidence", "–", null, "No prompts under this release yet.");
  const words = `of the last ${count(prompts, "prompt")} had a confidence below ${percent(below, 0)}. Alarm above ${percent(limit, 0)}.`;
  return gauge("Low confidence", percent(share), meter(share, limit), words);
}

function gauge(title, value, drawn, words) {
  return make("div", { class: "gauge" }, make("h3", {}, title), make("p", { class: "value" }, value), drawn, make("p", { class: "quiet" }, words));
}

function meter(value, limit) {
  const x = (part) => `${100 * part}%`;
  return draw(
    "svg",
    { "aria-hidden": "true" },
    draw("rect", { class: "all", y: 6, width: "100%", height: 12 }),
    draw("rect", { class: `part${value > limit ? " high" : ""}`, y: 6, width: x(value), height: 12 }),
    draw("line", { class: "limit", x1: x(limit), x2: x(limit), y1: 1, y2: 23 }),
  );
}

function alarm(drift) {
  const banner = find("alarm");
  if (!drift.alarm) {
    banner.hidden = true;
    banner.replaceChildren();
    return;
  }
  const most = percent(drift.share_alarm, 0);
  const words = `Recent prompts are unlike the text that the router was built on: more than ${most} of them have a low confidence or belong to no domain.`;
  if (!banner.hidden && banner.lastChild?.textContent === words) return;
  fill(banner, make("strong", {}, "Drift alarm"), make("span", {}, words));
}
