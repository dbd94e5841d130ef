// The page of a federation: puts the parts together, and reads the slower ones again when something has changed.

import { showGlance, showObstacles } from "./glance.js";
import { startLedger, readLedger } from "./ledger.js";
import { startLive } from "./live.js";
import { showMembers, startMembers } from "./members.js";
import { readReleases, startReleases } from "./releases.js";
import { readRounds, showRound, startRounds } from "./round.js";

let entries = null;

async function standing(now) {
  showGlance(now);
  showObstacles(now.obstacles);
  showRound(now.round);
  showMembers(now);
  if (now.entries === entries) return;
  entries = now.entries;
  await Promise.all([readReleases(), readRounds(), readLedger()]);
}

startMembers();
startRounds();
startReleases();
startLedger();
startLive("/v1/standing", standing);
