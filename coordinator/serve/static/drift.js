// Drift: the share of prompts of low confidence, their leverage, and the alarm.
// Knows the drift of /v1/activity. Asks nothing.

import { draw, fill, find, make } from "./dom.js";
import { count, percent, plain } from "./numbers.js";

export function showDrift(drift) {
  fill(find("drift"), make("div", { class: "gauges" }, lowConfidence(drift), leverage(drift)));
  alarm(drift);
}

function lowConfidence({ prompts, low_confidence_share: share, low_below: below, share_alarm: limit }) {
  if (!prompts) return gauge("Low confidence", "–", null, "No prompts under this release yet.");
  const words = `of the last ${count(prompts, "prompt")} had a confidence below ${percent(below, 0)}. Alarm above ${percent(limit, 0)}.`;
  return gauge("Low confidence", percent(share), meter(share, limit, 1), words);
}

function leverage({ leverage: value, leverage_alarm: limit, leverage_note: note }) {
  const measured = note ? `${note.charAt(0).toUpperCase()}${note.slice(1)}. ` : "";
  if (value === null) return gauge("Leverage", "–", null, `${measured}It says how unusual prompts are beside the text of the release.`);
  const words = `${measured}1 is like the text of the release.${limit ? ` Alarm above ${plain(limit)}.` : ""}`;
  return gauge("Leverage", plain(value), limit ? meter(value, limit, Math.max(2 * limit, value)) : null, words);
}

function gauge(title, value, drawn, words) {
  return make("div", { class: "gauge" }, make("h3", {}, title), make("p", { class: "value" }, value), drawn, make("p", { class: "quiet" }, words));
}

function meter(value, limit, most) {
  const x = (part) => `${Math.min(100, (100 * part) / most)}%`;
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
  const words = reasons(drift);
  if (!banner.hidden && banner.lastChild?.textContent === words) return;
  fill(banner, make("strong", {}, "Drift alarm"), make("span", {}, words));
}

function reasons(drift) {
  const { low_confidence_share: share, share_alarm: most, leverage: value, leverage_alarm: limit } = drift;
  const found = [];
  if (share > most) found.push(`more than ${percent(most, 0)} of them have a low confidence`);
  if (limit && value > limit) found.push(`their leverage is above ${plain(limit)}`);
  return `Recent prompts are unlike the text that the router was built on: ${found.join(", and ")}.`;
}
