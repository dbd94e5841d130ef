// The key, if the service wants one: asked for in a small form, kept in memory until the page is left.
// Knows the form. Knows nothing of requests.

import { find } from "./dom.js";

let held = null;
let asking = null;

export const key = () => held;

export function askForKey() {
  // Resolves when somebody has given one; whoever asks meanwhile waits for the same.
  asking ??= new Promise((resolve) => {
    const form = find("key");
    const box = find("key-box");
    if (held) find("key-why").textContent = "That key is not known here. Give another one.";
    form.hidden = false;
    box.value = "";
    box.focus();
    form.onsubmit = (event) => {
      event.preventDefault();
      held = box.value.trim();
      box.value = "";
      form.hidden = true;
      asking = null;
      resolve();
    };
  });
  return asking;
}
