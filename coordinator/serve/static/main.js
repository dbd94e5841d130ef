// The page: puts the parts together, and takes notice when another release is in use.

import { showCard } from "./card.js";
import { showActivity, startCharts } from "./charts.js";
import { showDecision } from "./decision.js";
import { announce, find, make } from "./dom.js";
import { showDrift } from "./drift.js";
import { startLive } from "./live.js";
import { short } from "./numbers.js";
import { route, startPrompt } from "./prompt.js";
import { showTokens, startTokens } from "./tokens.js";
import { showWords } from "./words.js";

let release = null;
let refused = null;

function answered(reply, prompt) {
  showDecision(reply);
  find("why").hidden = !reply;
  if (!reply) return;
  showTokens(reply, prompt);
  showWords(reply);
}

async function standing(now) {
  if (now.release !== release || now.refused !== refused) await renew();
  showActivity(now.activity);
  showDrift(now.drift);
  experts(now.experts);
}

async function renew() {
  const before = release;
  if (!(await read()) || before === release || before === null) return;
  await route();
  announce(`Release ${short(release)} is in use now.`);
}

async function read() {
  const card = await showCard();
  if (card) ({ release, refused } = card);
  return card;
}

function experts(states) {
  const names = Object.keys(states);
  find("experts-part").hidden = !names.length;
  find("experts").replaceChildren(...names.map((name) => make("li", {}, `${name}: ${states[name]}`)));
}

startTokens();
startCharts();
startPrompt(answered);
startLive("/v1/activity", standing);
