// The description of the API, made readable: every address with what it takes, what it answers, and a command to try.
// Knows OpenAPI 3.1 as far as this service uses it.

import { ask } from "./api.js";
import { fill, find, make, scrolling, table } from "./dom.js";
import { curl } from "./examples.js";
import { fields, kindOf, resolve } from "./schemas.js";

const METHODS = ["get", "post", "put", "patch", "delete"];

async function start() {
  try {
    const api = await ask("/openapi.json");
    const operations = Object.entries(api.paths).flatMap(([path, methods]) =>
      METHODS.filter((method) => method in methods).map((method) => ({ path, method, ...methods[method] })),
    );
    fill(find("contents"), make("ul", {}, operations.map(entry)));
    const records = Object.entries(api.components?.schemas ?? {}).filter(([, schema]) => schema.properties);
    fill(find("reference"), about(api.info.description), operations.map((each) => operation(each, api)), records.length ? section(records, api) : null);
    if (location.hash) document.getElementById(location.hash.slice(1))?.scrollIntoView();
  } catch (problem) {
    fill(find("reference"), make("p", { class: "notice" }, `The description could not be read. ${problem.message}`));
  }
}

const anchor = ({ method, path }) => `${method}${path.replace(/[^a-z0-9]+/gi, "-")}`;

function entry(each) {
  return make("li", {}, make("a", { href: `#${anchor(each)}` }, `${each.method.toUpperCase()} ${each.path}`));
}

function about(words) {
  return (words ?? "").split("\n\n").map((each) => make("p", {}, ticked(each)));
}

function ticked(words) {
  // What stands between backticks is code.
  return words.split("`").map((part, place) => (place % 2 ? make("code", {}, part) : part));
}

function operation(each, api) {
  const body = each.requestBody?.content?.["application/json"]?.schema;
  return make(
    "section",
    { class: "operation", id: anchor(each), "aria-label": `${each.method.toUpperCase()} ${each.path}` },
    make("h2", {}, make("span", { class: "method" }, each.method.toUpperCase()), make("code", {}, each.path)),
    about(each.description ?? each.summary),
    each.parameters?.length ? [make("h3", {}, "Parameters"), parameters(each, api)] : null,
    body ? [make("h3", {}, "Body"), record(body, api, `Body of ${each.path}`)] : null,
    make("h3", {}, "Answers"),
    answers(each, api),
    make("h3", {}, "Try it"),
    make("pre", { tabindex: "0" }, make("code", {}, curl(each, body, api))),
  );
}

function parameters(each, api) {
  const rows = each.parameters.map((one) => [make("code", {}, one.name), linked(kindOf(one.schema ?? {}, api), api), one.in, one.description ?? ""]);
  return scrolling(`Parameters of ${each.path}`, table(["Name", "Type", "Where", "What it is"], rows, { numbersFrom: 9 }));
}

function record(schema, api, name) {
  const rows = fields(schema, api).map((field) => [make("code", {}, field.name), make("span", { class: "type" }, linked(field.kind, api)), ticked(field.words)]);
  const words = resolve(schema, api).description;
  return [words ? make("p", { class: "quiet" }, ticked(words)) : null, rows.length ? scrolling(name, table(["Field", "Type", "What it is"], rows, { numbersFrom: 9 })) : null];
}

function answers(each, api) {
  const all = Object.entries(each.responses ?? {});
  const good = all.filter(([status]) => status < "400");
  const bad = all.filter(([status]) => status >= "400");
  const errors = () => make("details", {}, make("summary", {}, `Errors (${bad.length})`), statuses(bad, `Errors of ${each.path}`, api));
  return [statuses(good, `Answers of ${each.path}`, api), bad.length ? errors() : null];
}

function statuses(replies, name, api) {
  const rows = replies.map(([status, reply]) => {
    const kinds = Object.entries(reply.content ?? {}).map(([type, { schema }]) => (schema ? kindOf(schema, api) : type));
    const words = reply.description === "Successful Response" ? "Done." : reply.description;
    return [status, linked(kinds.join(" or ") || "–", api), words];
  });
  return scrolling(name, table(["Status", "Holds", "When"], rows, { numbersFrom: 9 }));
}

function linked(words, api) {
  // Names of records lead to them.
  const records = api.components?.schemas ?? {};
  return words.split(/\b/).map((part) => (records[part]?.properties ? make("a", { href: `#record-${part}` }, part) : part));
}

function section(records, api) {
  return make(
    "section",
    { class: "operation", id: "records" },
    make("h2", {}, "Records"),
    records.map(([name, schema]) => [make("h3", { id: `record-${name}` }, name), record(schema, api, name)]),
  );
}

start();
