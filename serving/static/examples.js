// A command to try an address with, made from its description.
// Knows OpenAPI and curl.

import { kindOf, resolve } from "./schemas.js";

const PROMPT = "May I sell this program if I keep the copyright notice?";
const KNOWN = {
  prompt: PROMPT,
  input: PROMPT,
  model: "auto",
  messages: [{ role: "user", content: PROMPT }],
  explain: true,
};

export function curl(operation, schema, api) {
  const address = `${location.origin}${operation.path}`;
  const lines = [operation.method === "get" ? `curl ${address}` : `curl -X ${operation.method.toUpperCase()} ${address}`];
  if (schema) lines.push("-H 'Content-Type: application/json'", `-d '${JSON.stringify(body(schema, api))}'`);
  return lines.join(" \\\n  ");
}

function body(schema, api) {
  const { properties = {}, required = [] } = resolve(schema, api);
  const names = required.length ? required : Object.keys(properties).filter((name) => ["prompt", "explain"].includes(name));
  return Object.fromEntries(names.map((name) => [name, KNOWN[name] ?? made(properties[name] ?? {}, api)]));
}

function made(field, api) {
  const kind = kindOf(field, api);
  if (kind.includes("number")) return 1;
  if (kind.startsWith("true")) return false;
  return kind.startsWith("list") ? [] : "…";
}
