// The two charts: decisions by domain, and how long deciding took.
// Knows the activity of /v1/activity.

import { frame, mark, nothing, picture, scales } from "./chart.js";
import { draw, fill, find, make, table } from "./dom.js";
import { clock, count, milliseconds, plain, whole } from "./numbers.js";
import { known, legend, marks, placeOf } from "./palette.js";

const MOST_NAMED = 12;
let decisions;
let latency;
let activity = null;

export function startCharts() {
  decisions = frame(find("decisions-chart"), "Decisions per 5 s");
  latency = frame(find("latency-chart"), "Time to decide, ms");
  decisions.rows = decisionsTable;
  latency.rows = latencyTable;
  new ResizeObserver(() => paint()).observe(decisions.drawing);
  showActivity({ now: Date.now() / 1000, step_s: 5, kept: 60, steps: [] });
}

export function showActivity(latest) {
  activity = latest;
  paint();
}

function paint() {
  if (!activity) return;
  const steps = timeline(activity);
  const minutes = Math.round((activity.kept * activity.step_s) / 60);
  paintDecisions(steps, minutes);
  paintLatency(steps, minutes);
}

function timeline(activity) {
  // Every step of the time shown, the empty ones too, the oldest first.
  const { now, step_s: length, kept, steps } = activity;
  const last = Math.floor(now / length) * length;
  const there = new Map(steps.map((step) => [step.start, step]));
  return Array.from({ length: kept }, (_, place) => {
    const start = last - (kept - 1 - place) * length;
    return there.get(start) ?? { start, decisions: {}, abstained: 0, p50_ms: null, p99_ms: null };
  });
}

function minuteMarks(scale, minutes) {
  const wide = (scale.right - scale.left) / minutes;
  return Array.from({ length: minutes + 1 }, (_, back) => {
    const words = back === 0 ? "now" : back === minutes ? `−${back} min` : `−${back}`;
    return mark(scale, scale.right - back * wide, words, back ? "middle" : "end");
  });
}

const sum = (values) => values.reduce((total, value) => total + value, 0);
const total = (step) => sum(Object.values(step.decisions));

function paintDecisions(steps, minutes) {
  const all = sum(steps.map(total));
  const scale = scales(decisions.drawing.clientWidth || 320, steps.length, Math.max(...steps.map(total), 4));
  const bars = all ? steps.map((step, place) => stack(scale, step, place)) : nothing(scale, "No decisions yet");
  const abstained = sum(steps.map((step) => step.abstained));
  const seen = present(steps);
  const words = `${count(all, "decision")} in the last ${minutes} minutes${abstained ? `, of which ${whole(abstained)} abstained` : ""}.`;
  fill(decisions.drawing, picture(scale, `${words} ${byDomain(steps, seen)}`, minuteMarks(scale, minutes), whole, bars));
  const named = largest(steps, seen);
  const others = seen.length > named.length ? make("p", { class: "quiet" }, `… and ${count(seen.length - named.length, "other domain")}: see the table.`) : null;
  fill(decisions.below, make("p", { class: "quiet" }, words), seen.length ? legend(named) : null, others);
}

function present(steps) {
  const names = new Set(steps.flatMap((step) => Object.keys(step.decisions)));
  return [...names].sort((one, other) => placeOf(one) - placeOf(other));
}

function largest(steps, names) {
  // Of many domains, those with the most decisions, in the order of all.
  const made = new Map(names.map((name) => [name, sum(steps.map((step) => step.decisions[name] ?? 0))]));
  const most = [...names].sort((one, other) => made.get(other) - made.get(one)).slice(0, MOST_NAMED);
  return names.filter((name) => most.includes(name));
}

function byDomain(steps, names) {
  return largest(steps, names).map((name) => `${name} ${whole(sum(steps.map((step) => step.decisions[name] ?? 0)))}`).join(", ");
}

function stack(scale, step, place) {
  let under = 0;
  const gap = Math.min(scale.band * 0.2, 2);
  const parts = known().filter((name) => step.decisions[name]).map((name) => {
    const above = under + step.decisions[name];
    const [top, bottom] = [scale.y(above), scale.y(under)];
    under = above;
    const height = Math.max(bottom - top - 0.75, 0.75);
    return draw("rect", { class: `bar-part ${marks(name)}`, x: scale.x(place) + gap / 2, y: top, width: scale.band - gap, height });
  });
  return parts.length ? draw("g", {}, draw("title", {}, `${clock(step.start)}: ${byDomain([step], present([step]))}`), parts) : null;
}

function paintLatency(steps, minutes) {
  const times = steps.flatMap((step) => [step.p50_ms, step.p99_ms]).filter((value) => value !== null);
  const scale = scales(latency.drawing.clientWidth || 320, steps.length, Math.max(...times, 0));
  const lines = times.length ? [line(scale, steps, "p99_ms", "tail"), line(scale, steps, "p50_ms", "")] : nothing(scale, "No decisions yet");
  const last = steps.findLast((step) => step.p50_ms !== null);
  const words = last ? `Latest: median ${milliseconds(last.p50_ms)}, 99th percentile ${milliseconds(last.p99_ms)}.` : "No times yet.";
  fill(latency.drawing, picture(scale, `Time to decide. ${words}`, minuteMarks(scale, minutes), plain, lines));
  fill(latency.below, make("p", { class: "quiet" }, words), make("ul", { class: "legend" }, sample("median (p50)", ""), sample("99th percentile (p99)", "tail")));
}

function line(scale, steps, name, kind) {
  // Interrupted where nothing was decided; a step alone is a dot.
  const points = steps.map((step, place) => (step[name] === null ? null : [scale.x(place) + scale.band / 2, scale.y(step[name])]));
  let path = "";
  const dots = [];
  points.forEach((point, place) => {
    if (!point) return;
    path += `${points[place - 1] ? "L" : "M"}${point[0].toFixed(1)} ${point[1].toFixed(1)}`;
    if (!points[place - 1] && !points[place + 1]) dots.push(draw("circle", { class: `dot ${kind}`, cx: point[0], cy: point[1], r: 2.5 }));
  });
  return [draw("path", { class: `line ${kind}`, d: path }), dots];
}

function sample(words, kind) {
  const drawn = draw("svg", { class: "key-line", viewBox: "0 0 28 12", "aria-hidden": "true" }, draw("path", { class: `line ${kind}`, d: "M1 6H27" }));
  return make("li", {}, make("span", { class: "domain" }, drawn, words));
}

const busy = () => timeline(activity).filter(total).reverse();

function decisionsTable() {
  const names = present(busy());
  const rows = busy().map((step) => [clock(step.start), ...names.map((name) => whole(step.decisions[name] ?? 0)), whole(step.abstained)]);
  return table(["From", ...names, "abstained"], rows, { caption: `Decisions in each 5 s, as of ${clock(activity.now)}` });
}

function latencyTable() {
  const rows = busy().map((step) => [clock(step.start), milliseconds(step.p50_ms), milliseconds(step.p99_ms)]);
  return table(["From", "Median", "99th percentile"], rows, { caption: `Time to decide in each 5 s, as of ${clock(activity.now)}` });
}
