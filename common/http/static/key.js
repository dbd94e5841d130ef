// The key, if the service wants one: asked for in a small form, kept until the tab is closed.
// Knows the form. Knows nothing of requests.

import { find } from "./dom.js";

const PLACE = "ridgeway-key";
let held = read();
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
      keep(box.value.trim());
      box.value = "";
      form.hidden = true;
      asking = null;
      resolve();
    };
  });
  return asking;
}

function keep(value) {
  held = value;
  try {
    sessionStorage.setItem(PLACE, value);
  } catch {
    // The browser keeps nothing; the key is held until the page is left.
  }
}

function read() {
  try {
    return sessionStorage.getItem(PLACE);
  } catch {
    return null;
  }
}
