// The figures of an audit, and the code that the owner has approved.
// Knows the answer of /v1/standing. Asks nothing.

import { breakable, facts, fill, find, make, scrolling, table } from "./dom.js";
import { backticks } from "./folder.js";
import { count, percent, short, whole } from "./numbers.js";

export function showAudit(findings) {
  const place = find("audit");
  if (!findings) {
    fill(place, make("p", { class: "empty" }, backticks("No audit is stored here. Put one beside the other files with `ridgeway client audit FILE --json > DIR/audit.json`.")));
    return;
  }
  const share = (value) => (value === undefined ? "–" : percent(value));
  const rows = findings.map((each) => [
    each.view,
    each.proven ? "yes" : "no",
    each.window === undefined ? "–" : whole(each.window),
    share(each.recovered),
    share(each.rare_recovered),
    share(each.chance),
    share(each.precision),
  ]);
  const heads = ["What an attacker sees", "Proven", "Window", "Tokens recovered", "Rare ones", "By chance", "Right"];
  fill(place, scrolling("Audit", table(heads, rows, { caption: "What known attacks get out of this holder's sums", numbersFrom: 2 })));
}

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
