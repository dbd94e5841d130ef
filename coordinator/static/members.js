// The members: who is online, what each did in the round, which release each has.
// Knows the answer of /v1/standing. Many members stay readable: a search, and a fold.

import { breakable, fill, find, make, scrolling, table } from "./dom.js";
import { backticks } from "./folder.js";
import { count, whole } from "./numbers.js";

const FEW = 20;
let members = [];
let up = false;
let all = false;
let shown = "";

export function startMembers() {
  find("members-search").addEventListener("input", paint);
  find("members-trouble").addEventListener("change", paint);
}

export function showMembers(now) {
  const next = JSON.stringify([now.members, now.up]);
  if (next === shown) return;
  shown = next;
  ({ members, up } = now);
  find("members-tools").hidden = members.length < 2;
  paint();
}

const troubled = (member) => !member.retired && ((up && !member.online) || member.refusal || member.absent.length || member.behind);

function paint() {
  const place = find("members");
  if (!members.length) {
    fill(place, make("p", { class: "empty" }, backticks("No member yet. Admit a holder with `ridgeway coordinator admit DIR HOLDER.PUB --name NAME`.")));
    return;
  }
  const words = find("members-search").value.trim().toLowerCase();
  const found = members.filter((member) => `${member.name} ${member.domain}`.toLowerCase().includes(words) && (!find("members-trouble").checked || troubled(member)));
  const cut = !all && found.length > FEW ? found.slice(0, FEW) : found;
  const caption = `${count(found.length, "member")}${found.length < members.length ? ` of ${whole(members.length)}` : ""}`;
  const heads = ["Member", "Domain", "Online", "In the last round", "Release"];
  const made = scrolling("Members", table(heads, cut.map(row), { caption, numbersFrom: 4, kind: "members" }));
  fill(place, found.length ? made : make("p", { class: "empty" }, "No member is like this."), more(found.length));
}

function row(member) {
  const online = member.online === null ? "not known" : member.online ? make("span", { class: "state good" }, "yes") : make("span", { class: "state bad" }, "no");
  const domain = member.retired ? [breakable(member.domain), member.left ? " (left)" : " (retired)"].flat() : breakable(member.domain);
  const release = member.release ? String(member.release).padStart(4, "0") : "none";
  return [make("span", { title: `key ${member.key}` }, breakable(member.name)), make("span", {}, domain), online, did(member), `${release}${member.behind && member.release ? ", behind" : ""}`];
}

function did(member) {
  if (member.refusal) {
    const { code, reason, remedy } = member.refusal;
    return make("details", { class: "inline" }, make("summary", {}, `refused: ${code}`), make("p", {}, reason), remedy ? make("p", { class: "quiet" }, backticks(remedy)) : null);
  }
  if (member.absent.length) return `no answer to ${member.absent.join(", ")}`;
  return member.in_round || (member.in_newest ? "in the newest release" : "–");
}

function more(many) {
  if (many <= FEW) return null;
  const button = make("button", { type: "button", class: "plain" }, all ? `Show the first ${FEW}` : `Show all ${whole(many)}`);
  button.addEventListener("click", () => {
    all = !all;
    paint();
    find("members").querySelector(":scope > button").focus();
  });
  return button;
}
