// Asks again every two seconds, while somebody is looking at the page.
// What is asked and what is shown of it is somebody else's job.

import { ask } from "./api.js";
import { find, show } from "./dom.js";

const EVERY_MS = 2000;
const SLOWEST_MS = 15_000;

export function startLive(path, onStanding) {
  let timer = 0;
  let failures = 0;
  let looking = false;

  async function look() {
    if (looking || document.hidden) return;
    looking = true;
    clearTimeout(timer);
    try {
      await onStanding(await ask(path));
      failures = 0;
      show(find("live-problem"), null);
    } catch (problem) {
      failures += 1;
      show(find("live-problem"), `${problem.message} What is shown may be old; it is tried again.`);
    }
    looking = false;
    timer = setTimeout(look, Math.min(EVERY_MS * 2 ** failures, failures ? SLOWEST_MS : EVERY_MS));
  }

  document.addEventListener("visibilitychange", look);
  look();
}
