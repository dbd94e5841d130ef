// The page of a holder: puts the parts together, and reads them again when something has changed.

import { showBundle } from "./approved.js";
import { startChecks, verify } from "./checks.js";
import { facts, fill, find, make } from "./dom.js";
import { backticks } from "./folder.js";
import { startLive } from "./live.js";
import { count, short, when, whole } from "./numbers.js";
import { showRefused, showSent, startSent } from "./sent.js";

let shown = "";

async function standing(now) {
  const next = JSON.stringify(now);
  if (next === shown) return; // what somebody is reading stays as it is
  shown = next;
  glance(now);
  budget(now.budget);
  showSent(now);
  showRefused(now);
  showBundle(now.bundle);
  await verify();
}

function glance(now) {
  const modes = Object.entries(now.modes).map(([mode, means]) => make("p", {}, make("strong", {}, mode), `: ${means}`));
  fill(
    find("glance"),
    facts([
      ["Domain", now.domain],
      ["Key", make("code", { title: now.key }, short(now.key))],
      ["Coordinator", make("span", {}, `${now.address}, key `, make("code", { title: now.coordinator }, short(now.coordinator)))],
      ["Invited to", now.mode ? `${now.mode} rounds` : null],
      ["Accepts", make("div", {}, ...modes)],
      ["Epoch", epoch(now.epoch)],
      ["Notices", now.notices ? backticks(`${count(now.notices, "pair")} of totals that few members lie between; see \`ridgeway client status\``) : null],
      ["Newest release", now.release ? String(now.release).padStart(4, "0") : "none came yet"],
    ]),
  );
}

function epoch(open) {
  if (!open) return "none is open yet";
  const used = open.used ? "something made of it has left" : "nothing made of it has left";
  return make("span", {}, make("code", { title: open.name }, short(open.name)), `, opened ${when(open.time)}: ${used}`);
}

const bound = (epsilon) => (epsilon === null ? "∞" : epsilon.toLocaleString("en", { maximumSignificantDigits: 3 }));

function budget(told) {
  const opened = Object.entries(told.sums).map(([name, times]) => {
    const [lot, state] = name.split(" ");
    return [`Sums of ${lot}`, `${whole(times)} ${state === "yes" ? "opened" : "signed for, perhaps opened"}`];
  });
  const spent = told.exact
    ? make("span", { class: "state bad" }, `∞: ${count(told.exact, "exact output")}`)
    : `${bound(told.spent)} of ${bound(told.allowed)}, at a δ of ${told.delta}`;
  fill(
    find("budget"),
    facts([
      ["ε of a document", spent],
      ["ε of one round", `at most ${bound(told.round_limit)}`],
      ["After the next", told.next ? make("span", { class: told.next.allowed ? null : "state bad" }, `${bound(told.next.afterwards)} of ${bound(told.allowed)}, sums and counts together${told.next.allowed ? "" : ": more than is allowed, so it is refused"}`) : null],
      ...opened,
      ["Sealed, never opened", told.unopened ? whole(told.unopened) : null],
      ["Under noise", told.noisy ? count(told.noisy, "answer") : "nothing"],
      ["In the clear", told.clear ? make("span", { class: "state bad" }, count(told.clear, "answer")) : "nothing"],
      ["It insists on", `${count(told.min_cohort, "member")} in a cohort`],
    ]),
    told.outputs ? null : make("p", { class: "empty" }, "Nothing that was made of the corpus has left so far."),
  );
}

startSent();
startChecks();
startLive("/v1/standing", standing);
