// The code that the owner has approved.
// Knows the answer of /v1/standing. Asks nothing.

import { breakable, facts, fill, find, make, scrolling, table } from "./dom.js";
import { count, short, whole } from "./numbers.js";

export function showBundle({ sha256, files, lines, approved, approvals }) {
  const verdict = approved
    ? make("span", { class: "state good" }, "The code of this installation is what the owner has approved.")
    : make("span", { class: "state bad" }, "The code of this installation is not approved, so no round with it runs here.");
  const rows = files.map((file) => [breakable(file.name.replaceAll("/", "/\u200b")), make("code", { title: file.sha256 }, short(file.sha256)), whole(file.lines)]);
  const made = scrolling("Files of the bundle", table(["File", "SHA-256", "Lines"], rows, { caption: "Files of the bundle", unseen: true, numbersFrom: 2 }));
  fill(
    find("bundle"),
    make("p", {}, verdict),
    facts([
      ["Installed", make("code", {}, sha256)],
      ["Approved", make("span", {}, approvals.flatMap((each) => [make("code", {}, each), " "]))],
      ["It has", `${count(files.length, "file")}, ${count(lines, "line")}`],
    ]),
    make("details", {}, make("summary", {}, "Every file"), made),
  );
}
