// A link to what is shown: mode, texts and settings stand in the address's fragment, which browsers send to nobody.
// Made only when somebody asks for one, and taken away again when what it says is no longer shown.

import { announce, button } from "./dom.js";

export function linked() {
  const fragment = location.hash.slice(1);
  return new URLSearchParams(fragment.includes("=") ? fragment : "");
}

export function forgetLink() {
  if (location.hash.includes("=")) history.replaceState(null, "", location.pathname);
}

export function linkButton(pairs) {
  // `pairs` gives the names and values that the link holds, when it is asked for.
  const made = button("Link to this", async () => {
    const known = pairs().filter(([, value]) => value !== "" && value !== null);
    history.replaceState(null, "", `#${new URLSearchParams(known)}`);
    const copied = await navigator.clipboard?.writeText(location.href).then(() => true, () => false);
    announce(copied ? "The link is copied." : "The link is in the address bar.");
    made.textContent = copied ? "Link copied" : "Link is in the address bar";
    setTimeout(() => (made.textContent = "Link to this"), 3000);
  });
  return made;
}
