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
  return read(await open(path, body));
}

export async function open(path, body = null, { signal = null, headers = {} } = {}) {
  // The response itself, once there is a key where one is needed; raises Refused if it is an error.
  for (;;) {
    const used = key();
    const response = await sent(path, body, used, signal, headers);
    if (response.ok) return response;
    if (response.status !== 401) {
      const value = await read(response);
      throw new Refused(response.status, sentence(value?.error?.message ?? `status ${response.status}`));
    }
    if (key() === used) await askForKey();
  }
}

async function sent(path, body, used, signal, more) {
  const headers = { Accept: "application/json", ...more };
  if (used) headers.Authorization = `Bearer ${used}`;
  if (body) headers["Content-Type"] = "application/json";
  try {
    return await fetch(path, {
      method: body ? "POST" : "GET",
      headers,
      body: body && JSON.stringify(body),
      cache: "no-store",
      credentials: "omit",
      signal,
    });
  } catch {
    signal?.throwIfAborted();
    throw new Refused(0, "The service does not answer.");
  }
}

async function read(response) {
  try {
    return await response.json();
  } catch {
    throw new Refused(response.status, "The service's answer could not be read.");
  }
}

function sentence(words) {
  return `${words.charAt(0).toUpperCase()}${words.slice(1)}${/[.!?]$/.test(words) ? "" : "."}`;
}
