// Questions to the service that sent this page, and to nobody else.
// Knows HTTP and errors. Knows nothing of what is asked.

import { askForKey, key } from "./key.js";

export class Refused extends Error {
  // The service answered with an error; `status` is 0 if it did not answer at all.
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

export async function ask(path, body = null) {
  for (;;) {
    const used = key();
    const response = await sent(path, body, used);
    if (response.status !== 401) return answer(response);
    if (key() === used) await askForKey();
  }
}

async function sent(path, body, used) {
  const headers = { Accept: "application/json" };
  if (used) headers.Authorization = `Bearer ${used}`;
  if (body) headers["Content-Type"] = "application/json";
  try {
    return await fetch(path, {
      method: body ? "POST" : "GET",
      headers,
      body: body && JSON.stringify(body),
      cache: "no-store",
      credentials: "omit",
    });
  } catch {
    throw new Refused(0, "The service does not answer.");
  }
}

async function answer(response) {
  let value = null;
  try {
    value = await response.json();
  } catch {
    throw new Refused(response.status, "The service's answer could not be read.");
  }
  if (!response.ok) throw new Refused(response.status, sentence(value?.error?.message ?? `status ${response.status}`));
  return value;
}

function sentence(words) {
  return `${words.charAt(0).toUpperCase()}${words.slice(1)}${/[.!?]$/.test(words) ? "" : "."}`;
}
