// The page of a holder: puts the parts together, and reads them again when something has changed.

import { showAudit, showBundle, showLog } from "./approved.js";
import { startChecks, verify } from "./checks.js";
import { facts, fill, find, make } from "./dom.js";
import { startLive } from "./live.js";
import { count, short, whole } from "./numbers.js";
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
  showLog(now.log);
  showAudit(now.audit);
  showBundle(now.bundle);
  await verify();
}

function glance(now) {
  const alarm = find("alarm");
  if (now.fork) fill(alarm, make("strong", {}, "The coordinator has told two stories"), make("span", {}, now.fork));
  else alarm.hidden = true;
  fill(
    find("glance"),
    facts([
      ["Domain", now.domain],
      ["Key", make("code", { title: now.key }, short(now.key))],
      ["Coordinator", make("span", {}, `${now.address}, key `, make("code", { title: now.coordinator }, short(now.coordinator)))],
      ["Newest release", now.release ? String(now.release).padStart(4, "0") : "none came yet"],
    ]),
  );
}

function budget({ sums, unopened, clear, questions, policy }) {
  const opened = Object.entries(sums).map(([name, times]) => {
    const [lot, state] = name.split(" ");
    return [`Sums of ${lot}`, `${whole(times)} ${state === "yes" ? "opened" : "signed for, perhaps opened"}`];
  });
  const tried = questions.reduce((sum, each) => sum + each.candidates, 0);
  fill(
    find("budget"),
    facts([
      ...opened,
      ["Sealed, never opened", unopened ? whole(unopened) : null],
      ["In the clear", clear ? make("span", { class: "state bad" }, count(clear, "answer")) : "nothing"],
      ["Questions counted", questions.length ? `${whole(questions.length)}, with ${count(tried, "candidate")}` : "none"],
      ["It insists on", `${policy.require_masking ? "masks, " : ""}${count(policy.min_cohort, "member")} in a sum, sums that differ by ${whole(policy.min_difference)}`],
    ]),
    opened.length || clear ? null : make("p", { class: "empty" }, "No sum with this holder's part was opened so far."),
  );
}

startSent();
startChecks();
startLive("/v1/standing", standing);
