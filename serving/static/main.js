// The page: puts the parts together, and takes notice when another release is in use.

import { startBatch } from "./batch.js";
import { showCard } from "./card.js";
import { showActivity, startCharts } from "./charts.js";
import { chatExperts, replay, startChat } from "./chat.js";
import { showCompared } from "./compare.js";
import { showDecision } from "./decision.js";
import { announce, button, fill, find, scrolling, table } from "./dom.js";
import { showDrift } from "./drift.js";
import { newSession, startAnswer } from "./expert.js";
import { startLive } from "./live.js";
import { milliseconds, percent, plain, short, whole } from "./numbers.js";
import { remember, startPast } from "./past.js";
import { linkButton, linked } from "./permalink.js";
import { offerExamples, promptText, route, setPrompt, startPrompt, usePrompt } from "./prompt.js";
import { showTokens, startTokens, viewed } from "./tokens.js";
import { startTuning, tune, tuned, tunePrompt, tuneRelease } from "./tuning.js";
import { showWords } from "./words.js";

const MODES = { prompt: "prompt", chat: "chat-text", batch: "batch-file" };
let standing = { release: null, refused: null, compared: null, experts: {} };
let hasCascade = false; // whether a table decides some prompts, and a sentence encoder the others
let stopAnswer = () => {};

function answered(reply, prompt) {
  showDecision(reply, hasCascade);
  find("why").hidden = find("prompt-tools").hidden = !reply;
  tunePrompt(reply);
  offerAnswer(reply, prompt);
  if (standing.compared || !reply) showCompared(reply, prompt);
  if (!reply) return;
  showTokens(reply, prompt);
  showWords(reply);
  remember(prompt, reply);
}

function offerAnswer(reply, prompt) {
  // An answer belongs to the prompt that it was asked for, and goes with it.
  stopAnswer();
  const asked = () => (stopAnswer = startAnswer(find("expert"), [{ role: "user", content: prompt }], newSession()));
  fill(find("expert"), reply?.expert ? button(`Ask ${reply.expert}`, asked, { class: null }) : null);
}

async function taken(now) {
  const before = standing;
  const others = Object.keys(now.experts).join("\n") !== Object.keys(before.experts).join("\n");
  if (now.release !== before.release || now.refused !== before.refused || others) await renew(now, before.release);
  showActivity(now.activity);
  showDrift(now.drift);
  experts(now.experts);
}

async function renew(now, before) {
  const card = await showCard();
  if (!card) return; // tried again with the next look
  standing = now;
  hasCascade = "cascade" in card.manifest;
  offerExamples(card.manifest.examples);
  await tuneRelease(card, Object.keys(now.experts).length > 0);
  if (before === null) tune(linked());
  if (before === now.release || (before === null && !now.compared)) return;
  await route();
  if (before !== null) announce(`Release ${short(now.release)} is in use now.`);
}

function experts(known) {
  const rows = Object.entries(known).map(([name, each]) => [
    name,
    each.state,
    whole(each.requests),
    each.requests ? percent(each.failed / each.requests) : "–",
    each.seconds === null ? "–" : milliseconds(1000 * each.seconds),
    whole(each.tokens),
    plain(each.cost),
  ]);
  find("experts-part").hidden = !rows.length;
  chatExperts(rows.length > 0);
  const heads = ["Expert", "State", "Requests", "Failed", "Answers after", "Tokens", "Cost"];
  const caption = "Since this service began; the time is the mean until an answer begins";
  fill(find("experts"), scrolling("The experts", table(heads, rows, { caption, numbersFrom: 2 })));
}

function setMode(mode) {
  for (const [name, first] of Object.entries(MODES)) {
    find(`mode-${name}`).hidden = name !== mode;
    find(`mode-is-${name}`).checked = name === mode;
    if (name === mode) find("skip").href = `#${first}`;
  }
}

function follow(link) {
  // What a link says: of other texts than those in the boxes.
  setMode(Object.hasOwn(MODES, link.get("mode")) ? link.get("mode") : "prompt");
  if (link.get("text")) setPrompt(link.get("text"));
  if (link.has("turn")) replay(link.getAll("turn"));
}

const link = linked();
startTokens(link.get("view"));
startCharts();
startTuning();
startPrompt(answered);
startPast(usePrompt);
startChat();
startBatch();
find("modes").addEventListener("change", (event) => setMode(event.target.value));
find("prompt-tools").append(linkButton(() => [["mode", "prompt"], ["text", promptText()], ["view", viewed()], ...tuned()]));
if (link.size) follow(link);
else setMode(document.querySelector("#modes input:checked")?.value ?? "prompt");
window.addEventListener("hashchange", () => {
  if (!linked().size) return;
  follow(linked());
  tune(linked());
});
startLive("/v1/activity", taken);
