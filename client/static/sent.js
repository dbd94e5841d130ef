// What left this machine, by kind and one by one; and what was refused.
// Knows the answer of /v1/standing. Long lists stay readable: a search, and a fold.

import { fill, find, make, scrolling, table } from "./dom.js";
import { backticks } from "./folder.js";
import { count, short, size, stamp, whole, when } from "./numbers.js";

const FEW = 20;
const FEW_MEMBERS = 6;
const NUMBERS = new Set(["sealed_sums", "clear_statistics", "noisy_statistics", "counted"]);
const OPENED = { "": "–", clear: "in the clear", noisy: "under noise", yes: "yes, as part of a sum", perhaps: "perhaps, as part of a sum", no: "no" };
let items = [];
let cohorts = [];
let all = false;

export const words = (kind) => kind.replaceAll("_", " ");

export function startSent() {
  find("sent-search").addEventListener("input", paint);
  find("sent-numbers").addEventListener("change", paint);
}

export function showSent(now) {
  items = now.items.filter((item) => item.bytes);
  ({ cohorts } = now);
  find("sent-part").hidden = !items.length;
  if (!items.length) {
    fill(find("kinds"), make("p", { class: "empty" }, "Nothing has left this machine yet."));
    return;
  }
  const rows = now.kinds.map(({ kind, holds, times, bytes }) => [words(kind), holds, whole(times), size(bytes)]);
  const bytes = now.kinds.reduce((sum, each) => sum + each.bytes, 0);
  const caption = `${count(items.length, "message")}, ${size(bytes)}, since ${when(items.at(-1).time)}`;
  fill(find("kinds"), scrolling("What left, by kind", table(["What", "It holds", "Times", "Size"], rows, { caption, numbersFrom: 2 })));
  paint();
}

function paint() {
  const asked = find("sent-search").value.trim().toLowerCase();
  const text = (item) => `${words(item.kind)} ${item.lot} ${item.number} ${item.round} ${item.sha256} ${item.time}`.toLowerCase();
  const found = items.filter((item) => text(item).includes(asked) && (!find("sent-numbers").checked || NUMBERS.has(item.kind)));
  const rows = (all ? found : found.slice(0, FEW)).map((item) => [
    stamp(item.time),
    item.number ? whole(item.number) : "–",
    [words(item.kind), item.lot].filter(Boolean).join(", "),
    cohort(item),
    OPENED[item.opened],
    item.sha256 ? make("code", { title: item.sha256 }, short(item.sha256)) : "–",
    whole(item.bytes),
  ]);
  const heads = ["Sent", "Round", "What", "With", "Opened", "SHA-256", "Bytes"];
  const caption = `${count(found.length, "message")}${found.length < items.length ? ` of ${whole(items.length)}` : ""}, the newest first`;
  fill(find("sent"), found.length ? scrolling("What left, one by one", table(heads, rows, { caption, numbersFrom: 6, kind: "wide" })) : make("p", { class: "empty" }, "Nothing that left is like this."), more(found.length));
}

function cohort(item) {
  if (item.cohort === null) return "–";
  const names = cohorts[item.cohort];
  if (names.length <= FEW_MEMBERS) return names.join(", ");
  return make("details", { class: "inline" }, make("summary", {}, count(names.length, "member")), make("p", {}, names.join(", ")));
}

function more(many) {
  if (many <= FEW) return null;
  const button = make("button", { type: "button", class: "plain" }, all ? `Show the first ${FEW}` : `Show all ${whole(many)}`);
  button.addEventListener("click", () => {
    all = !all;
    paint();
    find("sent").querySelector(":scope > button").focus();
  });
  return button;
}

export function showRefused(now) {
  const found = now.items.filter((item) => item.code);
  if (!found.length) {
    fill(find("refused"), make("p", { class: "empty" }, "Nothing was refused so far."));
    return;
  }
  const rows = found.map((item) => [stamp(item.time), item.number ? whole(item.number) : "–", item.code, make("span", {}, backticks(item.reason))]);
  const made = (part, name) => scrolling(name, table(["When", "Round", "Code", "Why"], part, { caption: name, unseen: true, numbersFrom: 4, kind: "wide" }));
  const rest = rows.length > FEW ? make("details", {}, make("summary", {}, `${whole(rows.length - FEW)} older`), made(rows.slice(FEW), "Older refusals")) : null;
  fill(find("refused"), made(rows.slice(0, FEW), "Refusals"), rest);
}
